/*
 * The top speed of a disk: a plain loop over its own file, past the system's cache, without the
 * library.
 */
#ifndef TRIREME_TESTS_BENCH_DISK_H
#define TRIREME_TESTS_BENCH_DISK_H

#include <stdbool.h>
#include <stdint.h>

enum disk_kind { DISK_READ, DISK_WRITE, DISK_MIXED, DISK_KINDS };

/* The way of the requests. */
struct disk_way {
    bool ring; /* one thread and io_uring, or as many threads as requests in flight */
    int in_flight;
    uint64_t request_bytes;
};

struct disk {
    int descriptor;
    uint64_t bytes;
    char *buffers;
    struct disk_way fastest[DISK_KINDS];
};

/*
 * Makes a nameless file in `directory`, of at least `bytes`, as the library does, and writes it
 * once. Then finds the fastest way of requests. Ends the program on an error.
 */
void disk_open(struct disk *disk, const char *directory, uint64_t bytes);
void disk_close(struct disk *disk);

/*
 * Microseconds to read or write the whole file once. DISK_MIXED: reads and writes in turn, each
 * write at a place that was read shortly before.
 */
double disk_time(struct disk *disk, enum disk_kind kind);

#endif
