/**
 * @file optimizer_options.h
 * @brief An update rule and what it keeps, as numbers: the structs of optimizer.h.
 *
 * Ownership: strings and arrays are copied by the call that takes them. Thread safety: plain data.
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

/** Numbers of the update rules. */
enum {
    TRIREME_RULE_SGD     = 1,
    TRIREME_RULE_ADAM    = 2,
    TRIREME_RULE_ADAMW   = 3,
    /** The callback `update`. */
    TRIREME_RULE_USER = 4,
    TRIREME_RULE_ADAGRAD = 5,
    TRIREME_RULE_RMSPROP = 6,
    TRIREME_RULE_LION    = 7,
    /** Like LARS takes 1,104 bytes of working memory for each parameter. */
    TRIREME_RULE_LAMB = 8,
    TRIREME_RULE_LARS    = 9,
    /**
     * State of a matrix is one number a row and one a column, each on one rank. Takes 1,104 bytes
     * of working memory for each parameter, 8 for each matrix, and 24 for each of its rows and
     * columns.
     */
    TRIREME_RULE_ADAFACTOR = 10,
    /**
     * Each matrix is one rank's, which gathers and orthogonalises it: see docs/optimizers.md for
     * how long that takes, which the model's timeout must allow, and how much memory.
     */
    TRIREME_RULE_MUON = 11
};

/** Flags of an optimizer. */
enum {
    /** SGD with momentum > 0, and MUON. */
    TRIREME_OPTIMIZER_FLAG_NESTEROV = 1,
    /**
     * zero1: gradients are not reduced during backward, but in the step, which updates each element
     * while its sum is in the cache: the fewest bytes, for ranks of one host whose compute leaves
     * no memory bandwidth to hide the exchange in. The bits are the same. Not with leaves,
     * max_norm, max_value, loss_scale, bucket hooks, reduce_dtype, TRIREME_MODEL_FLAG_UNEVEN,
     * TRIREME_UNUSED_SKIP, LAMB, LARS, ADAFACTOR, MUON or a rule of the caller.
     */
    TRIREME_OPTIMIZER_FLAG_ONE_SWEEP = 2,
    /** RMSPROP only: gradients are divided by their spread around their mean. */
    TRIREME_OPTIMIZER_FLAG_CENTERED = 4,
    /**
     * Parameters of f16 and bf16 have a master of f32 each: see the top of optimizer.h. 4 bytes an
     * element, with its owner. For a model with such parameters; its others stay as they are. Not
     * with offload_path.
     */
    TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS = 8,
    /**
     * Parameters of bf16 are rounded by chance: see the top of optimizer.h. For a model with such
     * parameters, and without trained ones of f16. Not with MASTER_WEIGHTS or a rule of the caller.
     */
    TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING = 16
};

/** Flags of a group of parameters. */
enum {
    /** MUON: none of its parameters is a matrix. */
    TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE = 1
};

/** By what MUON multiplies the learning rate of a matrix. */
typedef int32_t trireme_rate_adjustment;

/** Adjustments of a rate. */
enum {
    /** sqrt(max(1, rows / columns)). */
    TRIREME_MUON_RATE_ORIGINAL = 0,
    /** 0.2 * sqrt(max(rows, columns)): rates and weight_decay as for ADAMW. */
    TRIREME_MUON_RATE_MATCH_ADAMW = 1
};

/** Most state vectors that a caller's own rule can ask for. */
#define TRIREME_MAX_STATES 8

/** One piece of the model for a caller's own update rule: the trainable part of one parameter that this rank owns. */
typedef struct trireme_update {
    /** sizeof this struct as the library knows it. */
    uint32_t struct_size;
    /** Type of `parameters`: f32 if those are master weights. */
    trireme_dtype dtype;
    /** Number of the parameter. */
    uint64_t parameter;
    /** Which of its elements comes first here. */
    uint64_t first;
    /** Elements; 1 or more. */
    uint64_t count;
    /**
     * Number of this step, from 1. With TRIREME_UNUSED_SKIP: of those in which the parameter had a
     * gradient.
     */
    uint64_t step;
    /**
     * Of this step: as set, times the factor of the schedule if there is one, times that of the
     * parameter's group.
     */
    double learning_rate;
    /**
     * `count` elements, to be updated; with TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS the masters of
     * those of 16 bits.
     */
    void *parameters;
    /** `count` elements, reduced and clipped. */
    const void *gradients;
    /** `count` elements each, 0 before the first step; NULL past state_count. */
    void *states[TRIREME_MAX_STATES];
    /** Type of `gradients` and `states`: f32 where `dtype` is f16 or bf16, else `dtype`. */
    trireme_dtype gradient_dtype;
    /** 0. */
    uint32_t reserved;
} trireme_update; /* since 1.0 */

