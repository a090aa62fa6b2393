/*
 * The disk fails under parameters that lie in a file: errors at reads and writes of a whole
 * training, once and for good. Then either the training goes on to the right bits, or the ranks
 * stop with the documented error. None waits for a rank whose disk has failed.
 */
#include <errno.h>
#include <fcntl.h>

#include "../api/offload_rule.inc"

/* Blocks of two pages: those of one page cannot be cut short. */
enum { LARGER_BUFFER = 65536 };

/* More than the buffer holds. */
enum { UNITS = 12, EACH = 5003, ALL = UNITS * EACH };

/* By formulas of own_rule(). */
static void expect_all(float *values) {
    for (int i = 0; i < ALL; ++i) {
        float p = initial(i), a = 0, b = 0;
        for (int step = 0; step < STEPS; ++step) {
            a = a * 0.5f + (float)mean_gradient(step, i);
            b += a;
            p -= (float)RATE * (a + b * 0.125f);
        }
        values[i] = p;
    }
}

struct trial {
    int world_size;
    int shard_ranks; /* 0: zero3 */
    uint64_t buffer; /* 0: the least one */
    bool state_too;  /* lies in a file */
    bool in_backward;
    trireme_status statuses[MOST_RANKS];
    char messages[MOST_RANKS][800];
    trireme_offload_info infos[MOST_RANKS];
    char failpoint[64];
    uint64_t visits; /* of file.read */
    bool right[MOST_RANKS];
    struct verdict verdicts[MOST_RANKS];
};

