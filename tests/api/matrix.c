/*
 * The matrix of features: each alone and each two of them, with every strategy that takes both, on
 * 1 to 4 ranks. A pair that goes together trains to exactly the bits of one plain process; other
 * pairs are refused with the reason, and the group lives on. With --table every cell is printed, or
 * with
 * --table STRATEGY those of one strategy, from which matrix.py writes docs/features.md.
 */
#include <unistd.h>
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
    VIEWS,
    LEARNT_ORDER,
    KEPT,
    RESHARDED,
    WHOLE_ROWS,
    STRIDE,
    NORM_RANKS,
    NORM_GROUPS_CLIPPED,
    NARROW,
    LIMITED,
    BY_NORMS,
    /* In pairs with these, two to four ranks take turns. */
    IN_TURN,
    PLAIN = IN_TURN,
    MOMENTUM,
    NESTEROV,
    ADAM,
    ADAMW,
    ADAGRAD,
    RMSPROP,
    LION,
    MASTERS,
    ROUNDED,
    REDUCED,
    UPDATED_IN_BACKWARD,
    SCALED,
    IN_FILE,
    IN_FILE_IN_PART,
    PARAMETERS_IN_FILE,
    PARAMETERS_IN_PART,
    CHECKPOINTED,
    WITHIN_BUDGET,
    ACTIVATIONS,
    SCHEDULED,
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
    "gradients written in place (views)",
    "buckets in the order of the first step's gradients",
    "units stay gathered (KEEP_GATHERED)",
    "units gathered again by a few (units.reshard_ranks)",
    "shards of whole rows (WHOLE_ROWS)",
    "ranks of a copy apart (shards.stride)",
    "one norm with another model (norm_ranks, replicas)",
    "clipping by norms of groups of parameters",
    "parameters of f16 and bf16",
    "memory limit: just enough, and a byte less",
    "rules that need whole parameters (LAMB, LARS, Adafactor, Muon)",
    "SGD",
    "SGD with momentum",
    "SGD with Nesterov's momentum",
    "Adam",
    "AdamW",
    "Adagrad",
    "RMSProp, centered, with momentum",
    "Lion",
    "master weights of f16 and bf16",
    "stochastic rounding of bf16",
    "gradients travel as f16 or bf16 (reduce_dtype)",
    "update in backward (UPDATE_IN_BACKWARD)",
    "dynamic loss scale, one step overflows",
    "state in a file (offload)",
    "state in a file by 0.4 (offload.ratio), eight vectors",
    "parameters in a file (offload of the model)",
    "parameters in a file by 0.4",
    "trainer, each layer is a checkpoint",
    "trainer, the least budget for activations",
    "trainer, activations in a file (offload)",
    "schedule of the library, or of the caller",
};

