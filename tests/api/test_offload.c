/*
 * Optimizer state in a file: Every strategy and rule trains to the bits of the same training in
 * memory, and of plain loops. Memory is as planned, and impossible options are refused.
 */
#include "offload.inc"

struct job {
    trireme_rule_kind kind;
    trireme_strategy strategy;
    int world_size;
    double ratio;
    int told; /* ranks that were told the whole reason */
    struct verdict verdicts[MOST_RANKS];
};

static void run_job(struct job *job, rank_function *function) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(job->world_size, function, job);
    assert_verdicts(job->verdicts, job->world_size);
    assert_int_equal(files_in_directory(), 0);
}

/* A rank's saved state; freed by the caller. */
static char *save(struct verdict *v, const trireme_optimizer *optimizer, uint64_t *bytes) {
    *bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, bytes));
    char *const state = malloc(*bytes + 1);
    if (state == NULL) abort();
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, state, *bytes, NULL));
    return state;
}

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

/* ---- the same bits ---- */

static void train_both_ways(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const int world_size = job->world_size;
    trireme_model *models[2];
    trireme_optimizer *optimizers[2];
    static const uint64_t kNone = 0;
    uint64_t bytes[2] = {kNone, kNone};
    char *states[2];
    float values[2][TOTAL];
    for (int way = 0; way < 2; ++way) {
        models[way] = make_model(v, ranks, job->strategy, world_size);
        optimizers[way] = make_optimizer(v, models[way],
                                         way == 0 ? rule_options(job->kind)
                                                  : offload_options(job->kind, job->ratio));
        train_steps(v, models[way], optimizers[way], 0, STEPS, rank, world_size);
        states[way] = save(v, optimizers[way], &bytes[way]);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(models[way], values[way], TOTAL,
                                                      TRIREME_DTYPE_F32));
    }
    EXPECT(v, bytes[0] == bytes[1] && memcmp(states[0], states[1], bytes[0]) == 0);
    EXPECT(v, memcmp(values[0], values[1], sizeof values[0]) == 0);
    float expected[TOTAL];
    if (expect_plain(job->kind, expected)) {
        EXPECT(v, memcmp(values[1], expected, sizeof expected) == 0);
    }
    expect_planned(v, models[1], optimizers[1]);
    const trireme_offload_info info = info_of(v, optimizers[1]);
    EXPECT(v, strcmp(info.path, directory) == 0 && info.failed_writes == 0);
    EXPECT(v, (info.direct != 0) == (info.why_not_direct[0] == 0));
    EXPECT(v, (info.io_uring != 0) == (info.why_not_io_uring[0] == 0));
    EXPECT(v, info.buffer_bytes <= LEAST_BUFFER && info.block_bytes <= LEAST_BUFFER / 8);
    const double all = (double)(info.file_bytes + info.resident_bytes);
    EXPECT(v, (double)info.file_bytes >= job->ratio * all);
    EXPECT(v, (double)info.file_bytes <= job->ratio * all + (double)info.block_bytes);
    /* The first step finds nothing to read; saving reads once more. */
    EXPECT(v, info.written_bytes == STEPS * info.file_bytes);
    EXPECT(v, info.read_bytes == STEPS * info.file_bytes);
    for (int way = 0; way < 2; ++way) {
        free(states[way]);
        trireme_optimizer_destroy(optimizers[way]);
        trireme_model_destroy(models[way]);
    }
}

static void every_strategy_and_rule_gives_the_same_bits(void **state) {
    (void)state;
    static const trireme_rule_kind kKinds[] = {TRIREME_RULE_SGD, TRIREME_RULE_ADAM,
                                               TRIREME_RULE_USER, TRIREME_RULE_ADAGRAD,
                                               TRIREME_RULE_RMSPROP};
    enum { KINDS = sizeof kKinds / sizeof kKinds[0] };
    static const int kWorlds[] = {1, 2, 3, 4, 5, 8};
    for (size_t world = 0; world < (is_quick() ? 3 : 6); ++world) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            for (int kind = 0; kind < KINDS; ++kind) {
                struct job job = {.kind = kKinds[kind],
                                  .strategy = strategy,
                                  .world_size = kWorlds[world],
                                  .ratio = (kind + strategy) % 2 == 0 ? 1 : 0.3};
                run_job(&job, train_both_ways);
            }
        }
    }
}

/* Elements of a parameter whose state is updated in many pieces; the last piece is odd. */
enum { MANY = 200003 };

