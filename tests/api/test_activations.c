/*
 * Activations in a file: the bits of a plain loop for every strategy, window and choice of
 * checkpoints; callbacks that see their own bytes again; exact plans; and a disk that fails.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <options.h>
#include <ranks.h>

#include "directory.inc"
#include "trainer_job.inc"

enum { PAGE = 4096 };

static uint64_t pages(uint64_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static trireme_offload_info offload_info(struct verdict *v, const trireme_trainer *trainer) {
    trireme_offload_info info = TRIREME_OFFLOAD_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_offload_info(trainer, &info));
    return info;
}

static void expect_planned(struct verdict *v, const trireme_trainer *trainer) {
    trireme_trainer_info info = TRIREME_TRAINER_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_info(trainer, &info));
    const trireme_offload_info file = offload_info(v, trainer);
    EXPECT(v, info.planned_checkpoint_bytes == 0);
    EXPECT(v, info.planned_window_bytes == file.buffer_bytes + file.resident_bytes);
    EXPECT(v, info.allocated_bytes == info.planned_window_bytes + info.planned_stretch_bytes +
                                          info.planned_gradient_bytes +
                                          info.planned_parameter_gradient_bytes +
                                          info.planned_exchange_bytes);
}

/* ---- the same bits ---- */

/* Steps that are compared with nothing. */
static void draw_seeds(trireme_communicator *communicator, int number, void *context) {
    struct rank r = start(context, number);
    make(&r, communicator);
    for (int step = 0; step < STEPS; ++step) {
        EXPECT_STATUS(r.verdict, TRIREME_OK, trireme_trainer_step(r.trainer, &r, NULL));
    }
    unmake(&r);
}

static const struct curve *reproducible(void) {
    static struct curve curve;
    if (curve.losses[0] != 0) return &curve;
    struct job job = job_of(TRIREME_STRATEGY_DATA_PARALLEL, 1, &curve);
    run_job(&job, draw_seeds);
    plain_leaves(LEAVES, STEPS, seed_of, &curve);
    return &curve;
}

/* Items of the small network, each of a page: the last layer keeps nothing. */
static uint64_t file_pages(const struct job *job) {
    const int every = (int)job->checkpoint_every;
    const int all = every == 0 || every >= LAYERS ? LAYERS : (LAYERS - 1) / every;
    int slots = job->offload_buffer == 0 ? 4 : (int)(job->offload_buffer / PAGE);
    /* One more costs nothing where it is that of the last layer alone. */
    if (every == 0 && job->offload_buffer / PAGE == LAYERS - 1) slots = LAYERS;
    return slots >= all ? 0 : (uint64_t)(all - slots);
}

static void train(trireme_communicator *communicator, int number, void *context) {
    struct job *const job = context;
    struct rank r = start(job, number);
    struct verdict *const v = r.verdict;
    make(&r, communicator);
    double loss = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_evaluate(r.trainer, &r, &loss));
    trireme_offload_info info = offload_info(v, r.trainer);
    EXPECT(v, info.written_bytes == 0 && info.read_bytes == 0);
    EXPECT(v, strcmp(info.path, directory) == 0);
    EXPECT(v, (info.direct != 0) == (info.why_not_direct[0] == 0));
    EXPECT(v, (info.io_uring != 0) == (info.why_not_io_uring[0] == 0));
    for (int step = 0; step < job->steps; ++step) {
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, &metrics));
        EXPECT(v, memcmp(&metrics.loss, &job->right->losses[step], sizeof(double)) == 0);
        if (v->text[0] != 0) break;
    }
    check_values(&r);
    expect_planned(v, r.trainer);
    int own = job->micro_batches;
    if (job->leaves > 0) {
        own = number < job->leaves ? (job->leaves - number - 1) / job->world_size + 1 : 0;
    }
    info = offload_info(v, r.trainer);
    EXPECT(v, info.file_bytes == file_pages(job) * PAGE);
    EXPECT(v, info.written_bytes == info.file_bytes * (uint64_t)(own * job->steps));
    EXPECT(v, info.read_bytes == info.written_bytes);
    EXPECT(v, info.resident_bytes == 0 && info.failed_writes == 0);
    EXPECT(v, job->offload_buffer == 0 || info.buffer_bytes <= job->offload_buffer);
    trireme_trainer_info about = TRIREME_TRAINER_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_info(r.trainer, &about));
    EXPECT(v, r.calls[TRIREME_PHASE_RECOMPUTE] == own * (int)about.recomputed * job->steps);
    unmake(&r);
}

