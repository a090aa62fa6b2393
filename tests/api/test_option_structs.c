/*
 * Options that nest: each struct of another size; NULL in place of each; structs that contradict
 * each other; and each field out of its range, which the message names by its path.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <dirent.h>
#include <ranks.h>
#include <unistd.h>

#include "directory.inc"

#define BAD TRIREME_ERROR_INVALID_ARGUMENT
#define NEWER TRIREME_ERROR_UNSUPPORTED

/* One rank with a sealed model that has no optimizer, and an optimizer of another model. */
struct bench {
    trireme_communicator *communicator;
    trireme_model *model, *trained;
    trireme_optimizer *optimizer;
    struct verdict verdict;
};

static trireme_model *sealed_model(struct bench *b) {
    const uint64_t shape[] = {4, 1};
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO3;
    parameter.name = "weights";
    parameter.dtype = TRIREME_DTYPE_F64;
    parameter.dimensions = 2;
    parameter.shape = shape;
    trireme_model *model = NULL;
    EXPECT_STATUS(&b->verdict, TRIREME_OK, trireme_model_create(b->communicator, &options, &model));
    EXPECT_STATUS(&b->verdict, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(&b->verdict, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static struct bench make_bench(trireme_communicator *communicator) {
    struct bench b = {.communicator = communicator};
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    b.model = sealed_model(&b);
    b.trained = sealed_model(&b);
    EXPECT_STATUS(&b.verdict, TRIREME_OK,
                  trireme_optimizer_create(b.trained, &options, &b.optimizer));
    return b;
}

static void unmake_bench(struct bench *b, struct verdict *out) {
    trireme_optimizer_destroy(b->optimizer);
    trireme_model_destroy(b->trained);
    trireme_model_destroy(b->model);
    *out = b->verdict;
}

/* ---- the meaning of options ---- */

/* Hands one struct to a call at its place, and destroys what the call makes. */
typedef trireme_status attempt(struct bench *b, const void *one);

static trireme_status model_of(struct bench *b, const void *options) {
    trireme_model *const untouched = (trireme_model *)0x1234;
    trireme_model *model = untouched;
    const trireme_status status = trireme_model_create(b->communicator, options, &model);
    EXPECT(&b->verdict, (model == untouched) == (status != TRIREME_OK));
    if (status == TRIREME_OK) trireme_model_destroy(model);
    return status;
}

static trireme_status optimizer_of(struct bench *b, const void *options) {
    trireme_optimizer *const untouched = (trireme_optimizer *)0x1234;
    trireme_optimizer *optimizer = untouched;
    const trireme_status status = trireme_optimizer_create(b->model, options, &optimizer);
    EXPECT(&b->verdict, (optimizer == untouched) == (status != TRIREME_OK));
    if (status == TRIREME_OK) trireme_optimizer_destroy(optimizer);
    return status;
}

static int32_t TRIREME_CALLCONV no_layer(const trireme_layer_call *call, void *user_data) {
    (void)call;
    (void)user_data;
    return 0;
}

static trireme_status trainer_of(struct bench *b, const void *options) {
    trireme_layer layer = TRIREME_LAYER_INIT;
    layer.name = "only";
    layer.parameter_count = 1;
    layer.forward = layer.backward = no_layer;
    layer.saved_bytes = 64;
    trireme_trainer *const untouched = (trireme_trainer *)0x1234;
    trireme_trainer *trainer = untouched;
    const trireme_status status =
        trireme_trainer_create(b->optimizer, &layer, 1, options, &trainer);
    EXPECT(&b->verdict, (trainer == untouched) == (status != TRIREME_OK));
    if (status == TRIREME_OK) trireme_trainer_destroy(trainer);
    return status;
}

static trireme_model_options zero3(void) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO3;
    return options;
}

static trireme_status with_buckets(struct bench *b, const void *one) {
    trireme_model_options options = zero3();
    options.buckets = one;
    return model_of(b, &options);
}

static trireme_status with_units(struct bench *b, const void *one) {
    trireme_model_options options = zero3();
    options.units = one;
    return model_of(b, &options);
}

static trireme_status with_shards(struct bench *b, const void *one) {
    trireme_model_options options = zero3();
    options.shards = one;
    return model_of(b, &options);
}

static trireme_status with_parameter_file(struct bench *b, const void *one) {
    trireme_model_options options = zero3();
    options.offload = one;
    return model_of(b, &options);
}

static trireme_optimizer_options adam(void) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_ADAM;
    return options;
}

static trireme_status with_rule(struct bench *b, const void *one) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.rule = one;
    return optimizer_of(b, &options);
}

