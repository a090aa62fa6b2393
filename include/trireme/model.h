/**
 * @file model.h
 * @brief A model whose parameters, gradients and optimizer state are spread over ranks.
 *
 * The caller registers named parameters in units, usually one unit a layer. It seals the model and
 * then trains in steps. A step is one or more micro-batches, followed by trireme_optimizer_step().
 * A micro-batch is the samples of one forward and backward. A pass is its backward, which hands in
 * one gradient for every trainable parameter. All ranks make the same calls in one order:
 * - Flat: trireme_model_accumulate_flat() takes one vector with all gradients.
 *   trireme_model_gather_parameters() gives one vector with all parameters.
 * - Hooks: trireme_model_gather_unit() and trireme_model_release_unit() enclose the caller's
 *   compute. The caller calls trireme_model_gradient_ready() as backward produces gradients. The
 *   reduction of full buckets overlaps with the rest of backward. The next unit is prefetched.
 *
 * Words in these headers:
 * - Unit: parameters that are gathered for use together. Unit group: neighbouring units that are
 *   gathered as one. A parameter group of an optimizer is something else.
 * - Bucket: gradients that are reduced together. In flight: under way between ranks.
 * - Flat vector: all parameters, or all gradients, in the order added and without aliases.
 * - Alias: another name of a parameter, by tied_to.
 * - Leaf: one of `leaves` micro-batches of a step over all ranks, see "Reproducible".
 * - Persistent unit: a unit that stays whole on every rank (units.persistent_bytes).
 * - Owner: the rank that updates an element. With data_parallel every rank updates all of them.
 *
 * Strategies: each of N ranks holds these elements per parameter (ZeRO: Rajbhandari et al. 2020,
 * arXiv 1910.02054):
 * - data_parallel: parameters 1, gradients 1, optimizer state 1.
 * - zero1: parameters 1, gradients 1, optimizer state 1/N.
 * - zero2: parameters 1, gradients 1/N and buckets in flight, optimizer state 1/N.
 * - zero3: parameters 1/N and units in flight, gradients 1/N and buckets in flight, optimizer state
 *   1/N.
 * - hybrid_shard: parameters 1/S and units in flight, gradients 1/N and buckets in flight,
 *   optimizer state 1/N.
 *
 * hybrid_shard: S = shards.ranks neighbouring ranks, such as those of one host, keep one copy of
 * the parameters between them. With shards.stride these ranks are that far apart. Gathers stay
 * among them. The N/S such groups are replicas. All N ranks spread gradients and state between
 * them. Each replica updates its part of a shard and gives it to the others. That moves as many
 * bytes as an all-reduce of the shard's gradients, and takes S/N of their memory. With 16-bit
 * parameters it moves fewer bytes, as replicas give these back in 2 bytes.
 *
 * Unit groups: units are gathered in groups. Neighbouring units of one type are joined until they
 * have units.minimum_bytes, so that a model of many tiny layers needs few gathers. A unit group is
 * one flat vector of n elements. Ranks own parts of it (all divisions here are of integers):
 * - Rank r owns n/N elements, and each of the first n%N ranks one more.
 * - hybrid_shard cuts the same way, twice: into S parts, and each part into N/S pieces.
 *   Rank r keeps part r mod S. It owns piece r / S of that part.
 * - hybrid_shard with shards.stride t: rank r keeps part r / t mod S. It owns piece
 *   r / (S t) * t + r mod t of that part.
 * - TRIREME_MODEL_FLAG_WHOLE_ROWS moves these cuts to where a row of a parameter ends.
 *
 * Memory: gradients and optimizer state exist for trainable parameters only. The memory report
 * counts these as working memory:
 * - Two of the largest bucket; all buckets, if there are more ranks than leaves.
 * - Unit groups in flight, up to the largest one plus units.prefetch_bytes.
 * - The partial sums of reproducible training.
 * - Contributions rounded to reduce_dtype.
 * - Gradients of aliases until their turn.
 * - About a kilobyte in which ranks agree.
 *
 * Two usage patterns need more memory. It is planned and allocated when it happens:
 * - The caller hands in gradients in another order than buckets are reduced in.
 * - The caller keeps several units gathered at the same time.
 *
 * Two kinds of rank need more memory in the same way:
 * - With zero2, zero3 and hybrid_shard, a rank whose second or later pass of a step is ABSENT. In
 *   reproducible training that is any pass. The buckets of this rank wait for no peer.
 * - With TRIREME_UNUSED_ZERO and TRIREME_UNUSED_SKIP, zero3 and hybrid_shard: a rank that has
 *   gradients which others lack.
 *
 * Order of buckets: the first step reduces buckets in the reverse order of registration. Later
 * steps take the order in which rank 0 had their gradients. TRIREME_MODEL_FLAG_FIXED_ORDER keeps
 * the first order. No element moves for a new order, and no bit changes.
 *
 * Parameters of 16 bits: f16 and bf16 parameters are stored, gathered, saved and handed out in 2
 * bytes an element. Gradients, their sums and optimizer state are f32, 4 bytes an element. The
 * caller hands in a gradient as its parameter's type or as f32. It becomes f32 in the bucket. Sums
 * never round to 16 bits. So reproducible training stays reproducible. A change below half the
 * distance to the next number is lost. Master weights or stochastic rounding keep such changes: see
 * optimizer.h. The largest f16 is 65,504; a number from 65,520 on becomes inf.
 *
 * One copy a host: if all ranks of the communicator share memory, they need no copies of what they
 * gather, and map the same pages. Each rank counts n/N of these pages as its own. The owner of an
 * element writes it in trireme_optimizer_step(), during which no rank may read. A gather then only
 * looks at a table: 0 bytes, no wait, no working memory. The caller must not write to parameters of
 * such a model. trireme_model_get_info() tells whether ranks share.
 * - zero3 and hybrid_shard share by themselves.
 * - zero1 and zero2 share on demand (shards.share).
 * - data_parallel cannot share, because every rank updates everything. zero1 with
 *   TRIREME_SHARE_ALWAYS is the same training in less memory.
 *
 * Reproducible: with `leaves` = L > 0 the global batch is L leaves, whatever the world size N. Rank
 * l mod N computes leaf l as its micro-batch number l / N. Each element's gradient is the sum over
 * one binary tree. Leaves 2k and 2k+1 are added, then pairs of those, and so on. A pair without a
 * partner moves up alone. The trained parameters are then the same bits for every N, strategy,
 * bucket size and order of gradients.
 *
 * Uneven inputs: with TRIREME_MODEL_FLAG_UNEVEN a rank may hand in nothing for a micro-batch
 * (TRIREME_BACKWARD_FLAG_ABSENT). A rank that has run out of data follows the others with
 * trireme_optimizer_join(). An average then divides by the ranks (or leaves) that contributed to
 * the step. All ranks agree on that number at the end of the step. A rank contributes if any of its
 * passes of the step was not absent.
 *
 * Update in backward (LOMO: Lv et al. 2023, arXiv 2306.09782): with
 * TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD the owner updates a bucket's elements as soon as they are
 * reduced. This happens in the call that hands in a later gradient or ends the pass, at the latest
 * in trireme_optimizer_step(). Then the bucket's memory is free again. So gradients never exist as
 * a whole. In the list of strategies above they count 0 for every strategy, and two of the largest
 * bucket are in flight. The bits are those of a training without the flag. The memory depends on
 * `leaves`:
 * - As many leaves as ranks: each of the two buckets has its own partial sums.
 * - More leaves: all partial sums exist until the last pass. With zero2 and zero3 that is as much
 *   memory as without the flag. data_parallel may have all buckets in flight, beyond the plan, on
 *   ranks without a leaf in the last round.
 * - Fewer leaves: all buckets may be in flight. The plan counts them.
 *
 * The caller sees the update in backward:
 * - A parameter may change from the moment its gradient is handed in until the step ends. That
 *   moment lies in the last pass in which this rank has one. With tied parameters it is that of the
 *   last name. Where ranks share one copy, another rank may change the parameter. So hand in a
 *   gradient after the last use of its parameter. Frozen parameters never change.
 * - The update of a unit that this rank keeps gathered waits. Its gradients wait in memory beyond
 *   the plan.
 * - trireme_model_gather_parameters() is refused while a step is under way.
 * - The caller creates the optimizer before the first pass of a step. The rates of the step are
 *   those of the moment in which that pass begins. Until the step ends, a call that sets a rate is
 *   refused. A rank without a leaf cannot know this; if it sets a rate, the step is a MISMATCH.
 * - There is no way back once all ranks have handed in the first bucket of the last pass, and their
 *   rates agree. If a step is discarded or fails later, parameters are neither the old nor the new
 *   ones, and the model has failed on all ranks. Before that moment nothing has changed.
 * - No gradient has a view.
 * - It does not go with NO_SYNC, as there is no place for sums.
 * - It does not go with anything that must know all gradients first. In the model these are
 *   TRIREME_MODEL_FLAG_UNEVEN and TRIREME_UNUSED_SKIP. In the optimizer these are max_norm of
 *   all or of a group, loss_scale, ONE_SWEEP and rules that look at whole parameters (LAMB, LARS,
 *   ADAFACTOR, MUON).
 *
 * Parameters in a file (ZeRO-Infinity: Rajbhandari et al. 2021, arXiv 2104.07857): with
 * offload, each rank's part of the parameters lies in a file, except for units that stay whole.
 * Each rank makes its own file in the directory. The file has no name, so nothing is left of it
 * when the process ends. The bits are those of parameters in memory.
 * - A gather reads this rank's part to where the unit will be whole. The peers read it there. Units
 *   that followed the last time are read ahead, within buffer_bytes of offload.
 * - trireme_optimizer_step() reads, updates and writes block by block. hybrid_shard goes through
 *   the blocks once more, to give the other copies what was updated. The caller's rule
 *   (TRIREME_RULE_USER) gets pieces that end where a block of the file does.
 * - A file has whole pages of 4,096 bytes. trireme_model_seal() reserves all its room.
 * - The buffer is working memory. planned_parameters is what stays in memory. memory_limit_bytes
 *   counts no file.
 * - In a world of 1 parameters lie in a file, too. The caller must then gather units there, too.
 * - Every rule, flag and feature works. Ranges of parameters have no address:
 *   trireme_optimizer_read_range() copies them.
 * - With optimizer state in a file, too (offload of the optimizer), each has its own file.
 *
 * When a disk fails, this happens on all ranks (see docs/offload.md):
 * - If no file can be made, trireme_model_seal() fails with TRIREME_ERROR_SYSTEM. The communicator
 *   lives on.
 * - A block that cannot be written stays in memory from then on, and nothing is lost. failed_writes
 *   of trireme_model_get_offload_info() counts it. Without memory for it the model fails with
 *   TRIREME_ERROR_OUT_OF_MEMORY.
 * - A block that cannot be read in two attempts fails the model with TRIREME_ERROR_SYSTEM.
 * - A block that is not what was written fails the model with TRIREME_ERROR_CORRUPT.
 * - A disk that does not answer fails the model with TRIREME_ERROR_TIMEOUT.
 * - trireme_optimizer_read_range(), trireme_optimizer_write_range() and trireme_optimizer_save()
 *   fail alone.
 *
 * On a device: where the communicator works on a CUDA device, parameters and the state of the
 * optimizer are memory of that device. See model_device.h.
 *
 * Ownership: the caller may destroy handles in any order. A model whose communicator is destroyed
 * trains no more: its calls answer TRIREME_ERROR_INVALID_STATE. So destroy optimizers first, then
 * models, then their communicator. Thread safety: one call at a time per model, except where a
 * function says otherwise.
 *
 * All collective functions here may also return the statuses at the top of collectives.h, for the
 * causes that are told there. Each function lists only its own.
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
     * This rank has no data for the pass and hands in nothing: the pass begins and ends empty. Only
     * with TRIREME_MODEL_FLAG_UNEVEN. The flag may differ between ranks.
     */
    TRIREME_BACKWARD_FLAG_ABSENT = 2,
    /**
     * This is not the last pass of a step: the next one adds to it. data_parallel and zero1 keep
     * the sum on this rank and reduce it with the last pass. zero2, zero3 and hybrid_shard have no
     * room for that. They reduce every pass and add to the owned shard. So the bits may differ from
     * those of data_parallel and zero1.
     */
    TRIREME_BACKWARD_FLAG_NO_SYNC = 1
};