static void run(struct job *job, rank_function *body) {
    run_job(job, body);
    assert_int_equal(files_in_directory(), 0);
}

static void every_training_has_the_bits_of_a_plain_loop(void **state) {
    (void)state;
    const struct curve *const right = reproducible();
    for (int world_size = 1; world_size <= 3; ++world_size) {
        for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
            for (uint64_t every = 0; every <= 2; ++every) {
                for (uint64_t slots = 0; slots <= 6; ++slots) {
                    /* Each pair of them meets, and not each with all others. */
                    const uint64_t all = s + slots + every + (uint64_t)world_size;
                    if (slots == 1 || all % (is_quick() ? 7 : 2) != 0) continue;
                    struct job job = job_of(s, world_size, right);
                    job.checkpoint_every = every;
                    job.offload_path = directory;
                    job.offload_buffer = slots * PAGE;
                    job.share = slots % 2 == 0;
                    run(&job, train);
                }
            }
        }
    }
    for (int world_size = 5; world_size <= 8 && !is_quick(); world_size += 3) {
        struct job job = job_of(TRIREME_STRATEGY_ZERO3, world_size, right);
        job.offload_path = directory;
        job.offload_buffer = 2 * PAGE;
        run(&job, train);
    }
}

static void micro_batches_take_the_same_places(void **state) {
    (void)state;
    reproducible();
    for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
        struct curve right;
        plain_ranks(2, 3, s <= TRIREME_STRATEGY_ZERO1, STEPS, seed_of, &right);
        struct job job = job_of(s, 2, &right);
        job.leaves = 0;
        job.micro_batches = 3;
        job.offload_path = directory;
        job.offload_buffer = 3 * PAGE;
        run(&job, train);
    }
}

static void without_ring_or_direct_the_bits_are_the_same(void **state) {
    (void)state;
    static const char *const kRefused[] = {"file.ring=fail(1)", "file.direct=fail(22)",
                                           "file.ring=fail(38);file.direct=fail(95)"};
    for (int i = 0; i < 3; ++i) {
        struct job job = job_of(TRIREME_STRATEGY_ZERO2, 2, reproducible());
        job.offload_path = directory;
        job.offload_buffer = 2 * PAGE;
        assert_int_equal(trireme_failpoint_set(kRefused[i]), TRIREME_OK);
        run(&job, train);
        assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
    }
}

/* ---- layers of all sizes ---- */

enum { MOST_LAYERS = 9 };

/* Layers that only check their own activations. */
struct sizes {
    int layers;
    uint64_t outputs[MOST_LAYERS], saved[MOST_LAYERS];
    uint64_t every, budget, buffer;
    bool given; /* the budget or the buffer */
    trireme_status status;
    char message[400];
    trireme_trainer_info info;
    trireme_offload_info file;
    struct verdict *verdict;
};

/* Numbers without two equal stretches; a key tells where they begin. */
static unsigned char pattern[2 << 20];

static void draw_pattern(void) {
    uint64_t random = 88172645463325252u;
    for (size_t i = 0; i < sizeof pattern; i += sizeof random) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        memcpy(pattern + i, &random, sizeof random);
    }
}

static void fill(void *memory, uint64_t bytes, uint64_t key) {
    if (bytes > 0) memcpy(memory, pattern + key, bytes);
}

