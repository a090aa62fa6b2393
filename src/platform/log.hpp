// The log: lines for the caller's callback. Without one the library prints nothing, unless
// TRIREME_LOG names a level: then lines up to it go to stderr. `trireme run` sets it for its
// workers.
#pragma once

#include <trireme/log.h>

#include <string>

namespace trireme {

// Cheap test, so that callers build no text that goes nowhere.
bool log_wanted(trireme_log_level level) noexcept;

// Hands one line to the callback, if there is one for this level. Never throws.
void log_line(trireme_log_level level, const std::string& message) noexcept;

// Sets the callback and waits until no thread is inside the old one, unless called from inside it.
void set_log_callback(trireme_log_callback callback, trireme_log_level level, void* user_data);

}  // namespace trireme
