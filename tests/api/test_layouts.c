/*
 * Where shards lie and when they move: buckets in the order of gradients, copies of ranks that are
 * not neighbours, units that stay gathered, shards of whole rows. Every training here must give the
 * bits of plain loops over one vector.
 */
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

#define MOST_RANKS 8
#define MOST_LEAVES 6
#define STEPS 3
#define F32 TRIREME_DTYPE_F32

/* ---- the model: odd lengths, several parameters in a unit, nothing, a scalar ---- */

static const struct {
    const char *name, *unit_name;
    int unit, first, count;
    uint32_t dimensions;
    uint64_t shape[3];
} kParameters[] = {
    {"a", NULL, 0, 0, 35, 2, {7, 5}},     {"b", "layer", 1, 35, 12, 2, {3, 4}},
    {"c", "layer", 1, 47, 5, 1, {5}},     {"n", "layer", 1, 52, 0, 2, {0, 9}},
    {"s", NULL, 2, 52, 1, 0, {0}},        {"w", NULL, 3, 53, 33, 2, {11, 3}},
    {"v", NULL, 4, 86, 24, 3, {2, 3, 4}}, {"z", NULL, 5, 110, 1, 1, {1}},
};
enum { PARAMETERS = sizeof kParameters / sizeof kParameters[0], UNITS = 6, ELEMENTS = 111 };

enum order { BACKWARD, FORWARD, ROTATED }; /* of gradients; ROTATED: another one on every rank */

struct job {
    trireme_strategy strategy;
    int world_size;
    int leaves; /* 0: ordinary, with one micro-batch a step */
    enum order order;
    uint32_t flags;
    uint32_t shard_ranks, shard_stride, reshard_ranks;
    int32_t share;
    uint64_t minimum_unit_bytes;
    bool absent; /* rank 0 has no data in the first step */
    int kind;
    float values[MOST_RANKS][ELEMENTS];
    trireme_model_info infos[MOST_RANKS];
    trireme_model_memory memories[MOST_RANKS];
    trireme_model_statistics statistics[MOST_RANKS][STEPS]; /* after each step */
    int owners[MOST_RANKS][ELEMENTS];                       /* 1 where a rank owns an element */
    struct verdict verdicts[MOST_RANKS];
};

static void describe(const struct job *job) {
    print_error(
        "%s, %d ranks, leaves %d, order %d, flags %u, shard_ranks %u, shard_stride %u, "
        "share %d, minimum_unit_bytes %d, absent %d, reshard_ranks %u\n",
        trireme_strategy_name(job->strategy), job->world_size, job->leaves, (int)job->order,
        job->flags, job->shard_ranks, job->shard_stride, (int)job->share,
        (int)job->minimum_unit_bytes, job->absent, job->reshard_ranks);
}

/* ---- plain loops ---- */

static float initial(int i) {
    return (float)((i * 29) % 31) * 0.11F - 1.3F;
}

static float gradient(const float *p, int i, int leaf) {
    const float target = (float)((i * 37 + leaf * 11) % 19) * 0.37F - 2.9F;
    const float slope = (float)((i * 5) % 7) * 0.21F + 0.3F;
    return (p[i] - target) * slope + p[(i * 7 + 3) % ELEMENTS] * 0.0625F;
}

/* Pairs, pairs of pairs, and so on; who has no partner moves up alone. */
static float tree_sum(float *sums, int count) {
    for (; count > 1; count = (count + 1) / 2) {
        for (int k = 0; k < (count + 1) / 2; ++k) {
            sums[k] = 2 * k + 1 < count ? sums[2 * k] + sums[2 * k + 1] : sums[2 * k];
        }
    }
    return sums[0];
}