/* Where state lies in files, which have no names there. */
static char directory[128];

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
        case OWN_RULE: s->rule = TRIREME_RULE_USER; break;
        case RESUMED: s->resumed = true; break;
        case ONE_COPY: s->shared = true; break;
        case ONE_SWEEP: s->one_sweep = true; break;
        case GROUPS: s->minimum_unit_bytes = 150; break;
        case PERSISTENT: s->persistent_unit_bytes = 60; break;
        case CHECKED: s->check_every = 1; break;
        case VIEWS: s->views = true; break;
        case LEARNT_ORDER: s->way = FORWARD; break;
        case KEPT: s->kept = true; break;
        case RESHARDED: s->reshard_ranks = 2; break;
        case WHOLE_ROWS: s->whole_rows = true; break;
        case STRIDE: s->shard_stride = 2; break;
        case NORM_RANKS: s->two_models = true; break;
        case NORM_GROUPS_CLIPPED: s->norm_groups = true; break;
        case PLAIN:
        case MOMENTUM:
        case NESTEROV:
            s->rule = TRIREME_RULE_SGD;
            s->plain = feature == PLAIN;
            s->nesterov = feature == NESTEROV;
            break;
        case ADAM: s->rule = TRIREME_RULE_ADAM; break;
        case ADAMW: s->rule = TRIREME_RULE_ADAMW; break;
        case ADAGRAD: s->rule = TRIREME_RULE_ADAGRAD; break;
        case RMSPROP: s->rule = TRIREME_RULE_RMSPROP; break;
        case LION: s->rule = TRIREME_RULE_LION; break;
        case MASTERS: s->masters = true; break;
        case ROUNDED: s->rounded = true; break;
        case REDUCED:
            s->reduced =
                (s->world_size + s->strategy) % 2 == 0 ? TRIREME_DTYPE_F16 : TRIREME_DTYPE_BF16;
            break;
        case UPDATED_IN_BACKWARD: s->in_backward = true; break;
        case SCALED: s->scaled = true; break;
        case IN_FILE:
        case IN_FILE_IN_PART:
            s->state_path = directory;
            s->in_file = feature == IN_FILE ? 1 : 0.4;
            break;
        case PARAMETERS_IN_FILE:
        case PARAMETERS_IN_PART:
            s->parameter_path = directory;
            s->parameters_in_file = feature == PARAMETERS_IN_FILE ? 1 : 0.4;
            break;
        case CHECKPOINTED: s->checkpoints = EACH_LAYER; break;
        case WITHIN_BUDGET: s->checkpoints = LEAST_BUDGET; break;
        case ACTIVATIONS:
            s->checkpoints = LEAST_WINDOW;
            s->activation_path = directory;
            break;
        case SCHEDULED:
            s->scheduled = true;
            s->own_schedule = (s->world_size + s->strategy) % 2 == 0;
            break;
        case BY_NORMS:
        case NARROW:
        case LIMITED: break; /* see check_cell() */
        case FEATURES: break;
    }
}

static bool is_rule(enum feature f) {
    return f == OWN_RULE || f == BY_NORMS || (f >= PLAIN && f <= LION);
}

/* Ways of handing in gradients: by the caller in a way of its own, or by a trainer. */
static bool is_way(enum feature f) {
    return f == FLAT_VECTOR || f == ANY_ORDER || f == LEARNT_ORDER || f == VIEWS;
}

/* Ways in which a trainer keeps activations. */
static bool is_kept(enum feature f) {
    return f == CHECKPOINTED || f == WITHIN_BUDGET || f == ACTIVATIONS;
}

/* Two values of one option. */
static bool exclude_each_other(enum feature a, enum feature b) {
    return (a == FLAT_VECTOR && b == ANY_ORDER) || (a == UNUSED_AS_ZERO && b == UNUSED_SKIPPED) ||
           ((a == FLAT_VECTOR || a == ANY_ORDER) && b == LEARNT_ORDER) ||
           (a == FLAT_VECTOR && b == VIEWS) || (a != b && is_rule(a) && is_rule(b)) ||
           (a == IN_FILE && b == IN_FILE_IN_PART) ||
           (a == PARAMETERS_IN_FILE && b == PARAMETERS_IN_PART) ||
           (a != b && is_kept(a) && is_kept(b)) || (is_way(a) && is_kept(b)) ||
           /* A whole vector misses nothing; it may be absent, which UNEVEN is. */
           (a == FLAT_VECTOR && (b == UNUSED_AS_ZERO || b == UNUSED_SKIPPED));
}

