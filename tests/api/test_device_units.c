/*
 * Units of models on a device whose ranks hold shards: each is gathered, read by work that the
 * caller queues, and released at once. The driver of the tests runs that work at once, as late as
 * it may or by chance, and watches for races. The values that it must see are known.
 */
#include <trireme/trireme.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "device_ranks.h"
#include "models.h"
#include "options.h"

enum { UNITS = 5, COUNT = 300, ROUNDS = 3 };

struct scene {
    char rendezvous[64];
    int world;
    trireme_strategy strategy;
    uint32_t replica;
    uint64_t prefetch_bytes;
    uint32_t reshard;
    bool keeps;               /* KEEP_GATHERED */
    bool at_once, ends_early; /* all units are gathered at once; the model ends before the work */
};

struct side {
    trireme_communicator *ranks;
    trireme_model *model;
    int device;
};

static float value(int unit, int i) {
    return (float)(1000 * unit + i) / 7;
}

static struct side make_side(int rank, const struct scene *scene) {
    struct side side = {.device = rank % 2};
    side.ranks = join(rank, scene->world, scene->rendezvous, side.device);
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = scene->strategy;
    if (scene->keeps) options.flags = TRIREME_MODEL_FLAG_KEEP_GATHERED;
    shards_of(&options)->ranks = scene->replica;
    units_of(&options)->minimum_bytes = 1;
    units_of(&options)->prefetch_bytes = scene->prefetch_bytes;
    units_of(&options)->reshard_ranks = scene->reshard;
    CHECK(make_model(side.ranks, &options, UNITS, COUNT, &side.model) == TRIREME_OK);
    static _Thread_local float here[UNITS][COUNT];
    for (int u = 0; u < UNITS; ++u) {
        for (int i = 0; i < COUNT; ++i) here[u][i] = value(u, i);
    }
    float *const there = FAKE(fake_memory, "fake_device_memory")(side.device, sizeof here);
    FAKE(fake_writes, "fake_queue_write")(side.device, NULL, there, here, sizeof here);
    CHECK(trireme_model_broadcast_parameters(side.model, there, UNITS * COUNT, TRIREME_DTYPE_F32,
                                             0) == TRIREME_OK);
    return side;
}

/* No gather is under way after it. */
static void end_pass(const struct side *side) {
    const size_t bytes = UNITS * COUNT * sizeof(float);
    void *const there = FAKE(fake_memory, "fake_device_memory")(side->device, bytes);
    CHECK(trireme_model_gather_parameters(side->model, there, UNITS * COUNT, TRIREME_DTYPE_F32) ==
          TRIREME_OK);
}

static void end_side(const struct side *side) {
    trireme_model_destroy(side->model);
    trireme_communicator_destroy(side->ranks);
}

static void check_memory(const struct side *side) {
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    CHECK(trireme_model_get_memory(side->model, &memory) == TRIREME_OK);
    CHECK(memory.planned_parameters == memory.allocated_parameters);
    CHECK(memory.planned_working == memory.allocated_working);
}

/* Work of the caller reads the unit when the device comes to it. */
static void gather(const struct side *side, int unit, float *seen) {
    CHECK(trireme_model_gather_unit(side->model, (uint64_t)unit) == TRIREME_OK);
    void *data = NULL;
    uint64_t count = 0;
    CHECK(trireme_model_get_parameter_data(side->model, (uint64_t)unit, &data, &count) ==
          TRIREME_OK);
    CHECK(count == COUNT);
    FAKE(fake_reads, "fake_queue_read")(side->device, NULL, seen, data, COUNT * sizeof(float));
}

static void release(const struct side *side, int unit) {
    CHECK(trireme_model_release_unit(side->model, (uint64_t)unit) == TRIREME_OK);
}

