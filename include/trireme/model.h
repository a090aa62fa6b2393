/**
 * @file model.h
 * @brief A model whose parameters, gradients and optimizer state are spread over ranks.
 *
 * The caller registers named parameters in units (usually one unit a layer), seals the model, and
 * then trains in steps. A step is one or more micro-batches, each a backward pass that hands in
 * one gradient for every trainable parameter, followed by trireme_optimizer_step(). All ranks make
 * the same calls in the same order.
 *
 * Flat way: trireme_model_accumulate_flat() takes one vector with all gradients,
 * trireme_model_gather_parameters() gives one vector with all parameters. Hooks way:
 * trireme_model_gather_unit() and trireme_model_release_unit() around the caller's compute,
 * trireme_model_gradient_ready() as backward produces gradients; the reduction of full buckets
 * overlaps with the rest of backward, and the next unit is prefetched.
 *
 * What each of N ranks holds, in elements per parameter (ZeRO: Rajbhandari et al. 2020, arXiv
 * 1910.02054):
 *
 * | strategy      | parameters             | gradients              | optimizer state |
 * | data_parallel | 1                      | 1                      | 1               |
 * | zero1         | 1                      | 1                      | 1/N             |
 * | zero2         | 1                      | 1/N, buckets in flight | 1/N             |
 * | zero3         | 1/N, units in flight   | 1/N, buckets in flight | 1/N             |
 * | hybrid_shard  | 1/S, units in flight   | 1/N, buckets in flight | 1/N             |
 *
 * hybrid_shard: S = shard_ranks neighbouring ranks, such as those of one host, or ranks that are
 * shard_stride apart, keep one copy of the parameters between them, so gathers stay among them; N/S
 * such groups are replicas. Gradients and
 * state are spread over all N: each replica updates its part of a shard and gives it to the others,
 * which moves as many bytes as an all-reduce of the shard's gradients (of 16-bit parameters fewer:
 * they are given back in 2 bytes) and holds S/N of their memory.
 *
 * Units are gathered in groups: neighbouring units of one type are joined until they have
 * minimum_unit_bytes, so that a model of many tiny layers needs few gathers. A group is one flat
 * vector; rank r owns n/N of its n elements, the first n%N ranks one more. (hybrid_shard: rank r
 * keeps part r mod S of S, cut the same way, and owns part r / S of N/S of that; with shard_stride t
 * part r / t mod S, and part r / (S t) * t + r mod t of N/S.) With TRIREME_MODEL_FLAG_WHOLE_ROWS these
 * cuts are moved to where a row of a parameter ends.
 * Gradients and optimizer state exist for trainable parameters only. What is in flight is reported
 * as working memory: two of the largest bucket (all buckets, if there are more ranks than leaves),
 * groups up to the largest plus prefetch_bytes, the partial sums of reproducible training,
 * contributions rounded to reduce_dtype, gradients of aliases until their turn, and about a kilobyte
 * for agreement. Two habits take more,
 * which is planned and allocated when it happens: to hand in gradients in another order than
 * buckets are reduced in, and to keep several units gathered at the same time. So does a rank whose
 * second or later pass of a step is ABSENT (of a reproducible one any pass), with zero2, zero3 and
 * hybrid_shard: its buckets wait for nobody; and with TRIREME_UNUSED_ZERO and TRIREME_UNUSED_SKIP,
 * zero3 and hybrid_shard, a rank that has gradients which others lack. Buckets are reduced
 * in the reverse order of registration in the first step, and then in the order in which rank 0 had
 * their gradients there; TRIREME_MODEL_FLAG_FIXED_ORDER. No element moves for it, and no bit changes.
 *
 * Parameters of 16 bits: with f16 and bf16 parameters are stored, gathered, saved and handed out in
 * 2 bytes an element; gradients, their sums and optimizer state are f32, 4 bytes an element. A
 * gradient is handed in as its parameter's type or as f32, and becomes f32 in the bucket. Sums never
 * round to 16 bits, so trained bits do not depend on strategy, ranks or buckets any more than with
 * f32. A change below half the distance to the next number is lost, and f16 ends at 65,504, but with
 * an optimizer that has TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS.
 *
 * One copy a host: ranks that share memory need no copies of what they gather. All of them see the
 * parameters whole in the same pages, of which each rank counts n/N as its own; the owner of an
 * element writes it in trireme_optimizer_step(), in which nobody reads. A gather is then a look at
 * a table: 0 bytes, no wait, no working memory. So a caller must not write to parameters of such a
 * model. zero3 and hybrid_shard do this by themselves, zero1 and zero2 on demand
 * (share_parameters); trireme_model_get_info() tells. data_parallel cannot: there every rank
 * updates everything; zero1 with TRIREME_SHARE_ALWAYS is the same training in less memory.
 *
 * Reproducible: with `leaves` = L > 0 the global batch is L leaves, whatever the world size N.
 * Leaf l is computed by rank l mod N as its micro-batch number l / N. Each element's gradient is
 * the sum over one binary tree: leaves 2k and 2k+1 are added, then pairs of those, and so on; a
 * pair without a partner moves up alone. The trained parameters are then the same bits for every
 * N, strategy, bucket size and order of gradients.
 *
 * Uneven inputs: with TRIREME_MODEL_FLAG_UNEVEN a rank may hand in nothing for a micro-batch
 * (TRIREME_BACKWARD_FLAG_ABSENT), and one that has run out of data follows the others with
 * trireme_optimizer_join(). An average then divides by the ranks (or leaves) that contributed to
 * the step, which all ranks agree on at its end; a rank contributes if any of its passes of the
 * step was not absent.
 *
 * Update in backward (LOMO: Lv et al. 2023, arXiv 2306.09782): with
 * TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD the owner updates a bucket's elements as soon as they are
 * reduced, in the call that hands in a later gradient or ends the pass, at the latest in
 * trireme_optimizer_step(); then the bucket's memory is free again. So gradients never exist as a
 * whole: what the table says of them is 0 for every strategy, and two of the largest bucket are in
 * flight. The bits are those of a training without. With leaves = ranks each of the two has its
 * partial sums; with more leaves all partial sums are there until the last pass, which is as much
 * as before with zero2 and zero3; with fewer, and with data_parallel on ranks that have no leaf in
 * the last round, all buckets may be in flight, beyond the plan. The caller sees that:
 * - From the moment a gradient is handed in (in the last pass in which this rank has one; with tied
 *   parameters, of the last name) until the step ends the parameter may change, on this rank and,
 *   where ranks share one copy, by another one. So hand in a gradient after the last use of its
 *   parameter. Frozen parameters never change. What this rank keeps gathered waits, in memory
 *   beyond the plan. trireme_model_gather_parameters() is refused while a step is under way.
 * - The optimizer is there before the first pass of a step, whose rates are those of that moment;
 *   to set one until the step ends is refused (a rank without a leaf cannot know, and then the step
 *   is a MISMATCH).
 * - Once all ranks have handed in the first bucket of the last pass, and their rates agree, there
 *   is no way back: a step that is discarded or fails then leaves parameters that are neither the
 *   old nor the new ones, and the model has failed on all ranks. Before, nothing has changed.
 * - Not with what must know all gradients first: TRIREME_MODEL_FLAG_UNEVEN, TRIREME_UNUSED_SKIP, and of
 *   the optimizer max_norm, group_max_norms, loss_scale, rules that look at whole parameters (LAMB,
 *   LARS, ADAFACTOR, MUON) and ONE_SWEEP; nor with NO_SYNC, as there is no place for sums. No
 *   gradient has a view.
 *
 * Parameters in a file (ZeRO-Infinity: Rajbhandari et al. 2021, arXiv 2104.07857): with offload_path
 * what a rank holds of what it gathers lies in a file. A gather reads this rank's part to where the
 * unit will be whole, from where the peers read it; units that followed the last time are read ahead,
 * within offload_buffer_bytes. trireme_optimizer_step() reads, updates and writes block by block;
 * hybrid_shard once more to give what was updated to the other copies. A file
 * has whole pages of 4,096 bytes and all its room from trireme_model_seal() on. Memory: the buffer is
 * working memory, planned_parameters is what stays, and memory_limit_bytes counts no file. Also in a
 * world of 1, where units must be gathered then, too. Every rule, flag and feature works; ranges of
 * parameters have no address: trireme_optimizer_read_range(). With state in a file (offload_path of
 * the optimizer) each has a file of its own. When a disk fails (see docs/offload.md), on all ranks:
 * - seal() fails with TRIREME_ERROR_SYSTEM if no file can be made; the communicator lives on.
 * - A block that cannot be written stays in memory from then on and nothing is lost; failed_writes
 *   of trireme_model_get_offload_info() tells. Without memory for it the model fails with
 *   TRIREME_ERROR_OUT_OF_MEMORY.
 * - One that cannot be read, twice, fails the model with TRIREME_ERROR_SYSTEM, and one that is not
 *   what was written with TRIREME_ERROR_CORRUPT; a disk that does not answer with
 *   TRIREME_ERROR_TIMEOUT. trireme_optimizer_read_range(), write_range() and save() fail alone.
 *
 * Ownership: a model keeps its communicator alive, an optimizer keeps its model alive; destroy in
 * any order. Thread safety: one call at a time per model, except where a function says otherwise.
 *
 * Statuses that every collective function here shares, so that each lists only its own:
 * TRIREME_ERROR_INVALID_HANDLE, TRIREME_ERROR_TIMEOUT, TRIREME_ERROR_MISMATCH,
 * TRIREME_ERROR_PEER_LOST, TRIREME_ERROR_ABORTED, TRIREME_ERROR_OUT_OF_MEMORY and
 * TRIREME_ERROR_SYSTEM with the causes that collectives.h gives.
 */
