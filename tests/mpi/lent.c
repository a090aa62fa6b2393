/*
 * One rank of a job that mpirun has started. It calls collectives on memory that MPI works on
 * without a copy, and gives up such a call while a peer still reads. Exit status 0: all is well; it
 * reports failures on standard error.
 *
 * usage: lent moves|writes|frees
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ranks.h"

#define MILLISECOND_NS 1000000ull
#define LONGEST 350000 /* elements of a block */

enum operation { SUM, SCATTER, GATHER, SPREAD, OPERATIONS };

static struct verdict verdict;
static int rank, n;

static trireme_communicator *join(void) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rendezvous = "mpi://";
    options.backend = "mpi"; /* on one host, too */
    options.timeout_ns = LONG_NS;
    trireme_communicator *communicator = NULL;
    if (trireme_communicator_create(&options, &communicator) != TRIREME_OK) {
        fprintf(stderr, "cannot join: %s\n", trireme_last_error());
        exit(3);
    }
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_communicator_get_rank(communicator, &rank));
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_communicator_get_world_size(communicator, &n));
    return communicator;
}

/* Memory of the library, or of malloc() if there is no communicator. */
struct memory {
    trireme_buffer *buffer;
    int32_t *values;
};

static struct memory allocate(trireme_communicator *communicator, uint64_t count) {
    struct memory memory = {NULL, NULL};
    void *data = NULL;
    if (communicator == NULL) {
        data = malloc(count * sizeof(int32_t));
    } else {
        EXPECT_STATUS(&verdict, TRIREME_OK,
                      trireme_buffer_alloc(communicator, count * sizeof(int32_t), &memory.buffer));
        EXPECT_STATUS(&verdict, TRIREME_OK, trireme_buffer_get_data(memory.buffer, &data));
    }
    if (data == NULL) abort();
    memory.values = data;
    return memory;
}

static void release(struct memory *memory) {
    if (memory->buffer == NULL) free(memory->values);
    trireme_buffer_destroy(memory->buffer);
    memory->values = NULL;
    memory->buffer = NULL;
}

static int32_t value(int of, uint64_t index, uint64_t turn) {
    return (int32_t)(index * 7 + turn * 1001) + of * of * 100003;
}

static int32_t sum_of(uint64_t index, uint64_t turn) {
    int32_t sum = 0;
    for (int i = 0; i < n; ++i) sum += value(i, index, turn);
    return sum;
}

static uint64_t sent_by(enum operation what, uint64_t count) {
    return what == SCATTER ? count * (uint64_t)n : what == SPREAD ? 0 : count;
}
static uint64_t taken_by(enum operation what, uint64_t count) {
    return what == GATHER ? count * (uint64_t)n : count;
}

static void
fill(enum operation what, uint64_t count, uint64_t turn, int32_t *send, int32_t *receive) {
    for (uint64_t i = 0; i < sent_by(what, count); ++i) send[i] = value(rank, i, turn);
    for (uint64_t i = 0; what == SPREAD && rank == n - 1 && i < count; ++i) {
        receive[i] = value(rank, i, turn);
    }
}

static trireme_status call(trireme_communicator *communicator, enum operation what, uint64_t count,
                           const int32_t *send, int32_t *receive, uint64_t timeout_ns) {
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = timeout_ns;
    switch (what) {
        case SUM:
            return trireme_all_reduce(communicator, send, receive, count, TRIREME_DTYPE_I32,
                                      TRIREME_REDUCTION_SUM, &options);
        case SCATTER:
            return trireme_reduce_scatter(communicator, send, receive, count, TRIREME_DTYPE_I32,
                                          TRIREME_REDUCTION_SUM, &options);
        case GATHER:
            return trireme_all_gather(communicator, send, receive, count, TRIREME_DTYPE_I32,
                                      &options);
        default:
            return trireme_broadcast(communicator, receive, count, TRIREME_DTYPE_I32, n - 1,
                                     &options);
    }
}

static bool is_right(enum operation what, uint64_t count, uint64_t turn, const int32_t *receive) {
    for (uint64_t i = 0; i < taken_by(what, count); ++i) {
        const int32_t expected = what == SUM       ? sum_of(i, turn)
                                 : what == SCATTER ? sum_of(i + count * (uint64_t)rank, turn)
                                 : what == GATHER  ? value((int)(i / count), i % count, turn)
                                                   : value(n - 1, i, turn);
        if (receive[i] != expected) return false;
    }
    return true;
}

/* In one buffer: where an operation in place has its input. */
static int32_t *input_in_place(enum operation what, uint64_t count, int32_t *receive) {
    return what == GATHER ? receive + count * (uint64_t)rank : receive;
}

static uint64_t confirmed(void) {
    uint64_t hits = 0;
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_failpoint_get_hits("mpi.before_confirm", &hits));
    return hits;
}

/* Every operation of several lengths, in place or not. MPI gets a copy if one rank's memory is its
 * own. */