static void train_many(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    float *values[2];
    char *states[2];
    uint64_t bytes[2];
    for (int way = 0; way < 2; ++way) {
        trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
        options.strategy = job->strategy;
        trireme_model *model = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
        const uint64_t elements = MANY;
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = "p";
        parameter.dtype = TRIREME_DTYPE_F32;
        parameter.dimensions = 1;
        parameter.shape = &elements;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
        float *const all = values[way] = malloc(MANY * sizeof(float));
        if (all == NULL) abort();
        for (int i = 0; i < MANY; ++i) all[i] = initial(i);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_broadcast_parameters(model, all, MANY, TRIREME_DTYPE_F32, 0));
        trireme_optimizer_options rule =
            way == 0 ? rule_options(job->kind) : offload_options(job->kind, job->ratio);
        if (way != 0) state_file_of(&rule)->buffer_bytes = 0; /* the default: large blocks */
        trireme_optimizer *const optimizer = make_optimizer(v, model, rule);
        for (int step = 0; step < STEPS; ++step) {
            for (int i = 0; i < MANY; ++i) {
                all[i] = gradient_of(step, i, rank, job->world_size);
            }
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_accumulate_flat(model, all, MANY, TRIREME_DTYPE_F32, 0));
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        }
        states[way] = save(v, optimizer, &bytes[way]);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(model, all, MANY, TRIREME_DTYPE_F32));
        if (way == 1) {
            expect_planned(v, model, optimizer);
            EXPECT(v, info_of(v, optimizer).block_bytes > 200000);
        }
        trireme_optimizer_destroy(optimizer);
        trireme_model_destroy(model);
    }
    EXPECT(v, bytes[0] == bytes[1] && memcmp(states[0], states[1], bytes[0]) == 0);
    EXPECT(v, memcmp(values[0], values[1], MANY * sizeof(float)) == 0);
    for (int way = 0; way < 2; ++way) {
        free(states[way]);
        free(values[way]);
    }
}

static void blocks_of_many_pieces_give_the_same_bits(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 3; ++world_size) {
        struct job job = {.kind = world_size == 2 ? TRIREME_RULE_SGD : TRIREME_RULE_ADAM,
                          .strategy = world_size == 3 ? TRIREME_STRATEGY_ZERO3
                                                      : TRIREME_STRATEGY_DATA_PARALLEL,
                          .world_size = world_size,
                          .ratio = world_size == 1 ? 0.5 : 1};
        run_job(&job, train_many);
    }
}

/* io_uring and O_DIRECT are each refused, as where they are not permitted. */
static void without_ring_or_direct_the_bits_are_the_same(void **state) {
    (void)state;
    static const char *const kRefused[] = {"file.ring=fail(1)", "file.direct=fail(22)",
                                           "file.ring=fail(38);file.direct=fail(95)"};
    for (int i = 0; i < 3; ++i) {
        assert_int_equal(trireme_failpoint_set(kRefused[i]), TRIREME_OK);
        struct job job = {.kind = TRIREME_RULE_USER,
                          .strategy = TRIREME_STRATEGY_ZERO2,
                          .world_size = 2,
                          .ratio = 1};
        run_job(&job, train_both_ways);
        assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
    }
}

static void tell_what_is_refused(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, TRIREME_STRATEGY_ZERO1, 1);
    trireme_optimizer *const optimizer =
        make_optimizer(v, model, offload_options(TRIREME_RULE_ADAM, 1));
    const trireme_offload_info info = info_of(v, optimizer);
    EXPECT(v,
           info.io_uring == 0 && strstr(info.why_not_io_uring, "Operation not permitted") != NULL);
    EXPECT(v, info.direct == 0 && strstr(info.why_not_direct, "Invalid argument") != NULL);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void the_info_tells_what_is_refused(void **state) {
    (void)state;
    assert_int_equal(trireme_failpoint_set("file.ring=fail(1);file.direct=fail(22)"), TRIREME_OK);
    struct job job = {.world_size = 1};
    run_job(&job, tell_what_is_refused);
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
}

/* ---- with all else that a step may be ---- */

enum { ODD_STEPS = 6, ODD_ELEMENTS = 3000, ODD_PARAMETERS = 4, OVERFLOWING = 2 };

