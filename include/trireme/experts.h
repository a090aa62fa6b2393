/**
 * @file experts.h
 * @brief Mixture of experts: rows go to the ranks that hold their experts, and come back.
 *
 * A layer of experts has E networks. A router gives each row a score for each expert. The row is
 * computed by the `top_k` experts with its highest scores, and their results are added, each times
 * its weight. Each rank of a communicator holds some of the experts, and has rows of its own. The
 * caller computes the router's scores and the experts. This library routes, moves and adds rows.
 *
 * Passes of a step, forward and then backward:
 *
 * - trireme_experts_route() chooses experts, weights and dropped rows. Ranks exchange counts.
 * - trireme_experts_dispatch() brings rows to the ranks of their experts.
 * - trireme_experts_combine() brings results back, and adds those of a row.
 * - trireme_experts_combine_backward() makes gradients of weights. It brings gradients of results
 *   to the ranks of their experts.
 * - trireme_experts_dispatch_backward() brings gradients of rows back, and adds them.
 * - trireme_experts_route_backward() makes gradients of scores. It does not communicate.
 *
 * Experts of ranks: rank r of R has experts [rE/R, (r+1)E/R), rounded down. R need not divide E,
 * and a rank may have no expert.
 *
 * Slots: each row has `top_k` slots, from its highest score down. Of equal scores the lower expert
 * comes first. The weight of a slot is the probability of its expert: the score itself, or the
 * soft-max of the row's scores. With TRIREME_EXPERTS_FLAG_NORMALIZE it is divided by the sum over
 * the row's slots. A logit about 87 or more below the row's largest has probability 0 in f32. Its
 * slot has weight 0 and is routed all the same. See Shazeer and others 2017, "Outrageously Large
 * Neural Networks".
 *
 * Leaves: the rows of a pass, over all ranks, are cut into G leaves. Rank r has leaves [rG/R,
 * (r+1)G/R), one after the other. An expert may take at most `capacity` rows of each leaf, as with
 * the groups of Lepikhin and others 2021, "GShard". Rows beyond are dropped: their slot adds
 * nothing to the result. Padding rows have no slot that is routed, and take no capacity.
 *
 * Bits: rows of an expert lie by leaf, and those of a leaf in the order of rows. A caller may
 * compute an expert leaf by leaf, and add its weight gradients leaf by leaf. Then they have the
 * same bits for every number of ranks from 1 to G. Results are added in the order of slots,
 * so these bits do not depend on the ranks either. The exponential is the library's own. Sums of
 * f16 and bf16 are made in f32, and rounded once.
 *
 * Bytes: only routed rows travel. With even experts and even routes, a rank sends top_k * rows *
 * width * (R-1)/R elements in each pass that moves rows.
 *
 * Kept: a route pass writes its decisions to memory of the caller, `kept`. The other passes read
 * them there. So micro-batches may be under way side by side, each with its own memory.
 *
 * Order: all passes but trireme_experts_route_backward() are collectives of the communicator. All
 * ranks make them in one order with each other and with the communicator's other collectives.
 * Ranks compare name, options, direction, and the route pass whose `kept` they give. If they
 * differ, every rank gets TRIREME_ERROR_MISMATCH.
 *
 * Time: the timeout of a pass is that of its exchange. It begins when this rank has chosen or
 * packed its rows.
 *
 * Ownership: trireme_experts_create() creates an object, and trireme_experts_destroy() destroys it.
 * Arrays belong to the caller; no pointer is kept behind a pass.
 *
 * Thread safety: one thread at a time may make a pass of an object. Other calls may run on any
 * thread, also concurrently.
 */
#ifndef TRIREME_EXPERTS_H
#define TRIREME_EXPERTS_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>
#include <trireme/tensor.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** A layer of experts that lie on several ranks. */
typedef struct trireme_experts trireme_experts;

/** Most experts of a layer. */
#define TRIREME_EXPERTS_MAX 65536

/** Most leaves of a pass. */
#define TRIREME_EXPERTS_MAX_LEAVES 65536

/** Meaning of the numbers that a router gives. */
typedef int32_t trireme_experts_scores;

