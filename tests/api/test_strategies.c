/*
 * Whole trainings: Every strategy, world size, way of handing in gradients and kind of accumulation
 * must give exactly the parameters of plain loops over one vector. Each must hold and send exactly
 * the bytes of the table in model.h.
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
#include <numbers.h>
#include <ranks.h>

#define STEPS 3
#define MOST_RANKS 8
#define MOST_LEAVES 24

/* ---- the model ---- */

struct parameter {
    const char *name;
    const char *unit_name;
    const char *tied_to;
    uint32_t dimensions;
    uint64_t shape[2];
    bool frozen;
    int unit;
    int first; /* in the flat vector */
    int count;
};

/* Tied, frozen, empty, scalar, a unit of frozen ones, a unit of nothing, and odd lengths. */
static const struct parameter kParameters[] = {
    {"embedding", NULL, NULL, 2, {7, 5}, false, 0, 0, 35},
    {"w1", "layer", NULL, 2, {3, 4}, false, 1, 35, 12},
    {"scale", "layer", NULL, 1, {5}, true, 1, 47, 5},
    {"nothing", "layer", NULL, 2, {0, 9}, false, 1, 52, 0},
    {"b1", "layer", NULL, 1, {3}, false, 1, 52, 3},
    {"scalar", NULL, NULL, 0, {0}, false, 2, 55, 1},
    {"void", NULL, NULL, 1, {0}, false, 3, 56, 0},
    {"fixed", NULL, NULL, 1, {9}, true, 4, 56, 9},
    {"w2", NULL, NULL, 2, {11, 3}, false, 5, 65, 33},
    {"head", NULL, "embedding", 2, {7, 5}, false, 0, 0, 35},
    {"last", "end", NULL, 1, {2}, false, 6, 98, 2},
};
enum {
    PARAMETERS = sizeof kParameters / sizeof kParameters[0],
    UNITS = 7,
    ELEMENTS = 100,
    TIED = 35
};

static int parameter_of(int element) {
    for (int i = 0; i < PARAMETERS; ++i) {
        const struct parameter *const p = &kParameters[i];
        if (p->tied_to == NULL && element >= p->first && element < p->first + p->count) return i;
    }
    abort();
}

static bool is_frozen(int element) {
    return kParameters[parameter_of(element)].frozen;
}

/* ---- how it is trained ---- */

/* How gradients are handed in: at once, in the order of backward, in that of forward, or in another
 * one on each rank. */
enum way { FLAT, HOOKS, FORWARD, SHUFFLED };

#include "rounding.inc"
#include "training_setup.inc"
#include "training_worker.inc"

#include "norms.inc"
#include "training_bytes.inc"

/* ---- all types ---- */

#define STORED T
#define VALUE(stored) (stored)
#define STORE(t) (t)
#define GRADIENT_DTYPE DTYPE
#define T float
#define DTYPE TRIREME_DTYPE_F32
#define NAME(x) x##_f32
#include "training.inc"
#undef T
#undef DTYPE
#undef NAME
#define T double
#define DTYPE TRIREME_DTYPE_F64
#define NAME(x) x##_f64
#include "training.inc"
#undef T
#undef DTYPE
#undef NAME
#undef STORED
#undef VALUE
#undef STORE
#undef GRADIENT_DTYPE

static float value_of(trireme_dtype dtype, uint16_t bits) {
    return (float)number_at(dtype, &bits);
}
static uint16_t bits_of(trireme_dtype dtype, float value) {
    uint16_t bits = 0;
    put_number(dtype, value, &bits);
    return bits;
}
#define T float
#define GRADIENT_DTYPE TRIREME_DTYPE_F32
#define STORED uint16_t
#define VALUE(stored) value_of(DTYPE, stored)
#define STORE(t) bits_of(DTYPE, t)
#define DTYPE TRIREME_DTYPE_F16
#define NAME(x) x##_f16
#include "training.inc"
#undef DTYPE
#undef NAME
#define DTYPE TRIREME_DTYPE_BF16
#define NAME(x) x##_bf16
#include "training.inc"

