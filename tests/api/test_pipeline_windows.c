/*
 * Stages whose activations go to a file and come back: the bits of a plain loop for each schedule,
 * in memory as planned, with as many transfers as the schedule says. A disk that fails leaves no
 * trace: all ranks hear of it, and the next step is right.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <ranks.h>

#include "directory.inc"
#include "pipeline_chain_checks.inc"
#include "pipeline_chain_seeds.inc"

#define LEAVES 6
enum { PAGE = 4096 };

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

/* Some pipelines have one memory then, and some send messages. Budgets alone differ there. */
static bool are_hosts_mixed(void) {
    return getenv("TRIREME_TESTS_HOSTS") != NULL && !ranks_use_transport();
}

static trireme_offload_info files[MOST_RANKS];

/* ---- the same bits ---- */

static void check_info(struct rank *r) {
    struct verdict *const v = r->verdict;
    trireme_trainer_info *const info = &r->job->info[r->number];
    trireme_offload_info *const file = &files[r->number];
    *info = (trireme_trainer_info)TRIREME_TRAINER_INFO_INIT;
    *file = (trireme_offload_info)TRIREME_OFFLOAD_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_info(r->trainer, info));
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_offload_info(r->trainer, file));
    EXPECT(v, info->planned_window_bytes == file->buffer_bytes + file->resident_bytes);
    EXPECT(v, info->allocated_bytes ==
                  info->planned_checkpoint_bytes + info->planned_stretch_bytes +
                      info->planned_gradient_bytes + info->planned_parameter_gradient_bytes +
                      info->planned_exchange_bytes + info->planned_window_bytes);
    const uint64_t activations =
        info->planned_stretch_bytes + info->planned_gradient_bytes + file->buffer_bytes;
    EXPECT(v, info->least_bytes <= activations);
    EXPECT(v, r->job->budget == 0 || activations <= r->job->budget);
    EXPECT(v, r->job->window == 0 || file->buffer_bytes <= r->job->window);
    EXPECT(v, file->block_bytes <= 2 * PAGE && strcmp(file->path, directory) == 0);
    uint64_t twice = 0;
    for (int l = 0; l < LAYERS; ++l) twice += r->twice[l] ? 1 : 0;
    EXPECT(v, r->job->data == 4 ? info->recomputed >= twice : info->recomputed == twice);
}

static void train(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    double evaluated = 0;
    for (int step = 0; step < STEPS && v->text[0] == 0; ++step) {
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, &metrics));
        EXPECT(v, memcmp(&metrics.loss, &job->right->losses[step], sizeof(double)) == 0);
        EXPECT(v, metrics.gradient_norm == job->right->norms[step]);
    }
    if (v->text[0] == 0) {
        check_info(&r);
        const uint64_t written = files[number].written_bytes;
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_evaluate(r.trainer, &r, &evaluated));
        EXPECT(v, memcmp(&evaluated, &job->right->evaluated, sizeof evaluated) == 0);
        check_chain_values(&r);
        check_info(&r);
        EXPECT(v, files[number].written_bytes == written);
        EXPECT(v, files[number].read_bytes == written && files[number].failed_writes == 0);
        EXPECT(v, (written > 0) == (files[number].file_bytes > 0));
    }
    end_rank(&r);
}

static const struct curve *reproducible(void) {
    static struct curve curve;
    draw_seeds();
    if (curve.losses[0] == 0) plain_training(LEAVES, 0, 0, &curve);
    return &curve;
}

static const struct {
    trireme_pipeline_order order;
    int stages_per_rank;
} kOrders[] = {
    {TRIREME_PIPELINE_ORDER_GPIPE, 1},       {TRIREME_PIPELINE_ORDER_1F1B, 1},
    {TRIREME_PIPELINE_ORDER_INTERLEAVED, 2}, {TRIREME_PIPELINE_ORDER_ZB_H1, 1},
    {TRIREME_PIPELINE_ORDER_ZB_V, 2},        {TRIREME_PIPELINE_ORDER_BEST, 2},
    {TRIREME_PIPELINE_ORDER_DUALPIPE_V, 2},  {TRIREME_PIPELINE_ORDER_WAVE, 3},
    {TRIREME_PIPELINE_ORDER_LOOPED_BFS, 2},  {TRIREME_PIPELINE_ORDER_ZB_H2, 1},
    {TRIREME_PIPELINE_ORDER_V_HALF, 2},      {TRIREME_PIPELINE_ORDER_V_MIN, 2},
};
enum { ORDERS = sizeof kOrders / sizeof kOrders[0] };
static const unsigned kSplits[] = {0, 0xff, 0x55, 0x06};

