/*
 * Whole trainings: every strategy, world size, way of handing in gradients and kind of accumulation
 * must give exactly the parameters that plain loops over one vector give, and hold and send exactly
 * the bytes of the table in model_shard.h.
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
};

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

static void make_model(struct outcome *o, trireme_communicator *communicator,
                       const struct setup *setup, trireme_dtype dtype, trireme_model **out) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = setup->strategy;
    options.leaves = (uint32_t)setup->leaves;
    options.gradients = setup->gradients;
    options.bucket_bytes = setup->bucket_bytes;
    options.prefetch_bytes = setup->prefetch_bytes;
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

static void describe(const struct setup *s) {
    print_error(
        "world size %d, %s, leaves %d, passes %d, gradients %d, way %d, bucket_bytes %llu, "
        "prefetch_bytes %llu, %s, max_norm %g\n",
        s->world_size, trireme_strategy_name(s->strategy), s->leaves, s->passes, (int)s->gradients,
        (int)s->way, (unsigned long long)s->bucket_bytes, (unsigned long long)s->prefetch_bytes,
        trireme_optimizer_kind_name(s->rule), s->max_norm);
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

static int owned(int elements, int world_size, int rank) {
    return elements / world_size + (rank < elements % world_size ? 1 : 0);
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

/* Trainable elements of a unit that one rank owns. */
static int unit_trainable(int unit, int world_size, int rank) {
    int begin = 0, owner_first = 0, count = 0;
    while (begin < ELEMENTS && kParameters[parameter_of(begin)].unit < unit) ++begin;
    for (int r = 0; r < rank; ++r) owner_first += owned(unit_elements(unit), world_size, r);
    for (int i = 0; i < owned(unit_elements(unit), world_size, rank); ++i) {
        if (!is_frozen(begin + owner_first + i)) ++count;
    }
    return count;
}

static void check_bytes(const struct setup *s, const struct outcome *o, int rank, uint64_t size) {
    const int n = s->world_size;
    const bool whole_gradients = s->strategy <= TRIREME_STRATEGY_ZERO1;
    uint64_t shard = 0, trainable = 0, own_trainable = 0, trained_units_given = 0;
    for (int unit = 0; unit < UNITS; ++unit) {
        shard += (uint64_t)owned(unit_elements(unit), n, rank);
        own_trainable += (uint64_t)unit_trainable(unit, n, rank);
        uint64_t in_unit = 0;
        for (int r = 0; r < n; ++r) in_unit += (uint64_t)unit_trainable(unit, n, r);
        trainable += in_unit;
        if (in_unit > 0)
            trained_units_given += (uint64_t)(owned(unit_elements(unit), n, rank) * (n - 1));
    }
    const uint64_t states = s->rule == TRIREME_OPTIMIZER_ADAMW ? 2 : 1;
    const bool zero3 = s->strategy == TRIREME_STRATEGY_ZERO3;
    const uint64_t parameters = size * (zero3 ? shard : ELEMENTS);
    const uint64_t gradients = size * (whole_gradients ? trainable : own_trainable);
    const uint64_t state =
        size * states * (s->strategy == TRIREME_STRATEGY_DATA_PARALLEL ? trainable : own_trainable);
    assert_int_equal(o->memory.planned_parameters, parameters);
    assert_int_equal(o->memory.planned_gradients, gradients);
    assert_int_equal(o->memory.planned_optimizer_state, state);
    assert_int_equal(o->memory.allocated_parameters, parameters);
    assert_int_equal(o->memory.allocated_gradients, gradients);
    assert_int_equal(o->memory.allocated_optimizer_state, state);
    assert_int_equal(o->memory.allocated_working, o->memory.planned_working);

    /* Working memory, where a bucket is a unit and gradients come in the order of buckets. */
    if (s->bucket_bytes == 1 && s->way == HOOKS) {
        uint64_t working = round_up(1024 + 32 * (uint64_t)n) + round_up(TIED * size);
        if (s->leaves > 0) {
            uint64_t levels =
                whole_gradients ? 1 : 0; /* zero2 and zero3 keep the last with the gradients */
            for (int l = s->leaves; l > 1; l /= 2) ++levels;
            working += round_up(levels * own_trainable * size);
        }
        if (!whole_gradients && s->leaves > 0 && s->leaves < n)
            working += round_up(trainable * size);
        else if (!whole_gradients)
            working += 2 * round_up(35 * size);
        if (zero3) {
            uint64_t all = 0, ahead = s->prefetch_bytes > 0 ? s->prefetch_bytes / 64 * 64
                                                            : round_up(35 * size);
            for (int unit = 0; unit < UNITS; ++unit)
                all += round_up((uint64_t)unit_elements(unit) * size);
            all -= round_up(35 * size);
            working += round_up(35 * size) + (all < ahead ? all : ahead);
        }
        assert_int_equal(o->memory.planned_working, working);
    }

    /* Gradients to their owners; then what the strategy gives out. */
    uint64_t sent = trainable - own_trainable;
    if (s->strategy == TRIREME_STRATEGY_DATA_PARALLEL)
        sent += own_trainable * (uint64_t)(n - 1);
    else if (!zero3)
        sent += trained_units_given;
    else
        sent += 2 * shard * (uint64_t)(n - 1);
    assert_int_equal(o->memory.planned_step_bytes, sent * size);
    /* With these nothing else travels: the backend has moved what the model says it gave. */
    /* Over a transport, algorithms also pass on what others gave. */
    if (s->max_norm == 0 && s->rule != TRIREME_OPTIMIZER_USER && !ranks_use_transport()) {
        assert_int_equal(o->memory.sent_step_bytes, o->sent);
    }
    const int rounds = s->leaves > 0 ? (s->leaves + n - 1) / n : s->passes;
    const bool has_leaf = s->leaves == 0 || rank < s->leaves;
    if (s->way == HOOKS && rounds == 1 && has_leaf && s->prefetch_bytes != 1000000) {
        assert_int_equal(o->memory.sent_step_bytes, sent * size);
    }
}

/* ---- both types ---- */

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

static int32_t TRIREME_CALL user_rule(const trireme_update *update, void *user_data) {
    (void)user_data;
    return update->dtype == TRIREME_DTYPE_F32 ? user_rule_f32(update) : user_rule_f64(update);
}

static void check_both(const struct setup *setup) {
    check_f32(setup);
    check_f64(setup);
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
        check_both(&setup);
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
        check_both(&setup);
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
        check_both(&setup);
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
        check_both(&setup);
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
            check_both(&setup);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