/* The outcome that the headers promise: TRIREME_OK if the features go together. */
static trireme_status expected_of(const struct setup *s, bool no_sync) {
    if (s->parameter_path != NULL && (s->strategy < TRIREME_STRATEGY_ZERO3 || s->shared)) {
        return TRIREME_ERROR_UNSUPPORTED;
    }
    if ((s->shared && s->strategy == TRIREME_STRATEGY_DATA_PARALLEL) ||
        ((s->kept || s->reshard_ranks > 0) && s->strategy < TRIREME_STRATEGY_ZERO3) ||
        (s->kept && s->reshard_ranks > 1) ||
        (s->shard_stride > 0 && s->strategy != TRIREME_STRATEGY_HYBRID_SHARD) ||
        (s->state_path != NULL && states_of(s) == 0)) {
        return TRIREME_ERROR_INVALID_ARGUMENT;
    }
    if ((s->max_norm > 0 && s->norm_groups) || (s->two_models && s->uneven) ||
        (s->checkpoints != NO_TRAINER && s->uneven) ||
        (s->state_path != NULL && (s->masters || needs_norms(s))) ||
        (s->rounded && (s->masters || s->rule == TRIREME_RULE_USER))) {
        return TRIREME_ERROR_UNSUPPORTED;
    }
    if (s->in_backward &&
        (s->uneven || s->unused == TRIREME_UNUSED_SKIP || s->max_norm > 0 || s->norm_groups ||
         s->scaled || s->one_sweep || needs_norms(s) || no_sync)) {
        return TRIREME_ERROR_UNSUPPORTED;
    }
    if (s->one_sweep &&
        (s->strategy != TRIREME_STRATEGY_ZERO1 || s->leaves > 0 || s->max_norm > 0 ||
         s->norm_groups || s->max_value > 0 || s->hook || s->uneven || s->scaled ||
         s->reduced != 0 || s->state_path != NULL || s->unused == TRIREME_UNUSED_SKIP ||
         s->rule == TRIREME_RULE_USER || needs_norms(s))) {
        return TRIREME_ERROR_UNSUPPORTED;
    }
    return no_sync && s->leaves > 0 ? TRIREME_ERROR_UNSUPPORTED : TRIREME_OK;
}

/* ---- refusals ---- */

struct attempt {
    const struct setup *setup;
    trireme_dtype dtype;
    struct outcome outcomes[MOST_RANKS];
};