/* With a file of the usual window, then of the least one. */
static void run_windows(struct job *job, int way) {
    static const uint64_t every[] = {0, 2, 0, 3, 0};
    static const enum second_forward again[] = {NO_R, NO_R, EACH_R, EARLY_R, EARLY_R};
    job->offload = directory;
    job->every = every[way % 5];
    job->second_forward = again[way % 5];
    job->budget = job->window = 0;
    run_chain(job, train);
    uint64_t window = PAGE;
    for (int r = 0; r < job->data * job->ranks; ++r) {
        if (job->info[r].least_bytes > job->budget) job->budget = job->info[r].least_bytes;
        const uint64_t rest =
            job->info[r].planned_stretch_bytes + job->info[r].planned_gradient_bytes;
        const uint64_t least = job->info[r].least_bytes - rest;
        if (least > window) window = least;
    }
    if (job->every > 0) { /* which goes with no budget */
        job->window = window;
        job->budget = 0;
    }
    run_chain(job, train);
    job->budget = job->window = 0;
    assert_int_equal(files_in_directory(), 0);
}

static void windows_have_the_bits_of_a_plain_loop(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const bool long_run = getenv("TRIREME_TEST_LONG") != NULL;
    for (int ranks = 1; ranks <= 4; ++ranks) {
        for (int k = 0; k < ORDERS; ++k) {
            for (int way = 0; way < 5; ++way) {
                if (!long_run && (way + k + ranks) % 5 != 0) continue;
                if (is_quick() && (k + ranks) % 4 != 0) continue;
                static struct job job;
                job = (struct job){.strategy = (trireme_strategy)(1 + (k + way) % 5),
                                   .data = 1,
                                   .ranks = ranks,
                                   .order = kOrders[k].order,
                                   .stages_per_rank = kOrders[k].stages_per_rank,
                                   .leaves = LEAVES,
                                   .split = kSplits[(k + way + ranks) % 4],
                                   .right = reproducible()};
                if (ranks * job.stages_per_rank > MOST_STAGES || !all_have_parameters(&job)) {
                    continue;
                }
                run_windows(&job, way);
            }
        }
    }
}

/* Some ranks of data have a micro-batch less; without leaves gradients add up on each rank. */
static void windows_go_with_ranks_of_data(void **state) {
    (void)state;
    if (!ranks_make_groups() || are_hosts_mixed()) skip();
    const int meshes[][2] = {{2, 2}, {3, 2}, {4, 2}, {2, 3}};
    for (int m = 0; m < 4; ++m) {
        for (int leaves = 0; leaves < 2; ++leaves) {
            if (is_quick() && (m + leaves) % 2 != 0) continue;
            static struct curve sums;
            if (leaves == 0) plain_training(0, meshes[m][0], 3, &sums);
            static struct job job;
            job = (struct job){.strategy = m < 2 ? TRIREME_STRATEGY_ZERO3
                                                 : (trireme_strategy)(1 + m + leaves),
                               .data = meshes[m][0],
                               .ranks = meshes[m][1],
                               .order = kOrders[m].order,
                               .stages_per_rank = kOrders[m].stages_per_rank,
                               .leaves = leaves * LEAVES,
                               .micro_batches = leaves == 0 ? 3 : 0,
                               .split = kSplits[m],
                               .right = leaves == 0 ? &sums : reproducible()};
            run_windows(&job, m);
        }
    }
}

/* ---- as many transfers as the schedule says ---- */

/* One micro-batch of one stage, whose first seven layers keep a page each. The layers run forward
 * in the calls 0 to 7 and backward in 8 to 15. So forward is done with item k 13 - 2 k calls before
 * backward needs it. A window of n pages lets a write and a read last n - 2 calls. The file takes
 * the items with more than 2 (n - 2) + 1 calls between. */
