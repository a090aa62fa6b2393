/*
 * The disk fails under optimizer state that lies in a file: each error at each read and write of a
 * whole training, once and for good. Then either the training goes on to the right bits, or all
 * ranks stop with the documented error. And nothing is left of files whose process is killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <processes.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "../api/offload.inc"

struct trial {
    int world_size;
    int saves; /* whether the state is saved at the end */
    trireme_status statuses[MOST_RANKS];
    char messages[MOST_RANKS][400];
    trireme_offload_info infos[MOST_RANKS];
    bool right[MOST_RANKS];
    struct verdict verdicts[MOST_RANKS];
};

/* One training in which every call may meet an error: tells what came of it. */
static void train_with_errors(trireme_communicator *ranks, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const v = &trial->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, TRIREME_STRATEGY_ZERO1, trial->world_size);
    trireme_optimizer *const optimizer =
        make_optimizer(v, model, offload_options(TRIREME_OPTIMIZER_USER, 1));
    trireme_status status = TRIREME_OK;
    for (int step = 0; status == TRIREME_OK && step < STEPS; ++step) {
        status = step_once(v, model, optimizer, step, rank, trial->world_size);
    }
    trial->statuses[rank] = status;
    snprintf(trial->messages[rank], sizeof trial->messages[rank], "%s",
             status == TRIREME_OK ? "" : trireme_last_error());
    trial->infos[rank] = info_of(v, optimizer);
    if (status == TRIREME_OK) {
        expect_planned(v, model, optimizer);
        float values[TOTAL], expected[TOTAL];
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_get_parameters(model, values, TOTAL, TRIREME_DTYPE_F32));
        EXPECT(v, expect_plain(TRIREME_OPTIMIZER_USER, expected));
        trial->right[rank] = memcmp(values, expected, sizeof values) == 0;
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

static uint64_t failed_writes(const struct trial *trial) {
    uint64_t sum = 0;
    for (int rank = 0; rank < trial->world_size; ++rank) sum += trial->infos[rank].failed_writes;
    return sum;
}

static void expect_right(const struct trial *trial, const char *failpoint) {
    for (int rank = 0; rank < trial->world_size; ++rank) {
        if (trial->statuses[rank] == TRIREME_OK && trial->right[rank]) continue;
        fail_msg("%s: rank %d: %s", failpoint, rank,
                 trial->statuses[rank] == TRIREME_OK ? "other bits" : trial->messages[rank]);
    }
}

/* All ranks stopped, one of them because of the file. */
static void expect_stopped(const struct trial *trial, const char *failpoint, trireme_status status,
                           const char *words) {
    bool told = false;
    for (int rank = 0; rank < trial->world_size; ++rank) {
        if (trial->statuses[rank] != status) {
            fail_msg("%s: rank %d: %s, %s", failpoint, rank,
                     trireme_status_name(trial->statuses[rank]), trial->messages[rank]);
        }
        told = told || (strstr(trial->messages[rank], words) != NULL &&
                        strstr(trial->messages[rank], directory) != NULL);
    }
    if (!told) fail_msg("%s: \"%s\" is told nowhere: %s", failpoint, words, trial->messages[0]);
}

static uint64_t visits_of(const char *point, int world_size) {
    char text[64];
    snprintf(text, sizeof text, "%s=off", point);
    assert_int_equal(trireme_failpoint_set(text), TRIREME_OK);
    struct trial trial = {.world_size = world_size};
    run_trial(&trial);
    expect_right(&trial, "no error");
    uint64_t visits = 0;
    assert_int_equal(trireme_failpoint_hits(point, &visits), TRIREME_OK);
    assert_true(visits > 10);
    return visits;
}

static const int kErrors[] = {ENOSPC, EIO, EDQUOT, EROFS, EINTR, 0 /* cut short */};
enum { ERRORS = sizeof kErrors / sizeof kErrors[0] };