/**
 * A caller's own update rule, called for each piece on the thread of trireme_optimizer_step(), or with
 * TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD on that of the call that finds its bucket reduced. It
 * returns 0, or any other number to fail the step. It may destroy the model and the optimizer, which
 * live on until the step is over; any other call on them answers TRIREME_ERROR_INVALID_STATE.
 * For the same bits on any number of ranks it treats each element alone.
 */
typedef int32_t(TRIREME_CALL *trireme_update_callback)(const trireme_update *update,
                                                       void *user_data);

/** Start from TRIREME_OPTIMIZER_OPTIONS_INIT. In every field 0 or NULL means the default. */
typedef struct trireme_optimizer_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Required. */
    trireme_rule_kind kind;
    /**
     * A sum of TRIREME_OPTIMIZER_FLAG_NESTEROV, ONE_SWEEP, CENTERED, MASTER_WEIGHTS and
     * STOCHASTIC_ROUNDING, or 0.
     */
    uint32_t flags;
    /** USER: state vectors, at most TRIREME_MAX_STATES; 0 for the other kinds. */
    uint32_t state_count;
    /** Default: 0.001; ADAFACTOR: 0.01. */
    double learning_rate;
    /** SGD, RMSPROP, LARS; 0 is none. MUON: 0.95 by default. In [0, 1). */
    double momentum;
    /** ADAM, ADAMW, LION, LAMB, MUON. Default: 0.9. In (0, 1). */
    double beta1;
    /**
     * ADAM, ADAMW, LAMB, MUON: 0.999 by default; RMSPROP (where it is also called alpha), LION:
     * 0.99. In (0, 1).
     */
    double beta2;
    /**
     * ADAM, ADAMW, RMSPROP, MUON: 1e-8 by default; ADAGRAD: 1e-10; LAMB: 1e-6; LARS: 0; ADAFACTOR:
     * 2^-52 for parameters of f64, else 2^-23.
     */
    double epsilon;
    /** 0 is none. */
    double weight_decay;
    /** The global L2 norm of all gradients is clipped to this; 0 is no clipping. */
    double max_norm;
    /** USER: the rule. NULL for the other kinds. */
    trireme_update_callback update;
    /** Handed to `update`. */
    void *user_data;
    /**
     * Each reduced gradient is clipped to [-max_value, max_value], before max_norm sees it; 0 is no
     * clipping. NaN stays.
     */
    double max_value;
    /**
     * After every so many steps, trireme_model_check_replicas() is part of the step; 0 is never.
     */
    uint64_t check_every;
    /**
     * max_norm, or each of group_max_norms, is for all gradients of these ranks: of several models,
     * each with its part of one network (data x tensor x pipeline), that all step together. Each
     * gradient counts once: see replicas of trireme_parameter_options. All ranks of the model name
     * the same communicator; the optimizer makes a group of its own of it and keeps no handle. Not
     * with TRIREME_MODEL_FLAG_UNEVEN. NULL: the model's own ranks.
     */
    trireme_communicator *norm_ranks;
    /**
     * Group by group of parameters (see norm_group of trireme_parameter_options), the L2 norm of
     * the group's gradients is clipped to this, whatever those of other groups are; 0: the group is
     * not clipped. A norm that is no number, for an inf or NaN among the group's gradients, leaves
     * that group's as they are, as with max_norm. Copied. Instead of max_norm; max_value comes
     * before. NULL: no clipping by groups.
     */
    const double *group_max_norms;
    /**
     * Numbers at each of `group_max_norms`, `group_rate_factors`, `group_weight_decays` and
     * `group_flags` that is not NULL, at most 1,024: every parameter's norm_group is below. 0: no
     * groups.
     */
    uint64_t group_count;
    /**
     * The learning rate of a group's parameters is that of the step times the number of the group:
     * 0 or more, finite. Copied; see also trireme_optimizer_set_group_rate_factor(). NULL: all 1.
     */
    const double *group_rate_factors;
    /**
     * weight_decay of each group: 0 or more, finite, such as 0 for biases. Copied. Instead of
     * weight_decay; not with a rule of the caller. NULL: weight_decay for all.
     */
    const double *group_weight_decays;
    /**
     * The first loss scale, such as 65536: see the top of optimizer.h. A power of two in [2^-64,
     * 2^64]. 0: losses are not scaled, and an inf or NaN goes through the rule.
     */
    double loss_scale;
    /**
     * By which the scale grows, up to 2^64: a power of two in [1, 2^64]. Default: 2. This and the
     * next four: only with loss_scale.
     */
    double loss_scale_growth;
    /** By which it is multiplied after an overflow: a power of two in [2^-64, 1). Default: 0.5. */
    double loss_scale_backoff;
    /**
     * It is never smaller: a power of two in [2^-64, loss_scale]. The same as loss_scale, with a
     * growth of 1: the scale is fixed. Default: 1, or loss_scale if that is less.
     */
    double loss_scale_floor;
    /** It grows after so many steps without an overflow in between. Default: 2000. */
    uint64_t loss_scale_window;
    /**
     * It backs off at this overflow since it last grew, and at each further one; those before only
     * skip their step. Default: 1.
     */
    uint64_t loss_scale_hysteresis;
    /** LARS. Default: 0.001. */
    double trust_coefficient;
    /** LAMB, LARS: the trust ratio is at most this; 0 is no limit. */
    double max_trust;
    /**
     * A directory: state of the rule lies in a file in it, which each rank makes for itself,
     * without a name, so that nothing is left of it when the process ends, and streams through
     * memory at each step (see docs/offload.md). The bits are the same. Read as a path of the
     * rank's own host; copied. For a rule that has state; not with
     * TRIREME_OPTIMIZER_FLAG_ONE_SWEEP, TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS, LAMB, LARS,
     * ADAFACTOR or MUON. Pieces of a caller's own rule may be smaller then. NULL: all state stays
     * in memory.
     */
    const char *offload_path;
    /**
     * Which part of the state's bytes lies in the file, in (0, 1], rounded up to whole blocks.
     * Default: 1.
     */
    double offload_ratio;
    /**
     * Most memory for what is on its way to and from the file, at least 32,768. Default: 8 MiB, of
     * which more is rarely faster (see docs/offload.md).
     */
    uint64_t offload_buffer_bytes;
    /**
     * With TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING: other numbers, other draws. 0 is a seed,
     * too.
     */
    uint64_t rounding_seed;
    /**
     * ADAFACTOR: the mean of squares moves by t^beta2_decay in step t. Below 0, finite. Default:
     * -0.8.
     */
    double beta2_decay;
    /**
     * ADAFACTOR: the root mean square of a parameter's update is clipped to this. Above 0, finite.
     * Default: 1.
     */
    double max_update_rms;
    /**
     * ADAFACTOR: a step is as long as that of a parameter of this root mean square, at least. Above
     * 0, finite. Default: 0.001.
     */
    double min_parameter_rms;
    /** MUON: of each group, a sum of TRIREME_PARAMETER_GROUP_FLAG_*, or 0. Copied. NULL: all 0. */
    const uint32_t *group_flags;
    /** MUON: Newton-Schulz steps, at most 99. Default: 5. */
    uint32_t orthogonal_steps;
    /** MUON: TRIREME_MUON_RATE_*. */
    trireme_rate_adjustment rate_adjustment;
} trireme_optimizer_options; /* since 1.0 */

