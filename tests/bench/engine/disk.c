#define _GNU_SOURCE
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine.h"

/* Large pages: the requests of a disk have a limit of pieces. */
enum { PAGE = 2 << 20 };

/* Some requests, which threads take one after the other. */
struct loop {
    const struct disk *disk;
    enum disk_kind kind;
    uint64_t requests;
    atomic_uint_fast64_t next;
};

struct worker {
    pthread_t thread;
    struct loop *loop;
    char *buffer;
};

static void fail(const char *what, int error_number) {
    fprintf(stderr, "%s: %s\n", what, strerror(error_number));
    exit(1);
}

static void move_block(const struct disk *disk, uint64_t block, bool write, char *buffer) {
    for (uint64_t done = 0; done < disk->block_bytes;) {
        const uint64_t bytes = disk->block_bytes - done;
        const off_t offset = (off_t)(block * disk->block_bytes + done);
        const ssize_t moved = write ? pwrite(disk->descriptor, buffer + done, bytes, offset)
                                    : pread(disk->descriptor, buffer + done, bytes, offset);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) fail(write ? "writing" : "reading", moved < 0 ? errno : EIO);
        done += (uint64_t)moved;
    }
}

static void *work(void *argument) {
    const struct worker *const worker = argument;
    struct loop *const loop = worker->loop;
    const uint64_t blocks = loop->disk->blocks;
    for (;;) {
        const uint64_t request = atomic_fetch_add(&loop->next, 1);
        if (request >= loop->requests) return NULL;
        uint64_t block = request;
        bool write = loop->kind == DISK_WRITE;
        if (loop->kind == DISK_MIXED) {
            write = request % 2 == 1;
            block = request / 2 + (write ? blocks / 2 : 0);
        }
        move_block(loop->disk, block % blocks, write, worker->buffer);
    }
}

static double time_of(struct disk *disk, enum disk_kind kind, uint64_t requests, int in_flight) {
    struct loop loop = {.disk = disk, .kind = kind, .requests = requests};
    struct worker workers[DISK_MOST_IN_FLIGHT];
    const double begin = now_us();
    for (int i = 0; i < in_flight; ++i) {
        workers[i].loop = &loop;
        workers[i].buffer = disk->buffers + (uint64_t)i * disk->block_bytes;
        const int refused = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
        if (refused != 0) fail("a thread", refused);
    }
    for (int i = 0; i < in_flight; ++i) pthread_join(workers[i].thread, NULL);
    return now_us() - begin;
}

void disk_open(struct disk *disk, const char *directory, uint64_t bytes, uint64_t block_bytes) {
    char path[4096];
    snprintf(path, sizeof path, "%s/trireme-bench-%ld", directory, (long)getpid());
    disk->descriptor = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
    if (disk->descriptor < 0) fail(path, errno);
    unlink(path);
    disk->block_bytes = block_bytes;
    disk->blocks = (bytes + block_bytes - 1) / block_bytes;
    const int refused =
        posix_fallocate(disk->descriptor, 0, (off_t)(disk->blocks * disk->block_bytes));
    if (refused != 0) fail(directory, refused);
    const uint64_t buffers_bytes =
        (DISK_MOST_IN_FLIGHT * disk->block_bytes + PAGE - 1) / PAGE * PAGE;
    disk->buffers = aligned_alloc(PAGE, buffers_bytes);
    if (disk->buffers == NULL) fail("buffers", ENOMEM);
    madvise(disk->buffers, buffers_bytes, MADV_HUGEPAGE);
    /* Nothing that a disk could make smaller. */
    uint64_t random = 88172645463325252u;
    for (uint64_t i = 0; i < buffers_bytes; i += sizeof random) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        memcpy(disk->buffers + i, &random, sizeof random);
    }
    time_of(disk, DISK_WRITE, disk->blocks,
            4); /* the first time, a file system notes what is where */
    double best[DISK_KINDS] = {0};
    for (int pass = 0; pass < 2; ++pass) {
        for (int in_flight = 1; in_flight <= DISK_MOST_IN_FLIGHT; in_flight *= 2) {
            for (int kind = 0; kind < DISK_KINDS; ++kind) {
                const double time = time_of(disk, (enum disk_kind)kind, disk->blocks, in_flight);
                if (best[kind] > 0 && best[kind] <= time) continue;
                best[kind] = time;
                disk->in_flight[kind] = in_flight;
            }
        }
    }
}

void disk_close(struct disk *disk) {
    free(disk->buffers);
    close(disk->descriptor);
}

double disk_time(struct disk *disk, enum disk_kind kind) {
    return time_of(disk, kind, (kind == DISK_MIXED ? 2 : 1) * disk->blocks, disk->in_flight[kind]);
}
