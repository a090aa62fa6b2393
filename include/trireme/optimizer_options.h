/**
 * @file optimizer_options.h
 * @brief The structs of optimizer.h: the options of an update rule, and the reports about it.
 *
 * Ownership: each call copies the strings and arrays that it takes. Thread safety: plain data.
 */
#ifndef TRIREME_OPTIMIZER_OPTIONS_H
#define TRIREME_OPTIMIZER_OPTIONS_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/model_options.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** An update rule. 0 is none. */
typedef int32_t trireme_rule_kind;

/** Numbers of the update rules. The top of optimizer.h has their formulas. */
enum {
    TRIREME_RULE_SGD     = 1,
    TRIREME_RULE_ADAM    = 2,
    TRIREME_RULE_ADAMW   = 3,
    /** The caller's own rule: the callback `update`. */
    TRIREME_RULE_USER = 4,
    TRIREME_RULE_ADAGRAD = 5,
    TRIREME_RULE_RMSPROP = 6,
    TRIREME_RULE_LION    = 7,
    /** Takes 1,104 bytes of working memory for each parameter. */
    TRIREME_RULE_LAMB = 8,
    /** Takes as much working memory as LAMB: 1,104 bytes for each parameter. */
    TRIREME_RULE_LARS    = 9,
    /**
     * Keeps one number for each row and each column of a matrix, each of them on one rank.
     * Working memory: 1,104 bytes for each parameter and 8 for each matrix; also 24 bytes for
     * each row and each column.
     */
    TRIREME_RULE_ADAFACTOR = 10,
    /**
     * Assigns each matrix to one rank, which gathers and orthogonalises it. The model's timeout
     * must be longer than that takes: docs/optimizers.md has the time and the memory.
     */
    TRIREME_RULE_MUON = 11
};

/** Flags of an optimizer. docs/features.md tells which options go together. */
enum {
    /** Nesterov momentum: for SGD with momentum above 0, and for MUON. */
    TRIREME_OPTIMIZER_FLAG_NESTEROV = 1,
    /**
     * zero1 only: the step reduces the gradients, not backward, and updates each element while its
     * sum is in the cache. This moves the fewest bytes, for ranks of one host whose compute leaves
     * no memory bandwidth to hide the exchange in. The bits are the same. docs/optimizers.md
     * lists the options that it does not go with.
     */
    TRIREME_OPTIMIZER_FLAG_ONE_SWEEP = 2,
    /** RMSPROP only: the rule divides gradients by their spread around their mean. */
    TRIREME_OPTIMIZER_FLAG_CENTERED = 4,
    /**
     * The owner of each f16 or bf16 element also keeps it in f32, its master: 4 bytes an element.
     * The model needs trained parameters of these types; its others have no masters. Not with
     * offload_path. See the top of optimizer.h.
     */
    TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS = 8,
    /**
     * The step rounds bf16 parameters up or down by chance. The model needs trained parameters of
     * bf16, and no trained ones of f16. Not with MASTER_WEIGHTS or a rule of the caller. See the
     * top of optimizer.h.
     */
    TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING = 16
};

/** Flags of a group of parameters. */
enum {
    /** MUON: treats no parameter of the group as a matrix. */
    TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE = 1
};

/** The factor by which MUON multiplies the learning rate of a matrix. */
typedef int32_t trireme_rate_adjustment;

/** Adjustments of a rate. */
enum {
    /** sqrt(max(1, rows / columns)). */
    TRIREME_MUON_RATE_ORIGINAL = 0,
    /** 0.2 * sqrt(max(rows, columns)). The learning rate and weight_decay of ADAMW then fit. */
    TRIREME_MUON_RATE_MATCH_ADAMW = 1
};

/** Most state vectors that a caller's own rule can ask for. */
#define TRIREME_MAX_STATES 8

/**
 * One piece of the model for a caller's own update rule: elements of one trainable parameter that
 * this rank owns. With offload_path, pieces may be smaller.
 */
