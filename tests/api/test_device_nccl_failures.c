/*
 * NCCL that is not there, does not serve, fails or stands still: which way the bytes go then, who
 * hears of it, and what is left of the call. A fake of it is told when.
 */
#include <trireme/trireme.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "nccl_ranks.h"

#define WORLD 3
#define DEVICES "mode=lazy devices=3"

/* A sum that shows that all ranks' operands came. */
static trireme_status add(const struct rank *rank, uint64_t timeout_ns) {
    trireme_operation_options options = options_of(rank);
    options.timeout_ns = timeout_ns;
    const float own[4] = {1, 2, 3, (float)(1 << rank->number)};
    float found[4] = {0};
    put(rank, rank->send, own, 4);
    const trireme_status status =
        reduce_one(rank->communicator, rank->send, rank->receive, &options);
    if (status != TRIREME_OK) return status;
    get(rank, found, rank->receive, 4);
    CHECK(found[0] == (float)rank->world && found[3] == (float)((1 << rank->world) - 1));
    return status;
}

/* Leaves pinned memory for later calls. */
static void gather(const struct rank *rank) {
    const trireme_operation_options options = options_of(rank);
    const float own[4] = {0};
    put(rank, rank->send, own, 4);
    CHECK(trireme_gather(rank->communicator, rank->send, rank->receive, 4, TRIREME_DTYPE_F32, 0,
                         &options) == TRIREME_OK);
}

/* Groups of the host go on, whatever has failed. */
static void host_goes_on(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const host = join(0, 1, rendezvous, -1);
    float here[4] = {1, 2, 3, 4}, found[4] = {0};
    CHECK(reduce_one(host, here, found, NULL) == TRIREME_OK && found[3] == 4);
    trireme_communicator_destroy(host);
}

/* ---- ways that all ranks choose alike ---- */

struct choice {
    char rendezvous[64];
    const char *library; /* NCCL of rank 1 */
    bool blocks;         /* by a variable of NCCL, on rank 1 */
    const char *script;  /* of rank 1 */
    int device;          /* of rank 1 */
    const char *backend; /* of all */
    trireme_status status;
    const char *words[2]; /* of the way, or of the refusal */
};

static void choose(int number, void *context, struct outcome *outcome) {
    const struct choice *const choice = context;
    const bool is_odd = number == 1;
    if (is_odd && choice->library != NULL) setenv("TRIREME_NCCL_LIBRARY", choice->library, 1);
    if (is_odd && choice->blocks) setenv("NCCL_COMM_BLOCKING", "1", 1);
    char script[128];
    snprintf(script, sizeof script, DEVICES " %s",
             is_odd && choice->script != NULL ? choice->script : "");
    use_fake(script);
    const struct rank rank = make_rank_on(number, WORLD, choice->rendezvous,
                                          is_odd ? choice->device : number, choice->backend);
    for (int round = 0; round < 2; ++round) {
        keep_error(outcome, add(&rank, 0));
        CHECK(outcome->status == choice->status);
        for (int i = 0; i < 2; ++i) {
            if (choice->status != TRIREME_OK) {
                CHECK(strstr(trireme_last_error(), choice->words[i]) != NULL);
            }
            check_way(&rank, choice->words[i]);
        }
        /* Also after a refusal. */
        CHECK(trireme_barrier(rank.communicator, NULL) == TRIREME_OK);
    }
    trireme_communicator_destroy(rank.communicator);
    nothing_is_left(WORLD);
    no_complaint();
    outcome->rounds = 1;
}

static void run_choice(const struct choice *given) {
    struct choice choice = *given;
    struct processes processes;
    unique_host_rendezvous(choice.rendezvous, sizeof choice.rendezvous);
    start_processes(&processes, WORLD, choose, &choice);
    wait_processes(&processes);
    for (int i = 0; i < WORLD; ++i) {
        if (processes.outcomes[i].exit_code != 0 || processes.outcomes[i].rounds != 1) {
            fail_msg("rank %d, \"%s\": %s", i, choice.words[0], processes.outcomes[i].message);
        }
    }
    free_processes(&processes);
}

