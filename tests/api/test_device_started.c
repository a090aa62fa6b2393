/*
 * Started calls, lists and batches of memory of a device, over a driver of the tests: their order
 * with the caller's streams, and every way to fail. Tests of the host, which run over a device,
 * too, look at their results.
 */
#include <trireme/trireme.h>

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "device_ranks.h"
#include "processes.h"

#define F32 TRIREME_DTYPE_F32
#define SUM TRIREME_REDUCTION_SUM

static trireme_status finish(trireme_request *request) {
    const trireme_status status = trireme_request_wait(request, LONG_NS);
    trireme_request_destroy(request);
    return status;
}

static bool is_done(const trireme_request *request) {
    int32_t done = 0;
    CHECK(trireme_request_test(request, &done) == TRIREME_OK);
    return done != 0;
}

static void hold(const struct rank *rank, int on) {
    FAKE(fake_holds, "fake_hold")(rank->stream, on);
}

struct job {
    int world;
    char rendezvous[64];
};

static void run_job(int world, void (*function)(int number, void *context)) {
    struct job job = {.world = world};
    unique_rendezvous(job.rendezvous, sizeof job.rendezvous);
    run_threads(world, function, &job);
    no_complaint();
    CHECK(FAKE(fake_retained, "fake_retained_count")(0) == 0);
}

/* ---- order ---- */

/* The value comes into the stream before the call, and another one behind it. */
static void start_behind_work(int number, void *context) {
    const struct job *const job = context;
    const struct rank rank = make_rank(number, job->world, job->rendezvous);
    const trireme_operation_options options = options_of(&rank);
    const float mine = (float)(number + 1), mark = -1;
    float found[2] = {0};
    trireme_request *request = NULL, *second = NULL;
    if (rank.stream != NULL) hold(&rank, 1);
    put(&rank, rank.send, &mine, 1);
    CHECK(trireme_all_reduce_start(rank.communicator, rank.send, rank.receive, 1, F32, SUM,
                                   &options, &request) == TRIREME_OK);
    /* It waits in the queue, and so does the next one. Its result is its own. */
    void *const both[] = {rank.receive + 1};
    const void *const from[] = {rank.send};
    const uint64_t count = 1;
    CHECK(trireme_all_reduce_list_start(rank.communicator, from, both, &count, 1, F32, SUM,
                                        &options, &second) == TRIREME_OK);
    if (rank.stream != NULL) {
        CHECK(!is_done(request) && !is_done(second));
        hold(&rank, 0);
    }
    CHECK(finish(request) == TRIREME_OK && finish(second) == TRIREME_OK);
    /* The operand is free again, in any stream. */
    struct rank other = rank;
    other.stream = FAKE(fake_stream, "fake_user_stream")(rank.device);
    put(&other, rank.send, &mark, 1);
    get(&other, found, rank.receive, 2);
    const float sum = (float)(job->world * (job->world + 1) / 2);
    CHECK(found[0] == sum && found[1] == sum);
    trireme_communicator_destroy(rank.communicator);
}

