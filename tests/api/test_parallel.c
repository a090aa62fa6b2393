/*
 * Parallel objects: places, groups, stages, rows and cuts, each counted again by hand. Threads are
 * ranks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ranks.h"

enum { DATA, SHARD, TENSOR, PIPELINE, CONTEXT, EXPERT, AXES };
enum { MOST = 64 };

#define UNTOUCHED ((trireme_communicator *)(uintptr_t)0x5a5a)

struct job {
    int world_size;
    int32_t sizes[AXES];
    int32_t rest; /* the axis that gets the rest; -1: none */
    struct verdict verdicts[MOST];
    int64_t numbers[MOST][64];
};

static trireme_parallel_options options_of(const struct job *job) {
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    int32_t sizes[AXES];
    for (int axis = 0; axis < AXES; ++axis) {
        /* 0 and 1 say the same. */
        sizes[axis] = job->sizes[axis] == 1 && axis % 2 == 0 ? 0 : job->sizes[axis];
        if (axis == job->rest) sizes[axis] = TRIREME_PARALLEL_REST;
    }
    options.data = sizes[DATA];
    options.shard = sizes[SHARD];
    options.tensor = sizes[TENSOR];
    options.pipeline = sizes[PIPELINE];
    options.context = sizes[CONTEXT];
    options.expert = sizes[EXPERT];
    options.micro_batches = 3;
    return options;
}

/* The place of a rank, by counting through all of them: tensor is the innermost loop. */
static void place_of(const int32_t *sizes, int rank, int32_t at[AXES]) {
    static const int slowest_first[AXES] = {PIPELINE, DATA, SHARD, EXPERT, CONTEXT, TENSOR};
    memset(at, 0, sizeof *at * AXES);
    for (int count = 0; count < rank; ++count) {
        for (int i = AXES - 1; i >= 0; --i) {
            const int axis = slowest_first[i];
            if (++at[axis] < sizes[axis]) break;
            at[axis] = 0;
        }
    }
}

/* Of those along `axes`, ascending. */
static int ranks_along(const struct job *job, uint32_t axes, int rank, int32_t *ranks) {
    int32_t mine[AXES], at[AXES];
    int count = 0;
    place_of(job->sizes, rank, mine);
    for (int other = 0; other < job->world_size; ++other) {
        place_of(job->sizes, other, at);
        bool same = true;
        for (int axis = 0; axis < AXES; ++axis) {
            same = same && ((axes >> axis & 1) != 0 || at[axis] == mine[axis]);
        }
        if (same) ranks[count++] = other;
    }
    return count;
}

static bool
has_ranks(struct verdict *v, trireme_communicator *group, const int32_t *ranks, int count) {
    int32_t size = -1, found[MOST] = {0};
    EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_get_world_size(group, &size));
    EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_get_original_ranks(group, found, MOST));
    return size == count && memcmp(found, ranks, sizeof *ranks * (size_t)count) == 0;
}

static void
expect_info(struct verdict *v, const struct job *job, int rank, const trireme_parallel *parallel) {
    int32_t at[AXES], group[MOST];
    place_of(job->sizes, rank, at);
    trireme_parallel_info info = TRIREME_PARALLEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_info(parallel, &info));
    const int32_t sizes[AXES] = {info.data,     info.shard,   info.tensor,
                                 info.pipeline, info.context, info.expert};
    const int32_t mine[AXES] = {info.data_rank,     info.shard_rank,   info.tensor_rank,
                                info.pipeline_rank, info.context_rank, info.expert_rank};
    EXPECT(v, memcmp(sizes, job->sizes, sizeof sizes) == 0 && memcmp(mine, at, sizeof at) == 0);
    EXPECT(v, info.world_size == job->world_size && info.rank == rank);
    /* Readers are numbered in the order of their ranks. */
    int32_t readers = 0, reader = -1, other[AXES];
    for (int i = 0; i < job->world_size; ++i) {
        place_of(job->sizes, i, other);
        if (other[TENSOR] != 0 || other[PIPELINE] != 0 || other[CONTEXT] != 0) continue;
        if (other[DATA] == at[DATA] && other[SHARD] == at[SHARD] && other[EXPERT] == at[EXPERT]) {
            reader = readers;
        }
        ++readers;
    }
    EXPECT(v, info.readers == readers && info.reader == reader);
    EXPECT(v,
           info.gradient_ranks == ranks_along(job, TRIREME_PARALLEL_GROUP_GRADIENTS, rank, group));
    EXPECT(v, info.expert_gradient_ranks ==
                  ranks_along(job, TRIREME_PARALLEL_GROUP_EXPERT_GRADIENTS, rank, group));
    EXPECT(v, info.micro_batches == 3 && info.stages == (uint32_t)job->sizes[PIPELINE]);
    EXPECT(v, info.own_stages == 1);
    EXPECT(v, info.has_first_stage == (at[PIPELINE] == 0));
    EXPECT(v, info.has_last_stage == (at[PIPELINE] == job->sizes[PIPELINE] - 1));
    EXPECT(v, info.has_tensor == (job->sizes[TENSOR] > 1));
    const bool pipeline = job->sizes[PIPELINE] > 1;
    EXPECT(v, info.order == (pipeline ? TRIREME_PIPELINE_ORDER_1F1B : 0));
}

