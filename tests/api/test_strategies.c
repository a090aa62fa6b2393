/*
 * Whole trainings: every strategy, world size, way of handing in gradients and
 * kind of accumulation must give exactly the parameters that plain loops over
 * one vector give, and hold and send exactly the bytes of the table in
 * model_shard.h.
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

/* Tied, frozen, empty, scalar, a unit of frozen ones, a unit of nothing, and
 * odd lengths. */
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

static bool is_frozen(int element) { return kParameters[parameter_of(element)].frozen; }

/* ---- how it is trained ---- */

enum way { FLAT, HOOKS, SHUFFLED };

struct setup {
    int world_size;
    trireme_strategy strategy;
    int leaves; /* 0: ordinary, with `passes` micro-batches a step */
    int passes;
    int32_t gradients;
    enum way way;
    uint64_t bucket_bytes;
    uint64_t prefetch_bytes;
    trireme_optimizer_kind rule;
    double max_norm;
    double max_value;
    uint64_t minimum_unit_bytes; /* 0: a group for each unit */
    uint64_t persistent_unit_bytes;
    uint64_t first_bucket_bytes;
    uint32_t shard_ranks;
    int32_t unused; /* what happens where unused_in() says so */
    bool uneven;    /* some ranks are absent here and there, the odd ones in the last
                  step */
    bool hook;
    uint64_t check_every;
    bool shared; /* one copy of the parameters */
    bool one_sweep;
    bool resumed; /* saved after the first step, and gone on with in a new model */
};

/* Whether a parameter gets no gradient from a leaf; the last one gets none at
 * all in step 1. */
static bool unused_in(const struct setup *setup, int step, int parameter, int leaf) {
    if (setup->unused == TRIREME_UNUSED_ERROR) return false;
    return (parameter * 5 + leaf * 3 + step) % 4 == 0 || (step == 1 && parameter == 10);
}

/* Whether a rank has data for its pass. */
static bool joins(const struct setup *setup, int step, int rank) {
    return setup->uneven && step == 2 && rank % 2 == 1;
}
static bool absent_in(const struct setup *setup, int step, int pass, int rank) {
    return setup->uneven && (joins(setup, step, rank) || (rank + pass * 2 + step) % 3 == 1);
}

struct outcome {
    trireme_status status; /* the first failure */
    int line;
    char message[256];
    double norms[STEPS];
    trireme_model_info info;
    trireme_model_memory memory;
    uint64_t sent; /* in the last step, as the communicator counts it */
    uint64_t steps;
};

struct training {
    const struct setup *setup;
    void *results;
};

static void note(struct outcome *outcome, trireme_status status, int line) {
    if (status == TRIREME_OK || outcome->status != TRIREME_OK) return;
    outcome->status = status;
    outcome->line = line;
    snprintf(outcome->message, sizeof outcome->message, "%s", trireme_last_error());
}
#define OK(outcome, call) note(outcome, call, __LINE__)

static int32_t TRIREME_CALL bucket_hook(const trireme_bucket *bucket, void *user_data);

static void make_model(struct outcome *o, trireme_communicator *communicator,
                       const struct setup *setup, trireme_dtype dtype, trireme_model **out) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = setup->strategy;
    options.leaves = (uint32_t)setup->leaves;
    options.gradients = setup->gradients;
    options.bucket_bytes = setup->bucket_bytes;
    options.prefetch_bytes = setup->prefetch_bytes;
    options.minimum_unit_bytes = setup->minimum_unit_bytes > 0 ? setup->minimum_unit_bytes : 1;
    options.persistent_unit_bytes = setup->persistent_unit_bytes;
    options.first_bucket_bytes = setup->first_bucket_bytes;
    options.shard_ranks = setup->shard_ranks;
    options.unused = setup->unused;
    options.flags = setup->uneven ? TRIREME_MODEL_UNEVEN : 0;
    options.bucket_hook = setup->hook ? bucket_hook : NULL;
    options.hook_data = (void *)setup;
    options.share_parameters = setup->shared ? TRIREME_SHARE_ALWAYS : TRIREME_SHARE_NEVER;
    OK(o, trireme_model_create(communicator, &options, out));
    for (int i = 0; i < PARAMETERS; ++i) {
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = kParameters[i].name;
        parameter.unit = kParameters[i].unit_name;
        parameter.tied_to = kParameters[i].tied_to;
        parameter.dtype = dtype;
        parameter.dimensions = kParameters[i].dimensions;
        parameter.shape = kParameters[i].shape;
        parameter.flags = kParameters[i].frozen ? TRIREME_PARAMETER_FROZEN : 0;
        OK(o, trireme_model_add_parameter(*out, &parameter, NULL));
    }
}

