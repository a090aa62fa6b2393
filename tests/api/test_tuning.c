/*
 * A tuning table (TRIREME_TUNING) decides by which algorithm a group makes its collectives: over
 * threads, over frames and between hosts. Results stay right, and an algorithm by name wins. Ranks
 * with other tables get a mismatch. The bits of a model stay as they are.
 *
 * The peers tell which algorithm has run: a call without an algorithm meets calls by name, and
 * ranks compare the algorithms.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/stat.h>
#include <unistd.h>

#include "calls.h"
#include "ranks.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define F32 TRIREME_DTYPE_F32
#define BF16 TRIREME_DTYPE_BF16
#define SUM TRIREME_REDUCTION_SUM

enum { TEXT = 4096, FIRST_ALGORITHM = TRIREME_ALGORITHM_DIRECT };

/* ---- tables ---- */

static char folder[] = "/tmp/trireme-test-tuning-XXXXXX";

/* The same path again and again: a group reads it while it is made, and never after. */
static const char *table_path(void) {
    static char path[64];
    snprintf(path, sizeof path, "%s/table", folder);
    return path;
}

/* The next groups get this text; NULL: no table. Only while no thread of ours runs. */
static void use_table(const char *text) {
    unlink(table_path());
    if (text == NULL) {
        unsetenv("TRIREME_TUNING");
        return;
    }
    FILE *const file = fopen(table_path(), "w");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0) abort();
    setenv("TRIREME_TUNING", table_path(), 1);
}

struct tuned {
    trireme_operation_kind operation;
    trireme_algorithm algorithms[5]; /* by which messages make it; 0 ends them */
    trireme_operation_kind v_form;   /* follows the same rule; 0: none */
};
static const struct tuned all_tuned[] = {
    {TRIREME_OPERATION_KIND_ALL_REDUCE,
     {TRIREME_ALGORITHM_DIRECT, TRIREME_ALGORITHM_RING, TRIREME_ALGORITHM_HALVING_DOUBLING,
      TRIREME_ALGORITHM_DOUBLE_TREE},
     0},
    {TRIREME_OPERATION_KIND_REDUCE_SCATTER,
     {TRIREME_ALGORITHM_DIRECT, TRIREME_ALGORITHM_RING, TRIREME_ALGORITHM_HALVING_DOUBLING,
      TRIREME_ALGORITHM_PAIRWISE},
     TRIREME_OPERATION_KIND_REDUCE_SCATTER_V},
    {TRIREME_OPERATION_KIND_ALL_GATHER,
     {TRIREME_ALGORITHM_DIRECT, TRIREME_ALGORITHM_RING, TRIREME_ALGORITHM_HALVING_DOUBLING,
      TRIREME_ALGORITHM_BRUCK},
     TRIREME_OPERATION_KIND_ALL_GATHER_V},
    {TRIREME_OPERATION_KIND_BROADCAST,
     {TRIREME_ALGORITHM_DIRECT, TRIREME_ALGORITHM_RING, TRIREME_ALGORITHM_BINOMIAL,
      TRIREME_ALGORITHM_DOUBLE_TREE},
     0},
    {TRIREME_OPERATION_KIND_REDUCE,
     {TRIREME_ALGORITHM_DIRECT, TRIREME_ALGORITHM_BINOMIAL, TRIREME_ALGORITHM_DOUBLE_TREE},
     0},
    {TRIREME_OPERATION_KIND_GATHER,
     {TRIREME_ALGORITHM_DIRECT, TRIREME_ALGORITHM_BINOMIAL},
     TRIREME_OPERATION_KIND_GATHER_V},
    {TRIREME_OPERATION_KIND_SCATTER,
     {TRIREME_ALGORITHM_DIRECT, TRIREME_ALGORITHM_BINOMIAL},
     TRIREME_OPERATION_KIND_SCATTER_V},
    {TRIREME_OPERATION_KIND_ALL_TO_ALL,
     {TRIREME_ALGORITHM_DIRECT, TRIREME_ALGORITHM_BRUCK, TRIREME_ALGORITHM_PAIRWISE},
     TRIREME_OPERATION_KIND_ALL_TO_ALL_V},
    {TRIREME_OPERATION_KIND_BARRIER, {TRIREME_ALGORITHM_DIRECT, TRIREME_ALGORITHM_BRUCK}, 0},
};

static bool has(const struct tuned *tuned, trireme_algorithm algorithm) {
    if (algorithm == TRIREME_ALGORITHM_NATIVE) return true; /* where the backend has it */
    for (size_t i = 0; i < COUNT_OF(tuned->algorithms); ++i) {
        if (tuned->algorithms[i] == algorithm) return true;
    }
    return false;
}

