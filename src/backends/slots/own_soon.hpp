// own_soon(): fetches a cache line before this rank writes it.
#pragma once

namespace trireme::local {

// Prepares the line for this rank's store: peers have read it, so this core does not own it.
// __builtin_prefetch() would only read it where the compiler knows no better processor.
inline void own_soon(const void* line) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

}  // namespace trireme::local
