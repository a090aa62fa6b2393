/*
 * Models whose parameters, gradients and state of the optimizer are memory of a device, over a
 * driver of the tests. It runs work at once, as late as it may or by chance, and watches for races.
 * The oracle is the same training on the host, bit for bit, and for one rule plain loops.
 */
#include <trireme/trireme.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "device_ranks.h"
#include "options.h"

/* ---- memory of a rank, on the host or on a device ---- */

struct side {
    int device; /* -1: the host */
    trireme_communicator *communicator;
};

static void *new_memory(const struct side *side, size_t bytes) {
    void *const memory = side->device < 0
                             ? malloc(bytes)
                             : FAKE(fake_memory, "fake_device_memory")(side->device, bytes);
    CHECK(memory != NULL);
    return memory;
}

static void end_memory(const struct side *side, void *memory) {
    if (side->device < 0) free(memory);
}

/* Both are queued in the default stream, where the library looks. */
static void store(const struct side *side, void *to, const void *from, size_t bytes) {
    if (side->device < 0) {
        memcpy(to, from, bytes);
    } else {
        FAKE(fake_writes, "fake_queue_write")(side->device, NULL, to, from, bytes);
    }
}

static void load(const struct side *side, void *to, const void *from, size_t bytes) {
    if (side->device < 0) {
        memcpy(to, from, bytes);
        return;
    }
    FAKE(fake_reads, "fake_queue_read")(side->device, NULL, to, from, bytes);
    FAKE(fake_synchronizes, "fake_synchronize")(side->device, NULL);
}

/* ---- a training ---- */

/* The last gradient is larger than what goes to the device at once: 64 KiB, half of the pinned
 * memory of a small model. */
enum { PARAMETERS = 7, UNITS = 3, STEPS = 3, MOST_ELEMENTS = 20000, MOST_BYTES = 400 * 1000 };
static const char *const kUnits[UNITS] = {"first", "second", "third"};
static const struct {
    const char *name, *unit, *tied_to;
    uint64_t elements;
    uint32_t flags;
} kParameters[PARAMETERS] = {
    {"a", "first", NULL, 7, 0},
    {"b", "first", NULL, 129, 0},
    {"frozen", "second", NULL, 5, TRIREME_PARAMETER_FLAG_FROZEN},
    {"c", "second", NULL, 1000, 0},
    {"d", "second", NULL, 0, 0},
    {"tied", NULL, "b", 129, 0},
    {"e", "third", NULL, MOST_ELEMENTS, 0},
};

struct setup {
    int world;
    bool one_device;
    trireme_strategy strategy;
    trireme_rule_kind rule;
    trireme_dtype dtype;
    uint32_t leaves, flags; /* of the optimizer */
    int passes;
    bool nesterov, flat, resumed, ranges, skips, grouped, uneven, touched;
    trireme_dtype reduced; /* as which gradients travel; 0: as they are */
    double max_norm, max_value;
    bool scaled, scheduled;
    bool kept;        /* gathered units stay */
    uint32_t replica; /* hybrid_shard: ranks of a copy */
};

static bool in_shards(const struct setup *setup) {
    return setup->strategy == TRIREME_STRATEGY_ZERO3 ||
           setup->strategy == TRIREME_STRATEGY_HYBRID_SHARD;
}

struct result {
    unsigned char parameters[MOST_BYTES], state[4 * MOST_BYTES];
    unsigned char seen[2][UNITS][MOST_BYTES / 2]; /* of units, in backward and in forward */
    uint64_t state_bytes, ranges_hash;
    double norm, scale, rate;
};

static uint64_t noise(uint64_t x) {
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

static double number(uint64_t seed, uint64_t i) {
    const uint64_t bits = noise(seed * 1000003 + i);
    return ldexp((double)(int)(bits % 2001) - 1000, -(int)(bits >> 40) % 9 - 6) / 3;
}

/* Numbers as elements of a dtype: those of 16 bits are cut. */
static void make_numbers(void *to, trireme_dtype dtype, uint64_t seed, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
        const double value = number(seed, i);
        const float narrow = (float)value;
        uint32_t bits;
        memcpy(&bits, &narrow, sizeof bits);
        if (dtype == TRIREME_DTYPE_F64) ((double *)to)[i] = value;
        if (dtype == TRIREME_DTYPE_F32) ((float *)to)[i] = narrow;
        if (dtype == TRIREME_DTYPE_BF16) ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
        if (dtype == TRIREME_DTYPE_F16) {
            const int exponent = (int)(bits >> 23 & 0xff) - 127 + 15;
            const bool fits = exponent > 0 && exponent < 31;
            ((uint16_t *)to)[i] =
                (uint16_t)((bits >> 16 & 0x8000) |
                           (fits ? (uint32_t)exponent << 10 | (bits >> 13 & 0x3ff) : 0));
        }
    }
}

