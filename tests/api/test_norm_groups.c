/*
 * Groups of parameters, whatever the strategy and the number of ranks: Each is clipped by its own
 * norm, also over a mesh of data x tensor. There the tensor ranks have different parts of some
 * parameters and the same others. Each has its own learning rate and weight decay.
 */
#include <math.h>
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

#define F32 TRIREME_DTYPE_F32
#define F64 TRIREME_DTYPE_F64
#define BF16 TRIREME_DTYPE_BF16
#define TOTAL 20 /* elements of all parameters */
#define STEPS 3
#define LEAVES 4
#define MOST_RANKS 8
#define MOST_TENSOR 4
#define GROUPS 5
#define SKIPPED 1 /* the parameter that gets no gradient if one is skipped: a group of its own */

/* Group 0 is of two parameters that are no neighbours; that of "none" has no element. */
static const struct {
    const char *name;
    uint64_t elements;
    uint32_t group;
    bool replicated; /* the same on all tensor ranks */
} kParameters[] = {{"a", 7, 0, false}, {"b", 5, 1, true},    {"c", 3, 0, false},
                   {"d", 1, 2, true},  {"none", 0, 3, true}, {"e", 4, 4, false}};
enum { PARAMETERS = sizeof kParameters / sizeof kParameters[0] };

/* 2 is not clipped, 4 is never reached. */
static const double kMaxNorms[GROUPS] = {1.5, 0.75, 0, 1, 1e6};

/* Not exact in any type; group 2 stays as it is. */
static const double kFactors[GROUPS] = {1, 0.3, 0, 1, 1.7};
static const double kDecays[GROUPS] = {0.15, 0, 0.1, 1, 0.7};

struct job {
    trireme_strategy strategy;
    int tensor, data;
    trireme_dtype dtype;
    uint32_t leaves; /* 0: each rank has a part of its own */
    uint64_t bucket_bytes;
    double max_value;
    bool skip;      /* no rank has a gradient of SKIPPED */
    double spoiled; /* if not 0, the first gradient of group 1 */
    bool rates;     /* groups have learning rates and weight decays */
    bool unclipped, one_sweep;
    struct verdict verdicts[MOST_RANKS];
    double norms[MOST_RANKS][STEPS][GROUPS];
    double values[MOST_RANKS][TOTAL];
};

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static double rate_of(const struct job *job, int step) {
    return job->rates ? 0.1 / (step + 1) : 0.1;
}

/* The gradient from part `part` of `parts` of the batch: eighths, whose sums, means and squares are
 * exact in f32. */
static double gradient_of(const struct job *job, int step, int part, int parts, int tensor,
                          uint64_t parameter, uint64_t element) {
    const uint64_t place = element * 37 + parameter * 101 +
                           (kParameters[parameter].replicated ? 0 : (uint64_t)tensor * 7);
    const double mean = (double)((place + (uint64_t)step * 5) % 23) / 4 - 2.75;
    if (job->spoiled != 0 && parameter == SKIPPED && element == 0) return job->spoiled;
    /* These add up to 0. */
    return mean + ((double)part - (double)(parts - 1) / 2) * 0.25;
}

static trireme_status add(trireme_model *model, const char *name, uint64_t elements,
                          trireme_dtype dtype, uint32_t group, uint32_t replicas) {
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = name;
    parameter.dtype = dtype;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    parameter.replicas = replicas;
    parameter.parameter_group = group;
    return trireme_model_add_parameter(model, &parameter, NULL);
}

static trireme_optimizer_options rule_of(const double *max_norms, uint64_t groups) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    options.learning_rate = 0.1;
    if (groups == 0) return options;
    groups_of(&options, groups);
    set_group_norms(&options, max_norms);
    return options;
}