static trireme_status with_clipping(struct bench *b, const void *one) {
    trireme_optimizer_options options = adam();
    options.clipping = one;
    return optimizer_of(b, &options);
}

static trireme_status with_group(struct bench *b, const void *one) {
    trireme_optimizer_options options = adam();
    options.groups = one;
    options.group_count = 1;
    return optimizer_of(b, &options);
}

static trireme_status with_loss_scale(struct bench *b, const void *one) {
    trireme_optimizer_options options = adam();
    options.loss_scale = one;
    return optimizer_of(b, &options);
}

static trireme_status with_state_file(struct bench *b, const void *one) {
    trireme_optimizer_options options = adam();
    options.offload = one;
    return optimizer_of(b, &options);
}

static trireme_status with_activation_file(struct bench *b, const void *one) {
    trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
    options.offload = one;
    return trainer_of(b, &options);
}

/* ---- sizes ---- */

static void expect_words(struct bench *b, trireme_status wanted, trireme_status status,
                         const char *words, int line) {
    if (status == wanted && (words == NULL || strstr(trireme_last_error(), words) != NULL)) return;
    char text[500];
    snprintf(text, sizeof text, "wanted %d \"%s\", got %d \"%s\"", wanted,
             words == NULL ? "" : words, status, status == TRIREME_OK ? "" : trireme_last_error());
    expect_failed(&b->verdict, __FILE__, line, text);
}

/* `one` is a right struct of `size` bytes, whose first field is its struct_size. */
static void try_sizes(struct bench *b, attempt *call, const void *one, uint32_t size,
                      const char *path, int line) {
    enum { MORE = 16 };
    uint64_t memory[32] = {0};
    char words[160];
    if (size + MORE > sizeof memory) abort();
    memcpy(memory, one, size);
    uint32_t *const struct_size = (uint32_t *)memory;
    char *const tail = (char *)memory + size;
    for (uint32_t older = 0; older < size; older += 4) {
        *struct_size = older;
        snprintf(words, sizeof words, "%s.struct_size is %u", path, older);
        expect_words(b, BAD, call(b, memory), words, line);
        expect_words(b, BAD, BAD, "_INIT", line);
    }
    *struct_size = size;
    expect_words(b, TRIREME_OK, call(b, memory), NULL, line);
    *struct_size = size + MORE;
    expect_words(b, TRIREME_OK, call(b, memory), NULL, line);
    for (int byte = 0; byte < MORE; byte += MORE - 1) {
        tail[byte] = 1;
        snprintf(words, sizeof words, "%s sets a field that is newer than this library", path);
        expect_words(b, NEWER, call(b, memory), words, line);
        tail[byte] = 0;
    }
    expect_words(b, TRIREME_OK, call(b, memory), NULL, line);
}

#define SIZES(CALL, ONE, PATH) try_sizes(&b, CALL, &(ONE), sizeof(ONE), PATH, __LINE__)

static int32_t TRIREME_CALLCONV do_nothing(const trireme_update *update, void *user_data) {
    (void)update;
    (void)user_data;
    return 0;
}

static void sizes_of_models_and_trainers(trireme_communicator *communicator, int rank, void *out) {
    (void)rank;
    struct bench b = make_bench(communicator);
    trireme_offload_options offload = TRIREME_OFFLOAD_OPTIONS_INIT;
    offload.path = directory;
    const trireme_model_options model = zero3();
    const trireme_bucket_options buckets = TRIREME_BUCKET_OPTIONS_INIT;
    const trireme_unit_options units = TRIREME_UNIT_OPTIONS_INIT;
    const trireme_shard_options shards = TRIREME_SHARD_OPTIONS_INIT;
    const trireme_trainer_options trainer = TRIREME_TRAINER_OPTIONS_INIT;
    SIZES(model_of, model, "options");
    SIZES(with_buckets, buckets, "options.buckets");
    SIZES(with_units, units, "options.units");
    SIZES(with_shards, shards, "options.shards");
    SIZES(with_parameter_file, offload, "options.offload");
    SIZES(trainer_of, trainer, "options");
    SIZES(with_activation_file, offload, "options.offload");
    unmake_bench(&b, out);
}

