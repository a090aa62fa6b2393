// The words of a TIMEOUT about its deadline: how long it was, and the option that set it.
#pragma once

#include <trireme/status.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "platform/status.hpp"

namespace trireme {

// Appends "; the deadline is 1.5 s, timeout_ns of the call's options" to a TIMEOUT; leaves any
// other status. `passed` is false where the deadline of another call has passed, on this rank or a
// peer.
inline Status tell_deadline(Status status, std::uint64_t timeout_ns, const char* option,
                            bool passed = true) {
  if (status.code() != TRIREME_ERROR_TIMEOUT) [[likely]]
    return status;
  if (status.message().find("the deadline is") != std::string::npos) return status;
  char text[80];
  std::snprintf(text, sizeof text, "; the deadline %s %g s, ",
                passed ? "is" : "of another call has passed, that of this one is",
                static_cast<double>(timeout_ns) / 1e9);
  const FailureDetails details = status.details() != nullptr ? *status.details() : FailureDetails{};
  return Status::failure(status.code(), status.message() + text + option).with_details(details);
}

}  // namespace trireme