static trireme_model *make(struct verdict *v, trireme_communicator *ranks, const struct job *job) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    options.leaves = job->leaves;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = job->bucket_bytes;
    if (job->skip) options.unused = TRIREME_UNUSED_SKIP;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        shards_of(&options)->ranks = job->data % 2 == 0 ? 2 : 1;
    }
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    for (int p = 0; p < PARAMETERS; ++p) {
        EXPECT_STATUS(v, TRIREME_OK,
                      add(model, kParameters[p].name, kParameters[p].elements, job->dtype,
                          kParameters[p].group,
                          kParameters[p].replicated ? (uint32_t)job->tensor : 1));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static void backward(struct verdict *v, const struct job *job, trireme_model *model, int step,
                     int part, int parts, int tensor) {
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    for (uint64_t p = PARAMETERS; p-- > 0;) {
        if (job->skip && p == SKIPPED) continue;
        double wide[TOTAL] = {0};
        float narrow[TOTAL] = {0};
        for (uint64_t i = 0; i < kParameters[p].elements; ++i) {
            wide[i] = gradient_of(job, step, part, parts, tensor, p, i);
            narrow[i] = (float)wide[i];
        }
        const bool is_wide = job->dtype == F64;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, p,
                                                   is_wide ? (const void *)wide
                                                           : (const void *)narrow,
                                                   kParameters[p].elements, is_wide ? F64 : F32));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
}

static double value_at(trireme_dtype dtype, const void *values, size_t i) {
    if (dtype == F64) return ((const double *)values)[i];
    if (dtype == F32) return (double)((const float *)values)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)values)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static void train(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const int t = rank % job->tensor;
    trireme_communicator *data = NULL;
    if (job->tensor > 1) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_split(all, t, rank, NULL, &data));
    }
    trireme_model *const model = make(v, job->tensor > 1 ? data : all, job);
    trireme_optimizer_options rule = rule_of(NULL, GROUPS);
    double max_norms[GROUPS];
    memcpy(max_norms, kMaxNorms, sizeof max_norms);
    double factors[GROUPS], decays[GROUPS];
    memcpy(factors, kFactors, sizeof factors);
    memcpy(decays, kDecays, sizeof decays);
    set_group_norms(&rule, job->unclipped ? NULL : max_norms);
    if (job->rates) {
        set_group_rates(&rule, factors);
        set_group_decays(&rule, decays);
        /* The last group leaves its decay to the options. */
        groups_of(&rule, GROUPS)[GROUPS - 1].weight_decay = NULL;
        rule.weight_decay = decays[GROUPS - 1];
    }
    if (job->one_sweep) rule.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
    clipping_of(&rule)->max_value = job->max_value;
    if (job->tensor > 1) rule.norm_ranks = all;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    memset(max_norms, 0, sizeof max_norms); /* they were copied */
    memset(factors, 0, sizeof factors);
    memset(decays, 0, sizeof decays);
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_info(model, &info));
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.planned_working == memory.allocated_working);
    for (int step = 0; step < STEPS; ++step) {
        if (job->leaves == 0) backward(v, job, model, step, rank / job->tensor, job->data, t);
        for (uint32_t pass = 0; pass < info.micro_batches; ++pass) {
            uint32_t leaf = 0;
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_leaf(model, pass, &leaf));
            if (leaf != UINT32_MAX) backward(v, job, model, step, (int)leaf, LEAVES, t);
        }
        if (job->rates) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_set_learning_rate(optimizer, rate_of(job, step)));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        for (uint64_t group = 0; group < GROUPS && !job->unclipped; ++group) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_get_group_norm(optimizer, group,
                                                           &job->norms[rank][step][group]));
        }
    }
    double values[TOTAL];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, TOTAL, job->dtype));
    for (size_t i = 0; i < TOTAL; ++i) job->values[rank][i] = value_at(job->dtype, values, i);
    trireme_optimizer_destroy(optimizer);
    /* The optimizer's memory goes with it. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.planned_working == memory.allocated_working);
    trireme_model_destroy(model);
    trireme_communicator_destroy(data);
}

static float to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (!isfinite(value)) return value;
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double stepped(const struct job *job, int step, uint32_t group, double value,
                      double gradient, double clip) {
    const double rate = rate_of(job, step) * (job->rates ? kFactors[group] : 1);
    const double decay = job->rates ? kDecays[group] : 0;
    if (job->dtype == F64) {
        double g = gradient * clip;
        if (decay != 0) g += decay * value;
        return value - rate * g;
    }
    float g = (float)gradient * (float)clip;
    if (decay != 0) g += (float)decay * (float)value;
    const float next = (float)value - (float)rate * g;
    return (double)(job->dtype == BF16 ? to_bf16(next) : next);
}

/* The mean gradient of the batch, as it is clipped by value. */
static double
mean_of(const struct job *job, int step, int tensor, uint64_t parameter, uint64_t element) {
    const int parts = job->leaves > 0 ? LEAVES : job->data;
    double sum = 0;
    for (int part = 0; part < parts; ++part) {
        sum += gradient_of(job, step, part, parts, tensor, parameter, element);
    }
    const double mean = sum / parts;
    if (job->max_value == 0) return mean;
    return mean > job->max_value ? job->max_value : mean < -job->max_value ? -job->max_value : mean;
}

