/**
 * @file optimizer.h
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
 * other parameters v += w * (g * g - v), element by element; u = g / max(sqrt(v), eps, of a matrix
 * 2^-b times its largest |g|); p -= a * wd * p; p -= max(min_parameter_rms, rms(p)) * min(a, 1 / sqrt(t)) / max(1, rms(u) / max_update_rms) *
 * u, where rms is a whole parameter's |.| / sqrt(its number of elements), of p before it decays.
 * What is computed of R, C, v and u is computed in f64; R, C and v are kept as numbers of the
 * gradients' type, at most the largest one. The means of a matrix come from squares in fixed point of
 * 2 b bits below the largest one (b is 51, less for sides above 2,047: see docs/optimizers.md), so that they add up
 * to the same bits however the matrix is spread; a matrix with an inf or NaN, or an f64 of 2^500 or
 * more, among its gradients becomes NaN. MUON (Jordan 2024,
 * kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv 2502.16982; the formula is PyTorch 2.9's,
 * in f32 or f64 where that computes in bf16): of a matrix, v = momentum * v + (1 - momentum) * g; u =
 * v, or with NESTEROV momentum * v + (1 - momentum) * g; X = u / max(|u|, 1e-7); orthogonal_steps
 * times, Y = X if it has at most as many rows as columns, else its transpose, A = Y Y^T, Y = 3.4445 *
 * Y + (-4.775 * A + 2.0315 * A A) Y; p -= a * wd * p; p -= a * (adjust * X), adjust: see
 * rate_adjustment. A matrix has two or more dimensions, as with ADAFACTOR, and no group of
 * TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE, which embeddings and output layers should have. All others have ADAMW.
 * Sums of products are made in f64, in the order of their index, and each number of A, Y and the
 * bracket is rounded to f32 once (of f64 parameters it is f64). USER: the caller's own callback. An
 * element gets the same bits wherever it lies and whatever vector instructions the machine has.
 * Parameters of f16 and bf16: all of this is computed in f32, in which g and all states are kept, and
 * p is rounded once at the end, to nearest even.
 *
 * Master weights (Micikevicius et al. 2018, arXiv 1710.03740): steps smaller than half of p's last bit
 * are lost that way. With TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS the owner of an element keeps it in f32
 * too, as one more vector of state; the rule changes that one, and p is its rounding, to nearest
 * even, of f16 beyond its range inf. A master begins as its parameter, and begins anew as it is set
 * by trireme_model_broadcast_parameters(). Where p was written otherwise, by its range, so that the master
 * does not round to it, the next step begins the master anew; so who changes a value writes p, and
 * the master with it if it is known.
 *
 * Stochastic rounding (Gupta et al. 2015, arXiv 1502.02551): with
 * TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING, and without masters, p of bf16 is rounded away from 0 with
 * the probability of what is cut off, else towards it, so that on average small steps are not lost.
 * What is drawn for an element depends on rounding_seed, step t, number of the parameter and number
 * of the element in it alone: the bits are as reproducible as without. inf and NaN stay; beyond
 * bf16's range p becomes inf, as to nearest.
 *
 * Loss scale (Micikevicius et al. 2018, arXiv 1710.03740): small gradients of a backward pass in f16
 * would be 0. So the caller multiplies its loss by trireme_optimizer_get_loss_scale(), and the step
 * divides: max_value, max_norm, the rule and trireme_optimizer_get_gradient_norm() see gradients without
 * the scale; bucket hooks and trireme_model_get_gradient_data() see them with it. All scales are powers
 * of two, so the bits are those of a training without one, unless a gradient leaves the range of its
 * type. A step in which a reduced gradient is inf or NaN is skipped by all ranks: parameters, state
 * and the number of steps stay, and the scale backs off; after a window of good steps it grows. It
 * costs one more look at each gradient that is handed in, by which the rank is known that had it
 * first, and one at the reduced ones, by their owners.
 *
 * Ownership: an optimizer keeps its model alive; destroy in any order.
 * Thread safety: one call at a time per model and its optimizer together.
 */
