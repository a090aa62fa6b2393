/*
 * tcp:// groups whose ranks all share one host: they use its memory, as host:// does. All of them
 * or none: a rank that cannot, or must not, keeps all others at frames. Whoever dies or never comes
 * while they choose is named, and the rest go on in a new group.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <unistd.h>

#include "models.h"
#include "own_process.h"
#include "processes.h"
#include "ranks.h"

#define MEMORY "local (processes, met by tcp)"
#define FRAMES "frames (tcp)"
#define MOST 5
#define LARGE 300001
#define LATE_NS (1500ull * 1000 * 1000)
#define AT_ONCE 12
/* Far less than a rank sleeps that must not be waited for. */
#define SOON_NS (3000ull * 1000 * 1000)

struct trial {
    int world_size;
    int victim;             /* -1: none */
    const char *failpoints; /* of the victim */
    const char *backend;    /* of the victim */
    const char *label;      /* of the victim */
    const char *says;
    bool comes;    /* the victim */
    bool trains;   /* each rank */
    bool messages; /* the others exchange them, and run no collective */
    char rendezvous[80];
};

static trireme_communicator *join(int rank, const struct trial *trial, uint64_t timeout_ns) {
    char place[128];
    const bool is_victim = rank == trial->victim;
    snprintf(place, sizeof place, "%s%s%s", trial->rendezvous,
             is_victim && trial->label != NULL ? "?host=" : "",
             is_victim && trial->label != NULL ? trial->label : "");
    if (is_victim && trial->failpoints != NULL &&
        trireme_failpoint_set(trial->failpoints) != TRIREME_OK) {
        _exit(91);
    }
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = trial->world_size;
    options.rendezvous = place;
    options.timeout_ns = timeout_ns;
    if (is_victim) options.backend = trial->backend;
    trireme_communicator *out = NULL;
    if (trireme_communicator_create(&options, &out) != TRIREME_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, trireme_last_error());
        _exit(90);
    }
    return out;
}

static bool says(trireme_communicator *group, const char *wanted, char *text, size_t bytes) {
    return trireme_communicator_get_backend(group, text, bytes, NULL) == TRIREME_OK &&
           strcmp(text, wanted) == 0;
}

/* ---- what all of them can do ---- */

static int size_of(const trireme_communicator *group) {
    int32_t n = 0;
    if (trireme_communicator_get_world_size(group, &n) != TRIREME_OK) _exit(93);
    return n;
}

static int rank_in(const trireme_communicator *group) {
    int32_t rank = 0;
    if (trireme_communicator_get_rank(group, &rank) != TRIREME_OK) _exit(94);
    return rank;
}

static trireme_status
check_sum(trireme_communicator *group, int32_t *data, int count, bool *wrong) {
    const int n = size_of(group);
    const int rank = rank_in(group);
    for (int i = 0; i < count; ++i) data[i] = i % 1000 + rank;
    const trireme_status status =
        trireme_all_reduce(group, data, data, (uint64_t)count, TRIREME_DTYPE_I32,
                           TRIREME_REDUCTION_SUM, NULL);
    for (int i = 0; i < count && status == TRIREME_OK; ++i) {
        *wrong |= data[i] != n * (i % 1000) + n * (n - 1) / 2;
    }
    return status;
}