static void expect(const struct job *job, float *p) {
    float m[ELEMENTS] = {0}, g[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) p[i] = initial(i);
    for (int step = 0; step < STEPS; ++step) {
        for (int i = 0; i < ELEMENTS; ++i) {
            const int first = job->absent && step == 0 ? 1 : 0;
            if (job->leaves > 0) {
                float sums[MOST_LEAVES];
                for (int leaf = 0; leaf < job->leaves; ++leaf) sums[leaf] = gradient(p, i, leaf);
                g[i] = tree_sum(sums, job->leaves) / (float)job->leaves;
                continue;
            }
            g[i] = gradient(p, i, first);
            for (int rank = first + 1; rank < job->world_size; ++rank) {
                g[i] += gradient(p, i, rank);
            }
            g[i] /= (float)(job->world_size - first);
        }
        for (int i = 0; i < ELEMENTS; ++i) {
            m[i] = step == 0 ? g[i] : 0.9F * m[i] + g[i];
            p[i] -= 0.05F * m[i];
        }
    }
}

/* ---- the library ---- */

static trireme_model_options options_of(const struct job *job) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    options.leaves = (uint32_t)job->leaves;
    options.flags = job->flags | (job->absent ? TRIREME_MODEL_FLAG_UNEVEN : 0);
    shards_of(&options)->ranks = job->shard_ranks;
    shards_of(&options)->stride = job->shard_stride;
    units_of(&options)->reshard_ranks = job->reshard_ranks;
    shards_of(&options)->share = job->share;
    buckets_of(&options)->bytes = 1;
    units_of(&options)->minimum_bytes = job->minimum_unit_bytes;
    return options;
}

static trireme_model *make_model(struct verdict *v, trireme_communicator *communicator,
                                 const trireme_model_options *options, trireme_status sealed) {
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, options, &model));
    for (int i = 0; i < PARAMETERS; ++i) {
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = kParameters[i].name;
        parameter.unit = kParameters[i].unit_name;
        parameter.dtype = F32;
        parameter.dimensions = kParameters[i].dimensions;
        parameter.shape = kParameters[i].shape;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, sealed, trireme_model_seal(model));
    return model;
}

static trireme_optimizer *make_optimizer(struct verdict *v, trireme_model *model) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    options.learning_rate = 0.05;
    set_momentum(&options, 0.9);
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    return optimizer;
}

static void read_unit(struct verdict *v, trireme_model *model, int unit, float *p) {
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, (uint64_t)unit));
    for (int i = 0; i < PARAMETERS; ++i) {
        void *data = NULL;
        if (kParameters[i].unit != unit || kParameters[i].count == 0) continue;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_get_parameter_data(model, (uint64_t)i, &data, NULL));
        if (data != NULL) {
            memcpy(p + kParameters[i].first, data, (size_t)kParameters[i].count * sizeof *p);
        }
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, (uint64_t)unit));
}

static void
hand_in(struct verdict *v, trireme_model *model, const float *p, int parameter, int leaf) {
    float values[ELEMENTS];
    const int count = kParameters[parameter].count;
    for (int i = 0; i < count; ++i) {
        values[i] = gradient(p, kParameters[parameter].first + i, leaf);
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gradient_ready(model, (uint64_t)parameter, values, (uint64_t)count,
                                               F32));
}

/* `leaf` is -1 on a rank that has none: it gathers with the others. */
static void backward(const struct job *job, struct verdict *v, trireme_model *model, const float *p,
                     int rank, int leaf) {
    float again[ELEMENTS];
    if (leaf >= 0) EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    for (int k = 0; k < UNITS && job->order != ROTATED; ++k) {
        const int unit = job->order == FORWARD ? k : UNITS - 1 - k;
        read_unit(v, model, unit, again);
        for (int i = 0; i < PARAMETERS; ++i) {
            const int parameter = job->order == FORWARD ? i : PARAMETERS - 1 - i;
            if (leaf < 0 || kParameters[parameter].unit != unit) continue;
            const int first = kParameters[parameter].first;
            EXPECT(v, memcmp(again + first, p + first,
                             (size_t)kParameters[parameter].count * sizeof *p) == 0);
            hand_in(v, model, p, parameter, leaf);
        }
    }
    for (int i = 0; i < PARAMETERS && job->order == ROTATED && leaf >= 0; ++i) {
        hand_in(v, model, p, (i * 3 + rank) % PARAMETERS, leaf);
    }
    if (leaf >= 0) EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
}