static trireme_model *make_device_model(const struct side *side, const struct setup *setup) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = setup->strategy;
    options.leaves = setup->leaves;
    options.reduce_dtype = setup->reduced;
    options.flags = setup->uneven ? TRIREME_MODEL_FLAG_UNEVEN : 0;
    options.unused = setup->skips ? TRIREME_UNUSED_SKIP : TRIREME_UNUSED_ERROR;
    buckets_of(&options)->bytes = 2000;
    units_of(&options)->minimum_bytes = 1;
    if (in_shards(setup)) {
        if (setup->kept) options.flags |= TRIREME_MODEL_FLAG_KEEP_GATHERED;
        if (setup->passes == 2) units_of(&options)->persistent_bytes = 2000; /* the first unit */
        shards_of(&options)->share = TRIREME_SHARE_NEVER;                    /* as a device does */
        shards_of(&options)->ranks = setup->replica;
    }
    trireme_model *model = NULL;
    CHECK(trireme_model_create(side->communicator, &options, &model) == TRIREME_OK);
    for (int i = 0; i < PARAMETERS; ++i) {
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = kParameters[i].name;
        parameter.unit = kParameters[i].unit;
        parameter.tied_to = kParameters[i].tied_to;
        parameter.flags = kParameters[i].flags;
        parameter.dtype = setup->dtype;
        parameter.dimensions = 1;
        parameter.shape = &kParameters[i].elements;
        if (setup->grouped && parameter.tied_to == NULL) parameter.parameter_group = i % 2;
        CHECK(trireme_model_add_parameter(model, &parameter, NULL) == TRIREME_OK);
    }
    CHECK(trireme_model_seal(model) == TRIREME_OK);
    return model;
}

static trireme_optimizer *make_optimizer(trireme_model *model, const struct setup *setup) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = setup->rule;
    options.learning_rate = 0.01;
    options.weight_decay = setup->rule == TRIREME_RULE_SGD && !setup->nesterov ? 0 : 0.1;
    options.flags = setup->flags;
    if (setup->nesterov) {
        trireme_sgd_options *const sgd = sgd_of(&options);
        sgd->momentum = 0.9;
        sgd->flags = TRIREME_SGD_FLAG_NESTEROV;
    }
    if (setup->rule == TRIREME_RULE_LARS && setup->world > 2) set_momentum(&options, 0.9);
    if (setup->max_norm > 0) clipping_of(&options)->max_norm = setup->max_norm;
    if (setup->max_value > 0) clipping_of(&options)->max_value = setup->max_value;
    if (setup->scaled) loss_scale_of(&options)->initial_scale = 256;
    if (setup->grouped) {
        const double norms[] = {0.5, 0}, rates[] = {0.5, 2}, decays[] = {0, 0.2};
        groups_of(&options, 2);
        set_group_norms(&options, norms);
        set_group_rates(&options, rates);
        set_group_decays(&options, decays);
    }
    trireme_optimizer *optimizer = NULL;
    CHECK(trireme_optimizer_create(model, &options, &optimizer) == TRIREME_OK);
    if (setup->scheduled) {
        trireme_linear_schedule_options schedule = TRIREME_LINEAR_SCHEDULE_OPTIONS_INIT;
        schedule.warm_up_steps = 2;
        schedule.total_steps = 5;
        CHECK(trireme_optimizer_set_schedule(optimizer, &schedule.base) == TRIREME_OK);
    }
    return optimizer;
}

static void check_memory(trireme_model *model) {
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    CHECK(trireme_model_get_memory(model, &memory) == TRIREME_OK);
    CHECK(memory.planned_parameters == memory.allocated_parameters);
    CHECK(memory.planned_gradients == memory.allocated_gradients);
    CHECK(memory.planned_optimizer_state == memory.allocated_optimizer_state);
    CHECK(memory.planned_working == memory.allocated_working);
}

static void
set_parameters(const struct side *side, trireme_model *model, const struct setup *setup) {
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    CHECK(trireme_model_get_info(model, &info) == TRIREME_OK);
    const size_t bytes = info.elements * trireme_dtype_bytes(setup->dtype);
    const int root = setup->world - 1;
    void *const values = new_memory(side, bytes), *const here = malloc(bytes);
    CHECK(here != NULL);
    make_numbers(here, setup->dtype, 77, info.elements);
    store(side, values, here, bytes);
    CHECK(trireme_model_broadcast_parameters(model, info.rank == root ? values : NULL,
                                             info.elements, setup->dtype, root) == TRIREME_OK);
    memset(here, 0xee, bytes);
    store(side, values, here, bytes); /* from now on it is the caller's again */
    end_memory(side, values);
    free(here);
}

