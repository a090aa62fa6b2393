/**
 * @file optimizer_shard.h
 * @brief The update rule of a model, run on the part of it that this rank owns.
 *
 * Rules and their sources, for an element with parameter p, gradient g, step t from 1, learning
 * rate a: SGD: g += wd * p; v = momentum * v + g (v = g at t = 1); p -= a * v, or with NESTEROV p
 * -= a * (g + momentum * v); without momentum p -= a * g (Sutskever et al. 2013, as PyTorch writes
 * it). ADAM (Kingma and Ba 2015, arXiv 1412.6980): g += wd * p; m = b1 * m + (1 - b1) * g; v = b2
 * * v + (1 - b2) * g * g; p -= a / (1 - b1^t) * m / (sqrt(v) * (1 / sqrt(1 - b2^t)) + eps). ADAMW
 * (Loshchilov and Hutter 2019, arXiv 1711.05101): the same without wd in g, and p -= a * wd * p
 * first. ADAGRAD (Duchi et al. 2011): g += wd * p; v = v + g * g; p -= a * g / (sqrt(v) + eps).
 * RMSPROP (Tieleman and Hinton 2012, as PyTorch writes it): g += wd * p; v = b2 * v + (1 - b2) * g
 * * g; d = sqrt(v) + eps; p -= a * g / d, or with momentum b = momentum * b + g / d; p -= a * b; with
 * CENTERED (Graves 2013, arXiv 1308.0850) m = m + (1 - b2) * (g - m) and d = sqrt(v - m * m) + eps,
 * in which a difference that rounding made negative is 0. LION (Chen et al. 2023, arXiv
 * 2302.06675): p -= a * wd * p; p -= a * sign(b1 * m + (1 - b1) * g); m = b2 * m + (1 - b2) * g; the
 * sign of 0 is 0. LAMB (You et al. 2020, arXiv 1904.00962): m and v as with ADAM; r = m / (1 -
 * b1^t) / (sqrt(v) * (1 / sqrt(1 - b2^t)) + eps) + wd * p; p -= a * trust * r, trust = |p| / |r|.
 * LARS (You et al. 2017, arXiv 1708.03888): trust = trust_coefficient * |p| / (|g| + wd * |p| +
 * eps); g += wd * p; v = momentum * v + a * trust * g; p -= v, or without momentum p -= a * trust *
 * g. |p|, |r| and |g| are L2 norms of the whole parameter, g as it is after clipping: square roots
 * of exact sums, so trust is the same number on all ranks, for every world size and strategy. It is
 * 1 where that is 0 or no finite number, as for a parameter of zeros, and at most max_trust. A part
 * of a parameter that a model of norm_ranks holds is a parameter of its own. ADAFACTOR (Shazeer and
 * Stern 2018, arXiv 1804.04235, as PyTorch writes it): w = t^beta2_decay; a parameter of two or more
 * dimensions is a matrix, whose rows are its first dimension and whose columns all others: R_i += w *
 * (mean of g * g in row i - R_i), C_j likewise of column j, v = R_i * C_j / max(mean of R, eps); of
 * other parameters v += w * (g * g - v), element by element; u = g / max(sqrt(v), eps); p -= a * wd *
 * p; p -= max(min_parameter_rms, rms(p)) * min(a, 1 / sqrt(t)) / max(1, rms(u) / max_update_rms) *
 * u, where rms is a whole parameter's |.| / sqrt(its number of elements), of p before it decays.
 * What is computed of R, C, v and u is computed in f64. The means of a matrix come from squares in
 * fixed point: each is rounded to about 2^-90 of the largest one's scale (see docs/optimizers.md), so
 * that they add up to the same bits however the matrix is spread; a matrix with an inf or NaN, or
 * an f64 of 2^500 or more, among its gradients becomes NaN. USER: the caller's own callback. An element gets the same bits wherever it lies and whatever vector instructions the
 * machine has. Parameters of f16 and bf16: all of this is computed in f32, in which g and all
 * states are kept, and p is rounded once at the end, to nearest even.
 *
 * Master weights (Micikevicius et al. 2018, arXiv 1710.03740): steps smaller than half of p's last bit
 * are lost that way. With TRIREME_OPTIMIZER_MASTER_WEIGHTS the owner of an element keeps it in f32
 * too, as one more vector of state; the rule changes that one, and p is its rounding, to nearest
 * even, of f16 beyond its range inf. A master begins as its parameter, and begins anew as it is set
 * by trireme_model_set_parameters(). Where p was written otherwise, by its range, so that the master
 * does not round to it, the next step begins the master anew; so who changes a value writes p, and
 * the master with it if it is known.
 *
 * Stochastic rounding (Gupta et al. 2015, arXiv 1502.02551): with
 * TRIREME_OPTIMIZER_STOCHASTIC_ROUNDING, and without masters, p of bf16 is rounded away from 0 with
 * the probability of what is cut off, else towards it, so that on average small steps are not lost.
 * What is drawn for an element depends on rounding_seed, step t, number of the parameter and number
 * of the element in it alone: the bits are as reproducible as without. inf and NaN stay; beyond
 * bf16's range p becomes inf, as to nearest.
 *
 * Loss scale (Micikevicius et al. 2018, arXiv 1710.03740): small gradients of a backward pass in f16
 * would be 0. So the caller multiplies its loss by trireme_optimizer_loss_scale(), and the step
 * divides: max_value, max_norm, the rule and trireme_optimizer_gradient_norm() see gradients without
 * the scale; bucket hooks and trireme_model_gradient_data() see them with it. All scales are powers
 * of two, so the bits are those of a training without one, unless a gradient leaves the range of its
 * type. A step in which a reduced gradient is inf or NaN is skipped by all ranks: parameters, state
 * and the number of steps stay, and the scale backs off; after a window of good steps it grows. It
 * costs one more look at each gradient that is handed in, by which the rank is known that had it
 * first, and one at the reduced ones, by their owners.
 *
 * Ownership: an optimizer keeps its model alive; destroy in any order.
 * Thread safety: one call at a time per model and its optimizer together.
 */