/** Options of which only the kind is missing. */
#define TRIREME_OPTIMIZER_OPTIONS_INIT { sizeof(trireme_optimizer_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** The loss scale, and how the last step went with it. Set struct_size before the call. */
typedef struct trireme_loss_scale_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 1: the last step was skipped, as a gradient was inf or NaN; else 0. */
    int32_t skipped;
    /** What the next loss is multiplied by. */
    double scale;
    /** Steps since the scale grew or one was skipped. */
    uint64_t clean_steps;
    /** Skipped steps since the scale grew, of which loss_scale_hysteresis counts. */
    uint64_t overflows;
    /** In all, with those before a state that was loaded. */
    uint64_t skipped_steps;
    /**
     * If the last step was skipped: the lowest number of a parameter whose reduced gradient is inf
     * or NaN; of tied ones, the one that the others are names of. If it was not, or those are in
     * another model of norm_ranks: UINT64_MAX.
     */
    uint64_t parameter;
    /**
     * The lowest rank that handed in an inf or NaN for that parameter. -1: none did, as where only
     * the sum is too large or a bucket hook made it.
     */
    int32_t rank;
    /**
     * 1: the scale would have backed off, but is at its floor; that step has answered
     * TRIREME_ERROR_INVALID_STATE.
     */
    int32_t at_floor;
} trireme_loss_scale_info; /* since 1.0 */

