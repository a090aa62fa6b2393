/*
 * Devices that fail or stand still in a collective of their memory: who hears it, and what is left
 * of the call. The driver of the tests is told when.
 */
#include <trireme/trireme.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "device_ranks.h"
#include "processes.h"

static void without_pinned_memory(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    const struct rank rank = make_rank(0, 1, rendezvous);
    CHECK_FAILS(reduce_one(rank.communicator, rank.send, rank.receive, NULL),
                TRIREME_ERROR_OUT_OF_MEMORY, "CUDA device 0: cuMemHostAlloc");
    CHECK(trireme_barrier(rank.communicator, NULL) == TRIREME_ERROR_OUT_OF_MEMORY);
    trireme_communicator_destroy(rank.communicator);
    no_complaint();
    CHECK(FAKE(fake_retained, "fake_retained_count")(0) == 0);
}

static void memory_that_cannot_be_pinned(void **state) {
    (void)state;
    run(without_pinned_memory, "mode=lazy oom=0");
}

/* Rank 0's device stands still, or fails. It says so, and the others hear who it was. */
struct failure {
    char rendezvous[64];
    bool early; /* before the operation has queued anything */
    const char *script;
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
    const float zeros[4] = {0};
    put(&rank, rank.send, zeros, 4);
    keep_error(outcome, reduce_one(rank.communicator, rank.send, rank.receive, &options));
    outcome->later = trireme_barrier(rank.communicator, NULL);
    trireme_communicator_destroy(rank.communicator);
    /* The context stays, as its end could wait for the device. Groups of the host go on. */
    const bool stays = number == 0 && failure->status != TRIREME_ERROR_OUT_OF_MEMORY;
    CHECK(FAKE(fake_retained, "fake_retained_count")(rank.device) == stays);
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const host = join(0, 1, rendezvous, -1);
    float here[4] = {1, 2, 3, 4}, found[4] = {0};
    CHECK(reduce_one(host, here, found, NULL) == TRIREME_OK && found[3] == 4);
    trireme_communicator_destroy(host);
    no_complaint(); /* also when the device goes on at last */
}

static void a_device_fails_in(const struct failure *failure) {
    struct processes processes;
    struct failure own = *failure;
    static int cases = 0;
    snprintf(own.rendezvous, sizeof own.rendezvous, "host://bad-%u-%d", own_number(), ++cases);
    start_processes(&processes, 3, with_a_bad_device, &own);
    wait_processes(&processes);
    for (int i = 0; i < 3; ++i) {
        const struct outcome *const outcome = &processes.outcomes[i];
        assert_int_equal(outcome->exit_code, 0);
        assert_true(outcome->later < 0);
        if (i == 0) {
            assert_int_equal(outcome->status, failure->status);
            assert_non_null(strstr(outcome->message, failure->word));
        } else {
            /* It hears of the failure, and not of the next call of rank 0. */
            assert_true(outcome->status < 0 && outcome->status != TRIREME_ERROR_MISMATCH);
        }
        /* Peers do not wait for their own deadlines. */
        if (failure->early) assert_int_equal(outcome->status, failure->status);
        assert_string_equal(outcome->info.operation, "all_reduce");
        assert_true(blames_only(&outcome->info, 0));
        if (strstr(outcome->message, "rank 0") == NULL) {
            fail_msg("rank %d does not name rank 0: %s", i, outcome->message);
        }
    }
    free_processes(&processes);
}

static void a_failed_device_fails_the_group_by_name(void **state) {
    (void)state;
    const struct failure failures[] = {
        {.script = "stall=1", .status = TRIREME_ERROR_TIMEOUT, .word = "has not done its work"},
        {.script = "stuck=1",
         .status = TRIREME_ERROR_TIMEOUT,
         .word = "keep the memory of this call"},
        {.script = "sticky=1:719", .status = TRIREME_ERROR_DEVICE, .word = "719"},
    };
    const size_t count = sizeof failures / sizeof *failures;
    for (size_t i = 0; i < count; ++i) a_device_fails_in(&failures[i]);
}

