// The words by which ranks compare learning rates.
#pragma once

#include <cstdint>

#include "optimizer/rules/settings.hpp"

namespace trireme::strategies {

// The bits of a step's rate, with those of the groups if there are any.
std::uint64_t rates_to_compare(const optimizers::Settings& settings, double step_rate);

}  // namespace trireme::strategies
