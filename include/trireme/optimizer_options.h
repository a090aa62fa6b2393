/**
 * @file optimizer_options.h
 * @brief The structs of optimizer.h: the options of an optimizer, and the reports about it.
 *
 * Ownership: each call copies the strings and arrays that it takes. Thread safety: plain data.
 */
#ifndef TRIREME_OPTIMIZER_OPTIONS_H
#define TRIREME_OPTIMIZER_OPTIONS_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/model_options.h>
#include <trireme/offload.h>
#include <trireme/rules.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** Flags of an optimizer. docs/features.md tells which options go together. */
enum {
    /**
     * Only for zero1. The step, and not backward, reduces the gradients. It updates each element
     * while its sum is in the cache, and so moves the fewest bytes. The bits are the same. It helps
     * ranks of one host if compute takes all memory bandwidth, so that backward cannot hide the
     * exchange. docs/optimizers.md lists the options that it does not go with.
     */
    TRIREME_OPTIMIZER_FLAG_ONE_SWEEP = 1,
    /**
     * The owner of each f16 or bf16 element also keeps it in f32, its master: 4 bytes an element.
     * The model needs trained parameters of these types; its others have no masters. Not with
     * offloaded state. See the top of optimizer.h.
     */
    TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS = 2,
    /**
     * The step rounds bf16 parameters up or down by chance. The model needs trained parameters of
     * bf16, and no trained ones of f16. Not with MASTER_WEIGHTS or a rule of the caller. See the
     * top of optimizer.h.
     */
    TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING = 4
};

/** Whether and how the step clips gradients. Start from TRIREME_CLIPPING_OPTIONS_INIT. */
typedef struct trireme_clipping_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /**
     * The step clips the global L2 norm of all gradients to this; 0 or more, finite. Not with
     * max_norm of a group. See docs/optimizers.md. Default: 0, no clipping.
     */
    double max_norm;
    /**
     * The step clips each reduced gradient to [-max_value, max_value], before it computes norms.
     * NaN stays. 0 or more, finite. Default: 0, no clipping.
     */
    double max_value;
} trireme_clipping_options; /* since 1.0 */

/** Options that clip nothing yet. */
#define TRIREME_CLIPPING_OPTIONS_INIT TRIREME_INIT(trireme_clipping_options)

/** Flags of a group of parameters. */
enum {
    /** Only for MUON: the rule treats no parameter of the group as a matrix. */
    TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE = 1
};

/**
 * Rate, decay and norm of a group of parameters. Start from TRIREME_PARAMETER_GROUP_INIT.
 *
 * A parameter names its group by its number in trireme_optimizer_options.groups: see
 * parameter_group of trireme_parameter_options.
 */
typedef struct trireme_parameter_group {
    /** sizeof this struct as the caller knows it; the same in all of a list. */
    uint32_t struct_size;
    /** 0, or for MUON TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE. Default: 0. */
    uint32_t flags;
    /**
     * The step clips the L2 norm of the group's gradients to this; 0 or more, finite. Not with
     * max_norm of trireme_clipping_options. See docs/optimizers.md. Default: 0, the group is not
     * clipped.
     */
    double max_norm;
    /**
     * Points to a factor of the learning rate: 0 or more, finite. The library reads it once.
     * trireme_optimizer_set_group_rate_factor() changes the factor. Default: NULL, a factor of 1.
     */
    const double *rate_factor;
    /**
     * Points to the group's weight decay: 0 or more, finite, such as 0 for biases. The library
     * reads it once. Must be NULL for USER. Default: NULL, weight_decay of
     * trireme_optimizer_options.
     */
    const double *weight_decay;
} trireme_parameter_group; /* since 1.0 */

/** A group with all defaults. */
#define TRIREME_PARAMETER_GROUP_INIT TRIREME_INIT(trireme_parameter_group)

/** How losses are scaled. Start from TRIREME_LOSS_SCALE_OPTIONS_INIT. See optimizer.h. */
typedef struct trireme_loss_scale_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /** The first scale: a power of two in [2^-64, 2^64]. Default: 65536. */
    double initial_scale;
    /**
     * The library multiplies the scale by this to grow it, up to 2^64. A power of two in [1, 2^64].
     * Default: 2.
     */
    double growth_factor;
    /**
     * The library multiplies the scale by this when it backs off after an overflow. A power of two
     * in [2^-64, 1). Default: 0.5.
     */
    double backoff_factor;
    /**
     * The scale never falls below this: a power of two in [2^-64, initial_scale]. To fix the scale,
     * set this to initial_scale and growth_factor to 1. Default: 1, or initial_scale if that is
     * less.
     */
    double minimum_scale;
    /** The scale grows after this many steps in a row without an overflow. Default: 2000. */
    uint64_t growth_interval;
    /**
     * The scale backs off from this overflow on, counted since the scale last grew. Earlier
     * overflows only skip their step. Default: 1, the first one.
     */
    uint64_t hysteresis;
} trireme_loss_scale_options; /* since 1.0 */