/* One process with everything, by plain loops. */
static void expect_plain(const struct job *job, double norms[STEPS][GROUPS],
                         double values[MOST_TENSOR][TOTAL]) {
    for (int step = 0; step < STEPS; ++step) {
        double sums[GROUPS] = {0};
        for (int t = 0; t < job->tensor; ++t) {
            for (uint64_t p = 0; p < PARAMETERS; ++p) {
                if ((job->skip && p == SKIPPED) || (kParameters[p].replicated && t > 0)) continue;
                for (uint64_t i = 0; i < kParameters[p].elements; ++i) {
                    const double mean = mean_of(job, step, t, p, i);
                    sums[kParameters[p].group] += mean * mean;
                }
            }
        }
        for (int group = 0; group < GROUPS; ++group) {
            norms[step][group] = isfinite(sums[group]) ? sqrt(sums[group]) : (double)NAN;
        }
        for (int t = 0; t < job->tensor; ++t) {
            size_t place = 0;
            for (uint64_t p = 0; p < PARAMETERS; ++p) {
                const double norm = norms[step][kParameters[p].group];
                const double most = kMaxNorms[kParameters[p].group];
                const double clip = !job->unclipped && most > 0 && norm > most ? most / norm : 1;
                for (uint64_t i = 0; i < kParameters[p].elements; ++i, ++place) {
                    if (job->skip && p == SKIPPED) continue;
                    values[t][place] = stepped(job, step, kParameters[p].group, values[t][place],
                                               mean_of(job, step, t, p, i), clip);
                }
            }
        }
    }
}

static bool same(double a, double b) {
    return a == b || (isnan(a) && isnan(b));
}

static void run_job(struct job *job, rank_function *function) {
    const int ranks = job->tensor * job->data;
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(ranks, function, job);
    assert_verdicts(job->verdicts, ranks);
}

static void train_and_check(struct job *job) {
    run_job(job, train);
    double norms[STEPS][GROUPS] = {{0}};
    double values[MOST_TENSOR][TOTAL] = {{0}};
    expect_plain(job, norms, values);
    /* The job is worth it: 0 and 1 are clipped, the last is not. */
    assert_true(norms[0][0] > kMaxNorms[0] && norms[0][4] > 0);
    assert_true(job->skip ? norms[0][1] == 0 : !(norms[0][1] <= kMaxNorms[1]));
    for (int rank = 0; rank < job->tensor * job->data; ++rank) {
        for (int step = 0; step < STEPS; ++step) {
            for (int group = 0; group < GROUPS && !job->unclipped; ++group) {
                if (same(job->norms[rank][step][group], norms[step][group])) continue;
                fail_msg("rank %d step %d group %d: norm %.17g, not %.17g", rank, step, group,
                         job->norms[rank][step][group], norms[step][group]);
            }
        }
        for (int i = 0; i < TOTAL; ++i) {
            const double expected = values[rank % job->tensor][i];
            if (same(job->values[rank][i], expected)) continue;
            fail_msg(
                "strategy %d, %d x %d ranks, dtype %d, leaves %u, rank %d, element %d: %.17g, "
                "not %.17g",
                (int)job->strategy, job->data, job->tensor, (int)job->dtype, (unsigned)job->leaves,
                rank, i, job->values[rank][i], expected);
        }
    }
}

static const trireme_dtype kDtypes[] = {F32, F64, BF16};