/* Rank 1's stream comes to the call after its deadline. By then its caller has given the memory to
 * other work. Rank 1 receives a broadcast, or also sends. */
static void late_call(int number, const char *rendezvous, bool sends) {
    const struct rank rank = make_rank(number, 2, rendezvous);
    CHECK(trireme_barrier(rank.communicator, NULL) == TRIREME_OK); /* both have joined */
    trireme_operation_options options = options_of(&rank);
    const float zeros[4] = {0}, marks[4] = {5, 6, 7, 8};
    float found[4] = {0};
    void *const data = sends ? rank.receive : rank.send;
    if (number == 1) {
        FAKE(fake_holds, "fake_hold")(rank.stream, 1);
        put(&rank, rank.send + 4, zeros, 4);
        options.timeout_ns = 50 * 1000 * 1000;
    }
    const trireme_status status =
        sends ? reduce_one(rank.communicator, rank.send, data, &options)
              : trireme_broadcast(rank.communicator, data, 4, TRIREME_DTYPE_F32, 0, &options);
    /* A root may have left its bytes before. Else it hears of the other rank. */
    if (number == 0) CHECK(sends ? status == TRIREME_ERROR_TIMEOUT : status <= 0);
    if (number == 0 && status < 0) CHECK(strstr(trireme_last_error(), "rank 1") != NULL);
    if (number == 1) {
        CHECK(status == TRIREME_ERROR_TIMEOUT);
        CHECK(strstr(trireme_last_error(), "rank 1: the device of this rank") != NULL);
        CHECK(strstr(trireme_last_error(), "may still copy") == NULL);
        struct rank other = rank;
        other.stream = FAKE(fake_stream, "fake_user_stream")(rank.device);
        put(&other, rank.send, marks, 4);
        put(&other, rank.receive, marks, 4);
        get(&other, found, data, 4);
        FAKE(fake_holds, "fake_hold")(rank.stream, 0);
        FAKE(fake_finishes, "fake_finish")();
        get(&other, found, data, 4);
        CHECK(memcmp(found, marks, sizeof marks) == 0);
    }
    trireme_communicator_destroy(rank.communicator);
}

static void late_to_receive(int number, void *context) {
    late_call(number, context, false);
}

static void late_to_send(int number, void *context) {
    late_call(number, context, true);
}

static void late_stream(void) {
    void (*const calls[])(int, void *) = {late_to_receive, late_to_send};
    for (size_t i = 0; i < 2; ++i) {
        char rendezvous[64];
        unique_rendezvous(rendezvous, sizeof rendezvous);
        run_threads(2, calls[i], rendezvous);
    }
    no_complaint();
}

static void a_late_stream_leaves_nothing_queued(void **state) {
    (void)state;
    run_in_all_modes(late_stream);
}

/* Each step before the first copy, and an earlier write of the caller that breaks the device. */
static void a_device_that_failed_before_fails_the_group_at_once(void **state) {
    (void)state;
    const char *const scripts[] = {
        "sticky=0:719",
        "fail=cuPointerGetAttributes:719",
        "fail=cuStreamIsCapturing:719",
        "fail=cuStreamCreateWithPriority:719",
        "fail=cuMemHostAlloc:719",
        "fail=cuEventRecord:719",
    };
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; ++i) {
        const struct failure failure = {.early = true,
                                        .script = scripts[i],
                                        .status = TRIREME_ERROR_DEVICE,
                                        .word = "719"};
        a_device_fails_in(&failure);
    }
    const struct failure no_memory = {.early = true,
                                      .script = "oom=0",
                                      .status = TRIREME_ERROR_OUT_OF_MEMORY,
                                      .word = "cuMemHostAlloc"};
    a_device_fails_in(&no_memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_that_cannot_be_pinned),
        cmocka_unit_test(a_failed_device_fails_the_group_by_name),
        cmocka_unit_test(a_late_stream_leaves_nothing_queued),
        cmocka_unit_test(a_device_that_failed_before_fails_the_group_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
