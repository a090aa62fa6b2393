/*
 * A model that would hold more than its caller allows is refused on all ranks alike, with a text
 * that tells what would fit; each number of that text is held against a model that is really made.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <options.h>
#include <ranks.h>

#define MOST_RANKS 4
#define F32 TRIREME_DTYPE_F32

struct job {
    trireme_strategy strategy;
    int world_size;
    uint32_t leaves;
    uint32_t flags;
    int32_t share;
    int kind;
    uint64_t most[MOST_RANKS]; /* that each rank really holds */
    trireme_rule_kind rule;
    uint64_t limit;
    char texts[MOST_RANKS][1024];
    struct verdict verdicts[MOST_RANKS];
};

static trireme_model_options options_of(const struct job *job, trireme_strategy strategy) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = strategy;
    options.leaves = job->leaves;
    options.flags = job->flags;
    shards_of(&options)->share = job->share;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = 400;
    if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        shards_of(&options)->ranks = job->world_size % 2 == 0 ? 2 : 1;
    }
    return options;
}

/* Odd lengths, a frozen one, one of nothing, and a tied one. */
static trireme_status seal(struct verdict *v, trireme_communicator *communicator,
                           const trireme_model_options *options, trireme_model **out) {
    static const uint64_t kShapes[][2] = {{37, 5}, {7, 1}, {0, 3}, {101, 3}, {3, 1}, {37, 5}};
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, options, out));
    for (int i = 0; i < 6; ++i) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = F32;
        parameter.dimensions = 2;
        parameter.shape = kShapes[i];
        if (i == 1) parameter.flags = TRIREME_PARAMETER_FLAG_FROZEN;
        if (i == 5) parameter.tied_to = "p0";
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(*out, &parameter, NULL));
    }
    return trireme_model_seal(*out);
}

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static uint64_t held(struct verdict *v, const trireme_model *model) {
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    return memory.allocated_parameters + memory.allocated_gradients + memory.allocated_working +
           memory.allocated_optimizer_state;
}

static trireme_status
make_optimizer(trireme_model *model, trireme_rule_kind kind, trireme_optimizer **out) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = kind;
    options.learning_rate = 0.5;
    return trireme_optimizer_create(model, &options, out);
}

static void sum_again(struct verdict *v, trireme_communicator *communicator, int world_size) {
    int32_t one = 1, sum = 0;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_all_reduce(communicator, &one, &sum, 1, TRIREME_DTYPE_I32,
                                     TRIREME_REDUCTION_SUM, NULL));
    EXPECT(v, sum == world_size);
}

static void run_job(struct job *job, rank_function *function) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(job->world_size, function, job);
    assert_verdicts(job->verdicts, job->world_size);
}

static uint64_t most_of(const struct job *job) {
    uint64_t most = 0;
    for (int rank = 0; rank < job->world_size; ++rank) {
        if (job->most[rank] > most) most = job->most[rank];
    }
    return most;
}

/* The memory of each rank with a strategy; with Adam's state if `kind` is 1. */
static void measure(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job, job->strategy);
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, seal(v, communicator, &options, &model));
    if (job->kind == 1) {
        EXPECT_STATUS(v, TRIREME_OK, make_optimizer(model, TRIREME_RULE_ADAM, &optimizer));
    }
    job->most[rank] = held(v, model);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

/* With the limit of the job: just enough, and one byte too few. */
static void seal_at_the_limit(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job, job->strategy);
    trireme_model *model = NULL;
    options.memory_limit_bytes = job->limit;
    EXPECT_STATUS(v, TRIREME_OK, seal(v, communicator, &options, &model));
    EXPECT(v, held(v, model) <= job->limit);
    trireme_model_destroy(model);
    model = NULL;
    options.memory_limit_bytes = job->limit - 1;
    EXPECT_STATUS(v, TRIREME_ERROR_OUT_OF_MEMORY, seal(v, communicator, &options, &model));
    snprintf(job->texts[rank], sizeof job->texts[rank], "%s", trireme_last_error());
    /* It stays so, and the group does not mind. */
    EXPECT_STATUS(v, TRIREME_ERROR_OUT_OF_MEMORY, trireme_model_seal(model));
    EXPECT_STATUS(v, TRIREME_ERROR_OUT_OF_MEMORY, trireme_model_begin_backward(model, 0));
    trireme_model_destroy(model);
    sum_again(v, communicator, job->world_size);
}

