/*
 * Small collectives with a root, whose ranks leave early: right numbers in long runs and mixtures,
 * who hears of a disagreement when, how far a rank runs ahead, deadlines, and deaths.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "calls.h"
#include "processes.h"
#include "ranks.h"

#define WINDOW 64 /* cells: a rank is at most one call less than this ahead */
#define WARM 8    /* equal calls after which the next one is expected */

static const int worlds[] = {2, 3, 4, 5, 8};
#define WORLDS (sizeof worlds / sizeof worlds[0])

/* ---- numbers ---- */

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Element i of the contribution of a rank. For a block, i counts from its beginning. */
static int32_t value(int rank, int call, int block, uint64_t i) {
    return rank * 1000003 + call * 7919 + block * 611953 + (int32_t)i * 31;
}

enum kind { BROADCAST, REDUCE, GATHER, SCATTER, ALL_REDUCE, BARRIER, KINDS };

#define MOST 9000 /* elements: too many for a call that carries them */
#define MANY 16   /* small calls of more ranks wait between hosts */

struct numbers {
    int32_t send[MOST * MANY];
    int32_t receive[MOST * MANY];
};

/* Makes the call and compares every element with plain arithmetic. */
static bool
make_right_call(trireme_communicator *communicator, enum kind kind, int rank, int n, int root,
                uint64_t count, int call, bool in_place, struct numbers *memory) {
    int32_t *const send = memory->send;
    int32_t *const receive = memory->receive;
    const uint64_t un = (uint64_t)n;
    memset(receive, 0x5a, count * un * sizeof *receive);
    trireme_status status = TRIREME_OK;
    bool right = true;
    switch (kind) {
        case BROADCAST:
            for (uint64_t i = 0; rank == root && i < count; ++i)
                receive[i] = value(root, call, 0, i);
            status = trireme_broadcast(communicator, receive, count, TRIREME_DTYPE_I32, root, NULL);
            for (uint64_t i = 0; i < count; ++i) right &= receive[i] == value(root, call, 0, i);
            break;
        case REDUCE:
        case ALL_REDUCE: {
            int32_t *const from = in_place && (kind == ALL_REDUCE || rank == root) ? receive : send;
            for (uint64_t i = 0; i < count; ++i) from[i] = value(rank, call, 0, i);
            status = kind == REDUCE
                         ? trireme_reduce(communicator, from, receive, count, TRIREME_DTYPE_I32,
                                          TRIREME_REDUCTION_SUM, root, NULL)
                         : trireme_all_reduce(communicator, from, receive, count, TRIREME_DTYPE_I32,
                                              TRIREME_REDUCTION_SUM, NULL);
            for (uint64_t i = 0; (kind == ALL_REDUCE || rank == root) && i < count; ++i) {
                uint32_t sum = 0;
                for (int r = 0; r < n; ++r) sum += (uint32_t)value(r, call, 0, i);
                right &= (uint32_t)receive[i] == sum;
            }
            break;
        }
        case GATHER: {
            int32_t *const from =
                in_place && rank == root ? receive + (uint64_t)rank * count : send;
            for (uint64_t i = 0; i < count; ++i) from[i] = value(rank, call, 0, i);
            status =
                trireme_gather(communicator, from, receive, count, TRIREME_DTYPE_I32, root, NULL);
            /* The caller may use its memory again at once. */
            if (rank != root) memset(send, 0x77, count * un * sizeof *send);
            for (uint64_t i = 0; rank == root && i < count * un; ++i) {
                right &= receive[i] == value((int)(i / count), call, 0, i % count);
            }
            break;
        }
        case SCATTER:
            for (uint64_t i = 0; rank == root && i < count * un; ++i) {
                send[i] = value(root, call, (int)(i / count), i % count);
            }
            status =
                trireme_scatter(communicator, send, receive, count, TRIREME_DTYPE_I32, root, NULL);
            if (rank == root) memset(send, 0x77, count * un * sizeof *send);
            for (uint64_t i = 0; i < count; ++i) right &= receive[i] == value(root, call, rank, i);
            break;
        default: status = trireme_barrier(communicator, NULL); break;
    }
    if (status != TRIREME_OK)
        print_error("rank %d, call %d: %s\n", rank, call, trireme_last_error());
    if (!right) print_error("rank %d, call %d, kind %d: a wrong number\n", rank, call, kind);
    return status == TRIREME_OK && right;
}

