// How a function of the plugin answers: no exception leaves it, and a failure becomes words.
#pragma once

#include <cstdio>
#include <exception>
#include <new>

#include "devices/cuda/plugin.hpp"
#include "devices/cuda/plugin/driver.hpp"
#include "platform/status.hpp"

namespace trireme::cuda {

inline void write(const char* text, char* to, std::uint64_t bytes) {
  std::snprintf(to, bytes, "%s", text);
}

// Runs a body that returns a Status.
template <class Body>
std::int32_t guard(char* text, Body&& body) noexcept {
  try {
    const Status status = body();
    if (!status.ok()) write(status.message().c_str(), text, kTextBytes);
    return status.code();
  } catch (const std::bad_alloc&) {
    write("host memory has run out", text, kTextBytes);
    return TRIREME_ERROR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    write(error.what(), text, kTextBytes);
    return TRIREME_ERROR_INTERNAL;
  }
}

// The same with the driver's own number.
template <class Body>
std::int32_t guard(Answer* answer, Body&& body) noexcept {
  last_failure() = 0;
  const std::int32_t status = guard(answer->text, body);
  answer->driver_error = last_failure();
  return status;
}

}  // namespace trireme::cuda