static void a_wider_window_moves_less(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    draw_seeds();
    static struct curve right;
    plain_training(1, 0, 0, &right);
    for (uint64_t pages = 2; pages <= 8; ++pages) {
        static struct job job;
        job = (struct job){.strategy = TRIREME_STRATEGY_DATA_PARALLEL,
                           .data = 1,
                           .ranks = 1,
                           .order = TRIREME_PIPELINE_ORDER_1F1B,
                           .stages_per_rank = 1,
                           .leaves = 1,
                           .offload = directory,
                           .window = pages < 8 ? pages * PAGE : 0,
                           .right = &right};
        run_chain(&job, train);
        const uint64_t held = pages < 8 ? pages : 3; /* the usual window */
        uint64_t moved = 0;
        for (uint64_t k = 0; k < 7 && held < 7; ++k) moved += 13 - 2 * k > 2 * held - 3 ? 1 : 0;
        assert_int_equal(files[0].buffer_bytes, held * PAGE);
        assert_int_equal(files[0].file_bytes, moved * PAGE);
        assert_int_equal(files[0].written_bytes, STEPS * moved * PAGE);
        assert_int_equal(files[0].block_bytes, PAGE);
        const uint64_t rest = job.info[0].planned_stretch_bytes;
        assert_int_equal(job.info[0].least_bytes, rest + 2 * PAGE);
        assert_int_equal(job.info[0].planned_gradient_bytes, 0);
        /* Without a file, of 64 bytes each: seven outputs, and what six layers save. */
        assert_int_equal(job.info[0].largest_bytes, rest + 13 * 64);
    }
}

/* A micro-batch keeps the output that it sends alone: that of 1F1B's first rank is in memory for as
 * many micro-batches as ranks, and the window is as wide as with one. */
static void more_micro_batches_need_no_wider_window(void **state) {
    (void)state;
    if (!ranks_make_groups() || are_hosts_mixed()) skip();
    draw_seeds();
    static struct curve right[2];
    uint64_t windows[2];
    for (int many = 0; many < 2; ++many) {
        const int leaves = many == 0 ? 2 : 12;
        plain_training(leaves, 0, 0, &right[many]);
        static struct job job;
        job = (struct job){.strategy = TRIREME_STRATEGY_ZERO3,
                           .data = 1,
                           .ranks = 2,
                           .order = TRIREME_PIPELINE_ORDER_GPIPE,
                           .stages_per_rank = 1,
                           .leaves = leaves,
                           .offload = directory,
                           .right = &right[many]};
        run_chain(&job, train);
        windows[many] = files[0].buffer_bytes;
        assert_true(files[0].file_bytes >= (many == 0 ? 3u : 33u) * PAGE);
    }
    assert_int_equal(windows[0], windows[1]);
    assert_true(windows[0] <= 4 * PAGE);
}

/* ---- what is refused ---- */

static void ask_in_vain(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
    options.seed = 12345;
    options.pipeline = &pipeline;
    trireme_offload_options file = TRIREME_OFFLOAD_OPTIONS_INIT;
    const struct {
        const char *path;
        double ratio;
        uint64_t window, budget;
        trireme_status status;
        const char *words;
    } cases[] = {
        {"/nowhere/at/all", 0, 0, 0, TRIREME_ERROR_SYSTEM, "/nowhere/at/all"},
        {"/proc", 0, 0, 0, TRIREME_ERROR_SYSTEM, "/proc"},
        {NULL, 0, 0, 0, TRIREME_ERROR_INVALID_ARGUMENT, "path"},
        {directory, 0.5, 0, 0, TRIREME_ERROR_INVALID_ARGUMENT, "options.offload.ratio 0.5"},
        {directory, 0, 1, 0, TRIREME_ERROR_OUT_OF_MEMORY,
         "options.offload.buffer_bytes is 1, but the least that works is 8192"},
        {directory, 0, 0, 100, TRIREME_ERROR_OUT_OF_MEMORY,
         "options.activation_budget_bytes is 100, but the least that works is "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        /* One rank is at fault, and all hear of it; options that a model compares are equal. */
        const bool at_fault = number == 0 || cases[i].window != 0 || cases[i].budget != 0;
        file.path = at_fault ? cases[i].path : directory;
        file.ratio = at_fault ? cases[i].ratio : 0;
        file.buffer_bytes = cases[i].window;
        options.activation_budget_bytes = cases[i].budget;
        options.offload = &file;
        const trireme_status status =
            trireme_trainer_create(r.optimizer, r.layers, r.layer_count, &options, &r.trainer);
        EXPECT_STATUS(v, cases[i].status, status);
        if (number == 0) EXPECT(v, says(cases[i].words));
    }
    file = (trireme_offload_options)TRIREME_OFFLOAD_OPTIONS_INIT;
    file.path = directory;
    options.activation_budget_bytes = 0;
    options.offload = r.data == 0 ? &file : NULL;
    const trireme_status differs =
        trireme_trainer_create(r.optimizer, r.layers, r.layer_count, &options, &r.trainer);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, differs);
    EXPECT(v, says("options.offload is set on rank 0 and not set on rank 1"));
    /* Ranks of other stages may have none. */
    options.offload = r.place == 0 ? &file : NULL;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_trainer_create(r.optimizer, r.layers, r.layer_count, &options,
                                         &r.trainer));
    trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, &metrics));
    EXPECT(v, metrics.loss == job->right->losses[0]);
    trireme_offload_info info = TRIREME_OFFLOAD_INFO_INIT;
    EXPECT_STATUS(v, r.place == 0 ? TRIREME_OK : TRIREME_ERROR_INVALID_STATE,
                  trireme_trainer_get_offload_info(r.trainer, &info));
    end_rank(&r);
}

