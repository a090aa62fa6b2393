/*
 * The matrix of features: each alone and each two of them, with every strategy, on 1 to 4 ranks.
 * What goes together trains to exactly the bits of one plain process; what does not is refused with
 * the reason, and the group lives on. With --table every cell is printed, from which matrix.py
 * writes docs/features.md.
 */
/* The trainings are those of test_strategies.c: its model, its plain process and its checks. */
#define main run_the_sweeps
#include "test_strategies.c"
#undef main

enum feature {
    LEAVES,
    NO_SYNC,
    FLAT_VECTOR,
    ANY_ORDER,
    UNUSED_AS_ZERO,
    UNUSED_SKIPPED,
    UNEVEN,
    CLIP_NORM,
    CLIP_VALUE,
    HOOK,
    OWN_RULE,
    RESUMED,
    ONE_COPY,
    ONE_SWEEP,
    GROUPS,
    PERSISTENT,
    CHECKED,
    FEATURES
};

static const char *const kNames[FEATURES] = {
    "leaves (the same bits on any number of ranks)",
    "accumulation (NO_SYNC)",
    "gradients as one vector",
    "gradients in any order",
    "missing gradients count as zero",
    "parameters without gradients are skipped",
    "uneven inputs: absent ranks, join",
    "clipping by global norm",
    "clipping by value",
    "bucket hook, before and after",
    "update rule of the caller",
    "saved and loaded in the middle",
    "one copy of the parameters",
    "one sweep",
    "units gathered in groups",
    "persistent units",
    "copies compared at each step",
};

static void switch_on(struct setup *s, enum feature feature) {
    switch (feature) {
        case LEAVES: s->leaves = 5; break;
        case NO_SYNC: s->passes = 2; break;
        case FLAT_VECTOR: s->way = FLAT; break;
        case ANY_ORDER: s->way = SHUFFLED; break;
        case UNUSED_AS_ZERO: s->unused = TRIREME_UNUSED_ZERO; break;
        case UNUSED_SKIPPED: s->unused = TRIREME_UNUSED_SKIP; break;
        case UNEVEN: s->uneven = true; break;
        case CLIP_NORM: s->max_norm = 1.5; break;
        case CLIP_VALUE: s->max_value = 1.25; break;
        case HOOK: s->hook = true; break;
        case OWN_RULE: s->rule = TRIREME_OPTIMIZER_USER; break;
        case RESUMED: s->resumed = true; break;
        case ONE_COPY: s->shared = true; break;
        case ONE_SWEEP: s->one_sweep = true; break;
        case GROUPS: s->minimum_unit_bytes = 150; break;
        case PERSISTENT: s->persistent_unit_bytes = 60; break;
        case CHECKED: s->check_every = 1; break;
        case FEATURES: break;
    }
}

/* Two values of one option. */
static bool exclude_each_other(enum feature a, enum feature b) {
    return (a == FLAT_VECTOR && b == ANY_ORDER) || (a == UNUSED_AS_ZERO && b == UNUSED_SKIPPED) ||
           /* A whole vector misses nothing; it may be absent, which UNEVEN is. */
           (a == FLAT_VECTOR && (b == UNUSED_AS_ZERO || b == UNUSED_SKIPPED));
}

/* What the headers say does not go together: TRIREME_OK for what does. */
static trireme_status expected_of(const struct setup *s, bool no_sync) {
    if (s->shared && s->strategy == TRIREME_STRATEGY_DATA_PARALLEL) {
        return TRIREME_ERROR_INVALID_ARGUMENT;
    }
    if (s->one_sweep && (s->strategy != TRIREME_STRATEGY_ZERO1 || s->leaves > 0 ||
                         s->max_norm > 0 || s->max_value > 0 || s->hook || s->uneven ||
                         s->unused == TRIREME_UNUSED_SKIP || s->rule == TRIREME_OPTIMIZER_USER)) {
        return TRIREME_ERROR_UNSUPPORTED;
    }
    return no_sync && s->leaves > 0 ? TRIREME_ERROR_UNSUPPORTED : TRIREME_OK;
}