static void
mark_owned(struct job *job, struct verdict *v, const trireme_optimizer *optimizer, int rank) {
    uint64_t ranges = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &ranges));
    for (uint64_t i = 0; i < ranges; ++i) {
        trireme_state_range range = TRIREME_STATE_RANGE_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, i, &range));
        if (range.kind != TRIREME_STATE_KIND_PARAMETER) continue;
        for (uint64_t k = range.first; k < range.first + range.count; ++k) {
            ++job->owners[rank][kParameters[range.parameter].first + (int)k];
        }
    }
}

static void train(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const trireme_model_options options = options_of(job);
    trireme_model *const model = make_model(v, communicator, &options, TRIREME_OK);
    float p[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) p[i] = initial(i);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(model, p, ELEMENTS, F32, 0));
    trireme_optimizer *const optimizer = make_optimizer(v, model);
    job->infos[rank] = (trireme_model_info)TRIREME_MODEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_info(model, &job->infos[rank]));
    mark_owned(job, v, optimizer, rank);
    for (int step = 0; step < STEPS; ++step) {
        const uint32_t passes = job->leaves > 0 ? job->infos[rank].micro_batches : 1;
        for (uint32_t pass = 0; pass < passes; ++pass) {
            uint32_t leaf = (uint32_t)rank;
            if (job->leaves > 0) {
                EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_leaf(model, pass, &leaf));
            }
            for (int unit = 0; unit < UNITS; ++unit) read_unit(v, model, unit, p);
            if (job->absent && step == 0 && rank == 0) {
                EXPECT_STATUS(v, TRIREME_OK,
                              trireme_model_begin_backward(model, TRIREME_BACKWARD_FLAG_ABSENT));
                backward(job, v, model, p, rank, -1);
                EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
            } else {
                backward(job, v, model, p, rank, leaf == UINT32_MAX ? -1 : (int)leaf);
            }
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        job->statistics[rank][step] = (trireme_model_statistics)TRIREME_MODEL_STATISTICS_INIT;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_get_statistics(model, &job->statistics[rank][step]));
    }
    job->memories[rank] = (trireme_model_memory)TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &job->memories[rank]));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, job->values[rank], ELEMENTS, F32));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void run_job(struct job *job, rank_function *function) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    memset(job->owners, 0, sizeof job->owners);
    run_ranks(job->world_size, function, job);
    for (int rank = 0; rank < job->world_size; ++rank) {
        if (job->verdicts[rank].text[0] != 0) describe(job);
    }
    assert_verdicts(job->verdicts, job->world_size);
}

/* Trains; the bits, who owns what, and planned memory are checked for every kind of layout. */
static void check_training(struct job *job) {
    float expected[ELEMENTS];
    run_job(job, train);
    expect(job, expected);
    for (int rank = 0; rank < job->world_size; ++rank) {
        const trireme_model_memory *const memory = &job->memories[rank];
        for (int i = 0; i < ELEMENTS; ++i) {
            if (memcmp(&job->values[rank][i], &expected[i], sizeof expected[i]) == 0) continue;
            describe(job);
            print_error("element %d of rank %d is %.9g, not %.9g\n", i, rank,
                        (double)job->values[rank][i], (double)expected[i]);
            fail();
        }
        assert_int_equal(memory->allocated_parameters, memory->planned_parameters);
        assert_int_equal(memory->allocated_gradients, memory->planned_gradients);
        assert_int_equal(memory->allocated_optimizer_state, memory->planned_optimizer_state);
        assert_int_equal(memory->allocated_working, memory->planned_working);
        if (job->order == BACKWARD && job->leaves == 0) {
            assert_int_equal(memory->sent_step_bytes, memory->planned_step_bytes);
        }
    }
    for (int i = 0; i < ELEMENTS; ++i) {
        int owners = 0;
        for (int rank = 0; rank < job->world_size; ++rank) owners += job->owners[rank][i];
        assert_int_equal(owners, 1);
    }
}