#ifndef TRIREME_OPTIMIZER_SHARD_H
#define TRIREME_OPTIMIZER_SHARD_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/model_shard.h>
#include <trireme/schedule.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** An update rule. 0 is none. */
typedef int32_t trireme_optimizer_kind;

/** Numbers of the update rules. */
enum {
    TRIREME_OPTIMIZER_SGD     = 1,
    TRIREME_OPTIMIZER_ADAM    = 2,
    TRIREME_OPTIMIZER_ADAMW   = 3,
    TRIREME_OPTIMIZER_USER    = 4, /**< The callback `update`. */
    TRIREME_OPTIMIZER_ADAGRAD = 5,
    TRIREME_OPTIMIZER_RMSPROP = 6,
    TRIREME_OPTIMIZER_LION    = 7,
    TRIREME_OPTIMIZER_LAMB    = 8, /**< Like LARS takes 1,104 bytes of working memory for each parameter. */
    TRIREME_OPTIMIZER_LARS    = 9,
    TRIREME_OPTIMIZER_ADAFACTOR = 10 /**< State of a matrix is one number a row and one a column, each on one rank. Takes 1,104 bytes of working memory for each parameter, 8 for each matrix, and 24 for each of its rows and columns. */
};

/** Flags of an optimizer. */
enum {
    TRIREME_OPTIMIZER_NESTEROV  = 1, /**< SGD with momentum > 0 only. */
    TRIREME_OPTIMIZER_ONE_SWEEP = 2, /**< zero1: gradients are not reduced during backward, but in the step, which updates each element while its sum is in the cache: the fewest bytes, for ranks of one host whose compute leaves no memory bandwidth to hide the exchange in. The bits are the same. Not with leaves, max_norm, max_value, loss_scale, bucket hooks, TRIREME_MODEL_UNEVEN, TRIREME_UNUSED_SKIP, LAMB, LARS, ADAFACTOR or a rule of the caller. */
    TRIREME_OPTIMIZER_CENTERED  = 4, /**< RMSPROP only: gradients are divided by their spread around their mean. */
    TRIREME_OPTIMIZER_MASTER_WEIGHTS = 8, /**< Parameters of f16 and bf16 have a master of f32 each: see the top of this file. 4 bytes an element, with its owner. For a model with such parameters; its others stay as they are. Not with offload_path. */
    TRIREME_OPTIMIZER_STOCHASTIC_ROUNDING = 16 /**< Parameters of bf16 are rounded by chance: see the top of this file. For a model with such parameters, and without trained ones of f16. Not with MASTER_WEIGHTS or a rule of the caller. */
};

/** Most state vectors that a caller's own rule can ask for. */
#define TRIREME_MAX_STATES 8

/** One piece of the model for a caller's own update rule: the trainable part of one parameter that this rank owns. */
typedef struct trireme_update {
    uint32_t      struct_size;   /**< sizeof this struct as the library knows it. */
    trireme_dtype dtype;         /**< Type of `parameters`: f32 if those are master weights. */
    uint64_t      parameter;     /**< Number of the parameter. */
    uint64_t      first;         /**< Which of its elements comes first here. */
    uint64_t      count;         /**< Elements; 1 or more. */
    uint64_t      step;          /**< Number of this step, from 1. With TRIREME_UNUSED_SKIP: of those in which the parameter had a gradient. */
    double        learning_rate; /**< Of this step: as set, times the factor of the schedule if there is one, times that of the parameter's group. */
    void         *parameters;    /**< `count` elements, to be updated; with TRIREME_OPTIMIZER_MASTER_WEIGHTS the masters of those of 16 bits. */
    const void   *gradients;     /**< `count` elements, reduced and clipped. */
    void         *states[TRIREME_MAX_STATES]; /**< `count` elements each, 0 before the first step; NULL past state_count. */
    trireme_dtype gradient_dtype; /**< Type of `gradients` and `states`: f32 where `dtype` is f16 or bf16, else `dtype`. */
    uint32_t      reserved;       /**< 0. */
} trireme_update; /* since 1.0 */

