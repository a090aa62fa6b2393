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

#endif