static const int kWorlds[] = {1, 2, 3, 4, 5, 8};
#define FOR_EACH_WORLD(job) \
    for (int w_ = 0; w_ < (is_quick() ? 4 : 6) && ((job)->world_size = kWorlds[w_], true); ++w_)
#define FOR_EACH_STRATEGY(job)                             \
    for ((job)->strategy = TRIREME_STRATEGY_DATA_PARALLEL; \
         (job)->strategy <= TRIREME_STRATEGY_ZERO3; ++(job)->strategy)

/* Reproducible or not, by turns, so that each world and each strategy meets both. */
static int leaves_by_turns(int turn) {
    return turn % 2 == 0 ? MOST_LEAVES : 0;
}

/* ---- the order of buckets ---- */

/* Gradients in the order of registration: all buckets wait for the last one in the first step, and
 * in none after it, unless the order is fixed. */
static void buckets_follow_the_gradients_after_the_first_step(void **state) {
    (void)state;

    for (uint32_t flags = 0; flags <= TRIREME_MODEL_FLAG_FIXED_ORDER;
         flags += TRIREME_MODEL_FLAG_FIXED_ORDER) {
        struct job job = {.order = FORWARD,
                          .flags = flags,
                          .minimum_unit_bytes = 1,
                          .share = TRIREME_SHARE_NEVER};
        FOR_EACH_WORLD(&job) FOR_EACH_STRATEGY(&job) {
            job.leaves = leaves_by_turns(job.world_size + (int)job.strategy);
            check_training(&job);
            /* With a slot for each bucket, or the gradients whole, none needs more memory. */
            const bool slots = job.strategy >= TRIREME_STRATEGY_ZERO2 &&
                               (job.leaves == 0 || job.world_size <= job.leaves);
            for (int rank = 0; rank < job.world_size; ++rank) {
                const trireme_model_statistics *const s = job.statistics[rank];
                assert_int_equal(job.infos[rank].buckets, 6);
                assert_true((s[0].extra_buckets > 0) == slots);
                for (int step = 1; step < STEPS; ++step) {
                    const uint64_t more = s[step].extra_buckets - s[step - 1].extra_buckets;
                    assert_true((more > 0) == (slots && flags != 0));
                }
                assert_int_equal(s[0].moved_buckets, flags == 0 ? 6 : 0);
                assert_int_equal(s[2].moved_buckets, flags == 0 ? 6 : 0);
            }
        }
    }
}

/* The usual order stays; and where each rank has another one, rank 0's is taken by all. */
static void ranks_agree_on_one_order(void **state) {
    (void)state;

    struct job job = {.minimum_unit_bytes = 1, .share = TRIREME_SHARE_NEVER};
    FOR_EACH_WORLD(&job) FOR_EACH_STRATEGY(&job) {
        job.order = BACKWARD;
        job.leaves = leaves_by_turns(job.world_size + (int)job.strategy);
        check_training(&job);
        for (int rank = 0; rank < job.world_size; ++rank) {
            assert_int_equal(job.statistics[rank][2].moved_buckets, 0);
            assert_int_equal(job.statistics[rank][2].extra_buckets, 0);
        }
        job.order = ROTATED;
        job.leaves = MOST_LEAVES - job.leaves;
        check_training(&job);
        for (int rank = 0; rank < job.world_size; ++rank) {
            /* Units 0, 2, 3 and 4 of parameters 0, 4, 5, 6 change places; 0 3 6 1 4 7 2 5. */
            assert_int_equal(job.statistics[rank][0].moved_buckets,
                             job.statistics[0][0].moved_buckets);
            assert_true(job.statistics[rank][0].moved_buckets > 0);
        }
    }
}

/* Rank 0 has shown no order in a step without data. */
static void the_order_is_learnt_when_rank_0_has_data(void **state) {
    (void)state;
    struct job job = {.order = FORWARD,
                      .absent = true,
                      .minimum_unit_bytes = 1,
                      .share = TRIREME_SHARE_NEVER};
    for (job.world_size = 2; job.world_size <= 4; ++job.world_size) {
        FOR_EACH_STRATEGY(&job) {
            check_training(&job);
            for (int rank = 0; rank < job.world_size; ++rank) {
                assert_int_equal(job.statistics[rank][0].moved_buckets, 0);
                assert_int_equal(job.statistics[rank][1].moved_buckets, 6);
            }
        }
    }
}