static void ask_for_it(trireme_communicator *communicator, int rank, void *context) {
    struct attempt *const attempt = context;
    const struct setup *const setup = attempt->setup;
    struct outcome *const o = &attempt->outcomes[rank];
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    make_model(o, communicator, setup, attempt->dtype, &model);
    if (o->status == TRIREME_OK) OK(o, trireme_model_seal(model));
    if (o->status == TRIREME_OK) make_optimizer(o, setup, communicator, model, &optimizer);
    struct worker worker = {.setup = setup, .outcome = o, .dtype = attempt->dtype};
    make_trainer(&worker, optimizer);
    if (o->status == TRIREME_OK) {
        OK(o, trireme_model_begin_backward(model, TRIREME_BACKWARD_FLAG_NO_SYNC));
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    int32_t sum = 0;
    const int32_t one = 1;
    if (trireme_all_reduce(communicator, &one, &sum, 1, TRIREME_DTYPE_I32, TRIREME_REDUCTION_SUM,
                           NULL) != TRIREME_OK ||
        sum != setup->world_size) {
        o->line = 0; /* the group does not live on */
    }
}

/* The reason, without the name of the function. */
static const char *
check_refused(const struct setup *setup, trireme_dtype dtype, trireme_status expected) {
    static struct attempt attempt;
    attempt = (struct attempt){.setup = setup, .dtype = dtype};
    struct outcome *const outcomes = attempt.outcomes;
    run_ranks(setup->world_size, ask_for_it, &attempt);
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

/* ---- memory ---- */

static void plan_it(trireme_communicator *communicator, int rank, void *context) {
    struct attempt *const attempt = context;
    struct outcome *const o = &attempt->outcomes[rank];
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    make_model(o, communicator, attempt->setup, attempt->dtype, &model);
    OK(o, trireme_model_seal(model));
    make_optimizer(o, attempt->setup, communicator, model, &optimizer);
    o->memory = (trireme_model_memory)TRIREME_MODEL_MEMORY_INIT;
    OK(o, trireme_model_get_memory(model, &o->memory));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

/* The least limit that a training keeps to; a byte less is refused, on all ranks with one text. */
static uint64_t least_limit(const struct setup *setup, trireme_dtype dtype) {
    struct setup planned = *setup;
    if (planned.two_models) { /* what norm_ranks takes does not count */
        planned.two_models = planned.norm_groups = false;
        planned.max_norm = 0;
    }
    static struct attempt attempt;
    attempt = (struct attempt){.setup = &planned, .dtype = dtype};
    const struct outcome *const outcomes = attempt.outcomes;
    run_ranks(setup->world_size, plan_it, &attempt);
    uint64_t most = 0;
    for (int rank = 0; rank < setup->world_size; ++rank) {
        explain(setup, &outcomes[rank], rank);
        assert_int_equal(outcomes[rank].status, TRIREME_OK);
        const trireme_model_memory *const m = &outcomes[rank].memory;
        const uint64_t all = m->planned_parameters + m->planned_gradients + m->planned_working +
                             m->planned_optimizer_state;
        if (all > most) most = all;
    }
    struct setup less = *setup;
    less.most_bytes = most - 1;
    const char *const reason = check_refused(&less, dtype, TRIREME_ERROR_OUT_OF_MEMORY);
    char limit[64];
    snprintf(limit, sizeof limit, "memory_limit_bytes is %llu bytes", (unsigned long long)most - 1);
    if (strstr(reason, limit) == NULL) fail_msg("not \"%s\" in: %s", limit, reason);
    return most;
}

/* ---- every cell ---- */

static bool prints;
static const char *only; /* one strategy; NULL: all */

static const trireme_rule_kind kByNorms[] = {TRIREME_RULE_LAMB, TRIREME_RULE_LARS,
                                             TRIREME_RULE_ADAFACTOR, TRIREME_RULE_MUON};
enum { BY_NORMS_RULES = sizeof kByNorms / sizeof kByNorms[0] };

static struct setup setup_of(int world, int strategy, enum feature a, enum feature b) {
    struct setup setup = base(world, strategy);
    if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        setup.shard_ranks = world == 4 ? 2 : (uint32_t)world;
    }
    setup.way = HOOKS;
    setup.bucket_bytes = 100;
    setup.minimum_unit_bytes = 1;
    setup.rule = (a + b) % 3 == 0 ? TRIREME_RULE_SGD : TRIREME_RULE_ADAMW;
    setup.gradients = (a + b) % 4 == 0 ? TRIREME_GRADIENTS_SUM : TRIREME_GRADIENTS_AVERAGE;
    if (a == BY_NORMS || b == BY_NORMS) {
        setup.rule = kByNorms[((int)a + (int)b + world) % BY_NORMS_RULES];
    }
    const bool in_part = a == IN_FILE_IN_PART || b == IN_FILE_IN_PART;
    if (in_part) setup.rule = TRIREME_RULE_USER; /* or the other feature's */
    if (in_part && (a == BY_NORMS || b == BY_NORMS)) setup.rule = TRIREME_RULE_LAMB;
    switch_on(&setup, a);
    switch_on(&setup, b);
    if (setup.two_models && !setup.norm_groups) setup.max_norm = 1.5;
    /* Every rank has a copy of its own, if there are too few for two copies of two. */
    if (setup.shard_ranks > 0 && setup.shard_stride > 0 && world < 4) {
        setup.shard_ranks = 1;
        setup.shard_stride = (uint32_t)world;
    }
    if (setup.reshard_ranks > 0 && strategy >= TRIREME_STRATEGY_ZERO3) {
        /* Two of four, or all of two, or one alone. */
        if (setup.shard_ranks > 0 && setup.shard_stride == 0) setup.shard_ranks = (uint32_t)world;
        if (world % 2 != 0 || setup.shard_ranks == 1) setup.reshard_ranks = 1;
    }
    return setup;
}

static bool is_refused_alone(int strategy, enum feature feature) {
    const struct setup setup = setup_of(4, strategy, feature, feature);
    return expected_of(&setup, feature == NO_SYNC) != TRIREME_OK;
}

/* One feature, or two. */
static void check_cell(int strategy, enum feature a, enum feature b) {
    const char *reason = NULL;
    const bool in_turn = a != b && (a >= IN_TURN || b >= IN_TURN);
    for (int world = 1; world <= 4; ++world) {
        if (in_turn && world != 2 + ((int)a + (int)b + strategy) % 3) continue;
        struct setup setup = setup_of(world, strategy, a, b);
        const trireme_status expected = expected_of(&setup, a == NO_SYNC || b == NO_SYNC);
        const bool narrow = a == NARROW || b == NARROW || setup.masters;
        if (expected != TRIREME_OK) {
            const trireme_dtype dtype = setup.rounded ? TRIREME_DTYPE_BF16
                                        : narrow      ? TRIREME_DTYPE_F16
                                                      : TRIREME_DTYPE_F32;
            reason = check_refused(&setup, dtype, expected);
            continue;
        }
        /* Each type once in each cell, or in turn by strategies. */
        static const trireme_dtype kTypes[] = {TRIREME_DTYPE_F32, TRIREME_DTYPE_F64,
                                               TRIREME_DTYPE_F16, TRIREME_DTYPE_BF16};
        const int turn = ((in_turn ? strategy : world) + (int)a + (int)b) % 4;
        const int any = setup.reduced != 0 && turn == 1 ? 0 : turn; /* not f64 */
        const trireme_dtype dtype = kTypes[setup.rounded ? 3 : narrow ? 2 + turn % 2 : any];
        if (a == LIMITED || b == LIMITED) setup.most_bytes = least_limit(&setup, dtype);
        switch (dtype) {
            case TRIREME_DTYPE_F32: check_f32(&setup); break;
            case TRIREME_DTYPE_F64: check_f64(&setup); break;
            case TRIREME_DTYPE_F16: check_f16(&setup); break;
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
        if (only != NULL && strcmp(only, trireme_strategy_name(strategy)) != 0) continue;
        for (int a = 0; a < FEATURES; ++a) {
            for (int b = a; b < FEATURES; ++b) {
                const bool alone = a == b;
                if (exclude_each_other(a, b)) continue;
                /* A feature that a strategy refuses alone is not tried in a pair. */
                if (!alone && (is_refused_alone(strategy, a) || is_refused_alone(strategy, b))) {
                    continue;
                }
                check_cell(strategy, a, b);
            }
        }
    }
}

/* With LAMB, LARS, ADAFACTOR and MUON on more ranks and to the byte; each type in turn. */
static void norms_of_whole_parameters_are_those_of_one_process(void **state) {
    (void)state;
    int turn = 0;
    for (int w = 0; w < WORLD_SIZES; ++w) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            if (only != NULL && strcmp(only, trireme_strategy_name(strategy)) != 0) continue;
            struct setup setup = base(kWorldSizes[w], strategy);
            if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
                setup.shard_ranks = setup.world_size % 2 == 0 ? 2 : 1;
            }
            setup.leaves = 7;
            setup.way = HOOKS;
            setup.bucket_bytes = 1;
            setup.rule = kByNorms[++turn % BY_NORMS_RULES];
            if (turn % 4 < 2) {
                check_f32(&setup);
            } else {
                check_f64(&setup);
            }
            if (is_quick()) continue;
            setup.rule = kByNorms[(turn + 1) % BY_NORMS_RULES];
            check_f16(&setup);
        }
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_of_whole_parameters_are_those_of_one_process),
        cmocka_unit_test(features_train_alone_and_in_pairs_or_are_refused),
    };
    prints = argc > 1 && strcmp(argv[1], "--table") == 0;
    only = argc > 2 ? argv[2] : NULL;
    const char *const folder = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%.90s/test-matrix-XXXXXX",
             folder != NULL ? folder : "/tmp");
    if (mkdtemp(directory) == NULL) {
        perror(directory);
        return 1;
    }
    const int failures = cmocka_run_group_tests_name("matrix", tests, NULL, NULL);
    if (rmdir(directory) != 0) { /* as if anything is left in it */
        perror(directory);
        return 1;
    }
    return failures;
}