static bool is_filled(const void *memory, uint64_t bytes, uint64_t key) {
    return bytes == 0 || memcmp(memory, pattern + key, bytes) == 0;
}

static uint64_t key_of(const trireme_layer_call *c, uint64_t layer) {
    return layer + 16 * c->leaf + 256 * c->step;
}

static int32_t TRIREME_CALLCONV look_forward(const trireme_layer_call *c, void *user_data) {
    const struct sizes *const sizes = user_data;
    EXPECT(sizes->verdict, (uintptr_t)c->output % 64 == 0 && (uintptr_t)c->saved % 64 == 0);
    if (c->layer > 0) {
        EXPECT(sizes->verdict, is_filled(c->input, c->input_bytes, key_of(c, c->layer - 1)));
    }
    fill(c->output, c->output_bytes, key_of(c, c->layer));
    fill(c->saved, c->saved_bytes, key_of(c, c->layer) + 7);
    if (c->loss != NULL) *c->loss = 1;
    return 0;
}

static int32_t TRIREME_CALLCONV look_backward(const trireme_layer_call *c, void *user_data) {
    const struct sizes *const sizes = user_data;
    if (c->layer > 0) {
        EXPECT(sizes->verdict, is_filled(c->input, c->input_bytes, key_of(c, c->layer - 1)));
        fill(c->input_gradient, c->input_bytes, c->layer);
    }
    EXPECT(sizes->verdict, is_filled(c->output, c->output_bytes, key_of(c, c->layer)));
    EXPECT(sizes->verdict, is_filled(c->saved, c->saved_bytes, key_of(c, c->layer) + 7));
    fill(c->saved, c->saved_bytes, 3); /* it may */
    if (c->output_gradient != NULL) {
        EXPECT(sizes->verdict, is_filled(c->output_gradient, c->output_bytes, c->layer + 1));
    }
    ((float *)c->gradients[0])[0] = (float)c->layer;
    return 0;
}

static void look(trireme_communicator *communicator, int number, void *context) {
    struct sizes *const sizes = context;
    struct verdict *const v = sizes->verdict;
    (void)number;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_DATA_PARALLEL;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    trireme_layer layers[MOST_LAYERS];
    char names[MOST_LAYERS][4];
    for (int l = 0; l < sizes->layers; ++l) {
        const uint64_t one = 1;
        snprintf(names[l], sizeof names[l], "l%d", l % 10);
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = names[l];
        parameter.dtype = F32;
        parameter.dimensions = 1;
        parameter.shape = &one;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
        layers[l] = (trireme_layer)TRIREME_LAYER_INIT;
        layers[l].name = names[l];
        layers[l].first_parameter = (uint64_t)l;
        layers[l].parameter_count = 1;
        layers[l].forward = look_forward;
        layers[l].backward = look_backward;
        layers[l].user_data = sizes;
        layers[l].output_bytes = sizes->outputs[l];
        layers[l].saved_bytes = sizes->saved[l];
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    trireme_trainer_options how = TRIREME_TRAINER_OPTIONS_INIT;
    how.micro_batches = 2;
    how.checkpoint_every = sizes->every;
    how.activation_budget_bytes = sizes->budget;
    activation_file_of(&how)->path = directory;
    activation_file_of(&how)->buffer_bytes = sizes->buffer;
    trireme_trainer *trainer = NULL;
    sizes->status =
        trireme_trainer_create(optimizer, layers, (uint64_t)sizes->layers, &how, &trainer);
    if (sizes->status != TRIREME_OK) {
        snprintf(sizes->message, sizeof sizes->message, "%s", trireme_last_error());
        EXPECT(v, trainer == NULL);
    } else {
        for (int step = 1; step <= 2; ++step) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(trainer, NULL, NULL));
            float values[MOST_LAYERS];
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_gather_parameters(model, values, (uint64_t)sizes->layers,
                                                          F32));
            /* Gradients of two micro-batches are added up. */
            for (int l = 0; l < sizes->layers; ++l) EXPECT(v, values[l] == (float)(-2 * l * step));
        }
        expect_planned(v, trainer);
        sizes->info = (trireme_trainer_info)TRIREME_TRAINER_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_info(trainer, &sizes->info));
        sizes->file = offload_info(v, trainer);
        sizes->file.path = sizes->file.why_not_direct = sizes->file.why_not_io_uring = NULL;
        EXPECT(v, sizes->file.written_bytes == 4 * sizes->file.file_bytes);
        EXPECT(v, sizes->file.read_bytes == 4 * sizes->file.file_bytes);
    }
    trireme_trainer_destroy(trainer);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void run_sizes(struct sizes *sizes) {
    struct verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    sizes->verdict = &verdict;
    run_ranks(1, look, sizes);
    assert_verdicts(&verdict, 1);
    assert_int_equal(files_in_directory(), 0);
}