/** Numbers of the scores. */
enum {
    /** Finite numbers. Their soft-max over all experts gives the probabilities. */
    TRIREME_EXPERTS_SCORES_LOGITS = 1,
    /** Probabilities, or other finite numbers that are 0 or more, such as those of a sigmoid. */
    TRIREME_EXPERTS_SCORES_PROBABILITIES = 2
};

/** Rows that are dropped where more choose an expert than it takes. */
typedef int32_t trireme_experts_drop;

/** Numbers of the ways to drop. */
enum {
    /** No row is dropped. `capacity` is 0. */
    TRIREME_EXPERTS_DROP_NONE = 0,
    /** The last rows of the leaf. */
    TRIREME_EXPERTS_DROP_LAST = 1,
    /** Those with the lowest weights; of equal weights the last rows. */
    TRIREME_EXPERTS_DROP_LOWEST_WEIGHT = 2
};

/** In `flags` of trireme_experts_options. */
enum {
    /** The weights of a row are divided by their sum. */
    TRIREME_EXPERTS_FLAG_NORMALIZE = 1
};

/** One layer of experts. Start from TRIREME_EXPERTS_OPTIONS_INIT. */
typedef struct trireme_experts_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0, or TRIREME_EXPERTS_FLAG_NORMALIZE. */
    uint32_t flags;
    /**
     * Name for messages, which ranks compare: 1 to 63 bytes of UTF-8 without control characters.
     * No other layer of experts of the communicator may have it. Required.
     */
    const char *name;
    /** Experts of all ranks together: 1 to TRIREME_EXPERTS_MAX. Required. */
    uint32_t experts;
    /** Experts that a row chooses: 1 to `experts`. Required. */
    uint32_t top_k;
    /** Elements of a row. Default: 0, rows without elements. */
    uint64_t width;
    /** Most rows of a rank in a pass; memory is planned for so many. Default: 0. */
    uint64_t rows;
    /** Type of rows, results and their gradients: f32, f64, f16, bf16. Required. */
    trireme_dtype dtype;
    /** Meaning of the router's numbers. Required. */
    trireme_experts_scores scores;
    /** Most rows of a leaf that an expert takes. Default: 0, all. */
    uint64_t capacity;
    /** Rows that are dropped. Required if `capacity` is not 0, else NONE. */
    trireme_experts_drop drop;
    /**
     * Leaves of a pass over all ranks: at least their number, at most TRIREME_EXPERTS_MAX_LEAVES.
     * Default: 0, the rows of each rank are one leaf.
     */
    uint32_t leaves;
    /** Longest time of a pass, in ns. Default: the communicator's timeout. */
    uint64_t timeout_ns;
} trireme_experts_options; /* since 1.0 */

/** No experts yet. */
#define TRIREME_EXPERTS_OPTIONS_INIT TRIREME_INIT(trireme_experts_options)

/**
 * Sizes and counts of a layer on this rank. Set struct_size before the call.
 *
 * More than 16 fields: they are read together, before arrays are allocated or in a log.
 */
typedef struct trireme_experts_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** This rank's number in the communicator. */
    int32_t rank;
    /** Ranks of the communicator. */
    int32_t world_size;
    /** The first expert of this rank. */
    uint32_t first_expert;
    /** Experts of this rank; may be 0. */
    uint32_t expert_count;
    /** The first leaf of this rank's rows. */
    uint32_t first_leaf;
    /** Leaves of this rank's rows; 1 or more. */
    uint32_t leaf_count;
    /** Leaves of all ranks. */
    uint32_t leaves;
    /** Numbers at `segments` of a route pass: expert_count * leaves + 1. */
    uint64_t segment_count;
    /** Most rows that a dispatch pass brings to this rank. */
    uint64_t most_received;
    /** Most slots of this rank's rows that are routed in a pass. */
    uint64_t most_sent;
    /** Bytes at `kept` of a route pass. */
    uint64_t kept_bytes;
    /** Memory of the object's tables, which trireme_experts_create() allocates, in bytes. */
    uint64_t table_bytes;
    /** Bytes of memory that the passes which move rows need here, one after the other. */
    uint64_t pass_memory;
    /** Bytes of it that the object holds: none before the first such pass. */
    uint64_t held_memory;
    /**
     * Bytes of this rank that peers read in a route pass. Over connections, a rank may pass some of
     * them on to others.
     */
    uint64_t route_bytes;
    /** Route passes that have succeeded. */
    uint64_t routes;
    /** Dispatch passes that have succeeded. */
    uint64_t dispatches;
    /** Combine passes that have succeeded. */
    uint64_t combines;
    /** Backward combine passes that have succeeded. */
    uint64_t combines_backward;
    /** Backward dispatch passes that have succeeded. */
    uint64_t dispatches_backward;
} trireme_experts_info; /* since 1.0 */