static void groups_clip_as_in_one_process(void **state) {
    (void)state;
    for (int world = 1; world <= 5; ++world) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            for (size_t d = 0; d < sizeof kDtypes / sizeof kDtypes[0]; ++d) {
                for (uint32_t leaves = 0; leaves <= LEAVES; leaves += LEAVES) {
                    static struct job job;
                    job = (struct job){.strategy = strategy,
                                       .tensor = 1,
                                       .data = world,
                                       .dtype = kDtypes[d],
                                       .leaves = leaves,
                                       .bucket_bytes = world % 2 == 0 ? 1 : 0};
                    train_and_check(&job);
                }
            }
        }
    }
}

static void beside_other_features_groups_are_the_same(void **state) {
    (void)state;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        static struct job job;
        job = (struct job){.strategy = strategy, .tensor = 1, .data = 3, .dtype = F32};
        job.max_value = 2;
        train_and_check(&job);
        job.skip = true;
        train_and_check(&job);
        job.leaves = LEAVES;
        job.bucket_bytes = 1;
        train_and_check(&job);
    }
}

static void a_mesh_clips_groups_as_one_process(void **state) {
    (void)state;
    if (ranks_use_transport()) skip(); /* groups of such ranks are not there yet */
    const int meshes[][2] = {{2, 2}, {2, 1}, {3, 1}, {4, 2}};
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; ++i) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
            static struct job job;
            job = (struct job){.strategy = strategy,
                               .tensor = meshes[i][0],
                               .data = meshes[i][1],
                               .dtype = kDtypes[strategy % 3],
                               .leaves = LEAVES};
            train_and_check(&job);
            job.skip = true;
            train_and_check(&job);
        }
    }
}

static void groups_have_their_own_rates_and_decays(void **state) {
    (void)state;
    static const int worlds[] = {1, 2, 3, 4, 5, 8};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; ++w) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            /* Each strategy still meets some worlds, and each world some strategies. */
            if (is_quick() && ((int)w + strategy) % 2 != 0) continue;
            for (int unclipped = 0; unclipped < 2; ++unclipped) {
                static struct job job;
                job = (struct job){.strategy = strategy,
                                   .tensor = 1,
                                   .data = worlds[w],
                                   .dtype = kDtypes[(w + (size_t)strategy) % 3],
                                   .leaves = unclipped ? 0 : LEAVES,
                                   .bucket_bytes = worlds[w] % 2 == 0 ? 1 : 0};
                job.rates = true;
                job.unclipped = unclipped;
                if (worlds[w] > LEAVES) job.leaves = 0;
                train_and_check(&job);
                if (unclipped && strategy == TRIREME_STRATEGY_ZERO1 && worlds[w] > 1) {
                    job.one_sweep = true;
                    train_and_check(&job);
                }
            }
        }
    }
}

/* The arguments of the caller's rule. */
struct told {
    double rates[PARAMETERS];
};

static int32_t TRIREME_CALLCONV note_rate(const trireme_update *update, void *user_data) {
    ((struct told *)user_data)->rates[update->parameter] = update->learning_rate;
    return 0;
}

static void tell_own_rule(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, all, job);
    struct told told = {{0}};
    trireme_optimizer_options rule = rule_of(NULL, GROUPS);
    rule.kind = TRIREME_RULE_USER;
    user_rule_of(&rule)->update = note_rate;
    user_rule_of(&rule)->user_data = &told;
    set_group_rates(&rule, kFactors);
    rule.learning_rate = 0.5;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    backward(v, job, model, 0, rank, 2, 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    for (int p = 0; p < PARAMETERS; ++p) {
        if (kParameters[p].elements == 0) continue;
        EXPECT(v, told.rates[p] == 0.5 * kFactors[kParameters[p].group]);
    }
    double rate = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_learning_rate(optimizer, &rate));
    EXPECT(v, rate == 0.5);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_rule_of_the_caller_is_told_the_rate_of_its_group(void **state) {
    (void)state;
    static struct job job;
    job = (struct job){.tensor = 1, .data = 2, .dtype = F32};
    job.strategy = TRIREME_STRATEGY_DATA_PARALLEL; /* each rank has all pieces */
    run_job(&job, tell_own_rule);
}

