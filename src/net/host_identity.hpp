// The host of this process, as far as processes on it can meet by a socket without a network and
// share memory: the same machine since its start, the same namespaces, the same user.
#pragma once

#include <string_view>

#include "net/hmac.hpp"

namespace trireme {

// The same for processes of one host alone that name the same label. Where the system does not tell,
// it is nobody else's.
Digest host_identity(std::string_view label);

}  // namespace trireme