/* The last one is another name of the first, and the second is frozen. */
static trireme_model *
make_odd_model(struct verdict *v, trireme_communicator *ranks, trireme_strategy strategy) {
    static const char *const kNames[ODD_PARAMETERS] = {"a", "frozen", "seldom", "tied"};
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = strategy;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = 5000;
    options.unused = TRIREME_UNUSED_SKIP;
    options.flags = TRIREME_MODEL_FLAG_UNEVEN;
    if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) shards_of(&options)->ranks = 1;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    for (int i = 0; i < ODD_PARAMETERS; ++i) {
        const uint64_t elements = ODD_ELEMENTS;
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = kNames[i];
        parameter.dtype = TRIREME_DTYPE_F32;
        parameter.dimensions = 1;
        parameter.shape = &elements;
        if (i == 1) parameter.flags = TRIREME_PARAMETER_FLAG_FROZEN;
        if (i == 3) parameter.tied_to = kNames[0];
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

/* A step in which not all have gradients, and one of them may be inf. */
static void odd_step(struct verdict *v, trireme_model *model, trireme_optimizer *optimizer,
                     int step, int rank) {
    float gradient[ODD_ELEMENTS];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    for (int i = ODD_PARAMETERS - 1; i >= 0; --i) {
        if (i == 1 || (i == 2 && step % 2 == 0)) continue;
        for (int k = 0; k < ODD_ELEMENTS; ++k) {
            gradient[k] = 256 * gradient_of(step + i, k, rank, 3);
        }
        if (step == OVERFLOWING && rank == 0) gradient[7] = INFINITY;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, (uint64_t)i, gradient, ODD_ELEMENTS,
                                                   TRIREME_DTYPE_F32));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
}

/* The last rank has data for one step less than the others. */
static void train_oddly(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    enum { ALL = (ODD_PARAMETERS - 1) * ODD_ELEMENTS }; /* names alone have none */
    float *const values[2] = {calloc(ALL, sizeof(float)), calloc(ALL, sizeof(float))};
    char *states[2];
    uint64_t bytes[2];
    for (int way = 0; way < 2; ++way) {
        trireme_model *const model = make_odd_model(v, ranks, job->strategy);
        for (int i = 0; i < ALL; ++i) values[way][i] = initial(i % ODD_ELEMENTS);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_broadcast_parameters(model, values[way], ALL, TRIREME_DTYPE_F32,
                                                         0));
        trireme_optimizer_options options =
            way == 0 ? rule_options(job->kind) : offload_options(job->kind, job->ratio);
        clipping_of(&options)->max_norm = 3;
        loss_scale_of(&options)->initial_scale = 256;
        trireme_optimizer *const optimizer = make_optimizer(v, model, options);
        const int steps = ODD_STEPS - (job->world_size > 1 && rank == job->world_size - 1);
        for (int step = 0; step < steps; ++step) odd_step(v, model, optimizer, step, rank);
        uint64_t followed = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_join(optimizer, &followed));
        EXPECT(v, followed == (uint64_t)(ODD_STEPS - steps));
        trireme_loss_scale_info info = TRIREME_LOSS_SCALE_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale_info(optimizer, &info));
        EXPECT(v, info.skipped_steps == 1 && info.scale == 128);
        memset(values[way], 0, ALL * sizeof(float));
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(model, values[way], ALL, TRIREME_DTYPE_F32));
        EXPECT(v, values[way][0] != initial(0)); /* it was trained */
        states[way] = save(v, optimizer, &bytes[way]);
        if (way == 1) EXPECT(v, info_of(v, optimizer).written_bytes > 0);
        trireme_optimizer_destroy(optimizer);
        trireme_model_destroy(model);
    }
    EXPECT(v, memcmp(values[0], values[1], ALL * sizeof(float)) == 0);
    EXPECT(v, bytes[0] == bytes[1] && memcmp(states[0], states[1], bytes[0]) == 0);
    for (int way = 0; way < 2; ++way) {
        free(values[way]);
        free(states[way]);
    }
}

static void skipped_and_uneven_steps_give_the_same_bits(void **state) {
    (void)state;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        for (int world_size = 1; world_size <= 3; ++world_size) {
            struct job job = {.kind = TRIREME_RULE_ADAM,
                              .strategy = strategy,
                              .world_size = world_size,
                              .ratio = world_size % 2 == 0 ? 0.5 : 1};
            run_job(&job, train_oddly);
        }
    }
}

/* ---- saved, loaded, read and written ---- */