static void
expect_places(struct verdict *v, const struct job *job, const trireme_parallel *parallel) {
    for (int other = 0; other < job->world_size; ++other) {
        int32_t at[AXES], found[AXES] = {-1, -1, -1, -1, -1, -1}, back = -1;
        place_of(job->sizes, other, at);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_parallel_get_coordinates(parallel, other, found, AXES));
        EXPECT(v, memcmp(at, found, sizeof at) == 0);
        EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_rank(parallel, at, AXES, &back));
        EXPECT(v, back == other);
    }
}

static void expect_groups(struct verdict *v, const struct job *job, int rank,
                          const trireme_parallel *parallel, bool all_masks) {
    static const uint32_t made[] = {TRIREME_PARALLEL_AXIS_DATA,
                                    TRIREME_PARALLEL_AXIS_SHARD,
                                    TRIREME_PARALLEL_AXIS_TENSOR,
                                    TRIREME_PARALLEL_AXIS_PIPELINE,
                                    TRIREME_PARALLEL_AXIS_CONTEXT,
                                    TRIREME_PARALLEL_AXIS_EXPERT,
                                    TRIREME_PARALLEL_GROUP_GRADIENTS,
                                    TRIREME_PARALLEL_GROUP_EXPERT_GRADIENTS,
                                    TRIREME_PARALLEL_GROUP_ALL};
    int32_t ranks[MOST];
    for (size_t i = 0; i < sizeof made / sizeof made[0]; ++i) {
        trireme_communicator *group = NULL, *again = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_communicator(parallel, made[i], &group));
        EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_communicator(parallel, made[i], &again));
        EXPECT(v, group == again);
        EXPECT(v, has_ranks(v, group, ranks, ranks_along(job, made[i], rank, ranks)));
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(group, NULL));
    }
    for (uint32_t axes = 1; all_masks && axes <= TRIREME_PARALLEL_GROUP_ALL; axes += 7) {
        trireme_communicator *group = NULL;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_parallel_create_communicator(parallel, axes, NULL, &group));
        EXPECT(v, has_ranks(v, group, ranks, ranks_along(job, axes, rank, ranks)));
        trireme_communicator_destroy(group);
    }
}

/* The rows of a rank. The main thread compares those of all ranks. */
static void
read_rows(struct verdict *v, struct job *job, int rank, const trireme_parallel *parallel) {
    int64_t *const rows = job->numbers[rank];
    memset(rows, -1, sizeof job->numbers[rank]);
    for (uint32_t k = 0; k < 3; ++k) {
        uint64_t first = 99, count = 99;
        EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_rows(parallel, 61, k, &first, &count));
        EXPECT(v, first + count <= 61);
        for (uint64_t row = first; row < first + count && row < 61; ++row) {
            EXPECT(v, rows[row] == -1);
            rows[row] = k;
        }
    }
}

static void use(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const trireme_parallel_options options = options_of(job);
    trireme_parallel *parallel = NULL;
    if (!EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel))) {
        return;
    }
    expect_info(v, job, rank, parallel);
    expect_places(v, job, parallel);
    expect_groups(v, job, rank, parallel, job->world_size <= 8);
    read_rows(v, job, rank, parallel);
    trireme_parallel_destroy(parallel);
}