/**
 * A caller's own update rule, called on the thread of trireme_optimizer_step() for each piece. It
 * returns 0, or any other number to fail the step. It may destroy the model and the optimizer, which
 * live on until the step is over; any other call on them answers TRIREME_ERROR_INVALID_STATE.
 * For the same bits on any number of ranks it treats each element alone.
 */
typedef int32_t(TRIREME_CALL *trireme_update_callback)(const trireme_update *update,
                                                       void *user_data);

/** Start from TRIREME_OPTIMIZER_OPTIONS_INIT. In every field 0 or NULL means the default. */
typedef struct trireme_optimizer_options {
    uint32_t                struct_size;   /**< sizeof this struct as the caller knows it. */
    trireme_optimizer_kind  kind;          /**< Required. */
    uint32_t                flags;         /**< A sum of TRIREME_OPTIMIZER_NESTEROV, ONE_SWEEP, CENTERED, MASTER_WEIGHTS and STOCHASTIC_ROUNDING, or 0. */
    uint32_t                state_count;   /**< USER: state vectors, at most TRIREME_MAX_STATES; 0 for the other kinds. */
    double                  learning_rate; /**< Default: 0.001; ADAFACTOR: 0.01. */
    double                  momentum;      /**< SGD, RMSPROP, LARS; 0 is none. In [0, 1). */
    double                  beta1;         /**< ADAM, ADAMW, LION, LAMB. Default: 0.9. In (0, 1). */
    double                  beta2;         /**< ADAM, ADAMW, LAMB: 0.999 by default; RMSPROP (where it is also called alpha), LION: 0.99. In (0, 1). */
    double                  epsilon;       /**< ADAM, ADAMW, RMSPROP: 1e-8 by default; ADAGRAD: 1e-10; LAMB: 1e-6; LARS: 0; ADAFACTOR: 2^-52 for parameters of f64, else 2^-23. */
    double                  weight_decay;  /**< 0 is none. */
    double                  max_norm;      /**< The global L2 norm of all gradients is clipped to this; 0 is no clipping. */
    trireme_update_callback update;        /**< USER: the rule. NULL for the other kinds. */
    void                   *user_data;     /**< Handed to `update`. */
    double                  max_value;     /**< Each reduced gradient is clipped to [-max_value, max_value], before max_norm sees it; 0 is no clipping. NaN stays. */
    uint64_t                check_every;   /**< After every so many steps, trireme_model_check_replicas() is part of the step; 0 is never. */
    trireme_communicator   *norm_ranks;    /**< max_norm, or each of group_max_norms, is for all gradients of these ranks: of several models, each with its part of one network (data x tensor x pipeline), that all step together. Each gradient counts once: see replicas of trireme_parameter_options. All ranks of the model name the same communicator; the optimizer makes a group of its own of it and keeps no handle. Not with TRIREME_MODEL_UNEVEN. NULL: the model's own ranks. */
    const double           *group_max_norms; /**< Group by group of parameters (see norm_group of trireme_parameter_options), the L2 norm of the group's gradients is clipped to this, whatever those of other groups are; 0: the group is not clipped. A norm that is no number, for an inf or NaN among the group's gradients, leaves that group's as they are, as with max_norm. Copied. Instead of max_norm; max_value comes before. NULL: no clipping by groups. */
    uint64_t                group_count;   /**< Numbers at each of `group_max_norms`, `group_rate_factors` and `group_weight_decays` that is not NULL, at most 1,024: every parameter's norm_group is below. 0: no groups. */
    const double           *group_rate_factors;  /**< The learning rate of a group's parameters is that of the step times the number of the group: 0 or more, finite. Copied; see also trireme_optimizer_set_group_rate_factor(). NULL: all 1. */
    const double           *group_weight_decays; /**< weight_decay of each group: 0 or more, finite, such as 0 for biases. Copied. Instead of weight_decay; not with a rule of the caller. NULL: weight_decay for all. */
    double                  loss_scale;          /**< The first loss scale, such as 65536: see the top of this file. A power of two in [2^-64, 2^64]. 0: losses are not scaled, and an inf or NaN goes through the rule. */
    double                  loss_scale_growth;   /**< By which the scale grows, up to 2^64: a power of two in [1, 2^64]. Default: 2. This and the next four: only with loss_scale. */
    double                  loss_scale_backoff;  /**< By which it is multiplied after an overflow: a power of two in [2^-64, 1). Default: 0.5. */
    double                  loss_scale_floor;    /**< It is never smaller: a power of two in [2^-64, loss_scale]. The same as loss_scale, with a growth of 1: the scale is fixed. Default: 1, or loss_scale if that is less. */
    uint64_t                loss_scale_window;   /**< It grows after so many steps without an overflow in between. Default: 2000. */
    uint64_t                loss_scale_hysteresis; /**< It backs off at this overflow since it last grew, and at each further one; those before only skip their step. Default: 1. */
    double                  trust_coefficient; /**< LARS. Default: 0.001. */
    double                  max_trust;     /**< LAMB, LARS: the trust ratio is at most this; 0 is no limit. */
    const char             *offload_path;  /**< A directory: state of the rule lies in a file in it, which each rank makes for itself, without a name, so that nothing is left of it when the process ends, and streams through memory at each step (see docs/offload.md). The bits are the same. Read as a path of the rank's own host; copied. For a rule that has state; not with TRIREME_OPTIMIZER_ONE_SWEEP, TRIREME_OPTIMIZER_MASTER_WEIGHTS, LAMB, LARS or ADAFACTOR. Pieces of a caller's own rule may be smaller then. NULL: all state stays in memory. */
    double                  offload_ratio; /**< Which part of the state's bytes lies in the file, in (0, 1], rounded up to whole blocks. Default: 1. */
    uint64_t                offload_buffer_bytes; /**< Most memory for what is on its way to and from the file, at least 32,768. Default: 64 MiB. */
    uint64_t                rounding_seed; /**< With TRIREME_OPTIMIZER_STOCHASTIC_ROUNDING: other numbers, other draws. 0 is a seed, too. */
    double                  beta2_decay;   /**< ADAFACTOR: the mean of squares moves by t^beta2_decay in step t. Below 0, finite. Default: -0.8. */
    double                  max_update_rms; /**< ADAFACTOR: the root mean square of a parameter's update is clipped to this. Above 0, finite. Default: 1. */
    double                  min_parameter_rms; /**< ADAFACTOR: a step is as long as that of a parameter of this root mean square, at least. Above 0, finite. Default: 0.001. */
} trireme_optimizer_options; /* since 1.0 */