/* ---- groups ---- */

struct place {
    const char *name;
    const char *hosts; /* of tcp://: a letter for each rank, repeated; NULL: threads */
};
static const struct place threads_here = {"threads", NULL};
static const struct place over_frames = {"frames", "abcdefgh"};
static const struct place over_hosts = {"hosts", "aabb"};
static const struct place *const places[] = {&threads_here, &over_frames, &over_hosts};

struct group {
    int n;
    trireme_communicator *ranks[MOST_RANKS];
    char rendezvous[96];
};

static struct group new_group(const struct place *place, int n) {
    struct group group = {.n = n};
    if (place->hosts == NULL) {
        unique_rendezvous(group.rendezvous, sizeof group.rendezvous);
    } else {
        unique_network_rendezvous(group.rendezvous, sizeof group.rendezvous);
    }
    return group;
}

static trireme_status join(const struct place *place, struct group *group, int rank) {
    char rendezvous[128];
    snprintf(rendezvous, sizeof rendezvous, "%s", group->rendezvous);
    if (place->hosts != NULL) {
        snprintf(rendezvous, sizeof rendezvous, "%s?host=%c", group->rendezvous,
                 place->hosts[(size_t)rank % strlen(place->hosts)]);
    }
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = group->n;
    options.rendezvous = rendezvous;
    options.timeout_ns = LONG_NS;
    return trireme_communicator_create(&options, &group->ranks[rank]);
}

static struct group join_all(const struct place *place, int n) {
    struct group group = new_group(place, n);
    for (int rank = 0; rank < n; ++rank) {
        if (join(place, &group, rank) != TRIREME_OK) fail_msg("%s", trireme_last_error());
    }
    return group;
}

/* Each rank leaves on a thread of its own, as it came: none waits for another. */
static void leave(int rank, void *context) {
    trireme_communicator_destroy(((struct group *)context)->ranks[rank]);
}

static void say_backend(int rank, void *context) {
    struct group *const group = context;
    if (trireme_communicator_wait_ready(group->ranks[rank], LONG_NS) != TRIREME_OK) abort();
}

/* The name of the backend when the ranks have met. */
static void backend_of(const struct place *place, int n, char *text, size_t capacity) {
    use_table(NULL);
    struct group group = join_all(place, n);
    run_threads(n, say_backend, &group);
    assert_int_equal(trireme_communicator_get_backend(group.ranks[0], text, capacity, NULL),
                     TRIREME_OK);
    run_threads(n, leave, &group);
}

static void begin_table(char *text, int n, const char *backend) {
    snprintf(text, TEXT, "trireme tuning 1\ngroup %d %s\n", n, backend);
}

static void
add_rule(char *text, trireme_operation_kind operation, uint64_t from, trireme_algorithm algorithm) {
    const size_t length = strlen(text);
    snprintf(text + length, TEXT - length, "%s %llu %s\n", operation_text(operation),
             (unsigned long long)from, trireme_algorithm_name(algorithm));
}

/* ---- calls ---- */

struct job {
    struct group *group;
    struct call call;
    trireme_algorithm others; /* of all ranks but rank 0; 0: they do not name one either */
    bool started;
    trireme_status expected;
    const char *says; /* in the message of a failure; NULL: anything */
    struct verdict verdicts[MOST_RANKS];
};

static struct call call_of(trireme_operation_kind operation, uint64_t count) {
    struct call call = {.operation = operation, .dtype = F32, .count = count, .root = 0};
    if (reduces(operation)) call.reduction = SUM;
    for (int i = 0; i < MOST_RANKS; ++i) call.counts[i] = count + (uint64_t)(i % 3);
    return call;
}

static void run_one(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const int n = job->group->n;
    struct call call = job->call;
    if (rank != 0 && job->others != 0) call.algorithm = job->others;
    struct call_memory memory;
    if (!allocate_call(job->group->ranks[rank], &call, rank, n, false, &memory)) abort();
    fill_call(&call, &memory, rank, n, 2);
    const trireme_status status =
        run_call(job->group->ranks[rank], &call, &memory, job->started, LONG_NS);
    const bool as_expected =
        EXPECT_STATUS(v, job->expected, status) &&
        (status != TRIREME_OK || EXPECT(v, is_call_right(&call, &memory, rank, n, 2))) &&
        (status == TRIREME_OK || job->says == NULL ||
         EXPECT(v, strstr(trireme_last_error(), job->says) != NULL));
    if (!as_expected) {
        const size_t length = strlen(v->text);
        snprintf(v->text + length, sizeof v->text - length, " [%s, count %llu, others %s]",
                 operation_text(call.operation), (unsigned long long)call.count,
                 trireme_algorithm_name(job->others));
    }
    free_call(&memory, false);
}