static struct job usual_job(void) {
    return (struct job){.strategy = TRIREME_STRATEGY_ZERO3,
                        .data = 2,
                        .ranks = 2,
                        .order = TRIREME_PIPELINE_ORDER_1F1B,
                        .stages_per_rank = 1,
                        .leaves = LEAVES,
                        .offload = directory,
                        .right = reproducible()};
}

static void files_that_cannot_be_are_refused_on_all_ranks(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = usual_job();
    run_chain(&job, ask_in_vain);
    assert_int_equal(files_in_directory(), 0);
}

/* ---- when the disk fails ---- */

static struct {
    const char *failpoint; /* NULL: a bit of the file flips */
    trireme_status wanted;
    const char *words;
    int failures[MOST_RANKS];
} trial;

/* Flips a bit in the first page of each file of this process in the directory. */
static int rot(void) {
    int found = 0;
    for (int descriptor = 3; descriptor < 1024; ++descriptor) {
        char link[64], path[600] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
        if (readlink(link, path, sizeof path - 1) < 0) continue;
        if (strstr(path, directory) == NULL) continue;
        const int file = open(link, O_RDWR | O_CLOEXEC);
        unsigned char byte = 0;
        if (file < 0) abort();
        if (pread(file, &byte, 1, 9) != 1) { /* that of another rank, which has written nothing */
            close(file);
            continue;
        }
        byte ^= 4;
        if (pwrite(file, &byte, 1, 9) != 1 || fsync(file) != 0) abort();
        close(file);
        ++found;
    }
    return found;
}

/* The first item has been written when the last micro-batch runs forward through GPipe. */
static int32_t TRIREME_CALLCONV rotting_forward(const trireme_layer_call *c, void *user_data) {
    struct rank *const r = ((struct layer_of *)user_data)->rank;
    if (trial.failpoint == NULL && r->number == 0 && c->step == 1 && !r->acted &&
        (int)c->micro_batch + 1 == micro_batches_of(r->job) && c->layer == 2 &&
        c->phase == TRIREME_PHASE_FORWARD) {
        r->acted = true;
        EXPECT(r->verdict, rot() > 0);
    }
    return forward(c, user_data);
}

/* Every step that fails does so on all ranks, and is made again when the disk is well. */
static void train_with_trouble(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    for (uint64_t i = 0; i < r.layer_count; ++i) r.layers[i].forward = rotting_forward;
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    for (int step = 0; step < STEPS && v->text[0] == 0; ++step) {
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
        if (number == 0 && step == 1) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_failpoint_set(trial.failpoint));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
        trireme_status status = trireme_trainer_step(r.trainer, &r, &metrics);
        if (status != TRIREME_OK) {
            ++trial.failures[number];
            EXPECT_STATUS(v, trial.wanted, status);
            EXPECT(v, says(trial.words) && says(" in micro-batch ") && says("of the pipeline"));
            EXPECT(v, metrics.micro_batches == 0);
            EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
            if (number == 0) EXPECT_STATUS(v, TRIREME_OK, trireme_failpoint_set(NULL));
            EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
            status = trireme_trainer_step(r.trainer, &r, &metrics);
        }
        EXPECT_STATUS(v, TRIREME_OK, status);
        EXPECT(v, memcmp(&metrics.loss, &job->right->losses[step], sizeof(double)) == 0);
    }
    if (v->text[0] == 0) check_chain_values(&r);
    check_info(&r);
    end_rank(&r);
}

