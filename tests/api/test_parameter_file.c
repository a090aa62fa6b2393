/*
 * Parameters in a file: Every rule trains to the bits of plain loops, and units come whole from the
 * file whatever the order of gathers. Memory is as planned, and impossible options are refused.
 * matrix.c tries it with every other feature, and test_parameter_errors.c has disks that fail.
 */
#include "offload.inc"

struct job {
    trireme_rule_kind kind;
    trireme_strategy strategy;
    int world_size;
    double ratio;
    bool state_too; /* lies in a file */
    bool in_backward;
    struct verdict verdicts[MOST_RANKS];
};

static void run_job(struct job *job, rank_function *function) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(job->world_size, function, job);
    assert_verdicts(job->verdicts, job->world_size);
    assert_int_equal(files_in_directory(), 0);
}

static trireme_model_options in_file(const struct job *job) {
    trireme_model_options options = model_options(job->strategy, job->world_size);
    parameter_file_of(&options)->path = directory;
    parameter_file_of(&options)->ratio = job->ratio;
    parameter_file_of(&options)->buffer_bytes = LEAST_BUFFER;
    if (job->in_backward) options.flags = TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD;
    return options;
}

static trireme_offload_info file_of(struct verdict *v, const trireme_model *model) {
    trireme_offload_info info = TRIREME_OFFLOAD_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_offload_info(model, &info));
    return info;
}

static trireme_model_memory memory_of(struct verdict *v, const trireme_model *model) {
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.allocated_parameters == memory.planned_parameters);
    EXPECT(v, memory.allocated_gradients == memory.planned_gradients);
    EXPECT(v, memory.allocated_optimizer_state == memory.planned_optimizer_state);
    EXPECT(v, memory.allocated_working == memory.planned_working);
    return memory;
}

static int first_of(int parameter) {
    int first = 0;
    for (int i = 0; i < parameter; ++i) first += (int)kElements[i];
    return first;
}

/* Units have the expected values, gathered up and down, and in a new order. */
static void expect_units(struct verdict *v, trireme_model *model, const float *expected) {
    static const int kOrders[][PARAMETERS] = {{0, 1, 2, 3, 4, 5},
                                              {5, 4, 3, 2, 1, 0},
                                              {3, 0, 5, 1, 4, 2}};
    for (int order = 0; order < 3; ++order) {
        for (int i = 0; i < PARAMETERS; ++i) {
            const int unit = kOrders[order][i];
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, (uint64_t)unit));
            void *data = NULL;
            uint64_t count = 0;
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_get_parameter_data(model, (uint64_t)unit, &data, &count));
            if (!EXPECT(v, count == kElements[unit])) return;
            if (count > 0) {
                EXPECT(v, memcmp(data, expected + first_of(unit), count * sizeof(float)) == 0);
            }
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, (uint64_t)unit));
        }
    }
}

/* ---- the same bits ---- */