/* A step that is discarded teaches nothing, and the flat way follows what hooks have shown. */
static void discard_then_learn(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const trireme_model_options options = options_of(job);
    trireme_model *const model = make_model(v, communicator, &options, TRIREME_OK);
    trireme_optimizer *const optimizer = make_optimizer(v, model);
    float p[ELEMENTS] = {0};
    backward(job, v, model, p, rank, rank);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_discard_gradients(model));
    trireme_model_statistics s = TRIREME_MODEL_STATISTICS_INIT;
    for (int step = 0; step < 2; ++step) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, p, ELEMENTS, F32, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_statistics(model, &s));
        EXPECT(v, s.moved_buckets == 0);
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void learn_then_flat(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const trireme_model_options options = options_of(job);
    trireme_model *const model = make_model(v, communicator, &options, TRIREME_OK);
    trireme_optimizer *const optimizer = make_optimizer(v, model);
    float p[ELEMENTS] = {0};
    trireme_model_statistics first = TRIREME_MODEL_STATISTICS_INIT;
    trireme_model_statistics last = TRIREME_MODEL_STATISTICS_INIT;
    backward(job, v, model, p, rank, rank);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_statistics(model, &first));
    EXPECT(v, first.moved_buckets == 6);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, p, ELEMENTS, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_statistics(model, &last));
    EXPECT(v, last.extra_buckets == first.extra_buckets);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void only_steps_that_were_made_teach_an_order(void **state) {
    (void)state;
    struct job job = {.world_size = 3, .minimum_unit_bytes = 1, .share = TRIREME_SHARE_NEVER};
    FOR_EACH_STRATEGY(&job) {
        job.order = FORWARD;
        run_job(&job, learn_then_flat);
    }
    FOR_EACH_STRATEGY(&job) {
        job.order = ROTATED; /* never read again: no gathers that ranks could differ in */
        run_job(&job, discard_then_learn);
    }
}

/* ---- copies of ranks that are not neighbours ---- */

static const struct {
    int world_size;
    uint32_t shard_ranks, shard_stride;
} kMeshes[] = {{1, 1, 1}, {2, 2, 1}, {3, 1, 3}, {4, 2, 2}, {4, 1, 2},
               {8, 2, 4}, {8, 4, 2}, {8, 2, 2}, {6, 3, 2}, {6, 2, 3}};

static void copies_lie_a_stride_apart(void **state) {
    (void)state;
    for (int share = TRIREME_SHARE_AUTO; share <= TRIREME_SHARE_NEVER; share += 2) {
        for (size_t m = 0; m < sizeof kMeshes / sizeof kMeshes[0]; ++m) {
            struct job job = {.strategy = TRIREME_STRATEGY_HYBRID_SHARD,
                              .world_size = kMeshes[m].world_size,
                              .shard_ranks = kMeshes[m].shard_ranks,
                              .shard_stride = kMeshes[m].shard_stride,
                              .leaves = leaves_by_turns((int)m / 2 + share / 2),
                              .minimum_unit_bytes = m % 2 == 0 ? 1 : 200,
                              .share = share};
            check_training(&job);
            /* Rank r keeps part (r / stride) mod S of each group; each of the units with one
             * byte as the minimum. */
            for (int rank = 0; rank < job.world_size && m % 2 == 0; ++rank) {
                const int parts = (int)job.shard_ranks;
                const int part = rank / (int)job.shard_stride % parts;
                uint64_t held = 0;
                static const int kUnits[UNITS] = {35, 17, 1, 33, 24, 1};
                for (int unit = 0; unit < UNITS; ++unit) {
                    held += (uint64_t)(kUnits[unit] / parts + (part < kUnits[unit] % parts));
                }
                assert_int_equal(job.memories[rank].planned_parameters, 4 * held);
            }
        }
    }
}

