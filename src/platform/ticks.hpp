// Ticks: stamps that are cheap to take, and turn into nanoseconds when they are read.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "platform/clock.hpp"

namespace trireme {

namespace detail {
// Whether the processor's counter runs at one rate in every state of the processor. Else a tick is
// a nanosecond.
extern const bool ticks_are_cycles;
}  // namespace detail

inline std::uint64_t ticks_now() noexcept {
#if defined(__x86_64__)
  if (detail::ticks_are_cycles) [[likely]]
    return __rdtsc();
#endif
  return now_ns();
}

// Turns stamps into nanoseconds of now_ns(), by how far both have gone since it was made.
class TickScale {
 public:
  TickScale() : first_ticks_(ticks_now()), first_ns_(now_ns()) {}

  class At {
   public:
    explicit At(const TickScale& scale);
    std::uint64_t ns_of(std::uint64_t ticks) const;

   private:
    std::uint64_t ticks_;
    std::uint64_t ns_;
    double ns_per_tick_;
  };
  At now() const { return At(*this); }

 private:
  const std::uint64_t first_ticks_;
  const std::uint64_t first_ns_;
};

}  // namespace trireme