static void all_ranks_choose_alike_and_say_why(void **state) {
    (void)state;
    const struct choice choices[] = {
        {.device = 1, .words = {"CUDA device", "NCCL 2.28.9"}},
        {.device = 1, .backend = "nccl", .words = {"CUDA device", "NCCL 2.28.9"}},
        {.device = 1,
         .library = "/nowhere/libnccl.so.2",
         .words = {"pinned memory", "rank 1: no NCCL: tried /nowhere/libnccl.so.2: "}},
        {.device = 1, .script = "nccl=21705", .words = {"pinned memory", "rank 1: no NCCL: "}},
        {.device = 1,
         .blocks = true,
         .words = {"pinned memory", "rank 1: NCCL_COMM_BLOCKING is set"}},
        {.device = 1, .script = "nccl=21705", .words = {"2.17.5", "at least 2.18.0 is needed"}},
        {.device = 1,
         .library = FAKE_NCCL_SHORT,
         .words = {"pinned memory", "it has no ncclCommAbort"}},
        {.device = 1,
         .script = "nccl=22703",
         .words = {"pinned memory", "rank 0 has NCCL 2.28.9, but rank 1 has 2.27.3"}},
        {.device = 0, .words = {"pinned memory", "ranks 0 and 1 work on one device"}},
        {.device = 1,
         .script = "mig=1",
         .words = {"pinned memory", "ranks 0 and 1 work on parts of one GPU"}},
        {.device = 1,
         .backend = "local",
         .words = {"pinned memory", "backend \"local\" was asked for"}},
        {.device = 0,
         .backend = "nccl",
         .status = TRIREME_ERROR_UNSUPPORTED,
         .words = {"cannot be", "ranks 0 and 1 work on one device"}},
    };
    for (size_t i = 0; i < sizeof choices / sizeof *choices; ++i) run_choice(&choices[i]);
}

static void required_but_absent(void) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    trireme_communicator *communicator = NULL;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    options.rendezvous = rendezvous;
    options.world_size = 1;
    options.backend = "nccl";
    CHECK_FAILS(trireme_communicator_create(&options, &communicator), TRIREME_ERROR_UNSUPPORTED,
                "options.backend is \"nccl\"", "options.device");
    options.device = (trireme_device){TRIREME_DEVICE_CUDA, 0};
    setenv("TRIREME_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
    CHECK_FAILS(trireme_communicator_create(&options, &communicator), TRIREME_ERROR_UNSUPPORTED,
                "options.backend is \"nccl\"", "tried /nowhere/libnccl.so.2");
    CHECK(communicator == NULL);
    nothing_is_left(1);
    /* It is found when it is there. */
    setenv("TRIREME_NCCL_LIBRARY", FAKE_CUDA, 1);
    CHECK(trireme_communicator_create(&options, &communicator) == TRIREME_OK);
    trireme_communicator_destroy(communicator);
}

static void nccl_that_is_required_and_not_there_is_refused(void **state) {
    (void)state;
    run(required_but_absent, DEVICES);
}

/* ---- faults of rank 1 ---- */

struct fault {
    char rendezvous[64];
    const char *script; /* of rank 1 */
    bool first;         /* in the first operation, where NCCL's ranks meet; else in the second */
    trireme_status status;
    const char *word;
    bool stays; /* the device does not come back: it is tainted */
};

