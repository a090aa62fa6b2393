// Every rank tells the others a text of its own.
#pragma once

#include <string>
#include <vector>

#include "exchange/storage.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

// Collective on the gathers' channel. *out has the text of each rank. Those of peers are not
// trusted: a reader checks them. `call`: the user's function, for messages.
Status exchange_texts(const Link& link, const char* call, const std::string& own,
                      std::vector<std::string>* out);

}  // namespace trireme::strategies
