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

// Does the action that was set for "group.point". The group is mostly the name of an operation.
// Every pair must stand in the list of failpoint.cpp, or the visit fails with INTERNAL. That keeps
// the list whole.
inline Status failpoint(const char* group, const char* point) {
  if (!detail::failpoints_armed.load(std::memory_order_relaxed)) [[likely]] {
    return Status::success();
  }
  return detail::visit_failpoint(group, point);
}

// Visits a failpoint; a failure there ends the function. An unarmed visit costs one load.
#define TRIREME_FAILPOINT(group, point)                                                     \
  do {                                                                                      \
    if (::trireme::detail::failpoints_armed.load(std::memory_order_relaxed)) [[unlikely]] { \
      TRIREME_RETURN_IF_ERROR(::trireme::detail::visit_failpoint(group, point));            \
    }                                                                                       \
  } while (false)

// The errno that a failpoint puts in place of a call; 0 if it does not fail. kCutShort makes the
// call for a part of its bytes.
constexpr int kCutShort = -1;
int failed_with(const Status& visit) noexcept;

std::uint32_t failpoint_count();
const char* failpoint_name(std::uint32_t index);  // nullptr past the end
Status set_failpoints(const char* text);
Status failpoint_hits(const char* name, std::uint64_t* out);

}  // namespace trireme
