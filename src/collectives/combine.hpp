// Combine: the sums of a schedule, in the types of its slots.
#pragma once

#include <trireme/types.h>

#include <cstdint>
#include <vector>

namespace trireme {

struct Reduction {
  trireme_dtype dtype = 0;
  trireme_reduction reduction = 0;
  double scale = 0;
  std::uint32_t ranks = 1;  // divisor of an average
};

// Elements of a slot. Partial elements of f16, bf16 and f8 are f32; all others have the dtype
// itself.
struct Operand {
  const void* data = nullptr;
  bool partial = false;
};

// Bytes of one partial element.
std::uint64_t partial_size(trireme_dtype dtype);

// destination = the sources, combined in this order; finished (divided, scaled, rounded) unless it
// is partial. The destination may be the memory of a source of the same kind.
void combine(const Reduction& how, void* destination, bool partial,
             const std::vector<Operand>& sources, std::uint64_t count);

}  // namespace trireme