static void
assert_text_has(const struct job *job, const char *format, const char *name, uint64_t number) {
    char wanted[160];
    snprintf(wanted, sizeof wanted, format, name, number);
    for (int rank = 0; rank < job->world_size; ++rank) {
        if (strstr(job->texts[rank], wanted) != NULL) continue;
        print_error("rank %d does not say \"%s\" but \"%s\"\n", rank, wanted, job->texts[rank]);
        fail();
    }
}

static void all_numbers_of_a_refusal_are_those_of_real_models(void **state) {
    (void)state;
    static const struct {
        uint32_t leaves, flags;
        int32_t share;
    } kKinds[] = {{0, 0, TRIREME_SHARE_NEVER},
                  {3, 0, TRIREME_SHARE_NEVER},
                  {9, TRIREME_MODEL_FLAG_UNEVEN, TRIREME_SHARE_AUTO}};
    for (int kind = 0; kind < 3; ++kind) {
        for (int world_size = 1; world_size <= MOST_RANKS; ++world_size) {
            struct job job = {.world_size = world_size,
                              .leaves = kKinds[kind].leaves,
                              .flags = kKinds[kind].flags,
                              .share = kKinds[kind].share};
            uint64_t needs[TRIREME_STRATEGY_HYBRID_SHARD + 1] = {0};
            for (job.strategy = 1; job.strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++job.strategy) {
                run_job(&job, measure);
                needs[job.strategy] = most_of(&job);
            }
            for (job.strategy = 1; job.strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++job.strategy) {
                job.limit = needs[job.strategy];
                run_job(&job, seal_at_the_limit);
                for (int rank = 1; rank < world_size; ++rank) {
                    assert_string_equal(job.texts[rank], job.texts[0]);
                }
                assert_text_has(&job, "%s needs %" PRIu64 " bytes: parameters ", "rank 0",
                                job.limit);
                assert_text_has(&job, "%s is %" PRIu64 " bytes;", "memory_limit_bytes",
                                job.limit - 1);
                for (trireme_strategy other = 1; other <= TRIREME_STRATEGY_ZERO3; ++other) {
                    if (other == job.strategy) continue;
                    assert_text_has(&job, "%s would need %" PRIu64 " bytes",
                                    trireme_strategy_name(other), needs[other]);
                }
            }
        }
    }
}

/* The least that the text names is had with what the text names, and with nothing less. */
static void seal_with_the_least(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job, TRIREME_STRATEGY_ZERO1);
    trireme_model *model = NULL;
    options.memory_limit_bytes = 1;
    EXPECT_STATUS(v, TRIREME_ERROR_OUT_OF_MEMORY, seal(v, communicator, &options, &model));
    trireme_model_destroy(model);
    const char *const text = strstr(trireme_last_error(), "the least is ");
    uint64_t least = 0;
    char name[32] = "";
    if (!EXPECT(v, text != NULL && sscanf(text, "the least is %" SCNu64 " bytes, with %31[a-z0-9_]",
                                          &least, name) == 2)) {
        return;
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_strategy_parse(name, &options.strategy));
    buckets_of(&options)->bytes = 1;
    buckets_of(&options)->first_bytes = 1;
    units_of(&options)->prefetch_bytes = 1;
    for (int less = 0; less < 2; ++less) {
        options.memory_limit_bytes = least - (uint64_t)less;
        EXPECT_STATUS(v, less ? TRIREME_ERROR_OUT_OF_MEMORY : TRIREME_OK,
                      seal(v, communicator, &options, &model));
        trireme_model_destroy(model);
    }
}

