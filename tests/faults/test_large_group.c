/*
 * One group of many ranks, over tcp:// and on one host: they join, pass a barrier, reduce, lose
 * some of them and go on without those. Each process has many ranks as threads, so that a machine
 * with two cores holds them; the ranks that die have a process of their own. Prints how long each
 * part took. 128 ranks, or 1,024 with --long.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "processes.h"
#include "ranks.h"

enum { MOST_RANKS = 1024, DEATHS = 10, LARGE = 5000 };
#define WAIT_NS (300ull * 1000 * 1000 * 1000)

enum { READY_MS, BARRIER_MS, SMALL_MS, LARGE_MS, DEATH_MS, SHRINK_MS, AFTER_MS, PARTS };

struct job {
    int ranks;
    int processes; /* the last one has the ranks that die */
    char rendezvous[96];
};

struct rank {
    const struct job *job;
    struct outcome *outcome;
    pthread_barrier_t *all_here; /* of the ranks of this process */
    int number;
    bool dies;
    pthread_t thread;
};

static bool dies(const struct job *job, int rank) {
    const int step = job->ranks / DEATHS;
    return rank % step == step / 2 && rank / step < DEATHS;
}

/* The first failure of a process is its outcome. */
static pthread_mutex_t outcome_mutex = PTHREAD_MUTEX_INITIALIZER;

static void fail_rank(struct rank *self, const char *what, trireme_status status) {
    pthread_mutex_lock(&outcome_mutex);
    if (self->outcome->text[0] == 0) {
        snprintf(self->outcome->text, sizeof self->outcome->text, "rank %d: %s (%d): %.160s",
                 self->number, what, (int)status, trireme_last_error());
        keep_error(self->outcome, status);
    }
    pthread_mutex_unlock(&outcome_mutex);
}

static void note_part(struct rank *self, int part, uint64_t begin_ns) {
    const int64_t ms = (int64_t)((monotonic_ns() - begin_ns) / 1000000);
    pthread_mutex_lock(&outcome_mutex);
    if (ms > self->outcome->numbers[part]) self->outcome->numbers[part] = ms;
    pthread_mutex_unlock(&outcome_mutex);
}

/* Whether the sum of rank + 1 over these ranks comes back, in the first and last of the elements.
 */
static trireme_status
reduce(trireme_communicator *group, int rank, uint64_t count, int64_t sum, bool *right) {
    int64_t *const data = malloc(count * sizeof *data);
    for (uint64_t i = 0; i < count; ++i) data[i] = (rank + 1) * (int64_t)(1 + i % 3);
    const trireme_status status = trireme_all_reduce(group, data, data, count, TRIREME_DTYPE_I64,
                                                     TRIREME_REDUCTION_SUM, NULL);
    for (uint64_t i = 0; i < count && status == TRIREME_OK; ++i) {
        *right = *right && data[i] == sum * (int64_t)(1 + i % 3);
    }
    free(data);
    return status;
}

static trireme_status go_on(trireme_communicator *group, trireme_communicator **out) {
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    trireme_status status = TRIREME_OK;
    do {
        status = trireme_communicator_shrink(group, NULL, out);
    } while (status != TRIREME_OK && trireme_last_error_info(&info) == TRIREME_OK &&
             info.try_again);
    return status;
}

static void lose_some(struct rank *self, trireme_communicator *group) {
    const struct job *const job = self->job;
    int64_t all = 0;
    int64_t left = 0;
    for (int rank = 0; rank < job->ranks; ++rank) {
        all += rank + 1;
        left += dies(job, rank) ? 0 : rank + 1;
    }
    bool right = true;
    uint64_t begin = monotonic_ns();
    trireme_status status = trireme_barrier(group, NULL);
    if (status != TRIREME_OK) return fail_rank(self, "barrier", status);
    note_part(self, BARRIER_MS, begin);
    begin = monotonic_ns();
    status = reduce(group, self->number, 1, all, &right);
    if (status != TRIREME_OK || !right) return fail_rank(self, "small sum", status);
    note_part(self, SMALL_MS, begin);
    begin = monotonic_ns();
    status = reduce(group, self->number, LARGE, all, &right);
    if (status != TRIREME_OK || !right) return fail_rank(self, "large sum", status);
    note_part(self, LARGE_MS, begin);

    /* A rank in this one has left the one before, so no death breaks that. */
    status = reduce(group, self->number, 1, all, &right);
    if (self->dies) {
        pthread_barrier_wait(self->all_here);
        raise(SIGKILL);
        pause();
    }
    begin = monotonic_ns();
    while (status == TRIREME_OK && right) status = reduce(group, self->number, 1, all, &right);
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    if (trireme_last_error_info(&info) != TRIREME_OK) info.blamed_count = 0;
    bool blames_dead = info.blamed_count > 0;
    for (uint32_t i = 0; i < info.blamed_count && i < TRIREME_MAX_BLAMED_RANKS; ++i) {
        blames_dead = blames_dead && dies(job, info.blamed[i]);
    }
    if (!right || status != TRIREME_ERROR_PEER_LOST || !blames_dead) {
        return fail_rank(self, "a death", status);
    }
    note_part(self, DEATH_MS, begin);
    begin = monotonic_ns();
    trireme_communicator *smaller = NULL;
    status = go_on(group, &smaller);
    if (status != TRIREME_OK) return fail_rank(self, "shrink", status);
    note_part(self, SHRINK_MS, begin);
    begin = monotonic_ns();
    status = reduce(smaller, self->number, 3, left, &right);
    if (status != TRIREME_OK || !right) fail_rank(self, "sum of those who are left", status);
    note_part(self, AFTER_MS, begin);
    trireme_communicator_destroy(smaller);
}

