/**
 * @file status.h
 * @brief What a call answers, and what it says when it failed.
 *
 * Ownership: strings returned here belong to the library. Thread safety: the last error is
 * kept per thread, so each thread sees its own.
 */
#ifndef TRIREME_STATUS_H
#define TRIREME_STATUS_H

#include <stdint.h>
#include <trireme/export.h>

TRIREME_BEGIN_C

/** 0 is success, negative is failure; positive values are never used. */
typedef int32_t trireme_status;

/** One code for each thing a caller can do about a failure. */
enum {
    /** Done. */
    TRIREME_OK = 0,
    /** A value breaks a rule; the message names both. */
    TRIREME_ERROR_INVALID_ARGUMENT = -1,
    /** Stale, foreign, destroyed twice, or used after fork. */
    TRIREME_ERROR_INVALID_HANDLE    = -2,
    /** Right call, wrong moment. */
    TRIREME_ERROR_INVALID_STATE = -3,
    /** Known, but not in this build or backend. */
    TRIREME_ERROR_UNSUPPORTED = -4,
    /** Host memory has run out. */
    TRIREME_ERROR_OUT_OF_MEMORY = -5,
    /** The deadline passed; the message names who is missing. */
    TRIREME_ERROR_TIMEOUT           = -6,
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
    /** The operating system refused; see system_error. */
    TRIREME_ERROR_SYSTEM = -12,
    /** A callback of the caller failed. */
    TRIREME_ERROR_CALLBACK = -13,
    /** The request was cancelled before it began. */
    TRIREME_ERROR_CANCELLED = -14,
    /** A defect of the library; please report the message. */
    TRIREME_ERROR_INTERNAL          = -15
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
    /** How many ranks are to blame, also those past the array's end. */
    uint32_t blamed_count;
    /** errno, or 0. */
    int32_t system_error;
    /** The first ranks to blame, ascending. */
    int32_t blamed[TRIREME_MAX_BLAMED_RANKS];
    /** "all_reduce"; empty if the failure is of no operation. */
    char operation[32];
    /** Name of the communicator; empty if none. */
    char communicator[64];
    /**
     * 1: the group can go on, and all ranks that got this call the same function again. Set by
     * trireme_communicator_shrink() if a rank was lost before the new group was whole. Else 0.
     */
    uint32_t try_again;
    /** 0. */
    uint32_t reserved;
} trireme_error_info; /* since 1.0 */

/** An error info ready for trireme_last_error_info(). */
#define TRIREME_ERROR_INFO_INIT { sizeof(trireme_error_info), 0, 0, 0, 0, {0}, {0}, {0}, 0, 0 }

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
TRIREME_API const char *TRIREME_CALL trireme_status_name(trireme_status status);

/**
 * Tells what went wrong in the last call of this thread that failed.
 *
 * Does not block. Cannot fail. A call that succeeds leaves the message alone.
 *
 * @return One line of UTF-8 that begins with the function's name; "" if nothing has failed yet.
 *         It belongs to the thread and lives until that thread's next failure.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API const char *TRIREME_CALL trireme_last_error(void);

/**
 * Gives the last failure of this thread in parts a program can use.
 *
 * Does not block. Keeps no pointer.
 *
 * @param[out] out_info  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_info is NULL or its struct_size is below the first
 *                  release's.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL trireme_last_error_info(trireme_error_info *out_info);

TRIREME_END_C

#endif