static trireme_model *
make_file_model(struct verdict *v, trireme_communicator *ranks, const struct trial *trial) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy =
        trial->shard_ranks != 0 ? TRIREME_STRATEGY_HYBRID_SHARD : TRIREME_STRATEGY_ZERO3;
    shards_of(&options)->ranks = (uint32_t)trial->shard_ranks;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = 50000;
    parameter_file_of(&options)->path = directory;
    parameter_file_of(&options)->buffer_bytes = trial->buffer != 0 ? trial->buffer : LEAST_BUFFER;
    if (trial->in_backward) options.flags = TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    for (int i = 0; i < UNITS; ++i) {
        const char name[] = {'p', (char)('a' + i), 0};
        const uint64_t elements = EACH;
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = TRIREME_DTYPE_F32;
        parameter.dimensions = 1;
        parameter.shape = &elements;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static trireme_status go_through(trireme_model *model, bool back) {
    for (int i = 0; i < UNITS; ++i) {
        const uint64_t unit = (uint64_t)(back ? UNITS - 1 - i : i);
        const trireme_status status = trireme_model_gather_unit(model, unit);
        if (status != TRIREME_OK) return status;
        if (trireme_model_release_unit(model, unit) != TRIREME_OK) abort();
    }
    return TRIREME_OK;
}

/* All calls of a training, up to the first that fails. */
static trireme_status train(struct trial *trial, trireme_model *model, trireme_optimizer *optimizer,
                            int rank, float *values) {
    for (int i = 0; i < ALL; ++i) values[i] = initial(i);
    trireme_status status =
        trireme_model_broadcast_parameters(model, values, ALL, TRIREME_DTYPE_F32, 0);
    for (int step = 0; status == TRIREME_OK && step < STEPS; ++step) {
        status = go_through(model, false);
        if (status == TRIREME_OK) status = go_through(model, true);
        if (status != TRIREME_OK) return status;
        for (int i = 0; i < ALL; ++i) {
            values[i] = gradient_of(step, i, rank, trial->world_size);
        }
        status = trireme_model_accumulate_flat(model, values, ALL, TRIREME_DTYPE_F32, 0);
        if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
    }
    if (status != TRIREME_OK) return status;
    return trireme_model_gather_parameters(model, values, ALL, TRIREME_DTYPE_F32);
}

static void train_with_errors(trireme_communicator *ranks, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const v = &trial->verdicts[rank];
    trireme_model *const model = make_file_model(v, ranks, trial);
    trireme_optimizer *const optimizer =
        make_optimizer(v, model,
                       trial->state_too ? offload_options(TRIREME_RULE_USER, 1)
                                        : rule_options(TRIREME_RULE_USER));
    float *const values = malloc(ALL * sizeof(float)), *const expected =
                                                           malloc(ALL * sizeof(float));
    if (values == NULL || expected == NULL) abort();
    const trireme_status status = train(trial, model, optimizer, rank, values);
    trial->statuses[rank] = status;
    snprintf(trial->messages[rank], sizeof trial->messages[rank], "%s",
             status == TRIREME_OK ? "" : trireme_last_error());
    expect_all(expected);
    trial->right[rank] = memcmp(values, expected, ALL * sizeof(float)) == 0;
    free(values);
    free(expected);
    if (status == TRIREME_OK) {
        trial->infos[rank] = (trireme_offload_info)TRIREME_OFFLOAD_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_offload_info(model, &trial->infos[rank]));
        trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
        EXPECT(v, memory.allocated_parameters == memory.planned_parameters);
        EXPECT(v, memory.allocated_working == memory.planned_working);
        EXPECT(v, memory.allocated_parameters == trial->infos[rank].resident_bytes);
        if (trial->state_too) expect_planned(v, model, optimizer);
    } else {
        EXPECT_STATUS(v, status, trireme_optimizer_step(optimizer)); /* and so it stays */
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void run_trial(struct trial *trial) {
    memset(trial->verdicts, 0, sizeof trial->verdicts);
    run_ranks(trial->world_size, train_with_errors, trial);
    assert_verdicts(trial->verdicts, trial->world_size);
    assert_int_equal(files_in_directory(), 0);
}

static void expect_right(const struct trial *trial, const char *failpoint) {
    for (int rank = 0; rank < trial->world_size; ++rank) {
        if (trial->statuses[rank] == TRIREME_OK && trial->right[rank]) continue;
        fail_msg("%s: rank %d: %s", failpoint, rank,
                 trial->statuses[rank] == TRIREME_OK ? "other bits" : trial->messages[rank]);
    }
}

/* Whether they stopped, one of them because of the file. A read ahead that was not needed may fail.
 */
static bool stopped_or_right(const struct trial *trial, const char *failpoint,
                             trireme_status status, const char *words) {
    bool told = false, stopped = false;
    for (int rank = 0; rank < trial->world_size; ++rank) {
        if (trial->statuses[rank] == TRIREME_OK && trial->right[rank]) continue;
        stopped = true;
        if (trial->statuses[rank] != status) {
            fail_msg("%s: rank %d: %s, %s", failpoint, rank,
                     trireme_status_name(trial->statuses[rank]), trial->messages[rank]);
        }
        told = told || (strstr(trial->messages[rank], words) != NULL &&
                        strstr(trial->messages[rank], "of the parameters") != NULL);
    }
    if (stopped && !told) {
        fail_msg("%s: \"%s\" is told nowhere: %s; %s", failpoint, words, trial->messages[0],
                 trial->messages[1]);
    }
    return stopped;
}

static uint64_t visits_of(const char *point, const struct trial *of) {
    char text[64];
    snprintf(text, sizeof text, "%s=off", point);
    assert_int_equal(trireme_failpoint_set(text), TRIREME_OK);
    struct trial trial = *of;
    run_trial(&trial);
    expect_right(&trial, "no error");
    uint64_t visits = 0;
    assert_int_equal(trireme_failpoint_get_hits(point, &visits), TRIREME_OK);
    assert_true(visits > 10);
    return visits;
}

static const int kErrors[] = {ENOSPC, EIO, EINTR, 0 /* cut short */};
enum { ERRORS = sizeof kErrors / sizeof kErrors[0] };

static void name_failpoint(char *text, size_t capacity, const char *point, int error, uint64_t hit,
                           bool for_good) {
    char action[32] = "short";
    if (error != 0) snprintf(action, sizeof action, "fail(%d)", error);
    snprintf(text, capacity, "%s=%s@%llu%s", point, action, (unsigned long long)hit,
             for_good ? "+" : "");
}

/* From visit to visit that fails: each third one takes its time. */
static uint64_t stride(uint64_t visits) {
    return getenv("TRIREME_TEST_LONG") ? 3 : visits / (is_quick() ? 2 : 6) + 1;
}

/* Parameters that cannot be written stay in memory: none is lost, whatever the error and whenever.
 */
static void a_write_that_fails_loses_nothing(void **state) {
    (void)state;
    for (int error = 0; error < ERRORS; ++error) {
        const struct trial plain = {.world_size = 2,
                                    .buffer = kErrors[error] == 0 ? LARGER_BUFFER : 0,
                                    .in_backward = error % 2 == 1};
        const uint64_t visits = visits_of("file.write", &plain);
        bool for_good = true;
        for (uint64_t hit = 1; hit <= visits; hit += stride(visits)) {
            for_good = !for_good;
            char text[64];
            name_failpoint(text, sizeof text, "file.write", kErrors[error], hit, for_good);
            assert_int_equal(trireme_failpoint_set(text), TRIREME_OK);
            struct trial trial = plain;
            run_trial(&trial);
            expect_right(&trial, text);
            const bool goes_on = kErrors[error] == 0 || (kErrors[error] == EINTR && !for_good);
            for (int rank = 0; rank < 2; ++rank) {
                const trireme_offload_info *const info = &trial.infos[rank];
                if (goes_on) assert_int_equal(info->failed_writes, 0);
                if (info->failed_writes == 0) continue;
                assert_int_equal(info->failed_errno, kErrors[error]);
                /* A block moves to memory of its own only when a wait has found its failure. */
                assert_true(hit > 1 || info->resident_bytes > 0);
            }
        }
        /* All of it, from the first on: all of it is in memory then. */
        char text[64];
        name_failpoint(text, sizeof text, "file.write", EIO, 1, true);
        assert_int_equal(trireme_failpoint_set(text), TRIREME_OK);
        struct trial trial = plain;
        run_trial(&trial);
        expect_right(&trial, text);
        for (int rank = 0; rank < 2; ++rank) assert_true(trial.infos[rank].failed_writes > 0);
    }
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
}

/* Parameters that cannot be read are read again; if they can never be read, the ranks stop. */
static void a_read_that_fails_is_tried_again(void **state) {
    (void)state;
    for (int error = 0; error < ERRORS; ++error) {
        const struct trial plain = {.world_size = 2,
                                    .buffer = kErrors[error] == 0 ? LARGER_BUFFER : 0,
                                    .in_backward = error % 2 == 1};
        const uint64_t visits = visits_of("file.read", &plain);
        int stopped = 0;
        bool for_good = false;
        for (uint64_t hit = 1; hit <= visits; hit += stride(visits)) {
            for_good = !for_good;
            char text[64];
            name_failpoint(text, sizeof text, "file.read", kErrors[error], hit, for_good);
            assert_int_equal(trireme_failpoint_set(text), TRIREME_OK);
            struct trial trial = plain;
            run_trial(&trial);
            if (for_good && kErrors[error] != 0) {
                stopped += stopped_or_right(&trial, text, TRIREME_ERROR_SYSTEM, "reading byte ");
            } else {
                expect_right(&trial, text);
            }
        }
        if (kErrors[error] != 0) assert_true(stopped > 0);
    }
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
}

static void threads_instead_of_a_ring_fail_the_same_way(void **state) {
    (void)state;
    static const char *const kPoints[] = {"file.write", "file.read"};
    for (int point = 0; point < 2; ++point) {
        for (int error = 0; error < ERRORS; ++error) {
            char text[96] = "file.ring=fail(1);";
            name_failpoint(text + strlen(text), sizeof text - strlen(text), kPoints[point],
                           kErrors[error], 5, true);
            assert_int_equal(trireme_failpoint_set(text), TRIREME_OK);
            struct trial trial = {.world_size = 3,
                                  .buffer = kErrors[error] == 0 ? LARGER_BUFFER : 0};
            run_trial(&trial);
            if (point == 1 && kErrors[error] != 0) {
                assert_true(stopped_or_right(&trial, text, TRIREME_ERROR_SYSTEM, "reading byte "));
            } else {
                expect_right(&trial, text);
            }
        }
    }
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
}

/* The model's own groups have other numbers for its ranks, which users do not know. */
static void ranks_are_named_as_in_the_communicator(void **state) {
    (void)state;
    int stopped = 0;
    for (uint64_t hit = 3; hit < 90; hit += 29) {
        struct trial trial = {.world_size = 4, .shard_ranks = 2};
        char text[64];
        name_failpoint(text, sizeof text, "file.read", EIO, hit, true);
        assert_int_equal(trireme_failpoint_set(text), TRIREME_OK);
        run_trial(&trial);
        stopped += stopped_or_right(&trial, text, TRIREME_ERROR_SYSTEM, "reading byte ");
        for (int rank = 0; rank < 4; ++rank) {
            assert_null(strstr(trial.messages[rank], "in the group of"));
        }
    }
    assert_true(stopped > 0);
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
}

/* With state in a file, too, both may be struck; writes of both lose nothing. */
static void both_files_may_fail(void **state) {
    (void)state;
    for (uint64_t hit = 1; hit < (is_quick() ? 20 : 80); hit += 19) {
        char text[64];
        name_failpoint(text, sizeof text, "file.write", EIO, hit, true);
        assert_int_equal(trireme_failpoint_set(text), TRIREME_OK);
        struct trial trial = {.world_size = 3, .state_too = true};
        run_trial(&trial);
        expect_right(&trial, text);
    }
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
}

/* ---- between steps ---- */

/* One rank cannot read for a while: it is told so, alone, and changes nothing. */
static void be_refused(struct verdict *v, trireme_optimizer *optimizer) {
    uint64_t bytes = 0, ranges = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &ranges));
    char *const memory = malloc(bytes);
    if (memory == NULL) abort();
    char text[64];
    name_failpoint(text, sizeof text, "file.read", EIO, 1, true);
    EXPECT_STATUS(v, TRIREME_OK, trireme_failpoint_set(text));
    EXPECT_STATUS(v, TRIREME_ERROR_SYSTEM, trireme_optimizer_save(optimizer, memory, bytes, NULL));
    EXPECT(v, strstr(trireme_last_error(), "of the parameters") != NULL);
    int refused = 0;
    for (uint64_t i = 0; i < ranges; ++i) {
        trireme_state_range range = TRIREME_STATE_RANGE_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, i, &range));
        if (range.kind != TRIREME_STATE_KIND_PARAMETER) continue;
        const uint64_t size = range.count * sizeof(float);
        const trireme_status status = trireme_optimizer_read_range(optimizer, i, memory, size);
        EXPECT(v, status == TRIREME_OK || status == TRIREME_ERROR_SYSTEM);
        refused += status != TRIREME_OK;
    }
    EXPECT(v, refused > 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_failpoint_set(NULL));
    free(memory);
}