static int32_t TRIREME_CALL user_rule(const trireme_update *update, void *user_data);

static void make_optimizer(struct outcome *o, const struct setup *setup, trireme_model *model,
                           trireme_optimizer **out) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = setup->rule;
    options.learning_rate = setup->rule == TRIREME_OPTIMIZER_SGD ? 0.05 : 0.01;
    options.max_norm = setup->max_norm;
    options.max_value = setup->max_value;
    options.check_every = setup->check_every;
    options.flags = setup->one_sweep ? TRIREME_OPTIMIZER_ONE_SWEEP : 0;
    if (setup->rule == TRIREME_OPTIMIZER_SGD) {
        options.momentum = 0.9;
        options.weight_decay = 0.01;
    } else if (setup->rule == TRIREME_OPTIMIZER_ADAMW) {
        options.weight_decay = 0.1;
    } else {
        options.state_count = 1;
        options.update = user_rule;
    }
    OK(o, trireme_optimizer_create(model, &options, out));
}

/* All there was ends, and what was saved of it begins anew. */
static void resume(struct outcome *o, const struct setup *setup, trireme_dtype dtype,
                   trireme_communicator *communicator, trireme_model **model,
                   trireme_optimizer **optimizer) {
    uint64_t bytes = 0;
    OK(o, trireme_optimizer_saved_bytes(*optimizer, &bytes));
    void *const state = malloc(bytes + 1);
    if (state == NULL) abort();
    OK(o, trireme_optimizer_save(*optimizer, state, bytes, NULL));
    trireme_optimizer_destroy(*optimizer);
    trireme_model_destroy(*model);
    *model = NULL;
    *optimizer = NULL;
    make_model(o, communicator, setup, dtype, model);
    OK(o, trireme_model_seal(*model));
    make_optimizer(o, setup, *model, optimizer);
    OK(o, trireme_optimizer_load(*optimizer, state, bytes));
    free(state);
}

static void describe(const struct setup *s) {
    print_error(
        "world size %d, %s, leaves %d, passes %d, gradients %d, way %d, "
        "bucket_bytes %llu, "
        "prefetch_bytes %llu, %s, max_norm %g, max_value %g, "
        "minimum_unit_bytes %llu, "
        "persistent_unit_bytes %llu, shard_ranks %u, unused %d, uneven %d, hook %d, shared %d, "
        "one sweep %d\n",
        s->world_size, trireme_strategy_name(s->strategy), s->leaves, s->passes, (int)s->gradients,
        (int)s->way, (unsigned long long)s->bucket_bytes, (unsigned long long)s->prefetch_bytes,
        trireme_optimizer_kind_name(s->rule), s->max_norm, s->max_value,
        (unsigned long long)s->minimum_unit_bytes, (unsigned long long)s->persistent_unit_bytes,
        s->shard_ranks, (int)s->unused, s->uneven, s->hook, s->shared, s->one_sweep);
}

static void explain(const struct setup *setup, const struct outcome *outcome, int rank) {
    if (outcome->status == TRIREME_OK) return;
    print_error("rank %d, line %d: %s\n", rank, outcome->line, outcome->message);
    describe(setup);
}

static uint64_t bytes_sent(struct outcome *o, const trireme_communicator *communicator) {
    trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    OK(o, trireme_communicator_get_statistics(communicator, &statistics));
    return statistics.bytes_sent;
}

/* ---- bytes: the table of model_shard.h, once more ---- */