/* The caller queues a look at all parameters of a unit, and releases it at once. */
static void use_unit(const struct side *side, trireme_model *model, const struct setup *setup,
                     uint64_t unit, unsigned char *seen) {
    CHECK(trireme_model_gather_unit(model, unit) == TRIREME_OK);
    for (int i = 0; i < PARAMETERS; ++i) {
        const uint64_t bytes = kParameters[i].elements * trireme_dtype_bytes(setup->dtype);
        if (kParameters[i].unit == NULL || strcmp(kParameters[i].unit, kUnits[unit]) != 0) continue;
        void *data = NULL;
        CHECK(trireme_model_get_parameter_data(model, (uint64_t)i, &data, NULL) == TRIREME_OK);
        if (side->device < 0) {
            memcpy(seen, data, bytes);
        } else {
            FAKE(fake_reads, "fake_queue_read")(side->device, NULL, seen, data, bytes);
        }
        seen += bytes;
    }
    CHECK(trireme_model_release_unit(model, unit) == TRIREME_OK);
}

/* Forward and backward: what the units hold is a part of the result. */
static void use_units(const struct side *side, trireme_model *model, const struct setup *setup,
                      struct result *result) {
    for (uint64_t i = 0; i < 2 * UNITS; ++i) {
        const uint64_t unit = i < UNITS ? i : 2 * UNITS - 1 - i;
        use_unit(side, model, setup, unit, result->seen[i < UNITS][unit]);
    }
}

/* One backward pass. `spoiled`: with an inf among the gradients of rank 0. */
static void pass(const struct side *side, trireme_model *model, const struct setup *setup,
                 uint64_t seed, bool last, bool spoiled) {
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    CHECK(trireme_model_get_info(model, &info) == TRIREME_OK);
    const size_t size = trireme_dtype_bytes(setup->dtype);
    const bool no_sync = !last && setup->leaves == 0;
    void *const gradient = new_memory(side, info.elements * size + 8);
    void *const here = malloc(info.elements * size + 8);
    CHECK(here != NULL);
    const uint64_t rank_seed = seed * 16 + (uint64_t)info.rank;
    if (setup->flat) {
        make_numbers(here, setup->dtype, rank_seed, info.elements);
        store(side, gradient, here, info.elements * size);
        CHECK(trireme_model_accumulate_flat(model, gradient, info.elements, setup->dtype,
                                            no_sync ? TRIREME_BACKWARD_FLAG_NO_SYNC : 0) ==
              TRIREME_OK);
    } else {
        CHECK(trireme_model_begin_backward(model, no_sync ? TRIREME_BACKWARD_FLAG_NO_SYNC : 0) ==
              TRIREME_OK);
        for (int i = PARAMETERS; i-- > 0;) {
            if (kParameters[i].flags != 0 || (setup->skips && i == 3 && seed % 2 == 1)) continue;
            const uint64_t count = kParameters[i].elements;
            make_numbers(here, setup->dtype, rank_seed * 8 + (uint64_t)i, count);
            if (spoiled && info.rank == 0 && i == 1) ((float *)here)[100] = INFINITY;
            store(side, gradient, here, count * size);
            void *view = &view;
            int32_t adds = 1;
            CHECK(trireme_model_get_gradient_data(model, (uint64_t)i, &view, NULL, NULL, &adds) ==
                  TRIREME_OK);
            if (side->device >= 0) CHECK(view == NULL && adds == 0);
            CHECK(trireme_model_gradient_ready(model, (uint64_t)i, gradient, count, setup->dtype) ==
                  TRIREME_OK);
            memset(here, 0xff, count * size); /* the caller uses it again */
            store(side, gradient, here, count * size);
        }
        CHECK(trireme_model_end_backward(model) == TRIREME_OK);
    }
    end_memory(side, gradient);
    free(here);
}

static void step(const struct side *side, trireme_model *model, trireme_optimizer *optimizer,
                 const struct setup *setup, uint64_t number_of_step, bool spoiled) {
    const int world = setup->world,
              passes = setup->leaves > 0 ? (int)setup->leaves / world : setup->passes;
    for (int i = 0; i < passes; ++i) {
        pass(side, model, setup, number_of_step * 4 + (uint64_t)i, i == passes - 1,
             spoiled && i == 0);
    }
    CHECK(trireme_optimizer_step(optimizer) == TRIREME_OK);
}

