// NCCL: found at run time, without a driver, and not loaded.
#pragma once

#include <string>

#include "platform/status.hpp"

namespace trireme::cuda {

struct Nccl {
  std::string file;
  int version = 0;  // 10000 * major + 100 * minor + patch; 0 if it is not loaded
};

// The copy that the process has loaded, if it is new enough and has all functions that collectives
// need. Else the first file that is there. UNSUPPORTED has every try.
Status find_nccl(Nccl* out);

}  // namespace trireme::cuda