/* Rank 0 asks for no algorithm, the others for this one. */
static void expect_call(struct group *group, trireme_operation_kind operation, uint64_t count,
                        trireme_algorithm others, trireme_status expected, const char *says) {
    struct job job = {.group = group,
                      .call = call_of(operation, count),
                      .others = others,
                      .expected = expected,
                      .says = says};
    run_threads(group->n, run_one, &job);
    assert_verdicts(job.verdicts, group->n);
}

/* ---- every rule gives right results ---- */

static void run_everything(int rank, void *context) {
    struct job *const job = context;
    static const uint64_t counts[] = {0, 1, 5, 3001, 20011};
    for (size_t i = 0; i < COUNT_OF(all_tuned) * COUNT_OF(counts); ++i) {
        const struct tuned *const tuned = &all_tuned[i % COUNT_OF(all_tuned)];
        for (int v = 0; v < (tuned->v_form != 0 ? 2 : 1); ++v) {
            struct job one = *job;
            one.call =
                call_of(v == 0 ? tuned->operation : tuned->v_form, counts[i / COUNT_OF(all_tuned)]);
            one.call.root = has_root(one.call.operation) ? (int)(i % (size_t)job->group->n) : 0;
            one.call.flags = i % 2 == 0 ? TRIREME_OPERATION_FLAG_REPRODUCIBLE : 0;
            one.started = i % 3 == 0;
            run_one(rank, &one);
            if (one.verdicts[rank].text[0] != 0) job->verdicts[rank] = one.verdicts[rank];
        }
    }
}

static void every_rule_is_right(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 3, 4, 5, 8};
    for (size_t p = 0; p < COUNT_OF(places); ++p) {
        for (size_t s = 0; s < COUNT_OF(sizes); ++s) {
            const int n = sizes[s];
            if (is_quick() && n > 4) continue;
            char backend[128], text[TEXT];
            backend_of(places[p], n, backend, sizeof backend);
            for (trireme_algorithm a = FIRST_ALGORITHM; a <= TRIREME_ALGORITHM_NATIVE; ++a) {
                begin_table(text, n, backend);
                for (size_t i = 0; i < COUNT_OF(all_tuned); ++i) {
                    if (has(&all_tuned[i], a)) add_rule(text, all_tuned[i].operation, 0, a);
                }
                use_table(text);
                struct group group = join_all(places[p], n);
                struct job job = {.group = &group, .expected = TRIREME_OK};
                run_threads(n, run_everything, &job);
                run_threads(n, leave, &group);
                assert_verdicts(job.verdicts, n);
            }
        }
    }
    use_table(NULL);
}

/* ---- the table decides ---- */

static void the_rule_is_what_runs(void **state) {
    (void)state;
    for (size_t p = 0; p < COUNT_OF(places); ++p) {
        const int n = 4;
        char backend[128], text[TEXT];
        backend_of(places[p], n, backend, sizeof backend);
        for (size_t i = 0; i < COUNT_OF(all_tuned); ++i) {
            const struct tuned *const tuned = &all_tuned[i];
            for (size_t a = 0; a < COUNT_OF(tuned->algorithms) && tuned->algorithms[a] != 0; ++a) {
                const trireme_algorithm ruled = tuned->algorithms[a];
                const trireme_algorithm other = tuned->algorithms[a == 0 ? 1 : 0];
                begin_table(text, n, backend);
                add_rule(text, tuned->operation, 0, ruled);
                use_table(text);
                struct group group = join_all(places[p], n);
                const uint64_t count = (i + a) % 2 == 0 ? 3 : 3001;
                expect_call(&group, tuned->operation, count, ruled, TRIREME_OK, NULL);
                expect_call(&group, tuned->operation, 3004 - count, ruled, TRIREME_OK, NULL);
                if (tuned->v_form != 0) {
                    expect_call(&group, tuned->v_form, count, ruled, TRIREME_OK, NULL);
                }
                expect_call(&group, tuned->operation, count, other, TRIREME_ERROR_MISMATCH,
                            "with different algorithms");
                run_threads(n, leave, &group);
            }
        }
    }
    use_table(NULL);
}

/* Between hosts an operation below the built-in bound goes by the hosts, or one above it does not.
 */
