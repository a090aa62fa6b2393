/**
 * @file rules.h
 * @brief The update rules, and the options of each. The top of optimizer.h has their formulas.
 *
 * The options of every rule begin with a trireme_rule_options, which names the rule.
 * trireme_optimizer_options.rule points to that first part:
 *
 *     trireme_adam_options adam = TRIREME_ADAMW_OPTIONS_INIT;
 *     trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
 *     adam.beta2 = 0.95;
 *     options.rule = &adam.base;
 *
 * In every number of these structs 0 means the default. A rule with all defaults needs no struct:
 * trireme_optimizer_options.kind names it. TRIREME_RULE_USER always needs its struct.
 *
 * b1, b2 and eps are letters of the formulas.
 *
 * Ownership: the call that takes options copies them. Thread safety: plain data.
 */
#ifndef TRIREME_RULES_H
#define TRIREME_RULES_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** An update rule. 0 is none. */
typedef int32_t trireme_rule_kind;

/** Numbers of the update rules. The top of optimizer.h has their formulas. */
enum {
    TRIREME_RULE_SGD = 1,
    TRIREME_RULE_ADAM = 2,
    TRIREME_RULE_ADAMW = 3,
    /** The caller's own rule: `update` of trireme_user_rule_options. */
    TRIREME_RULE_USER = 4,
    TRIREME_RULE_ADAGRAD = 5,
    TRIREME_RULE_RMSPROP = 6,
    TRIREME_RULE_LION = 7,
    /** Takes 1,104 bytes of working memory for each parameter. */
    TRIREME_RULE_LAMB = 8,
    /** Takes as much working memory as LAMB: 1,104 bytes for each parameter. */
    TRIREME_RULE_LARS = 9,
    /**
     * Keeps one number for each row and each column of a matrix, each of them on one rank.
     * Working memory: 1,104 bytes for each parameter and 8 for each matrix; also 24 bytes for
     * each row and each column.
     */
    TRIREME_RULE_ADAFACTOR = 10,
    /**
     * Assigns each matrix to one rank, which gathers and orthogonalises it. The timeout of the
     * model must be longer than that work takes. docs/optimizers.md has its time and memory.
     */
    TRIREME_RULE_MUON = 11
};

/** The first part of every rule's options. */
typedef struct trireme_rule_options {
    /** sizeof the whole struct of the rule as the caller knows it. */
    uint32_t struct_size;
    /** The rule, and so the struct: TRIREME_RULE_*. The INIT macro of the rule sets it. */
    trireme_rule_kind kind;
} trireme_rule_options; /* since 1.0 */

/** Flags of SGD. */
enum {
    /** Nesterov momentum; needs momentum above 0. */
    TRIREME_SGD_FLAG_NESTEROV = 1
};

/** SGD. */
typedef struct trireme_sgd_options {
    /** The rule and the size of this struct. */
    trireme_rule_options base;
    /** 0 or TRIREME_SGD_FLAG_NESTEROV. Default: 0. */
    uint32_t flags;
    /** Must be 0. */
    uint32_t reserved;
    /** Decay of the momentum, in [0, 1). Default: 0, none. */
    double momentum;
} trireme_sgd_options; /* since 1.0 */

/** Options of SGD with all defaults. */
#define TRIREME_SGD_OPTIONS_INIT TRIREME_INIT_KIND(trireme_sgd_options, TRIREME_RULE_SGD)

/** ADAM and ADAMW. */
typedef struct trireme_adam_options {
    /** The rule and the size of this struct. */
    trireme_rule_options base;
    /** b1, the decay of the mean of gradients. In (0, 1). Default: 0.9. */
    double beta1;
    /** b2, the decay of the mean of squares. In (0, 1). Default: 0.999. */
    double beta2;
    /** eps, added to a divisor. Above 0, finite. Default: 1e-8. */
    double epsilon;
} trireme_adam_options; /* since 1.0 */

/** Options of ADAM with all defaults. */
#define TRIREME_ADAM_OPTIONS_INIT TRIREME_INIT_KIND(trireme_adam_options, TRIREME_RULE_ADAM)
/** Options of ADAMW with all defaults. */
#define TRIREME_ADAMW_OPTIONS_INIT TRIREME_INIT_KIND(trireme_adam_options, TRIREME_RULE_ADAMW)