static void refuse_strides(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    struct {
        trireme_strategy strategy;
        uint32_t shard_ranks, shard_stride;
        const char *says;
    } const kWrong[] = {
        {TRIREME_STRATEGY_ZERO3, 0, 2, "options.shards.stride 2 is for"},
        {TRIREME_STRATEGY_HYBRID_SHARD, 2, 3, "options.shards.stride 3 does not divide the 2"},
        {TRIREME_STRATEGY_HYBRID_SHARD, 2, 4, "options.shards.stride 4 does not divide the 2"},
        {TRIREME_STRATEGY_HYBRID_SHARD, 4, 2, "options.shards.stride 2 does not divide the 1"},
        {TRIREME_STRATEGY_HYBRID_SHARD, 2, UINT32_MAX, "options.shards.stride 4294967295"},
        {TRIREME_STRATEGY_HYBRID_SHARD, 0, 2, "options.shards.stride 2 needs options.shards.ranks"},
    };
    trireme_model *model = NULL;
    for (size_t i = 0; i < sizeof kWrong / sizeof kWrong[0]; ++i) {
        trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
        options.strategy = kWrong[i].strategy;
        shards_of(&options)->ranks = kWrong[i].shard_ranks;
        shards_of(&options)->stride = kWrong[i].shard_stride;
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                      trireme_model_create(communicator, &options, &model));
        EXPECT(v, strstr(trireme_last_error(), kWrong[i].says) != NULL);
        EXPECT(v, model == NULL);
    }
    trireme_model_options options = options_of(job);
    shards_of(&options)->stride = rank == 3 ? 1 : 2;
    model = make_model(v, communicator, &options, TRIREME_ERROR_MISMATCH);
    EXPECT(v, strstr(trireme_last_error(), "shards.stride is 2 on rank 0 and 1 on rank 3") != NULL);
    trireme_model_destroy(model);
    /* The group does not mind. */
    shards_of(&options)->stride = 2;
    model = make_model(v, communicator, &options, TRIREME_OK);
    trireme_model_destroy(model);
}

static void strides_that_cannot_be_are_refused(void **state) {
    (void)state;
    struct job job = {.strategy = TRIREME_STRATEGY_HYBRID_SHARD,
                      .world_size = 4,
                      .shard_ranks = 2,
                      .minimum_unit_bytes = 1};
    run_job(&job, refuse_strides);
}

/* ---- units that stay gathered ---- */

static void kept_units_are_gathered_once_a_step(void **state) {
    (void)state;
    static const uint64_t kMinimum[] = {1, 200};

    for (int k = 0; k < 2; ++k) {
        struct job job = {.strategy = TRIREME_STRATEGY_ZERO3,
                          .flags = TRIREME_MODEL_FLAG_KEEP_GATHERED,
                          .minimum_unit_bytes = kMinimum[k],
                          .share = TRIREME_SHARE_NEVER};
        FOR_EACH_WORLD(&job) {
            job.strategy = TRIREME_STRATEGY_ZERO3;
            job.leaves = leaves_by_turns(job.world_size / 2 + k);
            job.shard_ranks = 0;
            check_training(&job);
            const uint64_t groups = job.infos[0].unit_groups;
            for (int rank = 0; rank < job.world_size; ++rank) {
                const trireme_model_statistics *const s = job.statistics[rank];
                for (int step = 0; step < STEPS; ++step) {
                    const uint64_t gathers = (uint64_t)(step + 1) * groups;
                    assert_int_equal(s[step].gathers, job.world_size > 1 ? gathers : 0);
                }
                assert_int_equal(s[2].peak_unit_groups, job.world_size > 1 ? groups : 0);
            }
            if (job.world_size % 2 != 0) continue;
            job.strategy = TRIREME_STRATEGY_HYBRID_SHARD;
            job.shard_ranks = 2;
            check_training(&job);
            assert_int_equal(job.statistics[1][2].gathers, 3 * groups);
        }
    }
}