static void what_is_no_number_stays_in_its_group(void **state) {
    (void)state;
    const double spoils[] = {(double)INFINITY, -(double)INFINITY, (double)NAN};
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        for (size_t i = 0; i < 3; ++i) {
            static struct job job;
            job = (struct job){.strategy = strategy, .tensor = 1, .data = 3, .dtype = F64};
            job.spoiled = spoils[i];
            train_and_check(&job);
            assert_true(isnan(job.norms[0][0][1]) && !isfinite(job.values[0][7]));
            if (ranks_use_transport()) continue;
            job.tensor = 2;
            job.data = 2;
            train_and_check(&job);
        }
    }
}

static void be_refused(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, all, job);
    trireme_optimizer *optimizer = NULL;
    trireme_optimizer_options rule = rule_of(NULL, 2);
#define REFUSED(status, words)                                                          \
    do {                                                                                \
        EXPECT_STATUS(v, status, trireme_optimizer_create(model, &rule, &optimizer));   \
        if (!says(words)) EXPECT_STATUS(v, TRIREME_OK, status); /* shows the message */ \
        EXPECT(v, optimizer == NULL);                                                   \
    } while (0)
    rule.groups = NULL;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.groups is NULL, but options.group_count is 2");
    rule = rule_of(NULL, 2);
    rule.group_count = 0;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.groups is set, but options.group_count is 0");
    rule = rule_of(NULL, GROUPS);
    groups_of(&rule, GROUPS)[0].struct_size = 4;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.groups[0].struct_size is 4");
    rule = rule_of(NULL, GROUPS);
    groups_of(&rule, GROUPS)[1].struct_size += 8;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.groups[1].struct_size");
    static const double zeros[1025];
    rule = rule_of(zeros, 1025);
    REFUSED(TRIREME_ERROR_UNSUPPORTED, "options.group_count 1025 is above 1024");
    double numbers[GROUPS];
    const double wrong[] = {-1, (double)NAN, (double)INFINITY};
    for (size_t i = 0; i < 3; ++i) {
        memcpy(numbers, kMaxNorms, sizeof numbers);
        numbers[4] = wrong[i];
        rule = rule_of(numbers, GROUPS);
        REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.groups[4].max_norm");
        rule = rule_of(kMaxNorms, GROUPS);
        set_group_rates(&rule, numbers);
        REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.groups[4].rate_factor");
        rule = rule_of(NULL, GROUPS);
        set_group_decays(&rule, numbers);
        REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.groups[4].weight_decay");
    }
    rule = rule_of(NULL, GROUPS);
    rule.kind = TRIREME_RULE_USER;
    user_rule_of(&rule)->update = note_rate;
    set_group_decays(&rule, kDecays);
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "weight_decay means nothing to user");
    rule = rule_of(NULL, 3);
    set_group_rates(&rule, kFactors);
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT,
            "parameter_group 3 of parameter \"none\", but options.group_count is 3");
    rule = rule_of(NULL, GROUPS);
    set_group_rates(&rule, kFactors);
    rule.norm_ranks = all;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.norm_ranks means nothing");
    for (int i = 0; i < GROUPS; ++i) numbers[i] = 1e200;
    rule = rule_of(NULL, GROUPS);
    rule.learning_rate = 1e200;
    set_group_rates(&rule, numbers);
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "of a group is not finite");
    rule = rule_of(kMaxNorms, GROUPS);
    clipping_of(&rule)->max_norm = 1;
    REFUSED(TRIREME_ERROR_UNSUPPORTED, ".max_norm with options.clipping.max_norm");
    rule = rule_of(kMaxNorms, GROUPS);
    rule.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
    REFUSED(TRIREME_ERROR_UNSUPPORTED, "TRIREME_OPTIMIZER_FLAG_ONE_SWEEP with clipping");
    rule = rule_of(kMaxNorms, 3);
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT,
            "parameter_group 3 of parameter \"none\", but options.group_count is 3");
    rule = rule_of(NULL, 0);
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "but options.group_count is 0");
    clipping_of(&rule)->max_norm = 1;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "but options.group_count is 0");
    /* Not the same on all ranks: the last one has other groups, or none. */
    const bool other = rank == 1;
    rule = rule_of(kMaxNorms, other ? 4 : GROUPS);
    REFUSED(TRIREME_ERROR_MISMATCH, "group_count is 5 on rank 0 and 4 on rank 1");
    rule = rule_of(other ? NULL : kMaxNorms, other ? 0 : GROUPS);
    REFUSED(TRIREME_ERROR_MISMATCH, "group_count is 5 on rank 0 and 0 on rank 1");
    memcpy(numbers, kMaxNorms, sizeof numbers);
    if (other) numbers[1] = 7;
    rule = rule_of(numbers, GROUPS);
    REFUSED(TRIREME_ERROR_MISMATCH, "groups[1].max_norm is 0.75 on rank 0 and 7 on rank 1");
    rule = rule_of(NULL, GROUPS);
    set_group_rates(&rule, numbers);
    REFUSED(TRIREME_ERROR_MISMATCH, "groups[1].rate_factor is 0.75 on rank 0 and 7 on rank 1");
    rule = rule_of(NULL, GROUPS);
    set_group_decays(&rule, numbers);
    REFUSED(TRIREME_ERROR_MISMATCH, "groups[1].weight_decay is 0.75 on rank 0 and 7 on rank 1");
    /* A default is a number like any other. */
    rule = rule_of(NULL, GROUPS);
    if (other) set_group_rates(&rule, kFactors);
    REFUSED(TRIREME_ERROR_MISMATCH, "groups[1].rate_factor is 1 on rank 0 and");