static void sizes_of_optimizers(trireme_communicator *communicator, int rank, void *out) {
    (void)rank;
    struct bench b = make_bench(communicator);
    trireme_offload_options offload = TRIREME_OFFLOAD_OPTIONS_INIT;
    offload.path = directory;
    const trireme_optimizer_options optimizer = adam();
    const trireme_clipping_options clipping = TRIREME_CLIPPING_OPTIONS_INIT;
    const trireme_parameter_group group = TRIREME_PARAMETER_GROUP_INIT;
    const trireme_loss_scale_options scale = TRIREME_LOSS_SCALE_OPTIONS_INIT;
    SIZES(optimizer_of, optimizer, "options");
    SIZES(with_clipping, clipping, "options.clipping");
    SIZES(with_group, group, "options.groups[0]");
    SIZES(with_loss_scale, scale, "options.loss_scale");
    SIZES(with_state_file, offload, "options.offload");
    const trireme_sgd_options sgd = TRIREME_SGD_OPTIONS_INIT;
    const trireme_adam_options plain = TRIREME_ADAM_OPTIONS_INIT;
    const trireme_adam_options decoupled = TRIREME_ADAMW_OPTIONS_INIT;
    const trireme_adagrad_options adagrad = TRIREME_ADAGRAD_OPTIONS_INIT;
    const trireme_rmsprop_options rmsprop = TRIREME_RMSPROP_OPTIONS_INIT;
    const trireme_lion_options lion = TRIREME_LION_OPTIONS_INIT;
    const trireme_lamb_options lamb = TRIREME_LAMB_OPTIONS_INIT;
    const trireme_lars_options lars = TRIREME_LARS_OPTIONS_INIT;
    const trireme_adafactor_options adafactor = TRIREME_ADAFACTOR_OPTIONS_INIT;
    const trireme_muon_options muon = TRIREME_MUON_OPTIONS_INIT;
    trireme_user_rule_options user = TRIREME_USER_RULE_OPTIONS_INIT;
    user.update = do_nothing;
    SIZES(with_rule, sgd, "options.rule");
    SIZES(with_rule, plain, "options.rule");
    SIZES(with_rule, decoupled, "options.rule");
    SIZES(with_rule, adagrad, "options.rule");
    SIZES(with_rule, rmsprop, "options.rule");
    SIZES(with_rule, lion, "options.rule");
    SIZES(with_rule, lamb, "options.rule");
    SIZES(with_rule, lars, "options.rule");
    SIZES(with_rule, adafactor, "options.rule");
    SIZES(with_rule, muon, "options.rule");
    SIZES(with_rule, user, "options.rule");
    unmake_bench(&b, out);
}

static void every_struct_may_be_of_another_release(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(1, sizes_of_models_and_trainers, &verdicts[0]);
    run_ranks(1, sizes_of_optimizers, &verdicts[1]);
    assert_verdicts(verdicts, 2);
}

/* ---- lists of groups ---- */

/* As a later release may have it. */
struct later_group {
    trireme_parameter_group known;
    uint64_t newer;
};

#define REFUSED(STATUS, CALL, WORDS) expect_words(&b, STATUS, CALL, WORDS, __LINE__)
#define TAKEN(CALL) expect_words(&b, TRIREME_OK, CALL, NULL, __LINE__)