static int32_t TRIREME_CALLCONV user_rule(const trireme_update *update, void *user_data) {
    (void)user_data;
    switch (update->dtype) {
        case TRIREME_DTYPE_F16: return user_rule_f16(update);
        case TRIREME_DTYPE_BF16: return user_rule_bf16(update);
        case TRIREME_DTYPE_F32: return user_rule_f32(update);
        default: return user_rule_f64(update);
    }
}

#define FOR_DTYPE(dtype, name, ...)                               \
    switch (dtype) {                                              \
        case TRIREME_DTYPE_F16: name##_f16(__VA_ARGS__); break;   \
        case TRIREME_DTYPE_BF16: name##_bf16(__VA_ARGS__); break; \
        case TRIREME_DTYPE_F32: name##_f32(__VA_ARGS__); break;   \
        default: name##_f64(__VA_ARGS__);                         \
    }

static int32_t TRIREME_CALLCONV layer_forward(const trireme_layer_call *call, void *user_data) {
    struct worker *const worker = user_data;
    ++worker->calls[call->phase];
    FOR_DTYPE(worker->dtype, layer_forward, worker, call)
    return 0;
}

static int32_t TRIREME_CALLCONV layer_backward(const trireme_layer_call *call, void *user_data) {
    struct worker *const worker = user_data;
    ++worker->calls[call->phase];
    FOR_DTYPE(worker->dtype, layer_backward, worker, call)
    return 0;
}

/* Before the reduction times 1.5, after it 0.25 more; its arguments must make sense. */
static int32_t TRIREME_CALLCONV bucket_hook(const trireme_bucket *bucket, void *user_data) {
    const struct setup *const setup = user_data;
    uint64_t position = 0;
    for (uint64_t i = 0; i < bucket->part_count; ++i) {
        const trireme_bucket_part *const shown = &bucket->parts[i];
        if (shown->position != position || shown->count == 0) return 1;
        if (shown->parameter >= PARAMETERS || kParameters[shown->parameter].frozen) return 2;
        if (shown->first + shown->count > (uint64_t)kParameters[shown->parameter].count) return 3;
        position += shown->count;
    }
    if (position != bucket->count || bucket->struct_size != sizeof *bucket) return 4;
    if (bucket->part_bytes != sizeof *bucket->parts) return 4;
    if (bucket->moment == TRIREME_HOOK_AFTER && bucket->pass != 0) return 5;
    if (bucket->pass >= (uint32_t)(setup->leaves > 0 ? setup->leaves : setup->passes)) return 6;
    for (uint64_t i = 0; i < bucket->count; ++i) {
        const bool before = bucket->moment == TRIREME_HOOK_BEFORE;
        if (bucket->dtype == TRIREME_DTYPE_F32) {
            float *const g = (float *)bucket->data + i;
            *g = before ? *g * 1.5f : *g + 0.25f;
        } else {
            double *const g = (double *)bucket->data + i;
            *g = before ? *g * 1.5 : *g + 0.25;
        }
    }
    return 0;
}

/* Under sanitizers, or where every byte goes through sockets, one other type than f32 in turn. With
 * both none, as types and ways are seen together elsewhere, and no more than four ranks.
 * ThreadSanitizer sees one type in turn, f32 among them; a strategy gets another in each world. */
static void check_all(const struct setup *setup) {
    static int turn;
    const bool fewest = is_quick() && ranks_use_transport();
    if (fewest && setup->world_size > 4) return;
    const bool few = is_quick() || ranks_use_transport();
    const bool single = sees_threads_alone() && !fewest;
    const int one = single ? (turn + turn / 4) % 4 : turn % 3;
    ++turn;
    if (!single || one == 3) check_f32(setup);
    if (fewest) return;
    if (!few || one == 0) check_f64(setup);
    if (!few || one == 1) check_f16(setup);
    if (!few || one == 2) check_bf16(setup);
}

static const int kWorldSizes[] = {1, 2, 3, 4, 5, 8};
enum { WORLD_SIZES = sizeof kWorldSizes / sizeof kWorldSizes[0] };