/** ADAGRAD. */
typedef struct trireme_adagrad_options {
    /** The rule and the size of this struct. */
    trireme_rule_options base;
    /** eps, added to a divisor. Above 0, finite. Default: 1e-10. */
    double epsilon;
} trireme_adagrad_options; /* since 1.0 */

/** Options of ADAGRAD with all defaults. */
#define TRIREME_ADAGRAD_OPTIONS_INIT \
    TRIREME_INIT_KIND(trireme_adagrad_options, TRIREME_RULE_ADAGRAD)

/** Flags of RMSPROP. */
enum {
    /** The rule divides gradients by their spread around their mean. */
    TRIREME_RMSPROP_FLAG_CENTERED = 1
};

/** RMSPROP. */
typedef struct trireme_rmsprop_options {
    /** The rule and the size of this struct. */
    trireme_rule_options base;
    /** 0 or TRIREME_RMSPROP_FLAG_CENTERED. Default: 0. */
    uint32_t flags;
    /** Must be 0. */
    uint32_t reserved;
    /** Decay of the momentum, in [0, 1). Default: 0, none. */
    double momentum;
    /** b2, the decay of the mean of squares. In (0, 1). Default: 0.99. */
    double alpha;
    /** eps, added to a divisor. Above 0, finite. Default: 1e-8. */
    double epsilon;
} trireme_rmsprop_options; /* since 1.0 */

/** Options of RMSPROP with all defaults. */
#define TRIREME_RMSPROP_OPTIONS_INIT \
    TRIREME_INIT_KIND(trireme_rmsprop_options, TRIREME_RULE_RMSPROP)

/** LION. */
typedef struct trireme_lion_options {
    /** The rule and the size of this struct. */
    trireme_rule_options base;
    /** b1, the weight of the mean m in the step. In (0, 1). Default: 0.9. */
    double beta1;
    /** b2, the decay of the mean of gradients. In (0, 1). Default: 0.99. */
    double beta2;
} trireme_lion_options; /* since 1.0 */

/** Options of LION with all defaults. */
#define TRIREME_LION_OPTIONS_INIT TRIREME_INIT_KIND(trireme_lion_options, TRIREME_RULE_LION)

/** LAMB. */
typedef struct trireme_lamb_options {
    /** The rule and the size of this struct. */
    trireme_rule_options base;
    /** b1, the decay of the mean of gradients. In (0, 1). Default: 0.9. */
    double beta1;
    /** b2, the decay of the mean of squares. In (0, 1). Default: 0.999. */
    double beta2;
    /** eps, added to a divisor. Above 0, finite. Default: 1e-6. */
    double epsilon;
    /** The most that the trust ratio may be: 0 or more, finite. Default: 0, no limit. */
    double max_trust;
} trireme_lamb_options; /* since 1.0 */

/** Options of LAMB with all defaults. */
#define TRIREME_LAMB_OPTIONS_INIT TRIREME_INIT_KIND(trireme_lamb_options, TRIREME_RULE_LAMB)

/** LARS. */
typedef struct trireme_lars_options {
    /** The rule and the size of this struct. */
    trireme_rule_options base;
    /** Decay of the momentum, in [0, 1). Default: 0, none. */
    double momentum;
    /** eps, added to a divisor: 0 or more, finite. Default: 0. */
    double epsilon;
    /** Factor of the trust ratio. Above 0, finite. Default: 0.001. */
    double trust_coefficient;
    /** The most that the trust ratio may be: 0 or more, finite. Default: 0, no limit. */
    double max_trust;
} trireme_lars_options; /* since 1.0 */

/** Options of LARS with all defaults. */
#define TRIREME_LARS_OPTIONS_INIT TRIREME_INIT_KIND(trireme_lars_options, TRIREME_RULE_LARS)

/** ADAFACTOR. */
typedef struct trireme_adafactor_options {
    /** The rule and the size of this struct. */
    trireme_rule_options base;
    /** The mean of squares moves by t^beta2_decay in step t. Below 0, finite. Default: -0.8. */
    double beta2_decay;
    /**
     * eps, the least divisor. Above 0, finite. Default: 2^-52 for parameters of f64, else 2^-23.
     */
    double epsilon;
    /**
     * The rule clips the root mean square of a parameter's update to this. Above 0, finite.
     * Default: 1.
     */
    double max_update_rms;
    /**
     * The rule computes the length of a step from the root mean square of the parameter, but from
     * no less than this. Above 0, finite. Default: 0.001.
     */
    double min_parameter_rms;
} trireme_adafactor_options; /* since 1.0 */