static void hosts_are_used_or_not(void **state) {
    (void)state;
    char backend[128], text[TEXT];
    backend_of(&over_hosts, 4, backend, sizeof backend);
    assert_string_equal(backend, "hierarchical (2 hosts x 2)");
    begin_table(text, 4, backend);
    add_rule(text, TRIREME_OPERATION_KIND_ALL_REDUCE, 4, TRIREME_ALGORITHM_NATIVE);
    add_rule(text, TRIREME_OPERATION_KIND_ALL_REDUCE, 4 << 20, TRIREME_ALGORITHM_RING);
    /* A gather is not made by hosts: the rule has no effect. */
    add_rule(text, TRIREME_OPERATION_KIND_GATHER, 4, TRIREME_ALGORITHM_NATIVE);
    use_table(text);
    struct group group = join_all(&over_hosts, 4);
    expect_call(&group, TRIREME_OPERATION_KIND_ALL_REDUCE, 1, TRIREME_ALGORITHM_NATIVE, TRIREME_OK,
                NULL);
    expect_call(&group, TRIREME_OPERATION_KIND_ALL_REDUCE, (1 << 20) - 1, TRIREME_ALGORITHM_NATIVE,
                TRIREME_OK, NULL);
    expect_call(&group, TRIREME_OPERATION_KIND_ALL_REDUCE, 1 << 20, TRIREME_ALGORITHM_RING,
                TRIREME_OK, NULL);
    expect_call(&group, TRIREME_OPERATION_KIND_GATHER, 20000, 0, TRIREME_OK, NULL);
    expect_call(&group, TRIREME_OPERATION_KIND_ALL_REDUCE, 1, TRIREME_ALGORITHM_RING,
                TRIREME_ERROR_MISMATCH, "algorithms");
    run_threads(4, leave, &group);
    use_table(NULL);
}

/* The bytes of a rule are those of all blocks together, and it begins exactly there. */
static void a_rule_begins_at_its_bytes(void **state) {
    (void)state;
    for (size_t p = 0; p < 2; ++p) {
        const int n = 3;
        char backend[128], text[TEXT];
        backend_of(places[p], n, backend, sizeof backend);
        begin_table(text, n, backend);
        add_rule(text, TRIREME_OPERATION_KIND_ALL_REDUCE, 4000, TRIREME_ALGORITHM_RING);
        add_rule(text, TRIREME_OPERATION_KIND_ALL_REDUCE, 8000, TRIREME_ALGORITHM_DOUBLE_TREE);
        add_rule(text, TRIREME_OPERATION_KIND_ALL_REDUCE, 9000, TRIREME_ALGORITHM_AUTOMATIC);
        add_rule(text, TRIREME_OPERATION_KIND_ALL_GATHER, 12 * 500, TRIREME_ALGORITHM_BRUCK);
        static const struct {
            trireme_operation_kind operation;
            uint64_t count;
            trireme_algorithm runs; /* 0: none by name */
        } calls[] = {
            {TRIREME_OPERATION_KIND_ALL_REDUCE, 999, 0},
            {TRIREME_OPERATION_KIND_ALL_REDUCE, 1000, TRIREME_ALGORITHM_RING},
            {TRIREME_OPERATION_KIND_ALL_REDUCE, 1999, TRIREME_ALGORITHM_RING},
            {TRIREME_OPERATION_KIND_ALL_REDUCE, 2000, TRIREME_ALGORITHM_DOUBLE_TREE},
            {TRIREME_OPERATION_KIND_ALL_REDUCE, 2249, TRIREME_ALGORITHM_DOUBLE_TREE},
            {TRIREME_OPERATION_KIND_ALL_REDUCE, 2250, 0},
            {TRIREME_OPERATION_KIND_ALL_GATHER, 499, 0},
            {TRIREME_OPERATION_KIND_ALL_GATHER, 500, TRIREME_ALGORITHM_BRUCK},
        };
        for (size_t i = 0; i < COUNT_OF(calls); ++i) {
            use_table(text);
            struct group group = join_all(places[p], n);
            if (calls[i].runs != 0) {
                expect_call(&group, calls[i].operation, calls[i].count, calls[i].runs, TRIREME_OK,
                            NULL);
            } else {
                expect_call(&group, calls[i].operation, calls[i].count, 0, TRIREME_OK, NULL);
                expect_call(&group, calls[i].operation, calls[i].count, TRIREME_ALGORITHM_RING,
                            TRIREME_ERROR_MISMATCH, "algorithms");
            }
            run_threads(n, leave, &group);
        }
    }
    use_table(NULL);
}