static void train_in_file(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make_model_of(v, ranks, in_file(job));
    trireme_optimizer *const optimizer =
        make_optimizer(v, model,
                       job->state_too ? offload_options(job->kind, 1) : rule_options(job->kind));
    float expected[TOTAL], values[TOTAL];
    for (int i = 0; i < TOTAL; ++i) expected[i] = initial(i);
    expect_units(v, model, expected);
    train_steps(v, model, optimizer, 0, STEPS, rank, job->world_size);
    EXPECT(v, expect_plain(job->kind, expected));
    expect_units(v, model, expected);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, TOTAL, TRIREME_DTYPE_F32));
    EXPECT(v, memcmp(values, expected, sizeof values) == 0);

    const trireme_model_memory memory = memory_of(v, model);
    if (job->state_too) expect_planned(v, model, optimizer);
    const trireme_offload_info info = file_of(v, model);
    EXPECT(v, strcmp(info.path, directory) == 0 && info.failed_writes == 0);
    EXPECT(v, info.buffer_bytes <= LEAST_BUFFER && info.block_bytes <= LEAST_BUFFER / 8);
    EXPECT(v, memory.allocated_parameters == info.resident_bytes);
    EXPECT(v, info.file_bytes % 4096 == 0 && info.file_bytes > 0);
    if (job->ratio == 1) {
        EXPECT(v, info.resident_bytes == 0);
        /* By set_parameters() and by each step; replicas give each other their updates. */
        const bool replicas = job->strategy == TRIREME_STRATEGY_HYBRID_SHARD && job->world_size > 2;
        const uint64_t passes = 1 + STEPS;
        EXPECT(v, replicas ? info.written_bytes > passes * info.file_bytes
                           : info.written_bytes == passes * info.file_bytes);
    } else {
        EXPECT(v, info.resident_bytes > 0);
    }
    if (info.file_bytes > LEAST_BUFFER) EXPECT(v, info.read_bytes > STEPS * info.file_bytes / 2);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void every_world_gives_the_bits_of_plain_loops(void **state) {
    (void)state;
    static const trireme_rule_kind kKinds[] = {TRIREME_RULE_SGD, TRIREME_RULE_USER,
                                               TRIREME_RULE_ADAGRAD};
    static const int kWorlds[] = {1, 2, 3, 4, 5, 8};
    for (size_t world = 0; world < (is_quick() ? 3 : 6); ++world) {
        for (int strategy = TRIREME_STRATEGY_ZERO3; strategy <= TRIREME_STRATEGY_HYBRID_SHARD;
             ++strategy) {
            for (int turn = 0; turn < 6; ++turn) {
                struct job job = {.kind = kKinds[turn % 3],
                                  .strategy = strategy,
                                  .world_size = kWorlds[world],
                                  .ratio = turn % 2 == 0 ? 1 : 0.5,
                                  .state_too = turn >= 3,
                                  .in_backward = turn % 4 == 1};
                run_job(&job, train_in_file);
            }
        }
    }
}

static void without_ring_or_direct_the_bits_are_the_same(void **state) {
    (void)state;
    static const char *const kRefused[] = {"file.ring=fail(1)", "file.direct=fail(22)",
                                           "file.ring=fail(38);file.direct=fail(95)"};
    for (int i = 0; i < 3; ++i) {
        assert_int_equal(trireme_failpoint_set(kRefused[i]), TRIREME_OK);
        struct job job = {.kind = TRIREME_RULE_USER,
                          .strategy = TRIREME_STRATEGY_ZERO3,
                          .world_size = 2,
                          .ratio = 1,
                          .state_too = i == 1};
        run_job(&job, train_in_file);
        assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
    }
}

/* ---- units of many blocks, gathered by the hooks of a pass ---- */

enum { LARGE_UNITS = 4, LARGE = 150001 }; /* elements of each */

static float large_gradient(float value, int i) {
    return value * 0.25f + (float)(i % 9) - 4;
}