/** Options of which only the kind is missing. */
#define TRIREME_OPTIMIZER_OPTIONS_INIT { sizeof(trireme_optimizer_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** The loss scale, and how the last step went with it. Set struct_size before the call. */
typedef struct trireme_loss_scale_info {
    uint32_t struct_size;   /**< sizeof this struct as the caller knows it. */
    int32_t  skipped;       /**< 1: the last step was skipped, as a gradient was inf or NaN; else 0. */
    double   scale;         /**< What the next loss is multiplied by. */
    uint64_t clean_steps;   /**< Steps since the scale grew or one was skipped. */
    uint64_t overflows;     /**< Skipped steps since the scale grew, of which loss_scale_hysteresis counts. */
    uint64_t skipped_steps; /**< In all, with those before a state that was loaded. */
    uint64_t parameter;     /**< If the last step was skipped: the lowest number of a parameter whose reduced gradient is inf or NaN; of tied ones, the one that the others are names of. If it was not, or those are in another model of norm_ranks: UINT64_MAX. */
    int32_t  rank;          /**< The lowest rank that handed in an inf or NaN for that parameter. -1: none did, as where only the sum is too large or a bucket hook made it. */
    int32_t  at_floor;      /**< 1: the scale would have backed off, but is at its floor; that step has answered TRIREME_ERROR_INVALID_STATE. */
} trireme_loss_scale_info; /* since 1.0 */

/** An info ready for trireme_optimizer_get_loss_scale_info(). */
#define TRIREME_LOSS_SCALE_INFO_INIT { sizeof(trireme_loss_scale_info), 0, 0, 0, 0, 0, 0, 0, 0 }

/** What a range of state belongs to. */
enum {
    TRIREME_STATE_PARAMETER = 1, /**< The parameter's own values. */
    TRIREME_STATE_OPTIMIZER = 2, /**< A state vector of the update rule. */
    TRIREME_STATE_ROWS      = 3, /**< ADAFACTOR, of a matrix: R, a number for each row. */
    TRIREME_STATE_COLUMNS   = 4  /**< ADAFACTOR, of a matrix: C, a number for each column. */
};