static void resume_both_ways(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    for (int way = 0; way < 2; ++way) { /* from memory to a file, and back */
        trireme_optimizer_options options[2] = {rule_options(job->kind),
                                                offload_options(job->kind, job->ratio)};
        trireme_model *model = make_model(v, ranks, job->strategy, job->world_size);
        trireme_optimizer *optimizer = make_optimizer(v, model, options[way]);
        train_steps(v, model, optimizer, 0, 1, rank, job->world_size);
        uint64_t bytes = 0;
        char *const state = save(v, optimizer, &bytes);
        trireme_optimizer_destroy(optimizer);
        optimizer = make_optimizer(v, model, options[1 - way]);
        train_steps(v, model, optimizer, 1, 2, rank, job->world_size); /* of another past */
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(optimizer, state, bytes));
        free(state);
        train_steps(v, model, optimizer, 1, STEPS, rank, job->world_size);
        float values[TOTAL], expected[TOTAL];
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(model, values, TOTAL, TRIREME_DTYPE_F32));
        EXPECT(v, expect_plain(job->kind, expected));
        EXPECT(v, memcmp(values, expected, sizeof values) == 0);
        trireme_optimizer_destroy(optimizer);
        trireme_model_destroy(model);
    }
}

static void saved_state_goes_both_ways(void **state) {
    (void)state;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        struct job job = {.kind = TRIREME_RULE_USER,
                          .strategy = strategy,
                          .world_size = 1 + strategy % 3,
                          .ratio = 0.6};
        run_job(&job, resume_both_ways);
    }
}

/* Ranges of a training in a file hold what those of one in memory do, and can be written. */
static void compare_ranges(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *models[2];
    trireme_optimizer *optimizers[2];
    for (int way = 0; way < 2; ++way) {
        models[way] = make_model(v, ranks, job->strategy, job->world_size);
        optimizers[way] = make_optimizer(v, models[way],
                                         way == 0 ? rule_options(job->kind)
                                                  : offload_options(job->kind, job->ratio));
        train_steps(v, models[way], optimizers[way], 0, 1, rank, job->world_size);
    }
    uint64_t count = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizers[1], &count));
    float data[TOTAL], again[TOTAL];
    for (uint64_t i = 0; i < count; ++i) {
        trireme_state_range range[2] = {TRIREME_STATE_RANGE_INIT, TRIREME_STATE_RANGE_INIT};
        for (int way = 0; way < 2; ++way) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_get_range(optimizers[way], i, &range[way]));
        }
        const bool in_state = range[1].kind == TRIREME_STATE_KIND_OPTIMIZER;
        EXPECT(v, (range[1].data == NULL) == in_state && range[0].data != NULL);
        if (!EXPECT(v, range[0].first == range[1].first && range[0].count == range[1].count)) break;
        const uint64_t bytes = range[0].count * sizeof(float);
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_read_range(optimizers[1], i, data, bytes));
        EXPECT(v, memcmp(data, range[0].data, bytes) == 0);
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_read_range(optimizers[0], i, data, bytes));
        EXPECT(v, memcmp(data, range[0].data, bytes) == 0);
        if (!in_state) continue;
        for (uint64_t k = 0; k < range[0].count; ++k) data[k] = data[k] * 2 + (float)(k % 5);
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_write_range(optimizers[1], i, data, bytes));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_read_range(optimizers[1], i, again, bytes));
        EXPECT(v, memcmp(data, again, bytes) == 0);
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_write_range(optimizers[0], i, data, bytes));
        EXPECT(v, memcmp(data, range[0].data, bytes) == 0);
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                      trireme_optimizer_read_range(optimizers[1], i, data, bytes - 4));
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                      trireme_optimizer_write_range(optimizers[1], i, data, bytes + 4));
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                      trireme_optimizer_read_range(optimizers[1], i, NULL, bytes));
    }
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_read_range(optimizers[1], count, data, 4));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_write_range(optimizers[1], count, data, 4));
    /* Both go on with the written values. */
    float values[2][TOTAL];
    for (int way = 0; way < 2; ++way) {
        train_steps(v, models[way], optimizers[way], 1, STEPS, rank, job->world_size);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(models[way], values[way], TOTAL,
                                                      TRIREME_DTYPE_F32));
    }
    EXPECT(v, memcmp(values[0], values[1], sizeof values[0]) == 0);
    for (int way = 0; way < 2; ++way) {
        trireme_optimizer_destroy(optimizers[way]);
        trireme_model_destroy(models[way]);
    }
}