/* Rank 0 starts what the others call in the blocking form. */
static void meet_blocking_calls(int number, void *context) {
    const struct job *const job = context;
    const struct rank rank = make_rank(number, job->world, job->rendezvous);
    trireme_communicator *const group = rank.communicator;
    const trireme_operation_options options = options_of(&rank);
    const uint64_t counts[] = {1, 1, 1};
    for (int kind = 0; kind < 4; ++kind) {
        trireme_request *request = NULL;
        trireme_status status = TRIREME_OK;
        const float mine = (float)(number + 1);
        float found[3] = {0};
        put(&rank, rank.send, &mine, 1);
        if (kind == 0 && number == 0) {
            status = trireme_all_reduce_start(group, rank.send, rank.receive, 1, F32, SUM, &options,
                                              &request);
        } else if (kind == 0) {
            status = trireme_all_reduce(group, rank.send, rank.receive, 1, F32, SUM, &options);
        } else if (kind == 1 && number == 0) {
            status = trireme_reduce_start(group, rank.send, rank.receive, 1, F32, SUM, 0, &options,
                                          &request);
        } else if (kind == 1) {
            status = trireme_reduce(group, rank.send, NULL, 1, F32, SUM, 0, &options);
        } else if (kind == 2 && number == 0) {
            status = trireme_all_gather_v_start(group, rank.send, rank.receive, counts, F32,
                                                &options, &request);
        } else if (kind == 2) {
            status = trireme_all_gather_v(group, rank.send, rank.receive, counts, F32, &options);
        } else if (number == 0) {
            status = trireme_all_reduce_start(group, NULL, NULL, 0, F32, SUM, &options, &request);
        } else {
            status = trireme_all_reduce(group, NULL, NULL, 0, F32, SUM, &options);
        }
        CHECK(status == TRIREME_OK);
        if (number == 0) CHECK(finish(request) == TRIREME_OK);
        get(&rank, found, rank.receive, 3);
        if (kind == 0 || (kind == 1 && number == 0)) CHECK(found[0] == 6);
        if (kind == 2) CHECK(found[0] == 1 && found[1] == 2 && found[2] == 3);
    }
    trireme_communicator_destroy(group);
}

static void behind_work(void) {
    run_job(3, start_behind_work);
    run_job(3, meet_blocking_calls);
}

static void started_calls_follow_the_work_in_their_stream(void **state) {
    (void)state;
    run_in_all_modes(behind_work);
}

/* A message lies on the device when its request is done. A longer receive leaves the rest alone. */
static void exchange(int number, void *context) {
    const struct job *const job = context;
    const struct rank rank = make_rank(number, job->world, job->rendezvous);
    const trireme_operation_options options = options_of(&rank);
    float values[8], found[8];
    for (int i = 0; i < 8; ++i) values[i] = (float)(10 * number + i);
    put(&rank, rank.send, values, 8);
    put(&rank, rank.receive, values, 8);
    trireme_request *sent = NULL, *received = NULL;
    const int peer = 1 - number;
    CHECK(trireme_receive_message_start(rank.communicator, rank.receive, 8, F32, peer, 3, &options,
                                        &received) == TRIREME_OK);
    CHECK(trireme_send_start(rank.communicator, rank.send, 5, F32, peer, 3, &options, &sent) ==
          TRIREME_OK);
    CHECK(trireme_request_wait(received, LONG_NS) == TRIREME_OK);
    get(&rank, found, rank.receive, 8);
    for (int i = 0; i < 8; ++i) CHECK(found[i] == (float)(10 * (i < 5 ? peer : number) + i));
    trireme_message_info info = TRIREME_MESSAGE_INFO_INIT;
    CHECK(trireme_request_get_message(received, &info) == TRIREME_OK);
    CHECK(info.count == 5 && info.source == peer && info.tag == 3);
    trireme_request_destroy(received);
    CHECK(finish(sent) == TRIREME_OK);
    /* A batch has both, too. Nothing waits before its end. */
    CHECK(trireme_batch_begin() == TRIREME_OK);
    CHECK(trireme_send(rank.communicator, rank.send, 8, F32, peer, 4, &options) == TRIREME_OK);
    CHECK(trireme_receive(rank.communicator, rank.receive, 8, F32, peer, 4, &options) ==
          TRIREME_OK);
    CHECK(trireme_all_reduce(rank.communicator, rank.send, rank.send, 8, F32, SUM, &options) ==
          TRIREME_OK);
    CHECK(trireme_batch_end() == TRIREME_OK);
    get(&rank, found, rank.receive, 8);
    for (int i = 0; i < 8; ++i) CHECK(found[i] == (float)(10 * peer + i));
    get(&rank, found, rank.send, 8);
    for (int i = 0; i < 8; ++i) CHECK(found[i] == (float)(10 + 2 * i));
    trireme_communicator_destroy(rank.communicator);
}

