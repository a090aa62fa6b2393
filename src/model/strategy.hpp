// Names of strategies.
#pragma once

#include <trireme/model.h>

#include "platform/status.hpp"

namespace trireme::strategies {

const char* strategy_name(trireme_strategy strategy) noexcept;  // or "unknown"
Status parse_strategy(const char* text, trireme_strategy* out);

}  // namespace trireme::strategies
