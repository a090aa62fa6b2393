// Failpoints: named places where tests make this process die, stop, sleep or fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "platform/status.hpp"

namespace trireme {

namespace detail {
extern std::atomic<bool> failpoints_armed;
Status visit_failpoint(const char* group, const char* point);
}  // namespace detail

// Does what was set for "group.point"; the group is mostly the name of an operation. Every pair
// must be in the list of failpoint.cpp, or the visit fails with INTERNAL, so that the list stays
// whole.
inline Status failpoint(const char* group, const char* point) {
  if (!detail::failpoints_armed.load(std::memory_order_relaxed)) [[likely]] {
    return Status::success();
  }
  return detail::visit_failpoint(group, point);
}

// The same where a failure of the point ends the function, at the cost of one look.
#define TRIREME_FAILPOINT(group, point)                                                       \
  do {                                                                                        \
    if (::trireme::detail::failpoints_armed.load(std::memory_order_relaxed)) [[unlikely]] {   \
      TRIREME_RETURN_IF_ERROR(::trireme::detail::visit_failpoint(group, point));              \
    }                                                                                         \
  } while (false)

// The errno with which a failpoint fails, in place of a call that was not made; 0 if it does not. With
// kCutShort the call is made for a part of its bytes.
constexpr int kCutShort = -1;
int failed_with(const Status& visit) noexcept;

std::uint32_t failpoint_count();
const char* failpoint_name(std::uint32_t index);  // nullptr past the end
Status set_failpoints(const char* text);
Status failpoint_hits(const char* name, std::uint64_t* out);

}  // namespace trireme
