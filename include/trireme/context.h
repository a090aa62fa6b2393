/**
 * @file context.h
 * @brief Context parallelism: attention over a sequence whose positions lie on several ranks.
 *
 * A context object describes one attention of a model. The positions of a sequence are cut into
 * `chunks` chunks, and each rank of a communicator holds some of them. A rank has queries, keys and
 * values of its own positions alone. A pass computes pairs: the queries of one chunk with the keys
 * and values of another one. Each rank computes the pairs of its own queries. Keys and values come
 * to it from their ranks, and their gradients go back there.
 *
 * Formula: output = soft-max(scale * q k^T) v for each head, over the positions that a query sees.
 * A pair gives sums without their divisor: with m the maximum of the pair's scores s, the sum of
 * exp(s - m), and the sum of exp(s - m) v. Two such results become one with their larger maximum;
 * see Milakov and Gimelshein 2018, "Online normalizer calculation for softmax". Query head h uses
 * key/value head h / (heads/kv_heads). ZIGZAG is the order in Dubey and others 2024, "The Llama
 * 3 Herd of Models". RING is that of Liu and others 2023, "Ring Attention with Blockwise
 * Transformers for Near-Infinite Context".
 *
 * Bits: results of pairs are merged along one binary tree over the numbers of chunks: chunks 2k and
 * 2k+1, then pairs of those; one without a partner moves up alone. Gradients are added along the
 * same tree. So outputs and gradients have the same bits for every number of ranks, for both
 * layouts and for both methods. There are two conditions: `chunks` is the same, and equal calls of
 * a pair give equal bits.
 *
 * Arrays: a row holds a position of this rank, in the order of trireme_context_positions(). Rows of
 * queries and outputs have heads * width elements, the heads one after the other. Rows of keys and
 * values have kv_heads * width.
 *
 * Order: passes are collectives of the communicator. All ranks make them in one order with each
 * other and with the communicator's other collectives. While a pass runs, no other thread may call
 * a collective of the communicator. Ranks compare name, options, sequences and direction. If they
 * differ, every rank gets TRIREME_ERROR_MISMATCH.
 *
 * Callbacks that fail: the pass ends on all ranks with TRIREME_ERROR_CALLBACK, whose text names the
 * context, the rank and the pair. No result is written, and the next pass works.
 *
 * Ownership: trireme_context_create() creates an object, and trireme_context_destroy() destroys it.
 * Arrays belong to the caller; no pointer is kept behind a pass.
 *
 * Thread safety: one thread at a time may make a pass of a context. All others may run on any
 * thread, also concurrently.
 */
#ifndef TRIREME_CONTEXT_H
#define TRIREME_CONTEXT_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** One attention whose positions lie on several ranks. */
typedef struct trireme_context trireme_context;

/** Most chunks of a sequence. */
#define TRIREME_CONTEXT_MAX_CHUNKS 1024

/** How chunks lie on ranks. */
typedef int32_t trireme_context_layout;

/** Numbers of the layouts. C is the number of ranks, G that of chunks. */
enum {
    /** Rank r has chunks [rG/C, (r+1)G/C). The last rank has most of a causal attention's work. */
    TRIREME_CONTEXT_LAYOUT_CONTIGUOUS = 1,
    /**
     * Rank r has chunks [rG/2C, (r+1)G/2C), and those of r' = 2C-1-r. With 2C chunks of one size,
     * ranks have equal work in a causal attention.
     */
    TRIREME_CONTEXT_LAYOUT_ZIGZAG = 2
};

/** How keys and values come to a rank. */
typedef int32_t trireme_context_method;

/** Numbers of the methods. */
enum {
    /** Those of all ranks first, in memory for all positions. */
    TRIREME_CONTEXT_METHOD_GATHER = 1,
    /**
     * Those of one rank at a time, in memory for two ranks' positions. They travel while pairs are
     * computed.
     */
    TRIREME_CONTEXT_METHOD_RING = 2
};

/** Code that computes pairs. */
typedef int32_t trireme_attention_provider;

/** Numbers of the providers. */
enum {
    /** This library, in f32, one query after the other. Same bits on every processor. Slow. */
    TRIREME_ATTENTION_PROVIDER_BUILTIN = 1,
    /** The callbacks of the options. */
    TRIREME_ATTENTION_PROVIDER_CALLER = 2
};

/** Keys of a pair that its queries see. */
typedef int32_t trireme_attention_mask;

/** Numbers of the masks. */
enum {
    /** Each query sees all keys. */
    TRIREME_ATTENTION_MASK_FULL = 1,
    /** Both chunks are the same one. Query i sees keys 0 to i. */
    TRIREME_ATTENTION_MASK_DIAGONAL = 2,
    /** A query sees the keys that visible_first and visible_end say; there may be none. */
    TRIREME_ATTENTION_MASK_RANGES = 3
};

