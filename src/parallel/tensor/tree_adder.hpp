// TreeAdder: adds arrays along a tree, in pieces that stay in the caches.
#pragma once

#include <trireme/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sharding/blocks.hpp"

namespace trireme::parallel {

// The type in which sums of a dtype wait for more summands: f32 for f16, bf16 and f8.
trireme_dtype sum_dtype(trireme_dtype dtype);

class TreeAdder {
 public:
  // The given arrays have one dtype, and the result has another one or the same: of a sum, or
  // sum_dtype() of it.
  TreeAdder(sharding::TreeProgram program, trireme_dtype given, trireme_dtype result);

  // Adds `count` elements. The result may be one of the given arrays, if they have its dtype. Does
  // not allocate. One thread at a time.
  void add(const void* const* given, std::uint64_t count, void* result);

 private:
  void add_piece(const void* const* given, std::uint64_t first, std::uint64_t count, void* result);
  // `spare` gets the elements if they have to be widened.
  const void* find(const sharding::TreeProgram::Operand& operand, const void* const* given,
                   std::uint64_t first, std::uint64_t count, std::byte* spare);
  std::byte* temporary(std::size_t number);

  const sharding::TreeProgram program_;
  const trireme_dtype given_;
  const trireme_dtype result_;
  const trireme_dtype sum_;
  std::vector<std::byte> memory_;  // the program's temporaries, and three more
};

}  // namespace trireme::parallel