/** Options with all defaults. */
#define TRIREME_LOSS_SCALE_OPTIONS_INIT TRIREME_INIT(trireme_loss_scale_options)

/** Start from TRIREME_OPTIMIZER_OPTIONS_INIT. In every field 0 or NULL means the default. */
typedef struct trireme_optimizer_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** The update rule: TRIREME_RULE_*. Default: 0, `rule` names it. Required without `rule`. */
    trireme_rule_kind kind;
    /**
     * 0, or a sum of TRIREME_OPTIMIZER_FLAG_ONE_SWEEP, MASTER_WEIGHTS and STOCHASTIC_ROUNDING.
     * Default: 0.
     */
    uint32_t flags;
    /** Must be 0. */
    uint32_t reserved;
    /**
     * Learning rate of the first steps: above 0, finite. For a rate of 0 call
     * trireme_optimizer_set_learning_rate(). Default: 0.001; for ADAFACTOR 0.01.
     */
    double learning_rate;
    /**
     * wd of the formulas in optimizer.h: 0 or more, finite. Must be 0 for USER. Default: 0, no
     * weight decay.
     */
    double weight_decay;
    /**
     * Points to `base` of the options of the rule, such as trireme_adam_options. Its kind must be
     * `kind`, unless that is 0. Required for USER. Default: NULL, the defaults of the rule.
     */
    const trireme_rule_options *rule;
    /** How gradients are clipped. Default: NULL, not at all. */
    const trireme_clipping_options *clipping;
    /** `group_count` groups of parameters. Default: NULL, no groups. */
    const trireme_parameter_group *groups;
    /**
     * Groups at `groups`, at most 1,024. The parameter_group of every parameter must be below it.
     * Default: 0, no groups; every parameter_group must then be 0.
     */
    uint64_t group_count;
    /**
     * How losses are scaled. Default: NULL, losses are not scaled, and an inf or NaN goes through
     * the rule.
     */
    const trireme_loss_scale_options *loss_scale;
    /**
     * A file of optimizer state, which each rank streams through memory (docs/offload.md). Not for
     * rules without state, LAMB, LARS, ADAFACTOR, MUON, ONE_SWEEP or MASTER_WEIGHTS. On a device:
     * pinned memory (docs/gpus.md). Default: NULL, state lies in memory where the model is.
     */
    const trireme_offload_options *offload;
    /**
     * Ranks whose models share norms for clipping and the decision to skip a step. Needs a
     * max_norm, in `clipping` or of a group, or loss_scale. All ranks of a model name the same
     * communicator; the optimizer makes a child of it. Must be NULL for a model on a mesh, whose
     * axes tell these ranks: see mesh.h. Default: NULL, the ranks of the model.
     */
    trireme_communicator *norm_ranks;
    /** Every so many steps, the step includes trireme_model_check_replicas(). Default: 0, never. */
    uint64_t check_every;
    /**
     * Seed of the draws of TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING. Must be 0 without that flag.
     * Default: 0, which is a seed, too.
     */
    uint64_t rounding_seed;
} trireme_optimizer_options; /* since 1.0 */

/** Options that lack only the kind. */
#define TRIREME_OPTIMIZER_OPTIONS_INIT TRIREME_INIT(trireme_optimizer_options)

/** The loss scale, and how the last step went with it. Set struct_size before the call. */
typedef struct trireme_loss_scale_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 1 if the last step was skipped, as a gradient was inf or NaN; else 0. */
    int32_t skipped;
    /** The caller multiplies the next loss by this. */
    double scale;
    /** Steps since the scale last grew or a step was skipped. */
    uint64_t clean_steps;
    /** Skipped steps since the scale last grew. hysteresis counts these. */
    uint64_t overflows;
    /** All skipped steps, also those before the state that was last loaded. */
    uint64_t skipped_steps;
    /**
     * If the last step was skipped: the lowest number of a parameter whose reduced gradient is inf
     * or NaN. Tied parameters count as the parameter that they name. UINT64_MAX if the step was not
     * skipped, or if all these parameters are in another model that skipped with this one.
     */
    uint64_t parameter;
    /**
     * The lowest rank that handed in an inf or NaN for that parameter. -1 if no rank did: the sum
     * alone is too large, or a bucket hook made the inf or NaN.
     */
    int32_t rank;
    /**
     * 1 if the last step overflowed and the scale could not back off, because it is at
     * minimum_scale. That step answered TRIREME_ERROR_INVALID_STATE. Else 0.
     */
    int32_t at_floor;
} trireme_loss_scale_info; /* since 1.0 */

/** An info ready for trireme_optimizer_get_loss_scale_info(). */
#define TRIREME_LOSS_SCALE_INFO_INIT TRIREME_INIT(trireme_loss_scale_info)

/** The `version` of a trireme_optimizer_counters in this release. */
#define TRIREME_OPTIMIZER_COUNTERS_VERSION 1

