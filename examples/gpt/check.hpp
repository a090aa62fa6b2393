// check(): turns a failed call into an exception with the message of Trireme.
#pragma once

#include <trireme/trireme.h>

#include <stdexcept>
#include <string>

namespace gpt {

inline void check(trireme_status status) {
  if (status != TRIREME_OK)
    throw std::runtime_error(std::string(trireme_status_name(status)) + ": " +
                             trireme_last_error());
}

}  // namespace gpt