/* ---- what is refused ---- */

static void ask_for_it(trireme_communicator *communicator, int rank, void *context) {
    const struct training *const training = context;
    const struct setup *const setup = training->setup;
    struct outcome *const o = (struct outcome *)training->results + rank;
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    make_model(o, communicator, setup, TRIREME_DTYPE_F32, &model);
    if (o->status == TRIREME_OK) OK(o, trireme_model_seal(model));
    if (o->status == TRIREME_OK) make_optimizer(o, setup, model, &optimizer);
    if (o->status == TRIREME_OK) {
        OK(o, trireme_model_begin_backward(model, TRIREME_BACKWARD_NO_SYNC));
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    int32_t sum = 0;
    const int32_t one = 1;
    if (trireme_all_reduce(communicator, &one, &sum, 1, TRIREME_DTYPE_I32, TRIREME_SUM, NULL) !=
            TRIREME_OK ||
        sum != setup->world_size) {
        o->line = 0; /* the group does not live on */
    }
}

/* The reason, without the name of the function. */
static const char *check_refused(const struct setup *setup, trireme_status expected) {
    static struct outcome outcomes[MOST_RANKS];
    memset(outcomes, 0, sizeof outcomes);
    struct training training = {.setup = setup, .results = outcomes};
    run_ranks(setup->world_size, ask_for_it, &training);
    for (int rank = 0; rank < setup->world_size; ++rank) {
        if (outcomes[rank].status != expected || outcomes[rank].line == 0) {
            describe(setup);
            fail_msg("rank %d: %s, not %s: %s", rank, trireme_status_name(outcomes[rank].status),
                     trireme_status_name(expected), outcomes[rank].message);
        }
        assert_string_equal(outcomes[rank].message, outcomes[0].message);
    }
    const char *const colon = strstr(outcomes[0].message, ": ");
    return colon == NULL ? outcomes[0].message : colon + 2;
}

/* ---- every cell ---- */

static bool prints;

/* One feature, or two. */
static void check_cell(int strategy, enum feature a, enum feature b) {
    const char *reason = NULL;
    for (int world = 1; world <= 4; ++world) {
        struct setup setup = base(world, strategy);
        if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
            setup.shard_ranks = world == 4 ? 2 : (uint32_t)world;
        }
        setup.way = HOOKS;
        setup.bucket_bytes = 100;
        setup.minimum_unit_bytes = 1;
        setup.rule = (a + b) % 3 == 0 ? TRIREME_OPTIMIZER_SGD : TRIREME_OPTIMIZER_ADAMW;
        setup.gradients = (a + b) % 4 == 0 ? TRIREME_GRADIENTS_SUM : TRIREME_GRADIENTS_AVERAGE;
        switch_on(&setup, a);
        switch_on(&setup, b);
        const trireme_status expected = expected_of(&setup, a == NO_SYNC || b == NO_SYNC);
        if (expected != TRIREME_OK) {
            reason = check_refused(&setup, expected);
            continue;
        }
        /* Each type once in each cell. */
        switch ((world + (int)a + (int)b) % 4) {
            case 0: check_f32(&setup); break;
            case 1: check_f64(&setup); break;
            case 2: check_f16(&setup); break;
            default: check_bf16(&setup);
        }
    }
    if (!prints) return;
    printf("cell\t%s\t%s\t%s\t%s\n", kNames[a], kNames[b], trireme_strategy_name(strategy),
           reason != NULL ? reason : "equal");
}

static void features_train_alone_and_in_pairs_or_are_refused(void **state) {
    (void)state;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        for (int a = 0; a < FEATURES; ++a) {
            for (int b = a; b < FEATURES; ++b) {
                if (!exclude_each_other(a, b)) check_cell(strategy, a, b);
            }
        }
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(features_train_alone_and_in_pairs_or_are_refused),
    };
    prints = argc > 1 && strcmp(argv[1], "--table") == 0;
    return cmocka_run_group_tests_name("matrix", tests, NULL, NULL);
}