static struct setup base(int world_size, trireme_strategy strategy) {
    return (struct setup){.world_size = world_size,
                          .strategy = strategy,
                          .passes = 1,
                          .way = FLAT,
                          .rule = TRIREME_RULE_SGD};
}

/* Sanitizers see no world of 8, but for a hybrid one that gathers units again. */
static bool is_seen(int world_size) {
    return world_size < 8 || !is_quick();
}

#define FOR_EACH_SPREAD(world, strategy)                                                    \
    for (int w_ = 0; w_ < WORLD_SIZES && is_seen(kWorldSizes[w_]); ++w_)                    \
        for (int world = kWorldSizes[w_], strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; \
             ++strategy)

/* ---- tests ---- */

static void reproducible_training_is_one_process_flat(void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        struct setup setup = base(world, strategy);
        setup.leaves = 6;
        check_all(&setup);
    }
}

static void
reproducible_training_is_one_process_with_hooks_and_a_bucket_for_each_unit(void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        struct setup setup = base(world, strategy);
        setup.leaves = 7;
        setup.way = HOOKS;
        setup.bucket_bytes = 1;
        setup.rule = TRIREME_RULE_ADAMW;
        check_all(&setup);
    }
}

static void reproducible_training_does_not_feel_the_order_of_gradients(void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        struct setup setup = base(world, strategy);
        setup.leaves = 5;
        setup.way = SHUFFLED;
        setup.bucket_bytes = world % 2 == 0 ? 1 : 150;
        setup.gradients = TRIREME_GRADIENTS_SUM;
        check_all(&setup);
    }
}

static void any_number_of_leaves_makes_the_same_tree(void **state) {
    (void)state;
    for (int leaves = 1; leaves <= 17; ++leaves) {
        struct setup setup = base(1 + leaves % 4, 1 + leaves % 4);
        setup.leaves = leaves;
        check_f32(&setup);
        setup.strategy = 1 + (leaves + 1) % 4;
        setup.world_size = 3;
        check_f64(&setup);
    }
}

static void ordinary_training_adds_in_the_order_of_ranks(void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        struct setup setup = base(world, strategy);
        check_f32(&setup);
        setup.way = HOOKS;
        setup.bucket_bytes = 1;
        setup.gradients = TRIREME_GRADIENTS_SUM;
        check_f64(&setup);
    }
}

static void micro_batches_are_accumulated(void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        struct setup setup = base(world, strategy);
        setup.passes = 3;
        setup.rule = TRIREME_RULE_ADAMW;
        check_f64(&setup);
        setup.way = SHUFFLED;
        setup.bucket_bytes = 100;
        check_f32(&setup);
    }
}

static void clipping_sees_the_norm_of_all_ranks(void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        struct setup setup = base(world, strategy);
        setup.leaves = 4;
        setup.max_norm = 1.5;
        check_f32(&setup);
        setup.max_norm = 1e9; /* never reached: the bits stay */
        check_f64(&setup);
    }
}

static void a_rule_of_the_caller_gets_every_element_once(void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        struct setup setup = base(world, strategy);
        setup.leaves = 3;
        setup.rule = TRIREME_RULE_USER;
        setup.max_norm = 2;
        check_all(&setup);
    }
}

