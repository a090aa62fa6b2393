/**
 * @file optimizer.h
 * @brief The update rule of a model. Each rank runs it on the part of the model that it owns.
 *
 * Formulas: p is an element of a parameter, g its gradient, t the step from 1, a the learning rate.
 * wd, b1, b2 and eps are weight_decay, beta1, beta2 and epsilon. State lists the state vectors of
 * a trireme_state_range in their order. An element gets the same bits wherever it lies and whatever
 * vector instructions the machine has. USER is the caller's own callback, with the caller's
 * vectors. Names in capitals are rules and flags of rules.h.
 *
 * SGD (Sutskever et al. 2013, as PyTorch writes it):
 * - g += wd * p; v = momentum * v + g (v = g at t = 1); p -= a * v.
 * - With NESTEROV: p -= a * (g + momentum * v). Without momentum: p -= a * g.
 * - State: v, if there is momentum.
 *
 * ADAM (Kingma and Ba 2015, arXiv 1412.6980):
 * - g += wd * p; m = b1 * m + (1 - b1) * g; v = b2 * v + (1 - b2) * g * g; p -= a / (1 - b1^t) * m
 *   / (sqrt(v) * (1 / sqrt(1 - b2^t)) + eps).
 * - State: m, v.
 *
 * ADAMW (Loshchilov and Hutter 2019, arXiv 1711.05101): as ADAM without wd in g, and first p -=
 * a * wd * p. State: m, v.
 *
 * ADAGRAD (Duchi et al. 2011):
 * - g += wd * p; v = v + g * g; p -= a * g / (sqrt(v) + eps).
 * - State: v.
 *
 * RMSPROP (Tieleman and Hinton 2012, as PyTorch writes it):
 * - g += wd * p; v = b2 * v + (1 - b2) * g * g; d = sqrt(v) + eps; p -= a * g / d.
 * - With momentum: b = momentum * b + g / d; p -= a * b.
 * - With CENTERED (Graves 2013, arXiv 1308.0850): m = m + (1 - b2) * (g - m); d = sqrt(v - m * m)
 *   + eps. A difference that rounding made negative counts as 0.
 * - State: v; then b, if there is momentum; then m, with CENTERED.
 *
 * LION (Chen et al. 2023, arXiv 2302.06675):
 * - p -= a * wd * p; p -= a * sign(b1 * m + (1 - b1) * g); m = b2 * m + (1 - b2) * g.
 * - The sign of 0 is 0.
 * - State: m.
 *
 * LAMB (You et al. 2020, arXiv 1904.00962), with m and v as with ADAM:
 * - r = m / (1 - b1^t) / (sqrt(v) * (1 / sqrt(1 - b2^t)) + eps) + wd * p; trust = |p| / |r|; p -=
 *   a * trust * r.
 * - State: m, v.
 *
 * LARS (You et al. 2017, arXiv 1708.03888):
 * - trust = trust_coefficient * |p| / (|g| + wd * |p| + eps); g += wd * p; v = momentum * v + a *
 *   trust * g; p -= v. Without momentum: p -= a * trust * g.
 * - State: v, if there is momentum.
 *
 * |p|, |r| and |g| are L2 norms of the whole parameter, with g after clipping. They are square
 * roots of exact sums. So trust is the same number on all ranks, for every world size and
 * strategy. It is 1 where it would be 0 or no finite number, as for a parameter of zeros. It is at
 * most max_trust. With norm_ranks, several models may hold parts of one parameter. Each part then
 * counts as a whole parameter.
 *
 * ADAFACTOR (Shazeer and Stern 2018, arXiv 1804.04235, as PyTorch writes it), with w =
 * t^beta2_decay. A parameter of two or more dimensions is a matrix: its rows are its first
 * dimension, its columns all the others.
 * - Matrix: R_i += w * (mean of g * g in row i - R_i); C_j likewise of column j; v = R_i * C_j /
 *   max(mean of R, eps).
 * - Other parameters, element by element: v += w * (g * g - v).
 * - u = g / max(sqrt(v), eps). For a matrix the divisor is at least 2^-b * max |g|; b: see below.
 * - p -= a * wd * p; p -= max(min_parameter_rms, rms(p)) * min(a, 1 / sqrt(t)) / max(1, rms(u) /
 *   max_update_rms) * u.
 * - rms is a whole parameter's |.| / sqrt(its number of elements); rms(p) is of p before it
 *   decays.
 * - R, C, v and u are computed in f64. R, C and v are kept in the gradients' type. A number beyond
 *   the range of that type is kept as the largest number of the type.
 * - The squares of a matrix are added in fixed point, with 2 b bits below the largest square. b is
 *   51, or less for sides above 2,047: see docs/optimizers.md. So the means have the same bits
 *   however the matrix is spread.
 * - If a gradient of a matrix is inf or NaN, or an f64 of 2^500 or more, the matrix becomes NaN.
 * - State: v, of parameters that are no matrix. R and C have kinds of ranges of their own.
 *
 * MUON (Jordan 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv 2502.16982). The
 * formula is that of PyTorch 2.9. PyTorch computes it in bf16; here it is in f32 or f64.
 * - v = momentum * v + (1 - momentum) * g; u = v. With NESTEROV: u = momentum * v + (1 -
 *   momentum) * g.
 * - X = u / max(|u|, 1e-7). Y = X if it has at most as many rows as columns, else its transpose.
 * - orthogonal_steps times: A = Y Y^T; Y = 3.4445 * Y + (-4.775 * A + 2.0315 * A A) Y.
 * - X is the last Y, transposed back. p -= a * wd * p; p -= a * (adjust * X), with adjust by
 *   rate_adjustment.
 * - A matrix has two or more dimensions, as with ADAFACTOR, and no group of
 *   TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE. Embeddings and output layers should have that flag.
 * - All other parameters have ADAMW.
 * - Sums of products are f64, in the order of their index. Each number of A, Y and the bracket is
 *   rounded to f32 once. For f64 parameters they are f64.
 * - State: v, of a matrix; m, v, of other parameters.
 *
 * Parameters of f16 and bf16: all of this is computed in f32. g and all states are kept in f32. p
 * is rounded once at the end, to nearest even, so that steps below half of p's last bit are lost.
 * Two flags prevent that loss.
 *
 * Master weights (Micikevicius et al. 2018, arXiv 1710.03740): with
 * TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS the owner of an element keeps it in f32 too, as one more
 * vector of state. The rule changes this master. p is its rounding to nearest even; beyond the
 * range of f16, p is inf.
 * - A master begins as its parameter. trireme_model_broadcast_parameters() sets it to that again.
 * - The caller may write p by its range. If the master does not round to the new p, the next step
 *   sets the master to p. A caller that knows the master writes both.
 *
 * Stochastic rounding (Gupta et al. 2015, arXiv 1502.02551): with
 * TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING, and without masters, p of bf16 is rounded by chance.
 * The part that is cut off is the probability of rounding away from 0. On average, small steps are
 * not lost.
 * - The draw for an element depends only on rounding_seed, step t, the 64-bit FNV-1a hash of the
 *   parameter's name, and the element's number in it. So the bits are as reproducible as without.
 * - inf and NaN stay. Beyond the range of bf16, p becomes inf, as with rounding to nearest.
 *
 * Loss scale (Micikevicius et al. 2018, arXiv 1710.03740): in a backward pass in f16, small
 * gradients would be 0. So the caller multiplies its loss by trireme_optimizer_get_loss_scale(),
 * and the step divides the gradients by it. docs/optimizers.md has an example.
 * - max_value, max_norm, the rule and trireme_optimizer_get_gradient_norm() see gradients without
 *   the scale. Bucket hooks and trireme_model_get_gradient_data() see them with it.
 * - All scales are powers of two. So the bits are those of a training without a scale, unless a
 *   gradient leaves the range of its type.
 * - All ranks skip a step in which a reduced gradient is inf or NaN. Parameters, state and the
 *   number of steps stay, and the scale backs off. After a window of good steps it grows.
 * - The loss scale costs time: each rank checks every gradient that it hands in, to know the rank
 *   that had the inf or NaN first. The owners also check the reduced gradients once.
 *
 * Ownership: an optimizer keeps its model alive; destroy in any order. Thread safety: one call at
 * a time per model and its optimizer together.
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
TRIREME_API const char *TRIREME_CALLCONV trireme_rule_name(trireme_rule_kind kind);

/**
 * Gives a sealed model its update rule and allocates the state.
 *
 * Collective: blocks until all ranks, and all of norm_ranks, have called it with the same options
 * or the deadline passes. If a mesh has several models (mesh.h), these are all ranks of it. Models
 * without max_norm and loss_scale may have other options than the others, but for check_every. A
 * rule of the caller and its user_data stay in use until the optimizer and every trainer of it are
 * destroyed.
 *
 * @param model  The model.
 * @param options  The rule. Required.
 * @param[out] out_optimizer  The new optimizer; free it with trireme_optimizer_destroy(). Not
 * written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or a field is out of range. Or `kind`
 * and `rule` name no rule, or two rules. Or USER has no options, or it has weight decay. Or a group
 * has flags that are for MUON. Or a parameter's parameter_group is not below group_count, or is
 * above 0 without groups. Or a field has no use, such as norm_ranks where neither max_norm nor
 * loss_scale is set. Or no parameter of f16 or bf16 is trained (MASTER_WEIGHTS), or none of bf16
 * (STOCHASTIC_ROUNDING); a mesh may have such models among others. The message names the cause.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process, or norm_ranks is no live
 * communicator of it.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, a step is under way, or it has an
 * optimizer.
 * @retval TRIREME_ERROR_MISMATCH  Ranks name different options, or ranks of one model different
 * norm_ranks. Or some models of a mesh have a max_norm or loss_scale, and others have none. Or
 * models of a mesh have different check_every. The model goes on without an optimizer.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out. Or a rank would hold more than the
 * model's memory_limit_bytes with this state: all ranks then have the same message, as
 * trireme_model_seal() gives it. The model goes on without an optimizer.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library, or more than
 * 1,024 groups. Or two options do not go together, or one does not go with the model, such as
 * max_norm of a group with clipping.max_norm (docs/features.md). norm_ranks cannot be over a
 * transport, which carries one group, nor go with TRIREME_MODEL_FLAG_UNEVEN. The message says
 * which.
 * @retval TRIREME_ERROR_SYSTEM  Also: a rank cannot make a file in offload.path, or its disk has no
 * room for the state. That rank's message names the path, the bytes that it needs and those that
 * are free. The model goes on without an optimizer.
 * @return Any other status as listed at the top of model.h.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_optimizer_create(trireme_model *model, const trireme_optimizer_options *options,
                         trireme_optimizer **out_optimizer);

/**
 * Frees the handle and the state. The model may then get another optimizer, unless a trainer of
 * this one is left.
 *
 * Never waits for a peer. With offload it may wait up to 10 seconds for transfers that are
 * under way. Then it returns, also if the disk has not answered.
 *
 * @param optimizer  An optimizer; NULL and a stale handle are ignored.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_optimizer_destroy(trireme_optimizer *optimizer);

/**
 * Ends a step. The call waits for the reductions, clips the gradients and updates the owned
 * shards. Strategies that hold whole parameters then get the new ones.
 *
 * Collective: blocks until it is done or the deadline passes.
 *
 * A gradient that is inf or NaN is no failure. It goes through the rule, and
 * trireme_optimizer_get_gradient_norm() shows it. With loss_scale all ranks skip the step. They
 * answer TRIREME_OK, or TRIREME_ERROR_INVALID_STATE if the scale is at its floor.
 * trireme_optimizer_get_loss_scale_info() tells of skipped steps.
 *
 * @param optimizer  The optimizer.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_STATE  No backward pass was made since the last step (an absent
 * one counts), or one is under way. Or the last one was NO_SYNC, or leaves are missing. Or a unit
 * is gathered (zero3, hybrid_shard), whose copy would be stale. Or, on all ranks, gradients are
 * inf or NaN and the loss scale is at its floor. Then all ranks have skipped the step, training
 * may go on, and the message names the first parameter and the rank.
 * @retval TRIREME_ERROR_CALLBACK  The caller's rule or bucket hook returned another number than 0,
 * on this rank or another. The model has failed on all ranks. Or the caller's schedule answered no
 * factor on this rank: then nothing was sent and nothing has changed. The other ranks wait for
 * this one, and the caller may call the step again.
 * @retval TRIREME_ERROR_SYSTEM  Also with offload, of the optimizer or of its model: the rank
 * cannot read the state or the parameters, twice. The message names the directory, the place and
 * the reason. The model has failed on all ranks; go on from the last saved state. If the rank
 * cannot write a block, the block stays in memory and the step goes on: see failed_writes of
 * trireme_offload_info.
 * @retval TRIREME_ERROR_CORRUPT  A block of the file, read twice, has another checksum than the
 * block that was written. The model has failed on all ranks.
 * @retval TRIREME_ERROR_MISMATCH  Also: the learning rates of ranks differ, by what was set, by
 * their schedules or by the factors of groups. No parameter has changed, and the model has failed.
 * Or the comparison of check_every found a difference: the step is done, and the model has failed.
 * Or models handed in different gradients of a whole parameter ("Whole gradients" in
 * model_options.h): no parameter has changed, and the model has failed.
 * @return Any other status as listed at the top of model.h.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_optimizer_step(trireme_optimizer *optimizer);

/**
 * Ends a step of several optimizers of this rank with one norm, such as those of experts and of
 * the rest (ChainedOptimizer of Megatron-LM). Norm and bits are those of one model with the
 * parameters of all: sqrt(sum of g * g), in exact sums.
 * - clipping.max_norm clips every gradient by it. Group k of all models has one max_norm and norm.
 * - With loss_scale all skip the step if a gradient of one is inf or NaN.
 * - All other options are each optimizer's own. One optimizer makes a trireme_optimizer_step().
 *
 * Collective: blocks until it is done or a deadline passes. All ranks that have the norm of one
 * optimizer have that of the others, too (docs/training.md). The order of `optimizers` is free.
 * Once the step has begun, a failure of one fails all models, and but for CALLBACK their groups.
 *
 * @param optimizers  Array of `count` optimizers. Keeps no pointer. Required.
 * @param count  1 to 64.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  optimizers is NULL, count is out of range, or one is
 * named twice. Or they differ in max_norm or loss_scale, or one has neither. Nothing was sent: the
 * other ranks wait for this one.
 * @retval TRIREME_ERROR_INVALID_HANDLE  One is no live optimizer of this process.
 * @retval TRIREME_ERROR_UNSUPPORTED  A model has TRIREME_MODEL_FLAG_UNEVEN.
 * @retval TRIREME_ERROR_INVALID_STATE  As of trireme_optimizer_step(). Or loss scales differ, or
 * their clean_steps or overflows; trireme_optimizer_restore() sets them. Nothing was sent.
 * @retval TRIREME_ERROR_MISMATCH  Also: ranks name different optimizers, or one has stepped one
 * of them alone, or has the norm of one but not of another. No parameter has changed.
 * @return Any other status as of trireme_optimizer_step().
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_optimizer_step_together(trireme_optimizer *const *optimizers, uint64_t count);

/**
 * Follows the steps of the ranks that still have data. A rank calls it when its own data is over,
 * in place of begin_backward() to step(). It returns when all ranks have called it. All then hold
 * the same parameters, as after any step.
 *
 * In each step this rank makes the same gathers as in its own last step, and the same passes, but
 * absent. Then it ends the step. A rank that has made no step yet acts as in a usual step: in each
 * micro-batch it gathers all units in rising and then in falling order, and makes its pass.
 *
 * Collective: blocks until all ranks have called it or a deadline passes. Each step may take as
 * long as one call.
 * - A step that others follow cannot be discarded.
 * - If every rank calls this and none has a step to make, no step is made. An example: all ranks
 *   gather to evaluate, and then all call this.
 * - A step that is skipped for an overflow counts, also with the loss scale at its floor.
 *
 * @param optimizer  The optimizer of a model with TRIREME_MODEL_FLAG_UNEVEN.
 * @param[out] out_steps  Number of the others' steps that this rank followed; may be NULL. Not
 * written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_STATE  The model has no TRIREME_MODEL_FLAG_UNEVEN, a step is under
 * way, or a unit is gathered (zero3, hybrid_shard).
 * @retval TRIREME_ERROR_MISMATCH  The others do something else than this rank did in its last
 * step, such as another order of units. The message names both sides.
 * @return Any other status as of trireme_optimizer_step().
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_optimizer_join(trireme_optimizer *optimizer, uint64_t *out_steps);

/**
 * Sets the learning rate of the steps that follow. A schedule multiplies this rate. All ranks must
 * set the same.
 *
 * Local: does not wait for the peers; the next step compares.
 *
 * @param optimizer  The optimizer.
 * @param learning_rate  0 or more, finite.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  learning_rate is negative or not finite, or its product
 * with the factor of a group is not finite.
 * @retval TRIREME_ERROR_INVALID_STATE  A step that updates in backward is under way: see model.h.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_optimizer_set_learning_rate(trireme_optimizer *optimizer, double learning_rate);

/**
 * Sets the factor of one group of parameters: the steps that follow multiply the group's learning
 * rate by it. All ranks must set the same, and none while another rank is in
 * trireme_optimizer_join(). trireme_optimizer_save() does not write the factor.
 *
 * Local: does not wait for the peers; the next step compares.
 *
 * @param optimizer  The optimizer.
 * @param group  Number of the group, below group_count of trireme_optimizer_options.
 * @param factor  As rate_factor of trireme_parameter_group: 0 or more, finite.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_STATE  The optimizer was created without groups. Or a step that
 * updates in backward is under way: see model.h.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `group` is not below group_count. Or factor is negative,
 * not finite, or so large that the learning rate times it is not finite.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_optimizer_set_group_rate_factor(
    trireme_optimizer *optimizer, uint64_t group, double factor);

/**
 * Gives the learning rate a schedule. The rate of a step is then the learning rate as set, times
 * the schedule's factor for the number of steps made before.
 * - A schedule that is set in the middle of a training begins in the middle.
 * - trireme_optimizer_save() writes the learning rate as set and the number of steps, but not the
 *   schedule. Set the schedule again after a load; the training then goes on where it was saved.
 * - The schedule counts the optimizer's steps. It does so for all parameters, also for those that
 *   TRIREME_UNUSED_SKIP left out of some steps.
 * - All ranks must set the same, and none while another rank is in trireme_optimizer_join(). A
 *   rank in that call takes the rates of the others.
 *
 * Local: does not wait for the peers; each step compares the rate that results. The call copies
 * `options`. `factor` and `user_data` stay in use until another schedule is set, or until the
 * optimizer and every trainer of it are destroyed.
 *
 * @param optimizer  The optimizer.
 * @param options  The schedule: the first part of the options of its kind. NULL takes it away.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_STATE  A step that updates in backward is under way: see model.h.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  The kind is none, or a field is out of range. The message
 * names it. The schedule stays as it was.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library. The schedule
 * stays as it was.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_optimizer_set_schedule(
    trireme_optimizer *optimizer, const trireme_schedule_options *options);

/**
 * Gives the learning rate that the next step will take: the rate as set, times the schedule's
 * factor if there is a schedule. It does not contain the factors of groups.
 *
 * Does not block. Calls the caller's schedule, if it is one.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_rate  The learning rate. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_rate is NULL.
 * @retval TRIREME_ERROR_CALLBACK  The caller's schedule answered a number that is negative or not
 * finite, or so large that a learning rate is not finite.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_optimizer_get_step_rate(trireme_optimizer *optimizer, double *out_rate);

/**
 * Gives the learning rate as set, without the factor of a schedule.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_learning_rate  The learning rate. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_learning_rate is NULL.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_optimizer_get_step_count(const trireme_optimizer *optimizer, uint64_t *out_steps);

/**
 * Gives the global L2 norm of the last step's gradients before clipping. It is the square root of
 * the exact sum of the squares. All ranks have the same bits, for every world size and strategy.
 * With norm_ranks it is the norm over all their models.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_norm  The norm. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_norm is NULL.
 * @retval TRIREME_ERROR_INVALID_STATE  clipping.max_norm is 0, so that no norm is computed. Or no
 * step was made since the optimizer was created or restored. Or the loaded state is of an optimizer
 * whose clipping.max_norm was 0.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_optimizer_get_gradient_norm(const trireme_optimizer *optimizer, double *out_norm);

/**
 * Gives the L2 norm of one group's gradients in the last step, before clipping. The group's
 * parameters have `group` as their parameter_group; with norm_ranks, those of all models. The norm
 * is as exact as that of trireme_optimizer_get_gradient_norm(). It is 0 if the group is empty, and
 * NaN if a gradient of the group was inf or NaN.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param group  Number of the group, below group_count of trireme_optimizer_options.
 * @param[out] out_norm  The norm. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_norm is NULL, or `group` is not below group_count.
 * @retval TRIREME_ERROR_INVALID_STATE  No step was made since the optimizer was created, loaded or
 * restored. Or no group of its options has a max_norm.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_optimizer_get_group_norm(
    const trireme_optimizer *optimizer, uint64_t group, double *out_norm);

/**
 * Gives the loss scale: the caller multiplies the loss of the next backward pass by it, or the
 * loss' gradient. It is the same on all ranks, and 1 without loss_scale. It changes only in
 * trireme_optimizer_step(), trireme_optimizer_join(), trireme_optimizer_load() and
 * trireme_optimizer_restore().
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_scale  The scale. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_scale is NULL.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_optimizer_get_loss_scale(const trireme_optimizer *optimizer, double *out_scale);

/**
 * Describes the loss scale and how the last step went with it. The last step is one that was made
 * or skipped since the optimizer was created, loaded or restored. All ranks of the model get the
 * same.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_info  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_info is NULL, or its struct_size is too small.
 * @retval TRIREME_ERROR_INVALID_STATE  The optimizer was created without options.loss_scale.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_optimizer_get_loss_scale_info(
    const trireme_optimizer *optimizer, trireme_loss_scale_info *out_info);

/**
 * Gives the optimizer's counts: the state of training that is in no range. With them and the
 * ranges of all ranks, a training can go on with another strategy or number of ranks. See
 * trireme_optimizer_restore() and docs/training.md.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] counters  Filled up to its own struct_size; not written on failure. Before the call,
 * the caller sets parameter_count and group_count to the numbers that parameter_steps and
 * group_rate_factors have room for. The call sets both to the counts of this optimizer. Either
 * pointer may be NULL.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  counters is NULL, its struct_size is too small, or
 * memory that is given has too little room. The message names both counts.
 * @retval TRIREME_ERROR_UNSUPPORTED  `counters` sets a field newer than this library.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_optimizer_get_counters(
    const trireme_optimizer *optimizer, trireme_optimizer_counters *counters);

/**
 * Goes on with a training whose state the ranks have written range by range. Each rank writes its
 * own ranges; then all ranks call this once. Where several ranks hold copies, of parameters or of
 * the rule's state, each gets what the owner of the range has written. The call also sets what the
 * optimizer counts. Set the schedule again; it goes on at `steps`.
 *
 * Collective: blocks until it is done or the deadline passes. Keeps no pointer. Nothing changes
 * unless all ranks give the same counters.
 *
 * @param optimizer  The optimizer.
 * @param counters  As trireme_optimizer_get_counters() gave them, on any rank of any layout. If
 * their loss_scale is below minimum_scale, the floor takes its place.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  counters is NULL or a field is out of range, on this
 * rank or another. Causes: another `version`; losses that only one of the two trainings scales;
 * parameter_count or group_count is not that of this optimizer; a parameter has more steps than
 * the training. The message names the field, and the rank if it is another.
 * @retval TRIREME_ERROR_UNSUPPORTED  `counters` sets a field newer than this library, on this rank
 * or another.
 * @retval TRIREME_ERROR_INVALID_STATE  A step is under way, or a unit is gathered (zero3,
 * hybrid_shard). Nothing was sent: the other ranks wait for this one.
 * @retval TRIREME_ERROR_MISMATCH  Ranks give other counters. The message names the first that
 * differs, with both sides. The model goes on as it was.
 * @retval TRIREME_ERROR_SYSTEM  Also as of trireme_optimizer_step(), with offload. The model
 * has failed on all ranks.
 * @retval TRIREME_ERROR_CORRUPT  As of trireme_optimizer_step(), with offload. The model has
 * failed on all ranks.
 * @return Any other status as listed at the top of model.h.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_optimizer_restore(trireme_optimizer *optimizer, const trireme_optimizer_counters *counters);

/**
 * Gives the number of ranges in which the state of training lies on this rank. Ranges hold
 * parameters, frozen ones included, and the vectors of the update rule. Over all ranks they hold
 * every element once, for every strategy. So a program can read them rank by rank, and put the
 * state together for another number of ranks.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_count  The number of ranges. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_count is NULL.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_optimizer_get_range_count(const trireme_optimizer *optimizer, uint64_t *out_count);

/**
 * Describes one range and gives its address. Between steps the caller may read the elements, and
 * may write them with this care:
 * - Write parameters before any unit is gathered since the last step, load or
 *   trireme_model_broadcast_parameters(). Copies that ranks have gathered may stay.
 * - Where ranks share parameters, a write changes those of all of them. Otherwise it changes this
 *   rank's copy alone (data_parallel, zero1, zero2, persistent units), or one replica's
 *   (hybrid_shard).
 * - With data_parallel every rank has all vectors of the rule, and a range is a part of them. A
 *   write to a vector changes this rank's copy alone, too.
 * - trireme_optimizer_restore() gives the other copies what the owners of the ranges have written.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param index  Number of the range. Parameters come first, then the rule's vectors one after the
 * other, each in the order of registration. Then come rows, then columns.
 * @param[out] out_range  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_range is NULL, its struct_size is too small, or
 * there is no such range.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_optimizer_get_range(
    const trireme_optimizer *optimizer, uint64_t index, trireme_state_range *out_range);

/**
 * Copies the elements of one range into memory of the caller, from memory or from a file.
 *
 * Local: does not wait for the peers, but for the disk where they lie in a file. Keeps no pointer.
 *
 * @param optimizer  The optimizer.
 * @param index  Number of the range, as of trireme_optimizer_get_range().
 * @param[out] data  Memory for the elements. Its content is undefined after a failure.
 * @param bytes  Bytes at `data`: exactly those of the range's elements.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  data is NULL, there is no such range, or bytes is not
 * its size. The message names both sizes.
 * @retval TRIREME_ERROR_INVALID_STATE  A step is under way.
 * @retval TRIREME_ERROR_SYSTEM  The rank cannot read the file. The message names the file, the
 * place and the reason. The model goes on.
 * @retval TRIREME_ERROR_CORRUPT  The bytes in the file are not those that were written to it. The
 * model goes on.
 * @retval TRIREME_ERROR_TIMEOUT  The disk does not answer within the deadline of the model.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  No memory is left for a block that could not be written
 * before.
 * @return The status with which the model has failed, if it has.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_optimizer_read_range(
    const trireme_optimizer *optimizer, uint64_t index, void *data, uint64_t bytes);

/**
 * Writes the elements of one range, to memory or to a file. For parameters it needs the same care
 * as writing through the address of trireme_optimizer_get_range().
 *
 * Local: does not wait for the peers, but for the disk where they lie in a file. Keeps no pointer.
 *
 * @param optimizer  The optimizer.
 * @param index  Number of the range, as of trireme_optimizer_get_range().
 * @param data  The elements.
 * @param bytes  Bytes at `data`: exactly those of the range's elements.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  As of trireme_optimizer_read_range().
 * @retval TRIREME_ERROR_INVALID_STATE  A step is under way. Or the range is of parameters whose
 * unit was gathered since the last step, load or trireme_model_broadcast_parameters(): ranks may
 * keep copies, which would hide the new values. Nothing is written.
 * @retval TRIREME_ERROR_SYSTEM  As of trireme_optimizer_read_range(): the call must read the rest
 * of a block that it writes in part. The elements of earlier blocks are written.
 * @retval TRIREME_ERROR_CORRUPT  As of trireme_optimizer_read_range().
 * @retval TRIREME_ERROR_TIMEOUT  As of trireme_optimizer_read_range().
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  As of trireme_optimizer_read_range().
 * @return The status with which the model has failed, if it has.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_optimizer_write_range(
    trireme_optimizer *optimizer, uint64_t index, const void *data, uint64_t bytes);

/**
 * Describes the file of an optimizer with offload on this rank: how the state lies there, and
 * what the disk has done for it.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_info  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_info is NULL or its struct_size is too small.
 * @retval TRIREME_ERROR_INVALID_STATE  The optimizer was created without offload.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_optimizer_get_offload_info(
    const trireme_optimizer *optimizer, trireme_offload_info *out_info);

/**
 * Gives the number of bytes that trireme_optimizer_save() writes on this rank.
 *
 * Does not block.
 *
 * @param optimizer  The optimizer.
 * @param[out] out_bytes  The bytes. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_bytes is NULL.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_optimizer_get_saved_bytes(const trireme_optimizer *optimizer, uint64_t *out_bytes);

/**
 * Writes this rank's part of the training into memory of the caller: parameters, state of the
 * update rule, number of steps, learning rate, loss scale. A description of the layout and a
 * checksum (64-bit XXH3) go with it.
 *
 * Local: does not wait for the peers, but for the disk where something lies in a file. Every rank
 * saves its own part, all after the same step. Keeps no pointer.
 *
 * @param optimizer  The optimizer.
 * @param[out] state  Memory for the part. Its content is undefined after a failure.
 * @param capacity  Bytes at `state`, at least trireme_optimizer_get_saved_bytes().
 * @param[out] out_bytes  Bytes that were written; may be NULL. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live optimizer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  state is NULL, or capacity is too small. The message
 * names both sizes.
 * @retval TRIREME_ERROR_INVALID_STATE  A step is under way.
 * @retval TRIREME_ERROR_SYSTEM  As of trireme_optimizer_read_range(). The model goes on.
 * @retval TRIREME_ERROR_CORRUPT  As of trireme_optimizer_read_range(). The model goes on.
 * @retval TRIREME_ERROR_TIMEOUT  As of trireme_optimizer_read_range(). The model goes on.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  As of trireme_optimizer_read_range(). The model goes on.
 * @return The status with which the model has failed, if it has.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_optimizer_save(
    const trireme_optimizer *optimizer, void *state, uint64_t capacity, uint64_t *out_bytes);

/**
 * Takes back the part that trireme_optimizer_save() wrote on this rank. That training had the same
 * model, options, strategy, world size, update rule and way of sharing parameters. Nothing changes
 * unless all ranks can load parts of the same step.
 *
 * Collective: blocks until it is done or the deadline passes. Keeps no pointer. The call checks
 * the bytes before it uses them.
 *
 * @param optimizer  The optimizer.
 * @param state  The saved part.
 * @param bytes  Its size in bytes.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_CORRUPT  The bytes are cut off or damaged, on this rank or another. A
 * message about another rank says so.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  On this rank or another, state is NULL, or it is of
 * another rank, world size, layout or model. The message says which and names both sides.
 * @retval TRIREME_ERROR_UNSUPPORTED  On this rank or another: saved by a later version of this
 * format, or on a machine of another byte order.
 * @retval TRIREME_ERROR_INVALID_STATE  A step is under way, or a unit is gathered (zero3,
 * hybrid_shard). Nothing was sent: the other ranks wait for this one.
 * @retval TRIREME_ERROR_MISMATCH  The parts are of different steps, or were saved with different
 * learning rates or loss scales. Nothing has changed.
 * @return Any other status as listed at the top of model.h.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_optimizer_load(trireme_optimizer *optimizer, const void *state, uint64_t bytes);

TRIREME_END_C

#endif