/** An info ready for trireme_optimizer_get_loss_scale_info(). */
#define TRIREME_LOSS_SCALE_INFO_INIT { sizeof(trireme_loss_scale_info), 0, 0, 0, 0, 0, 0, 0, 0 }

/** What `version` of a trireme_optimizer_counters is in this release. */
#define TRIREME_OPTIMIZER_COUNTERS_VERSION 1

/**
 * What an optimizer counts, and the state of training that is in no range: trireme_optimizer_get_counters()
 * fills it, trireme_optimizer_restore() takes it back, also with another strategy and number of ranks.
 * Start from TRIREME_OPTIMIZER_COUNTERS_INIT. It is the same on all ranks. Of a rule that counts more, a
 * later release has more fields at the end, and says so in `version`.
 */
typedef struct trireme_optimizer_counters {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /**
     * TRIREME_OPTIMIZER_COUNTERS_VERSION. A restore refuses any other, such as the 0 of a struct
     * that nobody has filled.
     */
    uint32_t version;
    /**
     * Steps that were made. By it go the bias corrections of a rule, the schedule and stochastic
     * rounding.
     */
    uint64_t steps;
    /** As set: with a schedule, what it multiplies. */
    double learning_rate;
    /** What the next loss is multiplied by; 0: losses are not scaled. */
    double loss_scale;
    /** This and the next two as in trireme_loss_scale_info; 0 if losses are not scaled. */
    uint64_t clean_steps;
    /** Skipped steps since the scale grew. */
    uint64_t overflows;
    /** In all. */
    uint64_t skipped_steps;
    /**
     * By number of the parameter: the steps in which it had a gradient, at most `steps`. A restore
     * only reads them. NULL in a get: only parameter_count is asked for.
     */
    uint64_t *parameter_steps;
    /**
     * Numbers at `parameter_steps`: all parameters with TRIREME_UNUSED_SKIP, else 0. Before a get:
     * for how many there is room.
     */
    uint64_t parameter_count;
    /**
     * By group of parameters, as trireme_optimizer_set_group_rate_factor() sets them. A restore
     * only reads them. NULL in a get: only group_count is asked for.
     */
    double *group_rate_factors;
    /**
     * Numbers at `group_rate_factors`: as in trireme_optimizer_options. Before a get: for how many
     * there is room.
     */
    uint64_t group_count;
} trireme_optimizer_counters; /* since 1.0 */

/** Counters ready for trireme_optimizer_get_counters(). */
#define TRIREME_OPTIMIZER_COUNTERS_INIT { sizeof(trireme_optimizer_counters), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** What a range of state belongs to. */
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

/** A stretch of the state of training that this rank owns. Set struct_size before the call. */
typedef struct trireme_state_range {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** TRIREME_STATE_KIND_*. */
    int32_t kind;
    /** Type of the elements. All but PARAMETER: f32 where the parameter is f16 or bf16. */
    trireme_dtype dtype;
    /**
     * OPTIMIZER: which state vector, from 0. SGD: momentum; ADAM, ADAMW, LAMB: m, v; LARS: v if
     * there is momentum; ADAGRAD: v; RMSPROP: v, then b if there is momentum, then m if CENTERED;
     * LION: m; ADAFACTOR: v of parameters that are no matrix; MUON: v of a matrix, m, v of others;
     * USER: the caller's. 0 with ROWS and COLUMNS. The last one, of parameters of 16 bits only: the
     * masters with TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS; with MUON vector 2, of a matrix too.
     */
    uint32_t vector;
    /** Number of the parameter. */
    uint64_t parameter;
    /** Its name; lives as long as the model. */
    const char *name;
    /**
     * Its whole shape; lives as long as the model. NULL for a scalar. ROWS, COLUMNS: the one number
     * of them, that lives as long as the optimizer.
     */
    const uint64_t *shape;
    /** Numbers at `shape`. */
    uint32_t dimensions;
    /** 0. */
    uint32_t reserved;
    /** Which of its elements, in row-major order, comes first. */
    uint64_t first;
    /** Elements; 1 or more. */
    uint64_t count;
    /**
     * Where they lie, good until the optimizer is destroyed. NULL where they lie in a file and are
     * in memory during a step only: OPTIMIZER with offload_path, PARAMETER with offload_path of the
     * model; see trireme_optimizer_read_range().
     */
    void *data;
} trireme_state_range; /* since 1.0 */

/** A range ready for trireme_optimizer_get_range(). */
#define TRIREME_STATE_RANGE_INIT { sizeof(trireme_state_range), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

TRIREME_END_C

#endif