static uint64_t gathers_of(struct verdict *v, const trireme_model *model) {
    trireme_model_statistics s = TRIREME_MODEL_STATISTICS_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_statistics(model, &s));
    return s.gathers;
}

static void keep_and_change(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const trireme_model_options options = options_of(job);
    trireme_model *const model = make_model(v, communicator, &options, TRIREME_OK);
    trireme_optimizer *const optimizer = make_optimizer(v, model);
    float p[ELEMENTS], q[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) p[i] = (float)i;
    for (int round = 0; round < 3; ++round) {
        p[0] = (float)round;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_broadcast_parameters(model, p, ELEMENTS, F32, 1));
        for (int pass = 0; pass < 2; ++pass) {
            for (int unit = 0; unit < UNITS; ++unit) read_unit(v, model, unit, q);
            EXPECT(v, memcmp(p, q, sizeof p) == 0);
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, q, ELEMENTS, F32));
            EXPECT(v, memcmp(p, q, sizeof p) == 0);
            EXPECT(v, gathers_of(v, model) == (uint64_t)(round + 1) * UNITS);
        }
    }
    /* Kept for the library; for the caller it is released. */
    void *data = NULL;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_model_get_parameter_data(model, 0, &data, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_release_unit(model, 0));
    EXPECT(v, data == NULL);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, p, ELEMENTS, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    read_unit(v, model, 0, q);
    for (int i = 0; i < 35; ++i) EXPECT(v, q[i] == p[i] - 0.05F * p[i]);
    EXPECT(v, gathers_of(v, model) == 3 * UNITS + 1);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_model_options wrong = options_of(job);
    for (wrong.strategy = TRIREME_STRATEGY_DATA_PARALLEL; wrong.strategy <= TRIREME_STRATEGY_ZERO2;
         ++wrong.strategy) {
        trireme_model *none = NULL;
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                      trireme_model_create(communicator, &wrong, &none));
        EXPECT(v, strstr(trireme_last_error(), "TRIREME_MODEL_FLAG_KEEP_GATHERED is for") != NULL);
    }
}

static void kept_units_are_those_of_the_last_change(void **state) {
    (void)state;
    struct job job = {.strategy = TRIREME_STRATEGY_ZERO3,
                      .flags = TRIREME_MODEL_FLAG_KEEP_GATHERED,
                      .minimum_unit_bytes = 1,
                      .share = TRIREME_SHARE_NEVER};
    for (job.world_size = 2; job.world_size <= 4; ++job.world_size) run_job(&job, keep_and_change);
}

/* All look at the parameters between steps, and then only some have data: those who follow hold
 * the same copies as those who train on, and gather no more than they do. */