/** Options of ADAFACTOR with all defaults. */
#define TRIREME_ADAFACTOR_OPTIONS_INIT \
    TRIREME_INIT_KIND(trireme_adafactor_options, TRIREME_RULE_ADAFACTOR)

/** Flags of MUON. */
enum {
    /** Nesterov momentum. */
    TRIREME_MUON_FLAG_NESTEROV = 1
};

/** How MUON computes the factor of the learning rate of a matrix. */
typedef int32_t trireme_rate_adjustment;

/** Adjustments of a rate. */
enum {
    /** sqrt(max(1, rows / columns)). */
    TRIREME_MUON_RATE_ORIGINAL = 0,
    /** 0.2 * sqrt(max(rows, columns)). The learning rate and weight_decay of ADAMW then fit. */
    TRIREME_MUON_RATE_MATCH_ADAMW = 1
};

/**
 * MUON, whose matrices the top of optimizer.h defines. beta1, beta2 and epsilon are those of ADAMW,
 * for parameters that are no matrix.
 */
typedef struct trireme_muon_options {
    /** The rule and the size of this struct. */
    trireme_rule_options base;
    /** 0 or TRIREME_MUON_FLAG_NESTEROV. Default: 0. */
    uint32_t flags;
    /** Newton-Schulz steps, 1 to 99. Default: 5. */
    uint32_t orthogonal_steps;
    /** TRIREME_MUON_RATE_*. Default: TRIREME_MUON_RATE_ORIGINAL. */
    trireme_rate_adjustment rate_adjustment;
    /** Must be 0. */
    uint32_t reserved;
    /** Decay of the momentum, in (0, 1). Default: 0.95. */
    double momentum;
    /** b1, the decay of the mean of gradients. In (0, 1). Default: 0.9. */
    double beta1;
    /** b2, the decay of the mean of squares. In (0, 1). Default: 0.999. */
    double beta2;
    /** eps, added to a divisor. Above 0, finite. Default: 1e-8. */
    double epsilon;
} trireme_muon_options; /* since 1.0 */

/** Options of MUON with all defaults. */
#define TRIREME_MUON_OPTIONS_INIT TRIREME_INIT_KIND(trireme_muon_options, TRIREME_RULE_MUON)

/** Most state vectors that a caller's own rule can ask for. */
#define TRIREME_MAX_STATES 8

/**
 * One piece of the model for a caller's own update rule: consecutive elements of one trainable
 * parameter that this rank owns. With state or parameters in a file, pieces also end where a block
 * of the file does.
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
     * Number of this step, from 1. With TRIREME_UNUSED_SKIP only the steps in which the parameter
     * had a gradient count.
     */
    uint64_t step;
    /**
     * Learning rate of this step: the rate as set, times the factor of the schedule, times
     * rate_factor of the group. A factor that is not set counts as 1.
     */
    double learning_rate;
    /**
     * `count` elements, which the callback updates. With TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS and
     * a 16-bit parameter, these are its master weights.
     */
    void *parameters;
    /** `count` elements, reduced and clipped. */
    const void *gradients;
    /**
     * State vectors, `count` elements each. All elements are 0 before the first step. Entries from
     * state_count on are NULL.
     */
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
 * A rule that treats each element alone does not depend on how elements are cut into pieces.
 */
typedef int32_t(TRIREME_CALLCONV *trireme_update_callback)(const trireme_update *update,
                                                           void *user_data);

/** USER: a rule of the caller. An optimizer of this kind requires these options. */
typedef struct trireme_user_rule_options {
    /** The rule and the size of this struct. */
    trireme_rule_options base;
    /** Number of state vectors, at most TRIREME_MAX_STATES. Default: 0. */
    uint32_t state_count;
    /** Must be 0. */
    uint32_t reserved;
    /** The rule. Required. */
    trireme_update_callback update;
    /** Handed to `update`; trireme_optimizer_create() tells how long. Default: NULL. */
    void *user_data;
} trireme_user_rule_options; /* since 1.0 */

/** Options of USER with all defaults. */
#define TRIREME_USER_RULE_OPTIONS_INIT \
    TRIREME_INIT_KIND(trireme_user_rule_options, TRIREME_RULE_USER)

TRIREME_END_C

#endif