static trireme_status check_rest(trireme_communicator *group, bool *wrong) {
    const int n = size_of(group);
    const int rank = rank_in(group);
    enum { EACH = 20001 };
    int32_t *const all = calloc((size_t)EACH * MOST, sizeof *all);
    int32_t *const own = calloc((size_t)EACH * MOST, sizeof *own);
    if (all == NULL || own == NULL) _exit(92);
    for (int i = 0; i < EACH; ++i) own[i] = rank * EACH + i;
    trireme_status status = trireme_all_gather(group, own, all, EACH, TRIREME_DTYPE_I32, NULL);
    for (int i = 0; i < n * EACH && status == TRIREME_OK; ++i) *wrong |= all[i] != i;
    if (status == TRIREME_OK) {
        status = trireme_reduce_scatter(group, all, own, EACH, TRIREME_DTYPE_I32,
                                        TRIREME_REDUCTION_SUM, NULL);
    }
    for (int i = 0; i < EACH && status == TRIREME_OK; ++i) {
        *wrong |= own[i] != n * (rank * EACH + i);
    }
    if (status == TRIREME_OK) {
        status =
            trireme_broadcast(group, all, (uint64_t)(n * EACH), TRIREME_DTYPE_I32, n - 1, NULL);
    }
    if (status == TRIREME_OK) {
        status = trireme_all_to_all(group, all, own, EACH, TRIREME_DTYPE_I32, NULL);
    }
    for (int i = 0; i < n * EACH && status == TRIREME_OK; ++i) {
        *wrong |= own[i] != rank * EACH + i % EACH;
    }
    if (status == TRIREME_OK) status = trireme_barrier(group, NULL);
    free(all);
    free(own);
    return status;
}

/* Messages and memory from before the ranks have met go on after it. */
static void work_early(trireme_communicator *group, int rank, int n, struct outcome *outcome) {
    trireme_buffer *buffer = NULL;
    trireme_request *requests[2] = {NULL, NULL};
    int32_t sent = 7 + rank, received = -1;
    void *data = NULL;
    trireme_status status = trireme_buffer_alloc(group, LARGE * sizeof(int32_t), &buffer);
    if (status == TRIREME_OK) status = trireme_buffer_get_data(buffer, &data);
    if (status == TRIREME_OK && n > 1) {
        status = trireme_receive_start(group, &received, 1, TRIREME_DTYPE_I32, (rank + n - 1) % n,
                                       5, NULL, &requests[0]);
        if (status == TRIREME_OK) {
            status = trireme_send_start(group, &sent, 1, TRIREME_DTYPE_I32, (rank + 1) % n, 5, NULL,
                                        &requests[1]);
        }
    }
    if (status == TRIREME_OK) status = check_sum(group, data, LARGE, &outcome->wrong);
    for (int i = 0; i < 2 && n > 1; ++i) {
        if (status == TRIREME_OK) status = trireme_request_wait(requests[i], PATIENT_NS);
        trireme_request_destroy(requests[i]);
    }
    if (status == TRIREME_OK && n > 1) outcome->wrong |= received != 7 + (rank + n - 1) % n;
    trireme_buffer_destroy(buffer);
    keep_error(outcome, status);
}

static trireme_status check_children(trireme_communicator *group, bool *wrong, char *text) {
    trireme_communicator *half = NULL, *copy = NULL;
    const int rank = rank_in(group);
    int32_t few[3];
    trireme_status status = trireme_communicator_split(group, rank % 2, -rank, NULL, &half);
    if (status == TRIREME_OK) status = trireme_communicator_duplicate(half, NULL, &copy);
    if (status == TRIREME_OK) status = check_sum(half, few, 3, wrong);
    if (status == TRIREME_OK) status = check_rest(copy, wrong);
    if (status == TRIREME_OK) {
        status = trireme_communicator_get_backend(copy, text, 64, NULL);
    }
    trireme_communicator_destroy(copy);
    trireme_communicator_destroy(half);
    return status;
}

/* Ranks that do not know the choice at once seal the same model as one that does. */
static trireme_status
check_model(trireme_communicator *group, trireme_strategy strategy, bool *wrong) {
    enum { UNITS = 2, COUNT = 1001 };
    static const float zeros[UNITS * COUNT];
    static float after[UNITS * COUNT];
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = strategy;
    const trireme_optimizer_options rule = plain_rule();
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    trireme_status status = make_model(group, &options, UNITS, COUNT, &model);
    if (status == TRIREME_OK) {
        status =
            trireme_model_broadcast_parameters(model, zeros, UNITS * COUNT, TRIREME_DTYPE_F32, 0);
    }
    if (status == TRIREME_OK) status = trireme_optimizer_create(model, &rule, &optimizer);
    if (status == TRIREME_OK) {
        status = trireme_model_accumulate_flat(model, zeros, UNITS * COUNT, TRIREME_DTYPE_F32, 0);
    }
    if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
    if (status == TRIREME_OK) {
        status = trireme_model_gather_parameters(model, after, UNITS * COUNT, TRIREME_DTYPE_F32);
    }
    *wrong |= status == TRIREME_OK && memcmp(after, zeros, sizeof after) != 0;
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    return status;
}