/* Saves all state and goes on with it in a new model. */
static void resume(const struct side *side, const struct setup *setup, trireme_model **model,
                   trireme_optimizer **optimizer) {
    uint64_t bytes = 0;
    CHECK(trireme_optimizer_get_saved_bytes(*optimizer, &bytes) == TRIREME_OK);
    char *const state = malloc(bytes);
    CHECK(state != NULL);
    CHECK(trireme_optimizer_save(*optimizer, state, bytes, NULL) == TRIREME_OK);
    trireme_optimizer_destroy(*optimizer);
    trireme_model_destroy(*model);
    *model = make_device_model(side, setup);
    *optimizer = make_optimizer(*model, setup);
    CHECK(trireme_optimizer_load(*optimizer, state, bytes) == TRIREME_OK);
    free(state);
}

/* The same, range by range. */
static void restore(const struct side *side, const struct setup *setup, trireme_model **model,
                    trireme_optimizer **optimizer) {
    trireme_optimizer_counters counters = TRIREME_OPTIMIZER_COUNTERS_INIT;
    CHECK(trireme_optimizer_get_counters(*optimizer, &counters) == TRIREME_OK);
    trireme_model *const fresh = make_device_model(side, setup);
    trireme_optimizer *const next = make_optimizer(fresh, setup);
    uint64_t count = 0;
    CHECK(trireme_optimizer_get_range_count(*optimizer, &count) == TRIREME_OK);
    for (uint64_t i = 0; i < count; ++i) {
        trireme_state_range range = TRIREME_STATE_RANGE_INIT;
        CHECK(trireme_optimizer_get_range(*optimizer, i, &range) == TRIREME_OK);
        if (side->device >= 0) CHECK(range.data == NULL);
        const uint64_t bytes = range.count * trireme_dtype_bytes(range.dtype);
        char *const data = malloc(bytes);
        CHECK(data != NULL);
        CHECK(trireme_optimizer_read_range(*optimizer, i, data, bytes) == TRIREME_OK);
        CHECK(trireme_optimizer_write_range(next, i, data, bytes) == TRIREME_OK);
        free(data);
    }
    CHECK(trireme_optimizer_restore(next, &counters) == TRIREME_OK);
    trireme_optimizer_destroy(*optimizer);
    trireme_model_destroy(*model);
    *model = fresh;
    *optimizer = next;
}

static void look(const struct side *side, trireme_model *model, trireme_optimizer *optimizer,
                 const struct setup *setup, struct result *result) {
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    CHECK(trireme_model_get_info(model, &info) == TRIREME_OK);
    const size_t size = trireme_dtype_bytes(setup->dtype), bytes = info.elements * size;
    CHECK(bytes <= MOST_BYTES);
    void *const values = new_memory(side, bytes);
    CHECK(trireme_model_gather_parameters(model, values, info.elements, setup->dtype) ==
          TRIREME_OK);
    load(side, result->parameters, values, bytes);
    end_memory(side, values);
    /* The parameters that are handed out have the same values. */
    size_t at = 0;
    for (int i = 0; i < PARAMETERS; ++i) {
        if (kParameters[i].tied_to != NULL) continue;
        static _Thread_local unsigned char here[MOST_BYTES];
        void *data = NULL;
        uint64_t count = 0;
        const uint64_t unit = i < 2 ? 0 : i < 5 ? 1 : 2;
        if (in_shards(setup)) CHECK(trireme_model_gather_unit(model, unit) == TRIREME_OK);
        CHECK(trireme_model_get_parameter_data(model, (uint64_t)i, &data, &count) == TRIREME_OK);
        CHECK(count == kParameters[i].elements);
        load(side, here, data, count * size);
        CHECK(memcmp(here, result->parameters + at, count * size) == 0);
        at += count * size;
        if (in_shards(setup)) CHECK(trireme_model_release_unit(model, unit) == TRIREME_OK);
    }
    CHECK(at == bytes);
    CHECK(trireme_model_check_replicas(model) == TRIREME_OK);
    CHECK(trireme_optimizer_get_saved_bytes(optimizer, &result->state_bytes) == TRIREME_OK);
    CHECK(result->state_bytes <= sizeof result->state);
    CHECK(trireme_optimizer_save(optimizer, result->state, result->state_bytes, NULL) ==
          TRIREME_OK);
    if (setup->max_norm > 0) {
        CHECK(trireme_optimizer_get_gradient_norm(optimizer, &result->norm) == TRIREME_OK);
    }
    if (setup->scaled) {
        CHECK(trireme_optimizer_get_loss_scale(optimizer, &result->scale) == TRIREME_OK);
    }
    CHECK(trireme_optimizer_get_step_rate(optimizer, &result->rate) == TRIREME_OK);
    check_memory(model);
}