/**
 * One chunk pair, for a callback.
 *
 * More than 16 fields: a callback reads each of them without a second pointer.
 *
 * All memory lives until the callback returns. "Out" marks memory that the callback writes whole.
 * Its content before is undefined. R is q_count, K is kv_count. The dtype is that of the options,
 * but for `float` arrays.
 */
typedef struct trireme_attention_call {
    /** sizeof this struct as the library knows it. */
    uint32_t struct_size;
    /** Keys that the queries see. */
    trireme_attention_mask mask;
    /** Number of the chunk of queries. */
    uint32_t q_chunk;
    /** Number of the chunk of keys and values. */
    uint32_t kv_chunk;
    /** First position of the queries in the sequence. */
    uint64_t q_first;
    /** Queries; 1 or more. */
    uint64_t q_count;
    /** First position of the keys in the sequence. */
    uint64_t kv_first;
    /** Keys; 1 or more. */
    uint64_t kv_count;
    /** Query heads. */
    uint64_t heads;
    /** Key/value heads. */
    uint64_t kv_heads;
    /** Elements of a head. */
    uint64_t width;
    /** Factor of q k^T. */
    double scale;
    /** Type of q, k, v and d_output. */
    trireme_dtype dtype;
    /** 0. */
    uint32_t reserved;
    /** For each query the number of the first key that it sees, from 0 to K. With every mask. */
    const uint64_t *visible_first;
    /** For each query the number behind the last key that it sees. Not above K. */
    const uint64_t *visible_end;
    /** R rows of heads * width. */
    const void *q;
    /** K rows of kv_heads * width. */
    const void *k;
    /** K rows of kv_heads * width. */
    const void *v;
    /**
     * Forward, out: R rows of heads * width. The sum of exp(scale * q k - maximum) * v. A query
     * that sees no key has 0. NULL in a backward call.
     */
    float *output;
    /**
     * Forward, out: R rows of heads. The maximum of scale * q k. A query that sees no key has minus
     * infinity. NULL in a backward call.
     */
    float *maximum;
    /** Forward, out: R rows of heads. The sum of exp(scale * q k - maximum). Else NULL. */
    float *sum;
    /** Backward: the gradient of the attention's output, as q. NULL in a forward call. */
    const void *d_output;
    /** Backward: R rows of heads, the maximum over all keys. */
    const float *total_maximum;
    /** Backward: R rows of heads, the sum over all keys of exp(scale * q k - total_maximum). */
    const float *total_sum;
    /** Backward: R rows of heads, the products of output and d_output. */
    const float *delta;
    /**
     * Backward, out: R rows of heads * width, this pair's summand. With p = exp(scale * q k -
     * total_maximum) / total_sum and ds = p * (d_output v - delta) * scale, it is ds k.
     */
    float *dq;
    /** Backward, out: K rows of kv_heads * width, ds q. */
    float *dk;
    /** Backward, out: K rows of kv_heads * width, p d_output. */
    float *dv;
} trireme_attention_call; /* since 1.0 */

/**
 * Computes one chunk pair, forward or backward.
 *
 * Runs on the thread that makes the pass. It must not call a collective of the communicator.
 *
 * @param call  The pair.
 * @param user_data  As in the options.
 * @return 0, or any other number for a failure.
 */
typedef int32_t(TRIREME_CALLCONV *trireme_attention_callback)(const trireme_attention_call *call,
                                                              void *user_data);

/** The caller's code for chunk pairs. Start from TRIREME_ATTENTION_CALLBACKS_INIT. */
typedef struct trireme_attention_callbacks {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t reserved;
    /** Computes a pair of a forward pass. Required. */
    trireme_attention_callback forward;
    /** Computes a pair of a backward pass. Required. */
    trireme_attention_callback backward;
    /** Handed to both. Default: NULL. */
    void *user_data;
} trireme_attention_callbacks; /* since 1.0 */

/** No code yet. */
#define TRIREME_ATTENTION_CALLBACKS_INIT TRIREME_INIT(trireme_attention_callbacks)

/** In `flags` of trireme_context_options. */
enum {
    /** No position sees a later one. */
    TRIREME_CONTEXT_FLAG_CAUSAL = 1
};