static void name_failpoint(char *text, size_t capacity, const char *point, int error, uint64_t hit,
                           bool for_good) {
    char action[32] = "short";
    if (error != 0) snprintf(action, sizeof action, "fail(%d)", error);
    snprintf(text, capacity, "%s=%s@%llu%s", point, action, (unsigned long long)hit,
             for_good ? "+" : "");
}

/* Each of the first visits, then some: a long run of tests has no time for all. */
static uint64_t stride(void) { return is_quick() ? 7 : getenv("TRIREME_TEST_LONG") ? 1 : 3; }

/* What cannot be written stays in memory: nothing is lost, whatever the error and whenever. */
static void a_write_that_fails_loses_nothing(void **state) {
    (void)state;
    const uint64_t visits = visits_of("file.write", 2);
    for (int error = 0; error < ERRORS; ++error) {
        for (uint64_t hit = 1; hit <= visits; hit += stride()) {
            for (int for_good = 0; for_good < 2; ++for_good) {
                char text[64];
                name_failpoint(text, sizeof text, "file.write", kErrors[error], hit, for_good != 0);
                assert_int_equal(trireme_failpoint_set(text), TRIREME_OK);
                struct trial trial = {.world_size = 2};
                run_trial(&trial);
                expect_right(&trial, text);
                const bool goes_on = kErrors[error] == 0 || (kErrors[error] == EINTR && !for_good);
                if ((failed_writes(&trial) == 0) != goes_on) fail_msg("%s: no such write", text);
                for (int rank = 0; rank < 2 && !goes_on; ++rank) {
                    const trireme_offload_info *const info = &trial.infos[rank];
                    if (info->failed_writes == 0) continue;
                    assert_int_equal(info->failed_errno, kErrors[error]);
                    assert_true(info->resident_bytes >= info->failed_writes * 4096);
                }
            }
        }
    }
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
}

/* What cannot be read is read again; what can never be read stops all ranks. */
static void a_read_that_fails_is_tried_again(void **state) {
    (void)state;
    const uint64_t visits = visits_of("file.read", 2);
    for (int error = 0; error < ERRORS; ++error) {
        for (uint64_t hit = 1; hit <= visits; hit += stride()) {
            for (int for_good = 0; for_good < 2; ++for_good) {
                char text[64];
                name_failpoint(text, sizeof text, "file.read", kErrors[error], hit, for_good != 0);
                assert_int_equal(trireme_failpoint_set(text), TRIREME_OK);
                struct trial trial = {.world_size = 2};
                run_trial(&trial);
                if (for_good != 0 && kErrors[error] != 0) {
                    expect_stopped(&trial, text, TRIREME_ERROR_SYSTEM, "reading byte ");
                } else {
                    expect_right(&trial, text);
                }
                assert_int_equal(failed_writes(&trial), 0);
            }
        }
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
            struct trial trial = {.world_size = 3};
            run_trial(&trial);
            if (point == 1 && kErrors[error] != 0) {
                expect_stopped(&trial, text, TRIREME_ERROR_SYSTEM, "reading byte ");
            } else {
                expect_right(&trial, text);
            }
        }
    }
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
}

static void a_file_that_cannot_be_made_is_told(void **state) {
    (void)state;
    assert_int_equal(trireme_failpoint_set("file.open=fail(30)"), TRIREME_OK); /* EROFS */
    struct trial trial = {.world_size = 1};
    memset(trial.verdicts, 0, sizeof trial.verdicts);
    run_ranks(1, train_with_errors, &trial);
    /* No optimizer: the first thing that went wrong is its creation. */
    assert_non_null(strstr(trial.verdicts[0].text, "Read-only file system"));
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
}

/* ---- rotten data ---- */

/* Flips a bit in what lies in files of this process in the directory; returns how many there are. */
static int rot(void) {
    int found = 0;
    for (int descriptor = 3; descriptor < 1024; ++descriptor) {
        char link[64], path[300] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
        if (readlink(link, path, sizeof path - 1) < 0) continue;
        if (strstr(path, directory) == NULL) continue;
        const int file = open(link, O_RDWR | O_CLOEXEC);
        unsigned char byte = 0;
        if (file < 0 || pread(file, &byte, 1, 4096 + 100) != 1) abort();
        byte ^= 4;
        if (pwrite(file, &byte, 1, 4096 + 100) != 1 || fsync(file) != 0) abort();
        close(file);
        ++found;
    }
    return found;
}