static void messages(void) {
    run_job(2, exchange);
}

static void messages_and_batches_bring_their_bytes(void **state) {
    (void)state;
    run_in_all_modes(messages);
}

/* ---- refusals ---- */

static void refusals(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    const struct rank rank = make_rank(0, 1, rendezvous);
    trireme_communicator *const group = rank.communicator;
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT, no = TRIREME_ERROR_UNSUPPORTED;
    trireme_operation_options options = options_of(&rank);
    trireme_request *request = NULL;
    float here[4] = {1, 2, 3, 4}, found[4] = {0};
    const void *const sends[] = {rank.send, here};
    void *const receives[] = {rank.receive, rank.receive + 4};
    const uint64_t counts[] = {4, 4};
    CHECK_FAILS(trireme_all_reduce_start(group, here, rank.receive, 4, F32, SUM, NULL, &request),
                bad, "send is memory of the host", "CUDA device 0");
    CHECK_FAILS(trireme_all_reduce_list(group, sends, receives, counts, 2, F32, SUM, NULL), bad,
                "entry 1: send is memory of the host");
    CHECK_FAILS(trireme_send_start(group, here, 4, F32, 0, 1, NULL, &request), bad,
                "data is memory of the host");
    CHECK_FAILS(trireme_all_reduce_start(group, rank.send, rank.receive, 4, F32, SUM, NULL, NULL),
                bad, "out_request is NULL");
    CHECK_FAILS(trireme_all_to_all_v(group, rank.send, counts, rank.send + 2, counts, F32, NULL),
                bad, "overlap");
    options.wire_dtype = TRIREME_DTYPE_BF16;
    CHECK_FAILS(trireme_all_reduce_list(group, sends, receives, counts, 1, F32, SUM, &options), no,
                "wire_dtype", "travels as it is");
    CHECK_FAILS(trireme_all_to_all_v(group, rank.send, counts, rank.receive, counts, F32, &options),
                no, "wire_dtype");
    options.wire_dtype = TRIREME_DTYPE_F64;
    CHECK_FAILS(reduce_one(group, rank.send, rank.receive, &options), bad, "only f32 can travel");
    /* All ranks find this together, when they have compared their calls. */
    options = options_of(&rank);
    options.algorithm = TRIREME_ALGORITHM_NATIVE;
    put(&rank, rank.send, here, 4);
    CHECK(trireme_all_reduce_start(group, rank.send, rank.receive, 4, F32, SUM, &options,
                                   &request) == TRIREME_OK);
    CHECK_FAILS(finish(request), no, "options.algorithm is native", "NCCL cannot be used");
    /* The group goes on. */
    CHECK(trireme_all_reduce_list(group, sends, receives, counts, 1, F32, SUM, NULL) == TRIREME_OK);
    get(&rank, found, rank.receive, 4);
    CHECK(memcmp(found, here, sizeof here) == 0);
    trireme_communicator_destroy(group);
    no_complaint();
}

static void what_cannot_be_is_refused_before_it_begins(void **state) {
    (void)state;
    run(refusals, "mode=lazy");
}

/* ---- failures ---- */

enum form { STARTED, LIST, BATCH, MESSAGE, FORMS };