static void try_groups(trireme_communicator *communicator, int rank, void *out) {
    (void)rank;
    struct bench b = make_bench(communicator);
    trireme_optimizer_options options = adam();
    trireme_parameter_group groups[3] = {TRIREME_PARAMETER_GROUP_INIT, TRIREME_PARAMETER_GROUP_INIT,
                                         TRIREME_PARAMETER_GROUP_INIT};
    const double bad = -1, good = 0.5;
    options.groups = groups;
    REFUSED(BAD, optimizer_of(&b, &options), "options.groups is set, but options.group_count is 0");
    options.groups = NULL;
    options.group_count = 3;
    REFUSED(BAD, optimizer_of(&b, &options),
            "options.groups is NULL, but options.group_count is 3");
    options.groups = groups;
    TAKEN(optimizer_of(&b, &options));
    options.group_count = 1025;
    REFUSED(NEWER, optimizer_of(&b, &options), "options.group_count 1025 is above 1024");
    options.group_count = 3;
    groups[0].struct_size = 0;
    REFUSED(BAD, optimizer_of(&b, &options), "options.groups[0].struct_size is 0, below 32");
    groups[0].struct_size = sizeof groups[0];
    groups[2].struct_size = 48;
    REFUSED(BAD, optimizer_of(&b, &options),
            "options.groups[2].struct_size is 48, but that of options.groups[0] is 32");
    groups[2].struct_size = sizeof groups[2];
    uint64_t odd[16] = {36};
    options.groups = (const trireme_parameter_group *)(const void *)odd;
    REFUSED(BAD, optimizer_of(&b, &options),
            "options.groups[0].struct_size is 36, no multiple of 8");
    options.groups = groups;
    groups[1].rate_factor = &bad;
    REFUSED(BAD, optimizer_of(&b, &options), "options.groups[1].rate_factor -1 is not finite");
    groups[1].rate_factor = &good;
    groups[2].weight_decay = &bad;
    REFUSED(BAD, optimizer_of(&b, &options), "options.groups[2].weight_decay -1 is not finite");
    groups[2].weight_decay = NULL;
    groups[0].max_norm = NAN;
    REFUSED(BAD, optimizer_of(&b, &options), "options.groups[0].max_norm nan is not finite");
    groups[0].max_norm = 0;
    groups[1].flags = TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE;
    REFUSED(BAD, optimizer_of(&b, &options), "options.groups[1].flags 1 means nothing to adam");
    options.kind = TRIREME_RULE_MUON;
    TAKEN(optimizer_of(&b, &options));
    groups[1].flags = 2;
    REFUSED(BAD, optimizer_of(&b, &options), "options.groups[1].flags 2 has a bit");
    groups[1].flags = 0;
    trireme_clipping_options clipping = TRIREME_CLIPPING_OPTIONS_INIT;
    clipping.max_norm = 1;
    options.clipping = &clipping;
    groups[1].max_norm = 2;
    REFUSED(NEWER, optimizer_of(&b, &options),
            "options.groups[1].max_norm with options.clipping.max_norm");
    groups[1].max_norm = 0;
    trireme_user_rule_options user = TRIREME_USER_RULE_OPTIONS_INIT;
    user.update = do_nothing;
    options.kind = 0;
    options.rule = &user.base;
    groups[2].weight_decay = &good;
    REFUSED(BAD, optimizer_of(&b, &options),
            "options.groups[2].weight_decay means nothing to user");

    struct later_group later[2] = {{TRIREME_PARAMETER_GROUP_INIT, 0},
                                   {TRIREME_PARAMETER_GROUP_INIT, 0}};
    later[0].known.struct_size = later[1].known.struct_size = sizeof later[0];
    options = adam();
    options.groups = &later[0].known;
    options.group_count = 2;
    TAKEN(optimizer_of(&b, &options));
    later[1].known.rate_factor = &bad;
    REFUSED(BAD, optimizer_of(&b, &options), "options.groups[1].rate_factor -1 is not finite");
    later[1].newer = 1;
    REFUSED(NEWER, optimizer_of(&b, &options), "options.groups[1] sets a field that is newer");
    later[1].known.struct_size = sizeof later[0].known;
    REFUSED(BAD, optimizer_of(&b, &options), "options.groups[1].struct_size is 32, but that of");
    unmake_bench(&b, out);
}

static void all_groups_of_a_list_have_one_size(void **state) {
    (void)state;
    struct verdict verdict = {0};
    run_ranks(1, try_groups, &verdict);
    assert_verdicts(&verdict, 1);
}

/* ---- contradictions ---- */