static void run_trouble(const char *failpoint, trireme_status wanted, const char *words, int way) {
    trial.failpoint = failpoint;
    trial.wanted = wanted;
    trial.words = words;
    memset(trial.failures, 0, sizeof trial.failures);
    static struct job job;
    job = usual_job();
    job.order = failpoint == NULL ? TRIREME_PIPELINE_ORDER_GPIPE : kOrders[way % ORDERS].order;
    job.stages_per_rank = failpoint == NULL ? 1 : kOrders[way % ORDERS].stages_per_rank;
    job.split = kSplits[way % 4];
    job.second_forward = failpoint != NULL && way % 3 == 1 ? EACH_R : NO_R;
    run_chain(&job, train_with_trouble);
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
    for (int r = 0; r < 4; ++r) {
        if (trial.failures[r] == (wanted == TRIREME_OK ? 0 : 1)) continue;
        fail_msg("%s of order %d: %d steps fail", failpoint, (int)job.order, trial.failures[r]);
    }
    assert_int_equal(files_in_directory(), 0);
}

static void a_disk_that_fails_leaves_no_trace(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static const struct {
        const char *failpoint;
        trireme_status wanted;
        const char *words;
    } cases[] = {
        {"file.read=fail(5)@1", TRIREME_OK, ""},
        {"file.read=short;file.write=short", TRIREME_OK, ""},
        {"file.read=fail(5)@2+", TRIREME_ERROR_SYSTEM, "activations that cannot be read"},
        {"file.read=fail(5)@5+", TRIREME_ERROR_SYSTEM, "activations that cannot be read"},
        {"file.write=fail(28)@1+;trainer.keep=fail(12)", TRIREME_ERROR_SYSTEM,
         "activations that cannot be written"},
        {"file.write=fail(28)@3+;trainer.keep=fail(12)", TRIREME_ERROR_SYSTEM,
         "activations that cannot be written"},
    };
    for (int i = 0; i < 6; ++i) {
        /* By the first four orders: each of them uses its files. */
        for (int k = 0; k < (is_quick() ? 1 : 2); ++k) {
            run_trouble(cases[i].failpoint, cases[i].wanted, cases[i].words, (i + 2 * k) % 4);
        }
    }
    /* Items that cannot be written stay in memory. */
    run_trouble("file.write=fail(28)@1+", TRIREME_OK, "", 0);
    uint64_t failed = 0;
    for (int r = 0; r < 4; ++r) {
        failed += files[r].failed_writes;
        assert_true((files[r].failed_writes > 0) == (files[r].resident_bytes > 0));
        assert_int_equal(files[r].failed_errno, files[r].failed_writes > 0 ? ENOSPC : 0);
    }
    assert_true(failed > 0);
}

static void rotten_activations_are_no_wrong_number(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_trouble(NULL, TRIREME_ERROR_CORRUPT, "not what was written", 0);
}

static void
ask_for_more_than_a_file_may_have(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    struct rlimit before = {0, 0};
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    if (number == 0 && getrlimit(RLIMIT_FSIZE, &before) != 0) abort();
    const struct rlimit small = {1, before.rlim_max};
    if (number == 0 && setrlimit(RLIMIT_FSIZE, &small) != 0) abort();
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_SYSTEM, create_chain_trainer(&r, &pipeline));
    EXPECT(v, says("options.offload.path"));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    if (number == 0 && setrlimit(RLIMIT_FSIZE, &before) != 0) abort();
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, NULL));
    end_rank(&r);
}

static void a_file_without_room_is_refused_on_all_ranks(void **state) {
    (void)state;
    if (!ranks_make_groups() || ranks_use_transport()) skip();
    if (getenv("TRIREME_TESTS_NETWORK") != NULL) skip(); /* its memory is in files, too */
    signal(SIGXFSZ, SIG_IGN);
    static struct job job;
    job = usual_job();
    job.data = 1;
    run_chain(&job, ask_for_more_than_a_file_may_have);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wider_window_moves_less),
        cmocka_unit_test(windows_have_the_bits_of_a_plain_loop),
        cmocka_unit_test(windows_go_with_ranks_of_data),
        cmocka_unit_test(more_micro_batches_need_no_wider_window),
        cmocka_unit_test(files_that_cannot_be_are_refused_on_all_ranks),
        cmocka_unit_test(a_disk_that_fails_leaves_no_trace),
        cmocka_unit_test(rotten_activations_are_no_wrong_number),
        cmocka_unit_test(a_file_without_room_is_refused_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