/* Each row is read once, by the ranks of one reader, in the order of parts. */
static void check_rows(const struct job *job) {
    int32_t at[AXES], readers = job->sizes[DATA] * job->sizes[SHARD] * job->sizes[EXPERT];
    for (int rank = 0; rank < job->world_size; ++rank) {
        place_of(job->sizes, rank, at);
        const int64_t reader =
            (at[DATA] * job->sizes[SHARD] + at[SHARD]) * job->sizes[EXPERT] + at[EXPERT];
        for (int row = 0; row < 61; ++row) {
            int64_t part = 0; /* the last one that begins at or before the row */
            while ((part + 1) * 61 / (readers * 3) <= row) ++part;
            const int64_t expected = part % readers == reader ? part / readers : -1;
            assert_int_equal(job->numbers[rank][row], expected);
        }
    }
}

static void ranks_are_where_counting_puts_them(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static const struct {
        int32_t sizes[AXES], rest;
    } shapes[] = {
        {{1, 1, 1, 1, 1, 1}, -1}, {{1, 1, 1, 1, 1, 1}, DATA},   {{2, 1, 1, 1, 1, 1}, DATA},
        {{1, 1, 2, 1, 1, 1}, -1}, {{1, 1, 1, 3, 1, 1}, -1},     {{1, 1, 1, 1, 3, 1}, CONTEXT},
        {{1, 2, 1, 1, 1, 2}, -1}, {{2, 1, 1, 1, 1, 2}, EXPERT}, {{5, 1, 1, 1, 1, 1}, -1},
        {{1, 1, 1, 5, 1, 1}, -1}, {{2, 1, 2, 2, 1, 1}, TENSOR}, {{1, 1, 1, 2, 2, 2}, PIPELINE},
        {{2, 2, 1, 1, 2, 1}, -1}, {{2, 1, 1, 1, 2, 2}, SHARD},  {{1, 2, 2, 1, 1, 2}, SHARD},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
        static struct job job;
        memset(&job, 0, sizeof job);
        job.world_size = 1;
        job.rest = shapes[i].rest;
        for (int axis = 0; axis < AXES; ++axis) {
            job.sizes[axis] = shapes[i].sizes[axis];
            job.world_size *= job.sizes[axis];
        }
        run_ranks(job.world_size, use, &job);
        assert_verdicts(job.verdicts, job.world_size);
        check_rows(&job);
    }
}

static void sixty_four_ranks_are_8_x_4_x_2(void **state) {
    (void)state;
    if (!ranks_make_groups() || ranks_use_transport() || is_quick()) skip();
    static struct job job;
    job = (struct job){.world_size = 64, .sizes = {8, 1, 4, 2, 1, 1}, .rest = DATA};
    run_ranks(job.world_size, use, &job);
    assert_verdicts(job.verdicts, job.world_size);
    check_rows(&job);
}

/* ---- stages and schedules ---- */

static const struct figures {
    trireme_pipeline_order order;
    int32_t ranks;
    uint32_t stages_per_rank, micro_batches;
    double makespan, span;
    uint64_t kept[4]; /* of each rank, in stages and micro-batches */
} all_figures[] = {
    {TRIREME_PIPELINE_ORDER_1F1B, 4, 1, 8, 33, 33, {4, 3, 2, 1}},
    {0, 4, 1, 8, 33, 33, {4, 3, 2, 1}},
    {TRIREME_PIPELINE_ORDER_GPIPE, 4, 1, 8, 33, 33, {8, 8, 8, 8}},
    {TRIREME_PIPELINE_ORDER_INTERLEAVED, 4, 2, 8, 28.5, 28.5, {11, 9, 7, 5}},
    {0, 4, 2, 8, 28.5, 28.5, {11, 9, 7, 5}},
    {TRIREME_PIPELINE_ORDER_ZB_H1, 4, 1, 8, 27, 27, {4, 4, 4, 4}},
    {TRIREME_PIPELINE_ORDER_ZB_H2, 4, 1, 8, 27, 24, {7, 7, 7, 7}},
    {TRIREME_PIPELINE_ORDER_ZB_V, 4, 2, 8, 25.5, 24, {8, 8, 8, 8}},
    {TRIREME_PIPELINE_ORDER_1F1B, 4, 1, 3, 18, 18, {3, 3, 2, 1}},
    {TRIREME_PIPELINE_ORDER_1F1B, 2, 1, 1, 6, 6, {1, 1}},
};

