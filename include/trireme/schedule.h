/**
 * @file schedule.h
 * @brief Learning rates that follow a plan: a factor for each step, by which the learning rate of
 * an optimizer is multiplied.
 *
 * Steps are counted from 0: step s comes after s others. With w = warm_up_steps, n = total_steps
 * and end = end_factor the factor of step s is, in f64:
 *
 * Before w, of every kind but ONE_CYCLE and USER: (s + 1) / w, which is 1 at the last step of the
 * warm-up; with warm_up_factor f it is f + (1 - f) * s / w (LinearLR of PyTorch with start_factor
 * f), with TRIREME_SCHEDULE_FLAG_FROM_ZERO it is s / w (get_..._with_warmup of Hugging Face).
 * From w on, with t = (s - w) / (n - w), or 1 from n on: CONSTANT: 1. LINEAR: end * (1 - c) + c
 * with c = 1 - t. COSINE: the same with c = (1 + cos(pi * t)) / 2 (Loshchilov and Hutter 2017, arXiv
 * 1608.03983, without restarts). So the last of the n steps is still one step above end, and who
 * goes on trains with end; CosineAnnealingLR of PyTorch rises again there.
 * ONE_CYCLE (Smith and Topin 2019, arXiv 1708.07120, as PyTorch's OneCycleLR writes it, where the
 * learning rate of the optimizer is max_lr): from 1 / div_factor at step 0 up to 1 at step
 * pct_start * n - 1, which may lie between two steps, and down to 1 / (div_factor *
 * final_div_factor) at step n - 1 and beyond; each way along half a cosine, with
 * TRIREME_SCHEDULE_FLAG_LINEAR_ANNEALING along a straight line. Momentum stays as it is: it is not
 * cycled.
 * USER: what the caller's callback answers.
 *
 * All but USER give factors in [0, 1].
 *
 * Ownership: options are copied; nothing here holds anything.
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

/** Numbers of the kinds. */
enum {
    TRIREME_SCHEDULE_KIND_CONSTANT  = 1,
    TRIREME_SCHEDULE_KIND_LINEAR    = 2,
    TRIREME_SCHEDULE_KIND_COSINE    = 3,
    TRIREME_SCHEDULE_KIND_ONE_CYCLE = 4,
    /** The callback `factor`. */
    TRIREME_SCHEDULE_KIND_USER = 5
};

/** Flags of a schedule. */
enum {
    /** With warm_up_steps, instead of warm_up_factor: the factor of step 0 is 0. */
    TRIREME_SCHEDULE_FLAG_FROM_ZERO = 1,
    /** ONE_CYCLE only: straight lines. */
    TRIREME_SCHEDULE_FLAG_LINEAR_ANNEALING = 2
};

/**
 * A caller's own schedule: the factor of a step, counted from 0. It is finite and 0 or more; any
 * other answer, such as NaN, is a failure. All ranks answer the same for the same step. It is called
 * on the thread of the call that asks, may be called more than once for a step, and must not use the
 * model or optimizer: calls on them answer TRIREME_ERROR_INVALID_STATE, but it may destroy them.
 */
typedef double(TRIREME_CALL *trireme_schedule_callback)(uint64_t step, void *user_data);

/** Start from TRIREME_SCHEDULE_OPTIONS_INIT. In every field 0 or NULL means the default; a field that the kind does not know stays 0. */
typedef struct trireme_schedule_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Required. */
    trireme_schedule_kind kind;
    /** A sum of TRIREME_SCHEDULE_FLAG_FROM_ZERO and LINEAR_ANNEALING, or 0. */
    uint32_t flags;
    /** Must be 0. */
    uint32_t reserved;
    /** LINEAR, COSINE, ONE_CYCLE: steps until the end; 1 or more. */
    uint64_t total_steps;
    /**
     * CONSTANT, LINEAR, COSINE: the first steps, in which the factor rises to 1; of LINEAR and
     * COSINE at most total_steps. 0 is none.
     */
    uint64_t warm_up_steps;
    /**
     * With warm_up_steps: the factor of step 0, in (0, 1]. Default: 1 / warm_up_steps, as above.
     */
    double warm_up_factor;
    /** LINEAR, COSINE: the factor at the end, in [0, 1]. Default: 0. */
    double end_factor;
    /** ONE_CYCLE: the part of total_steps in which the factor rises, in (0, 1]. Default: 0.3. */
    double pct_start;
    /** ONE_CYCLE: the peak divided by the first factor; 1 or more. Default: 25. */
    double div_factor;
    /** ONE_CYCLE: the first factor divided by the last; 1 or more. Default: 1e4. */
    double final_div_factor;
    /** USER: the schedule. NULL for the other kinds. */
    trireme_schedule_callback factor;
    /** Handed to `factor`. */
    void *user_data;
} trireme_schedule_options; /* since 1.0 */

/** Options of which only the kind, and what it requires, is missing. */
#define TRIREME_SCHEDULE_OPTIONS_INIT { sizeof(trireme_schedule_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Computes the factor of one step, as an optimizer with this schedule does: to plot a schedule, or
 * to use it with other code.
 *
 * Does not block. Keeps no pointer.
 *
 * @param options  The schedule. Required.
 * @param step  Steps that come before it: the first is 0. Any number, also beyond total_steps.
 * @param[out] out_factor  Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or a field is out of range or means
 * nothing to the kind; the message names it.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_CALLBACK  The caller's schedule answered a number that is negative or not
 * finite.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_schedule_value(const trireme_schedule_options *options, uint64_t step, double *out_factor);

TRIREME_END_C

#endif
