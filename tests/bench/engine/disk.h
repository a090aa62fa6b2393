/*
 * What a disk can do at most: a plain loop over a file of its own, past the system's cache, with
 * nothing of the library in it.
 */
#ifndef TRIREME_TESTS_BENCH_DISK_H
#define TRIREME_TESTS_BENCH_DISK_H

#include <stdbool.h>
#include <stdint.h>

enum disk_kind { DISK_READ, DISK_WRITE, DISK_MIXED, DISK_KINDS };

/* How a disk is asked. */
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
 * Makes a file without a name in `directory`, of at least `bytes`, as the library does, writes it
 * once, and tries in which way the disk is fastest. Ends the program on an error.
 */
void disk_open(struct disk *disk, const char *directory, uint64_t bytes);
void disk_close(struct disk *disk);

/*
 * Microseconds in which all of the file was read, or written, once. DISK_MIXED: both, in turn, each
 * write where was read shortly before.
 */
double disk_time(struct disk *disk, enum disk_kind kind);

#endif
