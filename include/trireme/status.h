/**
 * @file status.h
 * @brief Status codes that calls return, and details of the last failure.
 *
 * Ownership: strings returned here belong to the library.
 * Thread safety: each thread has a last error of its own.
 */
#ifndef TRIREME_STATUS_H
#define TRIREME_STATUS_H

#include <stdint.h>
#include <trireme/export.h>

TRIREME_BEGIN_C

/** Answer of a call: 0 is success, negative is failure. Positive values are never used. */
typedef int32_t trireme_status;

/** One code for each thing a caller can do about a failure. */
enum {
    /** Success. */
    TRIREME_OK = 0,
    /** A value breaks a rule; the message names both. */
    TRIREME_ERROR_INVALID_ARGUMENT = -1,
    /** The handle is stale, of another kind or process, destroyed before, or used after fork. */
    TRIREME_ERROR_INVALID_HANDLE = -2,
    /** The call is right, but its moment is wrong. */
    TRIREME_ERROR_INVALID_STATE = -3,
    /** The library knows the feature, but this build or backend does not have it. */
    TRIREME_ERROR_UNSUPPORTED = -4,
    /** Host memory has run out. */
    TRIREME_ERROR_OUT_OF_MEMORY = -5,
    /** The deadline passed; the message names the missing ranks. */
    TRIREME_ERROR_TIMEOUT = -6,
    /** A rank called trireme_communicator_abort(). */
    TRIREME_ERROR_ABORTED = -7,
    /** A rank died or left; the message names it. */
    TRIREME_ERROR_PEER_LOST = -8,
    /** Ranks disagree about an operation or a model. */
    TRIREME_ERROR_MISMATCH = -9,
    /** Data read from a peer or a file is damaged. */
    TRIREME_ERROR_CORRUPT = -10,
    /** A peer could not show that it belongs to the job. */
    TRIREME_ERROR_AUTHENTICATION = -11,
    /** The operating system refused; see system_error of trireme_error_info. */
    TRIREME_ERROR_SYSTEM = -12,
    /** A callback of the caller failed. */
    TRIREME_ERROR_CALLBACK = -13,
    /** The request was cancelled before it began. */
    TRIREME_ERROR_CANCELLED = -14,
    /** A defect of the library; please report the message. */
    TRIREME_ERROR_INTERNAL = -15,
    /** A device or its driver failed; the message has the driver's function and code. */
    TRIREME_ERROR_DEVICE = -16
};

/** Most ranks that an error names one by one. */
#define TRIREME_MAX_BLAMED_RANKS 16

/** The last failure of this thread in parts. Set struct_size before the call. */
typedef struct trireme_error_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** The status of the last failed call; TRIREME_OK if none failed. */
    trireme_status code;
    /** Number of the operation in its communicator, from 1; 0 if none. */
    uint64_t sequence;
    /** Number of ranks to blame. It may be larger than `blamed` has room for. */
    uint32_t blamed_count;
    /** Error number of the operating system (errno), or 0. */
    int32_t system_error;
    /** The first ranks to blame, ascending. */
    int32_t blamed[TRIREME_MAX_BLAMED_RANKS];
    /** Name of the operation, such as "all_reduce"; empty if no operation failed. */
    char operation[32];
    /** Name of the communicator; empty if none. */
    char communicator[64];
    /**
     * 1: all ranks that got this failure should call the same function again. Else 0. Only
     * trireme_communicator_shrink() sets it: another rank was lost before the new group was whole.
     */
    uint32_t try_again;
    /** 0. */
    uint32_t reserved;
} trireme_error_info; /* since 1.0 */

/** An error info ready for trireme_last_error_info(). */
#define TRIREME_ERROR_INFO_INIT TRIREME_INIT(trireme_error_info)

/**
 * Names a status, for example "PEER_LOST".
 *
 * Does not block. Cannot fail.
 *
 * @param status  Any value.
 * @return A string that lives as long as the library; "UNKNOWN" for a value that is no status.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API const char *TRIREME_CALLCONV trireme_status_name(trireme_status status);

/**
 * Tells what went wrong in the last call of this thread that failed.
 *
 * Does not block. Cannot fail. A call that succeeds does not change the message.
 *
 * @return One line of UTF-8 that begins with the function's name; "" if nothing has failed yet.
 *         It belongs to the thread and lives until that thread's next failure.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API const char *TRIREME_CALLCONV trireme_last_error(void);

/**
 * Gives the last failure of this thread, in parts that a program can read.
 *
 * Does not block. Keeps no pointer.
 *
 * @param[out] out_info  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_info is NULL, or its struct_size is smaller than that
 *                  of the first release.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_last_error_info(trireme_error_info *out_info);

TRIREME_END_C

#endif