static void contradict(trireme_communicator *communicator, int rank, void *out) {
    (void)rank;
    struct bench b = make_bench(communicator);
    REFUSED(BAD, model_of(&b, NULL), "options is NULL");
    REFUSED(BAD, optimizer_of(&b, NULL), "options is NULL");
    TAKEN(trainer_of(&b, NULL));
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    REFUSED(BAD, optimizer_of(&b, &options), "options.kind is 0 and options.rule is NULL");
    for (trireme_rule_kind kind = 1; kind <= TRIREME_RULE_MUON; ++kind) {
        options.kind = kind;
        if (kind != TRIREME_RULE_USER) TAKEN(optimizer_of(&b, &options));
    }
    options.kind = 99;
    REFUSED(BAD, optimizer_of(&b, &options), "options.kind 99 is no update rule");
    options.kind = TRIREME_RULE_USER;
    REFUSED(BAD, optimizer_of(&b, &options), "options.kind is user, but options.rule is NULL");
    trireme_adam_options rule = TRIREME_ADAMW_OPTIONS_INIT;
    options.rule = &rule.base;
    REFUSED(BAD, optimizer_of(&b, &options),
            "options.kind is user, but options.rule.kind is adamw; make them equal");
    options.kind = TRIREME_RULE_ADAM;
    REFUSED(BAD, optimizer_of(&b, &options),
            "options.kind is adam, but options.rule.kind is adamw; make them equal");
    options.kind = TRIREME_RULE_ADAMW;
    TAKEN(optimizer_of(&b, &options));
    rule.base.kind = 0;
    REFUSED(BAD, optimizer_of(&b, &options), "options.rule.kind 0 is no update rule");
    options.kind = 0;
    REFUSED(BAD, optimizer_of(&b, &options), "options.rule.kind 0 is no update rule");
    rule.base.kind = -1;
    REFUSED(BAD, optimizer_of(&b, &options), "options.rule.kind -1 is no update rule");
    rule.base.kind = TRIREME_RULE_MUON;
    REFUSED(BAD, optimizer_of(&b, &options),
            "options.rule.struct_size is 32, but muon takes a trireme_muon_options of 56 bytes");
    trireme_muon_options large = TRIREME_MUON_OPTIONS_INIT;
    large.base.kind = TRIREME_RULE_ADAGRAD;
    large.momentum = 0.5;
    options.rule = &large.base;
    REFUSED(NEWER, optimizer_of(&b, &options), "TRIREME_ADAGRAD_OPTIONS_INIT");
    unmake_bench(&b, out);
}

static void kind_and_rule_do_not_contradict(void **state) {
    (void)state;
    struct verdict verdict = {0};
    run_ranks(1, contradict, &verdict);
    assert_verdicts(&verdict, 1);
}

/* ---- ranges ---- */

/* A struct with all defaults but one field. */
#define WITH(CALL, TYPE, INIT, FIELD, VALUE, STATUS, WORDS) \
    do {                                                    \
        TYPE one = INIT;                                    \
        one.FIELD = VALUE;                                  \
        REFUSED(STATUS, CALL(&b, &one), WORDS);             \
    } while (0)
#define RULE(TYPE, NAME, FIELD, VALUE, WORDS)                                                   \
    WITH(with_rule, trireme_##TYPE##_options, TRIREME_##NAME##_OPTIONS_INIT, FIELD, VALUE, BAD, \
         "options.rule." WORDS)
