#include "platform/ticks.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace trireme {
namespace {

bool counter_is_even() {
#if defined(__x86_64__)
  constexpr unsigned kInvariant = 1u << 8;  // of the leaf about power
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & kInvariant) != 0;
#else
  return false;
#endif
}

}  // namespace

const bool detail::ticks_are_cycles = counter_is_even();

TickScale::At::At(const TickScale& scale) : ticks_(ticks_now()), ns_(now_ns()), ns_per_tick_(0) {
  if (ticks_ > scale.first_ticks_ && ns_ > scale.first_ns_) {
    ns_per_tick_ = static_cast<double>(ns_ - scale.first_ns_) /
                   static_cast<double>(ticks_ - scale.first_ticks_);
  }
}

std::uint64_t TickScale::At::ns_of(std::uint64_t ticks) const {
  if (ticks >= ticks_) return ns_;  // another core's counter is a little ahead
  const double ago = static_cast<double>(ticks_ - ticks) * ns_per_tick_;
  return ago >= static_cast<double>(ns_) ? 0 : ns_ - static_cast<std::uint64_t>(ago);
}

}  // namespace trireme
