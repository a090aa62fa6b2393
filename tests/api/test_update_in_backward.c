/*
 * Update in backward: each bucket is updated as soon as it is reduced, and no gradient is kept.
 * Every training must give the bits of plain loops, and hold the bytes of its plan, which has no
 * gradients. With
 * --long each row with every type, in all worlds.
 */
#include <unistd.h>
/* The trainings are those of test_strategies.c: its model, its plain process and its checks. */
#define main run_the_sweeps
#include "test_strategies.c"
#undef main

/* Each row with every type and in all worlds; else both take turns. */
static bool is_long;

static void check_in_turn(const struct setup *setup) {
    static int turn;
    ++turn;
    if (is_long) {
        check_all(setup);
        return;
    }
    const int most = is_quick() ? 3 : turn % 16 == 0 ? 8 : turn % 4 == 0 ? 5 : 3;
    if (setup->world_size > most || (is_quick() && turn % 2 == 0)) return;
    const int type = setup->masters || setup->reduced != 0 ? turn % 2 * 2 : turn % 4;
    switch (setup->masters ? 2 + turn % 2 : type) {
        case 0: check_f32(setup); break;
        case 1: check_f64(setup); break;
        case 2: check_bf16(setup); break;
        default: check_f16(setup);
    }
}

static struct setup in_backward(int world, trireme_strategy strategy) {
    struct setup setup = base(world, strategy);
    setup.in_backward = true;
    setup.way = HOOKS;
    setup.bucket_bytes = 1;
    if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) setup.shard_ranks = world % 2 == 0 ? 2 : 1;
    return setup;
}

/* A bucket for each unit, in the order of backward, or forward, or in one that differs. */
static void every_strategy_trains_as_one_process(void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        struct setup setup = in_backward(world, strategy);
        check_in_turn(&setup);
        setup.rule = TRIREME_RULE_ADAMW;
        setup.way = FORWARD;
        check_in_turn(&setup);
        setup.way = SHUFFLED;
        setup.gradients = TRIREME_GRADIENTS_SUM;
        check_in_turn(&setup);
        setup.way = FLAT;
        setup.bucket_bytes = 150;
        check_in_turn(&setup);
    }
}

/* As many leaves as ranks, fewer, more, and so that the last ranks have fewer. */
static void reproducible_training_keeps_its_bits(void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        const int leaves[] = {world, world + 3, 2 * world, 1};
        for (int i = 0; i < 4; ++i) {
            if (!is_long && (i + world + strategy) % 2 != 0) continue;
            struct setup setup = in_backward(world, strategy);
            setup.leaves = leaves[i];
            check_in_turn(&setup);
            setup.rule = TRIREME_RULE_ADAMW;
            setup.way = i % 2 == 0 ? SHUFFLED : FLAT;
            setup.bucket_bytes = world % 2 == 0 ? 1 : 150;
            check_in_turn(&setup);
        }
    }
}

/* Units in groups, persistent ones, and those that stay or are gathered again by a few. */
static void every_way_to_gather_goes_with_it(void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        struct setup setup = in_backward(world, strategy);
        setup.rule = TRIREME_RULE_ADAMW;
        for (int leaves = 0; leaves <= 5; leaves += 5) {
            setup.leaves = leaves;
            setup.minimum_unit_bytes = 100;
            setup.persistent_unit_bytes = 50;
            check_in_turn(&setup);
            setup.bucket_bytes = 150;
            setup.prefetch_bytes = 300;
            check_in_turn(&setup);
            setup.way = FORWARD;
            setup.minimum_unit_bytes = 200;
            setup.persistent_unit_bytes = setup.prefetch_bytes = 0;
            check_in_turn(&setup);
        }
        setup.kept = strategy == TRIREME_STRATEGY_ZERO3;
        setup.whole_rows = true;
        check_in_turn(&setup);
    }
    for (size_t i = 0; i < sizeof kAgain / sizeof kAgain[0]; ++i) {
        if (is_quick() && kAgain[i][0] > 4) continue;
        const bool hybrid = kAgain[i][1] > 0;
        struct setup setup = in_backward(kAgain[i][0], hybrid ? TRIREME_STRATEGY_HYBRID_SHARD
                                                              : TRIREME_STRATEGY_ZERO3);
        setup.shard_ranks = (uint32_t)kAgain[i][1];
        setup.reshard_ranks = (uint32_t)kAgain[i][2];
        setup.prefetch_bytes = i % 2 == 0 ? 1 : 300;
        check_in_turn(&setup);
        setup.leaves = 7;
        setup.minimum_unit_bytes = 100;
        check_in_turn(&setup);
    }
    for (int i = 0; i < HYBRIDS; ++i) {
        if (is_quick() && kHybrids[i][0] > 4) continue;
        struct setup setup = in_backward(kHybrids[i][0], TRIREME_STRATEGY_HYBRID_SHARD);
        setup.shard_ranks = (uint32_t)kHybrids[i][1];
        setup.check_every = 1;
        check_in_turn(&setup);
        setup.leaves = i % 2 == 0 ? 7 : setup.world_size;
        setup.minimum_unit_bytes = 100;
        check_in_turn(&setup);
    }
}