static const struct figures *figures;

/* Where stage `stage` lies: along a loop, or a V. */
static int32_t rank_of(const struct figures *f, uint32_t stage) {
    const uint32_t p = (uint32_t)f->ranks;
    if (f->order == TRIREME_PIPELINE_ORDER_ZB_V && stage >= p) return (int32_t)(2 * p - 1 - stage);
    return (int32_t)(stage % p);
}

static void make_pipeline(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.pipeline = figures->ranks;
    options.data = TRIREME_PARALLEL_REST;
    options.order = figures->order;
    options.stages_per_rank = figures->stages_per_rank;
    options.micro_batches = figures->micro_batches;
    trireme_parallel *parallel = NULL;
    if (!EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel))) {
        return;
    }
    trireme_parallel_info info = TRIREME_PARALLEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_info(parallel, &info));
    const uint32_t stages = (uint32_t)figures->ranks * figures->stages_per_rank;
    EXPECT(v, info.makespan == figures->makespan && info.span == figures->span);
    EXPECT(v, info.bubble == 1 - 3.0 * figures->micro_batches / figures->makespan);
    EXPECT(v, info.kept_micro_batches == figures->kept[info.pipeline_rank]);
    EXPECT(v, info.stages == stages && info.own_stages == figures->stages_per_rank);
    for (int32_t of = 0; of < figures->ranks; ++of) {
        uint32_t expected[8], found[8] = {0};
        uint64_t count = 0, all = 0;
        for (uint32_t stage = 0; stage < stages; ++stage) {
            if (rank_of(figures, stage) == of) expected[count++] = stage;
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_stages(parallel, of, found, 8, &all));
        EXPECT(v, all == count && memcmp(found, expected, sizeof *found * count) == 0);
        if (of == info.pipeline_rank) {
            EXPECT(v, info.has_first_stage == (expected[0] == 0));
            EXPECT(v, info.has_last_stage == (expected[count - 1] == stages - 1));
        }
    }
    /* The other ranks of this pipeline are world_size / p apart. */
    for (uint32_t stage = 0; stage < stages; ++stage) {
        int32_t found = -1;
        const int32_t step = info.world_size / figures->ranks;
        EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_stage_rank(parallel, stage, &found));
        EXPECT(v, found == rank % step + rank_of(figures, stage) * step);
    }
    /* trireme_pipeline_schedule_create() makes the same schedule. */
    trireme_pipeline_schedule *schedule = NULL, *own = NULL;
    trireme_pipeline_schedule_options same = TRIREME_PIPELINE_SCHEDULE_OPTIONS_INIT;
    same.order = info.order;
    same.ranks = (uint32_t)figures->ranks;
    same.stages_per_rank = figures->stages_per_rank;
    same.micro_batches = figures->micro_batches;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_schedule(parallel, &schedule));
    EXPECT_STATUS(v, TRIREME_OK, trireme_pipeline_schedule_create(&same, &own));
    char first[4096], second[4096];
    uint64_t length = 0;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_pipeline_schedule_write(schedule, TRIREME_PIPELINE_FORMAT_TEXT, NULL,
                                                  first, sizeof first, &length));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_pipeline_schedule_write(own, TRIREME_PIPELINE_FORMAT_TEXT, NULL, second,
                                                  sizeof second, &length));
    EXPECT(v, length < sizeof first && strcmp(first, second) == 0);
    trireme_pipeline_schedule_destroy(own);
    /* It outlives the object. */
    trireme_parallel_destroy(parallel);
    EXPECT_STATUS(v, TRIREME_OK, trireme_pipeline_schedule_check(schedule, NULL, NULL, NULL));
    /* As text it makes the same object. */
    options.order = 0;
    options.stages_per_rank = options.micro_batches = 0;
    options.schedule_text = first;
    trireme_parallel_info again = TRIREME_PARALLEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_info(parallel, &again));
    EXPECT(v, again.order == 0);
    again.order = info.order;
    EXPECT(v, memcmp(&again, &info, sizeof info) == 0);
    trireme_parallel_destroy(parallel);
    trireme_pipeline_schedule_destroy(schedule);
}

