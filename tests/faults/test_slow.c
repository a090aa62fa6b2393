/*
 * A rank that is late but alive is no failure: each waiting rank warns through the log and names it
 * and its last call. The operation succeeds once the rank comes. So does one that stalls inside a
 * gradient reduction between hosts. Those who stall for too long are blamed together.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "calls.h"
#include "processes.h"
#include "ranks.h"
#include "transport.h"

#define WARNING_NS (20ull * 1000 * 1000)
#define NEVER UINT64_MAX
#define MOST_LINES 64
#define ENOUGH 3 /* warnings that one rank hears before the late one comes */

#define BUCKET (16u << 10) /* elements: more than travels with a call */
#define STALL_MS 1500

/* ---- what the log has said ---- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char lines[MOST_LINES][400];
static int line_count;
static int trial_count;
static int warning_count;

static void TRIREME_CALLCONV listen_to(trireme_log_level level, const char *message,
                                       void *user_data) {
    (void)user_data;
    if (level != TRIREME_LOG_WARNING) return;
    pthread_mutex_lock(&mutex);
    if (line_count < MOST_LINES) snprintf(lines[line_count++], sizeof lines[0], "%s", message);
    pthread_mutex_unlock(&mutex);
}

static int count_lines(const char *begin) {
    int count = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < line_count; ++i) count += strncmp(lines[i], begin, strlen(begin)) == 0;
    pthread_mutex_unlock(&mutex);
    return count;
}

/* ---- the ways to wait ---- */

enum way { COLLECTIVE, STARTED, RECEIVE, STARTED_RECEIVE, SEND, JOIN, AGREE, TRANSPORT, WAYS };

static const char *const said[WAYS] = {
    "rank %d has not come to all_reduce, sequence 2, for ",
    "rank %d has not come to all_reduce, sequence 2, for ",
    "rank %d has not sent the message with tag 4 for ",
    "rank %d has not sent the message with tag 4 for ",
    "rank %d has not taken the message with tag 4 for ",
    "rank %d has not joined for ",
    "rank %d has not come to agree for ",
    "rank %d has not come to all_reduce, sequence 2, for ",
};

struct slow {
    enum way way;
    int world_size;
    int late;
    uint64_t warning_ns;
    uint64_t late_ms; /* 0: until all others have been warned */
    char rendezvous[64];
    struct net *net;
    pthread_barrier_t over;
    struct verdict verdicts[MOST_RANKS];
};

static trireme_status join(struct slow *slow, int rank, trireme_communicator **out) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    trireme_transport transport;
    options.rank = rank;
    options.world_size = slow->world_size;
    options.rendezvous = slow->rendezvous;
    options.name = "slow";
    options.timeout_ns = LONG_NS;
    options.stall_warning_ns = slow->warning_ns;
    if (slow->net != NULL) {
        net_transport(slow->net, rank, &transport);
        options.transport = &transport;
        options.rendezvous = "transport://slow";
    }
    return trireme_communicator_create(&options, out);
}

/* "rank 0 of "slow": rank 2 has not come to ..." */
static void line_begin(const struct slow *slow, int rank, char *text, size_t capacity) {
    char what[128];
    snprintf(what, sizeof what, said[slow->way], slow->late);
    snprintf(text, capacity, "rank %d of \"slow\": %s", rank, what);
}

static bool waits_for_late(const struct slow *slow, int rank) {
    if (rank == slow->late) return false;
    const bool pair = slow->way == RECEIVE || slow->way == STARTED_RECEIVE || slow->way == SEND;
    return !pair || rank == (slow->late + 1) % slow->world_size;
}

static void come_late(const struct slow *slow, struct verdict *verdict) {
    if (slow->late_ms != 0) {
        sleep_ms((unsigned)slow->late_ms);
        return;
    }
    const uint64_t end = monotonic_ns() + PATIENT_NS;
    for (int rank = 0; rank < slow->world_size; ++rank) {
        char begin[160];
        line_begin(slow, rank, begin, sizeof begin);
        if (!waits_for_late(slow, rank)) continue;
        while (monotonic_ns() < end && count_lines(begin) < ENOUGH) sleep_ms(2);
        EXPECT(verdict, count_lines(begin) >= ENOUGH);
    }
}