static void look_and_follow(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const trireme_model_options options = options_of(job);
    trireme_model *const model = make_model(v, communicator, &options, TRIREME_OK);
    trireme_optimizer *const optimizer = make_optimizer(v, model);
    float p[ELEMENTS], q[ELEMENTS], ones[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) {
        p[i] = initial(i);
        ones[i] = 1;
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(model, p, ELEMENTS, F32, 0));
    for (int step = 0; step < (rank == 0 ? 3 : 1); ++step) {
        for (int unit = 0; unit < UNITS; ++unit) read_unit(v, model, unit, q);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, ones, ELEMENTS, F32, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        if (step > 0) continue;
        if (job->kind == 0) {
            for (int unit = 0; unit < UNITS; ++unit) read_unit(v, model, unit, q);
        } else {
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, q, ELEMENTS, F32));
        }
    }
    uint64_t followed = 77;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_join(optimizer, &followed));
    EXPECT(v, followed == (rank == 0 ? 0 : 2));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, q, ELEMENTS, F32));
    for (int i = 0; i < ELEMENTS; ++i) {
        float m = 0;
        for (int step = 0; step < 3; ++step) {
            m = step == 0 ? 1 : 0.9F * m + 1;
            p[i] -= 0.05F * m;
        }
        EXPECT(v, q[i] == p[i]);
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void who_follows_holds_what_who_trains_holds(void **state) {
    (void)state;
    struct job job = {.strategy = TRIREME_STRATEGY_ZERO3, .share = TRIREME_SHARE_NEVER};
    for (job.world_size = 2; job.world_size <= 4; ++job.world_size) {
        for (int i = 0; i < 8; ++i) {
            job.kind = i % 2;
            job.minimum_unit_bytes = i % 4 < 2 ? 1 : 1000000;
            job.flags = TRIREME_MODEL_FLAG_UNEVEN | (i < 4 ? 0 : TRIREME_MODEL_FLAG_KEEP_GATHERED);
            run_job(&job, look_and_follow);
        }
    }
}

/* ---- whole rows ---- */

static uint64_t row_of(int parameter) {
    if (kParameters[parameter].dimensions == 0) return 1;
    return (uint64_t)kParameters[parameter].count / kParameters[parameter].shape[0];
}

static void check_rows(const struct job *job) {
    for (int i = 0; i < PARAMETERS; ++i) {
        const uint64_t width = kParameters[i].count > 0 ? row_of(i) : 1;
        for (int k = 0; k < kParameters[i].count; ++k) {
            const int first = kParameters[i].first + k - k % (int)width;
            for (int rank = 0; rank < job->world_size; ++rank) {
                /* An element is where the first one of its row is. */
                assert_int_equal(job->owners[rank][kParameters[i].first + k],
                                 job->owners[rank][first]);
            }
        }
    }
    /* No rank is further from its even share than a row at each end, in each of the groups. */
    for (int rank = 0; rank < job->world_size; ++rank) {
        int owned = 0;
        for (int i = 0; i < ELEMENTS; ++i) owned += job->owners[rank][i];
        assert_true(owned <= ELEMENTS / job->world_size + UNITS * (12 + 1));
    }
}

static void shards_are_whole_rows(void **state) {
    (void)state;
    static const uint64_t kMinimum[] = {1, 200, 1 << 20};
    for (int k = 0; k < 3; ++k) {
        struct job job = {.flags = TRIREME_MODEL_FLAG_WHOLE_ROWS,
                          .minimum_unit_bytes = kMinimum[k],
                          .share = k == 1 ? TRIREME_SHARE_AUTO : TRIREME_SHARE_NEVER};
        FOR_EACH_WORLD(&job) FOR_EACH_STRATEGY(&job) {
            job.leaves = leaves_by_turns(job.world_size + (int)job.strategy + k);
            check_training(&job);
            check_rows(&job);
        }
        job.strategy = TRIREME_STRATEGY_HYBRID_SHARD;
        job.world_size = 8;
        for (job.shard_ranks = 2; job.shard_ranks <= 4; job.shard_ranks *= 2) {
            for (job.shard_stride = 1; job.shard_stride <= 2; ++job.shard_stride) {
                job.leaves = leaves_by_turns((int)job.shard_stride);
                check_training(&job);
                check_rows(&job);
            }
        }
    }
}

/* Without the flag a row is divided somewhere, so the test above looks at something. */
static void even_shards_divide_rows(void **state) {
    (void)state;
    struct job job = {.strategy = TRIREME_STRATEGY_ZERO3, .world_size = 4, .minimum_unit_bytes = 1};
    check_training(&job);
    assert_int_not_equal(job.owners[0][5], job.owners[0][9]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_follow_the_gradients_after_the_first_step),
        cmocka_unit_test(ranks_agree_on_one_order),
        cmocka_unit_test(the_order_is_learnt_when_rank_0_has_data),
        cmocka_unit_test(only_steps_that_were_made_teach_an_order),
        cmocka_unit_test(copies_lie_a_stride_apart),
        cmocka_unit_test(strides_that_cannot_be_are_refused),
        cmocka_unit_test(kept_units_are_gathered_once_a_step),
        cmocka_unit_test(kept_units_are_those_of_the_last_change),
        cmocka_unit_test(who_follows_holds_what_who_trains_holds),
        cmocka_unit_test(shards_are_whole_rows),
        cmocka_unit_test(even_shards_divide_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