static void schedules_have_their_known_figures(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (size_t i = 0; i < sizeof all_figures / sizeof all_figures[0]; ++i) {
        figures = &all_figures[i];
        struct verdict verdicts[8] = {0};
        const int ranks = i % 3 == 0 ? 2 * figures->ranks : figures->ranks;
        run_ranks(ranks, make_pipeline, verdicts);
        assert_verdicts(verdicts, ranks);
    }
}

/* The best schedule for costs is within the limit, and no longer than 1F1B is. */
static void search(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    trireme_pipeline_stage_costs stages[3];
    for (int i = 0; i < 3; ++i) {
        stages[i] = (trireme_pipeline_stage_costs)TRIREME_PIPELINE_STAGE_COSTS_INIT;
        stages[i].forward = 1 + 0.25 * i;
        stages[i].input = 1;
        stages[i].weight = 1;
        stages[i].kept_bytes = stages[i].held_bytes = 10;
    }
    trireme_pipeline_costs costs = TRIREME_PIPELINE_COSTS_INIT;
    costs.stages = stages;
    costs.stage_count = 3;
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.pipeline = 3;
    options.micro_batches = 6;
    options.costs = &costs;
    options.activation_limit_bytes = 30;
    trireme_parallel *parallel = NULL;
    double makespan[2] = {0};
    for (int best = 0; best < 2; ++best) {
        options.order = best ? TRIREME_PIPELINE_ORDER_BEST : TRIREME_PIPELINE_ORDER_1F1B;
        EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));
        trireme_parallel_info info = TRIREME_PARALLEL_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_info(parallel, &info));
        makespan[best] = info.makespan;
        EXPECT(v, info.kept_micro_batches <= 3);
        trireme_parallel_destroy(parallel);
    }
    EXPECT(v, makespan[1] < makespan[0]);
    /* A byte less, and 1F1B is too large. */
    options.order = TRIREME_PIPELINE_ORDER_1F1B;
    options.activation_limit_bytes = 29;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_parallel_create(communicator, &options, &parallel));
    EXPECT(v, strstr(trireme_last_error(), "rank 0, action 2 (0F2)") != NULL);
}

static void the_best_schedule_is_within_the_limit(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct verdict verdicts[3] = {0};
    run_ranks(3, search, verdicts);
    assert_verdicts(verdicts, 3);
}

/* ---- cuts ---- */

enum { LAYERS = 9 };
static const double layer_seconds[LAYERS] = {3, 1, 4, 1, 5, 9, 2, 6, 5};
static const uint64_t layer_kept[LAYERS] = {2, 7, 1, 8, 2, 8, 1, 8, 2};

/* The slowest of three stages, by trying all cuts; stage s keeps 3 - s micro-batches. */
static double try_all(uint64_t limit) {
    double best = 1e9;
    for (int a = 1; a < LAYERS; ++a) {
        for (int b = a + 1; b < LAYERS; ++b) {
            double slowest = 0;
            bool fits = true;
            const int cuts[] = {0, a, b, LAYERS};
            for (int stage = 0; stage < 3; ++stage) {
                double seconds = 0;
                uint64_t kept = 0;
                for (int i = cuts[stage]; i < cuts[stage + 1]; ++i) {
                    seconds += layer_seconds[i];
                    kept += layer_kept[i] * (uint64_t)(3 - stage);
                }
                if (seconds > slowest) slowest = seconds;
                fits = fits && (limit == 0 || kept <= limit);
            }
            if (fits && slowest < best) best = slowest;
        }
    }
    return best;
}

static uint64_t cut_limit;