static void work(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    trireme_communicator *const group = join(rank, trial, PATIENT_NS);
    work_early(group, rank, trial->world_size, outcome);
    trireme_status status = outcome->status;
    if (status == TRIREME_OK && !says(group, trial->says, outcome->text, sizeof outcome->text)) {
        outcome->numbers[0] = 1;
    }
    if (status == TRIREME_OK) status = check_rest(group, &outcome->wrong);
    if (status == TRIREME_OK) status = check_children(group, &outcome->wrong, outcome->text);
    if (status == TRIREME_OK && trial->trains) {
        status = check_model(group, TRIREME_STRATEGY_DATA_PARALLEL, &outcome->wrong);
    }
    if (status == TRIREME_OK && trial->trains) {
        status = check_model(group, TRIREME_STRATEGY_ZERO1, &outcome->wrong);
    }
    uint64_t flags = ~(1ull << rank);
    if (status == TRIREME_OK) status = trireme_communicator_agree(group, &flags, PATIENT_NS);
    outcome->wrong |= status == TRIREME_OK && flags != ~0ull << trial->world_size;
    keep_error(outcome, status);
    trireme_communicator_destroy(group);
}

static void run_trial(struct trial *trial) {
    struct processes group;
    unique_meeting(trial->rendezvous, sizeof trial->rendezvous);
    start_processes(&group, trial->world_size, work, trial);
    wait_processes(&group);
    for (int rank = 0; rank < trial->world_size; ++rank) {
        const struct outcome *const each = &group.outcomes[rank];
        if (each->exit_code == 0 && each->status == TRIREME_OK && !each->wrong && !each->hung &&
            each->numbers[0] == 0) {
            continue;
        }
        fail_msg("%d ranks, %s: rank %d: exit %d, wrong %d, hung %d, says \"%s\": %s",
                 trial->world_size, trial->failpoints != NULL ? trial->failpoints : "", rank,
                 each->exit_code, each->wrong, each->hung, each->text, each->message);
    }
    free_processes(&group);
}

static void ranks_of_one_host_use_its_memory(void **state) {
    (void)state;
    static const int worlds[] = {1, 2, 3, 5};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; ++i) {
        struct trial trial = {.world_size = worlds[i], .victim = -1, .says = MEMORY};
        trial.trains = true;
        run_trial(&trial);
    }
}

static void one_rank_that_cannot_keeps_all_at_frames(void **state) {
    (void)state;
    static const char *const points[] = {"memory.before_join=fail", "memory.before_use=fail",
                                         "join.after_claim=fail", "join.before_hello=fail"};
    for (size_t i = 0; i < sizeof points / sizeof *points; ++i) {
        for (int victim = 0; victim < 3; victim += 2) {
            struct trial trial = {.world_size = 3,
                                  .victim = victim,
                                  .failpoints = points[i],
                                  .says = FRAMES};
            run_trial(&trial);
        }
    }
}

static void one_rank_that_wants_frames_keeps_all_there(void **state) {
    (void)state;
    struct trial asks = {.world_size = 3, .victim = 1, .backend = "frames", .says = FRAMES};
    asks.trains = true;
    run_trial(&asks);
    struct trial apart = {.world_size = 2, .victim = 1, .label = "other", .says = FRAMES};
    run_trial(&apart);
}