/* Rules for more ranks, for another backend, and "automatic" change nothing. */
static void rules_of_other_groups_are_left_alone(void **state) {
    (void)state;
    char backend[128], text[TEXT];
    for (size_t p = 0; p < 2; ++p) {
        backend_of(places[p], 3, backend, sizeof backend);
        for (int kind = 0; kind < 3; ++kind) {
            begin_table(text, kind == 0 ? 4 : 3, kind == 1 ? "gloo (tcp)" : backend);
            add_rule(text, TRIREME_OPERATION_KIND_ALL_REDUCE, 0,
                     kind == 2 ? TRIREME_ALGORITHM_AUTOMATIC : TRIREME_ALGORITHM_RING);
            use_table(text);
            struct group group = join_all(places[p], 3);
            expect_call(&group, TRIREME_OPERATION_KIND_ALL_REDUCE, 3001, 0, TRIREME_OK, NULL);
            expect_call(&group, TRIREME_OPERATION_KIND_ALL_REDUCE, 3001, TRIREME_ALGORITHM_RING,
                        TRIREME_ERROR_MISMATCH, "algorithms");
            run_threads(3, leave, &group);
        }
    }
    use_table(NULL);
}

struct traffic {
    struct group *group;
    trireme_algorithm algorithm;
    uint64_t sent[MOST_RANKS];
    struct verdict verdicts[MOST_RANKS];
};

static uint64_t sent_by(trireme_communicator *communicator) {
    trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    if (trireme_communicator_get_statistics(communicator, &statistics) != TRIREME_OK) abort();
    return statistics.sent_bytes;
}

static void count_bytes(int rank, void *context) {
    struct traffic *const traffic = context;
    struct verdict *const v = &traffic->verdicts[rank];
    trireme_communicator *const communicator = traffic->group->ranks[rank];
    static float zeros[50000];
    float *const sums = malloc(sizeof zeros);
    if (sums == NULL) abort();
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, &options));
    const uint64_t before = sent_by(communicator);
    options.algorithm = traffic->algorithm;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_all_reduce(communicator, zeros, sums, 50000, F32, SUM, &options));
    traffic->sent[rank] = sent_by(communicator) - before;
    free(sums);
}

/* Of 4 ranks each sends all to 3 others directly, but 1.5 times as much in a ring. */
static void an_algorithm_by_name_wins(void **state) {
    (void)state;
    const uint64_t bytes = 50000 * sizeof(float);
    char backend[128], text[TEXT];
    backend_of(&over_frames, 4, backend, sizeof backend);
    begin_table(text, 4, backend);
    add_rule(text, TRIREME_OPERATION_KIND_ALL_REDUCE, 0, TRIREME_ALGORITHM_DIRECT);
    for (int named = 0; named < 2; ++named) {
        use_table(text);
        struct group group = join_all(&over_frames, 4);
        struct traffic traffic = {.group = &group, .algorithm = named ? TRIREME_ALGORITHM_RING : 0};
        run_threads(4, count_bytes, &traffic);
        run_threads(4, leave, &group);
        assert_verdicts(traffic.verdicts, 4);
        for (int rank = 0; rank < 4; ++rank) {
            if (named) {
                assert_in_range(traffic.sent[rank], bytes, 2 * bytes);
            } else {
                assert_in_range(traffic.sent[rank], 3 * bytes, 4 * bytes);
            }
        }
    }
    use_table(NULL);
}

/* ---- ranks with other tables ---- */

/* A call with a wire dtype compares no tables. */
static void call_narrow(int rank, void *context) {
    struct job *const job = context;
    float sum = (float)rank;
    trireme_operation_options options = {.struct_size = sizeof options, .wire_dtype = BF16};
    EXPECT_STATUS(&job->verdicts[rank], TRIREME_OK,
                  trireme_all_reduce(job->group->ranks[rank], &sum, &sum, 1, F32, SUM, &options));
    EXPECT(&job->verdicts[rank], sum == 6);
}

static void start_barrier(int rank, void *context) {
    struct job *const job = context;
    run_one(rank, job);
    /* And for good. */
    EXPECT_STATUS(&job->verdicts[rank], TRIREME_ERROR_MISMATCH,
                  trireme_barrier(job->group->ranks[rank], NULL));
}