static void use_units(int rank, void *context) {
    const struct scene *const scene = context;
    const struct side side = make_side(rank, scene);
    static _Thread_local float seen[ROUNDS][2][UNITS][COUNT];
    memset(seen, 0, sizeof seen);
    for (int round = 0; round < ROUNDS; ++round) {
        for (int way = 0; way < 2; ++way) {
            for (int i = 0; i < UNITS; ++i) {
                const int unit = way == 0 ? i : UNITS - 1 - i;
                gather(&side, unit, seen[round][way][unit]);
                if (!scene->at_once) release(&side, unit);
            }
            check_memory(&side);
            for (int i = 0; i < UNITS && scene->at_once; ++i) release(&side, i);
        }
    }
    check_memory(&side);
    trireme_model_statistics statistics = TRIREME_MODEL_STATISTICS_INIT;
    CHECK(trireme_model_get_statistics(side.model, &statistics) == TRIREME_OK);
    CHECK(scene->world == 1 || statistics.gathers > UNITS);
    CHECK(scene->world == 1 || scene->at_once || statistics.prefetched > 0);
    if (scene->ends_early) end_side(&side);
    FAKE(fake_synchronizes, "fake_synchronize")(side.device, NULL);
    for (int k = 0; k < ROUNDS * 2 * UNITS; ++k) {
        for (int i = 0; i < COUNT; ++i) {
            CHECK(seen[k / (2 * UNITS)][k / UNITS % 2][k % UNITS][i] == value(k % UNITS, i));
        }
    }
    if (!scene->ends_early) end_side(&side);
}

static void run_scenes(const struct scene *scenes, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        struct scene scene = scenes[i];
        unique_rendezvous(scene.rendezvous, sizeof scene.rendezvous);
        run_threads(scene.world, use_units, &scene);
    }
    no_complaint();
    CHECK(FAKE(fake_lives, "fake_live_count")() == 0);
}

static const trireme_strategy zero3 = TRIREME_STRATEGY_ZERO3;

static void in_order(void) {
    const struct scene scenes[] = {
        {.world = 1, .strategy = zero3},
        {.world = 2, .strategy = zero3},
        {.world = 3, .strategy = zero3, .prefetch_bytes = 3 * COUNT * sizeof(float)},
        {.world = 4, .strategy = TRIREME_STRATEGY_HYBRID_SHARD, .replica = 2},
        {.world = 4, .strategy = zero3, .reshard = 2},
    };
    run_scenes(scenes, sizeof scenes / sizeof *scenes);
}

static void work_of_the_caller_reads_the_unit_that_it_has_gathered(void **state) {
    (void)state;
    run_in_all_modes(in_order);
}

static void many_at_once(void) {
    const struct scene scenes[] = {{.world = 2, .strategy = zero3, .at_once = true}};
    run_scenes(scenes, 1);
}

static void units_beyond_the_plan_have_memory_of_their_own(void **state) {
    (void)state;
    run_in_all_modes(many_at_once);
}

static void early_ends(void) {
    const struct scene scenes[] = {
        {.world = 2, .strategy = zero3, .ends_early = true},
        {.world = 2, .strategy = zero3, .ends_early = true, .at_once = true},
    };
    run_scenes(scenes, 2);
}

static void a_model_ends_behind_work_that_reads_its_released_units(void **state) {
    (void)state;
    run_in_all_modes(early_ends);
}

/* A stream that is recorded into a graph runs no work now, so nothing can be ordered with it. That
 * is found before this rank comes to the gather. */
static void refuse_recorded(int rank, void *context) {
    const struct side side = make_side(rank, context);
    static _Thread_local float seen[COUNT];
    for (int round = 0; round < 2; ++round) {
        if (rank == 0) {
            trireme_model_statistics statistics = TRIREME_MODEL_STATISTICS_INIT;
            FAKE(fake_captures, "fake_capture")(NULL, 1);
            CHECK_FAILS(trireme_model_gather_unit(side.model, 1), TRIREME_ERROR_INVALID_STATE,
                        "recorded into a graph");
            FAKE(fake_captures, "fake_capture")(NULL, 0);
            CHECK(trireme_model_get_statistics(side.model, &statistics) == TRIREME_OK);
            CHECK(statistics.gathers == (uint64_t)round);
        }
        gather(&side, 1, seen);
        if (rank == 0) {
            FAKE(fake_captures, "fake_capture")(NULL, 1);
            CHECK_FAILS(trireme_model_release_unit(side.model, 1), TRIREME_ERROR_INVALID_STATE,
                        "recorded into a graph");
            FAKE(fake_captures, "fake_capture")(NULL, 0);
        }
        release(&side, 1);
    }
    FAKE(fake_synchronizes, "fake_synchronize")(side.device, NULL);
    for (int i = 0; i < COUNT; ++i) CHECK(seen[i] == value(1, i));
    end_side(&side);
}

