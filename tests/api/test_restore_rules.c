/*
 * A restore in another layout brings all state of a rule: every rule goes on there to the bits of
 * the same training without a break on one rank.
 */
#include "restore.inc"

#define ADAMW TRIREME_RULE_ADAMW
static const struct training kTrainings[] = {
    {TRIREME_RULE_SGD, 0, F32, false},
    {TRIREME_RULE_ADAM, 0, F32, false},
    {TRIREME_RULE_USER, 0, F32, false},
    {TRIREME_RULE_ADAGRAD, 0, F32, false},
    {TRIREME_RULE_RMSPROP, 0, F32, false},
    {TRIREME_RULE_LION, 0, F32, false},
    {TRIREME_RULE_LAMB, 0, F32, false},
    {TRIREME_RULE_LARS, 0, F32, false},
    {TRIREME_RULE_ADAFACTOR, 0, F32, true},
    {TRIREME_RULE_MUON, 0, F32, false},
    {ADAMW, TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS, TRIREME_DTYPE_BF16, true},
    {ADAMW, TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING, TRIREME_DTYPE_BF16, false},
};
enum { TRAININGS = sizeof kTrainings / sizeof kTrainings[0] };

static const struct layout kLayouts[] = {
    {"data_parallel of 1", TRIREME_STRATEGY_DATA_PARALLEL, 1, false, false, false},
    {"zero3 of 4", TRIREME_STRATEGY_ZERO3, 4, false, false, false},
    {"data_parallel of 3", TRIREME_STRATEGY_DATA_PARALLEL, 3, false, false, false},
    {"zero2 of 2", TRIREME_STRATEGY_ZERO2, 2, false, false, false},
    {"hybrid_shard of 4", TRIREME_STRATEGY_HYBRID_SHARD, 4, false, false, false},
};
enum { LAYOUTS = sizeof kLayouts / sizeof kLayouts[0] };

struct job {
    const struct training *training;
    const struct layout *from, *to;
    struct store store;
    unsigned char expected[ELEMENTS * 4], trained[MOST_RANKS][ELEMENTS * 4];
    struct verdict verdicts[MOST_RANKS];
};

static void run_job(struct job *job, int world_size, rank_function *function) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(world_size, function, job);
    assert_verdicts(job->verdicts, world_size);
}

static void begin(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, job->from, job->training);
    set_start(v, model, job->training->dtype);
    trireme_optimizer *const optimizer = make_optimizer(v, model, job->from, job->training);
    train(v, model, optimizer, job->training, 0, BEFORE);
    read_all(v, optimizer, &job->store, rank == 0);
    /* Without a break. */
    if (job->from->world_size == 1) {
        train(v, model, optimizer, job->training, BEFORE, STEPS);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(model, job->expected, ELEMENTS,
                                                      job->training->dtype));
    }
    destroy(model, optimizer);
}

static void go_on(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, job->to, job->training);
    trireme_optimizer *const optimizer = make_optimizer(v, model, job->to, job->training);
    write_all(v, optimizer, &job->store);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    train(v, model, optimizer, job->training, BEFORE, STEPS);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, job->trained[rank], ELEMENTS,
                                                  job->training->dtype));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    destroy(model, optimizer);
}

static void test_every_rule(void **state) {
    (void)state;
    struct job *const job = calloc(1, sizeof *job);
    if (job == NULL) abort();
    for (int i = 0; i < TRAININGS; ++i) {
        job->training = &kTrainings[i];
        const size_t bytes = ELEMENTS * (job->training->dtype == F32 ? 4u : 2u);
        for (int from = 0; from < LAYOUTS; ++from) {
            memset(&job->store, 0, sizeof job->store);
            job->from = &kLayouts[from];
            run_job(job, job->from->world_size, begin); /* the first on one rank */
            for (int to = 0; to < LAYOUTS; ++to) {
                if (is_quick() && to != (from + 2) % LAYOUTS) continue;
                job->to = &kLayouts[to];
                run_job(job, job->to->world_size, go_on);
                for (int rank = 0; rank < job->to->world_size; ++rank) {
                    if (memcmp(job->trained[rank], job->expected, bytes) == 0) continue;
                    fail_msg("%s, %s to %s: rank %d has other bits",
                             trireme_rule_name(job->training->kind), job->from->name, job->to->name,
                             rank);
                }
            }
        }
    }
    free(job);
    assert_int_equal(files_in_directory(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rule),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
