// Arrays of layers: checks.
#pragma once

#include <trireme/types.h>

#include <cstdint>
#include <initializer_list>

#include "parallel/tensor/split.hpp"
#include "platform/status.hpp"

namespace trireme::parallel {

// An array of a caller, as its call names it.
struct LayerArray {
  const char* name;
  const void* data;
  std::uint64_t bytes;
  bool written;
};

// No array with bytes is NULL, and a written one has no byte in common with another one.
Status check_arrays(std::initializer_list<LayerArray> arrays);

}  // namespace trireme::parallel