static void wait_in_one_way(const struct slow *slow, trireme_communicator *communicator, int rank,
                            struct verdict *verdict) {
    const int32_t own = rank + 1;
    const int n = slow->world_size;
    const bool late = rank == slow->late;
    const int peer = late ? (rank + 1) % n : slow->late;
    int32_t data = late ? 77 : 0;
    uint64_t flags = 5;
    trireme_request *request = NULL;
    switch (slow->way) {
        case JOIN:
        case COLLECTIVE:
        case TRANSPORT:
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_all_reduce(communicator, &own, &data, 1, TRIREME_DTYPE_I32,
                                             TRIREME_REDUCTION_SUM, NULL));
            EXPECT(verdict, data == n * (n + 1) / 2);
            return;
        case STARTED:
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_all_reduce_start(communicator, &own, &data, 1, TRIREME_DTYPE_I32,
                                                   TRIREME_REDUCTION_SUM, NULL, &request));
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_wait(request, LONG_NS));
            EXPECT(verdict, data == n * (n + 1) / 2);
            break;
        case RECEIVE:
        case STARTED_RECEIVE:
            if (late) {
                EXPECT_STATUS(verdict, TRIREME_OK,
                              trireme_send(communicator, &data, 1, TRIREME_DTYPE_I32, peer, 4,
                                           NULL));
            } else if (!waits_for_late(slow, rank)) {
                break;
            } else if (slow->way == RECEIVE) {
                EXPECT_STATUS(verdict, TRIREME_OK,
                              trireme_receive(communicator, &data, 1, TRIREME_DTYPE_I32, peer, 4,
                                              NULL));
            } else {
                EXPECT_STATUS(verdict, TRIREME_OK,
                              trireme_receive_start(communicator, &data, 1, TRIREME_DTYPE_I32, peer,
                                                    4, NULL, &request));
                EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_wait(request, LONG_NS));
            }
            EXPECT(verdict, data == 77);
            break;
        case SEND: {
            /* More than lies between two ranks, so that the sender has to wait. */
            const uint64_t count = 4u << 20;
            int32_t *const large = calloc(count, sizeof *large);
            if (late) {
                EXPECT_STATUS(verdict, TRIREME_OK,
                              trireme_receive(communicator, large, count, TRIREME_DTYPE_I32, peer,
                                              4, NULL));
                EXPECT(verdict, large[count - 1] == 78);
            } else if (waits_for_late(slow, rank)) {
                large[count - 1] = 78;
                EXPECT_STATUS(verdict, TRIREME_OK,
                              trireme_send(communicator, large, count, TRIREME_DTYPE_I32, peer, 4,
                                           NULL));
            }
            free(large);
            break;
        }
        case AGREE:
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_agree(communicator, &flags, 0));
            EXPECT(verdict, flags == 5);
            break;
        case WAYS: break;
    }
    trireme_request_destroy(request);
}

static void be_slow(int rank, void *context) {
    struct slow *const slow = context;
    struct verdict *const verdict = &slow->verdicts[rank];
    trireme_communicator *communicator = NULL;
    if (rank == slow->late && slow->way == JOIN) come_late(slow, verdict);
    if (!EXPECT_STATUS(verdict, TRIREME_OK, join(slow, rank, &communicator))) abort();
    if (slow->way != JOIN) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
        if (rank == slow->late) come_late(slow, verdict);
    }
    wait_in_one_way(slow, communicator, rank, verdict);
    pthread_barrier_wait(&slow->over);
    trireme_communicator_destroy(communicator);
}

static void run_slow(struct slow *slow) {
    line_count = 0;
    unique_rendezvous(slow->rendezvous, sizeof slow->rendezvous);
    if (slow->way == TRANSPORT) slow->net = net_create(slow->world_size);
    assert_int_equal(pthread_barrier_init(&slow->over, NULL, (unsigned)slow->world_size), 0);
    run_threads(slow->world_size, be_slow, slow);
    pthread_barrier_destroy(&slow->over);
    if (slow->net != NULL) net_destroy(slow->net, slow->world_size);
    assert_verdicts(slow->verdicts, slow->world_size);
    ++trial_count;
    warning_count += line_count;
}