#ifndef TRIREME_MODEL_H
#define TRIREME_MODEL_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/model_options.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** Flags of a backward pass. */
enum {
    /**
     * This rank has no data for it and hands in nothing: the pass begins and ends empty. With
     * TRIREME_MODEL_FLAG_UNEVEN only; may differ between ranks.
     */
    TRIREME_BACKWARD_FLAG_ABSENT = 2,
    /**
     * Not the last pass of a step: the next one adds to it. data_parallel and zero1 keep the sum on
     * this rank and reduce it with the last pass. zero2 and zero3 have no room for that: they
     * reduce every pass and add to the owned shard, so the bits may differ from those of the other
     * two.
     */
    TRIREME_BACKWARD_FLAG_NO_SYNC = 1
};

/**
 * Names a strategy, for example "zero3".
 *
 * Does not block. Cannot fail.
 *
 * @param strategy  Any value.
 * @return A string that lives as long as the library; "unknown" for a value that is no
 *                  strategy.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API const char *TRIREME_CALL trireme_strategy_name(trireme_strategy strategy);

/**
 * Finds a strategy by name. Synonyms: ddp, no_shard (data_parallel); shard_grad_op (zero2);
 * fsdp, full_shard (zero3); hsdp (hybrid_shard). Neither case nor "_" and "-" matter: NoShard,
 * ShardGradOp, FullShard and HybridShard are understood.
 *
 * Does not block. Keeps no pointer.
 *
 * @param text  The name.
 * @param[out] out_strategy  Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or no strategy has this name.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_strategy_parse(const char *text, trireme_strategy *out_strategy);

/**
 * Begins the description of a model.
 *
 * Local: does not wait for the peers. Keeps no pointer into `options`.
 *
 * The ranks know a model by its number: the models of a communicator are counted from 1 in the order
 * of these calls, which must be the same on all ranks. So make the models of a communicator on one
 * thread, or in one order some other way; each may then be sealed, trained and destroyed by any
 * thread, in any order with other models. Ranks that create them in different orders get MISMATCH from
 * trireme_model_seal() where anything registered differs: models that are alike in all else are told
 * apart by the names of their parameters, such as "critic.weights" and "actor.weights".
 *
 * @param communicator  The ranks that train it. The model takes part in its operations through
 *                  channels of its own, so the communicator stays free for the caller. It has
 *                  channels for 64 models at a time, and those of a model that all ranks have
 *                  destroyed go to another one.
 * @param options  How to spread it. Required.
 * @param[out] out_model  The new model; free it with trireme_model_destroy(). Not written on
 * failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL or a field is out of range.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library, or asks for
 * TRIREME_SHARE_ALWAYS of ranks that share no memory, or for offload_path with a strategy whose
 * ranks hold whole parameters, or with TRIREME_SHARE_ALWAYS.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_create(trireme_communicator *communicator, const trireme_model_options *options,
                     trireme_model **out_model);

/**
 * Gives the handle back, and the memory once no optimizer needs it.
 *
 * Never waits for a peer.
 *
 * @param model  A model; NULL and a stale handle are ignored.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALL trireme_model_destroy(trireme_model *model);

/**
 * Adds a parameter.
 *
 * Local: does not wait for the peers. Keeps no pointer.
 *
 * @param model  The model.
 * @param options  Name, type, shape and unit. Required.
 * @param[out] out_parameter  Its number, from 0 in the order added; may be NULL. Not written on
 * failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, a name is empty, too long or taken,
 * the shape overflows, the unit was left before or has another dtype, or tied_to names no matching
 * parameter.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is sealed.
 * @retval TRIREME_ERROR_UNSUPPORTED  The dtype, of a trained parameter f64 with reduce_dtype, or a field
 * newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_add_parameter(trireme_model *model, const trireme_parameter_options *options,
                            uint64_t *out_parameter);

/**
 * Ends the description: checks that all ranks registered the same, lays out the shards and
 * allocates what the plan says. Parameters are 0 afterwards.
 *
 * Collective: blocks until all ranks have called it or the deadline passes.
 *
 * @param model  The model.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_STATE  The model is sealed, or has no parameter.
 * @retval TRIREME_ERROR_MISMATCH  Ranks registered different parameters or options; the message
 * names the first difference and both sides. The communicator lives on; this model can only be
 * destroyed.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out, or a rank would hold more than
 * memory_limit_bytes. Then all ranks have the same message, which tells which rank would hold how
 * much of what, what each other strategy would need with the same options, the least that works, and
 * how many ranks would be enough. Optimizer state counts if planned_rule is set. Nothing was allocated; the communicator lives on, this model can only be destroyed.
 * @retval TRIREME_ERROR_SYSTEM  Also: on this rank or another no file can be made in offload_path, or
 * it has no room; the message names the directory. The communicator lives on, this model can only
 * be destroyed.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_seal(trireme_model *model);

/**
 * Tells what a sealed model looks like.
 *
 * Does not block.
 *
 * @param model  The model.
 * @param[out] out_info  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_info is NULL or its struct_size is too small.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_get_info(const trireme_model *model, trireme_model_info *out_info);

/**
 * Tells what a unit looks like on this rank.
 *
 * Does not block.
 *
 * @param model  The model.
 * @param unit  Number of the unit, from 0 in the order added.
 * @param[out] out_info  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_info is NULL, its struct_size is too small, or there
 * is no such unit.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_get_unit_info(const trireme_model *model, uint64_t unit, trireme_unit_info *out_info);

/**
 * Tells how many bytes this rank holds, by kind, planned and allocated.
 *
 * Does not block.
 *
 * @param model  The model.
 * @param[out] out_memory  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_memory is NULL or its struct_size is too small.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_get_memory(const trireme_model *model, trireme_model_memory *out_memory);

/**
 * Tells how the parameters of a model with offload_path lie on this rank, and what the disk has done
 * for them.
 *
 * Does not block.
 *
 * @param model  The model.
 * @param[out] out_info  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_info is NULL or its struct_size is too small.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, or was created without offload_path.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_get_offload_info(const trireme_model *model, trireme_offload_info *out_info);

/**
 * Tells what the model's calls have done on this rank.
 *
 * Does not block.
 *
 * @param model  The model.
 * @param[out] out_statistics  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_statistics is NULL or its struct_size is too small.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_get_statistics(const trireme_model *model, trireme_model_statistics *out_statistics);

/**
 * Compares what several ranks hold copies of, bit by bit (by a 64-bit hash of each parameter). Of
 * parameters: whole units on all ranks, and with hybrid_shard the shards of the replicas. zero3
 * holds each element once, so only persistent units are compared. Of an optimizer: its state with
 * data_parallel, masters included, and with every strategy what it counts (trireme_optimizer_counters).
 *
 * Collective: blocks until it is done or the deadline passes.
 *
 * @param model  The model.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, a step is under way, or a unit is
 * gathered (zero3, hybrid_shard).
 * @retval TRIREME_ERROR_MISMATCH  Copies differ, on all ranks: the message names the first
 * parameter and the ranks that do not hold what most hold, or the first number that is counted, with both
 * sides. The communicator and the model live on; trireme_model_broadcast_parameters() makes the parameters the
 * same again, trireme_optimizer_restore() all of it.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_check_replicas(trireme_model *model);

/**
 * Gives every rank the parameters of one rank, such as the initial values.
 *
 * Collective: blocks until it is done or the deadline passes. Keeps no pointer.
 *
 * @param model  The model.
 * @param values  All parameters in the order added, aliases left out; read on the root only,
 *                  NULL elsewhere is fine.
 * @param count  Elements; must be the model's. The same on all ranks.
 * @param dtype  Type of the elements; must be the type of every unit. Or TRIREME_DTYPE_BYTES, for a model
 *                  of any types: then count is the bytes of all, each in its own type, without gaps.
 * @param root  Rank whose values are given.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  values is NULL on the root, or count, dtype or root is
 * wrong.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, a step is under way, or a unit is
 * gathered (zero3).
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_broadcast_parameters(trireme_model *model, const void *values, uint64_t count,
                             trireme_dtype dtype, int32_t root);

/**
 * Gives every rank all parameters, whole.
 *
 * Collective: blocks until it is done or the deadline passes. Keeps no pointer.
 *
 * @param model  The model.
 * @param[out] values  All parameters in the order added, aliases left out.
 * @param count  Elements; must be the model's.
 * @param dtype  As for trireme_model_broadcast_parameters().
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  values is NULL, or count or dtype is wrong.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, or has begun to update in backward.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_gather_parameters(trireme_model *model, void *values, uint64_t count,
                             trireme_dtype dtype);

/**
 * Makes a unit's parameters whole on this rank, and begins to gather the next unit in the order
 * of the last pass, as long as that goes on up or down through the units.
 *
 * Collective for zero3 and hybrid_shard: blocks until it is done or the deadline passes; all ranks
 * gather the same units in the same order, also a rank that has no leaf for this micro-batch. The
 * other strategies hold whole parameters and return at once, and so does a model that shares them.
 * Gathering a unit that is gathered counts: it is released by as many releases.
 *
 * @param model  The model.
 * @param unit  Number of the unit.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  There is no such unit.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_gather_unit(trireme_model *model, uint64_t unit);

/**
 * Lets go of a unit's whole parameters.
 *
 * Local: does not wait for the peers.
 *
 * @param model  The model.
 * @param unit  Number of the unit.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  There is no such unit.
 * @retval TRIREME_ERROR_INVALID_STATE  The unit is not gathered.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_release_unit(trireme_model *model, uint64_t unit);

/**
 * Gives the address of a parameter's elements, inside the library's own memory.
 *
 * Does not block. The address is good until the unit is released (zero3) or the model is
 * destroyed (the other strategies). Writing to it between steps changes this rank's copy only, and
 * must not be done where ranks share the parameters.
 *
 * @param model  The model.
 * @param parameter  Number of the parameter.
 * @param[out] out_data  First element. Not written on failure.
 * @param[out] out_count  Elements; may be NULL. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_data is NULL, or there is no such parameter.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, or the unit is not gathered
 * (zero3).
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_get_parameter_data(const trireme_model *model, uint64_t parameter, void **out_data,
                             uint64_t *out_count);

/**
 * Tells which leaf of the global batch this rank computes as its micro-batch number
 * `micro_batch`.
 *
 * Does not block.
 *
 * @param model  The model.
 * @param micro_batch  0 to micro_batches - 1.
 * @param[out] out_leaf  Number of the leaf; UINT32_MAX if this rank has none there, and then makes
 * no backward pass for it. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_leaf is NULL, or micro_batch is too large.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed or not reproducible.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_get_leaf(const trireme_model *model, uint32_t micro_batch, uint32_t *out_leaf);

/**
 * Begins the backward pass of one micro-batch.
 *
 * Local: does not wait for the peers.
 *
 * @param model  The model.
 * @param flags  0 or a sum of TRIREME_BACKWARD_FLAG_*. NO_SYNC must be the same on all ranks.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  An unknown flag.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, a backward pass is under way, the
 * last pass was not NO_SYNC and no step came after it, or a reproducible model has had all its
 * leaves of this step. Or it has TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD and no optimizer.
 * @retval TRIREME_ERROR_UNSUPPORTED  NO_SYNC on a reproducible model: every leaf is reduced on its
 * own, so there is nothing to hold back; or on one with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD. Or ABSENT on
 * a model without TRIREME_MODEL_FLAG_UNEVEN.
 * @retval TRIREME_ERROR_CALLBACK  With TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD: the caller's schedule, which
 * is asked here, has no rate. The pass has not begun.
 * @return With TRIREME_MODEL_FLAG_UNEVEN any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_begin_backward(trireme_model *model, uint32_t flags);

/**
 * Gives the memory in which the gradient of one parameter is exchanged, so that backward writes it
 * there and trireme_model_gradient_ready(), called with this address, has nothing to copy.
 *
 * A view is there where the gradient is one stretch of memory that the model keeps: always with
 * data_parallel; with zero1 if its group is alone in its bucket (bucket_bytes 1 makes that so for
 * all), if one rank owns all of it, or in a world of one rank. Never with zero2, zero3 and
 * hybrid_shard, which keep shards only, nor with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD. A parameter with aliases has one for each name in its turn,
 * when those added before it are handed in; one with 0 elements has none. Without a view the call
 * succeeds and gives NULL, and the caller uses memory of its own.
 *
 * What lies there: with *out_adds 0 something undefined, which the caller overwrites whole; with 1
 * the sum of what was handed in before (passes with NO_SYNC, names of the same parameter), to which
 * the caller adds. The address is the same in every pass, but is the caller's only from this call
 * until the gradient is handed in, so the call is made in each pass: handing in an address that was
 * not given in this pass is an error. A caller that has changed nothing there may hand in other
 * memory, or nothing.
 *
 * Local: does not wait for the peers, except for a later leaf of a reproducible step until its
 * bucket is reduced for the leaf before.
 *
 * @param model  The model.
 * @param parameter  Number of the parameter.
 * @param[out] out_data  First element; NULL if there is no view. Not written on failure.
 * @param[out] out_count  Elements of the parameter; may be NULL. Not written on failure.
 * @param[out] out_dtype  Type of the elements; may be NULL. Not written on failure.
 * @param[out] out_adds  1: add to what lies there. 0: overwrite it. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_data or out_adds is NULL, there is no such parameter,
 * or it is frozen.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, no backward pass is under way, it
 * is ABSENT, or the gradient was handed in before.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_get_gradient_data(trireme_model *model, uint64_t parameter, void **out_data,
                            uint64_t *out_count, trireme_dtype *out_dtype, int32_t *out_adds);

/**
 * Hands in the gradient of one parameter. Full buckets are reduced while backward goes on.
 *
 * Local: copies the elements and does not wait for the peers, except for zero2 and zero3 (and all
 * strategies with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD) when two buckets are in flight, and for a later leaf of a reproducible step until its bucket is reduced
 * for the leaf before. A parameter with aliases is handed in once for each name.
 *
 * @param model  The model.
 * @param parameter  Number of the parameter.
 * @param gradient  Its elements, or the address that trireme_model_get_gradient_data() gave for it in
 * this pass: then nothing is copied, and what lies there must not change until that is given again.
 * @param count  Elements; must be the parameter's.
 * @param dtype  Type of the elements; must be the parameter's, or f32 where that is f16 or bf16.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  gradient is NULL or overlaps the gradients of the model
 * elsewhere than in its view, there is no such parameter, it is frozen, or count or dtype is wrong.
 * @retval TRIREME_ERROR_INVALID_STATE  No backward pass is under way, it is ABSENT, the gradient
 * was handed in before, or gradient is its view but was not asked for in this pass.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_gradient_ready(trireme_model *model, uint64_t parameter, const void *gradient,
                             uint64_t count, trireme_dtype dtype);

/**
 * Ends the backward pass of one micro-batch.
 *
 * Local: the reductions that were started go on.
 *
 * @param model  The model.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_STATE  No backward pass is under way, or gradients are missing and
 * the model was created with TRIREME_UNUSED_ERROR; the message names the first of them and tells
 * how many. The pass goes on: hand them in, or discard the step.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_end_backward(trireme_model *model);

/**
 * Hands in the gradients of all parameters as one vector: a whole backward pass in one call.
 *
 * Local, as trireme_model_gradient_ready(). Keeps no pointer. The gradient of a parameter with
 * aliases is the sum for all its names.
 *
 * @param model  The model.
 * @param gradients  One element for each element of the flat vector; those of frozen parameters
 *                  are ignored. May be NULL with TRIREME_BACKWARD_FLAG_ABSENT.
 * @param count  Elements; must be the model's.
 * @param dtype  Type of the elements; must be the type of every unit. Or f32, if every unit is f32,
 *                  f16 or bf16.
 * @param flags  As trireme_model_begin_backward().
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  gradients is NULL or overlaps the gradients of the model,
 * or count, dtype or flags is wrong.
 * @retval TRIREME_ERROR_INVALID_STATE  As trireme_model_begin_backward().
 * @retval TRIREME_ERROR_UNSUPPORTED  As trireme_model_begin_backward().
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_accumulate_flat(trireme_model *model, const void *gradients, uint64_t count,
                              trireme_dtype dtype, uint32_t flags);

/**
 * Forgets the gradients of this step, so that the step begins anew.
 *
 * Collective: blocks until reductions under way are done or the deadline passes. All ranks must
 * call it in or after the same pass of the step. A pass that is under way ends: so a program whose
 * backward has failed half-way on some ranks goes on, if all ranks discard the step.
 *
 * @param model  The model.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed. Or, on all ranks: all of them had handed
 * in the first bucket of a model with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD, which has failed with this.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_model_discard_gradients(trireme_model *model);

TRIREME_END_C

#endif
