/**
 * @file log.h
 * @brief Log messages of the library. It prints nothing unless TRIREME_LOG is set.
 *
 * Ownership: messages belong to the library and live for the call.
 * Thread safety: any thread of the library may call the callback, several at once.
 */
#ifndef TRIREME_LOG_H
#define TRIREME_LOG_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>

TRIREME_BEGIN_C

/** Importance of a message: TRIREME_LOG_*. 0 is none. */
typedef int32_t trireme_log_level;

/** Numbers of the levels. */
enum {
    TRIREME_LOG_ERROR = 1,
    TRIREME_LOG_WARNING = 2,
    TRIREME_LOG_INFO = 3,
    TRIREME_LOG_DEBUG = 4
};

/**
 * Called with each message: one line of UTF-8 without a line end. It must not call the library,
 * except to read names and the last error.
 */
typedef void(TRIREME_CALLCONV *trireme_log_callback)(trireme_log_level level, const char *message,
                                                     void *user_data);

/**
 * Sets the function that gets log messages, for the whole process.
 *
 * Waits until no thread is inside the callback that was set before. So the caller may free its
 * user_data afterwards. Called from inside the callback, it does not wait. Keeps `callback` and
 * `user_data` until the next call.
 *
 * @param callback   Called for each message; NULL for silence. Before the first call, TRIREME_LOG
 *                   decides.
 * @param level      Least important level that is told; ignored when callback is NULL.
 * @param user_data  Handed to the callback.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  level is none of TRIREME_LOG_*.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_set_log_callback(trireme_log_callback callback, trireme_log_level level, void *user_data);

TRIREME_END_C

#endif