static void train_large(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = in_file(job);
    parameter_file_of(&options)->buffer_bytes = 1 << 20;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    for (int i = 0; i < LARGE_UNITS; ++i) {
        const char name[] = {'u', (char)('0' + i), 0};
        const uint64_t elements = LARGE;
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = TRIREME_DTYPE_F32;
        parameter.dimensions = 1;
        parameter.shape = &elements;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    enum { ALL = LARGE_UNITS * LARGE };
    float *const expected = malloc(ALL * sizeof(float)), *const own = malloc(ALL * sizeof(float));
    if (expected == NULL || own == NULL) abort();
    for (int i = 0; i < ALL; ++i) expected[i] = (float)(i % 127) * 0.5f - 31;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, expected, ALL, TRIREME_DTYPE_F32, 0));
    trireme_optimizer_options rule = rule_options(TRIREME_RULE_SGD);
    set_momentum(&rule, 0);
    trireme_optimizer *const optimizer = make_optimizer(v, model, rule);
    for (int step = 0; step < STEPS; ++step) {
        for (int back = 0; back < 2; ++back) {
            if (back) EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
            for (int i = 0; i < LARGE_UNITS; ++i) {
                const int unit = back ? LARGE_UNITS - 1 - i : i;
                EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, (uint64_t)unit));
                void *data = NULL;
                EXPECT_STATUS(v, TRIREME_OK,
                              trireme_model_get_parameter_data(model, (uint64_t)unit, &data, NULL));
                if (data == NULL) return;
                float *const p = data;
                EXPECT(v, memcmp(p, expected + unit * LARGE, LARGE * sizeof(float)) == 0);
                for (int k = 0; back && k < LARGE; ++k) own[k] = large_gradient(p[k], k);
                EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, (uint64_t)unit));
                if (!back) continue;
                EXPECT_STATUS(v, TRIREME_OK,
                              trireme_model_gradient_ready(model, (uint64_t)unit, own, LARGE,
                                                           TRIREME_DTYPE_F32));
            }
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        for (int i = 0; i < ALL; ++i) {
            expected[i] -= (float)RATE * large_gradient(expected[i], i % LARGE);
        }
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, own, ALL, TRIREME_DTYPE_F32));
    EXPECT(v, memcmp(own, expected, ALL * sizeof(float)) == 0);
    const trireme_offload_info info = file_of(v, model);
    memory_of(v, model);
    EXPECT(v, info.buffer_bytes <= 1 << 20 && info.block_bytes > 4096);
    /* Twice for the units of a step and once for its update, at most. */
    EXPECT(v, info.read_bytes <= (3 * STEPS + 2) * info.file_bytes);
    free(expected);
    free(own);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void units_of_many_blocks_give_the_same_bits(void **state) {
    (void)state;
    /* Whose means of equal gradients are exact. */
    for (int world_size = 1; world_size <= (is_quick() ? 2 : 4); world_size *= 2) {
        struct job job = {.strategy = world_size == 4 ? TRIREME_STRATEGY_HYBRID_SHARD
                                                      : TRIREME_STRATEGY_ZERO3,
                          .world_size = world_size,
                          .ratio = world_size == 4 ? 0.7 : 1};
        run_job(&job, train_large);
    }
}

/* ---- saved, loaded, read and written ---- */

static char *save(struct verdict *v, const trireme_optimizer *optimizer, uint64_t *bytes) {
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, bytes));
    char *const state = malloc(*bytes + 1);
    if (state == NULL) abort();
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, state, *bytes, NULL));
    return state;
}

/* From memory to a file and back; and in between ranges are read, and one is written. */
static void resume_both_ways(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    for (int way = 0; way < 2; ++way) {
        trireme_model *models[2];
        trireme_optimizer *optimizers[2];
        char *states[2];
        uint64_t bytes[2] = {0, 0};
        for (int i = 0; i < 2; ++i) {
            trireme_model_options options = in_file(job);
            if ((i == 0) == (way == 0)) {
                options = model_options(job->strategy, job->world_size);
                shards_of(&options)->share = TRIREME_SHARE_NEVER;
            }
            models[i] = make_model_of(v, ranks, options);
            optimizers[i] = make_optimizer(v, models[i], rule_options(job->kind));
        }
        train_steps(v, models[0], optimizers[0], 0, 1, rank, job->world_size);
        states[0] = save(v, optimizers[0], &bytes[0]);
        train_steps(v, models[1], optimizers[1], 1, 2, rank, job->world_size); /* another past */
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(optimizers[1], states[0], bytes[0]));
        states[1] = save(v, optimizers[1], &bytes[1]);
        EXPECT(v, bytes[0] == bytes[1] && memcmp(states[0], states[1], bytes[0]) == 0);
        uint64_t count = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizers[0], &count));
        float data[TOTAL], again[TOTAL], other[TOTAL];
        for (uint64_t i = 0; i < count; ++i) {
            trireme_state_range range = TRIREME_STATE_RANGE_INIT;
            trireme_optimizer *const there = optimizers[way == 0 ? 1 : 0];
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(there, i, &range));
            if (range.kind != TRIREME_STATE_KIND_PARAMETER) continue;
            EXPECT(v, range.data == NULL);
            const uint64_t all = range.count * sizeof(float);
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_read_range(optimizers[0], i, data, all));
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_read_range(optimizers[1], i, again, all));
            EXPECT(v, memcmp(data, again, all) == 0);
            for (uint64_t k = 0; k < range.count; ++k) other[k] = -data[k];
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_write_range(there, i, other, all));
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_read_range(there, i, again, all));
            EXPECT(v, memcmp(other, again, all) == 0);
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_write_range(there, i, data, all));
            EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                          trireme_optimizer_read_range(there, i, data, all - 4));
            EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                          trireme_optimizer_write_range(there, i, NULL, all));
        }
        train_steps(v, models[1], optimizers[1], 1, STEPS, rank, job->world_size);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(models[1], data, TOTAL, TRIREME_DTYPE_F32));
        EXPECT(v, expect_plain(job->kind, again) && memcmp(data, again, sizeof data) == 0);
        for (int i = 0; i < 2; ++i) {
            free(states[i]);
            trireme_optimizer_destroy(optimizers[i]);
            trireme_model_destroy(models[i]);
        }
    }
}