static void the_least_that_is_named_works(void **state) {
    (void)state;
    struct job job = {.share = TRIREME_SHARE_NEVER};
    for (job.world_size = 1; job.world_size <= MOST_RANKS; ++job.world_size) {
        run_job(&job, seal_with_the_least);
    }
}

/* Adam's state does not fit; SGD, which has none, does, and trains. */
static void optimize_at_the_limit(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job, job->strategy);
    options.memory_limit_bytes = job->limit - 1;
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, seal(v, communicator, &options, &model));
    EXPECT_STATUS(v, TRIREME_ERROR_OUT_OF_MEMORY,
                  make_optimizer(model, TRIREME_RULE_ADAM, &optimizer));
    snprintf(job->texts[rank], sizeof job->texts[rank], "%s", trireme_last_error());
    EXPECT(v, optimizer == NULL);
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.allocated_optimizer_state == 0 && memory.planned_optimizer_state == 0);
    /* Ranks that want different rules hear of that, whichever of them would fit. */
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH,
                  make_optimizer(model, rank == 0 ? TRIREME_RULE_ADAM : TRIREME_RULE_SGD,
                                 &optimizer));
    EXPECT_STATUS(v, TRIREME_OK, make_optimizer(model, TRIREME_RULE_SGD, &optimizer));
    float values[37 * 5 + 7 + 303 + 3];
    for (int i = 0; i < 498; ++i) values[i] = 1;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, values, 498, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, 498, F32));
    for (int i = 0; i < 498; ++i) EXPECT(v, values[i] == (i >= 185 && i < 192 ? 0.0F : -0.5F));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    options.memory_limit_bytes = job->limit;
    EXPECT_STATUS(v, TRIREME_OK, seal(v, communicator, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, make_optimizer(model, TRIREME_RULE_ADAM, &optimizer));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void state_counts_when_the_optimizer_is_made(void **state) {
    (void)state;
    for (int world_size = 2; world_size <= MOST_RANKS; ++world_size) {
        struct job job = {.world_size = world_size, .kind = 1, .share = TRIREME_SHARE_NEVER};
        for (job.strategy = 1; job.strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++job.strategy) {
            run_job(&job, measure);
            job.limit = most_of(&job);
            run_job(&job, optimize_at_the_limit);
            assert_text_has(&job, "%s needs %" PRIu64 " bytes: parameters ", "rank 0", job.limit);
            for (int rank = 0; rank < world_size; ++rank) {
                assert_non_null(strstr(job.texts[rank], ", optimizer state "));
            }
        }
    }
}

/* ---- a rule that is planned ---- */

/* The memory of each rank with a rule. */
static void measure_rule(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job, job->strategy);
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, seal(v, communicator, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, make_optimizer(model, job->rule, &optimizer));
    job->most[rank] = held(v, model);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

/* If a seal succeeds, the optimizer has room; with a byte less there is no model. */
static void plan_the_rule(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job, job->strategy);
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    options.planned_rule = job->rule;
    options.memory_limit_bytes = job->limit;
    EXPECT_STATUS(v, TRIREME_OK, seal(v, communicator, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, make_optimizer(model, job->rule, &optimizer));
    EXPECT(v, held(v, model) <= job->limit);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    model = NULL;
    options.memory_limit_bytes = job->limit - 1;
    EXPECT_STATUS(v, TRIREME_ERROR_OUT_OF_MEMORY, seal(v, communicator, &options, &model));
    snprintf(job->texts[rank], sizeof job->texts[rank], "%s", trireme_last_error());
    trireme_model_destroy(model);
    sum_again(v, communicator, job->world_size);
}

static void a_planned_rule_counts_when_the_model_is_sealed(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= MOST_RANKS; ++world_size) {
        for (trireme_rule_kind rule = 1; rule <= TRIREME_RULE_MUON; ++rule) {
            if (rule == TRIREME_RULE_USER) continue;
            struct job job = {.world_size = world_size, .rule = rule, .share = TRIREME_SHARE_NEVER};
            for (job.strategy = 1; job.strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++job.strategy) {
                run_job(&job, measure_rule);
                job.limit = most_of(&job);
                run_job(&job, plan_the_rule);
                /* Of the rank that has most, which with muon may be another than the first. */
                assert_text_has(&job, "%s needs %" PRIu64 " bytes: parameters ", "", job.limit);
                char wanted[64];
                snprintf(wanted, sizeof wanted, " of %s; memory_limit_bytes is",
                         trireme_rule_name(rule));
                assert_non_null(strstr(job.texts[0], ", optimizer state "));
                assert_non_null(strstr(job.texts[0], wanted));
                assert_null(strstr(job.texts[0], "planned_rule"));
            }
        }
    }
}

