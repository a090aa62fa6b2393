/**
 * @file failpoint.h
 * @brief Places where tests can make a rank die, sleep or fail.
 *
 * A failpoint is a named place in the library. A test sets an action for it, which the library
 * carries out when it comes there. While none is set, each costs one predictable branch.
 *
 * Ownership: names belong to the library.
 * Thread safety: any thread may call all functions here.
 */
#ifndef TRIREME_FAILPOINT_H
#define TRIREME_FAILPOINT_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>

TRIREME_BEGIN_C

/**
 * Counts the failpoints in the library.
 *
 * Does not block. Cannot fail.
 *
 * @return The number of failpoints.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API uint32_t TRIREME_CALLCONV trireme_failpoint_count(void);

/**
 * Names a failpoint, for example "all_reduce.after_publish".
 *
 * Does not block. Cannot fail.
 *
 * @param index  0 to trireme_failpoint_count() - 1.
 * @return A string that lives as long as the library; NULL for an index past the end.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API const char *TRIREME_CALLCONV trireme_failpoint_name(uint32_t index);

/**
 * Sets the actions of this process's failpoints, in place of all actions set before.
 *
 * The library also reads such a text from the environment variable TRIREME_FAILPOINTS, once, when
 * it is loaded. Does not block. Keeps no pointer.
 *
 * ACTION is one of these:
 *
 * - `kill`: the process gets SIGKILL.
 * - `stop`: the process gets SIGSTOP.
 * - `sleep(MILLISECONDS)`: the thread sleeps.
 * - `fail`: the step answers TRIREME_ERROR_SYSTEM.
 * - `fail(ERRNO)`: the same, with that error number.
 * - `short`: `file.read` and `file.write` move a part of the bytes; other failpoints fail.
 * - `off`: nothing.
 *
 * HIT says which visits to the failpoint act. "2" is the second visit alone. "2+" is the second and
 * all later ones. Without HIT every visit acts.
 *
 * @param text  "NAME=ACTION[@HIT]", several with ";" between them, for example
 * "all_reduce.after_publish=kill@2". NULL or "" clears all.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  The text names no failpoint or no action. Nothing was
 * changed.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_failpoint_set(const char *text);

/**
 * Tells how often the library has visited a failpoint since it was set.
 *
 * Does not block. Keeps no pointer.
 *
 * @param name       Name of a failpoint.
 * @param[out] out_hits  Number of visits. The library counts only for failpoints that are set.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or there is no such failpoint.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_failpoint_get_hits(const char *name,
                                                                            uint64_t *out_hits);

TRIREME_END_C

#endif