static void recorded(void) {
    struct scene scene = {.world = 2, .strategy = zero3};
    unique_rendezvous(scene.rendezvous, sizeof scene.rendezvous);
    run_threads(2, refuse_recorded, &scene);
    no_complaint();
}

static void a_stream_that_is_recorded_is_refused(void **state) {
    (void)state;
    run(recorded, "mode=lazy");
}

/* ---- the caller's stream changes while a unit is there ---- */

enum { CHANGES = 6 };

/* Before the change: a gather, work that reads, a release. After it the rest. The new stream waits
 * for the old one, as the caller must; where nothing of the caller is queued, it need not. */
static void change_streams(int rank, void *context) {
    const struct scene *const scene = context;
    const struct side side = make_side(rank, scene);
    void *streams[2] = {NULL, FAKE(fake_stream, "fake_user_stream")(side.device)};
    static _Thread_local float seen[2 * CHANGES][COUNT];
    int number = 0;
    for (int i = 0; i < 2 * CHANGES; ++i) {
        const int unit = i % UNITS, change = i % 3;
        void *const before = streams[number], *const after = streams[1 - number];
        const trireme_stream named = {TRIREME_DEVICE_CUDA, 0, after};
        CHECK(trireme_model_gather_unit(side.model, (uint64_t)unit) == TRIREME_OK);
        void *data = NULL;
        CHECK(trireme_model_get_parameter_data(side.model, (uint64_t)unit, &data, NULL) ==
              TRIREME_OK);
        if (change == 0) CHECK(trireme_model_set_stream(side.model, &named) == TRIREME_OK);
        FAKE(fake_reads, "fake_queue_read")
        (side.device, change == 0 ? after : before, seen[i], data, COUNT * sizeof(float));
        if (change == 1) {
            FAKE(fake_synchronizes, "fake_synchronize")(side.device, before);
            CHECK(trireme_model_set_stream(side.model, &named) == TRIREME_OK);
        }
        release(&side, unit);
        if (change == 2) CHECK(trireme_model_set_stream(side.model, &named) == TRIREME_OK);
        number = 1 - number;
    }
    for (int i = 0; i < 2; ++i) {
        FAKE(fake_synchronizes, "fake_synchronize")(side.device, streams[i]);
    }
    for (int k = 0; k < 2 * CHANGES; ++k) {
        for (int i = 0; i < COUNT; ++i) CHECK(seen[k][i] == value(k % UNITS, i));
    }
    end_pass(&side);
    end_side(&side);
}

static void changed(void) {
    const struct scene scenes[] = {{.world = 1, .strategy = zero3},
                                   {.world = 2, .strategy = zero3, .keeps = true},
                                   {.world = 3, .strategy = zero3}};
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; ++i) {
        struct scene scene = scenes[i];
        unique_rendezvous(scene.rendezvous, sizeof scene.rendezvous);
        run_threads(scene.world, change_streams, &scene);
    }
    no_complaint();
}

static void units_follow_the_stream_that_is_named_while_they_are_there(void **state) {
    (void)state;
    run_in_all_modes(changed);
}

/* A rank without an element of its own has units in flight all the same: a model's end waits for
 * work that reads one which is still gathered. */
static void end_gathered(int rank, void *context) {
    const struct scene *const scene = context;
    trireme_communicator *const ranks = join(rank, scene->world, scene->rendezvous, rank % 2);
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = scene->strategy;
    trireme_model *model = NULL;
    CHECK(make_model(ranks, &options, 1, 1, &model) == TRIREME_OK);
    void *data = NULL;
    float seen = 1;
    CHECK(trireme_model_gather_unit(model, 0) == TRIREME_OK);
    CHECK(trireme_model_get_parameter_data(model, 0, &data, NULL) == TRIREME_OK);
    FAKE(fake_reads, "fake_queue_read")(rank % 2, NULL, &seen, data, sizeof seen);
    CHECK(trireme_barrier(ranks, NULL) == TRIREME_OK);
    trireme_model_destroy(model);
    FAKE(fake_synchronizes, "fake_synchronize")(rank % 2, NULL);
    CHECK(seen == 0);
    trireme_communicator_destroy(ranks);
}