static void cut(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.pipeline = 3;
    options.data = TRIREME_PARALLEL_REST;
    options.micro_batches = 4;
    options.activation_limit_bytes = cut_limit;
    trireme_parallel *parallel = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));
    trireme_parallel_info info = TRIREME_PARALLEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_info(parallel, &info));
    trireme_pipeline_layer_costs layers[LAYERS];
    for (int i = 0; i < LAYERS; ++i) {
        /* A rank has measured its own layers, and one of two copies is slower. */
        const bool own = i / 3 == info.pipeline_rank;
        const bool slow = info.data_rank == i % info.data;
        layers[i] = (trireme_pipeline_layer_costs)TRIREME_PIPELINE_LAYER_COSTS_INIT;
        layers[i].seconds = own ? layer_seconds[i] * (slow ? 1 : 0.5) : 0;
        layers[i].kept_bytes = own && slow ? layer_kept[i] : 0;
    }
    uint64_t cuts[4] = {77, 77, 77, 77};
    double seconds = -1;
    const double expected = try_all(cut_limit);
    const bool possible = expected < 1e9;
    EXPECT_STATUS(v, possible ? TRIREME_OK : TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_parallel_partition(parallel, layers, LAYERS, cuts, 4, &seconds));
    if (possible) {
        EXPECT(v, seconds == expected && cuts[0] == 0 && cuts[3] == LAYERS);
        EXPECT(v, cuts[0] < cuts[1] && cuts[1] < cuts[2] && cuts[2] < cuts[3]);
        double slowest = 0;
        for (int stage = 0; stage < 3; ++stage) {
            double sum = 0;
            uint64_t kept = 0;
            for (uint64_t i = cuts[stage]; i < cuts[stage + 1]; ++i) {
                sum += layer_seconds[i];
                kept += layer_kept[i] * (uint64_t)(3 - stage);
            }
            if (sum > slowest) slowest = sum;
            EXPECT(v, cut_limit == 0 || kept <= cut_limit);
        }
        EXPECT(v, slowest == expected);
    } else {
        EXPECT(v, cuts[0] == 77 && seconds == -1);
    }
    for (int i = 0; i < 4; ++i) job->numbers[rank][i] = (int64_t)cuts[i];
    trireme_parallel_destroy(parallel);
}

static void all_ranks_get_the_fastest_cuts(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static const uint64_t limits[] = {0, 60, 50, 40, 33, 30, 20};
    int refused = 0;
    for (int ranks = 3; ranks <= 6; ranks += 3) {
        for (size_t i = 0; i < sizeof limits / sizeof limits[0]; ++i) {
            static struct job job;
            memset(&job, 0, sizeof job);
            cut_limit = limits[i];
            refused += try_all(cut_limit) == 1e9;
            run_ranks(ranks, cut, &job);
            assert_verdicts(job.verdicts, ranks);
            for (int rank = 1; rank < ranks; ++rank) {
                assert_memory_equal(job.numbers[rank], job.numbers[0], 4 * sizeof(int64_t));
            }
        }
    }
    assert_in_range(refused, 2, 10);
}

/* Along a V, a rank's two stages count together: the ends of the layers lie on rank 0. */
static void cut_along_a_v(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    static const double seconds[] = {1, 4, 2, 3, 3, 1};
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.pipeline = 2;
    options.micro_batches = 4;
    options.stages_per_rank = 2;
    options.order = TRIREME_PIPELINE_ORDER_ZB_V;
    trireme_parallel *parallel = NULL;
    trireme_pipeline_layer_costs layers[6];
    for (int i = 0; i < 6; ++i) {
        layers[i] = (trireme_pipeline_layer_costs)TRIREME_PIPELINE_LAYER_COSTS_INIT;
        layers[i].seconds = seconds[i];
        layers[i].kept_bytes = 1;
    }
    double best = 1e9;
    for (int a = 1; a < 4; ++a) {
        for (int b = a + 1; b < 5; ++b) {
            for (int c = b + 1; c < 6; ++c) {
                double of[2] = {0};
                for (int i = 0; i < 6; ++i) of[i >= a && i < c] += seconds[i];
                const double slowest = of[0] > of[1] ? of[0] : of[1];
                if (slowest < best) best = slowest;
            }
        }
    }
    uint64_t cuts[5] = {0};
    double found = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_partition(parallel, layers, 6, cuts, 5, &found));
    EXPECT(v, found == best);
    double own = 0;
    for (uint64_t i = 0; i < 6; ++i) {
        if ((i >= cuts[1] && i < cuts[3]) == (rank == 1)) own += seconds[i];
    }
    EXPECT(v, own <= best);
    trireme_parallel_destroy(parallel);
    /* A rank keeps 4 micro-batches at least once, of 1 layer at least. */
    options.activation_limit_bytes = 2;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_parallel_partition(parallel, layers, 6, cuts, 5, NULL));
    EXPECT(v, strstr(trireme_last_error(), "above activation_limit_bytes of 2") != NULL);
    trireme_parallel_destroy(parallel);
}