/** A stretch of the state of training that this rank owns. Set struct_size before the call. */
typedef struct trireme_state_range {
    uint32_t        struct_size; /**< sizeof this struct as the caller knows it. */
    int32_t         kind;        /**< TRIREME_STATE_*. */
    trireme_dtype   dtype;       /**< Type of the elements. All but PARAMETER: f32 where the parameter is f16 or bf16. */
    uint32_t        vector;      /**< OPTIMIZER: which state vector, from 0. SGD: momentum; ADAM, ADAMW, LAMB: m, v; LARS: v if there is momentum; ADAGRAD: v; RMSPROP: v, then b if there is momentum, then m if CENTERED; LION: m; ADAFACTOR: v of parameters that are no matrix; USER: the caller's. 0 with ROWS and COLUMNS. The last one, of parameters of 16 bits only: the masters with TRIREME_OPTIMIZER_MASTER_WEIGHTS. */
    uint64_t        parameter;   /**< Number of the parameter. */
    const char     *name;        /**< Its name; lives as long as the model. */
    const uint64_t *shape;       /**< Its whole shape; lives as long as the model. NULL for a scalar. ROWS, COLUMNS: the one number of them, that lives as long as the optimizer. */
    uint32_t        dimensions;  /**< Numbers at `shape`. */
    uint32_t        reserved;    /**< 0. */
    uint64_t        first;       /**< Which of its elements, in row-major order, comes first. */
    uint64_t        count;       /**< Elements; 1 or more. */
    void           *data;        /**< Where they lie, good until the optimizer is destroyed. OPTIMIZER, with offload_path: NULL, as they are in memory during a step only; see trireme_optimizer_read_range(). */
} trireme_state_range; /* since 1.0 */

/** State of an optimizer that lies in a file, of this rank. Set struct_size before the call. */
typedef struct trireme_offload_info {
    uint32_t    struct_size;    /**< sizeof this struct as the caller knows it. */
    int32_t     direct;         /**< 1: the file is read and written past the system's cache (O_DIRECT); 0: through it. */
    int32_t     ring;           /**< 1: by io_uring; 0: by pread() and pwrite() on threads of the optimizer's own. */
    int32_t     failed_errno;   /**< errno of the last write that failed; 0 if none did. */
    const char *path;           /**< The directory, as given; lives as long as the optimizer, as the next two do. */
    const char *why_not_direct; /**< What refused O_DIRECT; "" if it is in use. */
    const char *why_not_ring;   /**< What refused io_uring; "" if it is in use. */
    uint64_t    file_bytes;     /**< State that lies in the file. */
    uint64_t    resident_bytes; /**< State that stays in memory: by offload_ratio, and what could not be written. */
    uint64_t    buffer_bytes;   /**< Memory for what is on its way. */
    uint64_t    block_bytes;    /**< The largest piece that is read or written at once. */
    uint64_t    read_bytes;     /**< Asked of the file so far. */
    uint64_t    written_bytes;  /**< Given to the file so far. */
    double      waited_seconds; /**< That calls waited for the disk, so far. */
    uint64_t    failed_writes;  /**< Blocks that could not be written, and stay in memory since. */
    uint64_t    failed_offset;  /**< Where in the file the last one of them failed. */
} trireme_offload_info; /* since 1.0 */

/** Info ready for trireme_optimizer_get_offload_info(). */
#define TRIREME_OFFLOAD_INFO_INIT { sizeof(trireme_offload_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** A range ready for trireme_optimizer_get_range(). */
#define TRIREME_STATE_RANGE_INIT { sizeof(trireme_state_range), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Names an update rule, for example "adamw".
 *
 * Does not block. Cannot fail.
 *
 * @param kind  Any value.
 * @return A string that lives as long as the library; "unknown" for a value that is no
 *                  rule.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API const char *TRIREME_CALL trireme_optimizer_kind_name(trireme_optimizer_kind kind);