static void with_fault(int number, void *context, struct outcome *outcome) {
    const struct fault *const fault = context;
    use_fake(DEVICES);
    const struct rank rank = make_rank_on(number, WORLD, fault->rendezvous, number, NULL);
    char alone[64];
    unique_rendezvous(alone, sizeof alone);
    const struct rank other = make_rank_on(0, 1, alone, number, NULL);
    if (!fault->first) {
        gather(&rank);
        CHECK(add(&rank, 0) == TRIREME_OK);
        CHECK(add(&other, 0) == TRIREME_OK);
    }
    if (fault->first) CHECK(trireme_barrier(rank.communicator, NULL) == TRIREME_OK);
    char script[128];
    snprintf(script, sizeof script, DEVICES " quiet=1 %s", fault->script);
    if (number == 1) use_fake(script);
    const bool returns_late = strstr(fault->script, "returns=late") != NULL;
    if (number == 1 && returns_late) {
        CHECK(trireme_failpoint_set("nccl.after_join=sleep(1000)") == TRIREME_OK);
    }
    const bool is_late = fault->status == TRIREME_ERROR_TIMEOUT;
    keep_error(outcome, add(&rank, number == 1 && is_late ? 300 * 1000 * 1000 : PATIENT_NS));
    outcome->later = trireme_barrier(rank.communicator, NULL);
    trireme_communicator_destroy(rank.communicator);
    host_goes_on();
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    trireme_communicator *again = NULL;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    options.rendezvous = rendezvous;
    options.world_size = 1;
    options.device = (trireme_device){TRIREME_DEVICE_CUDA, number};
    const trireme_status status = trireme_communicator_create(&options, &again);
    if (number == 1 && fault->stays) {
        CHECK(status == TRIREME_ERROR_DEVICE);
        CHECK(strstr(trireme_last_error(), "restart the process") != NULL);
        CHECK(strstr(outcome->message, "may still use the memory of this call") != NULL);
        CHECK(add(&other, 0) == TRIREME_ERROR_DEVICE);
        CHECK(strstr(trireme_last_error(), "restart the process") != NULL);
        trireme_communicator_destroy(other.communicator);
        no_complaint(); /* all of these ends have waited for no work that stands still */
    } else if (number == 1 && strstr(fault->script, "sticky") != NULL) {
        CHECK(status == TRIREME_ERROR_DEVICE); /* the driver itself */
        trireme_communicator_destroy(other.communicator);
    } else {
        CHECK(status == TRIREME_OK);
        trireme_communicator_destroy(again);
        if (number == 1) use_fake(DEVICES);
        CHECK(add(&other, 0) == TRIREME_OK);
        trireme_communicator_destroy(other.communicator);
        CHECK(strstr(outcome->message, "may still use") == NULL);
        /* A call that never returned keeps its part. */
        if (strstr(fault->script, "init=hang") == NULL) nothing_is_left(WORLD);
    }
    outcome->rounds = 1;
}

static void run_fault(const struct fault *given) {
    struct fault fault = *given;
    struct processes processes;
    unique_host_rendezvous(fault.rendezvous, sizeof fault.rendezvous);
    start_processes(&processes, WORLD, with_fault, &fault);
    wait_processes(&processes);
    for (int i = 0; i < WORLD; ++i) {
        const struct outcome *const outcome = &processes.outcomes[i];
        if (outcome->exit_code != 0 || outcome->rounds != 1 || outcome->status != fault.status ||
            outcome->later >= 0 || strstr(outcome->message, "rank 1") == NULL ||
            strstr(outcome->message, fault.word) == NULL || !blames_only(&outcome->info, 1) ||
            strcmp(outcome->info.operation, "all_reduce") != 0) {
            fail_msg("\"%s\", rank %d: code %d, status %d, later %d, in %s: %s", fault.script, i,
                     outcome->exit_code, outcome->status, outcome->later, outcome->info.operation,
                     outcome->message);
        }
    }
    free_processes(&processes);
}

static void peers_hear_of_a_failure_by_name(void **state) {
    (void)state;
    const trireme_status device = TRIREME_ERROR_DEVICE;
    const struct fault faults[] = {
        {"", "fail=ncclCommInitRankConfig:2", true, device, "ncclCommInitRankConfig answers 2", 0},
        {"", "fail=ncclCommGetAsyncError:3", true, device, "ncclCommGetAsyncError answers 3", 0},
        {"", "async=0:6", true, device, "a link is down by script", 0},
        {"", "fail=ncclGroupEnd:3", false, device, "ncclGroupEnd answers 3", 0},
        {"", "fail=ncclSend:1", false, device, "a collective of NCCL answers 1", 0},
        {"", "fail=ncclRecv:2", false, device, "unhandled system error", 0},
        {"", "fail=ncclBroadcast:1", false, device, "a collective of NCCL answers 1", 0},
        {"", "async=2:6", false, device, "a link is down by script", 0},
        {"", "sticky=0:719", false, device, "719", 0},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) run_fault(&faults[i]);
}

static void a_standstill_ends_at_the_deadline(void **state) {
    (void)state;
    const trireme_status late = TRIREME_ERROR_TIMEOUT;
    const struct fault faults[] = {
        {"", "init=hang", true, late, "has not begun to meet its peers", 0},
        {"", "returns=late", true, late, "has not begun to meet its peers", 0},
        {"", "init=never", true, late, "NCCL of this rank has not met its peers", 0},
        {"", "launch=never", false, late, "NCCL has not queued its work", 0},
        {"", "lost=0", false, late, "NCCL has not done its work by the deadline", 0},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) run_fault(&faults[i]);
}