static void gradients_that_are_written_in_place_change_no_bit(void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        struct setup setup = base(world, strategy);
        setup.views = true;
        setup.way = HOOKS;
        check_f32(&setup);
        setup.passes = 3;
        setup.bucket_bytes = 1;
        check_f64(&setup);
        setup.way = SHUFFLED;
        setup.rule = TRIREME_RULE_ADAMW;
        setup.max_norm = 1.5;
        check_f32(&setup);
        setup.bucket_bytes = 150;
        setup.uneven = true;
        setup.hook = true;
        setup.unused = TRIREME_UNUSED_SKIP;
        setup.minimum_unit_bytes = 100;
        check_all(&setup);
    }
    FOR_EACH_SPREAD(world, strategy) {
        struct setup setup = base(world, strategy);
        setup.views = true;
        setup.leaves = 7;
        setup.way = HOOKS;
        setup.bucket_bytes = 1;
        setup.rule = TRIREME_RULE_USER;
        check_all(&setup);
        setup.way = SHUFFLED;
        setup.uneven = true;
        setup.unused = TRIREME_UNUSED_ZERO;
        setup.max_value = 1;
        check_f32(&setup);
    }
    for (int world = 1; world <= (is_quick() ? 5 : 8); ++world) {
        struct setup setup = base(world, TRIREME_STRATEGY_ZERO1);
        setup.views = true;
        setup.one_sweep = true;
        setup.passes = 2;
        setup.way = HOOKS;
        setup.bucket_bytes = 1;
        check_all(&setup);
        setup.way = SHUFFLED;
        setup.shared = !ranks_use_transport();
        setup.bucket_bytes = 0;
        setup.rule = TRIREME_RULE_ADAMW;
        check_f32(&setup);
    }
}

static void prefetch_changes_no_bit(void **state) {
    (void)state;
    const uint64_t limits[] = {1, 64, 128, 300, 1000000};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; ++i) {
        for (int world = 1; world <= 4; ++world) {
            struct setup setup = base(world, TRIREME_STRATEGY_ZERO3);
            setup.leaves = 4;
            setup.way = HOOKS;
            setup.prefetch_bytes = limits[i];
            setup.bucket_bytes = 1;
            check_all(&setup);
        }
    }
}

static void groups_of_units_change_no_bit(void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        struct setup setup = base(world, strategy);
        setup.leaves = 4;
        setup.way = HOOKS;
        const uint64_t sizes[] = {100, 200, 100000};
        for (int i = 0; i < 3; ++i) {
            setup.minimum_unit_bytes = sizes[i];
            setup.bucket_bytes = i == 0 ? 1 : 0;
            setup.first_bucket_bytes = i == 1 ? 1 : 0;
            check_all(&setup);
        }
        setup.way = FLAT;
        check_f32(&setup);
    }
}

static void units_that_persist_change_no_bit(void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        struct setup setup = base(world, strategy);
        setup.leaves = 5;
        setup.way = world % 2 == 0 ? HOOKS : FLAT;
        const uint64_t sizes[] = {50, 100, 100000};
        for (int i = 0; i < 3; ++i) {
            setup.persistent_unit_bytes = sizes[i];
            setup.minimum_unit_bytes = i == 1 ? 200 : 0;
            check_all(&setup);
        }
    }
}

static const int kHybrids[][2] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 2},
                                  {5, 5}, {6, 2}, {6, 3}, {8, 2}, {8, 4}};
enum { HYBRIDS = sizeof kHybrids / sizeof kHybrids[0] };

static void hybrid_shards_train_as_one_process(void **state) {
    (void)state;
    for (int i = 0; i < HYBRIDS && is_seen(kHybrids[i][0]); ++i) {
        struct setup setup = base(kHybrids[i][0], TRIREME_STRATEGY_HYBRID_SHARD);
        setup.shard_ranks = (uint32_t)kHybrids[i][1];
        setup.way = HOOKS;
        setup.check_every = 1;
        for (int leaves = 0; leaves <= 7; leaves += 7) {
            setup.leaves = leaves;
            setup.bucket_bytes = 1;
            setup.rule = TRIREME_RULE_ADAMW;
            check_all(&setup);
            setup.minimum_unit_bytes = 100;
            setup.persistent_unit_bytes = 50;
            setup.max_norm = 1.5;
            check_all(&setup);
            setup.minimum_unit_bytes = setup.persistent_unit_bytes = 0;
            setup.max_norm = 0;
        }
    }
}

/* World size, shard_ranks of hybrid_shard, the ranks among which units are gathered again. */
static const int kAgain[][3] = {{1, 0, 1}, {2, 0, 1}, {2, 0, 2}, {4, 0, 2}, {6, 0, 2},
                                {6, 0, 3}, {8, 0, 4}, {4, 4, 2}, {8, 4, 2}, {8, 8, 4}};