static void stages_of_a_v_count_together(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct verdict verdicts[2] = {0};
    run_ranks(2, cut_along_a_v, verdicts);
    assert_verdicts(verdicts, 2);
}

/* GPipe keeps all micro-batches of a step, however many: here 65. */
static void keep_many(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    static const double seconds[] = {1, 1, 1, 3};
    for (uint64_t limit = 129; limit <= 130; ++limit) {
        trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
        options.pipeline = 2;
        options.micro_batches = 65;
        options.order = TRIREME_PIPELINE_ORDER_GPIPE;
        options.activation_limit_bytes = limit;
        trireme_pipeline_layer_costs layers[4];
        for (int i = 0; i < 4; ++i) {
            layers[i] = (trireme_pipeline_layer_costs)TRIREME_PIPELINE_LAYER_COSTS_INIT;
            layers[i].seconds = seconds[i];
            layers[i].kept_bytes = i < 3;
        }
        trireme_parallel *parallel = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));
        uint64_t cuts[3] = {77, 77, 77};
        double slowest = 0;
        /* The fastest cut is behind layer 2, where rank 0 would keep 195 bytes. */
        EXPECT_STATUS(v, limit < 130 ? TRIREME_ERROR_INVALID_ARGUMENT : TRIREME_OK,
                      trireme_parallel_partition(parallel, layers, 4, cuts, 3, &slowest));
        EXPECT(v, cuts[1] == (limit < 130 ? 77 : 2) && slowest == (limit < 130 ? 0 : 4));
        trireme_parallel_destroy(parallel);
    }
}

static void cuts_are_found_with_many_micro_batches(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct verdict verdicts[2] = {0};
    run_ranks(2, keep_many, verdicts);
    assert_verdicts(verdicts, 2);
}

/* Without a pipeline there is one stage, with all layers. */
static void have_no_pipeline(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.data = TRIREME_PARALLEL_REST;
    trireme_parallel *parallel = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));
    trireme_parallel_info info = TRIREME_PARALLEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_info(parallel, &info));
    EXPECT(v, info.stages == 1 && info.own_stages == 1 && info.micro_batches == 1);
    EXPECT(v, info.has_first_stage == 1 && info.has_last_stage == 1 && info.makespan == 0);
    trireme_pipeline_layer_costs layers[2] = {TRIREME_PIPELINE_LAYER_COSTS_INIT,
                                              TRIREME_PIPELINE_LAYER_COSTS_INIT};
    layers[0].seconds = layers[1].seconds = 1.5;
    uint64_t cuts[2] = {77, 77}, count = 0;
    uint32_t stage = 77;
    int32_t of = -1;
    double seconds = 0;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_parallel_partition(parallel, layers, 2, cuts, 2, &seconds));
    EXPECT(v, cuts[0] == 0 && cuts[1] == 2 && seconds == 3);
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_stages(parallel, 0, &stage, 1, &count));
    EXPECT(v, stage == 0 && count == 1);
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_stage_rank(parallel, 0, &of));
    EXPECT(v, of == rank);
    trireme_pipeline_schedule *schedule = NULL;
    trireme_tensor *tensor = NULL;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_parallel_get_schedule(parallel, &schedule));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_parallel_get_tensor(parallel, &tensor));
    trireme_parallel_destroy(parallel);
}

static void a_job_without_a_pipeline_has_one_stage(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct verdict verdicts[3] = {0};
    run_ranks(3, have_no_pipeline, verdicts);
    assert_verdicts(verdicts, 3);
}

/* ---- tensor objects and lifetimes ---- */

