/*
 * The disk fails under a trainer's activations that lie in a file: each error at reads and writes
 * of a whole training, once and for good. Then either the training goes on to the right bits, or
 * the step fails on all ranks and leaves no trace. After a failure the next step has the right
 * bits.
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
#include <ranks.h>

#include "../api/directory.inc"
#include "../api/trainer_job.inc"

enum { PAGE = 4096 };

struct trial {
    struct job job;
    const char *failpoint;
    trireme_status wanted; /* the answer of a failed step */
    const char *words;     /* and says */
    int failures[MOST_RANKS];
    trireme_offload_info infos[MOST_RANKS];
};

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

static struct trial trial_of(trireme_strategy strategy, int world_size, const char *failpoint) {
    struct trial trial = {.job = job_of(strategy, world_size, reproducible()),
                          .failpoint = failpoint};
    trial.job.offload_path = directory;
    trial.job.offload_buffer = 2 * PAGE;
    return trial;
}

static void expect_planned(struct rank *r, trireme_offload_info *file) {
    struct verdict *const v = r->verdict;
    trireme_trainer_info info = TRIREME_TRAINER_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_info(r->trainer, &info));
    *file = (trireme_offload_info)TRIREME_OFFLOAD_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_offload_info(r->trainer, file));
    EXPECT(v, info.planned_window_bytes == file->buffer_bytes + file->resident_bytes);
    EXPECT(v, info.allocated_bytes == info.planned_window_bytes + info.planned_stretch_bytes +
                                          info.planned_gradient_bytes +
                                          info.planned_parameter_gradient_bytes +
                                          info.planned_exchange_bytes);
}

/* Every step that fails does so on all ranks, and is made again when the disk is well. */
static void train(trireme_communicator *communicator, int number, void *context) {
    struct trial *const trial = context;
    struct rank r = start(&trial->job, number);
    struct verdict *const v = r.verdict;
    make(&r, communicator);
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
    if (number == 0) EXPECT_STATUS(v, TRIREME_OK, trireme_failpoint_set(trial->failpoint));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
    trial->failures[number] = 0;
    for (int step = 0; step < STEPS; ++step) {
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        trireme_status status = trireme_trainer_step(r.trainer, &r, &metrics);
        if (status != TRIREME_OK) {
            ++trial->failures[number];
            EXPECT(v, metrics.micro_batches == 0);
            if (!EXPECT_STATUS(v, trial->wanted, status)) break;
            EXPECT(v, strstr(trireme_last_error(), trial->words) != NULL);
            EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
            if (number == 0) EXPECT_STATUS(v, TRIREME_OK, trireme_failpoint_set(NULL));
            EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
            status = trireme_trainer_step(r.trainer, &r, &metrics);
        }
        if (!EXPECT_STATUS(v, TRIREME_OK, status)) break;
        EXPECT(v, memcmp(&metrics.loss, &trial->job.right->losses[step], sizeof(double)) == 0);
    }
    check_values(&r);
    expect_planned(&r, &trial->infos[number]);
    unmake(&r);
}

static void run_trial(struct trial *trial) {
    const int world_size = trial->job.world_size;
    run_ranks(world_size, train, trial);
    for (int rank = 0; rank < world_size; ++rank) {
        if (trial->job.verdicts[rank].text[0] == 0) continue;
        print_error("%s\n", trial->failpoint);
        break;
    }
    assert_verdicts(trial->job.verdicts, world_size);
    for (int rank = 1; rank < world_size; ++rank) {
        assert_int_equal(trial->failures[rank], trial->failures[0]);
    }
    assert_int_equal(files_in_directory(), 0);
}

static uint64_t visits_of(const char *point) {
    char text[64];
    snprintf(text, sizeof text, "%s=off", point);
    struct trial trial = trial_of(TRIREME_STRATEGY_ZERO3, 2, text);
    run_trial(&trial);
    uint64_t hits = 0;
    assert_int_equal(trireme_failpoint_get_hits(point, &hits), TRIREME_OK);
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
    assert_int_equal(trial.failures[0], 0);
    return hits;
}

static const int kErrors[] = {ENOSPC, EIO, EINTR};
enum { ERRORS = sizeof kErrors / sizeof kErrors[0] };