/* The others wait for it, and use the memory. */
static void a_slow_rank_is_waited_for(void **state) {
    (void)state;
    static const char *const points[] = {"memory.before_join=sleep(300)",
                                         "memory.before_use=sleep(300)"};
    for (size_t i = 0; i < sizeof points / sizeof *points; ++i) {
        struct trial trial = {.world_size = 3,
                              .victim = 1,
                              .failpoints = points[i],
                              .says = MEMORY};
        run_trial(&trial);
    }
}

/* ---- ranks that die, or never come ---- */

enum { VERDICT = 1, SHRUNK = 2 };

static void wait_for_others(int which, int victim, int rank, struct outcome *outcome, int ranks) {
    const struct outcome *const all = outcome - rank;
    const uint64_t end = monotonic_ns() + PATIENT_NS;
    __atomic_store_n(&outcome->numbers[which], 1, __ATOMIC_RELEASE);
    for (int other = 0; other < ranks; ++other) {
        while (other != victim && monotonic_ns() < end &&
               __atomic_load_n(&all[other].numbers[which], __ATOMIC_ACQUIRE) == 0) {
            sleep_ms(1);
        }
    }
}

static void work_until_death(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    int32_t few[3];
    trireme_communicator *const group = join(rank, trial, PATIENT_NS);
    trireme_status status = TRIREME_OK;
    for (int round = 0; round < 200 && status == TRIREME_OK && !outcome->wrong; ++round) {
        if (rank == trial->victim && round == 100) raise(SIGKILL);
        status = check_sum(group, few, 3, &outcome->wrong);
        if (status == TRIREME_OK) ++outcome->rounds;
    }
    if (status == TRIREME_OK) outcome->wrong = true; /* the victim was not missed */
    keep_error(outcome, status);
    wait_for_others(VERDICT, trial->victim, rank, outcome, trial->world_size);
    trireme_communicator *smaller = NULL;
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    do {
        outcome->again = trireme_communicator_shrink(group, NULL, &smaller);
    } while (outcome->again != TRIREME_OK && trireme_last_error_info(&info) == TRIREME_OK &&
             info.try_again);
    if (outcome->again != TRIREME_OK) {
        snprintf(outcome->text, sizeof outcome->text, "%.250s", trireme_last_error());
    } else {
        outcome->again = check_sum(smaller, few, 3, &outcome->wrong);
        outcome->wrong |= size_of(smaller) != trial->world_size - 1;
        if (outcome->again == TRIREME_OK) outcome->again = check_rest(smaller, &outcome->wrong);
    }
    wait_for_others(SHRUNK, trial->victim, rank, outcome, trial->world_size);
    trireme_communicator_destroy(smaller);
    trireme_communicator_destroy(group);
}

static void check_death(const struct trial *trial, const struct processes *group) {
    for (int rank = 0; rank < trial->world_size; ++rank) {
        const struct outcome *const each = &group->outcomes[rank];
        if (rank == trial->victim) {
            if (each->signal != SIGKILL || each->hung) fail_msg("%s: not there", trial->failpoints);
            continue;
        }
        if (each->exit_code == 0 && !each->hung && !each->wrong &&
            each->status == TRIREME_ERROR_PEER_LOST && blames_only(&each->info, trial->victim) &&
            each->again == TRIREME_OK) {
            continue;
        }
        fail_msg(
            "%s, rank %d dies: rank %d after %d rounds: exit %d, wrong %d, hung %d, %s: %s; "
            "again %s: %s",
            trial->failpoints != NULL ? trial->failpoints : "at work", trial->victim, rank,
            each->rounds, each->exit_code, each->wrong, each->hung,
            trireme_status_name(each->status), each->message, trireme_status_name(each->again),
            each->text);
    }
}

