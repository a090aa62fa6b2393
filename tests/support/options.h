/*
 * Options that hang from other options, such as the shards of a model:
 *
 * shards_of(&options)->ranks = 2;
 *
 * Each call replaces the struct by a new copy of it. So options that were copied by value share
 * nothing, and a pointer is good for one statement. The copies live as long as the process.
 */
#ifndef TRIREME_TESTS_OPTIONS_H
#define TRIREME_TESTS_OPTIONS_H

#include <stdint.h>
#include <trireme/trireme.h>

TRIREME_BEGIN_C

trireme_bucket_options *buckets_of(trireme_model_options *options);
trireme_unit_options *units_of(trireme_model_options *options);
trireme_shard_options *shards_of(trireme_model_options *options);
trireme_offload_options *parameter_file_of(trireme_model_options *options);

trireme_clipping_options *clipping_of(trireme_optimizer_options *options);
trireme_loss_scale_options *loss_scale_of(trireme_optimizer_options *options);
trireme_offload_options *state_file_of(trireme_optimizer_options *options);

trireme_offload_options *activation_file_of(trireme_trainer_options *options);

/* Numbers of a rule. Values of another rule are dropped. adam_of() keeps the kind ADAM or ADAMW
 * that the options name, and takes ADAM without one. */
trireme_sgd_options *sgd_of(trireme_optimizer_options *options);
trireme_adam_options *adam_of(trireme_optimizer_options *options);
trireme_adagrad_options *adagrad_of(trireme_optimizer_options *options);
trireme_rmsprop_options *rmsprop_of(trireme_optimizer_options *options);
trireme_lion_options *lion_of(trireme_optimizer_options *options);
trireme_lamb_options *lamb_of(trireme_optimizer_options *options);
trireme_lars_options *lars_of(trireme_optimizer_options *options);
trireme_adafactor_options *adafactor_of(trireme_optimizer_options *options);
trireme_muon_options *muon_of(trireme_optimizer_options *options);
trireme_user_rule_options *user_rule_of(trireme_optimizer_options *options);

/* Numbers that several rules have, for the rule that options->kind names; it must have one. */
void set_momentum(trireme_optimizer_options *options, double momentum);
void set_epsilon(trireme_optimizer_options *options, double epsilon);

/* Makes `count` groups of parameters. Existing groups stay if there are as many. */
trireme_parameter_group *groups_of(trireme_optimizer_options *options, uint64_t count);

/* Sets a number for each group; NULL: the default for all of them. */
void set_group_norms(trireme_optimizer_options *options, const double *max_norms);
void set_group_rates(trireme_optimizer_options *options, const double *rate_factors);
void set_group_decays(trireme_optimizer_options *options, const double *weight_decays);
void set_group_flags(trireme_optimizer_options *options, const uint32_t *flags);

TRIREME_END_C

#endif
