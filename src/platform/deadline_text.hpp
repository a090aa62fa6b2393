// What a TIMEOUT says of its deadline: how long it was, and which option has set it.
#pragma once

#include <trireme/status.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "platform/status.hpp"

namespace trireme {

// "; the deadline is 1.5 s, timeout_ns of the call's options" behind a TIMEOUT; anything else stays.
inline Status tell_deadline(Status status, std::uint64_t timeout_ns, const char* option) {
  if (status.code() != TRIREME_ERROR_TIMEOUT) [[likely]] return status;
  if (status.message().find("the deadline is") != std::string::npos) return status;
  char text[48];
  std::snprintf(text, sizeof text, "; the deadline is %g s, ", static_cast<double>(timeout_ns) / 1e9);
  const FailureDetails details = status.details() != nullptr ? *status.details() : FailureDetails{};
  return Status::failure(status.code(), status.message() + text + option)
      .with_details(details);
}

}  // namespace trireme