#undef REFUSED
    /* All of that left the model as it was. */
    rule = rule_of(kMaxNorms, GROUPS);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    double norm = 5;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_get_group_norm(optimizer, 0, &norm));
    EXPECT(v, says("no step was made"));
    backward(v, job, model, 0, rank, 2, 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_get_group_norm(optimizer, 0, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_get_group_norm(optimizer, GROUPS, &norm));
    EXPECT(v, says("group 5 is not below group_count 5"));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_get_gradient_norm(optimizer, &norm));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_optimizer_get_group_norm(NULL, 0, &norm));
    EXPECT(v, norm == 5);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_group_norm(optimizer, GROUPS - 1, &norm));
    EXPECT(v, norm > 0 && norm != 5);
    trireme_optimizer_destroy(optimizer);
    /* An optimizer may clip all groups together. */
    rule = rule_of(NULL, GROUPS);
    clipping_of(&rule)->max_norm = 1;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    backward(v, job, model, 1, rank, 2, 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    norm = 5;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_get_group_norm(optimizer, 0, &norm));
    EXPECT(v, says("without a max_norm in options.groups") && norm == 5);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO1, .tensor = 1, .data = 2, .dtype = F32};
    run_job(&job, be_refused);
}

static void differ_over_a_mesh(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_communicator *data = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_split(all, rank % 2, rank, NULL, &data));
    trireme_model *const model = make(v, data, job);
    double numbers[GROUPS];
    memcpy(numbers, kMaxNorms, sizeof numbers);
    if (rank % 2 == 1) numbers[2] = 3;
    trireme_optimizer *optimizer = NULL;
    trireme_optimizer_options rule = rule_of(numbers, GROUPS);
    rule.norm_ranks = all;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(v, says("groups[2].max_norm is 0 on rank 0 and 3 on rank 1") && optimizer == NULL);
    rule = rule_of(kMaxNorms, GROUPS);
    rule.norm_ranks = all;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    /* One of the two models has a group too few; both are told. */
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    trireme_model *other = NULL;
    optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(data, &options, &other));
    EXPECT_STATUS(v, TRIREME_OK, add(other, "w", 3, F32, rank % 2 == 1 ? GROUPS : 0, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(other));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_create(other, &rule, &optimizer));
    EXPECT(v, says(rank % 2 == 1 ? "parameter_group 5 of parameter \"w\"" : "rank 1 answered"));
    EXPECT(v, optimizer == NULL);
    rule = rule_of(NULL, 0);
    clipping_of(&rule)->max_norm = 1;
    rule.norm_ranks = all;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_create(other, &rule, &optimizer));
    EXPECT(v, says(rank % 2 == 1 ? "but options.group_count is 0" : "rank 1 answered"));
    EXPECT(v, optimizer == NULL);
    trireme_model_destroy(other);
    trireme_communicator_destroy(data);
}