/**
 * Names a strategy, for example "zero3".
 *
 * Does not block. Cannot fail.
 *
 * @param strategy  Any value.
 * @return A string that lives as long as the library; "unknown" for a value that is no strategy.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API const char *TRIREME_CALLCONV trireme_strategy_name(trireme_strategy strategy);

/**
 * Finds a strategy by name. Synonyms: ddp, no_shard (data_parallel); shard_grad_op (zero2);
 * fsdp, full_shard (zero3); hsdp (hybrid_shard). The call ignores case, "_" and "-", so it
 * understands NoShard, ShardGradOp, FullShard and HybridShard, too.
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_strategy_parse(const char *text, trireme_strategy *out_strategy);

/**
 * Begins the description of a model.
 *
 * Local: does not wait for the peers. Of `options` it keeps a bucket hook only.
 *
 * The ranks know a model by its number. Each rank counts the models of a communicator from 1, in
 * the order of these calls. The order must be the same on all ranks. So create the models of a
 * communicator on one thread, or keep one order some other way. Any thread may then seal, train and
 * destroy each of them, in any order with other models.
 *
 * Ranks that create models in different orders get MISMATCH from trireme_model_seal(), where
 * anything registered differs. Give the parameters of similar models different names, such as
 * "critic.weights" and "actor.weights". Names tell apart models that are alike in all else.
 *
 * @param communicator  The ranks that train the model. The model has channels of its own there, so
 *                  the communicator stays free for the caller. A communicator has channels for 64
 *                  models at a time. Once all ranks have destroyed a model, its channels go to
 *                  another one.
 * @param options  How to spread the model. Required.
 * @param[out] out_model  The new model; free it with trireme_model_destroy(). Not written on
 * failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL or a field is out of range. Or an
 * option is not for this strategy: TRIREME_MODEL_FLAG_KEEP_GATHERED and units.reshard_ranks are for
 * zero3 and hybrid_shard. shards.ranks and shards.stride are for hybrid_shard alone.
 * TRIREME_SHARE_ALWAYS is not for data_parallel. Or an option has no use without another one:
 * shards.stride above 1 without shards.ranks, or planned_rule without memory_limit_bytes. The
 * message names the option.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library. Or it asks for
 * TRIREME_SHARE_ALWAYS of ranks that share no memory; where they must meet first,
 * trireme_model_seal() fails. Or it asks for offload with a strategy whose ranks hold whole
 * parameters, or with TRIREME_SHARE_ALWAYS. Or it asks for
 * TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD with TRIREME_MODEL_FLAG_UNEVEN or TRIREME_UNUSED_SKIP. Or
 * it asks for what does not work on the communicator's device yet.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_model_create(trireme_communicator *communicator, const trireme_model_options *options,
                     trireme_model **out_model);

/**
 * Destroys the handle of a model. The library frees the memory once no optimizer needs it.
 *
 * Never waits for a peer. On a device the end of the memory waits for the caller's stream, at most
 * for the model's timeout: the default stream, or that of trireme_model_set_stream(). The library
 * keeps memory that the device may still use.
 *
 * @param model  A model; NULL and a stale handle are ignored.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_model_destroy(trireme_model *model);

/**
 * Adds a parameter.
 *
 * Local: does not wait for the peers. Keeps no pointer.
 *
 * @param model  The model.
 * @param options  Name, type, shape and unit. Required.
 * @param[out] out_parameter  The parameter's number, from 0 in the order added; may be NULL. Not
 * written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL. A name is empty, too long, no UTF-8
 * or taken. The shape overflows. The unit has another dtype, or parameters of another unit came
 * since. Or tied_to names no matching parameter. Or placements name no axis of the model's mesh,
 * "data" or "shard", or an axis twice, or contradict replicas. Or the stretches of a placement lie
 * beyond its extent, overlap, or do not add up to the dimension.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is sealed.
 * @retval TRIREME_ERROR_UNSUPPORTED  A parameter cannot have this dtype. Or the parameter is
 * trained, has f64, and the model has reduce_dtype. Or it is shared along two axes, or two axes cut
 * one dimension. Or it is shared, and the model has TRIREME_MODEL_FLAG_UNEVEN or
 * UPDATE_IN_BACKWARD. Or `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_model_add_parameter(
    trireme_model *model, const trireme_parameter_options *options, uint64_t *out_parameter);

/**
 * Ends the description: checks that all ranks registered the same, lays out the shards and
 * allocates memory as planned. Parameters are 0 afterwards.
 *
 * Collective: blocks until all ranks have called it or the deadline passes. For a model of
 * trireme_mesh_create_model() these are all ranks of the mesh. If a model fails, all fail. A model
 * may have no parameters, as on a rank of a pipeline whose stages have none.
 *
 * @param model  The model.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_STATE  The model is sealed.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  hybrid_shard with shards.ranks 0: hosts have different
 * numbers of ranks, or ranks that are no neighbours. Or units.reshard_ranks does not divide the
 * ranks of a host. Or the ranks' parts of a split parameter do not make the whole: the message
 * names an index. This model can only be destroyed.
 * @retval TRIREME_ERROR_MISMATCH  Ranks registered different parameters or options; the message
 * names the first difference and both sides. Or ranks along an axis of the mesh registered
 * different parameters with placements there; the message names the axis, too. The communicator
 * lives on; this model can only be destroyed.
 * @retval TRIREME_ERROR_UNSUPPORTED  TRIREME_SHARE_ALWAYS, and the ranks that have met share no
 * memory.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out, or a rank would hold more than
 * memory_limit_bytes. Optimizer state counts if planned_rule is set. Above the limit all ranks have
 * the same message, and nothing was allocated. The message names the rank and its bytes by kind. It
 * tells the need of each other strategy with the same options, the least that works, and how many
 * ranks would be enough. The communicator lives on; this model can only be destroyed.
 * @retval TRIREME_ERROR_SYSTEM  Also: on this rank or another no file can be made in offload.path,
 * or it has no room. The message names the directory. The communicator lives on; this model can
 * only be destroyed.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_model_seal(trireme_model *model);

/**
 * Describes a sealed model.
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_model_get_info(const trireme_model *model, trireme_model_info *out_info);

/**
 * Describes a unit on this rank.
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_model_get_memory(const trireme_model *model, trireme_model_memory *out_memory);

/**
 * Tells how the parameters of a model with offload lie on this rank, and counts the transfers
 * of its disk.
 *
 * Does not block.
 *
 * @param model  The model.
 * @param[out] out_info  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_info is NULL or its struct_size is too small.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, or was created without
 * offload.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_model_get_offload_info(const trireme_model *model, trireme_offload_info *out_info);

/**
 * Counts the work of the model's calls on this rank.
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_model_get_statistics(const trireme_model *model, trireme_model_statistics *out_statistics);

/**
 * Compares the copies that several ranks hold, bit by bit (by a 64-bit hash of each parameter):
 * - Whole units on all ranks.
 * - With hybrid_shard the shards of the replicas.
 * - With zero3 persistent units only, as it holds every other element once.
 * - The state of an optimizer with data_parallel, masters included.
 * - The counters of an optimizer (trireme_optimizer_counters) with every strategy.
 * - Parameters that are whole on an axis of the model's mesh, along that axis.
 *
 * Collective: blocks until it is done or the deadline passes. Where parameters are whole on an axis
 * of the mesh, all ranks along it call this. If a model fails, the others say so.
 *
 * @param model  The model.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, a step is under way, or a unit is
 * gathered (zero3, hybrid_shard).
 * @retval TRIREME_ERROR_MISMATCH  Copies differ; all ranks that hold one get this. The message
 * names the first parameter and the ranks that differ from most. Along an axis of a mesh, ranks are
 * coordinates. Or it names the first counter that differs, with both sides. The communicator and
 * the model live on. trireme_model_broadcast_parameters() makes the parameters the same again,
 * trireme_optimizer_restore() everything.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_model_check_replicas(trireme_model *model);

/**
 * Gives every rank the parameters of one rank, such as the initial values.
 *
 * Collective: blocks until it is done or the deadline passes. Keeps no pointer.
 *
 * @param model  The model.
 * @param values  All parameters in the order added, aliases left out. Read on the root only; may be
 *                  NULL elsewhere.
 * @param count  Elements; must be the model's. The same on all ranks.
 * @param dtype  Type of the elements; must be the type of every unit. Or TRIREME_DTYPE_BYTES, for a
 *                  model of any types. Then count is the bytes of all parameters, each in its own
 *                  type, without gaps.
 * @param root  Rank whose values are given.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  values is NULL on the root, or count, dtype or root is
 * wrong.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, a step is under way, or a unit is
 * gathered (zero3, hybrid_shard).
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_model_broadcast_parameters(
    trireme_model *model, const void *values, uint64_t count, trireme_dtype dtype, int32_t root);

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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_model_gather_parameters(
    trireme_model *model, void *values, uint64_t count, trireme_dtype dtype);

/**
 * Makes a unit's parameters whole on this rank. It also begins to gather the next unit in the order
 * of the last pass. It stops where that order turns, from forward to backward or back.
 *
 * Collective for zero3 and hybrid_shard: blocks until it is done or the deadline passes. All ranks
 * gather the same units in the same order, also a rank that has no leaf for this micro-batch. The
 * other strategies hold whole parameters and return at once, and so does a model that shares them.
 * A unit that is gathered several times needs as many releases.
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_model_gather_unit(trireme_model *model,
                                                                           uint64_t unit);

/**
 * Releases a unit that trireme_model_gather_unit() made whole.
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_model_release_unit(trireme_model *model,
                                                                            uint64_t unit);

/**
 * Gives the address of a parameter's elements, inside the library's own memory.
 *
 * Does not block. The address is good until the unit is released (zero3, hybrid_shard) or the model
 * is destroyed (the other strategies). A caller that writes there between steps changes this rank's
 * copy only. It must not write where ranks share the parameters.
 *
 * @param model  The model.
 * @param parameter  Number of the parameter.
 * @param[out] out_data  First element. Not written on failure.
 * @param[out] out_count  Elements; may be NULL. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_data is NULL, or there is no such parameter.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, or the unit is not gathered (zero3,
 * hybrid_shard).
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_model_get_parameter_data(
    const trireme_model *model, uint64_t parameter, void **out_data, uint64_t *out_count);

/**
 * Tells which leaf of the global batch this rank computes as its micro-batch number
 * `micro_batch`.
 *
 * Does not block.
 *
 * @param model  The model.
 * @param micro_batch  0 to micro_batches - 1.
 * @param[out] out_leaf  Number of the leaf; UINT32_MAX if this rank has none there. Then it makes
 * no backward pass for it. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_leaf is NULL, or micro_batch is too large.
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed or not reproducible.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_model_get_leaf(const trireme_model *model,
                                                                        uint32_t micro_batch,
                                                                        uint32_t *out_leaf);

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
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, or a backward pass is under way. Or
 * the last pass was not NO_SYNC and no step came after it. Or a reproducible model has had all its
 * leaves of this step. Or it has TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD and no optimizer.
 * @retval TRIREME_ERROR_UNSUPPORTED  NO_SYNC on a reproducible model, which reduces every leaf on
 * its own and has nothing to hold back. Or NO_SYNC with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD. Or
 * ABSENT on a model without TRIREME_MODEL_FLAG_UNEVEN.
 * @retval TRIREME_ERROR_CALLBACK  With TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD: this call asks the
 * caller's schedule, and that has no rate. The pass has not begun.
 * @return With TRIREME_MODEL_FLAG_UNEVEN any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_model_begin_backward(trireme_model *model,
                                                                              uint32_t flags);

/**
 * Gives a view of one parameter's gradient: the memory in which ranks exchange it. Backward writes
 * the gradient there. The caller then hands in this address to trireme_model_gradient_ready(),
 * which has nothing to copy.
 *
 * A view exists where the gradient is one stretch of memory that the model keeps:
 * - data_parallel: always.
 * - zero1: if the parameter's unit group is alone in its bucket, if one rank owns all of it, or in
 *   a world of one rank. buckets.bytes 1 leaves every unit group alone in its bucket.
 * - zero2, zero3 and hybrid_shard: never, as they keep shards only.
 * - With TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD: never, with any strategy.
 * - A parameter with aliases: one view for each name in its turn, once the caller has handed in the
 *   names added before it.
 * - A parameter with 0 elements: never.
 *
 * Without a view the call succeeds and gives NULL, and the caller uses memory of its own.
 *
 * With *out_adds 0 the memory is undefined, and the caller overwrites all of it. With *out_adds 1
 * the sum of earlier gradients lies there, and the caller adds to it. These are from passes with
 * NO_SYNC, or from other names of the same parameter.
 *
 * The address is the same in every pass. It is the caller's only from this call until the gradient
 * is handed in. So make this call in each pass: to hand in an address that was not given in this
 * pass is an error. A caller that has changed nothing there may hand in other memory, or nothing.
 *
 * This call differs from the others whose name has get. It lends the memory to the caller, and so
 * changes the model. It may also wait for the peers: a later leaf of a reproducible step waits
 * until its bucket is reduced for the leaf before. In all other cases the call is local.
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
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed, no backward pass is under way, the
 * pass is ABSENT, or the gradient was handed in before.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_model_get_gradient_data(trireme_model *model, uint64_t parameter, void **out_data,
                                uint64_t *out_count, trireme_dtype *out_dtype, int32_t *out_adds);

/**
 * Hands in the gradient of one parameter. Full buckets are reduced while backward goes on.
 *
 * Local: copies the elements and does not wait for the peers, except in these cases:
 * - zero2, zero3 and hybrid_shard wait when two buckets are in flight. With
 *   TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD all strategies do.
 * - A later leaf of a reproducible step waits until its bucket is reduced for the leaf before.
 *
 * The caller hands in a parameter with aliases once for each name.
 *
 * @param model  The model.
 * @param parameter  Number of the parameter.
 * @param gradient  Its elements, or the address that trireme_model_get_gradient_data() gave for it
 * in this pass. From that address nothing is copied. The memory there must not change until that
 * call gives it again.
 * @param count  Elements; must be the parameter's.
 * @param dtype  Type of the elements; must be the parameter's, or f32 where that is f16 or bf16.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  gradient is NULL, or overlaps the gradients of the model
 * elsewhere than in its view. There is no such parameter, or it is frozen. Or count or dtype is
 * wrong.
 * @retval TRIREME_ERROR_INVALID_STATE  No backward pass is under way, or it is ABSENT. The gradient
 * was handed in before. Or gradient is its view but was not asked for in this pass.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_model_gradient_ready(trireme_model *model,
                                                                              uint64_t parameter,
                                                                              const void *gradient,
                                                                              uint64_t count,
                                                                              trireme_dtype dtype);

/**
 * Ends the backward pass of one micro-batch.
 *
 * Local: waits for the peers only where trireme_model_gradient_ready() does. Reductions go on.
 *
 * @param model  The model.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_STATE  No backward pass is under way. Or gradients are missing and
 * the model was created with TRIREME_UNUSED_ERROR. The message names up to ten of them and
 * counts the rest. The pass goes on: hand them in, or discard the step.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_model_end_backward(trireme_model *model);

/**
 * Hands in the gradients of all parameters as one vector: a whole backward pass in one call.
 *
 * Local: waits for the peers only where trireme_model_gradient_ready() does. Keeps no pointer. The
 * gradient of a parameter with aliases is the sum for all its names.
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_model_accumulate_flat(trireme_model *model, const void *gradients, uint64_t count,
                              trireme_dtype dtype, uint32_t flags);

/**
 * Discards the gradients of this step, so that the step begins anew.
 *
 * Collective: blocks until reductions under way are done or the deadline passes. All ranks must
 * call it in or after the same pass of the step. A pass that is under way ends. So a program whose
 * backward has failed half-way on some ranks goes on, if all ranks discard the step.
 *
 * @param model  The model.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_STATE  The model is not sealed. Or, on all ranks: the model has
 * TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD, and all ranks had handed in its first bucket. The model
 * has failed with this status.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_model_discard_gradients(trireme_model *model);

TRIREME_END_C

#endif