static void run_moves(trireme_communicator *communicator) {
    static const uint64_t counts[] = {1, 5000, 16384, 131072 + 3, LONGEST};
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_failpoint_set("mpi.before_confirm=off"));
    uint64_t turn = 0;
    for (int what = 0; what < OPERATIONS; ++what) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
            for (int kind = 0; kind < 3; ++kind, ++turn) { /* lent, in place, mixed */
                const uint64_t count = counts[i];
                const bool mixed = kind == 2 && rank == (int)(turn % (uint64_t)n);
                const bool in_place = kind == 1 && what != SPREAD && what != SCATTER;
                trireme_communicator *const owner = mixed ? NULL : communicator;
                struct memory to = allocate(owner, taken_by(what, count)), from = {NULL, NULL};
                const bool apart = what != SPREAD && !in_place;
                if (apart) from = allocate(owner, sent_by(what, count));
                int32_t *const input = apart ? from.values : input_in_place(what, count, to.values);
                const uint64_t before = confirmed();
                for (uint64_t again = 0; again < 2; ++again) {
                    fill(what, count, turn + again, input, to.values);
                    EXPECT_STATUS(&verdict, TRIREME_OK,
                                  call(communicator, what, count, input, to.values, LONG_NS));
                    EXPECT(&verdict, is_right(what, count, turn + again, to.values));
                }
                const bool lends = n > 1 && kind != 2 &&
                                   count >= (what == SUM ? 131072
                                             : n > 2     ? 16384
                                                         : 4096) &&
                                   (what != SPREAD || n == 2);
                EXPECT(&verdict, confirmed() - before == (lends ? 2u : 0u));
                release(&to);
                if (apart) release(&from);
            }
        }
    }
}

/* The last rank is late in its call. The others give up, and write to their memory or free it at
 * once. The late rank fails, or has the right numbers. The next group is well. */
static void run_late(bool frees) {
    for (int what = 0; what < (n == 2 ? OPERATIONS : SPREAD); ++what) { /* all that is lent */
        trireme_communicator *const communicator = join();
        const uint64_t count = LONGEST, turn = (uint64_t)what;
        struct memory to = allocate(communicator, taken_by(what, count));
        struct memory from = allocate(communicator, sent_by(what, count));
        fill(what, count, turn, from.values, to.values);
        EXPECT_STATUS(&verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
        const bool late = rank == (what == SPREAD ? 0 : n - 1);
        if (late) {
            EXPECT_STATUS(&verdict, TRIREME_OK,
                          trireme_failpoint_set("mpi.before_receive=sleep(700)@1"));
        }
        const trireme_status status = call(communicator, what, count, from.values, to.values,
                                           late ? LONG_NS : 300 * MILLISECOND_NS);
        EXPECT(&verdict, status != TRIREME_OK || (late && is_right(what, count, turn, to.values)));
        EXPECT(&verdict, late || status == TRIREME_ERROR_TIMEOUT);
        if (frees) {
            release(&from);
            release(&to);
        } else {
            memset(to.values, 0x5a, taken_by(what, count) * sizeof(int32_t));
            memset(from.values, 0x5a, sent_by(what, count) * sizeof(int32_t));
        }
        trireme_communicator *const next = join();
        EXPECT_STATUS(&verdict, TRIREME_OK, trireme_failpoint_set("mpi.before_confirm=off"));
        struct memory well = allocate(next, count);
        for (uint64_t i = 0; i < count; ++i) well.values[i] = value(rank, i, 9);
        EXPECT_STATUS(&verdict, TRIREME_OK,
                      call(next, SUM, count, well.values, well.values, LONG_NS));
        EXPECT(&verdict, is_right(SUM, count, 9, well.values));
        EXPECT(&verdict, confirmed() == 1);
        release(&well);
        /* No bytes of the call that has ended have come meanwhile. */
        for (uint64_t i = 0; !frees && i < taken_by(what, count); ++i) {
            EXPECT(&verdict, to.values[i] == 0x5a5a5a5a);
        }
        if (!frees) {
            release(&from);
            release(&to);
        }
        trireme_communicator_destroy(next);
        trireme_communicator_destroy(communicator);
    }
}

int main(int count, char **arguments) {
    const char *const part = count > 1 ? arguments[1] : "";
    if (strcmp(part, "moves") == 0) {
        trireme_communicator *const communicator = join();
        run_moves(communicator);
        trireme_communicator_destroy(communicator);
    } else if (strcmp(part, "writes") == 0 || strcmp(part, "frees") == 0) {
        trireme_communicator_destroy(join()); /* tells how many ranks there are */
        run_late(strcmp(part, "frees") == 0);
    } else {
        fprintf(stderr, "no part \"%s\"\n", part);
        return 2;
    }
    if (verdict.text[0] != 0) fprintf(stderr, "rank %d of %d: %s\n", rank, n, verdict.text);
    return verdict.text[0] == 0 ? 0 : 1;
}