typedef struct trireme_update {
    /** sizeof this struct as the library knows it. */
    uint32_t struct_size;
    /** Type of `parameters`: that of the parameter, or f32 if they are master weights. */
    trireme_dtype dtype;
    /** Number of the parameter. */
    uint64_t parameter;
    /** Index, within the parameter, of the first element of this piece. */
    uint64_t first;
    /** Elements of this piece; 1 or more. */
    uint64_t count;
    /**
     * Number of this step, from 1. TRIREME_UNUSED_SKIP counts only the steps in which the parameter
     * had a gradient.
     */
    uint64_t step;
    /**
     * Learning rate of this step: as set, times the factors of the schedule and of the parameter's
     * group, if there are any.
     */
    double learning_rate;
    /**
     * `count` elements, which the callback updates. With TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS, the
     * masters of 16-bit parameters.
     */
    void *parameters;
    /** `count` elements, reduced and clipped. */
    const void *gradients;
    /** State vectors, `count` elements each; 0 before the first step. NULL past state_count. */
    void *states[TRIREME_MAX_STATES];
    /** Type of `gradients` and `states`: f32 where `dtype` is f16 or bf16, else `dtype`. */
    trireme_dtype gradient_dtype;
    /** Always 0. */
    uint32_t reserved;
} trireme_update; /* since 1.0 */

/**
 * A caller's own update rule. The library calls it once for each piece, on the thread of
 * trireme_optimizer_step(). With TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD it runs on the thread of the
 * call that finds the piece's bucket reduced.
 *
 * It returns 0, or any other number to fail the step. It may destroy the model and the optimizer,
 * which live on until the step is over. Any other call on them answers
 * TRIREME_ERROR_INVALID_STATE.
 *
 * A rule that treats each element alone gives the same bits on any number of ranks.
 */
typedef int32_t(TRIREME_CALL *trireme_update_callback)(const trireme_update *update,
                                                       void *user_data);

/**
 * Start from TRIREME_OPTIMIZER_OPTIONS_INIT. In every field 0 or NULL means the default.
 *
 * Names in capitals are update rules, such as SGD for TRIREME_RULE_SGD. A field that begins with
 * names of rules is for these rules alone. trireme_optimizer_create() refuses a field that the
 * rule does not know.
 */