static void other_tables_are_a_mismatch(void **state) {
    (void)state;
    static const struct {
        trireme_operation_kind operation;
        uint64_t count;
        bool started;
    } firsts[] = {{TRIREME_OPERATION_KIND_ALL_REDUCE, 1, false},
                  {TRIREME_OPERATION_KIND_ALL_REDUCE, 30001, false},
                  {TRIREME_OPERATION_KIND_BROADCAST, 30001, true},
                  {TRIREME_OPERATION_KIND_ALL_TO_ALL_V, 7, false},
                  {TRIREME_OPERATION_KIND_BARRIER, 0, true},
                  {TRIREME_OPERATION_KIND_BARRIER, 0, false}};
    char backend[128], one[TEXT], other[TEXT];
    for (size_t p = 0; p < COUNT_OF(places); ++p) {
        backend_of(places[p], 4, backend, sizeof backend);
        /* A rule for another group, so that no algorithm of this one differs. Then rules that do.
         */
        for (int kind = 0; kind < 3; ++kind) {
            begin_table(one, 4, backend);
            begin_table(other, 4, backend);
            if (kind == 0) strcat(one, "group 2 local (threads)\n");
            if (kind == 1) {
                for (size_t i = 0; i < COUNT_OF(all_tuned); ++i) {
                    add_rule(one, all_tuned[i].operation, 0, all_tuned[i].algorithms[0]);
                    add_rule(other, all_tuned[i].operation, 0, all_tuned[i].algorithms[1]);
                }
            }
            const char *const without = kind == 2 ? NULL : other;
            for (size_t f = 0; f < COUNT_OF(firsts); ++f) {
                for (int odd = 0; odd < 4; odd += 3) { /* the rank whose table is the other one */
                    struct group group = new_group(places[p], 4);
                    for (int rank = 0; rank < 4; ++rank) {
                        use_table(rank == odd ? without : one);
                        assert_int_equal(join(places[p], &group, rank), TRIREME_OK);
                    }
                    struct job job = {.group = &group,
                                      .call = call_of(firsts[f].operation, firsts[f].count),
                                      .started = firsts[f].started,
                                      .expected = TRIREME_ERROR_MISMATCH,
                                      .says = "different tuning tables (TRIREME_TUNING)"};
                    if (kind == 0 && odd == 3) run_threads(4, call_narrow, &job);
                    run_threads(4, start_barrier, &job);
                    run_threads(4, leave, &group);
                    assert_verdicts(job.verdicts, 4);
                }
            }
        }
    }
    use_table(NULL);
}

/* A comment does not count, nor the place of the file. */
static void comments_are_no_difference(void **state) {
    (void)state;
    char text[TEXT];
    struct group group = new_group(&threads_here, 2);
    use_table("trireme tuning 1\ngroup 2 local (threads)\nbroadcast 8 binomial # one\n");
    assert_int_equal(join(&threads_here, &group, 0), TRIREME_OK);
    snprintf(text, sizeof text, "%s/link", folder);
    use_table("trireme tuning 1\n# two\n\n group  2  local (threads)\nbroadcast 8  binomial");
    assert_int_equal(symlink(table_path(), text), 0);
    setenv("TRIREME_TUNING", text, 1);
    assert_int_equal(join(&threads_here, &group, 1), TRIREME_OK);
    expect_call(&group, TRIREME_OPERATION_KIND_BROADCAST, 100, TRIREME_ALGORITHM_BINOMIAL,
                TRIREME_OK, NULL);
    run_threads(2, leave, &group);
    unlink(text);
    use_table(NULL);
}

/* ---- groups made from a group ---- */

struct family {
    struct group *parents;
    struct group *children;
    struct verdict verdicts[MOST_RANKS];
};

static void make_child(int rank, void *context) {
    struct family *const family = context;
    EXPECT_STATUS(&family->verdicts[rank], TRIREME_OK,
                  trireme_communicator_duplicate(family->parents->ranks[rank], NULL,
                                                 &family->children->ranks[rank]));
}

/* The file and the variable are gone by then. */
static void children_have_their_parents_table(void **state) {
    (void)state;
    char backend[128], text[TEXT];
    for (size_t p = 0; p < COUNT_OF(places); ++p) {
        backend_of(places[p], 4, backend, sizeof backend);
        begin_table(text, 4, backend);
        add_rule(text, TRIREME_OPERATION_KIND_BROADCAST, 0, TRIREME_ALGORITHM_DOUBLE_TREE);
        use_table(text);
        struct group group = join_all(places[p], 4), children = {.n = 4};
        use_table(NULL);
        struct family family = {.parents = &group, .children = &children};
        run_threads(4, make_child, &family);
        assert_verdicts(family.verdicts, 4);
        expect_call(&children, TRIREME_OPERATION_KIND_BROADCAST, 9, TRIREME_ALGORITHM_DOUBLE_TREE,
                    TRIREME_OK, NULL);
        expect_call(&group, TRIREME_OPERATION_KIND_BROADCAST, 9, TRIREME_ALGORITHM_DOUBLE_TREE,
                    TRIREME_OK, NULL);
        run_threads(4, leave, &children);
        run_threads(4, leave, &group);
    }
}

/* ---- bits ---- */

enum { PARAMETERS = 60000, RANKS = 4 };

