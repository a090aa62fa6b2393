// Limits of the process that end it by a signal when it exceeds them, so the library checks them
// first.
#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace trireme {

// Whether a file, also one in memory, may have `bytes` (RLIMIT_FSIZE). Beyond the limit the system
// sends SIGXFSZ; the library refuses with EFBIG instead.
inline bool file_may_have(std::uint64_t bytes) noexcept {
  rlimit limit = {};
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
         bytes <= limit.rlim_cur;
}

}  // namespace trireme
