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

/* Blocks of two pages: those of one page cannot be cut short. */
enum { LARGER_BUFFER = 65536 };

struct trial {
    int world_size;
    uint64_t buffer; /* 0: the least one */
    trireme_status statuses[MOST_RANKS];
    char messages[MOST_RANKS][800];
    trireme_offload_info infos[MOST_RANKS];
    bool right[MOST_RANKS];
    struct verdict verdicts[MOST_RANKS];
};

/* One training in which every call may meet an error: returns the outcome. */
static void train_with_errors(trireme_communicator *ranks, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const v = &trial->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, TRIREME_STRATEGY_ZERO1, trial->world_size);
    trireme_optimizer_options options = offload_options(TRIREME_RULE_USER, 1);
    if (trial->buffer != 0) state_file_of(&options)->buffer_bytes = trial->buffer;
    trireme_optimizer *const optimizer = make_optimizer(v, model, options);
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
                      trireme_model_gather_parameters(model, values, TOTAL, TRIREME_DTYPE_F32));
        EXPECT(v, expect_plain(TRIREME_RULE_USER, expected));
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

static uint64_t hits_of(const char *point) {
    uint64_t hits = 0;
    assert_int_equal(trireme_failpoint_get_hits(point, &hits), TRIREME_OK);
    return hits;
}

static uint64_t visits_of(const char *point, int world_size, uint64_t buffer) {
    char text[64];
    snprintf(text, sizeof text, "%s=off", point);
    assert_int_equal(trireme_failpoint_set(text), TRIREME_OK);
    struct trial trial = {.world_size = world_size, .buffer = buffer};
    run_trial(&trial);
    expect_right(&trial, "no error");
    const uint64_t visits = hits_of(point);
    assert_true(visits > 10);
    return visits;
}