struct bits {
    struct group *group;
    uint32_t flags; /* of the sum */
    float *parameters[RANKS];
    float *sums[RANKS];
    struct verdict verdicts[RANKS];
};

/* Their sum depends on the order. */
static float term(int rank, size_t index) {
    static const float terms[RANKS] = {1e8f, 0.37f, -1e8f, 0.61f};
    return terms[((size_t)rank + index) % RANKS] * (1 + (float)(index % 17) / 16);
}

static void train(int rank, void *context) {
    struct bits *const bits = context;
    struct verdict *const v = &bits->verdicts[rank];
    trireme_communicator *const communicator = bits->group->ranks[rank];
    float *const gradients = malloc(PARAMETERS * sizeof(float));
    bits->parameters[rank] = calloc(PARAMETERS, sizeof(float));
    bits->sums[rank] = calloc(PARAMETERS, sizeof(float));
    if (gradients == NULL || bits->parameters[rank] == NULL || bits->sums[rank] == NULL) abort();
    for (size_t i = 0; i < PARAMETERS; ++i) gradients[i] = term(rank, i);
    trireme_operation_options operation = TRIREME_OPERATION_OPTIONS_INIT;
    operation.flags = bits->flags;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_all_reduce(communicator, gradients, bits->sums[rank], PARAMETERS, F32,
                                     SUM, &operation));
    for (int sharded = 0; sharded < 2; ++sharded) {
        trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
        options.strategy = sharded ? TRIREME_STRATEGY_ZERO3 : TRIREME_STRATEGY_DATA_PARALLEL;
        trireme_model *model = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
        const uint64_t shape = PARAMETERS;
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = "weights";
        parameter.dtype = F32;
        parameter.dimensions = 1;
        parameter.shape = &shape;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
        trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
        rule.kind = TRIREME_RULE_SGD;
        rule.learning_rate = 1;
        trireme_optimizer *optimizer = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
        for (int step = 0; step < 2; ++step) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_accumulate_flat(model, gradients, PARAMETERS, F32, 0));
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        }
        float *const all = malloc(PARAMETERS * sizeof(float));
        if (all == NULL) abort();
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, all, PARAMETERS, F32));
        for (size_t i = 0; i < PARAMETERS; ++i) {
            bits->parameters[rank][i] = sharded ? bits->parameters[rank][i] * 3 + all[i] : all[i];
        }
        free(all);
        trireme_optimizer_destroy(optimizer);
        trireme_model_destroy(model);
    }
    free(gradients);
}

static struct bits trained(const struct place *place, const char *text, uint32_t flags) {
    use_table(text);
    struct group group = join_all(place, RANKS);
    struct bits bits = {.group = &group, .flags = flags};
    run_threads(RANKS, train, &bits);
    run_threads(RANKS, leave, &group);
    assert_verdicts(bits.verdicts, RANKS);
    for (int rank = 1; rank < RANKS; ++rank) {
        assert_memory_equal(bits.parameters[rank], bits.parameters[0], PARAMETERS * sizeof(float));
        assert_memory_equal(bits.sums[rank], bits.sums[0], PARAMETERS * sizeof(float));
    }
    return bits;
}

static void free_bits(struct bits *bits) {
    for (int rank = 0; rank < RANKS; ++rank) {
        free(bits->parameters[rank]);
        free(bits->sums[rank]);
    }
}

static void models_keep_their_bits(void **state) {
    (void)state;
    char backend[128], text[TEXT];
    for (size_t p = 0; p < COUNT_OF(places); ++p) {
        backend_of(places[p], RANKS, backend, sizeof backend);
        for (int last = 0; last < 2; ++last) {
            begin_table(text, RANKS, backend);
            for (size_t i = 0; i < COUNT_OF(all_tuned); ++i) {
                int a = 1;
                while (last && a < 4 && all_tuned[i].algorithms[a + 1] != 0) ++a;
                add_rule(text, all_tuned[i].operation, 0, all_tuned[i].algorithms[a]);
            }
            struct bits plain = trained(places[p], NULL, 0);
            struct bits tuned = trained(places[p], text, 0);
            struct bits ordered = trained(places[p], text, TRIREME_OPERATION_FLAG_REPRODUCIBLE);
            struct bits plainly_ordered =
                trained(places[p], NULL, TRIREME_OPERATION_FLAG_REPRODUCIBLE);
            const size_t size = PARAMETERS * sizeof(float);
            assert_memory_equal(tuned.parameters[0], plain.parameters[0], size);
            assert_memory_equal(ordered.sums[0], plainly_ordered.sums[0], size);
            /* The same addends in another order have other bits, so the test can see one. */
            if (p == 0) assert_memory_not_equal(tuned.sums[0], plain.sums[0], size);
            free_bits(&plain);
            free_bits(&tuned);
            free_bits(&ordered);
            free_bits(&plainly_ordered);
        }
    }
    use_table(NULL);
}

