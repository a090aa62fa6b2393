// The log: lines for the caller's callback. Without one the library prints nothing, unless TRIREME_LOG,
// which trireme run sets for its workers, names a level: what is up to it goes to stderr.
#pragma once

#include <trireme/log.h>

#include <string>

namespace trireme {

// Cheap test so that callers build no text nobody hears.
bool log_wanted(trireme_log_level level) noexcept;

// Hands one line to the callback, if there is one for this level. Never throws.
void log_line(trireme_log_level level, const std::string& message) noexcept;

// Sets the callback and waits until nobody is inside the old one, unless called from inside it.
void set_log_callback(trireme_log_callback callback, trireme_log_level level, void* user_data);

}  // namespace trireme