static uint64_t piece(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* Memory of `slots` slots that items of layers take in turn. */
static uint64_t window_of(const struct sizes *sizes, int slots) {
    uint64_t sum = 0;
    for (int slot = 0; slot < slots; ++slot) {
        uint64_t most = 0;
        for (int l = slot; l < sizes->layers; l += slots) {
            const uint64_t item = pages(piece(sizes->outputs[l]) + piece(sizes->saved[l]));
            if (item > most) most = item;
        }
        sum += most;
    }
    return sum;
}

static uint64_t gradients_of(const struct sizes *sizes) {
    uint64_t most[2] = {0, 0};
    for (int l = 0; l + 1 < sizes->layers; ++l) {
        if (piece(sizes->outputs[l]) > most[l % 2]) most[l % 2] = piece(sizes->outputs[l]);
    }
    return most[0] + most[1];
}

static void plans_are_exact_and_what_is_too_little_is_refused(void **state) {
    (void)state;
    static const struct sizes kAll[] = {
        {.layers = 1, .outputs = {0}, .saved = {70000}},
        {.layers = 1, .outputs = {5000}, .saved = {0}},
        {.layers = 2, .outputs = {5000, 100}, .saved = {1, 9000}},
        {.layers = 3, .outputs = {64, 64, 0}, .saved = {0, 0, 0}},
        {.layers = 6,
         .outputs = {40000, 100, 100, 50000, 100, 100},
         .saved = {0, 0, 0, 60000, 7, 0}},
        {.layers = 9,
         .outputs = {4096, 4097, 12345, 0, 0, 300000, 4095, 1, 0},
         .saved = {0, 8192, 1, 0, 5, 200000, 1000000, 0, 33}},
    };
    for (size_t i = 0; i < sizeof kAll / sizeof kAll[0]; ++i) {
        const int layers = kAll[i].layers;
        uint64_t least = UINT64_MAX;
        for (int slots = layers < 2 ? 1 : 2; slots <= layers; ++slots) {
            const uint64_t bytes = window_of(&kAll[i], slots);
            if (bytes < least) least = bytes;
        }
        const uint64_t gradients = gradients_of(&kAll[i]);
        for (int slots = layers < 2 ? 1 : 2; slots <= layers; ++slots) {
            for (int by_budget = 0; by_budget < 2; ++by_budget) {
                struct sizes sizes = kAll[i];
                const uint64_t most = window_of(&sizes, slots);
                if (by_budget) {
                    sizes.budget = most + gradients;
                } else {
                    sizes.buffer = most;
                }
                run_sizes(&sizes);
                assert_int_equal(sizes.status, TRIREME_OK);
                int chosen = 0; /* the most that fit */
                for (int k = layers < 2 ? 1 : 2; k <= layers; ++k) {
                    if (window_of(&sizes, k) <= most) chosen = k;
                }
                uint64_t in_file = 0;
                for (int l = 0; l + chosen < layers; ++l) {
                    in_file += pages(piece(sizes.outputs[l]) + piece(sizes.saved[l]));
                }
                assert_int_equal(sizes.info.planned_window_bytes, window_of(&sizes, chosen));
                assert_int_equal(sizes.info.planned_gradient_bytes, gradients);
                assert_int_equal(sizes.info.planned_stretch_bytes, 0);
                assert_int_equal(sizes.info.recomputed, 0);
                assert_int_equal(sizes.info.least_bytes, least + gradients);
                assert_int_equal(sizes.file.file_bytes, in_file);
            }
        }
        for (int by_budget = 0; by_budget < 2; ++by_budget) {
            struct sizes sizes = kAll[i];
            if (by_budget) {
                sizes.budget = least + gradients - 1;
            } else {
                sizes.buffer = least - 1;
            }
            run_sizes(&sizes);
            assert_int_equal(sizes.status, TRIREME_ERROR_OUT_OF_MEMORY);
            char words[100];
            snprintf(words, sizeof words, "%s is %llu, but the least that works is %llu",
                     by_budget ? "activation_budget_bytes" : "offload.buffer_bytes",
                     (unsigned long long)(by_budget ? sizes.budget : sizes.buffer),
                     (unsigned long long)(by_budget ? least + gradients : least));
            if (strstr(sizes.message, words) == NULL) fail_msg("%s", sizes.message);
        }
    }
}

static void checkpoints_alone_go_through_the_window(void **state) {
    (void)state;
    struct sizes sizes = {.layers = 9,
                          .outputs = {5000, 6000, 70000, 1, 2, 9000, 4, 5, 6},
                          .saved = {100, 20000, 1, 0, 0, 7, 8, 9, 10000},
                          .every = 2,
                          .buffer = 5 * PAGE};
    run_sizes(&sizes);
    assert_int_equal(sizes.status, TRIREME_OK);
    /* Of outputs 1, 3, 5 and 7 two are there: 6000 and 9000, 1 and 5 bytes. */
    assert_int_equal(sizes.info.planned_window_bytes, pages(9000) + PAGE);
    assert_int_equal(sizes.file.file_bytes, pages(6000) + PAGE);
    assert_int_equal(sizes.info.recomputed, 8);
    /* Layers 2 and 3 without the output of the latter. */
    assert_int_equal(sizes.info.planned_stretch_bytes, piece(70000) + piece(1));
    sizes.buffer = pages(9000) + PAGE - 1;
    run_sizes(&sizes);
    assert_int_equal(sizes.status, TRIREME_ERROR_OUT_OF_MEMORY);
    assert_non_null(strstr(sizes.message, "offload.buffer_bytes"));
}

static void items_of_several_parts_come_back(void **state) {
    (void)state;
    static const char *const kTrials[] = {"", "file.read=short;file.write=short",
                                          "file.ring=fail(1);file.read=short;file.write=short"};
    for (int i = 0; i < (is_quick() ? 1 : 3); ++i) {
        struct sizes sizes = {.layers = 5, .buffer = 3 * (3 << 20)};
        for (int l = 0; l < 5; ++l) {
            sizes.outputs[l] = (1 << 20) + 100 * (uint64_t)l;
            sizes.saved[l] = (1 << 20) + 77;
        }
        assert_int_equal(trireme_failpoint_set(kTrials[i][0] != 0 ? kTrials[i] : NULL), TRIREME_OK);
        run_sizes(&sizes);
        assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
        assert_int_equal(sizes.status, TRIREME_OK);
        assert_true(sizes.file.file_bytes > 2 << 20);
    }
}

/* ---- refusals ---- */

static void refuse(struct rank *r, trireme_status status, const trireme_trainer_options *options,
                   const char *named) {
    trireme_layer layers[LAYERS];
    describe_layers(r, layers);
    EXPECT_STATUS(r->verdict, status,
                  trireme_trainer_create(r->optimizer, layers, LAYERS, options, &r->trainer));
    EXPECT(r->verdict, strstr(trireme_last_error(), named) != NULL);
    EXPECT(r->verdict, r->trainer == NULL);
}

static void misuse(trireme_communicator *communicator, int number, void *context) {
    struct rank r = start(context, number);
    struct verdict *const v = r.verdict;
    make_model(&r, communicator, 0);
    trireme_trainer_options options = options_of(&r);
    activation_file_of(&options)->path = "";
    refuse(&r, TRIREME_ERROR_INVALID_ARGUMENT, &options, "options.offload.path is empty");
    activation_file_of(&options)->path = NULL;
    refuse(&r, TRIREME_ERROR_INVALID_ARGUMENT, &options, "options.offload.path");
    activation_file_of(&options)->path = directory;
    activation_file_of(&options)->ratio = 1;
    refuse(&r, TRIREME_ERROR_INVALID_ARGUMENT, &options, "options.offload.ratio 1");
    activation_file_of(&options)->ratio = 0;
    activation_file_of(&options)->buffer_bytes = 1;
    refuse(&r, TRIREME_ERROR_OUT_OF_MEMORY, &options, "the least that works is 8192");
    activation_file_of(&options)->buffer_bytes = UINT64_MAX;
    options.checkpoint_every = 1;
    options.activation_budget_bytes = 1;
    refuse(&r, TRIREME_ERROR_INVALID_ARGUMENT, &options, "both");
    options.checkpoint_every = 0;
    refuse(&r, TRIREME_ERROR_OUT_OF_MEMORY, &options, "activation_budget_bytes is 1, but");
    /* On one rank alone; the others hear of it. */
    options = options_of(&r);
    activation_file_of(&options)->path = number == 1 ? "/nowhere/at/all" : directory;
    refuse(&r, TRIREME_ERROR_SYSTEM, &options, number == 1 ? "/nowhere/at/all" : "rank 1");
    activation_file_of(&options)->path = directory;
    if (number == 1) options.offload = NULL;
    refuse(&r, TRIREME_ERROR_MISMATCH, &options, "offload");
    activation_file_of(&options)->path = directory;
    activation_file_of(&options)->buffer_bytes = (uint64_t)(number + 2) * PAGE;
    refuse(&r, TRIREME_ERROR_MISMATCH, &options, "offload.buffer_bytes");
    options = options_of(&r);
    trireme_layer layers[LAYERS];
    describe_layers(&r, layers);
    trireme_offload_info info = TRIREME_OFFLOAD_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_trainer_get_offload_info(NULL, &info));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_trainer_create(r.optimizer, layers, LAYERS, &options, &r.trainer));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_trainer_get_offload_info(r.trainer, &info));
    EXPECT(v, strstr(trireme_last_error(), "offload") != NULL && info.path == NULL);
    trireme_trainer_destroy(r.trainer);
    char path[sizeof directory];
    memcpy(path, directory, sizeof path);
    activation_file_of(&options)->path = path;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_trainer_create(r.optimizer, layers, LAYERS, &options, &r.trainer));
    memset(path, 0, sizeof path); /* it was copied */
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_trainer_get_offload_info(r.trainer, NULL));
    info.struct_size = 8;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_trainer_get_offload_info(r.trainer, &info));
    EXPECT(v, strcmp(offload_info(v, r.trainer).path, directory) == 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, NULL));
    unmake(&r);
}

static void arguments_are_checked(void **state) {
    (void)state;
    reproducible();
    struct job job = job_of(TRIREME_STRATEGY_ZERO1, 2, NULL);
    run(&job, misuse);
}

int main(void) {
    draw_pattern();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_training_has_the_bits_of_a_plain_loop),
        cmocka_unit_test(micro_batches_take_the_same_places),
        cmocka_unit_test(without_ring_or_direct_the_bits_are_the_same),
        cmocka_unit_test(plans_are_exact_and_what_is_too_little_is_refused),
        cmocka_unit_test(checkpoints_alone_go_through_the_window),
        cmocka_unit_test(items_of_several_parts_come_back),
        cmocka_unit_test(arguments_are_checked),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