struct mixture {
    int world_size;
    int calls;
    struct verdict verdicts[MANY];
};

/* Runs of one call, some longer than the window, between calls of other kinds, roots and sizes. */
static void mix(trireme_communicator *communicator, int rank, void *context) {
    struct mixture *const mixture = context;
    const int n = mixture->world_size;
    struct numbers *const memory = malloc(sizeof *memory);
    if (memory == NULL) abort();
    uint64_t shared = 42 + (uint64_t)n; /* the same on all ranks */
    uint64_t own = 4711 + (uint64_t)rank;
    int call = 0;
    bool right = true;
    while (right && call < mixture->calls) {
        static const uint64_t counts[] = {0,  1,  2,  5,  10,  11,   16,   21,
                                          43, 44, 45, 89, 300, 1024, 1025, MOST};
        const enum kind kind = next_random(&shared) % KINDS;
        const int root = (int)(next_random(&shared) % (uint64_t)n);
        const uint64_t count = counts[next_random(&shared) % (sizeof counts / sizeof counts[0])];
        const bool in_place = next_random(&shared) % 2 == 0;
        const uint64_t length = next_random(&shared) % 8 == 0 ? WINDOW + next_random(&shared) % 300
                                                              : 1 + next_random(&shared) % 6;
        for (uint64_t i = 0; right && i < length && call < mixture->calls; ++i, ++call) {
            if (next_random(&own) % 64 == 0) sched_yield();
            if (next_random(&own) % 1024 == 0) usleep(300);
            right =
                make_right_call(communicator, kind, rank, n, root, count, call, in_place, memory);
        }
    }
    EXPECT(&mixture->verdicts[rank], right);
    free(memory);
}

static void mixtures_of_calls_give_the_numbers_of_plain_arithmetic(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 3, 4, 5, 8, MANY};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        struct mixture *const mixture = calloc(1, sizeof *mixture);
        assert_non_null(mixture);
        mixture->world_size = sizes[i];
        mixture->calls = is_quick() ? 1500 : 6000;
        if (sizes[i] == MANY) mixture->calls /= 4;
        run_ranks(sizes[i], mix, mixture);
        assert_verdicts(mixture->verdicts, sizes[i]);
        free(mixture);
    }
}

/* A loop of several calls, as a program makes it: each is expected from the third round on. */
static void loop(trireme_communicator *communicator, int rank, void *context) {
    struct mixture *const mixture = context;
    const int n = mixture->world_size;
    struct numbers *const memory = malloc(sizeof *memory);
    if (memory == NULL) abort();
    bool right = true;
    int call = 0;
    for (int round = 0; right && round < mixture->calls; ++round) {
        for (int root = 0; right && root < n; ++root) {
            for (int kind = BROADCAST; right && kind <= SCATTER; ++kind) {
                right =
                    make_right_call(communicator, kind, rank, n, root, 3, call++, false, memory);
            }
        }
    }
    EXPECT(&mixture->verdicts[rank], right);
    free(memory);
}

static void a_loop_of_calls_with_changing_roots_is_right(void **state) {
    (void)state;
    for (size_t i = 0; i < WORLDS; ++i) {
        struct mixture *const mixture = calloc(1, sizeof *mixture);
        assert_non_null(mixture);
        mixture->world_size = worlds[i];
        mixture->calls = is_quick() ? 30 : 150;
        run_ranks(worlds[i], loop, mixture);
        assert_verdicts(mixture->verdicts, worlds[i]);
        free(mixture);
    }
}