static void who_dies_is_named_and_the_others_go_on(void **state) {
    (void)state;
    static const char *const points[] = {NULL,
                                         "memory.before_join=kill",
                                         "join.before_claim=kill",
                                         "join.after_claim=kill",
                                         "join.before_hello=kill",
                                         "join.before_hello=kill@2",
                                         "join.after_hello=kill",
                                         "join.after_hello=kill@2",
                                         "memory.before_use=kill",
                                         "leave.before_goodbye=kill"};
    enum { POINTS = sizeof points / sizeof *points, TRIALS = POINTS * 4 };
    static struct trial trials[TRIALS];
    static struct processes groups[AT_ONCE];
    int count = 0;
    for (int point = 0; point < POINTS; ++point) {
        for (int victim = 0; victim < 4; ++victim) {
            /* Ranks 0 to 2 are called, ranks 1 to 3 call. */
            if (is_quick() && (point + victim) % 3 != 0) continue;
            trials[count++] =
                (struct trial){.world_size = 4, .victim = victim, .failpoints = points[point]};
        }
    }
    for (int begin = 0; begin < count; begin += AT_ONCE) {
        const int end = begin + AT_ONCE < count ? begin + AT_ONCE : count;
        for (int i = begin; i < end; ++i) {
            unique_meeting(trials[i].rendezvous, sizeof trials[i].rendezvous);
            start_processes(&groups[i - begin], 4, work_until_death, &trials[i]);
        }
        for (int i = begin; i < end; ++i) wait_processes(&groups[i - begin]);
        for (int i = begin; i < end; ++i) check_death(&trials[i], &groups[i - begin]);
        for (int i = begin; i < end; ++i) free_processes(&groups[i - begin]);
    }
}

static void wait_in_vain(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    if (rank == trial->victim && !trial->comes) return;
    trireme_communicator *const group = join(rank, trial, LATE_NS);
    if (!trial->messages) {
        keep_error(outcome, trireme_barrier(group, NULL));
    } else if (rank != trial->victim) {
        int32_t sent = rank, received = -1;
        const int other = trial->world_size - 1 - rank;
        keep_error(outcome, trireme_send_receive(group, &sent, 1, other, 5, &received, 1, other, 5,
                                                 TRIREME_DTYPE_I32, NULL));
    }
    wait_for_others(VERDICT, trial->comes ? -1 : trial->victim, rank, outcome, trial->world_size);
    trireme_communicator_destroy(group);
}

/* It never comes, or comes and does not get on to the choice. */
static void who_keeps_the_others_waiting_is_named_at_the_deadline(void **state) {
    (void)state;
    static const char *const points[] = {NULL, "memory.before_join=sleep(6000)",
                                         "memory.before_use=sleep(6000)"};
    /* While one rank has not come the others have not met, and a message names its own peer. */
    enum { POINTS = sizeof points / sizeof *points, TRIALS = 2 * POINTS - 1 };
    static struct trial trials[TRIALS];
    static struct processes groups[TRIALS];
    for (int i = 0; i < TRIALS; ++i) {
        struct trial *const trial = &trials[i];
        const int point = i < POINTS ? i : i - POINTS + 1;
        *trial = (struct trial){.world_size = 3, .victim = 1, .failpoints = points[point]};
        trial->comes = trial->failpoints != NULL;
        trial->messages = i >= POINTS;
        unique_meeting(trial->rendezvous, sizeof trial->rendezvous);
        start_processes(&groups[i], trial->world_size, wait_in_vain, trial);
    }
    for (int i = 0; i < TRIALS; ++i) wait_processes(&groups[i]);
    for (int i = 0; i < TRIALS; ++i) {
        const struct trial *const trial = &trials[i];
        for (int rank = 0; rank < trial->world_size; ++rank) {
            const struct outcome *const each = &groups[i].outcomes[rank];
            if (rank == trial->victim) continue;
            if (each->exit_code == 0 && each->status == TRIREME_ERROR_TIMEOUT &&
                blames_only(&each->info, trial->victim)) {
                continue;
            }
            fail_msg("%s, %s: rank %d: exit %d, %s: %s",
                     trial->comes ? trial->failpoints : "absent",
                     trial->messages ? "messages" : "barrier", rank, each->exit_code,
                     trireme_status_name(each->status), each->message);
        }
        free_processes(&groups[i]);
    }
}

