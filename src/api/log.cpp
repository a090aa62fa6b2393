// log.h.
#include <trireme/log.h>

#include "api/boundary.hpp"
#include "platform/log.hpp"

using namespace trireme;

trireme_status trireme_set_log_callback(trireme_log_callback callback, trireme_log_level level,
                                        void* user_data) {
  return api::guard(__func__, [&]() -> Status {
    if (callback != nullptr && (level < TRIREME_LOG_ERROR || level > TRIREME_LOG_DEBUG)) {
      return invalid_argument("level is " + std::to_string(level) + ", not one of TRIREME_LOG_*");
    }
    set_log_callback(callback, level, user_data);
    return Status::success();
  });
}
