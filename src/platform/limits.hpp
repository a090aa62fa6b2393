// Limits of the process whose excess ends it by a signal, so that they are looked at before.
#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace trireme {

// Whether a file, one in memory included, may have `bytes` (RLIMIT_FSIZE). Else the system would send
// SIGXFSZ; the refusal's errno is EFBIG.
inline bool file_may_have(std::uint64_t bytes) noexcept {
  rlimit limit = {};
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
         bytes <= limit.rlim_cur;
}

}  // namespace trireme