static void train_with_refusals(trireme_communicator *ranks, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const v = &trial->verdicts[rank];
    trireme_model *const model = make_file_model(v, ranks, trial);
    trireme_optimizer *const optimizer = make_optimizer(v, model, rule_options(TRIREME_RULE_USER));
    float *const values = malloc(ALL * sizeof(float)), *const expected =
                                                           malloc(ALL * sizeof(float));
    if (values == NULL || expected == NULL) abort();
    for (int i = 0; i < ALL; ++i) values[i] = initial(i);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, values, ALL, TRIREME_DTYPE_F32, 0));
    for (int step = 0; step < STEPS; ++step) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
        if (rank == trial->world_size - 1) be_refused(v, optimizer);
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
        for (int i = 0; i < ALL; ++i) values[i] = gradient_of(step, i, rank, trial->world_size);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, values, ALL, TRIREME_DTYPE_F32, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, ALL, TRIREME_DTYPE_F32));
    expect_all(expected);
    EXPECT(v, memcmp(values, expected, ALL * sizeof(float)) == 0);
    free(values);
    free(expected);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void after_a_refusal_the_next_step_is_right(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 3; ++world_size) {
        struct trial trial = {.world_size = world_size};
        run_ranks(world_size, train_with_refusals, &trial);
        assert_verdicts(trial.verdicts, world_size);
    }
}