static void saved_state_and_ranges_go_both_ways(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 4; ++world_size) {
        struct job job = {.kind = TRIREME_RULE_USER,
                          .strategy = world_size % 2 == 0 ? TRIREME_STRATEGY_HYBRID_SHARD
                                                          : TRIREME_STRATEGY_ZERO3,
                          .world_size = world_size,
                          .ratio = world_size == 2 ? 0.6 : 1};
        run_job(&job, resume_both_ways);
    }
}

/* ---- refusals ---- */

static void
expect_refused(struct verdict *v, trireme_communicator *ranks, trireme_model_options options,
               trireme_status status, const char *words) {
    trireme_model *model = (trireme_model *)(uintptr_t)7;
    EXPECT_STATUS(v, status, trireme_model_create(ranks, &options, &model));
    EXPECT(v, strstr(trireme_last_error(), words) != NULL);
    EXPECT(v, model == (trireme_model *)(uintptr_t)7);
}

static void ask_for_what_cannot_be(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const trireme_model_options good = in_file(job);
    for (int strategy = 1; strategy < TRIREME_STRATEGY_ZERO3; ++strategy) {
        trireme_model_options options = good;
        options.strategy = strategy;
        expect_refused(v, ranks, options, TRIREME_ERROR_UNSUPPORTED, "hold whole parameters");
    }
    trireme_model_options options = good;
    shards_of(&options)->share = TRIREME_SHARE_ALWAYS;
    expect_refused(v, ranks, options, TRIREME_ERROR_UNSUPPORTED, "TRIREME_SHARE_ALWAYS");
    static const double kRatios[] = {-0.5, 1.5, NAN, INFINITY};
    for (int i = 0; i < 4; ++i) {
        options = good;
        parameter_file_of(&options)->ratio = kRatios[i];
        expect_refused(v, ranks, options, TRIREME_ERROR_INVALID_ARGUMENT, "options.offload.ratio");
    }
    options = good;
    parameter_file_of(&options)->path = "";
    expect_refused(v, ranks, options, TRIREME_ERROR_INVALID_ARGUMENT,
                   "options.offload.path is empty");
    options = good;
    parameter_file_of(&options)->buffer_bytes = LEAST_BUFFER - 1;
    expect_refused(v, ranks, options, TRIREME_ERROR_INVALID_ARGUMENT, "32767 is below 32768");
    options = good;
    parameter_file_of(&options)->path = NULL;
    expect_refused(v, ranks, options, TRIREME_ERROR_INVALID_ARGUMENT, "options.offload.path");

    trireme_offload_info info = TRIREME_OFFLOAD_INFO_INIT;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &good, &model));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_get_offload_info(model, &info));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, trireme_model_get_offload_info(model, NULL));
    info.struct_size = 8;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, trireme_model_get_offload_info(model, &info));
    trireme_model_destroy(model);
    info.struct_size = sizeof info;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_model_get_offload_info(model, &info));
    model = make_model(v, ranks, job->strategy, job->world_size);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_get_offload_info(model, &info));
    EXPECT(v, strstr(trireme_last_error(), "offload") != NULL);
    trireme_model_destroy(model);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    struct job job = {.strategy = TRIREME_STRATEGY_ZERO3, .world_size = 2, .ratio = 1};
    run_job(&job, ask_for_what_cannot_be);
}