/* A transfer that is cut short goes on: by one more call each, and most blocks are large enough. */
static void expect_cut(const char *point, uint64_t visits) {
    if (hits_of(point) < visits + visits / 2) fail_msg("%s: nothing was cut short", point);
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
static uint64_t stride(void) {
    return is_quick() ? 7 : getenv("TRIREME_TEST_LONG") ? 1 : 3;
}

/* State that cannot be written stays in memory: none is lost, whatever the error and whenever. */
static void a_write_that_fails_loses_nothing(void **state) {
    (void)state;
    for (int error = 0; error < ERRORS; ++error) {
        const uint64_t buffer = kErrors[error] == 0 ? LARGER_BUFFER : 0;
        const uint64_t visits = visits_of("file.write", 2, buffer);
        for (uint64_t hit = 1; hit <= visits; hit += stride()) {
            for (int for_good = 0; for_good < 2; ++for_good) {
                char text[64];
                name_failpoint(text, sizeof text, "file.write", kErrors[error], hit, for_good != 0);
                assert_int_equal(trireme_failpoint_set(text), TRIREME_OK);
                struct trial trial = {.world_size = 2, .buffer = buffer};
                run_trial(&trial);
                expect_right(&trial, text);
                if (kErrors[error] == 0 && for_good != 0 && hit == 1)
                    expect_cut("file.write", visits);
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

/* State that cannot be read is read again; if it can never be read, all ranks stop. */
static void a_read_that_fails_is_tried_again(void **state) {
    (void)state;
    for (int error = 0; error < ERRORS; ++error) {
        const uint64_t buffer = kErrors[error] == 0 ? LARGER_BUFFER : 0;
        const uint64_t visits = visits_of("file.read", 2, buffer);
        for (uint64_t hit = 1; hit <= visits; hit += stride()) {
            for (int for_good = 0; for_good < 2; ++for_good) {
                char text[64];
                name_failpoint(text, sizeof text, "file.read", kErrors[error], hit, for_good != 0);
                assert_int_equal(trireme_failpoint_set(text), TRIREME_OK);
                struct trial trial = {.world_size = 2, .buffer = buffer};
                run_trial(&trial);
                if (for_good != 0 && kErrors[error] != 0) {
                    expect_stopped(&trial, text, TRIREME_ERROR_SYSTEM, "reading byte ");
                } else {
                    expect_right(&trial, text);
                }
                if (kErrors[error] == 0 && for_good != 0 && hit == 1)
                    expect_cut("file.read", visits);
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
            struct trial trial = {.world_size = 3,
                                  .buffer = kErrors[error] == 0 ? LARGER_BUFFER : 0};
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

/* ---- between steps ---- */

/* The resource that the system refuses one rank between two steps. */
struct refusal {
    int world_size;
    enum { READS, WRITES, SAVES, REFUSALS } what;
    uint64_t hit;    /* of the read from which on the file cannot be read */
    bool last_range; /* or the first one */
    bool refused;    /* whether it came to that */
    struct verdict verdicts[MOST_RANKS];
};

static trireme_status
try_it(struct verdict *v, const struct refusal *refusal, trireme_optimizer *optimizer,
       uint64_t range, void *data, uint64_t bytes) {
    if (refusal->what == READS) return trireme_optimizer_read_range(optimizer, range, data, bytes);
    if (refusal->what == WRITES) {
        return trireme_optimizer_write_range(optimizer, range, data, bytes);
    }
    uint64_t capacity = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &capacity));
    void *const state = malloc(capacity);
    const trireme_status status = trireme_optimizer_save(optimizer, state, capacity, NULL);
    free(state);
    return status;
}

/* Of a range of state that has elements: the written elements are those that are there. */
static void be_refused(struct verdict *v, struct refusal *refusal, trireme_optimizer *optimizer) {
    uint64_t ranges = 0, chosen = 0, bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &ranges));
    for (uint64_t i = 0; i < ranges; ++i) {
        trireme_state_range range = TRIREME_STATE_RANGE_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, i, &range));
        if (range.kind != TRIREME_STATE_KIND_OPTIMIZER || range.count == 0) continue;
        if (bytes != 0 && !refusal->last_range) break;
        chosen = i;
        bytes = range.count * sizeof(float);
    }
    if (!EXPECT(v, bytes > 0)) return;
    float data[TOTAL];
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_read_range(optimizer, chosen, data, bytes));
    char text[64];
    name_failpoint(text, sizeof text, "file.read", EIO, refusal->hit, true);
    EXPECT_STATUS(v, TRIREME_OK, trireme_failpoint_set(text));
    const trireme_status status = try_it(v, refusal, optimizer, chosen, data, bytes);
    uint64_t hits = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_failpoint_get_hits("file.read", &hits));
    EXPECT(v, status == (hits >= refusal->hit ? TRIREME_ERROR_SYSTEM : TRIREME_OK));
    refusal->refused = refusal->refused || status != TRIREME_OK;
    EXPECT_STATUS(v, TRIREME_OK, trireme_failpoint_set(NULL));
}

static void train_with_refusals(trireme_communicator *ranks, int rank, void *context) {
    struct refusal *const refusal = context;
    const int world_size = refusal->world_size;
    struct verdict *const v = &refusal->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, TRIREME_STRATEGY_ZERO1, world_size);
    trireme_optimizer *const optimizer =
        make_optimizer(v, model, offload_options(TRIREME_RULE_USER, 1));
    for (int step = 0; step < STEPS; ++step) {
        train_steps(v, model, optimizer, step, step + 1, rank, world_size);
        /* No other rank reads meanwhile, because failpoints act on all ranks. */
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
        if (rank == world_size - 1) be_refused(v, refusal, optimizer);
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
    }
    expect_planned(v, model, optimizer);
    float values[TOTAL], expected[TOTAL];
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, TOTAL, TRIREME_DTYPE_F32));
    EXPECT(v, expect_plain(TRIREME_RULE_USER, expected));
    EXPECT(v, memcmp(values, expected, sizeof values) == 0);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

/* One rank has more blocks than the buffer has parts, each of two or three has fewer. */
static void after_a_refusal_the_next_step_is_right(void **state) {
    (void)state;
    static const uint64_t kHits[] = {1, 2, 4, 10};
    int refused[REFUSALS] = {0};
    for (int world_size = 1; world_size <= (is_quick() ? 2 : 3); ++world_size) {
        for (int what = 0; what < REFUSALS; ++what) {
            for (int hit = 0; hit < 4; ++hit) {
                for (int last = 0; last < (what == SAVES ? 1 : 2); ++last) {
                    struct refusal refusal = {.world_size = world_size,
                                              .what = what,
                                              .hit = kHits[hit],
                                              .last_range = last != 0};
                    run_ranks(world_size, train_with_refusals, &refusal);
                    assert_verdicts(refusal.verdicts, world_size);
                    if (kHits[hit] == 1) assert_true(refusal.refused);
                    refused[what] += refusal.refused;
                }
            }
        }
    }
    assert_true(refused[READS] > 4 && refused[WRITES] > 4 && refused[SAVES] > 4);
}

/* ---- blocks of several transfers ---- */

enum { MANY = 2300000 };

/* Four vectors of state: sums, and sums of sums. */
static int32_t TRIREME_CALLCONV large_rule(const trireme_update *update, void *user_data) {
    (void)user_data;
    float *const p = update->parameters, *const a = update->states[0], *const b = update->states[1],
                 *const c = update->states[2], *const d = update->states[3];
    const float *const g = update->gradients;
    for (uint64_t i = 0; i < update->count; ++i) {
        a[i] += g[i];
        b[i] += a[i];
        c[i] += b[i];
        d[i] += c[i];
        p[i] -= d[i];
    }
    return 0;
}