static void use_tensor(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    trireme_tensor_options tensor_options = TRIREME_TENSOR_OPTIONS_INIT;
    tensor_options.blocks = 6;
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.tensor = 2;
    options.data = TRIREME_PARALLEL_REST;
    options.tensor_options = &tensor_options;
    trireme_parallel *parallel = NULL;
    trireme_tensor *tensor = NULL, *again = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_tensor(parallel, &tensor));
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_tensor(parallel, &again));
    trireme_region_options region_options = TRIREME_REGION_OPTIONS_INIT;
    region_options.name = "sum";
    region_options.kind = TRIREME_REGION_KIND_REDUCE;
    region_options.rows = 1;
    region_options.columns = 6;
    region_options.dtype = TRIREME_DTYPE_F32;
    region_options.parts = 6;
    trireme_region *region = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_region_create(tensor, &region_options, &region));
    trireme_tensor_info info = TRIREME_TENSOR_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_tensor_get_info(again, &info));
    EXPECT(v, info.blocks == 6 && info.world_size == 2 && info.rank == rank % 2);
    EXPECT(v, info.region_count == 1); /* one object */
    trireme_tensor_destroy(tensor);
    float values[3][6], sum[6] = {0};
    for (int part = 0; part < 3; ++part) {
        for (int i = 0; i < 6; ++i) values[part][i] = (float)(rank + 10 * part + i);
    }
    const void *const parts[] = {values[0], values[1], values[2]};
    EXPECT_STATUS(v, TRIREME_OK, trireme_region_forward(region, parts, 3, sum, NULL));
    const int pair = rank / 2 * 2;
    for (int i = 0; i < 6; ++i) {
        EXPECT(v, sum[i] == (float)(3 * (2 * pair + 1) + 2 * 30 + 6 * i));
    }
    trireme_region_destroy(region);
    trireme_tensor_destroy(again);
    trireme_parallel_destroy(parallel);
}

static void the_tensor_object_is_that_of_its_axis(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct verdict verdicts[4] = {0};
    run_ranks(4, use_tensor, verdicts);
    assert_verdicts(verdicts, 4);
}

static void end_in_any_order(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.data = options.tensor = 2;
    trireme_parallel *parallel = NULL;
    trireme_communicator *tensor = NULL, *both = NULL, *later = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));
    trireme_communicator_destroy(communicator);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_parallel_get_communicator(parallel, TRIREME_PARALLEL_AXIS_TENSOR,
                                                    &tensor));
    const uint32_t two = TRIREME_PARALLEL_AXIS_TENSOR | TRIREME_PARALLEL_AXIS_DATA;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create_communicator(parallel, two, NULL, &both));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_parallel_create_communicator(parallel, TRIREME_PARALLEL_AXIS_TENSOR, NULL,
                                                       &later));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(tensor, NULL));
    /* Half of the ranks have done their part. The others go on along their axis. */
    if (rank < 2) trireme_parallel_destroy(parallel);
    for (int i = 0; i < 100 && rank >= 2; ++i) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(tensor, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(both, NULL));
    trireme_parallel_destroy(parallel);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_barrier(tensor, NULL));
    trireme_parallel_info info = TRIREME_PARALLEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_parallel_get_info(parallel, &info));
    trireme_parallel_destroy(parallel); /* stale */
    trireme_parallel_destroy(NULL);
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(both, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(later, NULL));
    trireme_communicator_destroy(later);
    trireme_communicator_destroy(both);
}

static void an_object_and_its_communicators_end_in_any_order(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct verdict verdicts[4] = {0};
    run_ranks(4, end_in_any_order, verdicts);
    assert_verdicts(verdicts, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_where_counting_puts_them),
        cmocka_unit_test(sixty_four_ranks_are_8_x_4_x_2),
        cmocka_unit_test(schedules_have_their_known_figures),
        cmocka_unit_test(the_best_schedule_is_within_the_limit),
        cmocka_unit_test(all_ranks_get_the_fastest_cuts),
        cmocka_unit_test(stages_of_a_v_count_together),
        cmocka_unit_test(cuts_are_found_with_many_micro_batches),
        cmocka_unit_test(a_job_without_a_pipeline_has_one_stage),
        cmocka_unit_test(the_tensor_object_is_that_of_its_axis),
        cmocka_unit_test(an_object_and_its_communicators_end_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
