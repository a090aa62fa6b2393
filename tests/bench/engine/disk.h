/*
 * What a disk can do at most: a plain loop over a file of its own, past the system's cache, with
 * nothing of the library in it.
 */
#ifndef TRIREME_TESTS_BENCH_DISK_H
#define TRIREME_TESTS_BENCH_DISK_H

#include <stdint.h>

enum disk_kind { DISK_READ, DISK_WRITE, DISK_MIXED, DISK_KINDS };
enum { DISK_MOST_IN_FLIGHT = 32 };

struct disk {
    int descriptor;
    uint64_t blocks, block_bytes;
    char *buffers;             /* a block for each request in flight */
    int in_flight[DISK_KINDS]; /* with which it was fastest */
};

/*
 * Makes a file without a name in `directory`, of at least `bytes` in whole blocks, writes it once,
 * and tries how many requests in flight the disk is fastest with. Ends the program on an error.
 */
void disk_open(struct disk *disk, const char *directory, uint64_t bytes, uint64_t block_bytes);
void disk_close(struct disk *disk);

/*
 * Microseconds in which every block was read, or written, once. DISK_MIXED: both, in turn, reads
 * from the beginning of the file on and writes from its middle.
 */
double disk_time(struct disk *disk, enum disk_kind kind);

#endif