static float large_gradient(int step, int element) {
    return (float)mean_gradient(step, element);
}

/* The larger the state, the larger its blocks: here above 1 MiB, which is read and written in
 * parts. */
static void train_large(trireme_communicator *ranks, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const v = &trial->verdicts[rank];
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO1;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    const uint64_t elements = MANY;
    parameter.name = "p";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    float *const values = malloc(MANY * sizeof(float));
    if (values == NULL) abort();
    for (int i = 0; i < MANY; ++i) values[i] = 1;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, values, MANY, TRIREME_DTYPE_F32, 0));
    trireme_optimizer_options rule = offload_options(TRIREME_RULE_USER, 1);
    state_file_of(&rule)->buffer_bytes = 64 << 20;
    user_rule_of(&rule)->state_count = 4;
    user_rule_of(&rule)->update = large_rule;
    trireme_optimizer *const optimizer = make_optimizer(v, model, rule);
    for (int step = 0; step < 2; ++step) {
        for (int i = 0; i < MANY; ++i) values[i] = large_gradient(step, i);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, values, MANY, TRIREME_DTYPE_F32, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    }
    trial->infos[rank] = info_of(v, optimizer);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, MANY, TRIREME_DTYPE_F32));
    int wrong = 0;
    for (int i = 0; i < MANY; ++i) {
        const float first = large_gradient(0, i), second = large_gradient(1, i);
        wrong += values[i] != 1 - 5 * first - second; /* quarters: exact */
    }
    EXPECT(v, wrong == 0);
    free(values);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void parts_of_a_block_fail_like_the_whole(void **state) {
    (void)state;
    static const char *const kTrials[] =
        {"file.read=short;file.write=short", "file.read=fail(5)@3;file.write=fail(28)@3",
         "file.ring=fail(1);file.read=short;file.write=short",
         "file.ring=fail(1);file.read=fail(5)@3;file.write=fail(28)@3"};
    for (int i = 0; i < (is_quick() ? 1 : 4); ++i) {
        assert_int_equal(trireme_failpoint_set(kTrials[i]), TRIREME_OK);
        struct trial trial = {.world_size = 1};
        run_ranks(1, train_large, &trial);
        assert_verdicts(trial.verdicts, 1);
        assert_true(trial.infos[0].block_bytes > 1 << 20);
        assert_int_equal(trial.infos[0].failed_writes, i % 2);
        /* Of each block two parts, and more where they are cut. */
        const uint64_t blocks = trial.infos[0].file_bytes / trial.infos[0].block_bytes;
        assert_true(hits_of("file.read") >= blocks * (i % 2 == 0 ? 4 : 2));
    }
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
}

/* ---- rotten data ---- */

/* Flips a bit in the files of this process in the directory; returns how many there are. */
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

static void train_on_rotten_state(trireme_communicator *ranks, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const v = &trial->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, TRIREME_STRATEGY_ZERO1, trial->world_size);
    trireme_optimizer *const optimizer =
        make_optimizer(v, model, offload_options(TRIREME_RULE_USER, 1));
    train_steps(v, model, optimizer, 0, 1, rank, trial->world_size);
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

/* In the last parameter's state, behind that of all others in one block. */
enum { IN_THE_LAST = 45000 };

/* The bytes read from the file were wrong; now, when some of the block is updated already, the file
 * is right again. */
static int32_t TRIREME_CALLCONV healing_rule(const trireme_update *update, void *user_data) {
    bool *const rotten = user_data;
    if (*rotten) *rotten = rot(IN_THE_LAST) != 1;
    return own_rule(update, NULL);
}

static void train_while_it_heals(trireme_communicator *ranks, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const v = &trial->verdicts[rank];
    bool rotten = false;
    trireme_model *const model = make_model(v, ranks, TRIREME_STRATEGY_ZERO1, 1);
    trireme_optimizer_options options = offload_options(TRIREME_RULE_USER, 1);
    state_file_of(&options)->buffer_bytes = 0; /* the default: all in one block */
    user_rule_of(&options)->update = healing_rule;
    user_rule_of(&options)->user_data = &rotten;
    trireme_optimizer *const optimizer = make_optimizer(v, model, options);
    train_steps(v, model, optimizer, 0, 1, rank, 1);
    const trireme_offload_info info = info_of(v, optimizer);
    EXPECT(v, info.block_bytes == info.file_bytes && info.file_bytes > IN_THE_LAST);
    rotten = rot(IN_THE_LAST) == 1;
    EXPECT(v, rotten);
    train_steps(v, model, optimizer, 1, STEPS, rank, 1);
    EXPECT(v, !rotten);
    /* Two steps have read, and one of them twice. */
    EXPECT(v, info_of(v, optimizer).read_bytes == STEPS * info.file_bytes);
    expect_planned(v, model, optimizer);
    float values[TOTAL], expected[TOTAL];
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, TOTAL, TRIREME_DTYPE_F32));
    EXPECT(v, expect_plain(TRIREME_RULE_USER, expected));
    EXPECT(v, memcmp(values, expected, sizeof values) == 0);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void what_was_read_wrongly_is_read_once_more(void **state) {
    (void)state;
    struct trial trial = {.world_size = 1};
    run_ranks(1, train_while_it_heals, &trial);
    assert_verdicts(trial.verdicts, 1);
}