/* Small calls fill the window, then a large one follows, in the group and in its children. */
static void grow(trireme_communicator *communicator, int rank, void *context) {
    struct mixture *const mixture = context;
    const int n = mixture->world_size;
    struct numbers *const memory = malloc(sizeof *memory);
    trireme_communicator *groups[2] = {communicator, NULL};
    if (memory == NULL) abort();
    struct verdict *const verdict = &mixture->verdicts[rank];
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_communicator_duplicate(communicator, NULL, &groups[1]));
    static const uint64_t counts[] = {2, 1000, 2, MOST, 40, 1024};
    bool right = groups[1] != NULL;
    int call = 0;
    for (int kind = BROADCAST; right && kind <= SCATTER; ++kind) {
        for (size_t c = 0; right && c < sizeof counts / sizeof counts[0]; ++c) {
            const int calls = counts[c] == MOST ? 2 : WINDOW + 20;
            for (int i = 0; right && i < calls; ++i, ++call) {
                for (int g = 0; right && g < 2; ++g) {
                    const int root = (int)(c + (size_t)g) % n;
                    right = make_right_call(groups[g], (enum kind)kind, rank, n, root, counts[c],
                                            call, false, memory);
                }
            }
        }
    }
    EXPECT(verdict, right);
    trireme_communicator_destroy(groups[1]);
    free(memory);
}

static void large_calls_after_small_ones_are_right(void **state) {
    (void)state;
    if (!ranks_make_groups()) return;
    for (size_t i = 0; i < WORLDS; ++i) {
        struct mixture *const mixture = calloc(1, sizeof *mixture);
        assert_non_null(mixture);
        mixture->world_size = worlds[i];
        run_ranks(worlds[i], grow, mixture);
        assert_verdicts(mixture->verdicts, worlds[i]);
        free(mixture);
    }
}

/* ---- disagreement ---- */

#define UNTOUCHED 0xa5

struct dispute {
    struct call usual;
    struct call odd;
    int world_size;
    int odd_rank;
    pthread_barrier_t between; /* the equal calls and the ranks' two others */
    trireme_status first[8];
    trireme_status second[8];
    char message[8][640];
    bool touched[8]; /* although the call failed */
    bool foreign[8]; /* with bytes of a peer */
    struct verdict verdicts[8];
};

static void disagree(trireme_communicator *communicator, int rank, void *context) {
    struct dispute *const dispute = context;
    const int n = dispute->world_size;
    struct call_memory memory;
    struct call_memory odd_memory;
    struct verdict *const verdict = &dispute->verdicts[rank];
    if (!EXPECT(verdict, allocate_call(communicator, &dispute->usual, rank, n, false, &memory)) ||
        !EXPECT(verdict, allocate_call(communicator, &dispute->odd, rank, n, false, &odd_memory))) {
        abort();
    }
    for (int i = 0; i < WARM; ++i) {
        EXPECT_STATUS(verdict, TRIREME_OK,
                      run_call(communicator, &dispute->usual, &memory, false, LONG_NS));
    }
    pthread_barrier_wait(&dispute->between); /* a rank that is late hears in an earlier call */
    const bool is_odd = rank == dispute->odd_rank;
    const struct call *const call = is_odd ? &dispute->odd : &dispute->usual;
    struct call_memory *const own = is_odd ? &odd_memory : &memory;
    const unsigned char fill = (unsigned char)(1 + rank);
    memset(own->send, fill, own->send_bytes);
    memset(own->receive, UNTOUCHED, own->receive_bytes);
    dispute->first[rank] = run_call(communicator, call, own, false, LONG_NS);
    if (dispute->first[rank] != TRIREME_OK) {
        snprintf(dispute->message[rank], sizeof dispute->message[rank], "%s", trireme_last_error());
        for (uint64_t i = 0; i < own->receive_bytes; ++i) {
            dispute->touched[rank] |= own->receive[i] != UNTOUCHED;
            dispute->foreign[rank] |= own->receive[i] != UNTOUCHED && own->receive[i] != fill;
        }
    }
    pthread_barrier_wait(&dispute->between);
    dispute->second[rank] = run_call(communicator, call, own, false, LONG_NS);
    /* Between hosts the news may still be on their way. A rank that runs ahead waits at the window
     * at the latest. */
    for (int i = 0; ranks_use_network() && dispute->second[rank] == TRIREME_OK && i < 2 * WINDOW;
         ++i) {
        dispute->second[rank] = run_call(communicator, call, own, false, LONG_NS);
    }
    if (dispute->first[rank] == TRIREME_OK) {
        snprintf(dispute->message[rank], sizeof dispute->message[rank], "%s", trireme_last_error());
    }
    free_call(&odd_memory, false);
    free_call(&memory, false);
}