/**
 * The counts of an optimizer: the state of training that no trireme_state_range holds. All ranks
 * have the same.
 *
 * trireme_optimizer_get_counters() fills it. trireme_optimizer_restore() takes it back, also with
 * another strategy or number of ranks. Start from TRIREME_OPTIMIZER_COUNTERS_INIT.
 *
 * If a rule of a later release counts more, that release adds fields at the end and raises
 * `version`.
 */
typedef struct trireme_optimizer_counters {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /**
     * TRIREME_OPTIMIZER_COUNTERS_VERSION. trireme_optimizer_restore() refuses any other number,
     * such as the 0 of a struct that was never filled.
     */
    uint32_t version;
    /**
     * Steps that were made. The bias corrections of a rule, the schedule and stochastic rounding
     * depend on it.
     */
    uint64_t steps;
    /** The learning rate as set, without the factor of a schedule. */
    double learning_rate;
    /** The caller multiplies the next loss by this. 0 if losses are not scaled. */
    double loss_scale;
    /**
     * Steps since the scale last grew or a step was skipped. This field and the next two are as in
     * trireme_loss_scale_info, and 0 if losses are not scaled.
     */
    uint64_t clean_steps;
    /** Skipped steps since the scale last grew. */
    uint64_t overflows;
    /** All skipped steps. */
    uint64_t skipped_steps;
    /**
     * For each parameter by its number, the steps in which it had a gradient: at most `steps`. A
     * restore only reads them. NULL in a get asks for parameter_count only.
     */
    uint64_t *parameter_steps;
    /**
     * Numbers at `parameter_steps`: all parameters with TRIREME_UNUSED_SKIP, else 0. Before a get,
     * the caller sets it to the numbers that the memory has room for.
     */
    uint64_t parameter_count;
    /**
     * For each group of parameters, the factor that trireme_optimizer_set_group_rate_factor() sets.
     * A restore only reads them. NULL in a get asks for group_count only.
     */
    double *group_rate_factors;
    /**
     * Numbers at `group_rate_factors`: group_count of trireme_optimizer_options. Before a get, the
     * caller sets it to the numbers that the memory has room for.
     */
    uint64_t group_count;
} trireme_optimizer_counters; /* since 1.0 */

/** Counters ready for trireme_optimizer_get_counters(). */
#define TRIREME_OPTIMIZER_COUNTERS_INIT TRIREME_INIT(trireme_optimizer_counters)

/** Kinds of state that a range can hold. */
enum {
    /** The parameter's own values. */
    TRIREME_STATE_KIND_PARAMETER = 1,
    /** A state vector of the update rule. */
    TRIREME_STATE_KIND_OPTIMIZER = 2,
    /** ADAFACTOR, of a matrix: R, a number for each row. */
    TRIREME_STATE_KIND_ROWS = 3,
    /** ADAFACTOR, of a matrix: C, a number for each column. */
    TRIREME_STATE_KIND_COLUMNS = 4
};

/**
 * A stretch of the state of training that this rank owns. Set struct_size before the call.
 *
 * Ranges of TRIREME_STATE_KIND_OPTIMIZER have the state vectors of the rule, numbered from 0. The
 * formulas in optimizer.h list them. With TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS the masters of
 * 16-bit parameters are one more vector, the last one. MUON has them as vector 2, of a matrix, too.
 */
typedef struct trireme_state_range {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** TRIREME_STATE_KIND_*. */
    int32_t kind;
    /**
     * Type of the elements: that of the parameter. For all kinds but PARAMETER, f32 where the
     * parameter is f16 or bf16.
     */
    trireme_dtype dtype;
    /** OPTIMIZER: number of the state vector. 0 for the other kinds. */
    uint32_t vector;
    /** Number of the parameter. */
    uint64_t parameter;
    /** Name of the parameter. It lives as long as the model. */
    const char *name;
    /**
     * Whole shape of the parameter; it lives as long as the model. NULL for a scalar. ROWS,
     * COLUMNS: one number, how many rows or columns there are; it lives as long as the optimizer.
     */
    const uint64_t *shape;
    /** Numbers at `shape`. */
    uint32_t dimensions;
    /** Always 0. */
    uint32_t reserved;
    /** Index of the range's first element, in row-major order of `shape`. */
    uint64_t first;
    /** Elements of the range; 1 or more. */
    uint64_t count;
    /**
     * Address of the elements, good until the optimizer is destroyed. NULL where they lie in a
     * file: OPTIMIZER with offload, PARAMETER with offload of the model. Such elements
     * are in memory during a step only: see trireme_optimizer_read_range(). NULL on a device, too.
     */
    void *data;
} trireme_state_range; /* since 1.0 */

/** A range ready for trireme_optimizer_get_range(). */
#define TRIREME_STATE_RANGE_INIT TRIREME_INIT(trireme_state_range)

TRIREME_END_C

#endif