static trireme_status
call(const struct rank *rank, enum form form, const trireme_operation_options *options) {
    trireme_communicator *const group = rank->communicator;
    const void *const sends[] = {rank->send, rank->send + 8};
    void *const receives[] = {rank->receive, rank->receive + 8};
    const uint64_t counts[] = {4, 4};
    const int next = (rank->number + 1) % rank->world;
    const int last = (rank->number + rank->world - 1) % rank->world;
    trireme_request *request = NULL;
    trireme_status status = TRIREME_OK;
    switch (form) {
        case STARTED:
            status = trireme_all_reduce_start(group, rank->send, rank->receive, 4, F32, SUM,
                                              options, &request);
            return status == TRIREME_OK ? finish(request) : status;
        case LIST:
            return trireme_all_reduce_list(group, sends, receives, counts, 2, F32, SUM, options);
        case BATCH:
            CHECK(trireme_batch_begin() == TRIREME_OK);
            status = reduce_one(group, rank->send, rank->receive, options);
            if (status != TRIREME_OK) return status; /* its message is the last one */
            return trireme_batch_end();
        default:
            status =
                trireme_receive_start(group, rank->receive, 4, F32, last, 0, options, &request);
            if (status != TRIREME_OK) return status;
            status = trireme_send(group, rank->send, 4, F32, next, 0, options);
            if (status != TRIREME_OK) return status;
            return finish(request);
    }
}

struct failure {
    enum form form;
    char rendezvous[64];
    const char *script; /* of rank 0's device */
    trireme_status status;
    const char *word;
};

static void with_a_bad_device(int number, void *context, struct outcome *outcome) {
    const struct failure *const failure = context;
    use_fake("mode=lazy");
    const struct rank rank = make_rank(number, 3, failure->rendezvous);
    CHECK(trireme_barrier(rank.communicator, NULL) == TRIREME_OK);
    if (number == 0) use_fake(failure->script);
    trireme_operation_options options = options_of(&rank);
    const bool is_late = failure->status == TRIREME_ERROR_TIMEOUT;
    options.timeout_ns = number == 0 && is_late ? 300 * 1000 * 1000 : PATIENT_NS;
    const float zeros[16] = {0};
    put(&rank, rank.send, zeros, 16);
    keep_error(outcome, call(&rank, failure->form, &options));
    outcome->later = trireme_barrier(rank.communicator, NULL);
    trireme_communicator_destroy(rank.communicator);
    no_complaint(); /* also when the device goes on at last */
}

static void a_device_that_fails_fails_the_group_by_name(void **state) {
    (void)state;
    const struct failure failures[] = {
        {.script = "stall=1", .status = TRIREME_ERROR_TIMEOUT, .word = "has not done its work"},
        {.script = "stuck=1", .status = TRIREME_ERROR_TIMEOUT, .word = "keep the memory of this"},
        {.script = "sticky=1:719", .status = TRIREME_ERROR_DEVICE, .word = "719"},
        {.script = "fail=cuEventRecord:719", .status = TRIREME_ERROR_DEVICE, .word = "719"},
        {.script = "oom=0", .status = TRIREME_ERROR_OUT_OF_MEMORY, .word = "cuMemHostAlloc"},
    };
    for (size_t i = 0; i < FORMS * sizeof failures / sizeof *failures; ++i) {
        struct processes processes;
        struct failure failure = failures[i / FORMS];
        failure.form = (enum form)(i % FORMS);
        if (is_quick() && (failure.form == LIST || failure.form == BATCH)) continue;
        unique_host_rendezvous(failure.rendezvous, sizeof failure.rendezvous);
        start_processes(&processes, 3, with_a_bad_device, &failure);
        wait_processes(&processes);
        for (int rank = 0; rank < 3; ++rank) {
            const struct outcome *const outcome = &processes.outcomes[rank];
            if (outcome->exit_code != 0 || outcome->later >= 0) {
                fail_msg("form %d, \"%s\", rank %d: exit code %d, later %d", failure.form,
                         failure.script, rank, outcome->exit_code, outcome->later);
            }
            /* A message of two others may be done before. */
            if (rank != 0 && failure.form == MESSAGE && outcome->status == TRIREME_OK) continue;
            if (rank == 0) assert_int_equal(outcome->status, failure.status);
            assert_true(outcome->status < 0);
            const char *const word = rank == 0 ? failure.word : "rank 0";
            if (strstr(outcome->message, word) == NULL) {
                fail_msg("form %d, \"%s\", rank %d: no \"%s\" in %s", failure.form, failure.script,
                         rank, word, outcome->message);
            }
        }
        free_processes(&processes);
    }
}