/* Whether a rank with the usual call needs the odd one's call, or that of all. */
static bool must_hear_at_once(const struct dispute *dispute, int rank) {
    const struct call *const usual = &dispute->usual;
    if (rank == dispute->odd_rank) return true;
    const bool from_root = usual->operation == TRIREME_OPERATION_KIND_BROADCAST ||
                           usual->operation == TRIREME_OPERATION_KIND_SCATTER;
    if (from_root) return rank != usual->root && dispute->odd_rank == usual->root;
    return rank == usual->root;
}

/* Between hosts: whether pieces make the call, as up to 4 KiB travel with it otherwise. */
static bool goes_by_algorithm(const struct call *call, int world_size) {
    const bool of_all = call->operation == TRIREME_OPERATION_KIND_SCATTER;
    return call->algorithm != TRIREME_ALGORITHM_AUTOMATIC ||
           call->count * sizeof(float) * (of_all ? (uint64_t)world_size : 1) > 4096;
}

static void check_dispute(struct dispute *dispute) {
    const char *const one = operation_text(dispute->usual.operation);
    const char *const two = operation_text(dispute->odd.operation);
    assert_verdicts(dispute->verdicts, dispute->world_size);
    for (int rank = 0; rank < dispute->world_size; ++rank) {
        const bool at_once = must_hear_at_once(dispute, rank);
        const char *const message = dispute->message[rank];
        /* An algorithm between hosts moves bytes beside the comparison. */
        const bool may_touch = ranks_use_network() && rank == dispute->odd_rank &&
                               goes_by_algorithm(&dispute->odd, dispute->world_size);
        const bool named = strstr(message, one) != NULL && strstr(message, two) != NULL;
        const bool heard = dispute->first[rank] == TRIREME_ERROR_MISMATCH ||
                           (!at_once && dispute->first[rank] == TRIREME_OK);
        if (heard && dispute->second[rank] == TRIREME_ERROR_MISMATCH && named &&
            (may_touch || !dispute->touched[rank]) && !dispute->foreign[rank]) {
            continue;
        }
        fail_msg(
            "%s (root %d) against %s (root %d), %d ranks, odd rank %d: rank %d%s got %s, then "
            "%s%s: %s",
            one, dispute->usual.root, two, dispute->odd.root, dispute->world_size,
            dispute->odd_rank, rank, at_once ? ", which waits," : "",
            trireme_status_name(dispute->first[rank]), trireme_status_name(dispute->second[rank]),
            dispute->touched[rank] ? ", memory touched" : "", message);
    }
}

static const trireme_operation_kind rooted_kinds[] = {TRIREME_OPERATION_KIND_BROADCAST,
                                                      TRIREME_OPERATION_KIND_REDUCE,
                                                      TRIREME_OPERATION_KIND_GATHER,
                                                      TRIREME_OPERATION_KIND_SCATTER};

/* Elements of a broadcast whose bytes follow the calls between hosts. */
#define LONG_COUNT 5000

static struct call small_call(trireme_operation_kind operation, int root) {
    return (struct call){.operation = operation,
                         .dtype = TRIREME_DTYPE_F32,
                         .reduction = TRIREME_REDUCTION_SUM,
                         .count = 4,
                         .root = root};
}

/* The odd calls beside a usual one: other operations, with and without a root, counts that fit into
 * a cell and that do not, dtypes, reductions and roots. Returns how many. */
static int odd_calls(const struct call *usual, int world_size, struct call *odd) {
    int count = 0;
    static const trireme_operation_kind others[] = {TRIREME_OPERATION_KIND_BROADCAST,
                                                    TRIREME_OPERATION_KIND_REDUCE,
                                                    TRIREME_OPERATION_KIND_GATHER,
                                                    TRIREME_OPERATION_KIND_SCATTER,
                                                    TRIREME_OPERATION_KIND_BARRIER,
                                                    TRIREME_OPERATION_KIND_ALL_REDUCE};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
        if (others[i] != usual->operation) odd[count++] = small_call(others[i], usual->root);
    }
    odd[count] = *usual;
    odd[count++].count = 5;
    odd[count] = *usual;
    odd[count++].count = 1000;
    odd[count] = *usual;
    odd[count++].dtype = TRIREME_DTYPE_I32;
    odd[count] = *usual;
    odd[count++].root = (usual->root + 1) % world_size;
    odd[count] = *usual;
    odd[count++].algorithm = TRIREME_ALGORITHM_DIRECT;
    if (reduces(usual->operation)) {
        odd[count] = *usual;
        odd[count++].reduction = TRIREME_REDUCTION_MAX;
    }
    return count;
}