static void agree_early(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    trireme_communicator *const group = join(rank, trial, PATIENT_NS);
    uint64_t flags = ~(1ull << rank);
    outcome->entered_ns = monotonic_ns();
    keep_error(outcome, trireme_communicator_agree(group, &flags, PATIENT_NS));
    outcome->returned_ns = monotonic_ns();
    outcome->wrong = flags != ~0ull << trial->world_size;
    wait_for_others(VERDICT, -1, rank, outcome, trial->world_size);
    trireme_communicator_destroy(group);
}

/* A decision does not use up its deadline while the ranks choose. */
static void decisions_do_not_wait_for_a_rank_that_does_not_choose(void **state) {
    (void)state;
    struct processes group;
    struct trial trial = {.world_size = 3, .victim = 1};
    trial.failpoints = "memory.before_join=sleep(6000)";
    unique_meeting(trial.rendezvous, sizeof trial.rendezvous);
    start_processes(&group, trial.world_size, agree_early, &trial);
    wait_processes(&group);
    for (int rank = 0; rank < trial.world_size; ++rank) {
        const struct outcome *const each = &group.outcomes[rank];
        const uint64_t took_ns = each->returned_ns - each->entered_ns;
        if (each->exit_code == 0 && each->status == TRIREME_OK && !each->wrong && !each->hung &&
            took_ns < SOON_NS) {
            continue;
        }
        fail_msg("rank %d: exit %d, wrong %d, hung %d, after %d ms: %s", rank, each->exit_code,
                 each->wrong, each->hung, (int)(took_ns / 1000000), each->message);
    }
    free_processes(&group);
}

/* ---- leaving ---- */

static void come_and_go(int rank, void *context, struct outcome *outcome) {
    struct trial trial = *(const struct trial *)context;
    const size_t length = strlen(trial.rendezvous);
    for (int round = 0; round < 20; ++round) {
        snprintf(trial.rendezvous + length, sizeof trial.rendezvous - length, "-%d", round);
        trireme_communicator *const group = join(rank, &trial, PATIENT_NS);
        int32_t few[3];
        if (round % 3 == 1) keep_error(outcome, trireme_communicator_wait_ready(group, PATIENT_NS));
        if (round % 3 == 2) keep_error(outcome, check_sum(group, few, 3, &outcome->wrong));
        if (round % 3 == 0 && rank == 0) sleep_ms((unsigned)(round % 4));
        trireme_communicator_destroy(group);
        if (outcome->status != TRIREME_OK && round % 3 != 0) return;
    }
}

/* In every third round no rank waits for another, so none is missed. */
static void groups_come_and_go_and_leave_nothing(void **state) {
    (void)state;
    struct processes group;
    struct trial trial = {.world_size = 3, .victim = -1};
    remember_files();
    unique_meeting(trial.rendezvous, sizeof trial.rendezvous);
    start_processes(&group, trial.world_size, come_and_go, &trial);
    wait_processes(&group);
    for (int rank = 0; rank < trial.world_size; ++rank) {
        const struct outcome *const each = &group.outcomes[rank];
        if (each->exit_code == 0 && !each->hung && !each->wrong && each->status == TRIREME_OK) {
            continue;
        }
        fail_msg("rank %d: exit %d, hung %d, %s", rank, each->exit_code, each->hung, each->message);
    }
    free_processes(&group);
    assert_true(no_file_is_left());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_one_host_use_its_memory),
        cmocka_unit_test(one_rank_that_cannot_keeps_all_at_frames),
        cmocka_unit_test(one_rank_that_wants_frames_keeps_all_there),
        cmocka_unit_test(a_slow_rank_is_waited_for),
        cmocka_unit_test(who_dies_is_named_and_the_others_go_on),
        cmocka_unit_test(who_keeps_the_others_waiting_is_named_at_the_deadline),
        cmocka_unit_test(decisions_do_not_wait_for_a_rank_that_does_not_choose),
        cmocka_unit_test(groups_come_and_go_and_leave_nothing),
    };
    setenv("TRIREME_TOKEN", "the token of these tests", 1);
    unsetenv("TRIREME_TOKEN_FILE");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