static uint64_t stride(void) {
    return is_quick() ? 23 : getenv("TRIREME_TEST_LONG") ? 1 : 17;
}

static void name_failpoint(char *text, size_t capacity, const char *point, int error, uint64_t hit,
                           bool for_good) {
    snprintf(text, capacity, "%s=fail(%d)@%llu%s", point, error, (unsigned long long)hit,
             for_good ? "+" : "");
}

/* Activations that cannot be written stay in memory. */
static void a_write_that_fails_loses_nothing(void **state) {
    (void)state;
    const uint64_t visits = visits_of("file.write");
    assert_int_equal(visits, LEAVES * STEPS * (LAYERS - 2));
    for (int error = 0; error < ERRORS; error += is_quick() ? 2 : 1) {
        for (uint64_t hit = 1; hit <= visits; hit += stride()) {
            for (int for_good = 0; for_good < 2; ++for_good) {
                char text[64];
                name_failpoint(text, sizeof text, "file.write", kErrors[error], hit, for_good != 0);
                struct trial trial = trial_of(TRIREME_STRATEGY_ZERO3, 2, text);
                run_trial(&trial);
                assert_int_equal(trial.failures[0], 0);
                const bool goes_on = kErrors[error] == EINTR && !for_good;
                const uint64_t failed = trial.infos[0].failed_writes + trial.infos[1].failed_writes;
                if ((failed == 0) != goes_on) fail_msg("%s: no such write", text);
                for (int rank = 0; rank < 2 && !goes_on; ++rank) {
                    const trireme_offload_info *const info = &trial.infos[rank];
                    if (info->failed_writes == 0) continue;
                    assert_int_equal(info->failed_errno, kErrors[error]);
                    assert_int_equal(info->resident_bytes, info->failed_writes * PAGE);
                    assert_int_equal(info->file_bytes, (LAYERS - 2 - info->failed_writes) * PAGE);
                }
            }
        }
    }
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
}

/* Activations that cannot be read are read again; if they can never be read, the step fails and
 * leaves no trace. */
static void a_read_that_fails_is_tried_again(void **state) {
    (void)state;
    const uint64_t visits = visits_of("file.read");
    assert_int_equal(visits, LEAVES * STEPS * (LAYERS - 2));
    for (int error = 0; error < ERRORS; error += is_quick() ? 2 : 1) {
        for (uint64_t hit = 1; hit <= visits; hit += stride()) {
            for (int for_good = 0; for_good < 2; ++for_good) {
                char text[64];
                name_failpoint(text, sizeof text, "file.read", kErrors[error], hit, for_good != 0);
                struct trial trial = trial_of(TRIREME_STRATEGY_ZERO3, 2, text);
                trial.wanted = TRIREME_ERROR_SYSTEM;
                trial.words = "activations that cannot be read";
                run_trial(&trial);
                assert_int_equal(trial.failures[0], for_good);
                assert_int_equal(trial.infos[0].failed_writes, 0);
            }
        }
    }
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
}