static void a_disagreement_is_heard_in_this_call_or_the_next(void **state) {
    (void)state;
    int trials = 0;
    const size_t kinds = sizeof rooted_kinds / sizeof rooted_kinds[0];
    for (size_t w = 0; w < WORLDS; ++w) {
        const int n = worlds[w];
        /* Between hosts once more with a long broadcast. */
        for (size_t k = 0; k < kinds + (ranks_use_network() ? 1 : 0); ++k) {
            for (int root = 0; root < n; root += n - 1) {
                struct call usual = small_call(rooted_kinds[k % kinds], root);
                if (k == kinds) usual.count = LONG_COUNT;
                struct call odd[16];
                const int count = odd_calls(&usual, n, odd);
                for (int i = 0; i < count; ++i) {
                    const int odd_rank = (i + (int)k) % n;
                    if (is_quick() && (i + (int)w) % 3 != 0) continue;
                    struct dispute *const dispute = calloc(1, sizeof *dispute);
                    assert_non_null(dispute);
                    dispute->usual = usual;
                    dispute->odd = odd[i];
                    dispute->world_size = n;
                    dispute->odd_rank = odd_rank;
                    pthread_barrier_init(&dispute->between, NULL, (unsigned)n);
                    run_ranks(n, disagree, dispute);
                    check_dispute(dispute);
                    pthread_barrier_destroy(&dispute->between);
                    free(dispute);
                    ++trials;
                }
            }
        }
    }
    printf("rooted: %d disagreements\n", trials);
    assert_true(trials >= 100);
}

/* ---- far ahead ---- */

/* Equal small calls. A rank tells most of them only to the ranks that need them. */
#define HISTORY 30

static const int small_worlds[] = {2, 3, 5};
#define SMALL_WORLDS (sizeof small_worlds / sizeof small_worlds[0])

struct ahead {
    trireme_operation_kind operation;
    int world_size;
    pthread_barrier_t steps;
    int calls; /* of the rank that runs ahead, until it waited in vain */
    trireme_status last;
    trireme_error_info info;
    trireme_status others[8];
    struct verdict verdicts[8];
};

/* Rank 1 does not wait: it is the root of what goes out, and a leaf of what comes in. */
static void run_ahead(trireme_communicator *communicator, int rank, void *context) {
    struct ahead *const ahead = context;
    const bool goes_out = ahead->operation == TRIREME_OPERATION_KIND_BROADCAST ||
                          ahead->operation == TRIREME_OPERATION_KIND_SCATTER;
    const struct call call = small_call(ahead->operation, goes_out ? 1 : 0);
    struct call_memory memory;
    struct verdict *const verdict = &ahead->verdicts[rank];
    const int n = ahead->world_size;
    if (!EXPECT(verdict, allocate_call(communicator, &call, rank, n, false, &memory))) abort();
    for (int i = 0; i < HISTORY; ++i) {
        EXPECT_STATUS(verdict, TRIREME_OK, run_call(communicator, &call, &memory, false, LONG_NS));
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    pthread_barrier_wait(&ahead->steps);
    /* The further ranks make the calls, too: rank 1 waits for rank 0 alone. */
    for (int i = 0; rank > 1 && i < 4 * WINDOW && ahead->others[rank] == TRIREME_OK; ++i) {
        ahead->others[rank] = run_call(communicator, &call, &memory, false, LONG_NS);
    }
    if (rank == 1) {
        ahead->last = TRIREME_OK;
        while (ahead->last == TRIREME_OK && ahead->calls < 4 * WINDOW) {
            /* The calls that go through need no time. */
            ahead->last = run_call(communicator, &call, &memory, false, 300ull * 1000 * 1000);
            ahead->calls += ahead->last == TRIREME_OK;
        }
        ahead->info.struct_size = sizeof ahead->info;
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&ahead->info));
    }
    pthread_barrier_wait(&ahead->steps);
    /* Between hosts the news may come after what rank 1 has sent. */
    for (int i = 0; rank == 0 && ahead->others[0] == TRIREME_OK && i <= WINDOW; ++i) {
        ahead->others[0] = run_call(communicator, &call, &memory, false, LONG_NS);
        if (!ranks_use_network()) break;
    }
    free_call(&memory, false);
}