/* Rank 1 dies while rank 0's call waits for the caller's stream, which never comes. */
static void wait_for_one_who_dies(int number, void *context, struct outcome *outcome) {
    const struct failure *const failure = context;
    use_fake("mode=lazy");
    const struct rank rank = make_rank(number, 2, failure->rendezvous);
    trireme_operation_options high = TRIREME_OPERATION_OPTIONS_INIT;
    high.priority = TRIREME_PRIORITY_HIGH;
    if (number == 1) {
        CHECK(trireme_barrier(rank.communicator, &high) == TRIREME_OK);
        raise(SIGKILL);
        return;
    }
    trireme_operation_options options = options_of(&rank);
    options.timeout_ns = HANG_NS;
    const float zeros[16] = {0};
    hold(&rank, 1);
    put(&rank, rank.send, zeros, 16);
    trireme_request *request = NULL;
    CHECK(trireme_all_reduce_start(rank.communicator, rank.send, rank.receive, 4, F32, SUM,
                                   &options, &request) == TRIREME_OK);
    /* Rank 1 lives until then. Another call finds out who is dead. */
    CHECK(trireme_barrier(rank.communicator, &high) == TRIREME_OK);
    CHECK(trireme_barrier(rank.communicator, &high) == TRIREME_ERROR_PEER_LOST);
    keep_error(outcome, finish(request));
    outcome->later = trireme_barrier(rank.communicator, NULL);
    trireme_communicator_destroy(rank.communicator);
    hold(&rank, 0);
    no_complaint();
}

static void a_lost_peer_ends_the_wait_for_the_stream(void **state) {
    (void)state;
    struct failure failure = {0};
    struct processes processes;
    unique_host_rendezvous(failure.rendezvous, sizeof failure.rendezvous);
    start_processes(&processes, 2, wait_for_one_who_dies, &failure);
    wait_processes(&processes);
    const struct outcome *const outcome = &processes.outcomes[0];
    assert_int_equal(outcome->exit_code, 0);
    assert_int_equal(outcome->status, TRIREME_ERROR_PEER_LOST);
    assert_true(blames_only(&outcome->info, 1));
    assert_int_equal(outcome->later, TRIREME_ERROR_PEER_LOST);
    free_processes(&processes);
}

/* The communicator ends while a call waits for the stream: nothing is queued behind that. */
static void leave_early(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    const struct rank rank = make_rank(0, 1, rendezvous);
    const trireme_operation_options options = options_of(&rank);
    const float value = 7;
    float found = 0;
    trireme_request *request = NULL;
    put(&rank, rank.receive, &value, 1);
    get(&rank, &found, rank.receive, 1);
    hold(&rank, 1);
    put(&rank, rank.send, &found, 1);
    CHECK(trireme_all_reduce_start(rank.communicator, rank.send, rank.receive, 1, F32, SUM,
                                   &options, &request) == TRIREME_OK);
    trireme_communicator_destroy(rank.communicator);
    CHECK(finish(request) < 0);
    hold(&rank, 0);
    get(&rank, &found, rank.receive, 1);
    CHECK(found == value);
    no_complaint();
}

static void a_communicator_ends_without_its_stream(void **state) {
    (void)state;
    run_in_all_modes(leave_early);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(started_calls_follow_the_work_in_their_stream),
        cmocka_unit_test(messages_and_batches_bring_their_bytes),
        cmocka_unit_test(what_cannot_be_is_refused_before_it_begins),
        cmocka_unit_test(a_device_that_fails_fails_the_group_by_name),
        cmocka_unit_test(a_lost_peer_ends_the_wait_for_the_stream),
        cmocka_unit_test(a_communicator_ends_without_its_stream),
    };
    return cmocka_run_group_tests_name("device_started", tests, NULL, NULL);
}
