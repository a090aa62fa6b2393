// The seeds of a layer's calls, which are the same wherever a layer and a leaf are computed.
#pragma once

#include <cstdint>

#include "platform/mix.hpp"

namespace trireme::strategies {

inline std::uint64_t leaf_seed(std::uint64_t seed, std::uint64_t step, std::uint32_t leaf) {
  return mix(mix(mix(0, seed), step), leaf);
}
inline std::uint64_t layer_seed(std::uint64_t of_leaf, std::uint64_t layer) {
  return mix(of_leaf, layer);
}

}  // namespace trireme::strategies