/* Without one the text tells that state is missing, and what finds it. */
static void seal_without_a_rule(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job, job->strategy);
    trireme_model *model = NULL;
    options.memory_limit_bytes = 1;
    EXPECT_STATUS(v, TRIREME_ERROR_OUT_OF_MEMORY, seal(v, communicator, &options, &model));
    EXPECT(v, says(", no optimizer state, as planned_rule is not set; "));
    EXPECT(v,
           says(
               "trireme_optimizer_create() compares the state of its rule, too: set planned_rule"));
    trireme_model_destroy(model);
}

static void a_report_without_a_rule_says_so(void **state) {
    (void)state;
    struct job job = {.world_size = 2, .share = TRIREME_SHARE_NEVER};
    for (job.strategy = 1; job.strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++job.strategy) {
        run_job(&job, seal_without_a_rule);
    }
}

/* The number of ranks that a refusal names: 0 if it names none. */
static int ranks_of(const struct job *job, const char *strategy) {
    const char *const text = strstr(job->texts[0], "; with the same options ");
    for (const char *at = text; at != NULL; at = strstr(at + 1, "; with the same options ")) {
        int ranks = 0, end = 0;
        char name[32] = "";
        if (sscanf(at, "; with the same options %d ranks would be enough with %31[a-z0-9_]%n",
                   &ranks, name, &end) == 2 &&
            strcmp(name, strategy) == 0) {
            return ranks;
        }
    }
    return 0;
}

static void seal_planned(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job, job->strategy);
    trireme_model *model = NULL;
    options.planned_rule = job->rule;
    options.memory_limit_bytes = job->limit;
    const trireme_status status = seal(v, communicator, &options, &model);
    EXPECT(v, status == (job->kind == 1 ? TRIREME_OK : TRIREME_ERROR_OUT_OF_MEMORY));
    if (status != TRIREME_OK) {
        snprintf(job->texts[rank], sizeof job->texts[rank], "%s", trireme_last_error());
    }
    trireme_model_destroy(model);
}

/* So many ranks as the text names are really enough for state and all, and one less is not. */
static void the_ranks_that_are_named_are_enough(void **state) {
    (void)state;
    int named = 0;
    for (trireme_strategy strategy = TRIREME_STRATEGY_ZERO1; strategy <= TRIREME_STRATEGY_ZERO3;
         ++strategy) {
        for (int fits = 2; fits <= MOST_RANKS; ++fits) {
            struct job job = {.strategy = strategy,
                              .world_size = fits,
                              .rule = TRIREME_RULE_ADAMW,
                              .share = TRIREME_SHARE_NEVER};
            run_job(&job, measure_rule);
            job.limit = most_of(&job);
            job.world_size = 1;
            run_job(&job, seal_planned);
            job.world_size = ranks_of(&job, trireme_strategy_name(strategy));
            assert_in_range(job.world_size, 2, fits);
            job.kind = 1;
            run_job(&job, seal_planned);
            job.kind = 0;
            while (--job.world_size > 0) run_job(&job, seal_planned);
            ++named;
        }
    }
    assert_int_equal(named, 9);
    /* Ranks do not help one that keeps all; where that is so, the text has the leanest. */
    struct job job = {.strategy = TRIREME_STRATEGY_DATA_PARALLEL,
                      .world_size = 2,
                      .rule = TRIREME_RULE_ADAMW,
                      .share = TRIREME_SHARE_NEVER};
    job.limit = 1;
    run_job(&job, seal_planned);
    assert_int_equal(ranks_of(&job, "data_parallel"), 0);
    assert_non_null(strstr(job.texts[0], "; with the same options no number of ranks up to 1024 "));
    /* zero1 has room within a limit that data_parallel never fits. */
    job.limit = 7200;
    run_job(&job, seal_planned);
    assert_int_equal(ranks_of(&job, "data_parallel"), 0);
    job.world_size = ranks_of(&job, "zero1");
    assert_in_range(job.world_size, 3, MOST_RANKS);
    job.strategy = TRIREME_STRATEGY_ZERO1;
    job.kind = 1;
    run_job(&job, seal_planned);
}