static void an_abort_that_does_not_help_taints_the_device(void **state) {
    (void)state;
    const trireme_status late = TRIREME_ERROR_TIMEOUT;
    const struct fault faults[] = {
        {"", "lost=0 abort=hang", false, late, "NCCL has not done its work", true},
        {"", "lost=0 fail=ncclCommAbort:1", false, late, "NCCL has not done its work", true},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) run_fault(&faults[i]);
}

/* ---- an id that rank 0 cannot make ---- */

static void without_id(int number, void *context) {
    const struct rank rank = make_rank_on(number, WORLD, context, number, NULL);
    CHECK(add(&rank, 0) == TRIREME_ERROR_DEVICE);
    CHECK(strstr(trireme_last_error(), "rank 0") != NULL);
    CHECK(strstr(trireme_last_error(), "ncclGetUniqueId answers 2") != NULL);
    trireme_communicator_destroy(rank.communicator);
}

static void no_id(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    run_threads(WORLD, without_id, rendezvous);
    nothing_is_left(WORLD);
    no_complaint();
}

static void all_hear_that_there_is_no_id(void **state) {
    (void)state;
    run(no_id, DEVICES " fail=ncclGetUniqueId:2");
}

/* ---- a rank that dies, or gives up ---- */

/* Rank 1's NCCL stands still, and then the process dies, or its caller aborts. */
static void then_goes(int number, void *context, struct outcome *outcome) {
    const struct fault *const fault = context;
    use_fake(DEVICES);
    const struct rank rank = make_rank_on(number, WORLD, fault->rendezvous, number, NULL);
    CHECK(add(&rank, 0) == TRIREME_OK);
    if (number == 1) {
        use_fake(DEVICES " lost=0");
        signal(SIGALRM, SIG_DFL);
        ualarm(200 * 1000, 0);
    } else if (fault->script != NULL) {
        use_fake(fault->script); /* NCCL notices first, as the peer's connection ends */
    }
    keep_error(outcome, add(&rank, PATIENT_NS));
    trireme_communicator_destroy(rank.communicator);
    nothing_is_left(WORLD);
    outcome->rounds = 1;
}

static void run_death(const char *script) {
    struct fault fault = {.script = script};
    struct processes processes;
    unique_host_rendezvous(fault.rendezvous, sizeof fault.rendezvous);
    start_processes(&processes, WORLD, then_goes, &fault);
    wait_processes(&processes);
    assert_int_equal(processes.outcomes[1].signal, SIGALRM);
    for (int i = 0; i < WORLD; i += 2) {
        const struct outcome *const outcome = &processes.outcomes[i];
        assert_int_equal(outcome->exit_code, 0);
        assert_int_equal(outcome->rounds, 1);
        assert_int_equal(outcome->status, TRIREME_ERROR_PEER_LOST);
        assert_true(blames_only(&outcome->info, 1));
        assert_non_null(strstr(outcome->message, "rank 1"));
    }
    free_processes(&processes);
}

static void a_rank_that_dies_inside_nccl_is_named(void **state) {
    (void)state;
    run_death(NULL);
    run_death(DEVICES " async=3:6");
}

/* The others hear it from the host. The end of their NCCL, which would wait for the dead one, is an
 * abort then. */
static void dies_between_calls(int number, void *context, struct outcome *outcome) {
    use_fake(DEVICES);
    const struct rank rank = make_rank_on(number, WORLD, context, number, NULL);
    CHECK(add(&rank, 0) == TRIREME_OK);
    if (number == 1) raise(SIGKILL);
    use_fake(DEVICES " finalize=hang");
    CHECK(trireme_barrier(rank.communicator, NULL) == TRIREME_ERROR_PEER_LOST);
    trireme_communicator_destroy(rank.communicator);
    nothing_is_left(WORLD);
    outcome->rounds = 1;
}

static void a_group_that_has_failed_ends_without_its_peers(void **state) {
    (void)state;
    char rendezvous[64];
    struct processes processes;
    unique_host_rendezvous(rendezvous, sizeof rendezvous);
    start_processes(&processes, WORLD, dies_between_calls, rendezvous);
    wait_processes(&processes);
    for (int i = 0; i < WORLD; i += 2) assert_int_equal(processes.outcomes[i].rounds, 1);
    free_processes(&processes);
}