static void a_rank_runs_ahead_by_less_than_the_window(void **state) {
    (void)state;
    for (size_t k = 0; k < SMALL_WORLDS * (sizeof rooted_kinds / sizeof rooted_kinds[0]); ++k) {
        const int n = small_worlds[k % SMALL_WORLDS];
        struct ahead *const ahead = calloc(1, sizeof *ahead);
        assert_non_null(ahead);
        ahead->operation = rooted_kinds[k / SMALL_WORLDS];
        ahead->world_size = n;
        pthread_barrier_init(&ahead->steps, NULL, (unsigned)n);
        run_ranks(n, run_ahead, ahead);
        pthread_barrier_destroy(&ahead->steps);
        assert_verdicts(ahead->verdicts, n);
        assert_int_equal(ahead->calls, ranks_use_network() ? WINDOW : WINDOW - 1);
        assert_int_equal(ahead->last, TRIREME_ERROR_TIMEOUT);
        for (int rank = 0; rank < n; ++rank) {
            assert_true(rank == 1 || ahead->others[rank] == TRIREME_ERROR_TIMEOUT);
        }
        assert_true(blames_only(&ahead->info, 0));
        free(ahead);
    }
}

/* ---- late ranks ---- */

struct late {
    trireme_operation_kind operation;
    int world_size;
    pthread_barrier_t steps;
    pthread_barrier_t given; /* all ranks but rank 1 */
    trireme_status waited;
    trireme_error_info info;
    trireme_status later[8];
    struct verdict verdicts[8];
};

/* Rank 0 waits for rank 1, which comes after the deadline. */
static void come_late(trireme_communicator *communicator, int rank, void *context) {
    struct late *const late = context;
    const bool goes_out = late->operation == TRIREME_OPERATION_KIND_BROADCAST ||
                          late->operation == TRIREME_OPERATION_KIND_SCATTER;
    const struct call call = small_call(late->operation, goes_out ? 1 : 0);
    struct call_memory memory;
    struct verdict *const verdict = &late->verdicts[rank];
    const int n = late->world_size;
    if (!EXPECT(verdict, allocate_call(communicator, &call, rank, n, false, &memory))) abort();
    for (int i = 0; i < HISTORY; ++i) {
        EXPECT_STATUS(verdict, TRIREME_OK, run_call(communicator, &call, &memory, false, LONG_NS));
    }
    /* The further ranks come in time. Those that give leave at once, the others wait for rank 1. */
    if (rank > 1 && !goes_out) {
        EXPECT_STATUS(verdict, TRIREME_OK, run_call(communicator, &call, &memory, false, LONG_NS));
    }
    if (rank != 1 && !goes_out) pthread_barrier_wait(&late->given);
    if (rank > 1 && goes_out) {
        late->later[rank] = run_call(communicator, &call, &memory, false, LONG_NS);
    }
    if (rank == 0) {
        late->waited = run_call(communicator, &call, &memory, false, 50ull * 1000 * 1000);
        late->info.struct_size = sizeof late->info;
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&late->info));
    }
    pthread_barrier_wait(&late->steps);
    for (int i = 0; rank != 0 && late->later[rank] == TRIREME_OK && i <= WINDOW; ++i) {
        late->later[rank] = run_call(communicator, &call, &memory, false, LONG_NS);
        if (!ranks_use_network()) break;
    }
    free_call(&memory, false);
}

static void a_wait_for_a_late_rank_ends_at_the_deadline(void **state) {
    (void)state;
    for (size_t k = 0; k < SMALL_WORLDS * (sizeof rooted_kinds / sizeof rooted_kinds[0]); ++k) {
        const int n = small_worlds[k % SMALL_WORLDS];
        struct late *const late = calloc(1, sizeof *late);
        assert_non_null(late);
        late->operation = rooted_kinds[k / SMALL_WORLDS];
        late->world_size = n;
        pthread_barrier_init(&late->steps, NULL, (unsigned)n);
        pthread_barrier_init(&late->given, NULL, (unsigned)(n - 1));
        run_ranks(n, come_late, late);
        pthread_barrier_destroy(&late->given);
        pthread_barrier_destroy(&late->steps);
        assert_verdicts(late->verdicts, n);
        assert_int_equal(late->waited, TRIREME_ERROR_TIMEOUT);
        assert_true(blames_only(&late->info, 1));
        for (int rank = 1; rank < n; ++rank)
            assert_int_equal(late->later[rank], TRIREME_ERROR_TIMEOUT);
        free(late);
    }
}