#ifndef TRIREME_OPTIMIZER_H
#define TRIREME_OPTIMIZER_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/model.h>
#include <trireme/optimizer_options.h>
#include <trireme/schedule.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

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
TRIREME_API const char *TRIREME_CALL trireme_rule_name(trireme_rule_kind kind);

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
 * TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS or STOCHASTIC_ROUNDING is set, but no parameter that is trained is
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
 * and group_max_norms, or more than 1,024 groups, or TRIREME_OPTIMIZER_FLAG_ONE_SWEEP does not go with
 * the model or another option, or norm_ranks is over a transport, which carries one group, or the
 * model is TRIREME_MODEL_FLAG_UNEVEN; the message says which.
 * @retval TRIREME_ERROR_SYSTEM  Also: on this rank or another no file can be made in offload_path, or
 * it has no room for the state; that rank's message names the path, the bytes that are needed and those
 * that are free. The model goes on without an optimizer.
 * @return Any other status as listed at the top of model.h.
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
 * Never waits for a peer. With offload_path it may wait up to 10 seconds for transfers that are under
 * way; a disk that has not answered by then is left to itself.
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
 * trireme_optimizer_get_gradient_norm() shows it. With loss_scale all ranks skip the step and answer
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
 * @retval TRIREME_ERROR_SYSTEM  Also with offload_path, of the optimizer or of its model: the state or
 * the parameters cannot be read, twice; the message names the directory, the place and the reason.
 * The model has failed on all ranks, and the last saved state is what there is. What cannot be
 * written stays in memory, and the step goes on: see failed_writes of trireme_offload_info.
 * @retval TRIREME_ERROR_CORRUPT  What the file gives, twice, is not what was written to it (its
 * checksum is another one); the model has failed on all ranks.
 * @retval TRIREME_ERROR_MISMATCH  Also if ranks have other learning rates, by what was set, by
 * their schedules or by the factors of groups: no parameter has changed, the model has failed. And
 * from the comparison of check_every; the step is done, the model has failed.
 * @return Any other status as listed at the top of model.h.
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
 * @param optimizer  The optimizer of a model with TRIREME_MODEL_FLAG_UNEVEN.
 * @param[out] out_steps  How many steps of the others were followed; may be NULL. Not written on
 * failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_STATE  The model has no TRIREME_MODEL_FLAG_UNEVEN, a step is under way,
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
 * @retval TRIREME_ERROR_INVALID_STATE  A step updates in backward (model.h); so for the next two.
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
trireme_optimizer_get_step_rate(trireme_optimizer *optimizer, double *out_rate);

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
trireme_optimizer_get_learning_rate(const trireme_optimizer *optimizer, double *out_learning_rate);

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
trireme_optimizer_get_step_count(const trireme_optimizer *optimizer, uint64_t *out_steps);

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
trireme_optimizer_get_gradient_norm(const trireme_optimizer *optimizer, double *out_norm);

