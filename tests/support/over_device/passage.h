/*
 * Memory of a test on its way to a device and back. A test has its memory on the host. A call of
 * the library gets memory of the device instead, and the caller's stream copies around the call.
 */
#ifndef TRIREME_TESTS_OVER_DEVICE_PASSAGE_H
#define TRIREME_TESTS_OVER_DEVICE_PASSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <trireme/trireme.h>

/* The function of the library, which one of this folder covers. */
void *real_function(const char *name);
#define REAL(name) ((__typeof__(&name))(intptr_t)real_function(#name))

/* ---- communicators ---- */

/* A rank's device, and its own stream there: NULL is the default one. */
struct seat {
    int device, rank, world_size;
    void *stream;
};

void take_seat(const trireme_communicator *communicator, const struct seat *seat);
void leave_seat(const trireme_communicator *communicator);
bool find_seat(const trireme_communicator *communicator, struct seat *out);
/* A new stream, or the default one for each third rank. */
void *stream_for(int device, int rank);

/* ---- buffers ---- */

/* The memory of the host that stands for a buffer of the device. */
void *shadow_of_buffer(const trireme_buffer *buffer, int device, void *data, uint64_t bytes);
void *find_shadow(const trireme_buffer *buffer);
void drop_shadow(const trireme_buffer *buffer);

/* ---- one call ---- */

struct piece {
    const void **pointer; /* an argument of the call: it is replaced */
    char *host, *device;
    uint64_t bytes;
    bool writes; /* the call writes there */
};

/* Memory of the device for pieces that overlap on the host. */
struct block {
    char *host, *device;
    uint64_t bytes;
    int size_class; /* -1: of a buffer */
};

struct passage {
    bool is_on;
    struct seat seat;
    struct piece *pieces;
    struct block *blocks;
    size_t piece_count, block_count;
    trireme_operation_options changed;
    const trireme_operation_options *options; /* for the call */
};

void begin_passage(struct passage *passage, const trireme_communicator *communicator,
                   const trireme_operation_options *options);
/* Of `count` elements in each of `blocks` blocks. Memory that no call can have stays as it is, and
 * the library refuses it. */
void add_piece(struct passage *passage, const void **pointer, uint64_t count, uint64_t blocks,
               trireme_dtype dtype, bool writes);
/* Queues the copies to the device, and replaces the pointers. */
void move_in(struct passage *passage);
/* Copies back what the call may have written, and ends. */
void move_out(struct passage *passage);

/* Counts what the device refuses. Returns the status. */
trireme_status note_status(const char *function, trireme_status status);
/* Prints that, and whether the driver has a complaint. */
bool device_is_content(void);

#endif