/** An info ready for trireme_experts_get_info(). */
#define TRIREME_EXPERTS_INFO_INIT TRIREME_INIT(trireme_experts_info)

/** Arrays of one route pass on this rank. Start from TRIREME_EXPERTS_ROUTE_ARRAYS_INIT. */
typedef struct trireme_experts_route_arrays {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t reserved;
    /** Rows of this rank, at most options.rows. Default: 0. */
    uint64_t rows;
    /** `rows` rows of `experts` numbers. May be NULL without rows. */
    const float *scores;
    /** `rows` bytes; one that is not 0 marks a padding row. Default: NULL, no row is padding. */
    const uint8_t *padding;
    /**
     * Rows of each of this rank's leaves: info.leaf_count numbers whose sum is `rows`. Default:
     * NULL, which only ranks of one leaf may give.
     */
    const uint64_t *leaf_rows;
    /** Out: info.kept_bytes bytes, at any address. Required. */
    void *kept;
    /**
     * Out: where the rows of each expert and leaf begin that a dispatch pass brings here. Those of
     * this rank's expert number j and leaf l begin at segments[j * leaves + l], and end where the
     * next ones begin. info.segment_count numbers. Required.
     */
    uint64_t *segments;
    /**
     * Out: `rows` rows of `top_k` experts. -1 for a slot that is not routed: it is dropped, or its
     * row is padding. Default: NULL, not written.
     */
    int32_t *chosen;
    /** Out: `rows` rows of `top_k` weights; 0 in padding rows. Default: NULL, not written. */
    float *weights;
    /**
     * Out: for each of the `experts`, the rows of all ranks that chose it, dropped ones among them.
     * Default: NULL, not written.
     */
    uint64_t *expert_rows;
    /** Out: for each expert the rows of all ranks that it dropped. Default: NULL, not written. */
    uint64_t *expert_dropped;
    /**
     * Out: for each expert the mean of its probabilities over all rows of all ranks that are no
     * padding; 0 without such rows. For a loss that balances experts, see Fedus and others 2022,
     * "Switch Transformers". Default: NULL, not written.
     */
    double *mean_probabilities;
} trireme_experts_route_arrays; /* since 1.0 */

/** No array yet. */
#define TRIREME_EXPERTS_ROUTE_ARRAYS_INIT TRIREME_INIT(trireme_experts_route_arrays)

/** Counts of one route pass on this rank. Set struct_size before the call. */
typedef struct trireme_experts_route_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** Rows that the dispatch pass brings to this rank. */
    uint64_t received_rows;
    /** Slots of this rank that are routed. */
    uint64_t sent_rows;
    /** Rows of all ranks that are no padding. */
    uint64_t real_rows;
    /** Bytes of this rank that peers read in a dispatch or a backward combine pass. */
    uint64_t dispatch_bytes;
    /** Bytes of this rank that peers read in a combine or a backward dispatch pass. */
    uint64_t combine_bytes;
} trireme_experts_route_info; /* since 1.0 */

/** An info ready for trireme_experts_route(). */
#define TRIREME_EXPERTS_ROUTE_INFO_INIT TRIREME_INIT(trireme_experts_route_info)

