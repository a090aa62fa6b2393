// NCCL: found at run time, without a driver.
#pragma once

#include <string>

#include "platform/status.hpp"

namespace trireme::cuda {

struct Nccl {
  std::string file;
  int version = 0;  // 10000 * major + 100 * minor + patch
};

// The first that loads, is new enough, and has all functions that collectives need. UNSUPPORTED has
// every try.
Status find_nccl(Nccl* out);

}  // namespace trireme::cuda