/* Blocks that were read ahead after a step are not needed when all of them are replaced. */
static void load_over_what_cannot_be_read(trireme_communicator *ranks, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const v = &trial->verdicts[rank];
    trireme_model *const model = make_file_model(v, ranks, trial);
    trireme_optimizer *const optimizer = make_optimizer(v, model, rule_options(TRIREME_RULE_USER));
    float *const values = malloc(ALL * sizeof(float)), *const saved = malloc(ALL * sizeof(float));
    uint64_t bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
    char *const state = malloc(bytes);
    if (values == NULL || saved == NULL || state == NULL) abort();
    for (int i = 0; i < ALL; ++i) saved[i] = initial(i);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, saved, ALL, TRIREME_DTYPE_F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, state, bytes, NULL));
    /* The last unit first: it is the first that a step updates, so it is not in the buffer then. */
    EXPECT_STATUS(v, TRIREME_OK, go_through(model, true));
    EXPECT_STATUS(v, TRIREME_OK, go_through(model, false));
    for (int i = 0; i < ALL; ++i) values[i] = gradient_of(0, i, rank, trial->world_size);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_accumulate_flat(model, values, ALL, TRIREME_DTYPE_F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
    if (rank == 0) EXPECT_STATUS(v, TRIREME_OK, trireme_failpoint_set(trial->failpoint));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
    trial->statuses[rank] = trireme_optimizer_step(optimizer);
    if (trial->statuses[rank] == TRIREME_OK) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
        if (rank == 0) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_failpoint_get_hits("file.read", &trial->visits));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(optimizer, state, bytes));
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
        if (rank == 0) EXPECT_STATUS(v, TRIREME_OK, trireme_failpoint_set(NULL));
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(model, values, ALL, TRIREME_DTYPE_F32));
        EXPECT(v, memcmp(values, saved, ALL * sizeof(float)) == 0);
    }
    free(values);
    free(saved);
    free(state);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_load_replaces_what_cannot_be_read(void **state) {
    (void)state;
    struct trial trial = {.world_size = 1, .buffer = LARGER_BUFFER, .failpoint = "file.read=off"};
    run_ranks(1, load_over_what_cannot_be_read, &trial);
    assert_verdicts(trial.verdicts, 1);
    const uint64_t visits = trial.visits;
    int loaded = 0;
    for (uint64_t back = 0; back < 4; ++back) {
        name_failpoint(trial.failpoint, sizeof trial.failpoint, "file.read", EIO, visits - back,
                       true);
        run_ranks(1, load_over_what_cannot_be_read, &trial);
        assert_verdicts(trial.verdicts, 1);
        assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
        loaded += trial.statuses[0] == TRIREME_OK;
    }
    assert_true(loaded > 0); /* else nothing was read ahead */
}