static void train_on_rotten_state(trireme_communicator *ranks, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const v = &trial->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, TRIREME_STRATEGY_ZERO1, trial->world_size);
    trireme_optimizer *const optimizer =
        make_optimizer(v, model, offload_options(TRIREME_OPTIMIZER_USER, 1));
    train_steps(v, model, optimizer, 0, 1, rank, trial->world_size);
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
    if (rank == 0) EXPECT(v, rot() == trial->world_size);
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
    /* Saving tells, and changes nothing. */
    uint64_t bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_saved_bytes(optimizer, &bytes));
    void *const saved = malloc(bytes);
    EXPECT_STATUS(v, TRIREME_ERROR_CORRUPT, trireme_optimizer_save(optimizer, saved, bytes, NULL));
    free(saved);
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
    trial->statuses[rank] = step_once(v, model, optimizer, 1, rank, trial->world_size);
    snprintf(trial->messages[rank], sizeof trial->messages[rank], "%s", trireme_last_error());
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void rotten_state_is_no_wrong_number(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 2; ++world_size) {
        struct trial trial = {.world_size = world_size};
        run_ranks(world_size, train_on_rotten_state, &trial);
        assert_verdicts(trial.verdicts, world_size);
        expect_stopped(&trial, "rotten", TRIREME_ERROR_CORRUPT, "its checksum is another one");
    }
}

/* ---- a process is killed ---- */

struct killing {
    char rendezvous[64];
};

static void train_until_killed(int rank, void *context, struct outcome *outcome) {
    const struct killing *const killing = context;
    struct verdict v = {{0}};
    if (rank == 0 && trireme_failpoint_set("file.write=kill@9") != TRIREME_OK) return;
    trireme_communicator *const ranks = join_host(rank, 2, killing->rendezvous, PATIENT_NS);
    trireme_model *const model = make_model(&v, ranks, TRIREME_STRATEGY_ZERO1, 2);
    trireme_optimizer *const optimizer =
        make_optimizer(&v, model, offload_options(TRIREME_OPTIMIZER_USER, 1));
    trireme_status status = TRIREME_OK;
    for (int step = 0; status == TRIREME_OK && step < STEPS; ++step) {
        status = step_once(&v, model, optimizer, step, rank, 2);
    }
    keep_error(outcome, status);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(ranks);
}

static void nothing_is_left_of_who_is_killed(void) {
    struct killing killing;
    unique_host_rendezvous(killing.rendezvous, sizeof killing.rendezvous);
    struct processes processes;
    start_processes(&processes, 2, train_until_killed, &killing);
    wait_processes(&processes);
    const struct outcome killed = processes.outcomes[0], other = processes.outcomes[1];
    free_processes(&processes);
    const bool well = killed.signal == SIGKILL && !other.hung && other.exit_code == 0 &&
                      other.status == TRIREME_ERROR_PEER_LOST && files_in_directory() == 0;
    if (well) return;
    fprintf(stderr, "killed by %d; the other: exit %d, %s; %d files\n", killed.signal,
            other.exit_code, other.message, files_in_directory());
    exit(1);
}

int main(void) {
    /* Children begin like fresh programs, so it comes before the library is used here. */
    if (make_directory(NULL) != 0) return 1;
    nothing_is_left_of_who_is_killed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_write_that_fails_loses_nothing),
        cmocka_unit_test(a_read_that_fails_is_tried_again),
        cmocka_unit_test(threads_instead_of_a_ring_fail_the_same_way),
        cmocka_unit_test(a_file_that_cannot_be_made_is_told),
        cmocka_unit_test(rotten_state_is_no_wrong_number),
    };
    return cmocka_run_group_tests_name("offload errors", tests, NULL, remove_directory);
}
