/*
 * The state of training: ranges that hold every element once over all ranks, and saving and loading
 * in the middle, which must change no bit; foreign state must be refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <options.h>
#include <ranks.h>

enum { MOST_RANKS = 4, ELEMENTS = 32, STEPS = 4, SAVED_AT = 2, PARTS = 3 };
#define F32 TRIREME_DTYPE_F32

struct job {
    trireme_strategy strategy;
    int world_size;
    bool shared;
    int kind;
    float uninterrupted[MOST_RANKS][ELEMENTS];
    float resumed[MOST_RANKS][ELEMENTS];
    void *parts[MOST_RANKS]; /* each rank's saved state */
    uint64_t bytes[MOST_RANKS];
    int seen[PARTS][ELEMENTS]; /* how often an element was in a range: of p, of m, of v */
    struct verdict verdicts[MOST_RANKS];
};

/* 7 + 3 frozen, 5, 17 elements in three units. */
static trireme_model *make(struct verdict *v, const struct job *job,
                           trireme_communicator *communicator, uint64_t bucket_bytes) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = bucket_bytes;
    options.unused = TRIREME_UNUSED_SKIP;
    shards_of(&options)->share = job->shared ? TRIREME_SHARE_ALWAYS : TRIREME_SHARE_NEVER;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        shards_of(&options)->ranks = (uint32_t)job->world_size / 2;
    }
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    const uint64_t counts[] = {7, 3, 5, 17};
    const char *const names[] = {"a", "frozen", "b", "c"};
    for (int i = 0; i < 4; ++i) {
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = names[i];
        parameter.unit = i < 2 ? "first" : NULL;
        parameter.dtype = F32;
        parameter.dimensions = 1;
        parameter.shape = &counts[i];
        parameter.flags = i == 1 ? TRIREME_PARAMETER_FLAG_FROZEN : 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static trireme_optimizer *adamw(struct verdict *v, trireme_model *model, double rate) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_ADAMW;
    options.learning_rate = rate;
    options.weight_decay = 0.1;
    clipping_of(&options)->max_norm = 3;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    return optimizer;
}

static void set_start(struct verdict *v, trireme_model *model) {
    float start[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) start[i] = (float)(i % 7) - 3;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, start, ELEMENTS, F32, 0));
}

/* "b" has no gradient in step 1, so its steps count otherwise. */
static void train_step(struct verdict *v, trireme_model *model, trireme_optimizer *optimizer,
                       int rank, int step) {
    const uint64_t counts[] = {7, 3, 5, 17};
    float g[17];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    for (int p = 3; p >= 0; --p) {
        if (p == 1 || (p == 2 && step == 1)) continue;
        for (int i = 0; i < 17; ++i) g[i] = (float)((i * 3 + step * 5 + rank * 7 + p) % 11) - 4.5f;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, (uint64_t)p, g, counts[p], F32));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_learning_rate(optimizer, 0.1 / (1 + step)));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
}

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static void free_parts(struct job *job) {
    for (int rank = 0; rank < MOST_RANKS; ++rank) free(job->parts[rank]);
    memset(job->parts, 0, sizeof job->parts);
}

static void run_job(struct job *job, rank_function *function) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(job->world_size, function, job);
    assert_verdicts(job->verdicts, job->world_size);
}

/* Calls `body` for every strategy, with and without one copy for all. */
static void for_each_spread(int world_size, void (*body)(struct job *job)) {
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        for (int shared = 0; shared < 2; ++shared) {
            const bool hybrid = strategy == TRIREME_STRATEGY_HYBRID_SHARD;
            if (hybrid && world_size % 2 != 0) continue;
            if (shared && (ranks_use_transport() || strategy == TRIREME_STRATEGY_DATA_PARALLEL)) {
                continue;
            }
            struct job *const job = calloc(1, sizeof *job);
            if (job == NULL) abort();
            job->strategy = strategy;
            job->world_size = world_size;
            job->shared = shared;
            body(job);
            free_parts(job);
            free(job);
        }
    }
}

/* ---- ranges ---- */

