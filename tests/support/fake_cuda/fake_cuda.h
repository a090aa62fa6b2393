/*
 * Functions of the fake CUDA driver that a real one does not have. A test opens the library once
 * more by its path and asks for them by name.
 */
#ifndef TRIREME_TESTS_FAKE_CUDA_H
#define TRIREME_TESTS_FAKE_CUDA_H

#include <stddef.h>

/* Device 0 has 8 GiB, device 1 has 16 GiB. The first has 1 MiB in use, the second 2 MiB. */
#define FAKE_TOTAL(device) ((size_t)((device) + 1) << 33)
#define FAKE_FREE(device) (FAKE_TOTAL(device) - ((size_t)((device) + 1) << 20))
#define FAKE_PROCESSORS(device) (100 + (device))

/* type: 1 locked memory of the host, 2 of the device, 3 managed. Memory of a device cannot be read:
 * a host that follows such a pointer dies, as beside a real device. */
typedef void *(*fake_allocate)(int type, int device, size_t bytes); /* "fake_allocate_area" */
/* The context that is current on this thread. */
typedef void *(*fake_current)(void); /* "fake_current_context" */
/* How often the device's primary context is retained and not yet released. */
typedef int (*fake_retained)(int device); /* "fake_retained_count" */
/* Retains the device's primary context, as another library of the process does. */
typedef void (*fake_use)(int device); /* "fake_use_device" */
/* Makes a context of the caller's own current, which is not the device's primary one. */
typedef void *(*fake_own_context)(void); /* "fake_push_own_context" */

/* Runs all that is queued, also what is held. The first thing that was wrong, such as a race, or
 * "". */
typedef const char *(*fake_finishes)(void); /* "fake_finish" */
/* How many streams, events, allocations, reserved ranges and pinned allocations there are. */
typedef int (*fake_lives)(void); /* "fake_live_count" */
/* The stream is recorded into a graph from now on, or no more. Meanwhile the driver refuses to pin
 * memory and to look at events, unless the thread's mode is 2. */
typedef void (*fake_captures)(void *stream, int on); /* "fake_capture" */
/* That mode of the calling thread. */
typedef int (*fake_modes)(void); /* "fake_capture_mode" */
/* A stream of a context that is not the device's primary one. */
typedef void *(*fake_foreign)(int device); /* "fake_foreign_stream" */
/* Work in the stream does not begin while it is held, nor work that waits for it. NULL here and in
 * fake_capture is the default stream of device 0. */
typedef void (*fake_holds)(void *stream, int on); /* "fake_hold" */
/* How many communicators of NCCL were neither destroyed nor aborted. */
typedef int (*fake_ncclcounts)(void); /* "fake_nccl_count" */
/* ---- a caller's own work, as another library of the process would do it ---- */

typedef void *(*fake_memory)(int device, size_t bytes); /* "fake_device_memory" */
/* A stream of the primary context. NULL in the functions below is the device's default stream. */
typedef void *(*fake_stream)(int device); /* "fake_user_stream" */
/* Queues a copy of bytes of the host, which are read at once, to memory of the device. */
typedef void (*fake_writes)(int device, void *stream, void *to, const void *from,
                            size_t bytes); /* "fake_queue_write" */
/* Queues a copy to the host. */
typedef void (*fake_reads)(int device, void *stream, void *to, const void *from,
                           size_t bytes); /* "fake_queue_read" */
/* Queues any work: body(memory, data), where memory[i] is where the host finds areas[i]. A place of
 * NULL stays NULL. The body calls nothing of the driver. */
struct fake_area {
    const void *first;
    size_t bytes;
    int writes;
};
typedef void (*fake_body)(void *const *memory, void *data);
typedef void (*fake_works)(int device, void *stream, const char *name,
                           const struct fake_area *areas, size_t count, fake_body body,
                           void *data); /* "fake_queue_work" */
/* The stream's end. From then on the driver knows none like it. */
typedef void (*fake_ends)(void *stream); /* "fake_end_stream" */
/* The host waits for a stream. */
typedef void (*fake_synchronizes)(int device, void *stream); /* "fake_synchronize" */

#endif
