/**
 * @file offload.h
 * @brief Another place for parameters, optimizer state or activations: a file instead of memory, or
 * pinned memory instead of a device's.
 *
 * docs/offload.md tells how fast a file is and how much memory it saves.
 *
 * Ownership: the call that takes a string copies it. Thread safety: plain data.
 */
#ifndef TRIREME_OFFLOAD_H
#define TRIREME_OFFLOAD_H

#include <stdint.h>
#include <trireme/export.h>

TRIREME_BEGIN_C

/** A kind of place. */
typedef int32_t trireme_offload_kind;

/** Numbers of the kinds. */
enum {
    /** A file of this rank in the directory `path`. */
    TRIREME_OFFLOAD_KIND_FILE = 0,
    /**
     * Pinned memory of the host, for the state of an optimizer whose model is on a device: see
     * docs/gpus.md. All other fields are 0 then.
     */
    TRIREME_OFFLOAD_KIND_PINNED = 1
};

/**
 * A place of this rank other than memory: a file. Start from TRIREME_OFFLOAD_OPTIONS_INIT.
 *
 * A model keeps parameters in it, an optimizer its state, and a trainer activations. The file has
 * no name: nothing is left of it when the process ends. Trained parameters have the same bits as
 * without a file.
 *
 * On a device, the place of an optimizer is pinned memory. Parameters and activations have none
 * there.
 */
typedef struct trireme_offload_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** TRIREME_OFFLOAD_KIND_*. Default: TRIREME_OFFLOAD_KIND_FILE. */
    trireme_offload_kind kind;
    /** Must be 0. */
    uint32_t flags;
    /** Must be 0. */
    uint32_t reserved;
    /**
     * Directory of the file, on this rank's host. It may differ between ranks.
     * TRIREME_OFFLOAD_KIND_FILE requires it. Default: NULL.
     */
    const char *path;
    /**
     * Part of the bytes that lies in the file, in (0, 1]. The library rounds it up to whole blocks.
     * Must be 0 for a trainer, all of whose activations go to the file. Default: 1.
     */
    double ratio;
    /**
     * Most bytes of memory for blocks on their way to and from the file; at least 32,768. Default:
     * 8 MiB. For a trainer both numbers differ: see trireme_trainer_options and the top of
     * trainer.h.
     */
    uint64_t buffer_bytes;
} trireme_offload_options; /* since 1.0 */

/** Options of a file that lack only the path. */
#define TRIREME_OFFLOAD_OPTIONS_INIT TRIREME_INIT(trireme_offload_options)

/**
 * Contents and transfers of a file of this rank. It holds parameters of a model, state of an
 * optimizer, or activations of a trainer. Set struct_size before the call.
 */
typedef struct trireme_offload_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 1: the file is read and written past the system's cache (O_DIRECT); 0: through it. */
    int32_t direct;
    /** 1: transfers go by io_uring; 0: by pread() and pwrite() on threads of the library. */
    int32_t io_uring;
    /** errno of the last write that failed; 0 if none did. */
    int32_t failed_errno;
    /**
     * The directory, as given. This string and the next two live as long as the object that was
     * asked.
     */
    const char *path;
    /** The reason why O_DIRECT is not in use; "" if it is. */
    const char *why_not_direct;
    /** The reason why io_uring is not in use; "" if it is. */
    const char *why_not_io_uring;
    /** Bytes in the file. */
    uint64_t file_bytes;
    /**
     * Bytes that stay in memory: those that ratio leaves there, and blocks that could not be
     * written.
     */
    uint64_t resident_bytes;
    /** Bytes of memory for blocks on their way to and from the file. */
    uint64_t buffer_bytes;
    /** Bytes of the largest piece that is read or written at once. */
    uint64_t block_bytes;
    /** Bytes asked of the file so far. */
    uint64_t read_bytes;
    /** Bytes given to the file so far. */
    uint64_t written_bytes;
    /** Seconds that calls have waited for the disk so far. */
    double waited_seconds;
    /**
     * Blocks that could not be written. Each stays in memory from then on, if there was memory for
     * it.
     */
    uint64_t failed_writes;
    /** Where in the file the last failed write was, in bytes. */
    uint64_t failed_offset;
} trireme_offload_info; /* since 1.0 */

/** Info ready for trireme_model_get_offload_info() and its like. */
#define TRIREME_OFFLOAD_INFO_INIT TRIREME_INIT(trireme_offload_info)

TRIREME_END_C

#endif