static void list_ranges(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, job, communicator, 0);
    set_start(v, model);
    trireme_optimizer *const optimizer = adamw(v, model, 0.1);
    train_step(v, model, optimizer, rank, 0);
    float values[ELEMENTS];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, ELEMENTS, F32));
    uint64_t count = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &count));
    const uint64_t first_of[] = {0, 7, 10, 15}, counts[] = {7, 3, 5, 17};
    const char *const names[] = {"a", "frozen", "b", "c"};
    uint64_t before[4] = {0}; /* kind, vector, parameter, first */
    for (uint64_t i = 0; i < count; ++i) {
        trireme_state_range range = TRIREME_STATE_RANGE_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, i, &range));
        if (!EXPECT(v, range.parameter < 4 && range.count > 0)) break;
        const uint64_t p = range.parameter;
        const uint64_t key[4] = {(uint64_t)range.kind, range.vector, p, range.first + 1};
        int differs = 0;
        while (differs < 3 && key[differs] == before[differs]) ++differs;
        EXPECT(v, key[differs] > before[differs]); /* in order */
        memcpy(before, key, sizeof before);
        EXPECT(v, strcmp(range.name, names[p]) == 0 && range.dtype == F32);
        EXPECT(v, range.dimensions == 1 && range.shape[0] == counts[p]);
        if (!EXPECT(v, range.first + range.count <= counts[p])) break;
        const bool state = range.kind == TRIREME_STATE_KIND_OPTIMIZER;
        EXPECT(v, state || (range.kind == TRIREME_STATE_KIND_PARAMETER && range.vector == 0));
        if (!EXPECT(v, range.vector < 2)) break;
        for (uint64_t k = 0; k < range.count; ++k) {
            const uint64_t at = first_of[p] + range.first + k;
            __atomic_add_fetch(&job->seen[state ? 1 + range.vector : 0][at], 1, __ATOMIC_RELAXED);
            const float found = ((float *)range.data)[k];
            EXPECT(v, state ? p != 1 : found == values[at]);
            EXPECT(v, !state || range.vector == 0 || found >= 0); /* v adds squares */
        }
    }
    trireme_state_range range = TRIREME_STATE_RANGE_INIT;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_get_range(optimizer, count, &range));
    EXPECT(v, range.count == 0);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_get_range(optimizer, 0, NULL));
    range.struct_size = 71;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_get_range(optimizer, 0, &range));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_get_range_count(optimizer, NULL));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void list_and_count(struct job *job) {
    run_job(job, list_ranges);
    for (int i = 0; i < ELEMENTS; ++i) {
        const bool frozen = i >= 7 && i < 10;
        assert_int_equal(job->seen[0][i], 1);
        assert_int_equal(job->seen[1][i], frozen ? 0 : 1);
        assert_int_equal(job->seen[2][i], frozen ? 0 : 1);
    }
}

static void ranges_hold_every_element_once(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 4; ++world_size) {
        for_each_spread(world_size, list_and_count);
    }
}

/* ---- saving and loading ---- */

static void train_and_save(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, job, communicator, 0);
    set_start(v, model);
    trireme_optimizer *const optimizer = adamw(v, model, 0.1);
    for (int step = 0; step < STEPS; ++step) {
        if (step == SAVED_AT) {
            uint64_t bytes = 0, written = 0;
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
            trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
            /* A header of 104 bytes, 8 for each parameter that can be skipped, and the rank's
             * state. */
            EXPECT(v, bytes == 104 + 8 * 4 + memory.allocated_parameters +
                                   memory.allocated_optimizer_state);
            job->parts[rank] = malloc(bytes);
            job->bytes[rank] = bytes;
            if (job->parts[rank] == NULL) abort();
            EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                          trireme_optimizer_save(optimizer, job->parts[rank], bytes - 1, &written));
            EXPECT(v, says("capacity") && written == 0);
            EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                          trireme_optimizer_save(optimizer, NULL, bytes, &written));
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_save(optimizer, job->parts[rank], bytes, &written));
            EXPECT(v, written == bytes);
        }
        train_step(v, model, optimizer, rank, step);
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, job->uninterrupted[rank], ELEMENTS, F32));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void load_and_train(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, job, communicator, 0);
    trireme_optimizer *const optimizer = adamw(v, model, 7);
    if (job->kind == 1) train_step(v, model, optimizer, rank, 3); /* of this nothing is left */
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_optimizer_load(optimizer, job->parts[rank], job->bytes[rank]));
    uint64_t steps = 0;
    double rate = 0, norm = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_step_count(optimizer, &steps));
    EXPECT(v, steps == SAVED_AT);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_learning_rate(optimizer, &rate));
    EXPECT(v, rate == 0.1 / SAVED_AT);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_gradient_norm(optimizer, &norm));
    EXPECT(v, norm > 0);
    for (int step = SAVED_AT; step < STEPS; ++step) train_step(v, model, optimizer, rank, step);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, job->resumed[rank], ELEMENTS, F32));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void save_and_resume(struct job *job) {
    run_job(job, train_and_save);
    for (job->kind = 0; job->kind < 2; ++job->kind) {
        run_job(job, load_and_train);
        assert_memory_equal(job->resumed, job->uninterrupted, sizeof job->resumed);
    }
}

static void a_training_that_is_resumed_has_the_same_bits(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 4; ++world_size) {
        for_each_spread(world_size, save_and_resume);
    }
}

/* ---- what must not get in ---- */

static trireme_status
load_copy(trireme_optimizer *optimizer, const void *part, uint64_t bytes, uint64_t flipped) {
    unsigned char *const copy = malloc(bytes > 0 ? bytes : 1);
    if (copy == NULL) abort();
    memcpy(copy, part, bytes);
    if (flipped < bytes * 8) copy[flipped / 8] ^= (unsigned char)(1u << flipped % 8);
    const trireme_status status = trireme_optimizer_load(optimizer, copy, bytes);
    free(copy);
    return status;
}