typedef struct trireme_optimizer_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** The update rule, a TRIREME_RULE_*. Required. */
    trireme_rule_kind kind;
    /**
     * 0, or a sum of TRIREME_OPTIMIZER_FLAG_NESTEROV, ONE_SWEEP, CENTERED, MASTER_WEIGHTS and
     * STOCHASTIC_ROUNDING.
     */
    uint32_t flags;
    /** USER: number of state vectors, at most TRIREME_MAX_STATES. Must be 0 for the other kinds. */
    uint32_t state_count;
    /** Step size, 0 or more, finite. Default: 0.001; ADAFACTOR: 0.01. */
    double learning_rate;
    /** SGD, RMSPROP, LARS, MUON: decay of the momentum, in [0, 1). Default: 0, none; MUON: 0.95. */
    double momentum;
    /**
     * ADAM, ADAMW, LION, LAMB, MUON: the formulas' b1, by which the mean of past gradients counts.
     * In (0, 1). Default: 0.9.
     */
    double beta1;
    /**
     * ADAM, ADAMW, RMSPROP, LION, LAMB, MUON: the formulas' b2, the decay of the mean of squares.
     * LION: of the mean of gradients. In RMSPROP it is also called alpha. In (0, 1).
     * Default: 0.999; RMSPROP and LION: 0.99.
     */
    double beta2;
    /**
     * The formulas' eps, added to a divisor: not for SGD, LION and USER. ADAFACTOR takes it as the
     * least divisor. Default: 1e-8 for ADAM, ADAMW, RMSPROP and MUON; 1e-10 for ADAGRAD; 1e-6 for
     * LAMB; 0 for LARS. ADAFACTOR: 2^-52 for parameters of f64, else 2^-23.
     */
    double epsilon;
    /** The formulas' wd, 0 or more, finite. Not for USER. Default: 0, no weight decay. */
    double weight_decay;
    /**
     * The step clips the global L2 norm of all gradients to this; 0 or more, finite. See
     * docs/optimizers.md. Default: 0, no clipping.
     */
    double max_norm;
    /** USER: the rule. Must be NULL for the other kinds. */
    trireme_update_callback update;
    /** Handed to `update`. */
    void *user_data;
    /**
     * The step clips each reduced gradient to [-max_value, max_value], before max_norm sees it. NaN
     * stays. Default: 0, no clipping.
     */
    double max_value;
    /**
     * Every check_every steps, the step includes trireme_model_check_replicas(). Default: 0, never.
     */
    uint64_t check_every;
    /**
     * The norms of max_norm, or of group_max_norms, cover the models of all these ranks. All ranks
     * of the model name the same communicator. The optimizer makes a group of its own of it and
     * keeps no handle. See docs/optimizers.md. Default: NULL, the model's own ranks.
     */
    trireme_communicator *norm_ranks;
    /**
     * The step clips the L2 norm of each parameter group's gradients to the group's number here; 0
     * leaves the group as it is. Not with max_norm. Copied. See docs/optimizers.md. Default: NULL,
     * no clipping by groups.
     */
    const double *group_max_norms;
    /**
     * Numbers at each of `group_max_norms`, `group_rate_factors`, `group_weight_decays` and
     * `group_flags` that is not NULL. At most 1,024. The norm_group of every parameter is below it.
     * Default: 0, no groups.
     */
    uint64_t group_count;
    /**
     * The step multiplies the learning rate of a group's parameters by the group's number here: 0
     * or more, finite. Copied. trireme_optimizer_set_group_rate_factor() changes one. Default:
     * NULL, all 1.
     */
    const double *group_rate_factors;
    /**
     * The weight decay of each group, in place of weight_decay: 0 or more, finite, such as 0 for
     * biases. Not for USER. Copied. Default: NULL, weight_decay for all.
     */
    const double *group_weight_decays;
    /**
     * The first loss scale, such as 65536: a power of two in [2^-64, 2^64]. See the top of
     * optimizer.h. Default: 0, losses are not scaled, and an inf or NaN goes through the rule.
     */
    double loss_scale;
    /**
     * The scale grows by this factor, up to 2^64. A power of two in [1, 2^64]. This field and the
     * next four go only with loss_scale. Default: 2.
     */
    double loss_scale_growth;
    /**
     * The library multiplies the scale by this after an overflow. A power of two in [2^-64, 1).
     * Default: 0.5.
     */
    double loss_scale_backoff;
    /**
     * The scale never falls below this: a power of two in [2^-64, loss_scale]. To fix the scale,
     * set this to loss_scale and loss_scale_growth to 1. Default: 1, or loss_scale if that is less.
     */
    double loss_scale_floor;
    /** The scale grows after this many steps in a row without an overflow. Default: 2000. */
    uint64_t loss_scale_window;
    /**
     * The scale backs off at this overflow since it last grew, and at each further one. Earlier
     * overflows only skip their step. Default: 1.
     */
    uint64_t loss_scale_hysteresis;
    /** LARS: factor of the trust ratio; 0 or more, finite. Default: 0.001. */
    double trust_coefficient;
    /** LAMB, LARS: the most that the trust ratio may be. Default: 0, no limit. */
    double max_trust;
    /**
     * A directory, as a path of the rank's own host. Each rank keeps the rule's state there, in a
     * file without a name, and streams it through memory at each step. The bits are the same.
     * Copied. See docs/offload.md. Default: NULL, all state stays in memory.
     */
    const char *offload_path;
    /**
     * The part of the state's bytes that lies in the file, in (0, 1]. The library rounds it up to
     * whole blocks. Default: 1.
     */
    double offload_ratio;
    /**
     * Most memory, in bytes, for transfers to and from the file; at least 32,768. More than the
     * default is rarely faster: see docs/offload.md. Default: 8 MiB.
     */
    uint64_t offload_buffer_bytes;
    /**
     * TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING: the seed of the draws. Another seed gives other
     * draws. Default: 0, which is a seed, too.
     */
    uint64_t rounding_seed;
    /**
     * ADAFACTOR: in step t the mean of squares moves by t^beta2_decay. Below 0, finite. Default:
     * -0.8.
     */
    double beta2_decay;
    /**
     * ADAFACTOR: the rule clips the root mean square of a parameter's update to this. Above 0,
     * finite. Default: 1.
     */
    double max_update_rms;
    /**
     * ADAFACTOR: the least root mean square that a parameter counts with when the rule computes the
     * length of a step. Above 0, finite. Default: 0.001.
     */
    double min_parameter_rms;
    /**
     * MUON: flags of each group, 0 or a sum of TRIREME_PARAMETER_GROUP_FLAG_*. Copied. Default:
     * NULL, all 0.
     */
    const uint32_t *group_flags;
    /** MUON: Newton-Schulz steps, at most 99. Default: 5. */
    uint32_t orthogonal_steps;
    /** MUON: TRIREME_MUON_RATE_*. Default: TRIREME_MUON_RATE_ORIGINAL. */
    trireme_rate_adjustment rate_adjustment;
} trireme_optimizer_options; /* since 1.0 */