/* ---- a rank that leaves in order ---- */

/* Its peers take its elements from its cells after it has left. */
static void give_and_leave(trireme_communicator *communicator, int rank, void *context) {
    struct late *const late = context;
    int32_t number = -1;
    int32_t all[2] = {-1, -1};
    const bool goes_out = late->operation == TRIREME_OPERATION_KIND_BROADCAST;
    struct verdict *const verdict = &late->verdicts[rank];
    for (int i = 0; i < WARM + 3; ++i) {
        if (i == WARM) {
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
            pthread_barrier_wait(&late->steps);
        }
        if (i == WARM && rank == 0) pthread_barrier_wait(&late->steps); /* rank 1 has left */
        number = rank == 1 ? 100 + i : -1;
        if (goes_out) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_broadcast(communicator, &number, 1, TRIREME_DTYPE_I32, 1, NULL));
            EXPECT(verdict, number == 100 + i);
        } else {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_gather(communicator, &number, all, 1, TRIREME_DTYPE_I32, 0,
                                         NULL));
            EXPECT(verdict, rank != 0 || (all[0] == -1 && all[1] == 100 + i));
        }
    }
    if (rank != 1) return;
    trireme_communicator_destroy(communicator);
    pthread_barrier_wait(&late->steps);
}

static void what_a_rank_gave_before_it_left_is_there(void **state) {
    (void)state;
    static const trireme_operation_kind kinds[] = {TRIREME_OPERATION_KIND_BROADCAST,
                                                   TRIREME_OPERATION_KIND_GATHER};
    for (int k = 0; k < 2; ++k) {
        struct late *const late = calloc(1, sizeof *late);
        assert_non_null(late);
        late->operation = kinds[k];
        pthread_barrier_init(&late->steps, NULL, 2);
        run_ranks(2, give_and_leave, late);
        pthread_barrier_destroy(&late->steps);
        assert_verdicts(late->verdicts, 2);
        free(late);
    }
}

#define CARRIED 1024 /* elements: as many as a call between hosts carries */

/* Rank 1 fills the window and leaves, while rank 0 is busy elsewhere. */
static void give_much_and_leave(trireme_communicator *communicator, int rank, void *context) {
    struct late *const late = context;
    struct verdict *const verdict = &late->verdicts[rank];
    struct numbers *const memory = malloc(sizeof *memory);
    if (memory == NULL) abort();
    const bool goes_out = late->operation == TRIREME_OPERATION_KIND_BROADCAST;
    const enum kind kind = goes_out ? BROADCAST : GATHER;
    bool right = true;
    for (int call = 0; right && call < WARM + WINDOW; ++call) {
        if (call == WARM && rank == 0) usleep(1200 * 1000);
        right = make_right_call(communicator, kind, rank, 2, goes_out ? 1 : 0, CARRIED, call, false,
                                memory);
    }
    EXPECT(verdict, right);
    free(memory); /* and rank 1 leaves */
}

static void all_that_a_rank_gave_arrives_though_its_peer_computes(void **state) {
    (void)state;
    static const trireme_operation_kind kinds[] = {TRIREME_OPERATION_KIND_BROADCAST,
                                                   TRIREME_OPERATION_KIND_GATHER};
    if (!ranks_use_network()) return; /* in one memory a rank waits until its elements are taken */
    for (int k = 0; k < 2; ++k) {
        struct late *const late = calloc(1, sizeof *late);
        assert_non_null(late);
        late->operation = kinds[k];
        run_ranks(2, give_much_and_leave, late);
        assert_verdicts(late->verdicts, 2);
        free(late);
    }
}

/* ---- deaths ---- */

struct trial {
    struct call call;
    char failpoint[64];
    int world_size;
    int victim;
    char rendezvous[64];
};