/**
 * Makes a layer of experts for the ranks of a communicator.
 *
 * Local: does not wait for the peers. Keeps no pointer into `options`.
 *
 * @param communicator  The ranks, such as those along the axis "expert" of a mesh.
 * @param options       The layer. Required.
 * @param[out] out_experts  The new object; free it with trireme_experts_destroy(). Not written on
 *                      failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, a flag is unknown, or a number is
 *                      unknown or out of range. Or the name is empty, too long, not UTF-8 or has a
 *                      control character, or another layer has it. Or capacity and drop do not suit
 * each other. Or there are fewer leaves than ranks. Or an array has more bytes than memory can
 * hold.
 * @retval TRIREME_ERROR_UNSUPPORTED  The dtype is not f32, f64, f16 or bf16. Or `options` sets a
 *                      field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_experts_create(trireme_communicator *communicator, const trireme_experts_options *options,
                       trireme_experts **out_experts);

/**
 * Destroys a layer of experts. Its name may be taken again.
 *
 * Never waits for a peer. A pass that runs in another thread goes on.
 *
 * @param experts  A layer; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_experts_destroy(trireme_experts *experts);

/**
 * Tells sizes and counts of this rank.
 *
 * Does not block.
 *
 * @param experts    The layer.
 * @param[out] info  Where to write it. Only struct_size is read.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live layer of experts of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `info` is NULL, or its struct_size is too small.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_experts_get_info(const trireme_experts *experts, trireme_experts_info *info);

/**
 * Chooses the experts of this rank's rows, and tells how many rows come from all ranks.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Each rank tells the
 * others how many rows of each of its leaves chose each expert.
 *
 * @param experts  The layer.
 * @param arrays   The rows, and where to write what. Written arrays share no byte with each other
 * or with the others. After an error nothing is written.
 * @param[out] info  Where to write the counts. Only struct_size is read. Not written on failure.
 * @param options  Options of this pass; NULL for the defaults. Its timeout is by default that of
 *                 the layer's options.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live layer of experts of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, arrays overlap, there are too many
 *                 rows, leaf_rows have another sum, or an option is out of range. A peer that has
 *                 called the pass waits until its deadline. Or, on all ranks: a row of a rank that
 *                 is no padding has a score that the options do not allow, such as NaN. Or all its
 *                 weights are 0 and cannot be normalized. The message names the rank and the row,
 *                 and the group works on.
 * @retval TRIREME_ERROR_INVALID_STATE  Another pass of the layer runs, or the call is made inside a
 *                 batch or a completion callback of the communicator, or after its destruction.
 * @retval TRIREME_ERROR_UNSUPPORTED  `arrays` or `options` sets a field newer than this library.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one pass at a time per layer of experts.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_experts_route(trireme_experts *experts, const trireme_experts_route_arrays *arrays,
                      trireme_experts_route_info *info, const trireme_pass_options *options);

/**
 * Brings the routed rows of all ranks to the ranks of their experts.
 *
 * Collective: blocks until it is done on this rank or the deadline passes.
 *
 * @param experts  The layer.
 * @param kept     Bytes of the route pass: info.kept_bytes of them.
 * @param rows     The rows of the route pass, of `width` elements each.
 * @param[out] received  info.received_rows rows: by expert, then by leaf, then in the order of
 *                 rows. After TRIREME_ERROR_INVALID_ARGUMENT it is untouched. After any other error
 *                 it may hold anything.
 * @param options  Options of this pass; NULL for the defaults. Its timeout is by default that of
 *                 the layer's options.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live layer of experts of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer to elements is NULL, arrays overlap, or an
 *                 option is out of range. Or `kept` has not the bytes that a route pass of this
 *                 layer wrote on this rank. A peer that has called the pass waits until its
 *                 deadline.
 * @retval TRIREME_ERROR_INVALID_STATE  As for trireme_experts_route().
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one pass at a time per layer of experts.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_experts_dispatch(trireme_experts *experts, const void *kept, const void *rows,
                         void *received, const trireme_pass_options *options);

/**
 * Brings the experts' results back, and adds those of each row, each times its weight.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. The sum of a row begins
 * with the first slot that is routed. A row without one becomes 0.
 *
 * @param experts  The layer.
 * @param kept     Bytes of the route pass: info.kept_bytes of them.
 * @param results  info.received_rows rows: the experts' results, in the order of `received`.
 * @param[out] returned  info.sent_rows rows of results, which trireme_experts_combine_backward()
 *                 reads. NULL if there is no backward pass. After TRIREME_ERROR_INVALID_ARGUMENT
 *                 it is untouched. After any other error it may hold anything.
 * @param[out] output  The rows of the route pass, of `width` elements each. As `returned` after an
 *                 error.
 * @param options  As for trireme_experts_dispatch().
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live layer of experts of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  As for trireme_experts_dispatch().
 * @retval TRIREME_ERROR_INVALID_STATE  As for trireme_experts_route().
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one pass at a time per layer of experts.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_experts_combine(trireme_experts *experts, const void *kept, const void *results,
                        void *returned, void *output, const trireme_pass_options *options);

/**
 * Brings the gradients of results to the ranks of their experts, and computes those of weights.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. The gradient of a result
 * is that of its row's output, times the slot's weight. The gradient of a weight is the product of
 * the result with the gradient of the output, added in f64.
 *
 * @param experts   The layer.
 * @param kept      Bytes of the route pass: info.kept_bytes of them.
 * @param d_output  The gradient of `output`.
 * @param returned  Rows that trireme_experts_combine() wrote there.
 * @param[out] d_results  info.received_rows rows: the gradient of `results`. After
 *                  TRIREME_ERROR_INVALID_ARGUMENT it is untouched. After any other error it may
 *                  hold anything.
 * @param[out] d_weights  For each row of the route pass `top_k` numbers; 0 for a slot that is not
 *                  routed. As d_results after an error.
 * @param options   As for trireme_experts_dispatch().
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live layer of experts of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  As for trireme_experts_dispatch().
 * @retval TRIREME_ERROR_INVALID_STATE  There were as many backward combine passes as combine
 *                  passes. Or as for trireme_experts_route().
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one pass at a time per layer of experts.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_experts_combine_backward(
    trireme_experts *experts, const void *kept, const void *d_output, const void *returned,
    void *d_results, float *d_weights, const trireme_pass_options *options);

/**
 * Brings the gradients of received rows back, and adds those of each row in the order of slots.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. The gradient is that of
 * the dispatch pass alone. A router that reads the same rows adds its own.
 *
 * @param experts     The layer.
 * @param kept        Bytes of the route pass: info.kept_bytes of them.
 * @param d_received  info.received_rows rows: the gradient of `received`.
 * @param[out] d_rows  The gradient of `rows`; 0 for a row without a routed slot. After
 *                    TRIREME_ERROR_INVALID_ARGUMENT it is untouched. After any other error it may
 *                    hold anything.
 * @param options     As for trireme_experts_dispatch().
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live layer of experts of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  As for trireme_experts_dispatch().
 * @retval TRIREME_ERROR_INVALID_STATE  There were as many backward dispatch passes as dispatch
 *                    passes. Or as for trireme_experts_route().
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one pass at a time per layer of experts.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_experts_dispatch_backward(
    trireme_experts *experts, const void *kept, const void *d_received, void *d_rows,
    const trireme_pass_options *options);

/**
 * Computes the gradients of this rank's scores.
 *
 * Does not block, and compares nothing. Choices have no gradient: it goes through the weights of
 * the chosen experts, and through the mean probabilities. A dropped slot has a weight, too: with
 * TRIREME_EXPERTS_FLAG_NORMALIZE it is part of the sum that divides the others.
 *
 * @param experts    The layer.
 * @param kept       Bytes of the route pass: info.kept_bytes of them.
 * @param scores     The scores of the route pass.
 * @param d_weights  For each row `top_k` numbers, as trireme_experts_combine_backward() wrote them.
 * @param d_mean_probabilities  For each expert the gradient of its mean probability, the same on
 *                   all ranks: the whole gradient of the loss of all ranks. NULL if there is none.
 * @param[out] d_scores  The gradient of `scores`; 0 in padding rows. It may be `scores`. After an
 *                   error it is untouched.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live layer of experts of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer to elements is NULL, or d_scores overlaps
 *                   another array, or the scores in part. Or `kept` has not the bytes that a route
 *                   pass of this layer wrote on this rank. Or a row has scores that no route pass
 *                   allows; the message names it.
 * @retval TRIREME_ERROR_INVALID_STATE  Another pass of the layer runs.
 *
 * Thread safety: one pass at a time per layer of experts.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_experts_route_backward(
    trireme_experts *experts, const void *kept, const float *scores, const float *d_weights,
    const double *d_mean_probabilities, float *d_scores);

TRIREME_END_C

#endif
