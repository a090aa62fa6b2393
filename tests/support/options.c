#include "options.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Links all allocated pieces, so that leak checkers do not count them as lost. */
struct piece {
    struct piece *before;
    max_align_t bytes[];
};
static _Atomic(struct piece *) newest;

static void *copy(const void *from, size_t bytes) {
    struct piece *const piece = malloc(sizeof *piece + bytes);
    if (piece == NULL) abort();
    piece->before = atomic_load(&newest);
    while (!atomic_compare_exchange_weak(&newest, &piece->before, piece)) continue;
    memcpy(piece->bytes, from, bytes);
    return piece->bytes;
}

#define NESTED(function, options_type, type, field, init)              \
    type *function(options_type *options) {                            \
        const type fresh = init;                                       \
        const type *const before = options->field;                     \
        type *const now = copy(before ? before : &fresh, sizeof *now); \
        options->field = now;                                          \
        return now;                                                    \
    }

NESTED(buckets_of, trireme_model_options, trireme_bucket_options, buckets,
       TRIREME_BUCKET_OPTIONS_INIT)
NESTED(units_of, trireme_model_options, trireme_unit_options, units, TRIREME_UNIT_OPTIONS_INIT)
NESTED(shards_of, trireme_model_options, trireme_shard_options, shards, TRIREME_SHARD_OPTIONS_INIT)
NESTED(parameter_file_of, trireme_model_options, trireme_offload_options, offload,
       TRIREME_OFFLOAD_OPTIONS_INIT)
NESTED(clipping_of, trireme_optimizer_options, trireme_clipping_options, clipping,
       TRIREME_CLIPPING_OPTIONS_INIT)
NESTED(loss_scale_of, trireme_optimizer_options, trireme_loss_scale_options, loss_scale,
       TRIREME_LOSS_SCALE_OPTIONS_INIT)
NESTED(state_file_of, trireme_optimizer_options, trireme_offload_options, offload,
       TRIREME_OFFLOAD_OPTIONS_INIT)
NESTED(activation_file_of, trireme_trainer_options, trireme_offload_options, offload,
       TRIREME_OFFLOAD_OPTIONS_INIT)

/* A rule has one struct, so the kind tells its type. */
static void *rule_of_kind(trireme_optimizer_options *options, const void *fresh, size_t bytes) {
    const trireme_rule_kind kind = ((const trireme_rule_options *)fresh)->kind;
    const trireme_rule_options *const before = options->rule;
    void *const now = copy(before && before->kind == kind ? (const void *)before : fresh, bytes);
    options->rule = now;
    return now;
}

#define RULE(function, type, init)                          \
    type *function(trireme_optimizer_options *options) {    \
        const type fresh = init;                            \
        return rule_of_kind(options, &fresh, sizeof fresh); \
    }

RULE(sgd_of, trireme_sgd_options, TRIREME_SGD_OPTIONS_INIT)
RULE(adagrad_of, trireme_adagrad_options, TRIREME_ADAGRAD_OPTIONS_INIT)
RULE(rmsprop_of, trireme_rmsprop_options, TRIREME_RMSPROP_OPTIONS_INIT)
RULE(lion_of, trireme_lion_options, TRIREME_LION_OPTIONS_INIT)
RULE(lamb_of, trireme_lamb_options, TRIREME_LAMB_OPTIONS_INIT)
RULE(lars_of, trireme_lars_options, TRIREME_LARS_OPTIONS_INIT)
RULE(adafactor_of, trireme_adafactor_options, TRIREME_ADAFACTOR_OPTIONS_INIT)
RULE(muon_of, trireme_muon_options, TRIREME_MUON_OPTIONS_INIT)
RULE(user_rule_of, trireme_user_rule_options, TRIREME_USER_RULE_OPTIONS_INIT)

trireme_adam_options *adam_of(trireme_optimizer_options *options) {
    trireme_adam_options fresh = TRIREME_ADAM_OPTIONS_INIT;
    if (options->kind == TRIREME_RULE_ADAMW) fresh.base.kind = TRIREME_RULE_ADAMW;
    return rule_of_kind(options, &fresh, sizeof fresh);
}

void set_momentum(trireme_optimizer_options *options, double momentum) {
    switch (options->kind) {
        case TRIREME_RULE_SGD: sgd_of(options)->momentum = momentum; break;
        case TRIREME_RULE_RMSPROP: rmsprop_of(options)->momentum = momentum; break;
        case TRIREME_RULE_LARS: lars_of(options)->momentum = momentum; break;
        case TRIREME_RULE_MUON: muon_of(options)->momentum = momentum; break;
        default: abort();
    }
}

void set_epsilon(trireme_optimizer_options *options, double epsilon) {
    switch (options->kind) {
        case TRIREME_RULE_ADAM:
        case TRIREME_RULE_ADAMW: adam_of(options)->epsilon = epsilon; break;
        case TRIREME_RULE_ADAGRAD: adagrad_of(options)->epsilon = epsilon; break;
        case TRIREME_RULE_RMSPROP: rmsprop_of(options)->epsilon = epsilon; break;
        case TRIREME_RULE_LAMB: lamb_of(options)->epsilon = epsilon; break;
        case TRIREME_RULE_LARS: lars_of(options)->epsilon = epsilon; break;
        case TRIREME_RULE_ADAFACTOR: adafactor_of(options)->epsilon = epsilon; break;
        case TRIREME_RULE_MUON: muon_of(options)->epsilon = epsilon; break;
        default: abort();
    }
}

trireme_parameter_group *groups_of(trireme_optimizer_options *options, uint64_t count) {
    const trireme_parameter_group fresh = TRIREME_PARAMETER_GROUP_INIT;
    trireme_parameter_group *const groups = malloc((size_t)count * sizeof fresh + 1);
    if (groups == NULL) abort();
    for (uint64_t i = 0; i < count; ++i) {
        groups[i] = options->groups && options->group_count == count ? options->groups[i] : fresh;
    }
    trireme_parameter_group *const now = copy(groups, (size_t)count * sizeof fresh);
    free(groups);
    options->groups = now;
    options->group_count = count;
    return now;
}

void set_group_norms(trireme_optimizer_options *options, const double *max_norms) {
    trireme_parameter_group *const groups = groups_of(options, options->group_count);
    for (uint64_t i = 0; i < options->group_count; ++i) {
        groups[i].max_norm = max_norms ? max_norms[i] : 0;
    }
}

void set_group_rates(trireme_optimizer_options *options, const double *rate_factors) {
    trireme_parameter_group *const groups = groups_of(options, options->group_count);
    for (uint64_t i = 0; i < options->group_count; ++i) {
        groups[i].rate_factor = rate_factors ? copy(&rate_factors[i], sizeof(double)) : NULL;
    }
}

void set_group_decays(trireme_optimizer_options *options, const double *weight_decays) {
    trireme_parameter_group *const groups = groups_of(options, options->group_count);
    for (uint64_t i = 0; i < options->group_count; ++i) {
        groups[i].weight_decay = weight_decays ? copy(&weight_decays[i], sizeof(double)) : NULL;
    }
}

void set_group_flags(trireme_optimizer_options *options, const uint32_t *flags) {
    trireme_parameter_group *const groups = groups_of(options, options->group_count);
    for (uint64_t i = 0; i < options->group_count; ++i) groups[i].flags = flags ? flags[i] : 0;
}