/* ---- rotten data ---- */

/* Flips a bit in all files of this process in the directory; returns how many there are. */
static int rot(off_t place) {
    int found = 0;
    for (int descriptor = 3; descriptor < 1024; ++descriptor) {
        char link[64], path[600] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
        if (readlink(link, path, sizeof path - 1) < 0) continue;
        if (strstr(path, directory) == NULL) continue;
        const int file = open(link, O_RDWR | O_CLOEXEC);
        unsigned char byte = 0;
        if (file < 0 || pread(file, &byte, 1, place) != 1) abort();
        byte ^= 4;
        if (pwrite(file, &byte, 1, place) != 1 || fsync(file) != 0) abort();
        close(file);
        ++found;
    }
    return found;
}

/* More than the buffer holds, so that a step reads the rotten block. */
enum { ROTTEN = 40000 };

static void train_on_rotten_parameters(trireme_communicator *ranks, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const v = &trial->verdicts[rank];
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO3;
    parameter_file_of(&options)->path = directory;
    parameter_file_of(&options)->buffer_bytes = LEAST_BUFFER;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    const uint64_t elements = ROTTEN;
    parameter.name = "p";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer *const optimizer = make_optimizer(v, model, rule_options(TRIREME_RULE_ADAM));
    float *const values = malloc(ROTTEN * sizeof(float));
    if (values == NULL) abort();
    for (int i = 0; i < ROTTEN; ++i) values[i] = initial(i);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, values, ROTTEN, TRIREME_DTYPE_F32, 0));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, ROTTEN, TRIREME_DTYPE_F32));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
    if (rank == 0) EXPECT(v, rot(4096 + 100) == trial->world_size);
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
    /* Saving tells, and changes nothing. */
    uint64_t bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
    void *const saved = malloc(bytes);
    EXPECT_STATUS(v, TRIREME_ERROR_CORRUPT, trireme_optimizer_save(optimizer, saved, bytes, NULL));
    free(saved);
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_accumulate_flat(model, values, ROTTEN, TRIREME_DTYPE_F32, 0));
    trial->statuses[rank] = trireme_optimizer_step(optimizer);
    snprintf(trial->messages[rank], sizeof trial->messages[rank], "%s", trireme_last_error());
    free(values);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void rotten_parameters_are_no_wrong_number(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 2; ++world_size) {
        struct trial trial = {.world_size = world_size};
        run_ranks(world_size, train_on_rotten_parameters, &trial);
        assert_verdicts(trial.verdicts, world_size);
        assert_true(stopped_or_right(&trial, "rotten", TRIREME_ERROR_CORRUPT,
                                     "its checksum is another one"));
        for (int rank = 0; rank < world_size; ++rank) {
            assert_int_equal(trial.statuses[rank], TRIREME_ERROR_CORRUPT);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_write_that_fails_loses_nothing),
        cmocka_unit_test(a_read_that_fails_is_tried_again),
        cmocka_unit_test(threads_instead_of_a_ring_fail_the_same_way),
        cmocka_unit_test(ranks_are_named_as_in_the_communicator),
        cmocka_unit_test(both_files_may_fail),
        cmocka_unit_test(after_a_refusal_the_next_step_is_right),
        cmocka_unit_test(a_load_replaces_what_cannot_be_read),
        cmocka_unit_test(rotten_parameters_are_no_wrong_number),
    };
    return cmocka_run_group_tests_name("parameter errors", tests, make_directory, remove_directory);
}
