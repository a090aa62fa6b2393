/**
 * @file version.h
 * @brief Version, build and capabilities of the library.
 *
 * Ownership: strings returned here belong to the library.
 * Thread safety: any thread may call all functions here.
 */
#ifndef TRIREME_VERSION_H
#define TRIREME_VERSION_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** Version of these headers. */
#define TRIREME_VERSION_MAJOR 1
#define TRIREME_VERSION_MINOR 0
#define TRIREME_VERSION_PATCH 0
/** One number for comparisons: major * 1000000 + minor * 1000 + patch. */
#define TRIREME_VERSION 1000000

/** A kind of operation, in a question for trireme_capability(). 0 is none. */
typedef int32_t trireme_operation_kind;

/** Numbers of the operations. */
enum {
    TRIREME_OPERATION_KIND_ALL_REDUCE = 1,
    TRIREME_OPERATION_KIND_REDUCE_SCATTER = 2,
    TRIREME_OPERATION_KIND_REDUCE_SCATTER_V = 3,
    TRIREME_OPERATION_KIND_ALL_GATHER = 4,
    TRIREME_OPERATION_KIND_ALL_GATHER_V = 5,
    TRIREME_OPERATION_KIND_BROADCAST = 6,
    TRIREME_OPERATION_KIND_BARRIER = 7,
    TRIREME_OPERATION_KIND_SEND = 8,
    TRIREME_OPERATION_KIND_RECEIVE = 9,
    TRIREME_OPERATION_KIND_REDUCE = 10,
    TRIREME_OPERATION_KIND_GATHER = 11,
    TRIREME_OPERATION_KIND_GATHER_V = 12,
    TRIREME_OPERATION_KIND_SCATTER = 13,
    TRIREME_OPERATION_KIND_SCATTER_V = 14,
    TRIREME_OPERATION_KIND_ALL_TO_ALL = 15,
    TRIREME_OPERATION_KIND_ALL_TO_ALL_V = 16,
    TRIREME_OPERATION_KIND_PROBE = 17
};

/** A question for trireme_capability(). In every field 0 or NULL asks about "any". */
typedef struct trireme_capability_query {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** An operation, or 0. */
    trireme_operation_kind operation;
    /** An element type, or 0. */
    trireme_dtype dtype;
    /** A reduction, or 0. */
    trireme_reduction reduction;
    /** A device, or 0. */
    trireme_device_kind device;
    /** Must be 0. */
    uint32_t reserved;
    /** "local", "frames", "gloo", "mpi", or NULL. */
    const char *backend;
} trireme_capability_query; /* since 1.0 */

/** A query with 0 or NULL in every field. */
#define TRIREME_CAPABILITY_QUERY_INIT TRIREME_INIT(trireme_capability_query)

/**
 * Gives the library's version.
 *
 * Does not block. Cannot fail.
 *
 * @return A number that compares with TRIREME_VERSION.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API uint32_t TRIREME_CALLCONV trireme_version(void);

/**
 * Tells how the library was built: version, compiler, backends and vector instructions in use.
 *
 * Does not block. Cannot fail.
 *
 * @return One line of text that lives as long as the library.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API const char *TRIREME_CALLCONV trireme_build_info(void);

/**
 * Tells whether a combination of backend, device, operation, dtype and reduction works.
 *
 * Does not block, but the first question about CUDA loads the driver. Keeps no pointer.
 *
 * @param query  The combination. Required.
 * @retval TRIREME_OK  It works.
 * @retval TRIREME_ERROR_UNSUPPORTED  It does not work; trireme_last_error() says why in one
 *                  sentence. Or the query sets a field newer than this library.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  query is NULL, or a field holds a number without a
 *                  meaning.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_capability(const trireme_capability_query *query);

TRIREME_END_C

#endif