static void models_of_a_mesh_agree_on_the_groups(void **state) {
    (void)state;
    if (ranks_use_transport()) skip();
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO2, .tensor = 2, .data = 2, .dtype = F32};
    run_job(&job, differ_over_a_mesh);
}

static void register_otherwise(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO1;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(all, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "w", 3, F32, 1 + (uint32_t)rank, 0));
    trireme_parameter_options alias = TRIREME_PARAMETER_OPTIONS_INIT;
    const uint64_t extent = 3;
    alias.name = "alias";
    alias.tied_to = "w";
    alias.dtype = F32;
    alias.dimensions = 1;
    alias.shape = &extent;
    alias.parameter_group = 7;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_add_parameter(model, &alias, NULL));
    EXPECT(v, says("options.parameter_group of parameter \"alias\" is 7"));
    alias.parameter_group = 1 + (uint32_t)rank;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &alias, NULL));
    alias.name = "another";
    alias.parameter_group = 0; /* that of "w" */
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &alias, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    EXPECT(v, says("in parameter_group 1 on rank 0") && says("in parameter_group 2 on rank 1"));
    trireme_model_destroy(model);
}

static void ranks_agree_on_the_groups_of_parameters(void **state) {
    (void)state;
    static struct job job;
    job = (struct job){.tensor = 2, .data = 1};
    run_job(&job, register_otherwise);
}

/* Most groups there can be, under a limit that the words for their norms are just above. */
static void keep_to_a_limit(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    for (uint64_t less = 0; less < 2; ++less) {
        static uint64_t needed[2]; /* each rank has one */
        trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
        options.strategy = TRIREME_STRATEGY_ZERO1;
        options.memory_limit_bytes = less == 0 ? 1u << 30 : needed[rank] - 1;
        trireme_model *model = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(all, &options, &model));
        EXPECT_STATUS(v, TRIREME_OK, add(model, "w", 4, F32, 1023, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
        static const double limits[1024] = {1}; /* one suffices for all to have a norm */
        trireme_optimizer_options rule = rule_of(limits, 1024);
        trireme_optimizer *optimizer = NULL;
        EXPECT_STATUS(v, less == 0 ? TRIREME_OK : TRIREME_ERROR_OUT_OF_MEMORY,
                      trireme_optimizer_create(model, &rule, &optimizer));
        trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
        EXPECT(v, memory.planned_working == memory.allocated_working);
        if (less == 0) {
            needed[rank] = memory.planned_parameters + memory.planned_gradients +
                           memory.planned_working + memory.planned_optimizer_state;
            EXPECT(v, memory.planned_working >= UINT64_C(1024) * 552);
            const float ones[4] = {1, 1, 1, 1};
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, ones, 4, F32, 0));
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
            double norm = 0;
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_group_norm(optimizer, 1023, &norm));
            EXPECT(v, norm == 2);
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_group_norm(optimizer, 1022, &norm));
            EXPECT(v, norm == 0);
        }
        trireme_optimizer_destroy(optimizer);
        trireme_model_destroy(model);
    }
}

static void norms_of_groups_count_in_the_memory_limit(void **state) {
    (void)state;
    static struct job job;
    job = (struct job){.tensor = 2, .data = 1};
    run_job(&job, keep_to_a_limit);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_clip_as_in_one_process),
        cmocka_unit_test(beside_other_features_groups_are_the_same),
        cmocka_unit_test(a_mesh_clips_groups_as_one_process),
        cmocka_unit_test(groups_have_their_own_rates_and_decays),
        cmocka_unit_test(a_rule_of_the_caller_is_told_the_rate_of_its_group),
        cmocka_unit_test(what_is_no_number_stays_in_its_group),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(models_of_a_mesh_agree_on_the_groups),
        cmocka_unit_test(ranks_agree_on_the_groups_of_parameters),
        cmocka_unit_test(norms_of_groups_count_in_the_memory_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
