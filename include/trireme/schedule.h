/**
 * @file schedule.h
 * @brief Learning rates that follow a plan: each step multiplies the learning rate by a factor.
 *
 * Steps count from 0: step s comes after s others. The formulas give the factor of step s in f64.
 * In them w = warm_up_steps, n = total_steps and end = end_factor. All kinds but USER give factors
 * in [0, 1].
 *
 * Warm-up: CONSTANT, LINEAR and COSINE can begin with a rise. Before step w their factor is:
 * - By default (s + 1) / w. The last step of the warm-up has 1.
 * - With warm_up_factor f: f + (1 - f) * s / w. PyTorch's LinearLR does so with start_factor f.
 * - With TRIREME_SCHEDULE_FLAG_FROM_ZERO: s / w, as get_..._with_warmup of Hugging Face.
 *
 * After the warm-up, let t = (s - w) / (n - w), or 1 from step n on:
 * - CONSTANT: 1.
 * - LINEAR: end * (1 - c) + c with c = 1 - t.
 * - COSINE: end * (1 - c) + c with c = (1 + cos(pi * t)) / 2. This is the schedule of Loshchilov
 *   and Hutter 2017 (arXiv 1608.03983), without restarts.
 *
 * So the last of the n steps is still one step above end. A training that goes on keeps end;
 * CosineAnnealingLR of PyTorch rises again there.
 *
 * ONE_CYCLE: Smith and Topin 2019 (arXiv 1708.07120), as PyTorch's OneCycleLR writes it. The
 * optimizer's learning rate is max_lr. The schedule does not cycle momentum: it stays as it is.
 * - The factor begins with 1 / div_factor at step 0.
 * - It rises to 1 at step pct_start * n - 1, which may lie between two steps.
 * - It falls to 1 / (div_factor * final_div_factor) at step n - 1, and stays there.
 * - Each way is half a cosine; with TRIREME_SCHEDULE_FLAG_LINEAR_ANNEALING, a straight line.
 *
 * USER: the caller's callback answers the factor.
 *
 * The options of every kind begin with a trireme_schedule_options, which names the kind. Calls take
 * the address of that first part:
 *
 *     trireme_cosine_schedule_options cosine = TRIREME_COSINE_SCHEDULE_OPTIONS_INIT;
 *     cosine.total_steps = 10000;
 *     trireme_optimizer_set_schedule(optimizer, &cosine.base);
 *
 * Ownership: each call copies the options; nothing here holds anything.
 * Thread safety: any thread, also concurrently.
 */
#ifndef TRIREME_SCHEDULE_H
#define TRIREME_SCHEDULE_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>

TRIREME_BEGIN_C

/** A kind of schedule. 0 is none. */
typedef int32_t trireme_schedule_kind;

/** Numbers of the kinds. The top of this file has their formulas. */
enum {
    TRIREME_SCHEDULE_KIND_CONSTANT = 1,
    TRIREME_SCHEDULE_KIND_LINEAR = 2,
    TRIREME_SCHEDULE_KIND_COSINE = 3,
    TRIREME_SCHEDULE_KIND_ONE_CYCLE = 4,
    /** The caller's own schedule: the callback `factor`. */
    TRIREME_SCHEDULE_KIND_USER = 5
};

/** Flags of a schedule. Each kind tells those that it knows. */
enum {
    /** The warm-up begins with the factor 0. With warm_up_steps, instead of warm_up_factor. */
    TRIREME_SCHEDULE_FLAG_FROM_ZERO = 1,
    /** The factor rises and falls along straight lines. */
    TRIREME_SCHEDULE_FLAG_LINEAR_ANNEALING = 2
};

/**
 * A caller's own schedule: it returns the factor of a step, counted from 0.
 *
 * The factor is finite and 0 or more. Any other answer, such as NaN, is a failure. All ranks answer
 * the same for the same step.
 *
 * The library calls it on the thread of the call that asks, perhaps more than once for a step. It
 * must not use the model or the optimizer: calls on them answer TRIREME_ERROR_INVALID_STATE. It may
 * destroy them.
 */
typedef double(TRIREME_CALLCONV *trireme_schedule_callback)(uint64_t step, void *user_data);

/** The first part of every schedule's options. In every field 0 or NULL means the default. */
typedef struct trireme_schedule_options {
    /** sizeof the whole struct of the kind as the caller knows it. */
    uint32_t struct_size;
    /** The kind, and so the struct: TRIREME_SCHEDULE_KIND_*. The INIT macro of the kind sets it. */
    trireme_schedule_kind kind;
} trireme_schedule_options; /* since 1.0 */

/** CONSTANT. */
typedef struct trireme_constant_schedule_options {
    /** The kind and the size of this struct. */
    trireme_schedule_options base;
    /** 0 or TRIREME_SCHEDULE_FLAG_FROM_ZERO. Default: 0. */
    uint32_t flags;
    /** Must be 0. */
    uint32_t reserved;
    /** First steps, in which the factor rises to 1. Default: 0, no warm-up. */
    uint64_t warm_up_steps;
    /** With warm_up_steps: the factor of step 0, in (0, 1]. Default: 1 / warm_up_steps. */
    double warm_up_factor;
} trireme_constant_schedule_options; /* since 1.0 */