/**
 * Gives a sealed model its update rule and allocates the state.
 *
 * Collective: blocks until all ranks, and all of norm_ranks, have called it with the same options
 * or the deadline passes. Keeps `update` and `user_data` until the optimizer is destroyed.
 *
 * @param model  The model.
 * @param options  The rule. Required.
 * @param[out] out_optimizer  The new optimizer; free it with trireme_optimizer_destroy(). Not
 * written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL or a field is out of range, or with groups a
 * parameter's norm_group is not below group_count; the message names it. Or
 * TRIREME_OPTIMIZER_MASTER_WEIGHTS or STOCHASTIC_ROUNDING is set, but no parameter that is trained is
 * of f16 or bf16.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process, or norm_ranks is no live
 * communicator of it.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, a step is under way, or it has an
 * optimizer.
 * @retval TRIREME_ERROR_MISMATCH  Ranks name different options, or ranks of one model different
 * norm_ranks; the model goes on without an optimizer.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out, or with the state of this rule a
 * rank would hold more than the model's memory_limit_bytes. Then all ranks have the same message, as
 * trireme_model_seal() gives it; the model goes on without an optimizer.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library, both max_norm
 * and group_max_norms, or more than 1,024 groups, or TRIREME_OPTIMIZER_ONE_SWEEP does not go with
 * the model or another option, or norm_ranks is over a transport, which carries one group, or the
 * model is TRIREME_MODEL_UNEVEN; the message says which.
 * @retval TRIREME_ERROR_SYSTEM  Also: on this rank or another no file can be made in offload_path, or
 * it has no room for the state; that rank's message names the path, the bytes that are needed and those
 * that are free. The model goes on without an optimizer.
 * @return Any other status as listed at the top of model_shard.h.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_create(trireme_model *model, const trireme_optimizer_options *options,
                         trireme_optimizer **out_optimizer);

/**
 * Gives the handle and the state back. The model may then get another optimizer,
 * unless a trainer of it is left.
 *
 * Never waits for a peer.
 *
 * @param optimizer  An optimizer; NULL and a stale handle are ignored.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALL trireme_optimizer_destroy(trireme_optimizer *optimizer);

/**
 * Ends a step: waits for the reductions, clips, updates the owned shards and gives the
 * strategies that hold whole parameters the new ones.
 *
 * Collective: blocks until it is done or the deadline passes.
 *
 * A gradient that is inf or NaN is no failure: it goes through the rule;
 * trireme_optimizer_gradient_norm() shows it. With loss_scale all ranks skip the step and answer
 * TRIREME_OK; trireme_optimizer_get_loss_scale_info() tells of it.
 *
 * @param optimizer  The optimizer.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_STATE  No backward pass was made since the last step (an absent one
 * counts), one is under way, the last one was NO_SYNC, leaves are missing, or a unit is gathered
 * (zero3), whose copy would be stale. Or, on all ranks: gradients are inf or NaN and the loss scale is
 * at its floor; the message names the first parameter and the rank. Then the step was skipped as
 * others are, and training may go on.
 * @retval TRIREME_ERROR_CALLBACK  The caller's rule or bucket hook returned another number than 0,
 * on this rank or another; the model has failed on all ranks. Or the caller's schedule answered no
 * factor on this rank: then nothing was sent and nothing has changed, the other ranks wait for this
 * one, and the step may be called again.
 * @retval TRIREME_ERROR_SYSTEM  Also with offload_path: the state cannot be read, twice; the message
 * names the directory, the place and the reason. The model has failed on all ranks, and the last
 * saved state is what there is. State that cannot be written stays in memory, and the step goes on:
 * see failed_writes of trireme_offload_info.
 * @retval TRIREME_ERROR_CORRUPT  What the file gives, twice, is not what was written to it (its
 * checksum is another one); the model has failed on all ranks.
 * @retval TRIREME_ERROR_MISMATCH  Also if ranks have other learning rates, by what was set, by
 * their schedules or by the factors of groups: no parameter has changed, the model has failed. And
 * from the comparison of check_every; the step is done, the model has failed.
 * @return Any other status as listed at the top of model_shard.h.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_step(trireme_optimizer *optimizer);

/**
 * Takes part in the steps of ranks that still have data, for a rank that has run out: makes the
 * same gathers and absent passes as in its own last step (before the first: in each micro-batch
 * gathers up and down through the units, and its pass) and ends the steps, until all ranks have
 * come here. All then hold the same parameters, as after any step. Rank by rank it takes the place
 * of begin_backward() to step().
 *
 * Collective: blocks until all ranks have called it, each for itself when its data is over, or a
 * deadline passes; each step may take as long as one call. A step that others follow cannot be
 * discarded. A step in which all ranks only follow each other, as when all have gathered to
 * evaluate and then come here, is not made. One that is skipped for an overflow counts, also with the
 * loss scale at its floor.
 *
 * @param optimizer  The optimizer of a model with TRIREME_MODEL_UNEVEN.
 * @param[out] out_steps  How many steps of the others were followed; may be NULL. Not written on
 * failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_STATE  The model has no TRIREME_MODEL_UNEVEN, a step is under way,
 * or a unit is gathered (zero3, hybrid_shard).
 * @retval TRIREME_ERROR_MISMATCH  The others do something else than this rank did in its last step,
 * such as another order of units; the message names both sides.
 * @return Any other status as of trireme_optimizer_step().
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_join(trireme_optimizer *optimizer, uint64_t *out_steps);

/**
 * Sets the learning rate of the steps that follow; with a schedule, what it multiplies. All ranks
 * must set the same.
 *
 * Local: does not wait for the peers; the next step compares.
 *
 * @param optimizer  The optimizer.
 * @param learning_rate  0 or more, finite.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  learning_rate is negative or not finite.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_set_learning_rate(trireme_optimizer *optimizer, double learning_rate);

/**
 * Sets the factor that the learning rate of one group of parameters is multiplied by, in the steps
 * that follow. All ranks must set the same, and none while another is in trireme_optimizer_join().
 * It is not part of what trireme_optimizer_save() writes.
 *
 * Local: does not wait for the peers; the next step compares.
 *
 * @param optimizer  The optimizer.
 * @param group  Number of the group, below group_count of trireme_optimizer_options.
 * @param factor  As in group_rate_factors: 0 or more, finite.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_STATE  The optimizer was created without groups.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `group` is not below group_count, or factor is negative or
 * not finite, or so large that the learning rate times it is not finite.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_set_group_rate_factor(trireme_optimizer *optimizer, uint64_t group,
                                        double factor);

/**
 * Gives the learning rate a schedule: that of a step is from now on the learning rate as set, times
 * the schedule's factor for the number of steps that were made before. So a schedule that is set in
 * the middle begins in the middle, and a training that is loaded goes on where it was saved, once
 * the schedule is set again: the learning rate as set and the number of steps are saved, the
 * schedule is not. With TRIREME_UNUSED_SKIP it goes by the optimizer's steps, also for parameters
 * that were left out of some. All ranks must set the same, and none while another is in
 * trireme_optimizer_join(), where a rank takes the rates of the others.
 *
 * Local: does not wait for the peers; each step compares the rate that comes out. `options` is
 * copied; `factor` and `user_data` are kept until another schedule is set or the optimizer is
 * destroyed.
 *
 * @param optimizer  The optimizer.
 * @param options  The schedule; NULL takes it away.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A field is out of range or means nothing to the kind; the
 * message names it. The schedule stays as it was; so it does with the next one.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_set_schedule(trireme_optimizer *optimizer,
                               const trireme_schedule_options *options);

/**
 * Gives the learning rate of the next step: the one as set, times the schedule's factor; without a
 * schedule the one as set. Factors of groups are not in it. Asked before a step, it is what that
 * step will take.
 *
 * Does not block. Calls the caller's schedule, if it is one.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_rate  Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_rate is NULL.
 * @retval TRIREME_ERROR_CALLBACK  The caller's schedule answered a number that is negative or not
 * finite, or so large that a learning rate is not finite.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_step_rate(trireme_optimizer *optimizer, double *out_rate);

/**
 * Gives the learning rate as set: with a schedule, what it multiplies.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_learning_rate  Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_learning_rate is NULL.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_learning_rate(const trireme_optimizer *optimizer, double *out_learning_rate);

/**
 * Gives the number of steps that were made.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_steps  Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_steps is NULL.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_step_count(const trireme_optimizer *optimizer, uint64_t *out_steps);

/**
 * Gives the global L2 norm of the last step's gradients before clipping: the square root of the
 * exact sum of the squares, the same bits on all ranks for every world size and strategy. With
 * norm_ranks it is that of all their models.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_norm  Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_norm is NULL.
 * @retval TRIREME_ERROR_INVALID_STATE  No step was made, or max_norm is 0 (here, or where the last
 * step was made that was loaded), so that no norm is computed.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_gradient_norm(const trireme_optimizer *optimizer, double *out_norm);

/**
 * Gives the L2 norm of the gradients of one group of parameters in the last step, before clipping:
 * as exact as trireme_optimizer_gradient_norm(), of the parameters whose norm_group is `group`, and
 * with norm_ranks those of all models. 0 if there are none, NaN if a gradient among them was inf or
 * NaN.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param group  Number of the group, below group_count of trireme_optimizer_options.
 * @param[out] out_norm  Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_norm is NULL, or `group` is not below group_count.
 * @retval TRIREME_ERROR_INVALID_STATE  No step was made since the optimizer was created or loaded,
 * or it was created without group_max_norms.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_group_norm(const trireme_optimizer *optimizer, uint64_t group, double *out_norm);

/**
 * Gives the number by which the caller multiplies the loss of the next backward pass, or its
 * gradient. It changes in trireme_optimizer_step(), trireme_optimizer_join() and
 * trireme_optimizer_load() only, and is the same on all ranks. 1 without loss_scale.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_scale  Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_scale is NULL.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_loss_scale(const trireme_optimizer *optimizer, double *out_scale);

/**
 * Tells of the loss scale, and of the last step that was made or skipped since the optimizer was
 * created or loaded. The same on all ranks of the model.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_info  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_info is NULL, or its struct_size is too small.
 * @retval TRIREME_ERROR_INVALID_STATE  The optimizer was created without loss_scale.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_get_loss_scale_info(const trireme_optimizer *optimizer,
                                      trireme_loss_scale_info *out_info);

/**
 * Tells in how many ranges the state of training lies on this rank: parameters, frozen ones
 * included, and the vectors of the update rule. Over all ranks the ranges hold every element once,
 * whatever the strategy, so what is read rank by rank can be put together for another number of
 * ranks.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_count  Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_count is NULL.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_range_count(const trireme_optimizer *optimizer, uint64_t *out_count);

/**
 * Describes one range and gives its address. Between steps the elements may be read. Who writes
 * parameters changes this rank's copy alone (data_parallel, zero1, zero2, persistent units, and one
 * replica's with hybrid_shard) or everybody's where ranks share them, and does so before any unit
 * is gathered since the last step, load or trireme_model_set_parameters(): gathered copies may
 * stay.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param index  Number of the range: parameters come first, then vector by vector of the rule; each
 *                  in the order of registration; then rows, then columns.
 * @param[out] out_range  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_range is NULL, its struct_size is too small, or there
 * is no such range.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_get_range(const trireme_optimizer *optimizer, uint64_t index,
                            trireme_state_range *out_range);

/**
 * Copies the elements of one range, wherever they lie.
 *
 * Local: does not wait for the peers, but for the disk where they lie in a file. Keeps no pointer.
 *
 * @param optimizer  The optimizer.
 * @param index  Number of the range, as of trireme_optimizer_get_range().
 * @param[out] data  Memory for them; its content is undefined after a failure.
 * @param bytes  Its size, which is the size of the range's elements.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  data is NULL, there is no such range, or bytes is not its
 * size; the message names both.
 * @retval TRIREME_ERROR_INVALID_STATE  A step is under way.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be read; the message names it, the place and the
 * reason. The model goes on.
 * @retval TRIREME_ERROR_CORRUPT  What the file gives is not what was written to it. The model goes
 * on.
 * @retval TRIREME_ERROR_TIMEOUT  The disk does not answer within the deadline of the model.
 * @return The status with which the model has failed, if it has.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_read_range(const trireme_optimizer *optimizer, uint64_t index, void *data,
                             uint64_t bytes);

/**
 * Writes the elements of one range, wherever they lie. For parameters it is as writing through the
 * address of trireme_optimizer_get_range(), with the same care.
 *
 * Local: does not wait for the peers, but for the disk where they lie in a file. Keeps no pointer.
 *
 * @param optimizer  The optimizer.
 * @param index  Number of the range, as of trireme_optimizer_get_range().
 * @param data  The elements.
 * @param bytes  Their size, which is the size of the range's elements.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  As of trireme_optimizer_read_range().
 * @retval TRIREME_ERROR_INVALID_STATE  A step is under way.
 * @retval TRIREME_ERROR_SYSTEM  As of trireme_optimizer_read_range(), as the rest of a block is
 * needed; elements of blocks before it are written.
 * @retval TRIREME_ERROR_CORRUPT  As of trireme_optimizer_read_range().
 * @retval TRIREME_ERROR_TIMEOUT  As of trireme_optimizer_read_range().
 * @return The status with which the model has failed, if it has.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_write_range(trireme_optimizer *optimizer, uint64_t index, const void *data,
                              uint64_t bytes);

/**
 * Tells how the state of an optimizer with offload_path lies on this rank, and what the disk has
 * done for it.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_info  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_info is NULL or its struct_size is too small.
 * @retval TRIREME_ERROR_INVALID_STATE  The optimizer was created without offload_path.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_get_offload_info(const trireme_optimizer *optimizer,
                                   trireme_offload_info *out_info);

/**
 * Tells how many bytes trireme_optimizer_save() writes on this rank.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_bytes  Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_bytes is NULL.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_saved_bytes(const trireme_optimizer *optimizer, uint64_t *out_bytes);

/**
 * Writes what this rank holds of the training (parameters, state of the update rule, number of
 * steps, learning rate, loss scale) into memory of the caller, with a description of the layout and a checksum
 * (64-bit XXH3).
 *
 * Local: does not wait for the peers. Every rank saves its own part, all after the same step. Keeps
 * no pointer.
 *
 * @param optimizer  The optimizer.
 * @param[out] state  Memory for it; its content is undefined after a failure.
 * @param capacity  Bytes at `state`, at least trireme_optimizer_saved_bytes().
 * @param[out] out_bytes  Bytes that were written; may be NULL. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  state is NULL, or capacity is too small; the message
 * names both sizes.
 * @retval TRIREME_ERROR_INVALID_STATE  A step is under way.
 * @return The status with which the model has failed, if it has.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_save(const trireme_optimizer *optimizer, void *state, uint64_t capacity,
                       uint64_t *out_bytes);

/**
 * Takes back what trireme_optimizer_save() wrote on this rank of a training of the same model,
 * options, strategy, world size, update rule and way of sharing parameters. Nothing changes unless
 * all ranks can load parts of the same step.
 *
 * Collective: blocks until it is done or the deadline passes. Keeps no pointer. The bytes are
 * checked before anything is believed.
 *
 * @param optimizer  The optimizer.
 * @param state  What was saved.
 * @param bytes  Its size.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_CORRUPT  The bytes are cut off or damaged, on this rank or another; so it
 * is with the next two. A message about another rank says so.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  state is NULL, or it is of another rank, world size,
 * layout or model; the message says which and names both sides.
 * @retval TRIREME_ERROR_UNSUPPORTED  Saved by a later version of this format, or on a machine of
 * another byte order.
 * @retval TRIREME_ERROR_INVALID_STATE  A step is under way, or a unit is gathered (zero3,
 * hybrid_shard). Nothing was sent: the other ranks wait for this one.
 * @retval TRIREME_ERROR_MISMATCH  The parts are of different steps, or were saved with different
 * learning rates or loss scales. Nothing has changed.
 * @return Any other status as listed at the top of model_shard.h.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_load(trireme_optimizer *optimizer, const void *state, uint64_t bytes);

TRIREME_END_C

#endif