static double milliseconds_in(const char *line) {
    const char *const text = strstr(line, " for ") + strlen(" for ");
    char unit[8] = "";
    double value = 0;
    if (sscanf(text, "%lf %2[ms]", &value, unit) != 2) return -1;
    return strcmp(unit, "ms") == 0 ? value : value * 1000;
}

/* Nothing is said of others than the late one; after the first warning only when the wait has
 * doubled. */
static void check_lines(const struct slow *slow) {
    double last[MOST_RANKS] = {0};
    for (int i = 0; i < line_count; ++i) {
        for (int rank = 0; rank < slow->world_size; ++rank) {
            char begin[160];
            line_begin(slow, rank, begin, sizeof begin);
            if (strncmp(lines[i], begin, strlen(begin)) != 0) continue;
            const double now = milliseconds_in(lines[i]);
            const double rounding = now < 1000 ? 2 : 160; /* tenths of a second are told */
            if (now < 20 || now < 2 * last[rank] - rounding) fail_msg("too soon: %s", lines[i]);
            last[rank] = now;
            /* It may come while the line is written. */
            const bool told = strstr(lines[i], "last called barrier, sequence 1") != NULL ||
                              strstr(lines[i], "last called all_reduce, sequence 2") != NULL;
            const bool known = slow->way != TRANSPORT && slow->way != JOIN;
            if (told != known) fail_msg("what it last did: %s", lines[i]);
        }
    }
}

static void who_is_late_is_named_by_a_warning_and_nothing_fails(void **state) {
    (void)state;
    static const int sizes[] = {2, 3, 5};
    for (enum way way = 0; way < WAYS; ++way) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
            struct slow slow = {.way = way,
                                .world_size = sizes[i],
                                .late = (int)way % sizes[i],
                                .warning_ns = WARNING_NS};
            /* With more than two ranks, the algorithm decides which rank waits for which. */
            if (way == TRANSPORT && sizes[i] > 2) continue;
            run_slow(&slow);
            check_lines(&slow);
        }
    }
}

static void who_asks_for_no_warning_gets_none(void **state) {
    (void)state;
    for (enum way way = 0; way < WAYS; ++way) {
        struct slow slow = {.way = way,
                            .world_size = 2,
                            .late = 1,
                            .warning_ns = NEVER,
                            .late_ms = 60};
        run_slow(&slow);
        assert_int_equal(line_count, 0);
    }
}

/* The default is far longer than this wait. */
static void a_short_wait_is_no_warning(void **state) {
    (void)state;
    for (enum way way = 0; way < WAYS; ++way) {
        struct slow slow = {.way = way, .world_size = 2, .late = 0, .warning_ns = 0, .late_ms = 30};
        run_slow(&slow);
        assert_int_equal(line_count, 0);
    }
    printf("slow: %d trials, %d warnings, 0 failures\n", trial_count, warning_count);
}

/* ---- a rank that stalls inside a gradient reduction ---- */

struct fold {
    int world_size;
    uint64_t timeout_ns;
    trireme_error_info infos[MOST_RANKS]; /* where it is too short */
    char rendezvous[96];
    struct verdict verdicts[MOST_RANKS];
};

/* Descends at rate 1 from 0, once. */
static void reduce_gradients(int rank, void *context) {
    struct fold *const fold = context;
    struct verdict *const v = &fold->verdicts[rank];
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = fold->world_size;
    options.rendezvous = fold->rendezvous;
    options.name = "slow";
    options.timeout_ns = fold->timeout_ns;
    options.stall_warning_ns = WARNING_NS;
    options.backend = "frames"; /* these ranks share a host, whose memory they would use */
    trireme_communicator *group = NULL;
    if (!EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_create(&options, &group))) abort();
    trireme_model_options model_options = TRIREME_MODEL_OPTIONS_INIT;
    model_options.strategy = TRIREME_STRATEGY_ZERO2;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(group, &model_options, &model));
    const uint64_t elements = BUCKET;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "w";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    float *const values = calloc(elements, sizeof *values);
    for (uint64_t i = 0; i < elements; ++i) values[i] = 60 * (float)(rank + 1);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gradient_ready(model, 0, values, elements, TRIREME_DTYPE_F32));
    trireme_status status = trireme_model_end_backward(model);
    if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
    if (fold->timeout_ns == LONG_NS) {
        EXPECT_STATUS(v, TRIREME_OK, status);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(model, values, elements, TRIREME_DTYPE_F32));
        for (uint64_t i = 0; i < elements; ++i) {
            if (!EXPECT(v, values[i] == -30 * (float)(fold->world_size + 1))) break;
        }
    } else {
        trireme_error_info *const info = &fold->infos[rank];
        info->struct_size = sizeof *info;
        EXPECT_STATUS(v, TRIREME_OK, trireme_last_error_info(info));
        EXPECT_STATUS(v, TRIREME_ERROR_TIMEOUT, status);
    }
    free(values);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(group);
}