static void units_that_a_few_gather_again_change_no_bit(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof kAgain / sizeof kAgain[0]; ++i) {
        const bool hybrid = kAgain[i][1] > 0;
        if (!is_seen(kAgain[i][0]) && kAgain[i][1] != 4) continue;
        struct setup setup =
            base(kAgain[i][0], hybrid ? TRIREME_STRATEGY_HYBRID_SHARD : TRIREME_STRATEGY_ZERO3);
        setup.shard_ranks = (uint32_t)kAgain[i][1];
        setup.reshard_ranks = (uint32_t)kAgain[i][2];
        setup.way = HOOKS;
        setup.bucket_bytes = 1;
        setup.rule = TRIREME_RULE_ADAMW;
        check_all(&setup);
        setup.prefetch_bytes = i % 2 == 0 ? 1 : 300;
        setup.passes = 2;
        setup.uneven = true;
        setup.way = FORWARD;
        setup.bucket_bytes = 0;
        check_f32(&setup);
        setup.prefetch_bytes = 0;
        setup.passes = 1;
        setup.leaves = 7;
        setup.minimum_unit_bytes = 100;
        setup.persistent_unit_bytes = 50;
        setup.way = i % 2 == 0 ? FLAT : HOOKS;
        setup.uneven = false;
        setup.max_norm = 1.5;
        check_all(&setup);
    }
}

static void ranks_that_share_one_copy_train_as_one_process(void **state) {
    (void)state;
    if (ranks_use_transport()) skip(); /* they have no memory in common */
    FOR_EACH_SPREAD(world, strategy) {
        if (strategy == TRIREME_STRATEGY_DATA_PARALLEL) continue;
        struct setup setup = base(world, strategy);
        setup.shared = true;
        setup.check_every = 1;
        for (int leaves = 0; leaves <= 5; leaves += 5) {
            setup.leaves = leaves;
            setup.way = FLAT;
            setup.rule = TRIREME_RULE_SGD;
            check_all(&setup);
            setup.way = HOOKS;
            setup.bucket_bytes = 1;
            setup.rule = TRIREME_RULE_ADAMW;
            setup.max_norm = 1.5;
            check_all(&setup);
            setup.minimum_unit_bytes = 100;
            setup.persistent_unit_bytes = 60;
            setup.rule = TRIREME_RULE_USER;
            check_all(&setup);
            setup.minimum_unit_bytes = setup.persistent_unit_bytes = 0;
        }
    }
    for (int i = 0; i < HYBRIDS && is_seen(kHybrids[i][0]); ++i) {
        struct setup setup = base(kHybrids[i][0], TRIREME_STRATEGY_HYBRID_SHARD);
        setup.shard_ranks = (uint32_t)kHybrids[i][1];
        setup.shared = true;
        setup.way = HOOKS;
        setup.leaves = 7;
        setup.check_every = 1;
        check_all(&setup);
    }
}

static void one_sweep_changes_no_bit(void **state) {
    (void)state;
    for (int w = 0; w < WORLD_SIZES && is_seen(kWorldSizes[w]); ++w) {
        for (int shared = 0; shared < (ranks_use_transport() ? 1 : 2); ++shared) {
            struct setup setup = base(kWorldSizes[w], TRIREME_STRATEGY_ZERO1);
            setup.one_sweep = true;
            setup.shared = shared;
            check_all(&setup);
            setup.rule = TRIREME_RULE_ADAMW;
            setup.way = HOOKS;
            setup.bucket_bytes = 1;
            setup.passes = 2;
            check_all(&setup);
            setup.way = SHUFFLED;
            setup.bucket_bytes = 100;
            setup.minimum_unit_bytes = 100;
            setup.gradients = TRIREME_GRADIENTS_SUM;
            setup.unused = TRIREME_UNUSED_ZERO;
            check_all(&setup);
        }
    }
}

/* Everything that can be on or off, in pairs and all together, with every
 * strategy. */
