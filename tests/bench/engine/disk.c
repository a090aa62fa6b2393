#define _GNU_SOURCE
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine.h"

enum {
    PAGE = 2 << 20, /* Large pages: the requests of a disk have a limit of pieces. */
    MOST_IN_FLIGHT = 32,
    MOST_BUFFERS = 64 << 20,
    LEAST_REQUEST = 1 << 20,
    LARGEST_REQUEST = 8 << 20,
    PASSES = 3, /* tries of each way, */
    SHARE = 4,  /* with such a part of the file */
};

/* A sequence of requests. */
struct loop {
    const struct disk *disk;
    enum disk_kind kind;
    struct disk_way way;
    uint64_t first, requests; /* the block to begin with, and how many requests there are */
    atomic_uint_fast64_t next;
};

struct worker {
    pthread_t thread;
    struct loop *loop;
    char *buffer;
};

struct place {
    bool write;
    off_t offset;
};

static void fail(const char *what, int error_number) {
    fprintf(stderr, "%s: %s\n", what, strerror(error_number));
    exit(1);
}

/* The place of a request of the loop. */
static struct place place_of(const struct loop *loop, uint64_t request) {
    const uint64_t blocks = loop->disk->bytes / loop->way.request_bytes;
    uint64_t block = loop->first + request;
    bool write = loop->kind == DISK_WRITE;
    if (loop->kind == DISK_MIXED) {
        write = request % 2 == 1;
        /* Blocks in flight were read last. */
        block = loop->first + request / 2 + (write ? blocks - (uint64_t)loop->way.in_flight : 0);
    }
    return (struct place){write, (off_t)(block % blocks * loop->way.request_bytes)};
}

static void move_block(const struct loop *loop, struct place place, char *buffer) {
    const int file = loop->disk->descriptor;
    for (uint64_t done = 0; done < loop->way.request_bytes;) {
        const uint64_t bytes = loop->way.request_bytes - done;
        const off_t offset = place.offset + (off_t)done;
        const ssize_t moved = place.write ? pwrite(file, buffer + done, bytes, offset)
                                          : pread(file, buffer + done, bytes, offset);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) fail(place.write ? "writing" : "reading", moved < 0 ? errno : EIO);
        done += (uint64_t)moved;
    }
}

static void *work(void *argument) {
    const struct worker *const worker = argument;
    struct loop *const loop = worker->loop;
    for (;;) {
        const uint64_t request = atomic_fetch_add(&loop->next, 1);
        if (request >= loop->requests) return NULL;
        move_block(loop, place_of(loop, request), worker->buffer);
    }
}

static double time_of_threads(struct loop *loop) {
    struct worker workers[MOST_IN_FLIGHT];
    const double begin = now_us();
    for (int i = 0; i < loop->way.in_flight; ++i) {
        workers[i].loop = loop;
        workers[i].buffer = loop->disk->buffers + (uint64_t)i * loop->way.request_bytes;
        const int refused = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
        if (refused != 0) fail("a thread", refused);
    }
    for (int i = 0; i < loop->way.in_flight; ++i) pthread_join(workers[i].thread, NULL);
    return now_us() - begin;
}

static void post(struct io_uring *ring, struct loop *loop, uint64_t slot) {
    const struct place place = place_of(loop, loop->next++);
    char *const buffer = loop->disk->buffers + slot * loop->way.request_bytes;
    const unsigned bytes = (unsigned)loop->way.request_bytes;
    const int file = loop->disk->descriptor;
    struct io_uring_sqe *const entry = io_uring_get_sqe(ring);
    if (entry == NULL) fail("io_uring", EBUSY);
    if (place.write) {
        io_uring_prep_write(entry, file, buffer, bytes, (uint64_t)place.offset);
    } else {
        io_uring_prep_read(entry, file, buffer, bytes, (uint64_t)place.offset);
    }
    io_uring_sqe_set_data64(entry, slot);
}

static double time_of_ring(struct loop *loop, struct io_uring *ring) {
    const double begin = now_us();
    for (int i = 0; i < loop->way.in_flight && loop->next < loop->requests; ++i) {
        post(ring, loop, (uint64_t)i);
    }
    for (uint64_t done = 0; done < loop->requests;) {
        const int refused = io_uring_submit_and_wait(ring, 1);
        if (refused < 0 && refused != -EINTR) fail("io_uring", -refused);
        struct io_uring_cqe *answer = NULL;
        for (; io_uring_peek_cqe(ring, &answer) == 0; ++done) {
            const int moved = answer->res;
            if (moved < 0) fail("io_uring", -moved);
            if ((uint64_t)moved != loop->way.request_bytes) fail("a partial transfer", EIO);
            const uint64_t slot = io_uring_cqe_get_data64(answer);
            io_uring_cqe_seen(ring, answer);
            if (loop->next < loop->requests) post(ring, loop, slot);
        }
    }
    return now_us() - begin;
}

