/*
 * hybrid_shard between processes of one host: every number of shard ranks, with and without units
 * that stay whole, parameters shared or not, and gradients smaller and larger than one piece.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "options.h"
#include "processes.h"

enum { RANKS = 4, STEPS = 2, MOST = 262147 };

struct group {
    uint32_t shard_ranks;
    char rendezvous[96];
};

/* Elements of the one parameter: 4 KiB of each rank's part, and around it; in a long run many more.
 */
static const uint64_t sizes[] = {100,  1025,  4096,  4100,  70001, 1,     2,    3,
                                 7,    1023,  1024,  2048,  4095,  4097,  4099, 8191,
                                 8192, 16384, 16385, 32767, 32772, 65536, MOST};

static int size_count(void) {
    return getenv("TRIREME_TEST_LONG") == NULL ? 5 : (int)(sizeof sizes / sizeof *sizes);
}

static void must(trireme_status status, struct outcome *outcome) {
    if (status == TRIREME_OK) return;
    keep_error(outcome, status);
    exit(92);
}

static void train(trireme_communicator *communicator, int rank, const struct group *group,
                  uint64_t size, int32_t share, bool whole, struct outcome *outcome) {
    static float values[MOST];
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_HYBRID_SHARD;
    shards_of(&options)->ranks = group->shard_ranks;
    shards_of(&options)->share = share;
    units_of(&options)->persistent_bytes = whole ? UINT64_MAX : 0;
    trireme_model *model = NULL;
    must(trireme_model_create(communicator, &options, &model), outcome);
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "w";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &size;
    must(trireme_model_add_parameter(model, &parameter, NULL), outcome);
    must(trireme_model_seal(model), outcome);
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 0.5;
    trireme_optimizer *optimizer = NULL;
    must(trireme_optimizer_create(model, &rule, &optimizer), outcome);
    for (int step = 0; step < STEPS; ++step) {
        for (uint64_t i = 0; i < size; ++i) values[i] = (float)((int)(i % 7) + rank);
        must(trireme_model_accumulate_flat(model, values, size, TRIREME_DTYPE_F32, 0), outcome);
        must(trireme_optimizer_step(optimizer), outcome);
    }
    must(trireme_model_gather_parameters(model, values, size, TRIREME_DTYPE_F32), outcome);
    for (uint64_t i = 0; i < size; ++i) {
        /* The mean rank is 1.5. */
        const float right = -0.5f * STEPS * ((float)(i % 7) + 1.5f);
        if (values[i] == right) continue;
        outcome->wrong = true;
        snprintf(outcome->text, sizeof outcome->text,
                 "%llu elements, share %d, whole %d: %g, not %g", (unsigned long long)size, share,
                 whole, (double)values[i], (double)right);
        break;
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    ++outcome->rounds;
}

static void run(int rank, void *context, struct outcome *outcome) {
    const struct group *const group = context;
    trireme_communicator *const communicator =
        join_process(rank, RANKS, group->rendezvous, PATIENT_NS);
    for (int s = 0; s < size_count(); ++s) {
        for (int whole = 0; whole < 2; ++whole) {
            train(communicator, rank, group, sizes[s], TRIREME_SHARE_NEVER, whole != 0, outcome);
            train(communicator, rank, group, sizes[s], TRIREME_SHARE_AUTO, whole != 0, outcome);
        }
    }
    trireme_communicator_destroy(communicator);
}

static void every_size_is_trained(void **state) {
    (void)state;
    static const uint32_t kShardRanks[] = {1, 2, 4, 0}; /* 0: those of the host */
    int trials = 0;
    for (int k = 0; k < 4; ++k) {
        const uint32_t shard_ranks = kShardRanks[k];
        struct group group = {.shard_ranks = shard_ranks};
        struct processes processes;
        unique_host_rendezvous(group.rendezvous, sizeof group.rendezvous);
        start_processes(&processes, RANKS, run, &group);
        wait_processes(&processes);
        for (int rank = 0; rank < RANKS; ++rank) {
            const struct outcome *const outcome = &processes.outcomes[rank];
            if (outcome->exit_code != 0 || outcome->wrong) {
                fail_msg("rank %d, shard_ranks %u: exit code %d, %s %s", rank, shard_ranks,
                         outcome->exit_code, outcome->message, outcome->text);
            }
            assert_int_equal(outcome->rounds, 4 * size_count());
        }
        trials += 4 * size_count();
        free_processes(&processes);
    }
    printf("trials: %d trainings of %d processes\n", trials, RANKS);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_size_is_trained)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