#define OPTION(CALL, TYPE, NAME, FIELD, VALUE, WORDS) \
    WITH(CALL, trireme_##TYPE##_options, TRIREME_##NAME##_OPTIONS_INIT, FIELD, VALUE, BAD, WORDS)

static void leave_ranges_of_rules(trireme_communicator *communicator, int rank, void *out) {
    (void)rank;
    struct bench b = make_bench(communicator);
    RULE(sgd, SGD, flags, 2, "flags 2 has a bit that means nothing");
    RULE(sgd, SGD, reserved, 7, "reserved is 7, but must be 0");
    RULE(sgd, SGD, momentum, 1, "momentum 1 is not in [0, 1)");
    RULE(sgd, SGD, flags, TRIREME_SGD_FLAG_NESTEROV, "momentum above 0");
    RULE(adam, ADAM, beta1, 1, "beta1 1 is not in (0, 1)");
    RULE(adam, ADAMW, beta2, -0.5, "beta2 -0.5 is not in (0, 1)");
    RULE(adam, ADAMW, epsilon, -1, "epsilon -1 is not finite and 0 or more");
    RULE(adagrad, ADAGRAD, epsilon, INFINITY, "epsilon inf is not finite and 0 or more");
    RULE(rmsprop, RMSPROP, flags, 4, "flags 4 has a bit that means nothing");
    RULE(rmsprop, RMSPROP, reserved, 1, "reserved is 1, but must be 0");
    RULE(rmsprop, RMSPROP, momentum, NAN, "momentum nan is not in [0, 1)");
    RULE(rmsprop, RMSPROP, alpha, 1.5, "alpha 1.5 is not in (0, 1)");
    RULE(rmsprop, RMSPROP, epsilon, -1, "epsilon -1 is not finite and 0 or more");
    RULE(lion, LION, beta1, -1, "beta1 -1 is not in (0, 1)");
    RULE(lion, LION, beta2, 2, "beta2 2 is not in (0, 1)");
    RULE(lamb, LAMB, beta1, 1, "beta1 1 is not in (0, 1)");
    RULE(lamb, LAMB, beta2, 1, "beta2 1 is not in (0, 1)");
    RULE(lamb, LAMB, epsilon, NAN, "epsilon nan is not finite and 0 or more");
    RULE(lamb, LAMB, max_trust, -1, "max_trust -1 is not finite and 0 or more");
    RULE(lars, LARS, momentum, -1, "momentum -1 is not in [0, 1)");
    RULE(lars, LARS, epsilon, -1, "epsilon -1 is not finite and 0 or more");
    RULE(lars, LARS, trust_coefficient, -1, "trust_coefficient -1 is not finite and 0 or more");
    RULE(lars, LARS, max_trust, INFINITY, "max_trust inf is not finite and 0 or more");
    RULE(adafactor, ADAFACTOR, beta2_decay, 1, "beta2_decay 1 is not finite and below 0");
    RULE(adafactor, ADAFACTOR, epsilon, -1, "epsilon -1 is not finite and 0 or more");
    RULE(adafactor, ADAFACTOR, max_update_rms, -1, "max_update_rms -1 is not finite and above 0");
    RULE(adafactor, ADAFACTOR, min_parameter_rms, -1,
         "min_parameter_rms -1 is not finite and above 0");
    RULE(muon, MUON, flags, 2, "flags 2 has a bit that means nothing");
    RULE(muon, MUON, orthogonal_steps, 100, "orthogonal_steps 100 is above 99");
    RULE(muon, MUON, rate_adjustment, 2, "rate_adjustment 2 is no TRIREME_MUON_RATE_*");
    RULE(muon, MUON, reserved, 1, "reserved is 1, but must be 0");
    RULE(muon, MUON, momentum, 1, "momentum 1 is not in [0, 1)");
    RULE(muon, MUON, beta1, 1, "beta1 1 is not in (0, 1)");
    RULE(muon, MUON, beta2, 1, "beta2 1 is not in (0, 1)");
    RULE(muon, MUON, epsilon, -1, "epsilon -1 is not finite and 0 or more");
    RULE(user_rule, USER_RULE, user_data, NULL, "update is NULL, but the kind is user");
    trireme_user_rule_options user = TRIREME_USER_RULE_OPTIONS_INIT;
    user.update = do_nothing;
    user.state_count = 9;
    REFUSED(BAD, with_rule(&b, &user), "options.rule.state_count 9 is above 8");
    user.state_count = 8;
    user.reserved = 1;
    REFUSED(BAD, with_rule(&b, &user), "options.rule.reserved is 1, but must be 0");
    unmake_bench(&b, out);
}

static void leave_other_ranges(trireme_communicator *communicator, int rank, void *out) {
    (void)rank;
    struct bench b = make_bench(communicator);
    trireme_optimizer_options options = adam();
    options.reserved = 3;
    REFUSED(BAD, optimizer_of(&b, &options), "options.reserved is 3, but must be 0");
    options = adam();
    options.flags = 8;
    REFUSED(BAD, optimizer_of(&b, &options), "options.flags 8 has a bit that means nothing");
    OPTION(with_clipping, clipping, CLIPPING, flags, 1,
           "options.clipping.flags is 1, but must be 0");
    OPTION(with_clipping, clipping, CLIPPING, max_norm, -1,
           "options.clipping.max_norm -1 is not finite and 0 or more");
    OPTION(with_clipping, clipping, CLIPPING, max_value, NAN,
           "options.clipping.max_value nan is not finite and 0 or more");
    OPTION(with_loss_scale, loss_scale, LOSS_SCALE, flags, 1,
           "options.loss_scale.flags is 1, but must be 0");
    OPTION(with_loss_scale, loss_scale, LOSS_SCALE, initial_scale, 3,
           "options.loss_scale.initial_scale 3 is not a power of two in [2^-64, 2^64]");
    OPTION(with_loss_scale, loss_scale, LOSS_SCALE, growth_factor, 0.5,
           "options.loss_scale.growth_factor 0.5 is not a power of two in [1, 2^64]");
    OPTION(with_loss_scale, loss_scale, LOSS_SCALE, backoff_factor, 1,
           "options.loss_scale.backoff_factor 1 is not a power of two in [2^-64, 1)");
    OPTION(with_loss_scale, loss_scale, LOSS_SCALE, minimum_scale, 131072,
           "options.loss_scale.minimum_scale 131072 is not a power of two in [2^-64, initial");
    OPTION(with_buckets, bucket, BUCKET, flags, 1, "options.buckets.flags is 1, but must be 0");
    OPTION(with_units, unit, UNIT, reshard_ranks, 3,
           "options.units.reshard_ranks 3 does not divide");
    OPTION(with_shards, shard, SHARD, ranks, 1,
           "options.shards.ranks 1 is for TRIREME_STRATEGY_HYB");
    OPTION(with_shards, shard, SHARD, stride, 1,
           "options.shards.stride 1 is for TRIREME_STRATEGY_H");
    OPTION(with_shards, shard, SHARD, share, 9, "options.shards.share 9 is no TRIREME_SHARE_*");
    attempt *const files[] = {with_parameter_file, with_state_file, with_activation_file};
    for (int i = 0; i < 3; ++i) {
        trireme_offload_options offload = TRIREME_OFFLOAD_OPTIONS_INIT;
        REFUSED(BAD, files[i](&b, &offload), "options.offload.path is NULL");
        offload.path = "";
        REFUSED(BAD, files[i](&b, &offload), "options.offload.path is empty");
        offload.path = directory;
        offload.flags = 1;
        REFUSED(BAD, files[i](&b, &offload), "options.offload.flags is 1, but must be 0");
        offload.flags = 0;
        offload.reserved = 2;
        REFUSED(BAD, files[i](&b, &offload), "options.offload.reserved is 2, but must be 0");
        offload.reserved = 0;
        offload.kind = 2;
        REFUSED(BAD, files[i](&b, &offload), "options.offload.kind 2 is no TRIREME_OFFLOAD_KIND_*");
        offload.kind = TRIREME_OFFLOAD_KIND_PINNED;
        REFUSED(BAD, files[i](&b, &offload),
                files[i] == with_state_file ? "TRIREME_OFFLOAD_KIND_PINNED they are 0"
                                            : "which is for optimizers alone");
        offload.kind = TRIREME_OFFLOAD_KIND_FILE;
        offload.ratio = 1.5;
        REFUSED(BAD, files[i](&b, &offload), "options.offload.ratio 1.5 is not ");
        offload.ratio = 0;
        offload.buffer_bytes = 1;
        REFUSED(i == 2 ? TRIREME_ERROR_OUT_OF_MEMORY : BAD, files[i](&b, &offload),
                "options.offload.buffer_bytes ");
        if (i == 0) continue; /* no file before it is sealed */
        offload.buffer_bytes = 0;
        offload.path = "/no/such/folder";
        REFUSED(TRIREME_ERROR_SYSTEM, files[i](&b, &offload), "options.offload.path: ");
    }
    trireme_trainer_options trainer = TRIREME_TRAINER_OPTIONS_INIT;
    trainer.reserved = 2;
    REFUSED(BAD, trainer_of(&b, &trainer), "options.reserved is 2, but must be 0");
    unmake_bench(&b, out);
}

static void messages_name_the_path_of_a_field(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(1, leave_ranges_of_rules, &verdicts[0]);
    run_ranks(1, leave_other_ranges, &verdicts[1]);
    assert_verdicts(verdicts, 2);
    assert_int_equal(files_in_directory(), 0);
}

/* ---- ranks that differ ---- */

/* Options of one rank, in which one field may differ between ranks. */
struct own {
    trireme_model_options model;
    trireme_bucket_options buckets;
    trireme_unit_options units;
    trireme_shard_options shards;
    trireme_optimizer_options optimizer;
    trireme_rmsprop_options rule;
    trireme_clipping_options clipping;
    trireme_parameter_group groups[2];
    trireme_loss_scale_options scale;
    trireme_offload_options offload;
    trireme_trainer_options trainer;
    double number;
};

enum { DIFFERENCES = 15 };
static const char *const kPaths[DIFFERENCES] =
    {"options.buckets.bytes is 100 on rank 0 and 101 on rank 1",
     "options.buckets.first_bytes is 100 on rank 0 and 101 on rank 1",
     "options.units.minimum_bytes is 100 on rank 0 and 101 on rank 1",
     "options.units.persistent_bytes is 100 on rank 0 and 101 on rank 1",
     "options.shards.share is 0 on rank 0 and 2 on rank 1",
     "options.rule.alpha is 0.5 on rank 0 and 0.75 on rank 1",
     "options.clipping.max_norm is 0.5 on rank 0 and 0.75 on rank 1",
     "options.groups[1].rate_factor is 0.5 on rank 0 and 0.75 on rank 1",
     "options.groups[0].weight_decay is 0.5 on rank 0 and 0.75 on rank 1",
     "options.group_count is 1 on rank 0 and 2 on rank 1",
     "options.loss_scale is not set on rank 0 and set on rank 1",
     "options.loss_scale.growth_interval is 100 on rank 0 and 101 on rank 1",
     "options.offload is not set on rank 0 and set on rank 1",
     "options.offload.buffer_bytes is 65536 on rank 0 and 131072 on rank 1",
     "options.offload is set on rank 0 and not set on rank 1"};

static void differ(struct own *own, int number, int rank) {
    const uint64_t count = 100 + (uint64_t)rank;
    own->number = rank == 0 ? 0.5 : 0.75;
    own->model.buckets = &own->buckets;
    own->model.units = &own->units;
    own->model.shards = &own->shards;
    own->optimizer.rule = &own->rule.base;
    own->optimizer.groups = own->groups;
    own->optimizer.group_count = 2;
    own->offload.path = directory;
    switch (number) {
        case 0: own->buckets.bytes = count; break;
        case 1: own->buckets.first_bytes = count; break;
        case 2: own->units.minimum_bytes = count; break;
        case 3: own->units.persistent_bytes = count; break;
        case 4: own->shards.share = rank == 0 ? TRIREME_SHARE_AUTO : TRIREME_SHARE_NEVER; break;
        case 5: own->rule.alpha = own->number; break;
        case 6:
            own->clipping.max_norm = own->number, own->optimizer.clipping = &own->clipping;
            break;
        case 7: own->groups[1].rate_factor = &own->number; break;
        case 8: own->groups[0].weight_decay = &own->number; break;
        case 9: own->optimizer.group_count = 1 + (uint64_t)rank; break;
        case 10: own->optimizer.loss_scale = rank == 0 ? NULL : &own->scale; break;
        case 11: own->scale.growth_interval = count, own->optimizer.loss_scale = &own->scale; break;
        case 12: own->optimizer.offload = rank == 0 ? NULL : &own->offload; break;
        case 13:
            own->offload.buffer_bytes = rank == 0 ? 65536 : 131072;
            own->optimizer.offload = &own->offload;
            break;
        default: own->trainer.offload = rank == 0 ? &own->offload : NULL;
    }
}

/* All ranks hear of a difference from the first call in which it counts. */
static void disagree(trireme_communicator *communicator, int rank, void *out) {
    struct bench b = {.communicator = communicator};
    const uint64_t elements = 4;
    for (int number = 0; number < DIFFERENCES; ++number) {
        struct own own = {zero3(),
                          TRIREME_BUCKET_OPTIONS_INIT,
                          TRIREME_UNIT_OPTIONS_INIT,
                          TRIREME_SHARD_OPTIONS_INIT,
                          TRIREME_OPTIMIZER_OPTIONS_INIT,
                          TRIREME_RMSPROP_OPTIONS_INIT,
                          TRIREME_CLIPPING_OPTIONS_INIT,
                          {TRIREME_PARAMETER_GROUP_INIT, TRIREME_PARAMETER_GROUP_INIT},
                          TRIREME_LOSS_SCALE_OPTIONS_INIT,
                          TRIREME_OFFLOAD_OPTIONS_INIT,
                          TRIREME_TRAINER_OPTIONS_INIT,
                          0};
        differ(&own, number, rank);
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = "weights";
        parameter.dtype = TRIREME_DTYPE_F64;
        parameter.dimensions = 1;
        parameter.shape = &elements;
        TAKEN(trireme_model_create(communicator, &own.model, &b.model));
        TAKEN(trireme_model_add_parameter(b.model, &parameter, NULL));
        trireme_status status = trireme_model_seal(b.model);
        if (number >= 5) {
            TAKEN(status);
            status = trireme_optimizer_create(b.model, &own.optimizer, &b.optimizer);
        }
        if (number >= 14) {
            TAKEN(status);
            status = trainer_of(&b, &own.trainer);
        }
        REFUSED(TRIREME_ERROR_MISMATCH, status, kPaths[number]);
        trireme_optimizer_destroy(b.optimizer);
        trireme_model_destroy(b.model);
        b.optimizer = NULL;
    }
    ((struct verdict *)out)[rank] = b.verdict;
}

static void differences_name_the_path_of_a_field(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, disagree, verdicts);
    assert_verdicts(verdicts, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_struct_may_be_of_another_release),
                                       cmocka_unit_test(all_groups_of_a_list_have_one_size),
                                       cmocka_unit_test(kind_and_rule_do_not_contradict),
                                       cmocka_unit_test(messages_name_the_path_of_a_field),
                                       cmocka_unit_test(differences_name_the_path_of_a_field)};
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