static void ranges_are_read_and_written(void **state) {
    (void)state;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        struct job job = {.kind = TRIREME_RULE_ADAM,
                          .strategy = strategy,
                          .world_size = 1 + strategy % 4,
                          .ratio = strategy % 2 == 0 ? 0.5 : 1};
        run_job(&job, compare_ranges);
    }
}

/* ---- refusals ---- */

static void refuse(struct verdict *v, trireme_model *model, trireme_optimizer_options options,
                   trireme_status status, const char *words) {
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, status, trireme_optimizer_create(model, &options, &optimizer));
    EXPECT(v, optimizer == NULL);
    /* A rank without a failure of its own gets the words of a rank that has one. */
    if (!says(words) && !(status == TRIREME_ERROR_SYSTEM && says("answered SYSTEM"))) {
        expect_failed(v, __FILE__, __LINE__, words);
        expect_failed(v, __FILE__, __LINE__, trireme_last_error());
    }
}

static void ask_for_what_cannot_be(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, TRIREME_STRATEGY_ZERO1, job->world_size);
    const trireme_status wrong = TRIREME_ERROR_INVALID_ARGUMENT;
    const trireme_optimizer_options good = offload_options(TRIREME_RULE_ADAM, 1);
    trireme_optimizer_options options = good;
    const double bad[] = {-0.5, 1.5, (double)NAN};
    for (int i = 0; i < 3; ++i) {
        state_file_of(&options)->ratio = bad[i];
        refuse(v, model, options, wrong, "options.offload.ratio");
    }
    options = good;
    state_file_of(&options)->buffer_bytes = LEAST_BUFFER - 1;
    refuse(v, model, options, wrong, "below 32768");
    options = good;
    state_file_of(&options)->path = NULL;
    refuse(v, model, options, wrong, "options.offload.path");
    state_file_of(&options)->path = "";
    refuse(v, model, options, wrong, "options.offload.path is empty");
    options = good;
    state_file_of(&options)->flags = 1;
    refuse(v, model, options, wrong, "options.offload.flags is 1");
    options = good;
    state_file_of(&options)->struct_size = 4;
    refuse(v, model, options, wrong, "options.offload.struct_size is 4");
    options = offload_options(TRIREME_RULE_SGD, 1);
    set_momentum(&options, 0);
    refuse(v, model, options, wrong, "means nothing to sgd");
    for (trireme_rule_kind kind = TRIREME_RULE_LAMB; kind <= TRIREME_RULE_LARS; ++kind) {
        refuse(v, model, offload_options(kind, 1), TRIREME_ERROR_UNSUPPORTED, "trust ratios");
    }
    refuse(v, model, offload_options(TRIREME_RULE_MUON, 1), TRIREME_ERROR_UNSUPPORTED,
           "whole matrices");
    options = good;
    options.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
    refuse(v, model, options, TRIREME_ERROR_UNSUPPORTED, "ONE_SWEEP with options.offload");
    /* No directory, on all ranks or on one alone. */
    options = good;
    state_file_of(&options)->path = "/nowhere/at/all";
    refuse(v, model, options, TRIREME_ERROR_SYSTEM, "/nowhere/at/all");
    if (rank != job->world_size - 1) state_file_of(&options)->path = directory;
    refuse(v, model, options, TRIREME_ERROR_SYSTEM, "/nowhere/at/all");
    if (job->world_size > 1) {
        options = rank == 0 ? good : rule_options(TRIREME_RULE_ADAM);
        refuse(v, model, options, TRIREME_ERROR_MISMATCH, "offload");
        options = good;
        if (rank == 0) state_file_of(&options)->ratio = 0.5;
        refuse(v, model, options, TRIREME_ERROR_MISMATCH, "offload.ratio");
    }
    /* After all that one is made, and trains. */
    trireme_optimizer *optimizer = make_optimizer(v, model, good);
    train_steps(v, model, optimizer, 0, STEPS, rank, job->world_size);
    trireme_offload_info info = TRIREME_OFFLOAD_INFO_INIT;
    EXPECT_STATUS(v, wrong, trireme_optimizer_get_offload_info(optimizer, NULL));
    info.struct_size = 111;
    EXPECT_STATUS(v, wrong, trireme_optimizer_get_offload_info(optimizer, &info));
    trireme_optimizer_destroy(optimizer);
    info.struct_size = sizeof info;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_optimizer_get_offload_info(optimizer, &info));
    optimizer = make_optimizer(v, model, rule_options(TRIREME_RULE_ADAM));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_get_offload_info(optimizer, &info));
    EXPECT(v, says("without options.offload") && info.path == NULL);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 3; ++world_size) {
        struct job job = {.world_size = world_size};
        run_job(&job, ask_for_what_cannot_be);
    }
}

