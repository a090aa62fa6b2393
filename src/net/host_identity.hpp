// The host of this process: processes with one identity can meet by a socket without a network, and
// share memory. They run on the same machine since its start, in the same namespaces, for the same
// user.
#pragma once

#include <string_view>

#include "net/hmac.hpp"

namespace trireme {

// Equal only for processes of one host that name the same label. Where the system does not tell,
// the identity is unique.
Digest host_identity(std::string_view label);

}  // namespace trireme
