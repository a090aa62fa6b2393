/**
 * @file types.h
 * @brief Handles, element types, reductions, devices, and their names.
 *
 * Ownership: a handle is a number in the form of a pointer. The library looks the number up and
 * never follows it. A copy of a handle means the same object.
 * Thread safety: any thread may call all functions here.
 */
#ifndef TRIREME_TYPES_H
#define TRIREME_TYPES_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>

TRIREME_BEGIN_C

/** A group of ranks that can communicate, as one rank sees it. */
typedef struct trireme_communicator trireme_communicator;
/** Ranks arranged in named axes. */
typedef struct trireme_mesh trireme_mesh;
/** One started operation. */
typedef struct trireme_request trireme_request;
/** Memory that the ranks of one host can read directly. */
typedef struct trireme_buffer trireme_buffer;
/**
 * A model that ranks train together. Its parameters, gradients and state may be spread over them.
 */
typedef struct trireme_model trireme_model;
/** The update rule of a model and its state on this rank. */
typedef struct trireme_optimizer trireme_optimizer;
/** Runs whole training steps of a model by callbacks of its layers. */
typedef struct trireme_trainer trireme_trainer;

/** Type of the elements of a buffer. 0 is no type. */
typedef int32_t trireme_dtype;

/** Numbers of the element types. */
enum {
    TRIREME_DTYPE_I8 = 1,
    TRIREME_DTYPE_U8 = 2,
    TRIREME_DTYPE_I16 = 3,
    TRIREME_DTYPE_U16 = 4,
    TRIREME_DTYPE_I32 = 5,
    TRIREME_DTYPE_U32 = 6,
    TRIREME_DTYPE_I64 = 7,
    TRIREME_DTYPE_U64 = 8,
    /** IEEE binary16; accumulated in f32. */
    TRIREME_DTYPE_F16 = 9,
    /** bfloat16; accumulated in f32. */
    TRIREME_DTYPE_BF16 = 10,
    TRIREME_DTYPE_F32 = 11,
    TRIREME_DTYPE_F64 = 12,
    /** OCP 8-bit float without infinities; accumulated in f32. */
    TRIREME_DTYPE_F8E4M3 = 13,
    /** OCP 8-bit float with infinities; accumulated in f32. */
    TRIREME_DTYPE_F8E5M2 = 14,
    /** One byte, 0 or 1. Reductions: min (and), max (or), band, bor, bxor. */
    TRIREME_DTYPE_BOOL = 15,
    /** One byte, which operations move and never reduce. */
    TRIREME_DTYPE_BYTES = 16
};

/** How the ranks' contributions become one value. 0 is no reduction. */
typedef int32_t trireme_reduction;

/**
 * Numbers of the reductions. Contributions are combined in the order of ranks. Some algorithms use
 * another order; see trireme_algorithm.
 */
enum {
    TRIREME_REDUCTION_SUM = 1,
    /** Sum, then division by the world size; integers truncate toward zero. */
    TRIREME_REDUCTION_AVERAGE = 2,
    TRIREME_REDUCTION_PRODUCT = 3,
    /** A NaN of any rank makes the result NaN. */
    TRIREME_REDUCTION_MIN = 4,
    /** A NaN of any rank makes the result NaN. */
    TRIREME_REDUCTION_MAX = 5,
    /** Bitwise and; integers and bool. */
    TRIREME_REDUCTION_BAND = 6,
    /** Bitwise or; integers and bool. */
    TRIREME_REDUCTION_BOR = 7,
    /** Bitwise exclusive or; integers and bool. */
    TRIREME_REDUCTION_BXOR = 8,
    /** Sum, then multiplication by the call's scale; floating point. */
    TRIREME_REDUCTION_SCALED_SUM = 9
};

/** Where a buffer lives. 0 is the default, the host. */
typedef int32_t trireme_device_kind;

/** Numbers of the devices. */
enum {
    /** The same as TRIREME_DEVICE_HOST. */
    TRIREME_DEVICE_DEFAULT = 0,
    /** The host: memory that the CPU reads. */
    TRIREME_DEVICE_HOST = 1,
    /** Memory of a CUDA device. docs/gpus.md lists the calls that take it in this release. */
    TRIREME_DEVICE_CUDA = 2
};

/** A device. All zero is the host. */
typedef struct trireme_device {
    /** TRIREME_DEVICE_*. Default: the host. */
    trireme_device_kind kind;
    /** Number of the device among those of its kind, from 0. Must be 0 for the host. */
    int32_t index;
} trireme_device; /* since 1.0, never grows */

/** A queue of work on a device. All zero means no stream; the host has none. */
typedef struct trireme_stream {
    /** Kind of device the stream belongs to. 0 means no stream. */
    trireme_device_kind kind;
    /** Must be 0. */
    uint32_t reserved;
    /**
     * The handle of the stream in the API of the device, for example a cudaStream_t. NULL is that
     * device's default stream. Without a kind it must be NULL.
     */
    void *native;
} trireme_stream; /* since 1.0, never grows */

/**
 * Tells the size of one element.
 *
 * Does not block. Cannot fail.
 *
 * @param dtype  Any value.
 * @return Bytes of one element; 0 for a value that is no dtype.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API uint64_t TRIREME_CALLCONV trireme_dtype_bytes(trireme_dtype dtype);

/**
 * Names a dtype, for example "bf16".
 *
 * Does not block. Cannot fail.
 *
 * @param dtype  Any value.
 * @return A string that lives as long as the library; "unknown" for a value that is no dtype.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API const char *TRIREME_CALLCONV trireme_dtype_name(trireme_dtype dtype);

/**
 * Names a reduction, for example "average".
 *
 * Does not block. Cannot fail.
 *
 * @param reduction  Any value.
 * @return A string that lives as long as the library; "unknown" for a value that is no reduction.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API const char *TRIREME_CALLCONV trireme_reduction_name(trireme_reduction reduction);

TRIREME_END_C

#endif
