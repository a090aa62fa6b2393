// Sleeping on a word of memory until another thread changes it.
#pragma once

#include <atomic>
#include <cstdint>

namespace trireme {

// Sleeps while *word is `expected`, at most for timeout_ns. May return early without a cause.
// `shared`: the word lies in memory that several processes map.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::uint64_t timeout_ns, bool shared) noexcept;

void futex_wake_all(const std::atomic<std::uint32_t>& word, bool shared) noexcept;

// CPUs this process may run on; at least 1.
int available_cpus() noexcept;

// Tells the CPU that this is a spin loop.
inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace trireme