/* One rank sleeps before its first piece. Until it wakes, each other rank waits for it alone. */
static void who_stalls_in_a_gradient_reduction_is_named(void **state) {
    (void)state;
    for (int n = 2; n <= 3; ++n) {
        struct fold fold = {.world_size = n, .timeout_ns = LONG_NS};
        char setting[64];
        line_count = 0;
        unique_network_rendezvous(fold.rendezvous, sizeof fold.rendezvous);
        snprintf(setting, sizeof setting, "fold.mid_move=sleep(%d)@1", STALL_MS);
        assert_int_equal(trireme_failpoint_set(setting), TRIREME_OK);
        run_threads(n, reduce_gradients, &fold);
        assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
        assert_verdicts(fold.verdicts, n);
        int stalled = -1;
        bool warns[MOST_RANKS] = {false};
        for (int i = 0; i < line_count; ++i) {
            int waiting = -1;
            int named = -1;
            int end = 0;
            sscanf(lines[i],
                   "rank %d of \"slow\": rank %d has not done its part of gradient reduction, "
                   "sequence %*d, for %n",
                   &waiting, &named, &end);
            if (end == 0) continue;
            if (stalled < 0) stalled = named;
            assert_in_range(waiting, 0, n - 1);
            if (named == stalled) warns[waiting] = true;
        }
        assert_in_range(stalled, 0, n - 1);
        for (int rank = 0; rank < n; ++rank) assert_true(warns[rank] == (rank != stalled));
        ++trial_count;
        warning_count += line_count;
    }
}

/* Two of three ranks sleep until the third one has given up: it blames both, and tells them. */
static void all_who_stall_too_long_are_blamed(void **state) {
    (void)state;
    struct fold fold = {.world_size = 3, .timeout_ns = 2000ull * 1000 * 1000};
    unique_network_rendezvous(fold.rendezvous, sizeof fold.rendezvous);
    assert_int_equal(trireme_failpoint_set("fold.mid_move=sleep(4000)@2+"), TRIREME_OK);
    run_threads(3, reduce_gradients, &fold);
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
    assert_verdicts(fold.verdicts, 3);
    for (int rank = 0; rank < 3; ++rank) {
        const trireme_error_info *const info = &fold.infos[rank];
        assert_int_equal(info->blamed_count, 2);
        assert_int_equal(info->blamed[0], fold.infos[0].blamed[0]);
        assert_int_equal(info->blamed[1], fold.infos[0].blamed[1]);
    }
    ++trial_count;
}

static int listen_before(void **state) {
    (void)state;
    return trireme_set_log_callback(listen_to, TRIREME_LOG_WARNING, NULL);
}

static int be_deaf_after(void **state) {
    (void)state;
    return trireme_set_log_callback(NULL, TRIREME_LOG_WARNING, NULL);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_late_is_named_by_a_warning_and_nothing_fails),
        cmocka_unit_test(who_asks_for_no_warning_gets_none),
        cmocka_unit_test(who_stalls_in_a_gradient_reduction_is_named),
        cmocka_unit_test(all_who_stall_too_long_are_blamed),
        cmocka_unit_test(a_short_wait_is_no_warning),
    };
    setenv("TRIREME_TOKEN", "the token of these tests", 1);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("slow", tests, listen_before, be_deaf_after);
}