static trireme_model *
describe(struct verdict *v, trireme_communicator *ranks, trireme_model_options options) {
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    const uint64_t elements = 5000;
    parameter.name = "p";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    return model;
}

/* On all ranks, although one of them alone is to blame; and the group goes on. */
static void seal_in_vain(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = in_file(job);
    if (rank == job->world_size - 1) parameter_file_of(&options)->path = "/nowhere/at/all";
    trireme_model *model = describe(v, ranks, options);
    EXPECT_STATUS(v, TRIREME_ERROR_SYSTEM, trireme_model_seal(model));
    const bool blamed = rank == job->world_size - 1;
    EXPECT(v, strstr(trireme_last_error(), blamed ? "/nowhere/at/all" : "rank ") != NULL);
    trireme_model_destroy(model);
    for (int other = 0; other < 3 && job->world_size > 1; ++other) {
        options = in_file(job);
        if (rank == 0 && other == 0) {
            options = model_options(job->strategy, job->world_size);
        } else if (rank == 0 && other == 1) {
            parameter_file_of(&options)->ratio = 0.5;
        } else if (rank == 0) {
            parameter_file_of(&options)->buffer_bytes = 0;
        }
        static const char *const kWords[] = {"offload", "offload.ratio", "offload.buffer_bytes"};
        model = describe(v, ranks, options);
        EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
        EXPECT(v, strstr(trireme_last_error(), kWords[other]) != NULL);
        trireme_model_destroy(model);
    }
    model = make_model_of(v, ranks, in_file(job));
    trireme_optimizer *const optimizer = make_optimizer(v, model, rule_options(job->kind));
    train_steps(v, model, optimizer, 0, 1, rank, job->world_size);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_file_that_cannot_be_made_is_told_to_all_ranks(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 3; ++world_size) {
        struct job job = {.kind = TRIREME_RULE_SGD,
                          .strategy = TRIREME_STRATEGY_ZERO3,
                          .world_size = world_size,
                          .ratio = 1};
        run_job(&job, seal_in_vain);
    }
}

/* A limit counts memory alone: a limit that refuses a model in memory is enough for one in a file.
 */
static void keep_to_a_limit(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *model = make_model_of(v, ranks, in_file(job));
    const trireme_model_memory with = memory_of(v, model);
    EXPECT(v, with.planned_parameters == 0);
    EXPECT(v, with.planned_working > file_of(v, model).buffer_bytes);
    trireme_model_destroy(model);
    uint64_t need = with.planned_gradients + with.planned_working, most = 0;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_all_reduce(ranks, &need, &most, 1, TRIREME_DTYPE_U64,
                                     TRIREME_REDUCTION_MAX, NULL));
    trireme_model_options options = in_file(job);
    options.memory_limit_bytes = most;
    model = describe(v, ranks, options);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_model_destroy(model);
    options.memory_limit_bytes = 1000; /* not even the buffer */
    char path[sizeof directory];       /* copied by the model */
    snprintf(path, sizeof path, "%s", directory);
    parameter_file_of(&options)->path = path;
    model = describe(v, ranks, options);
    memset(path, 0, sizeof path);
    EXPECT_STATUS(v, TRIREME_ERROR_OUT_OF_MEMORY, trireme_model_seal(model));
    EXPECT(v, strstr(trireme_last_error(), "the least is") != NULL);
    trireme_model_destroy(model);
}

static void a_limit_counts_no_file(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 3; ++world_size) {
        struct job job = {.strategy = TRIREME_STRATEGY_ZERO3, .world_size = world_size, .ratio = 1};
        run_job(&job, keep_to_a_limit);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_world_gives_the_bits_of_plain_loops),
        cmocka_unit_test(without_ring_or_direct_the_bits_are_the_same),
        cmocka_unit_test(units_of_many_blocks_give_the_same_bits),
        cmocka_unit_test(saved_state_and_ranges_go_both_ways),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(a_file_that_cannot_be_made_is_told_to_all_ranks),
        cmocka_unit_test(a_limit_counts_no_file),
    };
    return cmocka_run_group_tests_name("parameters", tests, make_directory, remove_directory);
}