static void tiny(void) {
    struct scene scene = {.world = 2, .strategy = zero3};
    unique_rendezvous(scene.rendezvous, sizeof scene.rendezvous);
    run_threads(2, end_gathered, &scene);
    no_complaint();
    CHECK(FAKE(fake_lives, "fake_live_count")() == 0);
}

static void a_model_ends_behind_work_that_reads_a_unit_still_gathered(void **state) {
    (void)state;
    run(tiny, "mode=lazy");
}

/* ---- a limit of memory ---- */

struct limited {
    char rendezvous[64];
    int world;
    trireme_strategy strategy;
    bool pinned; /* the state of the optimizer */
    uint64_t held[3], most;
};

/* The model and its optimizer; the first failure, which all ranks have. */
static trireme_status
make_limited(int rank, const struct limited *limited, uint64_t limit, uint64_t *held) {
    trireme_communicator *const ranks = join(rank, limited->world, limited->rendezvous, rank % 2);
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = limited->strategy;
    units_of(&options)->minimum_bytes = 1;
    options.memory_limit_bytes = limit;
    options.planned_rule = limit > 0 ? TRIREME_RULE_LAMB : 0;
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    trireme_status status = make_model(ranks, &options, UNITS, COUNT, &model);
    if (status == TRIREME_OK) {
        trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
        rule.kind = TRIREME_RULE_LAMB;
        if (limited->pinned) state_file_of(&rule)->kind = TRIREME_OFFLOAD_KIND_PINNED;
        CHECK(trireme_optimizer_create(model, &rule, &optimizer) == TRIREME_OK);
        trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
        CHECK(trireme_model_get_memory(model, &memory) == TRIREME_OK);
        *held = memory.allocated_parameters + memory.allocated_gradients +
                memory.allocated_optimizer_state + memory.allocated_working;
    } else {
        char words[64];
        snprintf(words, sizeof words, " needs %" PRIu64 " bytes", limited->most);
        CHECK(strstr(trireme_last_error(), words) != NULL);
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(ranks);
    return status;
}

static void measure_rank(int rank, void *context) {
    struct limited *const limited = context;
    CHECK(make_limited(rank, limited, 0, &limited->held[rank]) == TRIREME_OK);
}

static void allow_rank(int rank, void *context) {
    uint64_t held = 0;
    const struct limited *const limited = context;
    CHECK(make_limited(rank, limited, limited->most, &held) == TRIREME_OK);
    CHECK(held == limited->held[rank]);
}

static void refuse_rank(int rank, void *context) {
    uint64_t held = 0;
    const struct limited *const limited = context;
    CHECK(make_limited(rank, limited, limited->most - 1, &held) == TRIREME_ERROR_OUT_OF_MEMORY);
}

static void limits(void) {
    void (*const bodies[])(int rank, void *context) = {measure_rank, allow_rank, refuse_rank};
    for (int i = 0; i < 6; ++i) {
        struct limited limited = {.world = 1 + i % 3,
                                  .strategy = i < 3 ? TRIREME_STRATEGY_ZERO2 : zero3,
                                  .pinned = i % 2 == 1};
        for (int k = 0; k < 3; ++k) {
            unique_rendezvous(limited.rendezvous, sizeof limited.rendezvous);
            run_threads(limited.world, bodies[k], &limited);
            for (int rank = 0; rank < limited.world; ++rank) {
                if (limited.held[rank] > limited.most) limited.most = limited.held[rank];
            }
        }
    }
    no_complaint();
    CHECK(FAKE(fake_lives, "fake_live_count")() == 0);
}

static void a_limit_counts_memory_of_host_and_device(void **state) {
    (void)state;
    run(limits, "mode=lazy");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_of_the_caller_reads_the_unit_that_it_has_gathered),
        cmocka_unit_test(units_beyond_the_plan_have_memory_of_their_own),
        cmocka_unit_test(a_model_ends_behind_work_that_reads_its_released_units),
        cmocka_unit_test(a_stream_that_is_recorded_is_refused),
        cmocka_unit_test(units_follow_the_stream_that_is_named_while_they_are_there),
        cmocka_unit_test(a_model_ends_behind_work_that_reads_a_unit_still_gathered),
        cmocka_unit_test(a_limit_counts_memory_of_host_and_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
