/**
 * @file device.h
 * @brief Devices of this process, and whose memory an address is.
 *
 * The library finds CUDA at run time, by a plugin. docs/gpus.md tells where it looks, and which
 * calls take memory of a device in this release.
 *
 * Ownership: the caller keeps all memory. Thread safety: any thread may call all functions here.
 */
#ifndef TRIREME_DEVICE_H
#define TRIREME_DEVICE_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** One CUDA device. Set struct_size before the call. */
typedef struct trireme_device_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Compute capability, for example 9 of 9.0. */
    int32_t capability_major;
    /** The second part of the compute capability, for example 0 of 9.0. */
    int32_t capability_minor;
    /** Number of multiprocessors. */
    uint32_t multiprocessors;
    /** Bytes of the device's memory, free or not. */
    uint64_t memory_bytes;
    /** The newest CUDA that the driver runs: 1000 * major + 10 * minor, for example 13000. */
    int32_t driver_version;
    /** 0. */
    uint32_t reserved;
    /** The driver's name for it, for example "NVIDIA H200". */
    char name[128];
    /** Its universal number: 32 digits in five groups, without the "GPU-" or "MIG-" of nvidia-smi.
     */
    char uuid[48];
    /** Its place in the host: domain, bus, device and function, for example "0000:1b:00.0". */
    char bus_id[32];
} trireme_device_info; /* since 1.0 */

/** An info ready for trireme_device_get_info(). */
#define TRIREME_DEVICE_INFO_INIT TRIREME_INIT(trireme_device_info)

/** A kind of memory. */
typedef int32_t trireme_memory_kind;

/** Numbers of the kinds. */
enum {
    /** As an argument: the kind where the communicator works. No memory is of this kind. */
    TRIREME_MEMORY_KIND_DEFAULT = 0,
    /** Memory of the host that no device knows. */
    TRIREME_MEMORY_KIND_HOST = 1,
    /** Memory of the host that is locked for CUDA devices. */
    TRIREME_MEMORY_KIND_PINNED = 2,
    /** Memory of a CUDA device. */
    TRIREME_MEMORY_KIND_DEVICE = 3,
    /** Memory that moves between host and CUDA devices on demand. */
    TRIREME_MEMORY_KIND_MANAGED = 4
};

/** Whose memory an address is. Set struct_size before the call. */
typedef struct trireme_memory_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** TRIREME_MEMORY_KIND_*. */
    trireme_memory_kind kind;
    /** The CUDA device on which the memory was allocated or locked. The host for HOST. */
    trireme_device device;
    /** Begin of the allocation, as the driver tells it. NULL for HOST. */
    void *first;
    /** Bytes of the allocation, as the driver tells them. 0 for HOST. */
    uint64_t bytes;
} trireme_memory_info; /* since 1.0 */

/** An info ready for trireme_memory_get_info(). */
#define TRIREME_MEMORY_INFO_INIT TRIREME_INIT(trireme_memory_info)

/**
 * Counts the devices of a kind that this process sees.
 *
 * The first call for CUDA loads the driver. CUDA_VISIBLE_DEVICES is the driver's variable and holds
 * here, too. Waits for the driver, which may take a second the first time. Without a driver it
 * answers at once. Keeps no pointer.
 *
 * @param kind  TRIREME_DEVICE_*. The host counts 1.
 * @param[out] out_count  The number, 0 if a driver is there and no device. Required. Not written on
 * failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `kind` is no kind of device, or `out_count` is NULL.
 * @retval TRIREME_ERROR_UNSUPPORTED  There is no plugin or no driver, the driver is too old, or it
 * lacks a function. The message names every file tried, and why it does not serve.
 * @retval TRIREME_ERROR_DEVICE  The driver fails. The message has its function and its code.
 * @retval TRIREME_ERROR_INVALID_STATE  The process was forked from one that had used the driver.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_device_count(trireme_device_kind kind,
                                                                      int32_t *out_count);

/**
 * Describes a CUDA device. It allocates nothing on the device.
 *
 * Waits for the driver. Keeps no pointer.
 *
 * @param index  Number of the device, from 0 to below trireme_device_count().
 * @param[out] out_info  Filled up to its own struct_size. Required. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  No device has this number; the message has the count. Or
 * `out_info` is NULL, or its struct_size is smaller than that of the first release.
 * @retval TRIREME_ERROR_UNSUPPORTED  As for trireme_device_count().
 * @retval TRIREME_ERROR_DEVICE  The driver fails. The message has its function and its code.
 * @retval TRIREME_ERROR_INVALID_STATE  The process was forked from one that had used the driver.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_device_get_info(int32_t index, trireme_device_info *out_info);

/**
 * Tells how much memory of a CUDA device is free now. The caller's current context stays current.
 *
 * Waits for the driver. If nothing in the process uses the device yet, the call makes the device's
 * primary context and gives it back. That takes up to a second. While the context is there it holds
 * some hundred MiB: they count as used in `out_free`, and are free again after the call.
 * Keeps no pointer.
 *
 * @param index  Number of the device, from 0 to below trireme_device_count().
 * @param[out] out_free  Bytes that are free. Required. Not written on failure.
 * @param[out] out_total  Bytes that the driver can give away. Required. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  No device has this number; the message has the count. Or
 * a pointer is NULL.
 * @retval TRIREME_ERROR_UNSUPPORTED  As for trireme_device_count().
 * @retval TRIREME_ERROR_DEVICE  The driver fails. The message has its function and its code.
 * @retval TRIREME_ERROR_INVALID_STATE  The process was forked from one that had used the driver.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_device_get_memory(int32_t index,
                                                                           uint64_t *out_free,
                                                                           uint64_t *out_total);

/**
 * Tells in text what was found of CUDA and NCCL, and every file tried. A line each for plugin,
 * driver, devices, each device and NCCL: what it is, ": ", and the finding. `trireme doctor` shows
 * them.
 *
 * Waits for the driver. It loads no NCCL: it tells the version of one that the process has loaded,
 * else the first file. It does not fail if something is missing. Keeps no pointer.
 *
 * @param[out] text  The lines, each with its line feed, cut to fit with their final 0. May be NULL
 * if capacity is 0.
 * @param capacity  Bytes of `text`.
 * @param[out] out_length  Length of the whole text without its final 0. May be NULL.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `text` is NULL, but capacity is not 0.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_device_report(char *text,
                                                                       uint64_t capacity,
                                                                       uint64_t *out_length);

/**
 * Tells whose memory an address is. It reads nothing there.
 *
 * Any context may be current, or none. If the driver answers an error under it, the call asks under
 * each primary context that is in use. It makes none, and the caller's context stays current.
 *
 * Waits for the driver. Where the process has no driver all memory is the host's. Keeps no pointer.
 *
 * @param address  Any address but NULL. One that lies in no memory counts as the host's.
 * @param[out] out_info  Filled up to its own struct_size. Required. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or the struct_size of `out_info` is
 * smaller than that of the first release.
 * @retval TRIREME_ERROR_UNSUPPORTED  The process has a driver, but the library cannot use it. The
 * message says why.
 * @retval TRIREME_ERROR_DEVICE  The driver fails, or answers an error about this address under
 * every context. The message has its function and its code.
 * @retval TRIREME_ERROR_INVALID_STATE  The process was forked from one that had used the driver.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_memory_get_info(const void *address, trireme_memory_info *out_info);

TRIREME_END_C

#endif