/* The caller writes to its copy of a parameter, which masters follow. */
static void touch(const struct side *side, trireme_model *model, const struct setup *setup) {
    static _Thread_local unsigned char here[1000 * sizeof(double)];
    void *data = NULL;
    uint64_t count = 0;
    CHECK(trireme_model_get_parameter_data(model, 3, &data, &count) == TRIREME_OK);
    make_numbers(here, setup->dtype, 55, count);
    store(side, data, here, count * trireme_dtype_bytes(setup->dtype));
}

static void train(const struct side *side, const struct setup *setup, struct result *result) {
    trireme_model *model = make_device_model(side, setup);
    check_memory(model);
    trireme_optimizer *optimizer = make_optimizer(model, setup);
    set_parameters(side, model, setup);
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    CHECK(trireme_model_get_info(model, &info) == TRIREME_OK);
    /* The last rank runs out of data. */
    const uint64_t steps = setup->uneven && info.rank == setup->world - 1 ? 1 : STEPS;
    for (uint64_t i = 0; i < steps; ++i) {
        if (in_shards(setup)) use_units(side, model, setup, result);
        step(side, model, optimizer, setup, i, false);
        if (i == 0 && setup->touched) touch(side, model, setup);
        if (i == 0 && setup->scaled) step(side, model, optimizer, setup, 9, true);
        if (i == 0 && setup->resumed) resume(side, setup, &model, &optimizer);
        if (i == 1 && setup->ranges) restore(side, setup, &model, &optimizer);
    }
    if (setup->uneven) CHECK(trireme_optimizer_join(optimizer, NULL) == TRIREME_OK);
    look(side, model, optimizer, setup, result);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

struct pair {
    struct setup setup;
    char rendezvous[2][64];
};

static void check_same(const struct result *one, const struct result *other) {
    CHECK(memcmp(one->parameters, other->parameters, MOST_BYTES) == 0);
    CHECK(one->state_bytes == other->state_bytes);
    CHECK(memcmp(one->state, other->state, one->state_bytes) == 0);
    CHECK(one->norm == other->norm && one->scale == other->scale);
    CHECK(one->rate == other->rate);
    CHECK(memcmp(one->seen, other->seen, sizeof one->seen) == 0);
}

static void train_on_both(int number_of_rank, void *context) {
    const struct pair *const pair = context;
    const struct setup *const setup = &pair->setup;
    struct result *const results = calloc(2, sizeof *results);
    CHECK(results != NULL);
    for (int i = 0; i < 2; ++i) {
        struct side side = {.device = i == 0 ? -1 : setup->one_device ? 1 : number_of_rank % 2};
        side.communicator = join(number_of_rank, setup->world, pair->rendezvous[i], side.device);
        train(&side, setup, &results[i]);
        trireme_communicator_destroy(side.communicator);
    }
    check_same(&results[0], &results[1]);
    free(results);
}

static void compare(const struct setup *setup) {
    struct pair pair = {.setup = *setup};
    if (pair.setup.dtype == 0) pair.setup.dtype = TRIREME_DTYPE_F32;
    if (pair.setup.rule == 0) pair.setup.rule = TRIREME_RULE_ADAMW;
    if (pair.setup.strategy == 0) pair.setup.strategy = TRIREME_STRATEGY_DATA_PARALLEL;
    if (pair.setup.passes == 0) pair.setup.passes = 1;
    for (int i = 0; i < 2; ++i) unique_rendezvous(pair.rendezvous[i], 64);
    run_threads(pair.setup.world, train_on_both, &pair);
}

static void no_trace(void) {
    no_complaint();
    for (int i = 0; i < 2; ++i) CHECK(FAKE(fake_retained, "fake_retained_count")(i) == 0);
    CHECK(FAKE(fake_current, "fake_current_context")() == NULL);
}

/* ---- the bits of a step by plain loops ---- */

enum { LOOP_ELEMENTS = 1003, LOOP_STEPS = 3 };

static void adamw_rank(int rank, void *context) {
    const struct pair *const pair = context;
    const int world = pair->setup.world;
    const uint64_t count = LOOP_ELEMENTS;
    struct side side = {.device = rank % 2};
    side.communicator = join(rank, world, pair->rendezvous[0], side.device);
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = pair->setup.strategy;
    trireme_model *model = NULL;
    CHECK(trireme_model_create(side.communicator, &options, &model) == TRIREME_OK);
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "w";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &count;
    CHECK(trireme_model_add_parameter(model, &parameter, NULL) == TRIREME_OK);
    CHECK(trireme_model_seal(model) == TRIREME_OK);
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_ADAMW;
    rule.learning_rate = 0.01;
    rule.weight_decay = 0.1;
    trireme_optimizer *optimizer = NULL;
    CHECK(trireme_optimizer_create(model, &rule, &optimizer) == TRIREME_OK);

    static _Thread_local float w[LOOP_ELEMENTS], found[LOOP_ELEMENTS];
    static _Thread_local float gradients[MOST_WORLD][LOOP_ELEMENTS];
    float mean[LOOP_ELEMENTS] = {0}, squares[LOOP_ELEMENTS] = {0};
    float *const here = new_memory(&side, sizeof w);
    make_numbers(w, TRIREME_DTYPE_F32, 5, count);
    store(&side, here, w, sizeof w);
    CHECK(trireme_model_broadcast_parameters(model, here, count, TRIREME_DTYPE_F32, 0) ==
          TRIREME_OK);
    double power1 = 1, power2 = 1;
    for (uint64_t i = 0; i < LOOP_STEPS; ++i) {
        for (int k = 0; k < world; ++k) {
            make_numbers(gradients[k], TRIREME_DTYPE_F32, 100 + 16 * i + (uint64_t)k, count);
        }
        store(&side, here, gradients[rank], sizeof w);
        CHECK(trireme_model_accumulate_flat(model, here, count, TRIREME_DTYPE_F32, 0) ==
              TRIREME_OK);
        CHECK(trireme_optimizer_step(optimizer) == TRIREME_OK);
        power1 *= 0.9, power2 *= 0.999;
        const float size = (float)(0.01 / (1 - power1));
        const float inverse_root = (float)(1 / sqrt(1 - power2));
        for (uint64_t e = 0; e < count; ++e) {
            float g = gradients[0][e];
            for (int k = 1; k < world; ++k) g += gradients[k][e];
            g /= (float)world;
            w[e] -= (float)(0.01 * 0.1) * w[e];
            mean[e] = 0.9f * mean[e] + (float)(1 - 0.9) * g;
            squares[e] = 0.999f * squares[e] + (float)(1 - 0.999) * g * g;
            w[e] -= size * mean[e] / (sqrtf(squares[e]) * inverse_root + 1e-8f);
        }
        void *data = NULL;
        CHECK(trireme_model_get_parameter_data(model, 0, &data, NULL) == TRIREME_OK);
        load(&side, found, data, sizeof found);
        CHECK(memcmp(found, w, sizeof w) == 0);
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(side.communicator);
}

static void adamw_loops(void) {
    static const trireme_strategy strategies[] = {TRIREME_STRATEGY_DATA_PARALLEL,
                                                  TRIREME_STRATEGY_ZERO1, TRIREME_STRATEGY_ZERO2};
    static const int worlds[] = {1, 2, 3, 5};
    for (size_t s = 0; s < 3; ++s) {
        for (size_t i = 0; i < sizeof worlds / sizeof *worlds; ++i) {
            struct pair pair = {.setup = {.world = worlds[i], .strategy = strategies[s]}};
            unique_rendezvous(pair.rendezvous[0], sizeof pair.rendezvous[0]);
            run_threads(worlds[i], adamw_rank, &pair);
        }
    }
    no_trace();
}

static void adamw_has_the_bits_of_plain_loops(void **state) {
    (void)state;
    run_in_all_modes(adamw_loops);
}

/* ---- every feature has the bits of the host ---- */

static void rules(void) {
    static const trireme_rule_kind kinds[] = {TRIREME_RULE_SGD,     TRIREME_RULE_ADAM,
                                              TRIREME_RULE_ADAMW,   TRIREME_RULE_ADAGRAD,
                                              TRIREME_RULE_RMSPROP, TRIREME_RULE_LION,
                                              TRIREME_RULE_LAMB,    TRIREME_RULE_LARS};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
        const struct setup setup = {.world = 1 + (int)i % 3,
                                    .rule = kinds[i],
                                    .dtype = i % 2 == 0 ? TRIREME_DTYPE_F32 : TRIREME_DTYPE_F64,
                                    .one_device = i % 2 == 1};
        compare(&setup);
    }
    compare(&(struct setup){.world = 2, .rule = TRIREME_RULE_SGD, .nesterov = true, .flat = true});
    no_trace();
}

static void rules_have_the_bits_of_the_host(void **state) {
    (void)state;
    run_in_all_modes(rules);
}

static void features(void) {
    const struct setup setups[] = {
        {.world = 2, .max_norm = 0.5, .passes = 3},
        {.world = 3, .max_value = 0.01, .scheduled = true, .flat = true},
        {.world = 2, .scaled = true, .max_norm = 0.5, .one_device = true},
        {.world = 2, .leaves = 4, .max_norm = 0.25},
        {.world = 2, .skips = true, .passes = 2},
        {.world = 1, .grouped = true, .resumed = true},
        {.world = 3, .uneven = true, .max_norm = 0.5, .touched = true},
        {.world = 2, .reduced = TRIREME_DTYPE_BF16, .flat = true},
        {.world = 3, .resumed = true, .ranges = true, .scheduled = true, .one_device = true},
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; ++i) compare(&setups[i]);
    no_trace();
}

static void features_have_the_bits_of_the_host(void **state) {
    (void)state;
    run_in_all_modes(features);
}

static void strategies(void) {
    const struct setup setups[] = {
        {.world = 1, .strategy = TRIREME_STRATEGY_ZERO1, .max_norm = 0.5},
        {.world = 2, .strategy = TRIREME_STRATEGY_ZERO1, .passes = 2, .resumed = true},
        {.world = 3, .strategy = TRIREME_STRATEGY_ZERO1, .one_device = true, .ranges = true},
        {.world = 2, .strategy = TRIREME_STRATEGY_ZERO2, .scaled = true, .ranges = true},
        {.world = 3, .strategy = TRIREME_STRATEGY_ZERO2, .passes = 2, .grouped = true},
        {.world = 3, .strategy = TRIREME_STRATEGY_ZERO2, .leaves = 6, .resumed = true},
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; ++i) compare(&setups[i]);
    no_trace();
}

static void sharded_state_has_the_bits_of_the_host(void **state) {
    (void)state;
    run_in_all_modes(strategies);
}

static void shards(void) {
    const trireme_strategy zero3 = TRIREME_STRATEGY_ZERO3, hybrid = TRIREME_STRATEGY_HYBRID_SHARD;
    const struct setup setups[] = {
        {.world = 1, .strategy = zero3, .max_norm = 0.5},
        {.world = 2, .strategy = zero3, .scaled = true, .resumed = true, .kept = true},
        {.world = 3, .strategy = zero3, .dtype = TRIREME_DTYPE_F64, .ranges = true, .passes = 2},
        {.world = 2,
         .strategy = zero3,
         .dtype = TRIREME_DTYPE_BF16,
         .flags = TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS,
         .resumed = true},
        {.world = 3, .strategy = zero3, .dtype = TRIREME_DTYPE_F16, .uneven = true, .flat = true},
        {.world = 3, .strategy = zero3, .leaves = 6, .max_norm = 0.25, .one_device = true},
        {.world = 3, .strategy = zero3, .rule = TRIREME_RULE_LAMB, .skips = true},
        {.world = 2, .strategy = hybrid, .replica = 1, .ranges = true},
        {.world = 2, .strategy = hybrid, .replica = 2, .leaves = 4, .max_norm = 0.5},
        {.world = 4,
         .strategy = hybrid,
         .replica = 2,
         .dtype = TRIREME_DTYPE_BF16,
         .flags = TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS,
         .resumed = true},
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; ++i) compare(&setups[i]);
    no_trace();
}

static void shards_have_the_bits_of_the_host(void **state) {
    (void)state;
    run_in_all_modes(shards);
}

static void narrow(void) {
    const uint32_t masters = TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS;
    const uint32_t chance = TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING;
    const struct setup setups[] = {
        {.world = 2, .dtype = TRIREME_DTYPE_BF16},
        {.world = 2, .dtype = TRIREME_DTYPE_F16, .passes = 2},
        {.world = 2,
         .dtype = TRIREME_DTYPE_BF16,
         .flags = masters,
         .resumed = true,
         .touched = true},
        {.world = 3, .dtype = TRIREME_DTYPE_F16, .flags = masters, .ranges = true},
        {.world = 3,
         .dtype = TRIREME_DTYPE_BF16,
         .flags = masters,
         .strategy = TRIREME_STRATEGY_ZERO1,
         .ranges = true,
         .touched = true},
        {.world = 2,
         .dtype = TRIREME_DTYPE_BF16,
         .flags = chance,
         .strategy = TRIREME_STRATEGY_ZERO2},
        {.world = 2, .dtype = TRIREME_DTYPE_BF16, .flags = chance, .rule = TRIREME_RULE_LAMB},
        {.world = 3, .dtype = TRIREME_DTYPE_F16, .rule = TRIREME_RULE_LARS},
        {.world = 3,
         .dtype = TRIREME_DTYPE_BF16,
         .flags = masters,
         .rule = TRIREME_RULE_LAMB,
         .strategy = TRIREME_STRATEGY_ZERO1,
         .touched = true},
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; ++i) compare(&setups[i]);
    no_trace();
}

static void narrow_parameters_have_the_bits_of_the_host(void **state) {
    (void)state;
    run_in_all_modes(narrow);
}

/* ---- optimizers that step together ---- */

/* When a step begins, work of the caller still reads a parameter of each model. */
static void train_two(const struct side *side, const struct setup *setup, struct result *results) {
    enum { READ = 3, BYTES = 1000 * sizeof(float) };
    static _Thread_local unsigned char before[2][BYTES], seen[2][BYTES];
    trireme_model *models[2];
    trireme_optimizer *optimizers[2];
    for (int k = 0; k < 2; ++k) {
        models[k] = make_device_model(side, setup);
        optimizers[k] = make_optimizer(models[k], setup);
        set_parameters(side, models[k], setup);
    }
    for (uint64_t i = 0; i < STEPS; ++i) {
        void *data[2] = {NULL, NULL};
        for (int k = 0; k < 2; ++k) {
            pass(side, models[k], setup, i * 4 + (uint64_t)k, true, false);
            CHECK(trireme_model_get_parameter_data(models[k], READ, &data[k], NULL) == TRIREME_OK);
            load(side, before[k], data[k], BYTES);
        }
        for (int k = 0; k < 2; ++k) {
            if (side->device < 0) continue;
            FAKE(fake_reads, "fake_queue_read")(side->device, NULL, seen[k], data[k], BYTES);
        }
        CHECK(trireme_optimizer_step_together(optimizers, 2) == TRIREME_OK);
        if (side->device < 0) continue;
        FAKE(fake_synchronizes, "fake_synchronize")(side->device, NULL);
        CHECK(memcmp(before, seen, sizeof before) == 0);
    }
    for (int k = 0; k < 2; ++k) {
        look(side, models[k], optimizers[k], setup, &results[k]);
        trireme_optimizer_destroy(optimizers[k]);
        trireme_model_destroy(models[k]);
    }
}

static void train_two_on_both(int rank, void *context) {
    const struct pair *const pair = context;
    struct result *const results = calloc(4, sizeof *results);
    CHECK(results != NULL);
    for (int i = 0; i < 2; ++i) {
        struct side side = {.device = i == 0 ? -1 : rank % 2};
        side.communicator = join(rank, pair->setup.world, pair->rendezvous[i], side.device);
        train_two(&side, &pair->setup, &results[2 * i]);
        trireme_communicator_destroy(side.communicator);
    }
    for (int k = 0; k < 2; ++k) check_same(&results[k], &results[2 + k]);
    free(results);
}

static void steps_together(void) {
    static const trireme_strategy strategies[] = {TRIREME_STRATEGY_DATA_PARALLEL,
                                                  TRIREME_STRATEGY_ZERO1};
    for (int s = 0; s < 2; ++s) {
        struct pair pair = {.setup = {.world = 1 + s,
                                      .dtype = TRIREME_DTYPE_F32,
                                      .rule = TRIREME_RULE_ADAMW,
                                      .strategy = strategies[s],
                                      .max_norm = 0.5}};
        for (int i = 0; i < 2; ++i) unique_rendezvous(pair.rendezvous[i], 64);
        run_threads(pair.setup.world, train_two_on_both, &pair);
    }
    no_trace();
}

static void a_step_together_waits_for_work_of_the_caller(void **state) {
    (void)state;
    run_in_all_modes(steps_together);
}

/* ---- copies that differ ---- */

static void one_copy_differs(int rank, void *context) {
    const struct pair *const pair = context;
    struct side side = {.device = rank % 2};
    side.communicator = join(rank, 2, pair->rendezvous[0], side.device);
    trireme_model *const model = make_device_model(&side, &pair->setup);
    CHECK(trireme_model_check_replicas(model) == TRIREME_OK);
    if (rank == 1) touch(&side, model, &pair->setup);
    CHECK_FAILS(trireme_model_check_replicas(model), TRIREME_ERROR_MISMATCH, "parameter 3",
                "\"c\"");
    trireme_model_destroy(model);
    trireme_communicator_destroy(side.communicator);
}

static void different_copies(void) {
    struct pair pair = {.setup = {.world = 2,
                                  .dtype = TRIREME_DTYPE_F32,
                                  .strategy = TRIREME_STRATEGY_DATA_PARALLEL}};
    unique_rendezvous(pair.rendezvous[0], sizeof pair.rendezvous[0]);
    run_threads(2, one_copy_differs, &pair);
    no_trace();
}

static void copies_that_differ_are_found(void **state) {
    (void)state;
    run_in_all_modes(different_copies);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_has_the_bits_of_plain_loops),
        cmocka_unit_test(rules_have_the_bits_of_the_host),
        cmocka_unit_test(features_have_the_bits_of_the_host),
        cmocka_unit_test(sharded_state_has_the_bits_of_the_host),
        cmocka_unit_test(shards_have_the_bits_of_the_host),
        cmocka_unit_test(narrow_parameters_have_the_bits_of_the_host),
        cmocka_unit_test(a_step_together_waits_for_work_of_the_caller),
        cmocka_unit_test(copies_that_differ_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