/* A rule that is none, that only its caller knows, or that nothing is compared with. */
static void plan_wrongly(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job, TRIREME_STRATEGY_ZERO2);
    trireme_model *model = NULL;
    options.memory_limit_bytes = 1 << 20;
    static const int32_t kNone[] = {-1, TRIREME_RULE_MUON + 1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; ++i) {
        char wanted[64];
        options.planned_rule = kNone[i];
        snprintf(wanted, sizeof wanted, "planned_rule %" PRId32 " is no TRIREME_RULE_*", kNone[i]);
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                      trireme_model_create(communicator, &options, &model));
        EXPECT(v, says(wanted));
    }
    options.planned_rule = TRIREME_RULE_USER;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_create(communicator, &options, &model));
    EXPECT(v, says("planned_rule 4 is a rule of the caller"));
    options.planned_rule = TRIREME_RULE_ADAM;
    options.memory_limit_bytes = 0;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_create(communicator, &options, &model));
    EXPECT(v, says("planned_rule 2 means nothing without options.memory_limit_bytes"));
    EXPECT(v, model == NULL);
    options.memory_limit_bytes = 1 << 20;
    if (rank == 1) options.planned_rule = 0;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, seal(v, communicator, &options, &model));
    EXPECT(v, says("planned_rule is adam on rank 0 and not set on rank 1"));
    trireme_model_destroy(model);
    sum_again(v, communicator, job->world_size);
}

static void rules_that_cannot_be_planned_are_refused(void **state) {
    (void)state;
    struct job job = {.world_size = 2, .share = TRIREME_SHARE_NEVER};
    run_job(&job, plan_wrongly);
}

/* Ranks that set different limits, or describe different models, get MISMATCH and nothing else. */
static void set_different_limits(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job, job->strategy);
    options.memory_limit_bytes = 1;
    if (rank == 1 && job->kind == 0) options.memory_limit_bytes = 1 << 20;
    if (rank == 1 && job->kind == 1) buckets_of(&options)->bytes = 800;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, seal(v, communicator, &options, &model));
    const char *const wanted = job->kind == 0 ? "memory_limit_bytes is 1 on rank 0 and 1048576"
                                              : "buckets.bytes is 400 on rank 0 and 800 on rank 1";
    EXPECT(v, strstr(trireme_last_error(), wanted) != NULL);
    sum_again(v, communicator, job->world_size);
    trireme_model_destroy(model);
}

static void different_limits_are_a_mismatch(void **state) {
    (void)state;
    struct job job = {.world_size = 3, .share = TRIREME_SHARE_NEVER};
    for (job.strategy = 1; job.strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++job.strategy) {
        for (job.kind = 0; job.kind < 2; ++job.kind) run_job(&job, set_different_limits);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_numbers_of_a_refusal_are_those_of_real_models),
        cmocka_unit_test(the_least_that_is_named_works),
        cmocka_unit_test(state_counts_when_the_optimizer_is_made),
        cmocka_unit_test(a_planned_rule_counts_when_the_model_is_sealed),
        cmocka_unit_test(a_report_without_a_rule_says_so),
        cmocka_unit_test(the_ranks_that_are_named_are_enough),
        cmocka_unit_test(rules_that_cannot_be_planned_are_refused),
        cmocka_unit_test(different_limits_are_a_mismatch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