/* ---- tables that cannot be used ---- */

static void expect_refusal(const char *path, const char *words, const char *more) {
    setenv("TRIREME_TUNING", path, 1);
    struct group group = new_group(&threads_here, 1);
    assert_int_equal(join(&threads_here, &group, 0), TRIREME_ERROR_INVALID_ARGUMENT);
    const char *const said = trireme_last_error();
    if (strstr(said, path) == NULL || strstr(said, "TRIREME_TUNING") == NULL ||
        strstr(said, words) == NULL || strstr(said, more) == NULL) {
        fail_msg("not \"%s\" and \"%s\": %s", words, more, said);
    }
    unsetenv("TRIREME_TUNING");
}

static void refuse_text(const char *text, const char *words, const char *more) {
    use_table(text);
    expect_refusal(table_path(), words, more);
}

static void bad_tables_are_refused(void **state) {
    (void)state;
    char path[96];
    snprintf(path, sizeof path, "%s/none", folder);
    expect_refusal(path, "cannot be read", "No such file");
    snprintf(path, sizeof path, "%s/table/none", folder);
    expect_refusal(path, "cannot be read", "No such file");
    expect_refusal(folder, "no regular file", "");
    expect_refusal("/dev/null", "no regular file", "");
    snprintf(path, sizeof path, "%s/pipe", folder); /* it has no writer */
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refusal(path, "no regular file", "");
    unlink(path);

    char *const text = malloc(70000);
    if (text == NULL) abort();
    memset(text, '\n', 70000);
    text[69999] = 0;
    refuse_text(text, "longer than 65536 bytes", "");
    memcpy(text, "trireme tuning 1\n", 17);
    refuse_text(text, "longer than 65536 bytes", "");
    text[65537] = 0;
    refuse_text(text, "longer than 65536 bytes", "");
    free(text);

    refuse_text("", "empty", "");
    refuse_text("trireme tuning 2\n", "line 1", "\"trireme tuning 2\"");
    refuse_text("trireme tuning 1\n\nall_reduce 8 ring\n", "line 3", "before the first group");
#define G "trireme tuning 1\ngroup 1 local (threads)\n"
    refuse_text(G "all_scatter 8 ring\n", "line 3", "\"all_scatter\" is no operation");
    refuse_text(G "all_reduce 8 magic\n", "line 3", "\"magic\" is no algorithm of all_reduce");
    refuse_text(G "all_reduce 8 pairwise\n", "line 3", "direct, ring, halving_doubling");
    refuse_text(G "all_reduce eight ring\n", "line 3", "\"eight\" is no number of bytes");
    refuse_text(G "all_reduce 8 ring\nall_reduce 8 direct\n", "line 4", "upwards");
    refuse_text(G "all_reduce 16 ring\nall_reduce 8 direct\n", "line 4", "upwards");
    refuse_text(G "all_reduce 8 ring direct\n", "line 3", "\"direct\" stands behind");
    refuse_text(G "group 1 local (threads)\n", "line 3", "already");
    refuse_text(G "group 1025 local (threads)\n", "line 3", "\"1025\"");

    /* A good one, and none: an empty variable counts as none. */
    use_table(G "all_reduce 8 ring\n");
    struct group group = join_all(&threads_here, 1);
    run_threads(1, leave, &group);
    setenv("TRIREME_TUNING", "", 1);
    group = join_all(&threads_here, 1);
    run_threads(1, leave, &group);
    use_table(NULL);
}

static int remove_folder(void **state) {
    (void)state;
    use_table(NULL);
    return rmdir(folder);
}

int main(void) {
    setenv("TRIREME_TOKEN", "a token for the tests of tuning tables", 1);
    if (mkdtemp(folder) == NULL) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_is_right),
        cmocka_unit_test(the_rule_is_what_runs),
        cmocka_unit_test(hosts_are_used_or_not),
        cmocka_unit_test(a_rule_begins_at_its_bytes),
        cmocka_unit_test(rules_of_other_groups_are_left_alone),
        cmocka_unit_test(an_algorithm_by_name_wins),
        cmocka_unit_test(other_tables_are_a_mismatch),
        cmocka_unit_test(comments_are_no_difference),
        cmocka_unit_test(children_have_their_parents_table),
        cmocka_unit_test(models_keep_their_bits),
        cmocka_unit_test(bad_tables_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, remove_folder);
}