/* Negative if the system refuses io_uring. */
static double time_of(struct disk *disk, enum disk_kind kind, struct disk_way way, uint64_t first,
                      uint64_t bytes) {
    struct loop loop = {.disk = disk, .kind = kind, .way = way};
    loop.first = first / way.request_bytes;
    loop.requests = bytes / way.request_bytes;
    if (!way.ring) return time_of_threads(&loop);
    struct io_uring ring;
    if (io_uring_queue_init(MOST_IN_FLIGHT, &ring, 0) != 0) return -1;
    const double time = time_of_ring(&loop, &ring);
    io_uring_queue_exit(&ring);
    return time;
}

static void try_way(struct disk *disk, struct disk_way way, uint64_t *first, double *least) {
    const uint64_t share = disk->bytes / SHARE / LARGEST_REQUEST * LARGEST_REQUEST;
    const uint64_t bytes = share > 0 ? share : disk->bytes;
    for (int kind = 0; kind < DISK_KINDS; ++kind) {
        const double time = time_of(disk, (enum disk_kind)kind, way, *first, bytes);
        if (time < 0) return;
        /* Moves on, so that all parts of the file are used alike. */
        *first += bytes;
        if (least[kind] > 0 && least[kind] <= time) continue;
        least[kind] = time;
        disk->fastest[kind] = way;
    }
}

void disk_open(struct disk *disk, const char *directory, uint64_t bytes) {
    char path[4096];
    snprintf(path, sizeof path, "%s/trireme-bench-%ld", directory, (long)getpid());
    const int flags = O_RDWR | O_EXCL | O_CLOEXEC | O_DIRECT;
    disk->descriptor = open(directory, flags | O_TMPFILE, 0600);
    if (disk->descriptor < 0) { /* not every file system has files without a name */
        disk->descriptor = open(path, flags | O_CREAT, 0600);
        if (disk->descriptor < 0) fail(path, errno);
        unlink(path);
    }
    disk->bytes = (bytes + LARGEST_REQUEST - 1) / LARGEST_REQUEST * LARGEST_REQUEST;
    const int refused = posix_fallocate(disk->descriptor, 0, (off_t)disk->bytes);
    if (refused != 0) fail(directory, refused);
    disk->buffers = aligned_alloc(PAGE, MOST_BUFFERS);
    if (disk->buffers == NULL) fail("buffers", ENOMEM);
    madvise(disk->buffers, MOST_BUFFERS, MADV_HUGEPAGE);
    /* Random bytes, which no disk can compress. */
    uint64_t random = 88172645463325252u;
    for (uint64_t i = 0; i < MOST_BUFFERS; i += sizeof random) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        memcpy(disk->buffers + i, &random, sizeof random);
    }
    /* At the first write, a file system records the places of blocks. */
    time_of(disk, DISK_WRITE, (struct disk_way){false, 4, LARGEST_REQUEST}, 0, disk->bytes);
    double least[DISK_KINDS] = {0};
    uint64_t first = 0;
    for (int pass = 0; pass < PASSES; ++pass) {
        struct disk_way way = {.request_bytes = LEAST_REQUEST};
        for (; way.request_bytes <= LARGEST_REQUEST; way.request_bytes *= 2) {
            for (way.in_flight = 1; way.in_flight <= MOST_IN_FLIGHT; way.in_flight *= 2) {
                if ((uint64_t)way.in_flight * way.request_bytes > MOST_BUFFERS) break;
                for (int ring = 0; ring < 2; ++ring) {
                    way.ring = ring != 0;
                    try_way(disk, way, &first, least);
                }
            }
        }
    }
}

void disk_close(struct disk *disk) {
    free(disk->buffers);
    close(disk->descriptor);
}

double disk_time(struct disk *disk, enum disk_kind kind) {
    const uint64_t bytes = (kind == DISK_MIXED ? 2 : 1) * disk->bytes;
    return time_of(disk, kind, disk->fastest[kind], 0, bytes);
}