static void *run_rank(void *argument) {
    struct rank *const self = argument;
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = self->number;
    options.world_size = self->job->ranks;
    options.rendezvous = self->job->rendezvous;
    options.backend = "frames";
    options.timeout_ns = WAIT_NS;
    trireme_communicator *group = NULL;
    const uint64_t begin = monotonic_ns();
    trireme_status status = trireme_communicator_create(&options, &group);
    if (status == TRIREME_OK) status = trireme_communicator_wait_ready(group, WAIT_NS);
    note_part(self, READY_MS, begin);
    if (status == TRIREME_OK) {
        lose_some(self, group);
    } else {
        fail_rank(self, "join", status);
    }
    trireme_communicator_destroy(group);
    return NULL;
}

static void run_process(int process, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    const bool is_last = process == job->processes - 1;
    static struct rank ranks[MOST_RANKS];
    int count = 0;
    int living = 0;
    for (int rank = 0; rank < job->ranks; ++rank) {
        if (dies(job, rank)) {
            if (is_last) ranks[count++].number = rank;
        } else if (living++ % (job->processes - 1) == process) {
            ranks[count++].number = rank;
        }
    }
    pthread_barrier_t all_here;
    pthread_barrier_init(&all_here, NULL, (unsigned)count);
    for (int i = 0; i < count; ++i) {
        ranks[i].job = job;
        ranks[i].outcome = outcome;
        ranks[i].all_here = &all_here;
        ranks[i].dies = is_last;
        if (pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]) != 0) _exit(91);
    }
    for (int i = 0; i < count; ++i) pthread_join(ranks[i].thread, NULL);
}

static void many_ranks_join_reduce_lose_some_and_go_on(void **state) {
    (void)state;
    const bool is_long = getenv("TRIREME_TEST_LONG") != NULL;
    struct job job = {.ranks = is_long ? MOST_RANKS : 128, .processes = is_long ? 9 : 3};
    const char *const asked = getenv("TRIREME_TEST_RANKS");
    if (asked != NULL) job.ranks = atoi(asked);
    char meeting[64];
    unique_network_rendezvous(meeting, sizeof meeting);
    /* All ranks share two cores: a thread that has its turn after seconds is no death. */
    snprintf(job.rendezvous, sizeof job.rendezvous, "%s?silence_ms=100000", meeting);
    struct processes processes;
    start_processes(&processes, job.processes, run_process, &job);
    wait_processes_for(&processes, is_long ? 2 * WAIT_NS : HANG_NS);
    int64_t parts[PARTS] = {0};
    bool all_went_on = true;
    for (int i = 0; i < job.processes; ++i) {
        const struct outcome *const outcome = &processes.outcomes[i];
        if (i == job.processes - 1) {
            assert_int_equal(outcome->signal, SIGKILL);
            continue;
        }
        if (outcome->text[0] != 0 || outcome->hung || outcome->exit_code != 0) {
            print_error("process %d: exit code %d, signal %d%s; %s\n", i, outcome->exit_code,
                        outcome->signal, outcome->hung ? ", hung" : "", outcome->text);
            all_went_on = false;
        }
        for (int part = 0; part < PARTS; ++part) {
            if (outcome->numbers[part] > parts[part]) parts[part] = outcome->numbers[part];
        }
    }
    printf(
        "large group: %d ranks, ms: ready %d, barrier %d, all-reduce of 8 bytes %d, of 40 kB %d; "
        "%d die: heard %d, shrunk %d, all-reduce %d\n",
        job.ranks, (int)parts[READY_MS], (int)parts[BARRIER_MS], (int)parts[SMALL_MS],
        (int)parts[LARGE_MS], DEATHS, (int)parts[DEATH_MS], (int)parts[SHRINK_MS],
        (int)parts[AFTER_MS]);
    free_processes(&processes);
    assert_true(all_went_on);
}

int main(void) {
    setenv("TRIREME_TOKEN", "a token for tests of 27 bytes", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_ranks_join_reduce_lose_some_and_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