/* Of rank 1 each bit is wrong in turn, and each length; all ranks refuse, and nothing changes. */
static void load_damaged(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, job, communicator, 0);
    set_start(v, model);
    trireme_optimizer *const optimizer = adamw(v, model, 0.1);
    float before[ELEMENTS], after[ELEMENTS];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, before, ELEMENTS, F32));
    const uint64_t bits = job->bytes[1] * 8;
    for (uint64_t bit = 0; bit < bits; bit += bit < 104 * 8 ? 1 : 37) {
        const trireme_status status =
            load_copy(optimizer, job->parts[rank], job->bytes[rank], rank == 1 ? bit : UINT64_MAX);
        EXPECT(v, status == TRIREME_ERROR_CORRUPT || status == TRIREME_ERROR_UNSUPPORTED);
        EXPECT(v, rank == 1 || says("rank 1 answered"));
    }
    for (uint64_t bytes = 0; bytes < job->bytes[1]; bytes += bytes < 110 ? 1 : 13) {
        EXPECT_STATUS(v, TRIREME_ERROR_CORRUPT,
                      load_copy(optimizer, job->parts[rank], rank == 1 ? bytes : job->bytes[rank],
                                UINT64_MAX));
    }
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_load(optimizer, rank == 1 ? NULL : job->parts[rank],
                                         job->bytes[rank]));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, after, ELEMENTS, F32));
    EXPECT(v, memcmp(before, after, sizeof before) == 0);
    uint64_t steps = 77;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_step_count(optimizer, &steps));
    EXPECT(v, steps == 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_load(optimizer, job->parts[rank], job->bytes[rank]));
    uint64_t written = 0;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_save(optimizer, after, sizeof after, &written));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_discard_gradients(model));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_optimizer_load(optimizer, job->parts[rank], job->bytes[rank]));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void save_and_damage(struct job *job) {
    run_job(job, train_and_save);
    run_job(job, load_damaged);
}

static void damaged_state_is_refused_by_all(void **state) {
    (void)state;
    for_each_spread(2, save_and_damage);
}

enum { OTHER_RANK, OTHER_WORLD, OTHER_STRATEGY, OTHER_BUCKETS, OTHER_RULE, OTHER_STEP, KINDS };

static void load_of_another(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    struct job here = *job;
    if (job->kind == OTHER_STRATEGY) here.strategy = TRIREME_STRATEGY_ZERO2;
    const uint64_t buckets = job->kind == OTHER_BUCKETS ? 1 : 0;
    trireme_model *const model = make(v, &here, communicator, buckets);
    trireme_optimizer *optimizer = NULL;
    if (job->kind == OTHER_RULE) {
        trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
        options.kind = TRIREME_RULE_ADAM;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    } else {
        optimizer = adamw(v, model, 0.1);
    }
    int from = job->kind == OTHER_RANK ? 1 - rank : rank;
    if (job->kind == OTHER_WORLD) from %= 2;
    void *part = job->parts[from];
    uint64_t bytes = job->bytes[from];
    unsigned char later[4096];
    if (job->kind == OTHER_STEP) { /* rank 0 has saved one step later */
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(optimizer, part, bytes));
        train_step(v, model, optimizer, rank, SAVED_AT);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_optimizer_save(optimizer, later, sizeof later, &bytes));
        if (rank == 0) part = later;
    }
    const char *const words[KINDS] = {"the state is of rank",
                                      "the state is of world size 2",
                                      "the state is of strategy",
                                      "is of a model with other",
                                      "is of a model with other",
                                      "the number of steps is 3 on rank 0"};
    const trireme_status status = trireme_optimizer_load(optimizer, part, bytes);
    EXPECT(v, status == (job->kind == OTHER_STEP ? TRIREME_ERROR_MISMATCH
                                                 : TRIREME_ERROR_INVALID_ARGUMENT));
    if (!EXPECT(v, says(words[job->kind]))) fprintf(stderr, "%s\n", trireme_last_error());
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void save_and_load_elsewhere(struct job *job) {
    run_job(job, train_and_save);
    for (job->kind = 0; job->kind < KINDS; ++job->kind) {
        const bool hybrid = job->strategy == TRIREME_STRATEGY_HYBRID_SHARD;
        if (job->kind == OTHER_STRATEGY && job->strategy == TRIREME_STRATEGY_ZERO2) continue;
        job->world_size = job->kind == OTHER_WORLD ? (hybrid ? 4 : 3) : 2;
        run_job(job, load_of_another);
    }
}

static void the_state_of_another_training_is_refused(void **state) {
    (void)state;
    for_each_spread(2, save_and_load_elsewhere);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_hold_every_element_once),
        cmocka_unit_test(a_training_that_is_resumed_has_the_same_bits),
        cmocka_unit_test(damaged_state_is_refused_by_all),
        cmocka_unit_test(the_state_of_another_training_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