static uint64_t round_up(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

static int part(int elements, int parts, int which) {
    return elements / parts + (which < elements % parts ? 1 : 0);
}

static int unit_elements(int unit) {
    int elements = 0;
    for (int i = 0; i < PARAMETERS; ++i) {
        if (kParameters[i].unit == unit && kParameters[i].tied_to == NULL) {
            elements += kParameters[i].count;
        }
    }
    return elements;
}

/* Units that are gathered together: from `first` to before `end`. Whole ones
 * stay on every rank. */
struct group {
    int first_unit, end_unit;
    int first, count; /* in the flat vector */
    bool stays;       /* so: callers need not gather them */
    bool whole;
};

static int make_groups(const struct setup *s, uint64_t size, struct group *groups) {
    int count = 0, at = 0;
    for (int unit = 0; unit < UNITS; ++unit) {
        const int elements = unit_elements(unit);
        const bool stays = s->strategy <= TRIREME_STRATEGY_ZERO2 ||
                           (uint64_t)elements * size < s->persistent_unit_bytes;
        const bool whole = stays && !(s->shared && s->world_size > 1 && s->shard_ranks != 1);
        struct group *const last = count > 0 ? &groups[count - 1] : NULL;
        if (last == NULL || (uint64_t)last->count * size >= s->minimum_unit_bytes ||
            s->minimum_unit_bytes == 0 || last->stays != stays) {
            groups[count++] = (struct group){unit, unit + 1, at, elements, stays, whole};
        } else {
            last->end_unit = unit + 1;
            last->count += elements;
        }
        at += elements;
    }
    return count;
}

/* Elements of a group that a rank keeps, and updates. */
static void shares(const struct setup *s, const struct group *group, int rank, int *held_first,
                   int *held, int *owned_first, int *owned) {
    const int parts = group->whole                                   ? 1
                      : s->strategy == TRIREME_STRATEGY_HYBRID_SHARD ? (int)s->shard_ranks
                                                                     : s->world_size;
    *held_first = group->first;
    for (int i = 0; i < rank % parts; ++i) *held_first += part(group->count, parts, i);
    *held = part(group->count, parts, rank % parts);
    *owned_first = *held_first;
    for (int i = 0; i < rank / parts; ++i) *owned_first += part(*held, s->world_size / parts, i);
    *owned = part(*held, s->world_size / parts, rank / parts);
}

/* `size` of a parameter, `wide` of its gradient and state. */
static void check_bytes(const struct setup *s, const struct outcome *o, int rank, uint64_t size,
                        uint64_t wide) {
    const int n = s->world_size;
    const bool whole_gradients = s->strategy <= TRIREME_STRATEGY_ZERO1;
    const bool whole_state = s->strategy == TRIREME_STRATEGY_DATA_PARALLEL;
    struct group groups[UNITS];
    const int group_count = make_groups(s, size, groups);
    uint64_t kept = 0, trainable = 0, own_trainable = 0, given = 0, gathered = 0, last = 0;
    uint64_t pool = 0, largest = 0;
    for (int i = 0; i < group_count; ++i) {
        const struct group *const group = &groups[i];
        int held_first, held, owned_first, owned;
        shares(s, group, rank, &held_first, &held, &owned_first, &owned);
        kept += (uint64_t)held;
        uint64_t in_group = 0;
        for (int e = group->first; e < group->first + group->count; ++e) {
            if (!is_frozen(e)) ++in_group;
        }
        trainable += in_group;
        for (int e = owned_first; e < owned_first + owned; ++e) {
            if (!is_frozen(e)) ++own_trainable;
        }
        /* Who holds the same elements gets those of this rank. */
        const int parts =
            group->count > 0 && !group->whole ? (s->shard_ranks > 0 ? (int)s->shard_ranks : n) : 1;
        if (in_group > 0 && !whole_state) given += (uint64_t)(owned * (n / parts - 1));
        if (group->whole || n == 1 || s->shard_ranks == 1 || s->shared) continue;
        gathered += 2 * (uint64_t)(held * (parts - 1));
        last = group->end_unit - group->first_unit > 1 ? (uint64_t)(held * (parts - 1)) : 0;
        pool += round_up((uint64_t)group->count * size);
        if (round_up((uint64_t)group->count * size) > largest) {
            largest = round_up((uint64_t)group->count * size);
        }
    }
    gathered -= last; /* where forward turns round, a group of several units stays */
    const uint64_t states = s->rule == TRIREME_OPTIMIZER_ADAMW ? 2 : 1;
    const uint64_t gradients = wide * (whole_gradients ? trainable : own_trainable);
    const uint64_t state = wide * states * (whole_state ? trainable : own_trainable);
    assert_int_equal(o->info.shared_bytes,
                     s->shared && n > 1 && s->shard_ranks != 1 ? ELEMENTS * size : 0);
    assert_int_equal(o->memory.planned_parameters, size * kept);
    assert_int_equal(o->memory.planned_gradients, gradients);
    assert_int_equal(o->memory.planned_optimizer_state, state);
    assert_int_equal(o->memory.allocated_parameters, size * kept);
    assert_int_equal(o->memory.allocated_gradients, gradients);
    assert_int_equal(o->memory.allocated_optimizer_state, state);
    assert_int_equal(o->memory.allocated_working, o->memory.planned_working);

    /* Working memory, where a bucket is a unit and gradients come in the order of
   * buckets. */
    if (s->bucket_bytes == 1 && s->way == HOOKS && s->minimum_unit_bytes == 0) {
        uint64_t working = 1024 + 32 * (uint64_t)n;
        if (s->unused == TRIREME_UNUSED_SKIP) working += 8 * ((PARAMETERS + 3) / 4);
        working = round_up(working) + (s->uneven ? 64 : 0) + round_up(TIED * wide);
        if (s->leaves > 0) {
            uint64_t levels =
                whole_gradients ? 1 : 0; /* zero2 and zero3 keep the last with the gradients */
            for (int l = s->leaves; l > 1; l /= 2) ++levels;
            working += round_up(levels * own_trainable * wide);
        }
        if (!whole_gradients && s->leaves > 0 && s->leaves < n)
            working += round_up(trainable * wide);
        else if (!whole_gradients)
            working += 2 * round_up(35 * wide);
        if (largest > 0) {
            const uint64_t ahead = s->prefetch_bytes > 0 ? s->prefetch_bytes / 64 * 64 : largest;
            working += largest + (pool - largest < ahead ? pool - largest : ahead);
        }
        assert_int_equal(o->memory.planned_working, working);
    }

    /* Gradients to their owners; then what the strategy gives out. */
    uint64_t sent = (trainable - own_trainable) * wide + (given + gathered) * size;
    if (whole_state) sent += own_trainable * (uint64_t)(n - 1) * wide;
    assert_int_equal(o->memory.planned_step_bytes, sent);
    /* With these nothing else travels: the backend has moved what the model says
   * it gave. */
    /* Over a transport, algorithms also pass on what others gave; a hybrid
     shard's groups count for themselves. */
    const bool agrees = s->max_norm > 0 || s->rule == TRIREME_OPTIMIZER_USER || s->uneven ||
                        s->hook || s->unused == TRIREME_UNUSED_SKIP || s->check_every > 0;
    if (!agrees && !ranks_use_transport() && s->shard_ranks == 0) {
        assert_int_equal(o->memory.sent_step_bytes, o->sent);
    }
    const int rounds = s->leaves > 0 ? (s->leaves + n - 1) / n : s->passes;
    const bool has_leaf = s->leaves == 0 || rank < s->leaves;
    if (s->way == HOOKS && rounds == 1 && has_leaf && s->prefetch_bytes != 1000000 && !s->uneven) {
        assert_int_equal(o->memory.sent_step_bytes, sent);
    }
}

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

static float value_of(trireme_dtype dtype, uint16_t bits) { return (float)number_at(dtype, &bits); }
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

static int32_t TRIREME_CALL user_rule(const trireme_update *update, void *user_data) {
    (void)user_data;
    switch (update->dtype) {
        case TRIREME_DTYPE_F16: return user_rule_f16(update);
        case TRIREME_DTYPE_BF16: return user_rule_bf16(update);
        case TRIREME_DTYPE_F32: return user_rule_f32(update);
        default: return user_rule_f64(update);
    }
}

/* Before the reduction times 1.5, after it 0.25 more; and what it is shown must
 * make sense. */
static int32_t TRIREME_CALL bucket_hook(const trireme_bucket *bucket, void *user_data) {
    const struct setup *const setup = user_data;
    uint64_t position = 0;
    for (uint64_t i = 0; i < bucket->part_count; ++i) {
        const trireme_bucket_part *const shown = &bucket->parts[i];
        if (shown->position != position || shown->count == 0) return 1;
        if (shown->parameter >= PARAMETERS || kParameters[shown->parameter].frozen) return 2;
        if (shown->first + shown->count > (uint64_t)kParameters[shown->parameter].count) return 3;
        position += shown->count;
    }
    if (position != bucket->elements || bucket->struct_size != sizeof *bucket) return 4;
    if (bucket->phase == TRIREME_HOOK_AFTER && bucket->pass != 0) return 5;
    if (bucket->pass >= (uint32_t)(setup->leaves > 0 ? setup->leaves : setup->passes)) return 6;
    for (uint64_t i = 0; i < bucket->elements; ++i) {
        const bool before = bucket->phase == TRIREME_HOOK_BEFORE;
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

static void check_all(const struct setup *setup) {
    check_f32(setup);
    check_f64(setup);
    check_f16(setup);
    check_bf16(setup);
}

static const int kWorldSizes[] = {1, 2, 3, 4, 5, 8};
enum { WORLD_SIZES = sizeof kWorldSizes / sizeof kWorldSizes[0] };

static struct setup base(int world_size, trireme_strategy strategy) {
    return (struct setup){.world_size = world_size,
                          .strategy = strategy,
                          .passes = 1,
                          .way = FLAT,
                          .rule = TRIREME_OPTIMIZER_SGD};
}

#define FOR_EACH_SPREAD(world, strategy)                                                    \
    for (int w_ = 0; w_ < WORLD_SIZES; ++w_)                                                \
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

static void reproducible_training_is_one_process_with_hooks_and_a_bucket_for_each_unit(
    void **state) {
    (void)state;
    FOR_EACH_SPREAD(world, strategy) {
        struct setup setup = base(world, strategy);
        setup.leaves = 7;
        setup.way = HOOKS;
        setup.bucket_bytes = 1;
        setup.rule = TRIREME_OPTIMIZER_ADAMW;
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
        setup.rule = TRIREME_OPTIMIZER_ADAMW;
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
        setup.rule = TRIREME_OPTIMIZER_USER;
        setup.max_norm = 2;
        check_all(&setup);
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
    for (int i = 0; i < HYBRIDS; ++i) {
        struct setup setup = base(kHybrids[i][0], TRIREME_STRATEGY_HYBRID_SHARD);
        setup.shard_ranks = (uint32_t)kHybrids[i][1];
        setup.way = HOOKS;
        setup.check_every = 1;
        for (int leaves = 0; leaves <= 7; leaves += 7) {
            setup.leaves = leaves;
            setup.bucket_bytes = 1;
            setup.rule = TRIREME_OPTIMIZER_ADAMW;
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
            setup.rule = TRIREME_OPTIMIZER_SGD;
            check_all(&setup);
            setup.way = HOOKS;
            setup.bucket_bytes = 1;
            setup.rule = TRIREME_OPTIMIZER_ADAMW;
            setup.max_norm = 1.5;
            check_all(&setup);
            setup.minimum_unit_bytes = 100;
            setup.persistent_unit_bytes = 60;
            setup.rule = TRIREME_OPTIMIZER_USER;
            check_all(&setup);
            setup.minimum_unit_bytes = setup.persistent_unit_bytes = 0;
        }
    }
    for (int i = 0; i < HYBRIDS; ++i) {
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
    for (int w = 0; w < WORLD_SIZES; ++w) {
        for (int shared = 0; shared < (ranks_use_transport() ? 1 : 2); ++shared) {
            struct setup setup = base(kWorldSizes[w], TRIREME_STRATEGY_ZERO1);
            setup.one_sweep = true;
            setup.shared = shared;
            check_all(&setup);
            setup.rule = TRIREME_OPTIMIZER_ADAMW;
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
            for (int features = 1; features < 64; ++features) {
                struct setup setup = base(world, strategy);
                if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
                    setup.shard_ranks = world % 2 == 0 ? 2 : 1;
                }
                setup.leaves = features % 2 == 1 ? 5 : 0;
                setup.passes = features % 3 == 0 ? 2 : 1;
                setup.way = features % 5 == 0 ? SHUFFLED : HOOKS;
                setup.rule = features % 7 == 0  ? TRIREME_OPTIMIZER_USER
                             : features % 7 < 4 ? TRIREME_OPTIMIZER_ADAMW
                                                : TRIREME_OPTIMIZER_SGD;
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
                switch (features / 2 % 4) {
                    case 0: check_f32(&setup); break;
                    case 1: check_f64(&setup); break;
                    case 2: check_f16(&setup); break;
                    default: check_bf16(&setup);
                }
            }
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
        cmocka_unit_test(prefetch_changes_no_bit),
        cmocka_unit_test(groups_of_units_change_no_bit),
        cmocka_unit_test(units_that_persist_change_no_bit),
        cmocka_unit_test(hybrid_shards_train_as_one_process),
        cmocka_unit_test(ranks_that_share_one_copy_train_as_one_process),
        cmocka_unit_test(one_sweep_changes_no_bit),
        cmocka_unit_test(features_work_with_each_other_and_every_strategy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