/** One attention. Start from TRIREME_CONTEXT_OPTIONS_INIT. */
typedef struct trireme_context_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0, or TRIREME_CONTEXT_FLAG_CAUSAL. */
    uint32_t flags;
    /** Name for messages: 1 to 63 bytes of UTF-8 without control characters. Required. */
    const char *name;
    /** Positions of the whole sequence. Default: 0, an attention without positions. */
    uint64_t positions;
    /**
     * Chunks of the sequence: at least C, with ZIGZAG 2C. At most TRIREME_CONTEXT_MAX_CHUNKS. Chunk
     * i of G holds positions [i*positions/G, (i+1)*positions/G). Required.
     */
    uint32_t chunks;
    /** How chunks lie on ranks. Required. */
    trireme_context_layout layout;
    /** How keys and values come to a rank. Required. */
    trireme_context_method method;
    /** Type of queries, keys, values, outputs and gradients: F32, F16 or BF16. Required. */
    trireme_dtype dtype;
    /** Query heads; 1 or more. */
    uint64_t heads;
    /** Key/value heads. Divides `heads`. Default: 0, which means `heads`. */
    uint64_t kv_heads;
    /** Elements of a head; 1 or more. */
    uint64_t width;
    /** Factor of q k^T; finite. Default: 0, which means 1 / sqrt(width). */
    double scale;
    /** Code that computes pairs. Required. */
    trireme_attention_provider provider;
    /** Must be 0. */
    uint32_t reserved;
    /** CALLER: its callbacks. Else NULL. */
    const trireme_attention_callbacks *callbacks;
    /** Longest time of a pass with its callbacks, in ns. Default: the communicator's timeout. */
    uint64_t timeout_ns;
} trireme_context_options; /* since 1.0 */

/** No attention yet. */
#define TRIREME_CONTEXT_OPTIONS_INIT TRIREME_INIT(trireme_context_options)

/** Sizes and counts of a context on this rank. Set struct_size before the call. */
typedef struct trireme_context_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** This rank's number in the communicator. */
    int32_t rank;
    /** Ranks of the communicator. */
    int32_t world_size;
    /** Chunks that this rank holds; some may be empty. */
    uint32_t own_chunks;
    /** Positions of this rank; may be 0. */
    uint64_t rows;
    /** Elements of this rank's queries, and of its outputs. */
    uint64_t q_count;
    /** Elements of this rank's keys, and of its values. */
    uint64_t kv_count;
    /** `float` that a forward pass keeps for a backward pass. */
    uint64_t kept_count;
    /** Pairs that this rank computes in a pass without further sequences. */
    uint64_t pairs;
    /** Forward passes that have succeeded. */
    uint64_t forward_passes;
    /** Backward passes that have succeeded. */
    uint64_t backward_passes;
    /** Bytes of memory that a forward pass needs here. */
    uint64_t forward_memory;
    /** Bytes of memory that a backward pass needs here. */
    uint64_t backward_memory;
    /** Bytes that the context holds: the larger one of both, of passes made so far. */
    uint64_t held_memory;
    /**
     * Bytes of this rank that peers read in a forward pass. Over connections, a rank may pass some
     * of them on to others.
     */
    uint64_t forward_bytes;
    /** The same for a backward pass. With further sequences there may be fewer. */
    uint64_t backward_bytes;
} trireme_context_info; /* since 1.0 */

/** An info ready for trireme_context_get_info(). */
#define TRIREME_CONTEXT_INFO_INIT TRIREME_INIT(trireme_context_info)

/** Arrays of one pass on this rank. An array without elements may be NULL. */
typedef struct trireme_attention_arrays {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t reserved;
    /** Queries: info.q_count elements. */
    const void *q;
    /** Keys: info.kv_count elements. */
    const void *k;
    /** Values: info.kv_count elements. */
    const void *v;
    /** info.q_count elements. A forward pass writes it, a backward pass reads it. */
    void *output;
    /**
     * info.kept_count numbers: the maximum of each row and head, then the sums. A forward pass
     * writes it, a backward pass reads it.
     */
    float *kept;
    /** Backward: the gradient of `output`. Must be NULL in a forward pass, as all below. */
    const void *d_output;
    /** Backward, out: the gradient of `q`. */
    void *dq;
    /** Backward, out: the gradient of `k`. */
    void *dk;
    /** Backward, out: the gradient of `v`. */
    void *dv;
} trireme_attention_arrays; /* since 1.0 */

/** No array yet. */
#define TRIREME_ATTENTION_ARRAYS_INIT TRIREME_INIT(trireme_attention_arrays)

/** Options of one pass. NULL in place of a pointer to them means all defaults. */
typedef struct trireme_attention_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /**
     * Positions at which a sequence begins, where several lie one after the other. Ascending, below
     * `positions`. No position sees another sequence. Position 0 begins one in any case. All ranks
     * give the same. Default: NULL, one sequence.
     */
    const uint64_t *sequence_starts;
    /** Positions at sequence_starts. */
    uint64_t sequence_count;
    /** Nanoseconds from now to the deadline. Default: timeout_ns of the context's options. */
    uint64_t timeout_ns;
} trireme_attention_options; /* since 1.0 */