/** Options of which only the kind is missing. */
#define TRIREME_OPTIMIZER_OPTIONS_INIT \
    { sizeof(trireme_optimizer_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

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
    /** Skipped steps since the scale last grew. loss_scale_hysteresis counts these. */
    uint64_t overflows;
    /** All skipped steps, with those before a state that was loaded. */
    uint64_t skipped_steps;
    /**
     * If the last step was skipped: the lowest number of a parameter whose reduced gradient is inf
     * or NaN. Of tied parameters, the one that the others name. UINT64_MAX if the step was not
     * skipped, or if all these parameters are in another model of norm_ranks.
     */
    uint64_t parameter;
    /**
     * The lowest rank that handed in an inf or NaN for that parameter. -1 if no rank did: the sum
     * alone is too large, or a bucket hook made the inf or NaN.
     */
    int32_t rank;
    /**
     * 1 if the scale had to back off, but is at its floor. That step has answered
     * TRIREME_ERROR_INVALID_STATE. Else 0.
     */
    int32_t at_floor;
} trireme_loss_scale_info; /* since 1.0 */

/** An info ready for trireme_optimizer_get_loss_scale_info(). */
#define TRIREME_LOSS_SCALE_INFO_INIT { sizeof(trireme_loss_scale_info), 0, 0, 0, 0, 0, 0, 0, 0 }

/** The `version` of a trireme_optimizer_counters in this release. */
#define TRIREME_OPTIMIZER_COUNTERS_VERSION 1

/**
 * The counts of an optimizer: the state of training that is in no range. All ranks have the same.
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
#define TRIREME_OPTIMIZER_COUNTERS_INIT \
    { sizeof(trireme_optimizer_counters), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

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
 * Ranges of TRIREME_STATE_KIND_OPTIMIZER have these state vectors, numbered from 0 in this order.
 * The letters are those of the formulas in optimizer.h.
 * - SGD: the momentum v, if there is momentum.
 * - ADAM, ADAMW, LAMB: m, v.
 * - LARS: v, if there is momentum.
 * - ADAGRAD: v.
 * - RMSPROP: v; then b, if there is momentum; then m, with CENTERED.
 * - LION: m.
 * - ADAFACTOR: v, of parameters that are no matrix.
 * - MUON: v, of a matrix. m, v, of other parameters.
 * - USER: the vectors of the caller's rule.
 * - With TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS, last, for 16-bit parameters only: the masters.
 *   MUON has them as vector 2, of a matrix, too.
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
    /** OPTIMIZER: number of the state vector, as listed above. 0 for the other kinds. */
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
     * file: OPTIMIZER with offload_path, PARAMETER with offload_path of the model. Such elements
     * are in memory during a step only: see trireme_optimizer_read_range().
     */
    void *data;
} trireme_state_range; /* since 1.0 */

/** A range ready for trireme_optimizer_get_range(). */
#define TRIREME_STATE_RANGE_INIT { sizeof(trireme_state_range), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

TRIREME_END_C

#endif
