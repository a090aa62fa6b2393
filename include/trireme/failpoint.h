/**
 * @file failpoint.h
 * @brief Places where tests can make a rank die, sleep or fail.
 *
 * Ownership: names belong to the library. Thread safety: all functions here may be called from
 * any thread. Failpoints cost one predictable branch each while none is set.
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
TRIREME_API uint32_t TRIREME_CALL trireme_failpoint_count(void);

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
TRIREME_API const char *TRIREME_CALL trireme_failpoint_name(uint32_t index);

/**
 * Sets what failpoints of this process do, in place of everything set before.
 *
 * The same text in the environment variable TRIREME_FAILPOINTS is read once, when the library is
 * first used. Does not block. Keeps no pointer.
 *
 * @param text  "NAME=ACTION[@HIT]", several with ";" between them. ACTION is `kill` (SIGKILL to
 * the own process), `stop` (SIGSTOP), `sleep(MILLISECONDS)`, `fail` (the step answers
 * TRIREME_ERROR_SYSTEM), `fail(ERRNO)` (with that error number), `short` (`file.read` and
 * `file.write` move a part of the bytes; others fail) or `off`. HIT is the visit that acts, from 1,
 * or with a "+" behind it the first one that does; without it every visit does. NULL or "" clears
 * all.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  The text names no failpoint or no action; nothing was
 * changed.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL trireme_failpoint_set(const char *text);

/**
 * Tells how often a failpoint was visited since it was set.
 *
 * Does not block. Keeps no pointer.
 *
 * @param name       Name of a failpoint.
 * @param[out] out_hits  Visits counted; only failpoints that are set count.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or there is no such failpoint.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL trireme_failpoint_hits(const char *name,
                                                                    uint64_t *out_hits);

TRIREME_END_C

#endif