/* Owners write where the others have read until they handed in. */
static void ranks_that_share_one_copy_read_what_is_not_updated_yet(void **state) {
    (void)state;
    if (ranks_use_transport()) skip(); /* they have no memory in common */
    FOR_EACH_SPREAD(world, strategy) {
        if (strategy == TRIREME_STRATEGY_DATA_PARALLEL) continue;
        struct setup setup = in_backward(world, strategy);
        setup.shared = true;
        setup.check_every = 1;
        for (int leaves = 0; leaves <= 5; leaves += 5) {
            setup.leaves = leaves;
            setup.way = HOOKS;
            check_in_turn(&setup);
            setup.minimum_unit_bytes = 100;
            setup.rule = TRIREME_RULE_ADAMW;
            check_in_turn(&setup);
            setup.way = FORWARD;
            setup.persistent_unit_bytes = 60;
            check_in_turn(&setup);
            setup.minimum_unit_bytes = setup.persistent_unit_bytes = 0;
        }
        setup.way = HOOKS;
        setup.checkpoints = EACH_LAYER;
        check_in_turn(&setup);
    }
    for (int i = 0; i < HYBRIDS; ++i) {
        if (is_quick() && kHybrids[i][0] > 4) continue;
        struct setup setup = in_backward(kHybrids[i][0], TRIREME_STRATEGY_HYBRID_SHARD);
        setup.shard_ranks = (uint32_t)kHybrids[i][1];
        setup.shared = true;
        check_in_turn(&setup);
        setup.leaves = 7;
        check_in_turn(&setup);
    }
}

/* By a trainer, which computes layers again whose parameters may be next to updated ones. */
static void a_trainer_with_checkpoints_keeps_its_bits(void **state) {
    (void)state;
    for (int world = 1; world <= (is_quick() ? 3 : 5); ++world) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            struct setup setup = in_backward(world, strategy);
            setup.checkpoints = world % 2 == 0 ? LEAST_BUDGET : EACH_LAYER;
            check_in_turn(&setup);
            setup.leaves = 2 + world;
            setup.minimum_unit_bytes = 100;
            setup.unused = strategy % 2 == 0 ? TRIREME_UNUSED_ZERO : TRIREME_UNUSED_ERROR;
            setup.rule = TRIREME_RULE_ADAMW;
            check_in_turn(&setup);
        }
    }
}

static const trireme_rule_kind kRules[] = {TRIREME_RULE_USER, TRIREME_RULE_ADAM,
                                           TRIREME_RULE_ADAGRAD, TRIREME_RULE_RMSPROP,
                                           TRIREME_RULE_LION};
enum { RULES = sizeof kRules / sizeof kRules[0] };

/* The ranks' contributions are rounded, also in memory beyond the plan. */
static void gradients_that_travel_in_two_bytes_go_with_it(void **state) {
    (void)state;
    for (int world = 1; world <= 4; ++world) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            struct setup setup = in_backward(world, strategy);
            for (int leaves = 0; leaves <= world + 1; leaves += world == 1 ? 1 : world) {
                setup.leaves = leaves;
                setup.reduced = leaves % 2 == 0 ? TRIREME_DTYPE_BF16 : TRIREME_DTYPE_F16;
                setup.way = HOOKS;
                check_in_turn(&setup);
                setup.way = SHUFFLED;
                check_in_turn(&setup);
            }
        }
    }
}

/* All that needs no look at all gradients first. */
static void rules_hooks_schedules_and_files_go_with_it(void **state) {
    (void)state;
    char directory[] = "/tmp/test-updates-XXXXXX";
    assert_non_null(mkdtemp(directory));
    for (int world = 1; world <= 4; ++world) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            for (int i = 0; i < RULES; ++i) {
                if (!is_long && (i + world + strategy) % 2 != 0) continue;
                struct setup setup = in_backward(world, strategy);
                setup.rule = kRules[i];
                setup.leaves = i % 2 == 0 ? 0 : 2 + i;
                setup.hook = i % 2 == 0;
                setup.max_value = i % 3 == 0 ? 1.25 : 0;
                setup.scheduled = i % 2 == 1;
                setup.own_schedule = i == 3;
                setup.resumed = i == 2;
                setup.unused = i > 2 ? TRIREME_UNUSED_ZERO : TRIREME_UNUSED_ERROR;
                setup.way = i % 2 == 0 ? HOOKS : SHUFFLED;
                setup.views = i == 4;
                setup.check_every = 1;
                check_in_turn(&setup);
                setup.state_path = directory;
                setup.bucket_bytes = 100;
                setup.in_file = i % 2 == 0 ? 1 : 0.4;
                check_in_turn(&setup);
                setup.state_path = NULL;
                setup.in_file = 0;
                setup.masters = true;
                check_in_turn(&setup);
            }
        }
    }
    assert_int_equal(rmdir(directory), 0);
}

int main(int argc, char **argv) {
    is_long = argc > 1 && strcmp(argv[1], "--long") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_trains_as_one_process),
        cmocka_unit_test(reproducible_training_keeps_its_bits),
        cmocka_unit_test(every_way_to_gather_goes_with_it),
        cmocka_unit_test(ranks_that_share_one_copy_read_what_is_not_updated_yet),
        cmocka_unit_test(a_trainer_with_checkpoints_keeps_its_bits),
        cmocka_unit_test(gradients_that_travel_in_two_bytes_go_with_it),
        cmocka_unit_test(rules_hooks_schedules_and_files_go_with_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
