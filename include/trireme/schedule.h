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

/** Flags of a schedule. */
enum {
    /** The warm-up begins with the factor 0. With warm_up_steps, instead of warm_up_factor. */
    TRIREME_SCHEDULE_FLAG_FROM_ZERO = 1,
    /** ONE_CYCLE only: the factor rises and falls along straight lines. */
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

/**
 * Start from TRIREME_SCHEDULE_OPTIONS_INIT. In every field 0 or NULL means the default. A field
 * that the kind does not know stays 0. Names in capitals are kinds, such as COSINE for
 * TRIREME_SCHEDULE_KIND_COSINE.
 */
typedef struct trireme_schedule_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** The kind, a TRIREME_SCHEDULE_KIND_*. Required. */
    trireme_schedule_kind kind;
    /** 0, or a sum of TRIREME_SCHEDULE_FLAG_FROM_ZERO and LINEAR_ANNEALING. */
    uint32_t flags;
    /** Must be 0. */
    uint32_t reserved;
    /** LINEAR, COSINE, ONE_CYCLE: steps until the end; 1 or more. Required for these kinds. */
    uint64_t total_steps;
    /**
     * CONSTANT, LINEAR, COSINE: number of first steps, in which the factor rises to 1. At most
     * total_steps with LINEAR and COSINE. Default: 0, no warm-up.
     */
    uint64_t warm_up_steps;
    /** With warm_up_steps: the factor of step 0, in (0, 1]. Default: 1 / warm_up_steps. */
    double warm_up_factor;
    /** LINEAR, COSINE: the factor at the end, in [0, 1]. Default: 0. */
    double end_factor;
    /** ONE_CYCLE: the part of total_steps in which the factor rises, in (0, 1]. Default: 0.3. */
    double pct_start;
    /** ONE_CYCLE: the peak divided by the first factor; 1 or more, finite. Default: 25. */
    double div_factor;
    /** ONE_CYCLE: the first factor divided by the last; 1 or more, finite. Default: 1e4. */
    double final_div_factor;
    /** USER: the schedule. Must be NULL for the other kinds. */
    trireme_schedule_callback factor;
    /** Handed to `factor`. */
    void *user_data;
} trireme_schedule_options; /* since 1.0 */

/** Options that lack only the kind, and the fields that it requires. */
#define TRIREME_SCHEDULE_OPTIONS_INIT TRIREME_INIT(trireme_schedule_options)

/**
 * Computes the factor of one step, as an optimizer with this schedule does. A program can plot a
 * schedule with it, or use a schedule with other code.
 *
 * Does not block. Keeps no pointer.
 *
 * @param options  The schedule. Required.
 * @param step  Number of steps before this one: 0 for the first. Any number, also beyond
 * total_steps.
 * @param[out] out_factor  The factor. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or a field is out of range or means
 * nothing to the kind. The message names it.
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