/** Options of CONSTANT with all defaults: every factor is 1. */
#define TRIREME_CONSTANT_SCHEDULE_OPTIONS_INIT \
    TRIREME_INIT_KIND(trireme_constant_schedule_options, TRIREME_SCHEDULE_KIND_CONSTANT)

/** LINEAR. */
typedef struct trireme_linear_schedule_options {
    /** The kind and the size of this struct. */
    trireme_schedule_options base;
    /** 0 or TRIREME_SCHEDULE_FLAG_FROM_ZERO. Default: 0. */
    uint32_t flags;
    /** Must be 0. */
    uint32_t reserved;
    /** Steps until the end; 1 or more. Required. */
    uint64_t total_steps;
    /** First steps, in which the factor rises to 1; at most total_steps. Default: 0, no warm-up. */
    uint64_t warm_up_steps;
    /** With warm_up_steps: the factor of step 0, in (0, 1]. Default: 1 / warm_up_steps. */
    double warm_up_factor;
    /** The factor at the end, in [0, 1]. Default: 0. */
    double end_factor;
} trireme_linear_schedule_options; /* since 1.0 */

/** Options of LINEAR that lack only total_steps. */
#define TRIREME_LINEAR_SCHEDULE_OPTIONS_INIT \
    TRIREME_INIT_KIND(trireme_linear_schedule_options, TRIREME_SCHEDULE_KIND_LINEAR)

/** COSINE. */
typedef struct trireme_cosine_schedule_options {
    /** The kind and the size of this struct. */
    trireme_schedule_options base;
    /** 0 or TRIREME_SCHEDULE_FLAG_FROM_ZERO. Default: 0. */
    uint32_t flags;
    /** Must be 0. */
    uint32_t reserved;
    /** Steps until the end; 1 or more. Required. */
    uint64_t total_steps;
    /** First steps, in which the factor rises to 1; at most total_steps. Default: 0, no warm-up. */
    uint64_t warm_up_steps;
    /** With warm_up_steps: the factor of step 0, in (0, 1]. Default: 1 / warm_up_steps. */
    double warm_up_factor;
    /** The factor at the end, in [0, 1]. Default: 0. */
    double end_factor;
} trireme_cosine_schedule_options; /* since 1.0 */

/** Options of COSINE that lack only total_steps. */
#define TRIREME_COSINE_SCHEDULE_OPTIONS_INIT \
    TRIREME_INIT_KIND(trireme_cosine_schedule_options, TRIREME_SCHEDULE_KIND_COSINE)

/** ONE_CYCLE. */
typedef struct trireme_one_cycle_schedule_options {
    /** The kind and the size of this struct. */
    trireme_schedule_options base;
    /** 0 or TRIREME_SCHEDULE_FLAG_LINEAR_ANNEALING. Default: 0. */
    uint32_t flags;
    /** Must be 0. */
    uint32_t reserved;
    /** Steps until the end; 1 or more. Required. */
    uint64_t total_steps;
    /** The part of total_steps in which the factor rises, in (0, 1]. Default: 0.3. */
    double pct_start;
    /** The peak divided by the first factor; 1 or more, finite. Default: 25. */
    double div_factor;
    /** The first factor divided by the last; 1 or more, finite. Default: 1e4. */
    double final_div_factor;
} trireme_one_cycle_schedule_options; /* since 1.0 */

/** Options of ONE_CYCLE that lack only total_steps. */
#define TRIREME_ONE_CYCLE_SCHEDULE_OPTIONS_INIT \
    TRIREME_INIT_KIND(trireme_one_cycle_schedule_options, TRIREME_SCHEDULE_KIND_ONE_CYCLE)

/** USER: a schedule of the caller. */
typedef struct trireme_user_schedule_options {
    /** The kind and the size of this struct. */
    trireme_schedule_options base;
    /** The schedule. Required. */
    trireme_schedule_callback factor;
    /** Handed to `factor`; trireme_optimizer_set_schedule() tells how long. Default: NULL. */
    void *user_data;
} trireme_user_schedule_options; /* since 1.0 */

/** Options of USER that lack only the schedule. */
#define TRIREME_USER_SCHEDULE_OPTIONS_INIT \
    TRIREME_INIT_KIND(trireme_user_schedule_options, TRIREME_SCHEDULE_KIND_USER)

/**
 * Computes the factor of one step, as an optimizer with this schedule does. A program can plot a
 * schedule with it, or use a schedule with other code.
 *
 * Does not block. Keeps no pointer.
 *
 * @param options  The schedule: the first part of the options of its kind. Required.
 * @param step  Number of steps before this one: 0 for the first. Any number, also beyond
 * total_steps.
 * @param[out] out_factor  The factor. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, the kind is none, or a field is out of
 * range. The message names it.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_CALLBACK  The caller's schedule answered a number that is negative or not
 * finite.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_schedule_value(const trireme_schedule_options *options, uint64_t step, double *out_factor);

TRIREME_END_C

#endif