static void every_strategy_and_engine_fails_the_same_way(void **state) {
    (void)state;
    for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
        for (int world_size = 1; world_size <= 3; ++world_size) {
            if (is_quick() && world_size != 1 + (int)s % 3) continue;
            const uint64_t every = s % 2;
            struct trial reading = trial_of(s, world_size, "file.read=fail(5)@4+");
            reading.job.checkpoint_every = every;
            reading.wanted = TRIREME_ERROR_SYSTEM;
            reading.words = "Input/output error";
            run_trial(&reading);
            assert_int_equal(reading.failures[0], 1);
            struct trial writing = trial_of(s, world_size, "file.write=fail(28)@4+");
            writing.job.checkpoint_every = every;
            run_trial(&writing);
            assert_true(writing.infos[0].failed_writes > 0);
            assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
        }
    }
    /* Without memory to keep it nothing else has gone wrong either. */
    for (int world_size = 1; world_size <= 3; ++world_size) {
        struct trial trial = trial_of(TRIREME_STRATEGY_ZERO1, world_size,
                                      "file.write=fail(28)@4+;trainer.keep=fail(12)");
        trial.wanted = TRIREME_ERROR_SYSTEM;
        trial.words = "activations that cannot be written";
        run_trial(&trial);
        assert_int_equal(trial.failures[0], 1);
        assert_int_equal(trial.infos[0].resident_bytes, 0);
        /* The file's counters report the failures all the same. */
        uint64_t failed = 0;
        for (int rank = 0; rank < world_size; ++rank) {
            failed += trial.infos[rank].failed_writes;
            const int wanted = trial.infos[rank].failed_writes > 0 ? ENOSPC : 0;
            assert_int_equal(trial.infos[rank].failed_errno, wanted);
        }
        assert_true(failed > 0);
    }
    /* Micro-batches that are added up. */
    struct curve right;
    plain_ranks(2, 3, false, STEPS, seed_of, &right);
    struct trial added = trial_of(TRIREME_STRATEGY_ZERO3, 2, "file.read=fail(5)@30+");
    added.job.leaves = 0;
    added.job.micro_batches = 3;
    added.job.right = &right;
    added.wanted = TRIREME_ERROR_SYSTEM;
    added.words = "Input/output error";
    run_trial(&added);
    assert_int_equal(added.failures[0], 1);
    /* Threads in place of the ring: who has no ring is decided when the file is made. */
    static const char *const kPoints[] = {"file.ring=fail(1);file.read=fail(5)@30+",
                                          "file.ring=fail(1);file.write=fail(28)@30+",
                                          "file.ring=fail(1);file.read=short;file.write=short"};
    for (int i = 0; i < 3; ++i) {
        struct trial trial = trial_of(TRIREME_STRATEGY_ZERO2, 3, kPoints[i]);
        trial.wanted = TRIREME_ERROR_SYSTEM;
        trial.words = "activations that cannot be read";
        assert_int_equal(trireme_failpoint_set(kPoints[i]), TRIREME_OK);
        run_trial(&trial);
        assert_int_equal(trial.failures[0], i == 0);
        assert_int_equal(trial.infos[0].io_uring, 0);
        assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
    }
}

/* ---- rotten data ---- */

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
        if (file < 0 || pread(file, &byte, 1, 9) != 1) abort();
        byte ^= 4;
        if (pwrite(file, &byte, 1, 9) != 1 || fsync(file) != 0) abort();
        close(file);
        ++found;
    }
    return found;
}

/* The last layer runs when the first item has been written, as its slot has another by then. */
static int32_t TRIREME_CALLCONV rotting_forward(const trireme_layer_call *c, void *user_data) {
    const struct layer_of *const me = user_data;
    if (me->rank->number == 0 && c->step == 1 && c->leaf == 0 && !me->rank->acted) {
        me->rank->acted = true;
        EXPECT(me->rank->verdict, rot() == me->rank->job->world_size);
    }
    return forward(c, user_data);
}

static void
train_on_rotten_activations(trireme_communicator *communicator, int number, void *context) {
    struct trial *const trial = context;
    struct rank r = start(&trial->job, number);
    struct verdict *const v = r.verdict;
    make_model(&r, communicator, 0);
    trireme_layer layers[LAYERS];
    describe_layers(&r, layers);
    layers[LAYERS - 1].forward = rotting_forward;
    const trireme_trainer_options options = options_of(&r);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_trainer_create(r.optimizer, layers, LAYERS, &options, &r.trainer));
    for (int step = 0; step < STEPS; ++step) {
        if (step == 1) {
            EXPECT_STATUS(v, TRIREME_ERROR_CORRUPT, trireme_trainer_step(r.trainer, &r, NULL));
            EXPECT(v, strstr(trireme_last_error(), "not what was written") != NULL);
            EXPECT(v, strstr(trireme_last_error(), "rank 0") != NULL);
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, NULL));
        if (v->text[0] != 0) break;
    }
    check_values(&r);
    unmake(&r);
}

static void rotten_activations_are_no_wrong_number(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 2; ++world_size) {
        struct trial trial = trial_of(TRIREME_STRATEGY_ZERO3, world_size, NULL);
        run_ranks(world_size, train_on_rotten_activations, &trial);
        assert_verdicts(trial.job.verdicts, world_size);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_write_that_fails_loses_nothing),
        cmocka_unit_test(a_read_that_fails_is_tried_again),
        cmocka_unit_test(every_strategy_and_engine_fails_the_same_way),
        cmocka_unit_test(rotten_activations_are_no_wrong_number),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
