// The first gradient of this rank, by number, that holds inf or NaN.
#pragma once

#include <cstdint>

#include "kernels/finite.hpp"
#include "sharding/layout.hpp"

namespace trireme::strategies {

class OverflowWatch {
 public:
  // Whether look() looks from now on.
  void watch(bool on) { on_ = on; }
  void look(std::uint64_t target, trireme_dtype dtype, const void* elements, std::uint64_t count) {
    if (on_ && target < first_ && !kernels::all_finite(dtype, elements, count)) first_ = target;
  }
  // The lowest target with one in this step. kNone: there was none, or look() does not look.
  std::uint64_t first() const { return first_; }
  void clear() { first_ = sharding::kNone; }

 private:
  bool on_ = false;
  std::uint64_t first_ = sharding::kNone;
};

}  // namespace trireme::strategies