/** One sequence, and the context's deadline. */
#define TRIREME_ATTENTION_OPTIONS_INIT TRIREME_INIT(trireme_attention_options)

/**
 * Makes a context for the ranks of a communicator.
 *
 * Local: does not wait for the peers. Keeps no pointer into `options` but the callbacks and
 * user_data. Passes allocate memory at their first use.
 *
 * @param communicator  The ranks, such as those along the axis "context" of a mesh.
 * @param options       The attention. Required.
 * @param[out] out_context  The new object; free it with trireme_context_destroy(). Not written on
 *                      failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or a number is unknown or out of
 *                      range. Or the name is empty, too long, not UTF-8 or has a control character.
 *                      Or kv_heads does not divide `heads`. Or there are too few chunks for the
 *                      ranks. Or the callbacks do not suit the provider. Or an array has more bytes
 *                      than memory can hold.
 * @retval TRIREME_ERROR_UNSUPPORTED  The dtype is not F32, F16 or BF16. Or `options` sets a field
 *                      newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_context_create(trireme_communicator *communicator, const trireme_context_options *options,
                       trireme_context **out_context);

/**
 * Destroys a context.
 *
 * Never waits for a peer. A pass that runs in another thread goes on.
 *
 * @param context  A context; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_context_destroy(trireme_context *context);

/**
 * Tells sizes and counts of this rank.
 *
 * Does not block.
 *
 * @param context  The context.
 * @param[out] info  Where to write it. Only struct_size is read.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live context of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `info` is NULL, or its struct_size is too small.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_context_get_info(const trireme_context *context, trireme_context_info *info);

/**
 * Lists the positions of a rank, in the order of its rows: ascending.
 *
 * Does not block.
 *
 * @param context    The context.
 * @param rank       A rank of the communicator.
 * @param[out] positions  Where to write them; may be NULL if `capacity` is 0. Not written on
 *                   failure.
 * @param capacity   Numbers that fit. At most as many are written.
 * @param[out] out_count  Positions of that rank; may be 0. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live context of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or the rank is out of range.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_context_positions(const trireme_context *context, int32_t rank, uint64_t *positions,
                          uint64_t capacity, uint64_t *out_count);

/**
 * Computes the attention of this rank's queries over the positions of all ranks.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. A NaN in an array comes
 * out as NaN of the rows that see it.
 *
 * @param context  The context.
 * @param arrays   q, k and v, and where to write output and kept. These share no byte with each
 *                 other or with the others. After an argument error, or a callback's failure, they
 *                 are untouched. After another failure they may hold anything.
 * @param options  Options of this pass; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live context of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, arrays overlap, or a gradient is not
 *                 NULL. Or sequence_starts do not ascend or are too large, or an option is out of
 *                 range.
 * @retval TRIREME_ERROR_INVALID_STATE  Called while a pass of the context runs, such as from its
 *                 callback, inside a batch, or inside a completion callback of the communicator. Or
 *                 the communicator is destroyed.
 * @retval TRIREME_ERROR_UNSUPPORTED  `arrays` or `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_CALLBACK  A callback answered another number than 0 or threw, on any rank.
 *                 The group works on.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one pass at a time per context.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_context_attention_forward(trireme_context *context, const trireme_attention_arrays *arrays,
                                  const trireme_attention_options *options);

/**
 * Computes the gradients of this rank's queries, keys and values.
 *
 * Collective, as trireme_context_attention_forward(): blocks until it is done on this rank or the
 * deadline passes. The gradients of keys and values are the sums
 * over the queries of all ranks.
 *
 * @param context  The context.
 * @param arrays   q, k, v, output and kept as after the forward pass, and d_output. And where to
 *                 write dq, dk and dv. These share no byte with each other or with the others.
 *                 After an argument error, or a callback's failure, they are untouched. After
 *                 another failure they may hold anything.
 * @param options  Options of this pass; NULL for the defaults. The sequences of the forward pass.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live context of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, arrays overlap, sequence_starts do not
 *                 ascend or are too large, or an option is out of range.
 * @retval TRIREME_ERROR_INVALID_STATE  As for trireme_context_attention_forward().
 * @retval TRIREME_ERROR_UNSUPPORTED  `arrays` or `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_CALLBACK  As for trireme_context_attention_forward().
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one pass at a time per context.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_context_attention_backward(trireme_context *context, const trireme_attention_arrays *arrays,
                                   const trireme_attention_options *options);

TRIREME_END_C

#endif