/* Blocks have two checksums each; of the first one the second is of rotten bytes. */
enum { OF_SEVERAL = 200003, IN_THE_SECOND = 131072 + 100 };

static void write_while_it_rots(trireme_communicator *ranks, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const v = &trial->verdicts[rank];
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_DATA_PARALLEL;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    const uint64_t elements = OF_SEVERAL, bytes = OF_SEVERAL * sizeof(float);
    parameter.name = "p";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = offload_options(TRIREME_RULE_SGD, 1);
    state_file_of(&rule)->buffer_bytes = 0; /* the default */
    rule.learning_rate = 1;
    trireme_optimizer *const optimizer = make_optimizer(v, model, rule);
    uint64_t count = 0, index = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &count));
    for (; index < count; ++index) {
        trireme_state_range range = TRIREME_STATE_RANGE_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, index, &range));
        if (range.kind == TRIREME_STATE_KIND_OPTIMIZER) break;
    }
    float *const first = malloc(bytes), *const other = malloc(bytes),
                 *const found = calloc(1, bytes);
    if (first == NULL || other == NULL || found == NULL) abort();
    for (int i = 0; i < OF_SEVERAL; ++i) {
        first[i] = (float)i;
        other[i] = (float)-i;
    }
    /* The first step takes no state; from zeros it leaves zeros. */
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, found, OF_SEVERAL, TRIREME_DTYPE_F32,
                                                     0));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_accumulate_flat(model, found, OF_SEVERAL, TRIREME_DTYPE_F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_write_range(optimizer, index, first, bytes));
    EXPECT(v, rot(IN_THE_SECOND) == 1);
    EXPECT_STATUS(v, TRIREME_ERROR_CORRUPT,
                  trireme_optimizer_write_range(optimizer, index, other, bytes));
    /* None of it was written, and the contents are right again. */
    EXPECT(v, rot(IN_THE_SECOND) == 1);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_read_range(optimizer, index, found, bytes));
    EXPECT(v, memcmp(found, first, bytes) == 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_write_range(optimizer, index, other, bytes));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_read_range(optimizer, index, found, bytes));
    EXPECT(v, memcmp(found, other, bytes) == 0);
    /* From parameters and gradients of zero: p = 0 - (0.75 * state + 0). */
    memset(found, 0, bytes);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_accumulate_flat(model, found, OF_SEVERAL, TRIREME_DTYPE_F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, found, OF_SEVERAL, TRIREME_DTYPE_F32));
    int wrong = 0;
    for (int i = 0; i < OF_SEVERAL; ++i) wrong += found[i] != 0.75f * (float)i;
    EXPECT(v, wrong == 0);
    free(first);
    free(other);
    free(found);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_write_of_a_range_that_fails_changes_no_checksum(void **state) {
    (void)state;
    struct trial trial = {.world_size = 1};
    run_ranks(1, write_while_it_rots, &trial);
    assert_verdicts(trial.verdicts, 1);
}

/* ---- a process is killed ---- */

struct killing {
    char rendezvous[64];
};

static void train_until_killed(int rank, void *context, struct outcome *outcome) {
    const struct killing *const killing = context;
    struct verdict v = {{0}};
    if (rank == 0 && trireme_failpoint_set("file.write=kill@9") != TRIREME_OK) return;
    trireme_communicator *const ranks = join_process(rank, 2, killing->rendezvous, PATIENT_NS);
    trireme_model *const model = make_model(&v, ranks, TRIREME_STRATEGY_ZERO1, 2);
    trireme_optimizer *const optimizer =
        make_optimizer(&v, model, offload_options(TRIREME_RULE_USER, 1));
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
        cmocka_unit_test(after_a_refusal_the_next_step_is_right),
        cmocka_unit_test(parts_of_a_block_fail_like_the_whole),
        cmocka_unit_test(rotten_state_is_no_wrong_number),
        cmocka_unit_test(what_was_read_wrongly_is_read_once_more),
        cmocka_unit_test(a_write_of_a_range_that_fails_changes_no_checksum),
    };
    return cmocka_run_group_tests_name("offload errors", tests, NULL, remove_directory);
}