/**
 * Gives the L2 norm of the gradients of one group of parameters in the last step, before clipping:
 * as exact as trireme_optimizer_get_gradient_norm(), of the parameters whose norm_group is `group`, and
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
trireme_optimizer_get_group_norm(const trireme_optimizer *optimizer, uint64_t group, double *out_norm);

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
trireme_optimizer_get_loss_scale(const trireme_optimizer *optimizer, double *out_scale);

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
 * Tells what the optimizer counts: the state of training that is in no range. With the ranges of all
 * ranks it is all that a training needs to go on with another strategy or number of ranks; see
 * trireme_optimizer_restore() and docs/training.md.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] counters  Filled up to its own struct_size. Before the call parameter_count and
 * group_count say for how many numbers the memory at parameter_steps and group_rate_factors has room;
 * after it how many there are. Either may be NULL. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  counters is NULL, its struct_size is too small, or memory that
 * is given has too little room; the message names both counts.
 * @retval TRIREME_ERROR_UNSUPPORTED  `counters` sets a field newer than this library.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL trireme_optimizer_get_counters(
    const trireme_optimizer *optimizer, trireme_optimizer_counters *counters);

/**
 * Goes on with a training whose state was written range by range: gives every rank what the owners of
 * the ranges have written, parameters and state of the rule, wherever several ranks hold copies, and sets
 * what the optimizer counts. Call it once on all ranks, after each has written its ranges. The schedule
 * is the caller's: set it again, and it goes on at `steps`.
 *
 * Collective: blocks until it is done or the deadline passes. Keeps no pointer. Nothing changes unless
 * all ranks give the same counters.
 *
 * @param optimizer  The optimizer.
 * @param counters  As trireme_optimizer_get_counters() gave them, on any rank of any layout. A loss_scale
 * below loss_scale_floor becomes that.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  counters is NULL or a field is out of range, on this rank or
 * another: `version` is another one; losses are scaled in one of the two trainings only; parameter_count or
 * group_count is not what a get would tell here; a parameter has more steps than there were. The message
 * names the field, and of another rank that rank.
 * @retval TRIREME_ERROR_UNSUPPORTED  `counters` sets a field newer than this library, on this rank or
 * another.
 * @retval TRIREME_ERROR_INVALID_STATE  A step is under way, or a unit is gathered (zero3,
 * hybrid_shard). Nothing was sent: the other ranks wait for this one.
 * @retval TRIREME_ERROR_MISMATCH  Ranks give other counters; the message names the first that differs, with
 * both sides. The model goes on as it was.
 * @retval TRIREME_ERROR_SYSTEM  Also as of trireme_optimizer_step(), with offload_path; so is CORRUPT. The
 * model has failed on all ranks.
 * @return Any other status as listed at the top of model.h.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL trireme_optimizer_restore(
    trireme_optimizer *optimizer, const trireme_optimizer_counters *counters);

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
trireme_optimizer_get_range_count(const trireme_optimizer *optimizer, uint64_t *out_count);

/**
 * Describes one range and gives its address. Between steps the elements may be read. Who writes
 * parameters changes this rank's copy alone (data_parallel, zero1, zero2, persistent units, and one
 * replica's with hybrid_shard) or everybody's where ranks share them, and does so before any unit
 * is gathered since the last step, load or trireme_model_broadcast_parameters(): gathered copies may
 * stay. With data_parallel every rank has all vectors of the rule, of which a range is a part, so
 * who writes one changes this rank's copy of that alone, too. trireme_optimizer_restore() gives the other
 * copies what their owners have written.
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
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  None is left for a block that could not be written before.
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
 * @retval TRIREME_ERROR_INVALID_STATE  A step is under way; or the range is of parameters whose unit
 * was gathered since the last step, load or trireme_model_broadcast_parameters(), so that copies which
 * ranks keep would hide what is written. Nothing is written.
 * @retval TRIREME_ERROR_SYSTEM  As of trireme_optimizer_read_range(), as the rest of a block is
 * needed; elements of blocks before it are written.
 * @retval TRIREME_ERROR_CORRUPT  As of trireme_optimizer_read_range().
 * @retval TRIREME_ERROR_TIMEOUT  As of trireme_optimizer_read_range().
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  As of trireme_optimizer_read_range().
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
trireme_optimizer_get_saved_bytes(const trireme_optimizer *optimizer, uint64_t *out_bytes);

/**
 * Writes what this rank holds of the training (parameters, state of the update rule, number of
 * steps, learning rate, loss scale) into memory of the caller, with a description of the layout and a checksum
 * (64-bit XXH3).
 *
 * Local: does not wait for the peers, but for the disk where something lies in a file. Every rank
 * saves its own part, all after the same step. Keeps no pointer.
 *
 * @param optimizer  The optimizer.
 * @param[out] state  Memory for it; its content is undefined after a failure.
 * @param capacity  Bytes at `state`, at least trireme_optimizer_get_saved_bytes().
 * @param[out] out_bytes  Bytes that were written; may be NULL. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  state is NULL, or capacity is too small; the message
 * names both sizes.
 * @retval TRIREME_ERROR_INVALID_STATE  A step is under way.
 * @retval TRIREME_ERROR_SYSTEM  As of trireme_optimizer_read_range(); so are CORRUPT, TIMEOUT and
 * OUT_OF_MEMORY. The model goes on.
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
 * @return Any other status as listed at the top of model.h.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_optimizer_load(trireme_optimizer *optimizer, const void *state, uint64_t bytes);

TRIREME_END_C

#endif