static void features_work_with_each_other_and_every_strategy(void **state) {
    (void)state;
    for (int world = 1; world <= 4; ++world) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            const int every = is_quick() ? 7 : ranks_use_transport() ? 3 : 1;
            for (int features = 1; features < 64; ++features) {
                if ((features + world + strategy) % every != 0) continue;
                struct setup setup = base(world, strategy);
                if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
                    setup.shard_ranks = world % 2 == 0 ? 2 : 1;
                }
                setup.leaves = features % 2 == 1 ? 5 : 0;
                setup.passes = features % 3 == 0 ? 2 : 1;
                setup.way = features % 5 == 0 ? SHUFFLED : HOOKS;
                setup.rule = features % 7 == 0  ? TRIREME_RULE_USER
                             : features % 7 < 4 ? TRIREME_RULE_ADAMW
                                                : TRIREME_RULE_SGD;
                setup.unused = (features & 1) == 0 ? TRIREME_UNUSED_ERROR
                               : features % 3 == 0 ? TRIREME_UNUSED_ZERO
                                                   : TRIREME_UNUSED_SKIP;
                setup.uneven = (features & 2) != 0;
                setup.hook = (features & 4) != 0;
                setup.max_value = (features & 8) != 0 ? 1.25 : 0;
                setup.max_norm = (features & 16) != 0 ? 2 : 0;
                setup.minimum_unit_bytes = (features & 32) != 0 ? 100 : 0;
                setup.persistent_unit_bytes = features % 4 == 3 ? 60 : 0;
                setup.bucket_bytes = 100;
                setup.check_every = (uint64_t)(features % 3);
                setup.shared = features % 4 < 2 && strategy != TRIREME_STRATEGY_DATA_PARALLEL &&
                               !ranks_use_transport();
                /* By none of the bits above. */
                switch ((features + features / 4 + world + strategy) % 4) {
                    case 0: check_f32(&setup); break;
                    case 1: check_f64(&setup); break;
                    case 2: check_f16(&setup); break;
                    default: check_bf16(&setup);
                }
            }
        }
    }
}

/* Also worlds with more ranks than leaves, in which no rank may wait for one without a leaf. */
static void contributions_that_travel_in_two_bytes_are_rounded_once(void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        for (int leaves = 0; leaves <= 7; leaves += leaves == 0 ? 3 : 4) {
            struct setup setup = base(world, strategy);
            setup.leaves = leaves;
            setup.passes = leaves == 0 ? 2 : 1;
            setup.way = HOOKS;
            setup.bucket_bytes = 1;
            setup.views = (world + leaves) % 2 == 0;
            setup.reduced = (world + strategy) % 2 == 0 ? TRIREME_DTYPE_F16 : TRIREME_DTYPE_BF16;
            check_f32(&setup);
            if (!is_quick()) check_f16(&setup);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reproducible_training_is_one_process_flat),
        cmocka_unit_test(
            reproducible_training_is_one_process_with_hooks_and_a_bucket_for_each_unit),
        cmocka_unit_test(reproducible_training_does_not_feel_the_order_of_gradients),
        cmocka_unit_test(any_number_of_leaves_makes_the_same_tree),
        cmocka_unit_test(ordinary_training_adds_in_the_order_of_ranks),
        cmocka_unit_test(micro_batches_are_accumulated),
        cmocka_unit_test(clipping_sees_the_norm_of_all_ranks),
        cmocka_unit_test(a_rule_of_the_caller_gets_every_element_once),
        cmocka_unit_test(gradients_that_are_written_in_place_change_no_bit),
        cmocka_unit_test(prefetch_changes_no_bit),
        cmocka_unit_test(groups_of_units_change_no_bit),
        cmocka_unit_test(units_that_persist_change_no_bit),
        cmocka_unit_test(hybrid_shards_train_as_one_process),
        cmocka_unit_test(units_that_a_few_gather_again_change_no_bit),
        cmocka_unit_test(ranks_that_share_one_copy_train_as_one_process),
        cmocka_unit_test(one_sweep_changes_no_bit),
        cmocka_unit_test(contributions_that_travel_in_two_bytes_are_rounded_once),
        cmocka_unit_test(features_work_with_each_other_and_every_strategy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