static trireme_communicator *aborted_from_outside;

static void abort_or_add(int index, void *context) {
    const struct rank *const ranks = context;
    if (index == 2) {
        sleep_ms(100);
        CHECK(trireme_communicator_abort(aborted_from_outside, "enough") == TRIREME_OK);
        return;
    }
    CHECK(add(&ranks[index], PATIENT_NS) == TRIREME_ERROR_ABORTED);
    CHECK(strstr(trireme_last_error(), "enough") != NULL);
}

static void make_two(int index, void *context) {
    struct rank *const ranks = context;
    ranks[index] = make_rank_on(index, 2, "local://nccl-aborts", index, NULL);
    CHECK(add(&ranks[index], 0) == TRIREME_OK);
}

static void abort_inside(void) {
    struct rank ranks[2];
    run_threads(2, make_two, ranks);
    aborted_from_outside = ranks[0].communicator;
    setenv("FAKE_CUDA", DEVICES " lost=0", 1);
    run_threads(3, abort_or_add, ranks);
    for (int i = 0; i < 2; ++i) trireme_communicator_destroy(ranks[i].communicator);
    nothing_is_left(2);
}

static void an_abort_ends_a_call_inside_nccl(void **state) {
    (void)state;
    run(abort_inside, DEVICES);
}

/* ---- the end ---- */

static void make_and_end(int index, void *context) {
    const struct rank rank = make_rank_on(index, 2, context, index, NULL);
    CHECK(add(&rank, 0) == TRIREME_OK);
    trireme_communicator_destroy(rank.communicator);
}

static void bad_end(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    run_threads(2, make_and_end, rendezvous);
    host_goes_on();
    for (int i = 0; i < 2; ++i) CHECK(FAKE(fake_retained, "fake_retained_count")(i) == 0);
}

static void a_bad_end_of_nccl_harms_nobody(void **state) {
    (void)state;
    run(bad_end, DEVICES " fail=ncclCommFinalize:1");
    run(bad_end, DEVICES " fail=ncclCommDestroy:1");
    run(bad_end, DEVICES " fail=ncclCommFinalize:1 fail=ncclCommAbort:1");
}

/* ---- calls that differ, and NCCL's own sums ---- */

static void differ(int number, void *context) {
    const struct rank rank = make_rank_on(number, WORLD, context, number, NULL);
    CHECK(add(&rank, 0) == TRIREME_OK);
    const trireme_operation_options options = options_of(&rank);
    CHECK(trireme_all_reduce(rank.communicator, rank.send, rank.receive, number == 1 ? 3 : 4,
                             TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM,
                             &options) == TRIREME_ERROR_MISMATCH);
    CHECK(strstr(trireme_last_error(), "rank 1") != NULL);
    trireme_communicator_destroy(rank.communicator);
}

static void differ_in_sums(int number, void *context) {
    const struct rank rank = make_rank_on(number, WORLD, context, number, NULL);
    trireme_operation_options options = options_of(&rank);
    if (number == 1) options.algorithm = TRIREME_ALGORITHM_NATIVE;
    CHECK(reduce_one(rank.communicator, rank.send, rank.receive, &options) ==
          TRIREME_ERROR_MISMATCH);
    CHECK(strstr(trireme_last_error(), "sums of NCCL") != NULL);
    trireme_communicator_destroy(rank.communicator);
}

static void calls_that_differ(void) {
    void (*const calls[])(int, void *) = {differ, differ_in_sums};
    for (size_t i = 0; i < 2; ++i) {
        char rendezvous[64];
        unique_rendezvous(rendezvous, sizeof rendezvous);
        run_threads(WORLD, calls[i], rendezvous);
    }
    nothing_is_left(WORLD);
    no_complaint();
}

static void a_mismatch_reaches_all_before_nccl(void **state) {
    (void)state;
    run(calls_that_differ, DEVICES);
}