static void call_until_one_dies(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    struct call_memory memory;
    trireme_communicator *const communicator =
        join_process(rank, trial->world_size, trial->rendezvous, PATIENT_NS);
    if (!allocate_call(communicator, &trial->call, rank, trial->world_size, false, &memory)) {
        _exit(92);
    }
    for (int round = 0; round < 1000 && outcome->status == TRIREME_OK && !outcome->wrong; ++round) {
        if (round == WARM && rank == trial->victim) {
            char text[96];
            snprintf(text, sizeof text, "%s=kill@2", trial->failpoint);
            if (trireme_failpoint_set(text) != TRIREME_OK) _exit(91);
        }
        fill_call(&trial->call, &memory, rank, trial->world_size, round);
        const trireme_status status =
            run_call(communicator, &trial->call, &memory, false, PATIENT_NS);
        if (status != TRIREME_OK) {
            keep_error(outcome, status);
        } else if (is_call_right(&trial->call, &memory, rank, trial->world_size, round)) {
            ++outcome->rounds;
        } else {
            outcome->wrong = true;
        }
    }
    outcome->later = trireme_barrier(communicator, NULL);
    free_call(&memory, false);
    trireme_communicator_destroy(communicator);
}

/* A rank that awaits no peer hears of the death at the latest when it has no cell left. */
static void a_death_is_heard_by_all(void **state) {
    (void)state;
    const size_t kinds = sizeof rooted_kinds / sizeof rooted_kinds[0];
    static const char *const points[] = {"before_publish", "after_publish", "before_move",
                                         "after_move"};
    int trials = 0;
    for (size_t k = 0; k < kinds + (ranks_use_network() ? 1 : 0); ++k) {
        const trireme_operation_kind kind = rooted_kinds[k % kinds];
        for (size_t p = 0; p < sizeof points / sizeof points[0]; ++p) {
            for (int victim = 0; victim < 3; ++victim) {
                if (is_quick() && (k + p + (size_t)victim) % 4 != 0) continue;
                struct trial trial = {.call = small_call(kind, 1),
                                      .world_size = 3,
                                      .victim = victim};
                if (k == kinds) trial.call.count = LONG_COUNT;
                snprintf(trial.failpoint, sizeof trial.failpoint, "%s.%s", operation_text(kind),
                         points[p]);
                if (ranks_use_network()) {
                    unique_network_rendezvous(trial.rendezvous, sizeof trial.rendezvous);
                } else {
                    unique_host_rendezvous(trial.rendezvous, sizeof trial.rendezvous);
                }
                struct processes processes;
                start_processes(&processes, 3, call_until_one_dies, &trial);
                wait_processes(&processes);
                for (int rank = 0; rank < 3; ++rank) {
                    const struct outcome *const o = &processes.outcomes[rank];
                    if (rank == victim ? o->signal == SIGKILL
                                       : o->exit_code == 0 && !o->wrong && !o->hung &&
                                             o->status == TRIREME_ERROR_PEER_LOST &&
                                             blames_only(&o->info, victim) &&
                                             o->later == TRIREME_ERROR_PEER_LOST) {
                        continue;
                    }
                    fail_msg(
                        "%s, victim %d: rank %d: exit code %d, signal %d%s%s, %d rounds, %s, "
                        "later %s: %s",
                        trial.failpoint, victim, rank, o->exit_code, o->signal,
                        o->hung ? ", hung" : "", o->wrong ? ", a wrong number" : "", o->rounds,
                        trireme_status_name(o->status), trireme_status_name(o->later), o->message);
                }
                free_processes(&processes);
                ++trials;
            }
        }
    }
    assert_true(trials >= 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_heard_by_all), /* first: its children begin afresh */
        cmocka_unit_test(mixtures_of_calls_give_the_numbers_of_plain_arithmetic),
        cmocka_unit_test(a_loop_of_calls_with_changing_roots_is_right),
        cmocka_unit_test(large_calls_after_small_ones_are_right),
        cmocka_unit_test(a_disagreement_is_heard_in_this_call_or_the_next),
        cmocka_unit_test(a_rank_runs_ahead_by_less_than_the_window),
        cmocka_unit_test(a_wait_for_a_late_rank_ends_at_the_deadline),
        cmocka_unit_test(what_a_rank_gave_before_it_left_is_there),
        cmocka_unit_test(all_that_a_rank_gave_arrives_though_its_peer_computes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