static void find_no_room(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, TRIREME_STRATEGY_ZERO1, job->world_size);
    trireme_optimizer *none = NULL;
    const trireme_optimizer_options options = offload_options(TRIREME_RULE_ADAM, 1);
    EXPECT_STATUS(v, TRIREME_ERROR_SYSTEM, trireme_optimizer_create(model, &options, &none));
    if (!says("answered SYSTEM")) {
        __atomic_add_fetch(&job->told, 1, __ATOMIC_RELAXED);
        EXPECT(v, says("a file of ") && says(directory) && says("bytes are free"));
        EXPECT(v, says("No space left on device"));
    }
    trireme_optimizer *const optimizer = make_optimizer(v, model, rule_options(TRIREME_RULE_ADAM));
    train_steps(v, model, optimizer, 0, 1, rank, job->world_size);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_full_disk_is_told_at_creation(void **state) {
    (void)state;
    assert_int_equal(trireme_failpoint_set("file.reserve=fail(28)@2"), TRIREME_OK); /* ENOSPC */
    struct job job = {.world_size = 3};
    run_job(&job, find_no_room);
    assert_int_equal(job.told, 1);
    assert_int_equal(trireme_failpoint_set("file.reserve=fail(28)"), TRIREME_OK);
    job.told = 0;
    job.world_size = 1;
    run_job(&job, find_no_room);
    assert_int_equal(job.told, 1);
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
}

/* A limit of memory counts only memory: resident state and buffers. */
static void keep_to_a_limit(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options model_options = TRIREME_MODEL_OPTIONS_INIT;
    model_options.strategy = TRIREME_STRATEGY_ZERO1;
    model_options.memory_limit_bytes = 1u << 20;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &model_options, &model));
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    const uint64_t elements = 100000; /* 400,000 bytes of parameters, and of gradients */
    parameter.name = "p";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    refuse(v, model, rule_options(TRIREME_RULE_ADAM), TRIREME_ERROR_OUT_OF_MEMORY,
           "memory_limit_bytes");
    trireme_optimizer *const optimizer =
        make_optimizer(v, model, offload_options(TRIREME_RULE_ADAM, 1));
    expect_planned(v, model, optimizer);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_limit_of_memory_counts_memory_only(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 2; ++world_size) {
        struct job job = {.world_size = world_size};
        run_job(&job, keep_to_a_limit);
    }
}

/* State that is large enough for the largest blocks of the default buffer. */
static void open_with_some_buffers(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO1;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    const uint64_t elements = 5000000; /* 40,000,000 bytes of state */
    parameter.name = "p";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    static const uint64_t kBuffers[] = {0, 8 << 20, 4 << 20};
    for (int i = 0; i < 3; ++i) {
        trireme_optimizer_options rule = offload_options(TRIREME_RULE_ADAM, 1);
        state_file_of(&rule)->buffer_bytes = kBuffers[i];
        trireme_optimizer *const optimizer = make_optimizer(v, model, rule);
        const trireme_offload_info info = info_of(v, optimizer);
        const uint64_t buffer = i == 2 ? 4 << 20 : 8 << 20;
        EXPECT(v, info.buffer_bytes == buffer && info.block_bytes == buffer / 8);
        EXPECT(v, info.file_bytes >= 8 * elements && info.resident_bytes == 0);
        trireme_optimizer_destroy(optimizer);
    }
    trireme_model_destroy(model);
}

static void the_default_buffer_is_what_the_header_says(void **state) {
    (void)state;
    struct job job = {.world_size = 1};
    run_job(&job, open_with_some_buffers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_and_rule_gives_the_same_bits),
        cmocka_unit_test(blocks_of_many_pieces_give_the_same_bits),
        cmocka_unit_test(without_ring_or_direct_the_bits_are_the_same),
        cmocka_unit_test(the_info_tells_what_is_refused),
        cmocka_unit_test(skipped_and_uneven_steps_give_the_same_bits),
        cmocka_unit_test(saved_state_goes_both_ways),
        cmocka_unit_test(ranges_are_read_and_written),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(a_full_disk_is_told_at_creation),
        cmocka_unit_test(a_limit_of_memory_counts_memory_only),
        cmocka_unit_test(the_default_buffer_is_what_the_header_says),
    };
    return cmocka_run_group_tests_name("offload", tests, make_directory, remove_directory);
}