/* Sums whose order shows: the fake adds from the last rank down. */
static void own_sums(int number, void *context) {
    const struct rank rank = make_rank_on(number, WORLD, context, number, NULL);
    trireme_operation_options options = options_of(&rank);
    const float own[4] = {number == 0 ? 1e8f : number == 1 ? -1e8f : 1, 1, 1, 1};
    float found[4];
    put(&rank, rank.send, own, 4);
    CHECK(reduce_one(rank.communicator, rank.send, rank.receive, &options) == TRIREME_OK);
    get(&rank, found, rank.receive, 4);
    CHECK(found[0] == 1 && found[1] == 3);
    options.algorithm = TRIREME_ALGORITHM_NATIVE;
    CHECK(reduce_one(rank.communicator, rank.send, rank.receive, &options) == TRIREME_OK);
    get(&rank, found, rank.receive, 4);
    CHECK(found[0] == 0 && found[1] == 3);
    CHECK(trireme_all_reduce(rank.communicator, rank.send, rank.receive, 4, TRIREME_DTYPE_F32,
                             TRIREME_REDUCTION_AVERAGE, &options) == TRIREME_OK);
    get(&rank, found, rank.receive, 4);
    CHECK(found[0] == 0 && found[1] == 1);
    /* In rank order, although NCCL's own are asked for. */
    options.flags = TRIREME_OPERATION_FLAG_REPRODUCIBLE;
    CHECK(reduce_one(rank.communicator, rank.send, rank.receive, &options) == TRIREME_OK);
    get(&rank, found, rank.receive, 4);
    CHECK(found[0] == 1);
    options.flags = 0;
    CHECK_FAILS(trireme_all_reduce(rank.communicator, rank.send, rank.receive, 4, TRIREME_DTYPE_F32,
                                   TRIREME_REDUCTION_MAX, &options),
                TRIREME_ERROR_UNSUPPORTED, "max of f32", "NaN");
    CHECK_FAILS(trireme_all_reduce(rank.communicator, rank.send, rank.receive, 4, TRIREME_DTYPE_I16,
                                   TRIREME_REDUCTION_SUM, &options),
                TRIREME_ERROR_UNSUPPORTED, "sum of i16");
    /* An algorithm of the host is the host's. */
    options.algorithm = TRIREME_ALGORITHM_RING;
    CHECK(reduce_one(rank.communicator, rank.send, rank.receive, &options) == TRIREME_OK);
    get(&rank, found, rank.receive, 4);
    CHECK(found[1] == 3);
    trireme_communicator_destroy(rank.communicator);
}

static void sums_of_nccl(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    run_threads(WORLD, own_sums, rendezvous);
    nothing_is_left(WORLD);
    no_complaint();
}

/* Without NCCL they are refused, and the group goes on. */
static void no_sums(int number, void *context) {
    const struct rank rank = make_rank_on(number, WORLD, context, 0, NULL);
    trireme_operation_options options = options_of(&rank);
    options.algorithm = TRIREME_ALGORITHM_NATIVE;
    CHECK_FAILS(reduce_one(rank.communicator, rank.send, rank.receive, &options),
                TRIREME_ERROR_UNSUPPORTED, "options.algorithm is native", "on one device");
    CHECK(add(&rank, 0) == TRIREME_OK);
    trireme_communicator_destroy(rank.communicator);
}

static void no_sums_of_nccl(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    run_threads(WORLD, no_sums, rendezvous);
    nothing_is_left(WORLD);
    no_complaint();
}

static void nccls_own_sums_are_for_those_who_ask(void **state) {
    (void)state;
    run(sums_of_nccl, DEVICES);
    run(no_sums_of_nccl, DEVICES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_choose_alike_and_say_why),
        cmocka_unit_test(nccl_that_is_required_and_not_there_is_refused),
        cmocka_unit_test(peers_hear_of_a_failure_by_name),
        cmocka_unit_test(a_standstill_ends_at_the_deadline),
        cmocka_unit_test(an_abort_that_does_not_help_taints_the_device),
        cmocka_unit_test(all_hear_that_there_is_no_id),
        cmocka_unit_test(a_rank_that_dies_inside_nccl_is_named),
        cmocka_unit_test(a_group_that_has_failed_ends_without_its_peers),
        cmocka_unit_test(an_abort_ends_a_call_inside_nccl),
        cmocka_unit_test(a_bad_end_of_nccl_harms_nobody),
        cmocka_unit_test(a_mismatch_reaches_all_before_nccl),
        cmocka_unit_test(nccls_own_sums_are_for_those_who_ask),
    };
    return cmocka_run_group_tests(tests, make_nccl_folder, remove_nccl_folder);
}
