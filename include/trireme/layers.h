/**
 * @file layers.h
 * @brief Layers whose weights are split between ranks: linear layers, and MLPs made of two.
 *
 * A linear layer computes output = input * transpose(weight) + bias. The whole weight has a row for
 * each output and a column for each input, as in common frameworks. Each rank holds a part of it:
 * - A column-parallel layer splits the outputs. A rank has the weight's rows of its outputs, and
 *   their biases. Its input is whole. Its output is split by columns, or gathered.
 * - A row-parallel layer splits the inputs. A rank has the weight's columns of its inputs. Its
 *   input is split by columns. Its output is the sum over all ranks. Each rank has the whole bias,
 *   which is added to the sum once.
 *
 * An MLP is a column-parallel layer, an activation, and a row-parallel layer.
 *
 * With TRIREME_TENSOR_FLAG_SEQUENCE, the whole input of a column-parallel layer and the output of a
 * row-parallel layer are split by rows: each rank has the rows of trireme_tensor_range().
 *
 * Layers hold no weights. Weights, biases and their gradients belong to the caller. So several
 * layers may use one weight, such as one layer for a shorter last batch: the number of rows of a
 * layer is fixed.
 *
 * Matrices are row-major without gaps. The tensor object's provider makes the products
 * (trireme_gemm_options).
 *
 * Bits: with `blocks` of G, every product is made block by block, by the same calls for every
 * number of ranks from 1 to G. Sums over blocks go along the tree of tensor.h. So outputs and all
 * gradients have the same bits for each of these numbers, with and without SEQUENCE. Another G, or
 * another provider, library, processor or number of BLAS threads may give other bits.
 *
 * Types: F32, F64, F16 and BF16. Products and sums of F16 and BF16 are F32, and so are the
 * gradients of weights and biases. Outputs and gradients of inputs are rounded once.
 *
 * Order: calls that move bytes are collectives of the communicator, as the passes of regions are.
 * A layer's info tells which ones move bytes. All ranks make them in one order. If ranks differ,
 * every rank gets TRIREME_ERROR_MISMATCH.
 *
 * Failures: if a product fails on one rank, the group fails, and all ranks get the same status.
 *
 * Ownership: functions named _create create objects, and those named _destroy destroy them. A layer
 * keeps its tensor object alive.
 *
 * Thread safety: the layers of a tensor object share memory. One thread at a time may call their
 * functions named forward and backward; a second one gets TRIREME_ERROR_INVALID_STATE.
 */
#ifndef TRIREME_LAYERS_H
#define TRIREME_LAYERS_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>
#include <trireme/tensor.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** A linear layer whose weight is split between ranks. */
typedef struct trireme_linear trireme_linear;
/** Two linear layers with an activation between them, whose weights are split between ranks. */
typedef struct trireme_mlp trireme_mlp;

/** The extent of a linear layer's weight that ranks split. */
typedef int32_t trireme_linear_kind;

/** Numbers of the kinds. */
enum {
    /** Outputs are split. */
    TRIREME_LINEAR_KIND_COLUMN = 1,
    /** Inputs are split. */
    TRIREME_LINEAR_KIND_ROW = 2
};

/** Flags of a linear layer. */
enum {
    /** The layer has a bias. */
    TRIREME_LINEAR_FLAG_BIAS = 1,
    /** COLUMN: every rank gets the outputs of all ranks. */
    TRIREME_LINEAR_FLAG_GATHERED_OUTPUT = 2,
    /**
     * ROW: each rank hands in its columns of the input, such as the output of a COLUMN layer.
     * Without it, each rank hands in the whole input. Required with SEQUENCE.
     */
    TRIREME_LINEAR_FLAG_INPUT_SPLIT = 4
};

/** A linear layer. Start from TRIREME_LINEAR_OPTIONS_INIT. */
typedef struct trireme_linear_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0, or a sum of TRIREME_LINEAR_FLAG_*. Default: 0. */
    uint32_t flags;
    /**
     * Name for messages: 1 to 40 bytes of UTF-8 without control characters. No two layers of a
     * tensor object share one, unless one is destroyed. Required.
     */
    const char *name;
    /** The extent that ranks split. Required. */
    trireme_linear_kind kind;
    /** Type of the weight, the bias, the input and the output. Required. */
    trireme_dtype dtype;
    /** Inputs of the whole layer, which are columns of its input. May be below the world size. */
    uint64_t input;
    /** Outputs of the whole layer. May be below the world size. */
    uint64_t output;
    /** Rows of the whole input in each call, such as tokens of a batch. May be 0. */
    uint64_t rows;
    /**
     * COLUMN: equal parts of the outputs, one after the other. Ranks split each of them. A rank has
     * its outputs of the first part, then those of the next one. 2 for a gate and its values; 3 for
     * queries, keys and values. Divides `output`. Default: 0, which means 1. ROW: must be 0 or 1.
     */
    uint32_t stretches;
    /** Must be 0. */
    uint32_t reserved;
} trireme_linear_options; /* since 1.0 */

/** No layer yet. */
#define TRIREME_LINEAR_OPTIONS_INIT TRIREME_INIT(trireme_linear_options)

/**
 * Sizes and counts of a linear layer on this rank. Set struct_size before the call.
 *
 * More than 16 fields: shapes of all arrays, bytes and passes of all calls, told at once.
 */
typedef struct trireme_linear_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Type of the gradients of weight and bias: F32 where the layer has F16 or BF16. */
    trireme_dtype gradient_dtype;
    /** The first output (COLUMN) or input (ROW) of this rank, counted within a stretch. */
    uint64_t first;
    /** Outputs (COLUMN) or inputs (ROW) of this rank in each stretch; may be 0. */
    uint64_t count;
    /** Rows of this rank's weight. COLUMN: stretches * count. ROW: all outputs. */
    uint64_t weight_rows;
    /** Columns of this rank's weight. COLUMN: all inputs. ROW: count. */
    uint64_t weight_columns;
    /** Elements of this rank's bias; 0 without BIAS. */
    uint64_t bias_count;
    /** Rows of this rank's input. */
    uint64_t input_rows;
    /** Columns of this rank's input. */
    uint64_t input_columns;
    /** Rows of this rank's output. */
    uint64_t output_rows;
    /** Columns of this rank's output. */
    uint64_t output_columns;
    /** Bytes of `kept` in the calls, which the caller holds from forward to backward. */
    uint64_t kept_bytes;
    /** Bytes of the memory that all layers of the tensor object share, as far as this one needs it.
     */
    uint64_t workspace_bytes;
    /** Rows that are multiplied and exchanged at a time; the last ones may be fewer. */
    uint64_t tile_rows;
    /** Bytes of this rank that peers read in a forward pass. */
    uint64_t forward_bytes;
    /** The same in a pass of trireme_linear_backward_input(). */
    uint64_t backward_input_bytes;
    /** The same in a pass of trireme_linear_backward_weight(). */
    uint64_t backward_weight_bytes;
    /** Forward passes that have succeeded. */
    uint64_t forward_passes;
    /** Passes of trireme_linear_backward_input() that have succeeded. */
    uint64_t backward_input_passes;
    /** Passes of trireme_linear_backward_weight() that have succeeded. */
    uint64_t backward_weight_passes;
} trireme_linear_info; /* since 1.0 */

/** An info ready for trireme_linear_get_info(). */
#define TRIREME_LINEAR_INFO_INIT TRIREME_INIT(trireme_linear_info)

/**
 * Makes a linear layer.
 *
 * Local: does not wait for the peers. Keeps no pointer into `options`. Allocates the memory that
 * its calls need, unless another layer of the tensor object has as much.
 *
 * @param tensor   The tensor object. Its options name a provider of products.
 * @param options  The layer. Required.
 * @param[out] out_linear  The new layer; free it with trireme_linear_destroy(). Not written on
 *                 failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live tensor object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or a number or flag is unknown or out
 *                 of range. Or a flag does not suit the kind. Or `stretches` does not divide
 *                 `output`. Or SEQUENCE, and a ROW layer without INPUT_SPLIT. Or the name is empty,
 *                 too long, taken, not UTF-8 or has a control character. Or an array has more bytes
 *                 than memory can hold.
 * @retval TRIREME_ERROR_INVALID_STATE  The tensor object has no provider of products. Or its
 *                 communicator is destroyed.
 * @retval TRIREME_ERROR_UNSUPPORTED  The provider has no products of this dtype. Or `options` sets
 *                 a field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_linear_create(
    trireme_tensor *tensor, const trireme_linear_options *options, trireme_linear **out_linear);

/**
 * Destroys a linear layer. Its name is free again at once.
 *
 * Never waits for a peer. A call that runs in another thread goes on.
 *
 * @param linear  A layer; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_linear_destroy(trireme_linear *linear);

/**
 * Tells the sizes and counts of a linear layer.
 *
 * Does not block.
 *
 * @param linear  The layer.
 * @param[out] info  Where to write it. Only struct_size is read.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live linear layer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `info` is NULL, or its struct_size is too small.
 *
 * Thread safety: one call at a time per layer.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_linear_get_info(const trireme_linear *linear, trireme_linear_info *info);

/**
 * Computes the output.
 *
 * Collective if info.forward_bytes of any rank is above 0: ROW, GATHERED_OUTPUT and SEQUENCE. Then
 * it blocks until it is done on this rank or the deadline passes. Keeps no pointer. Written arrays
 * have no byte in common with another array.
 *
 * @param linear  The layer.
 * @param input   info.input_rows by info.input_columns elements.
 * @param weight  info.weight_rows by info.weight_columns elements.
 * @param bias    info.bias_count elements; NULL without BIAS.
 * @param[out] output  info.output_rows by info.output_columns elements. After an argument error it
 *                is untouched. After a failure on the way it may hold anything.
 * @param[out] kept  COLUMN with KEEP_GATHERED: info.kept_bytes bytes, for
 *                trireme_linear_backward_weight(). Else it is not used and may be NULL.
 * @param options  Options of this pass; NULL for the defaults. Its flags must be 0.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live linear layer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, arrays overlap, there is a bias
 *                without BIAS, or an option is out of range.
 * @retval TRIREME_ERROR_INVALID_STATE  Called inside a batch, or while another thread calls a layer
 *                of the tensor object. Or the pass moves bytes, and was called inside a completion
 *                callback of the communicator, or after its destruction.
 * @retval TRIREME_ERROR_UNSUPPORTED  An extent is larger than the library of the provider takes. Or
 *                `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_CALLBACK  The caller's product failed on a rank.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one call at a time per tensor object.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_linear_forward(
    trireme_linear *linear, const void *input, const void *weight, const void *bias, void *output,
    void *kept, const trireme_pass_options *options);

/**
 * Computes the gradient of the input.
 *
 * Collective if info.backward_input_bytes of any rank is above 0: COLUMN, SEQUENCE, and ROW without
 * INPUT_SPLIT. Then it blocks. There is one forward pass at least for each pass of this function.
 *
 * @param linear  The layer.
 * @param output_gradient  info.output_rows by info.output_columns elements. Gradients of a whole
 *                output are the same on all ranks.
 * @param weight  As in the forward pass.
 * @param[out] input_gradient  info.input_rows by info.input_columns elements. After an argument
 *                error it is untouched. After a failure on the way it may hold anything.
 * @param[out] kept  ROW with SEQUENCE: info.kept_bytes bytes, which get the gathered gradient for
 *                trireme_linear_backward_weight(). Else it is not used and may be NULL.
 * @param options  Options of this pass; NULL for the defaults. Its flags must be 0.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live linear layer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, arrays overlap, or an option is out of
 *                range.
 * @retval TRIREME_ERROR_INVALID_STATE  There were as many of these passes as forward passes. Or as
 *                for trireme_linear_forward().
 * @retval TRIREME_ERROR_UNSUPPORTED  As for trireme_linear_forward().
 * @retval TRIREME_ERROR_CALLBACK  The caller's product failed on a rank.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one call at a time per tensor object.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_linear_backward_input(
    trireme_linear *linear, const void *output_gradient, const void *weight, void *input_gradient,
    void *kept, const trireme_pass_options *options);

/**
 * Computes the gradients of this rank's weight and bias. It may come any time after the forward
 * pass, such as after backward passes of other layers.
 *
 * Collective if info.backward_weight_bytes of any rank is above 0: COLUMN with SEQUENCE and without
 * KEEP_GATHERED. Then it blocks. There is one forward pass at least for each pass of this function.
 *
 * No rank sums these gradients with another one: each belongs to the rank's own part. The bias of a
 * ROW layer is whole on all ranks, and so is its gradient, with the same bits.
 *
 * @param linear  The layer.
 * @param input   As in the forward pass. COLUMN with KEEP_GATHERED: not read, may be NULL.
 * @param output_gradient  As in trireme_linear_backward_input(). ROW with SEQUENCE: not read, may
 *                be NULL.
 * @param kept    info.kept_bytes bytes, as the earlier pass has left them.
 * @param[out] weight_gradient  info.weight_rows by info.weight_columns elements of
 *                info.gradient_dtype. With TRIREME_PASS_FLAG_ADD the gradient is added to them.
 * @param[out] bias_gradient  info.bias_count elements likewise; NULL without BIAS.
 * @param options  Options of this pass; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live linear layer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, arrays overlap, there is a
 *                bias_gradient without BIAS, or an option is out of range.
 * @retval TRIREME_ERROR_INVALID_STATE  There were as many of these passes as forward passes. Or ROW
 *                with SEQUENCE, and there were as many as passes of
 *                trireme_linear_backward_input(). Or as for trireme_linear_forward().
 * @retval TRIREME_ERROR_UNSUPPORTED  As for trireme_linear_forward().
 * @retval TRIREME_ERROR_CALLBACK  The caller's product failed on a rank.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one call at a time per tensor object.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_linear_backward_weight(
    trireme_linear *linear, const void *input, const void *output_gradient, const void *kept,
    void *weight_gradient, void *bias_gradient, const trireme_pass_options *options);

/**
 * Computes what trireme_linear_backward_input() and then trireme_linear_backward_weight() compute,
 * with the same bits. Between ranks that a transport joins, exchanges of the input's gradient go on
 * while the gradient of the weight is made (docs/tensor.md).
 *
 * Counts as one pass of each, and moves the bytes of both. All ranks make this call, or all make
 * the two others: ranks that differ in a call that moves bytes get TRIREME_ERROR_MISMATCH.
 *
 * Collective if either of these calls is. Then it blocks. Written arrays have no byte in common
 * with another array.
 *
 * @param linear  The layer.
 * @param input   As in the forward pass. COLUMN with KEEP_GATHERED: not read, may be NULL.
 * @param output_gradient  info.output_rows by info.output_columns elements. Gradients of a whole
 *                output are the same on all ranks.
 * @param weight  As in the forward pass.
 * @param[out] input_gradient  info.input_rows by info.input_columns elements. After an argument
 *                error it is untouched. After a failure on the way it may hold anything.
 * @param kept    info.kept_bytes bytes. COLUMN with KEEP_GATHERED: as the forward pass has left
 *                them. ROW with SEQUENCE: they get the gathered gradient. Else it is not used and
 *                may be NULL.
 * @param[out] weight_gradient  info.weight_rows by info.weight_columns elements of
 *                info.gradient_dtype. With TRIREME_PASS_FLAG_ADD the gradient is added to them.
 *                After a failure on the way they may hold anything.
 * @param[out] bias_gradient  info.bias_count elements likewise; NULL without BIAS.
 * @param options  Options of this pass; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live linear layer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, arrays overlap, there is a
 *                bias_gradient without BIAS, or an option is out of range.
 * @retval TRIREME_ERROR_INVALID_STATE  There were as many passes of one of the two calls as forward
 *                passes. Or as for trireme_linear_forward().
 * @retval TRIREME_ERROR_UNSUPPORTED  As for trireme_linear_forward().
 * @retval TRIREME_ERROR_CALLBACK  The caller's product failed on a rank.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one call at a time per tensor object.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_linear_backward(trireme_linear *linear, const void *input, const void *output_gradient,
                        const void *weight, void *input_gradient, void *kept, void *weight_gradient,
                        void *bias_gradient, const trireme_pass_options *options);

/** The activation of an MLP, between its two layers. */
typedef int32_t trireme_activation_kind;

/**
 * Formulas of the library are computed in f64 and rounded once, with the same bits on all machines.
 * Results below 2^-126, the least normal f32, count as 0, but for f64 and RELU.
 */
enum {
    /** Functions of the caller. */
    TRIREME_ACTIVATION_KIND_CALLER = 1,
    /** max(x, 0). Its slope at 0 is 0. */
    TRIREME_ACTIVATION_KIND_RELU = 2,
    /** x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): Hendrycks and Gimpel 2016. */
    TRIREME_ACTIVATION_KIND_GELU_TANH = 3,
    /** x / (1 + exp(-x)). */
    TRIREME_ACTIVATION_KIND_SILU = 4,
    /** silu(gate) * value, with two inputs for each output: Shazeer 2020. */
    TRIREME_ACTIVATION_KIND_SWIGLU = 5,
    /**
     * x/2 (1 + erf(x / sqrt(2))): Hendrycks and Gimpel 2016. An f64 result is within 8 units of its
     * last place, and 0 for x below -37.5. Others are rounded once.
     */
    TRIREME_ACTIVATION_KIND_GELU = 6
};

/** One call of a caller's activation: this rank's columns. Rows lie one after the other. */
typedef struct trireme_activation_call {
    /** sizeof this struct as the library knows it. */
    uint32_t struct_size;
    /** Type of all arrays. */
    trireme_dtype dtype;
    /** Rows; may be 0. */
    uint64_t rows;
    /** Columns of the output: hidden units of this rank; may be 0. */
    uint64_t columns;
    /**
     * Columns of the input: `columns`, or twice as many with GATED. There a row has the gates of
     * all its columns, then their values.
     */
    uint64_t input_columns;
    /** Number of the first column among the hidden units of all ranks. */
    uint64_t first_column;
    /** rows by input_columns elements. */
    const void *input;
    /** Backward: rows by columns elements. Forward: NULL. */
    const void *output_gradient;
    /**
     * Forward: the output, rows by columns elements. Backward: the gradient of the input, rows by
     * input_columns elements. It has no byte in common with the others.
     */
    void *result;
} trireme_activation_call; /* since 1.0 */

/**
 * One direction of a caller's activation. It runs on the thread of the call that needs it, and
 * writes every element of `result`.
 *
 * It returns 0, or any other number to fail: then all ranks get TRIREME_ERROR_CALLBACK. For the
 * same bits with every number of ranks, an output depends on the inputs of its own column alone.
 */
typedef int32_t(TRIREME_CALLCONV *trireme_activation_callback)(const trireme_activation_call *call,
                                                               void *user_data);

/** Flags of an MLP. */
enum {
    /** Both layers have a bias. */
    TRIREME_MLP_FLAG_BIAS = 1,
    /** CALLER: the activation has two inputs for each output, a gate and a value. */
    TRIREME_MLP_FLAG_GATED = 2
};

/** An MLP. Start from TRIREME_MLP_OPTIONS_INIT. */
typedef struct trireme_mlp_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0, or a sum of TRIREME_MLP_FLAG_*. Default: 0. */
    uint32_t flags;
    /** Name for messages, as that of a linear layer. Required. */
    const char *name;
    /** Type of weights, biases, input and output. Required. */
    trireme_dtype dtype;
    /** The activation between the layers. Required. */
    trireme_activation_kind activation;
    /** Inputs of the first layer. */
    uint64_t input;
    /** Hidden units of all ranks: outputs of the activation. May be below the world size. */
    uint64_t hidden;
    /** Outputs of the second layer. */
    uint64_t output;
    /** Rows of the whole input in each call. May be 0. */
    uint64_t rows;
    /** CALLER: the activation. Required there, must be NULL for other kinds. */
    trireme_activation_callback forward;
    /** CALLER: the gradient of its input. Required there, must be NULL for other kinds. */
    trireme_activation_callback backward;
    /** CALLER: handed to both. It lives as long as the layer. */
    void *user_data;
} trireme_mlp_options; /* since 1.0 */

/** No MLP yet. */
#define TRIREME_MLP_OPTIONS_INIT TRIREME_INIT(trireme_mlp_options)

/** Weights of an MLP on this rank. Start from TRIREME_MLP_WEIGHTS_INIT. */
typedef struct trireme_mlp_weights {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t reserved;
    /** info.fc1_rows by `input` elements. Gated: rows of all gates, then of all values. */
    const void *fc1_weight;
    /** info.fc1_rows elements; NULL without BIAS. */
    const void *fc1_bias;
    /** `output` by info.count elements. */
    const void *fc2_weight;
    /** `output` elements; NULL without BIAS. */
    const void *fc2_bias;
} trireme_mlp_weights; /* since 1.0 */

/** No weights yet. */
#define TRIREME_MLP_WEIGHTS_INIT TRIREME_INIT(trireme_mlp_weights)

/** Gradients of these weights, of info.gradient_dtype. Start from TRIREME_MLP_GRADIENTS_INIT. */
typedef struct trireme_mlp_gradients {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t reserved;
    /** As many elements as the weight has. */
    void *fc1_weight;
    /** As many as the bias; NULL without BIAS. */
    void *fc1_bias;
    /** As many as the weight. */
    void *fc2_weight;
    /** As many as the bias; NULL without BIAS. The same on all ranks. */
    void *fc2_bias;
} trireme_mlp_gradients; /* since 1.0 */

/** No gradients yet. */
#define TRIREME_MLP_GRADIENTS_INIT TRIREME_INIT(trireme_mlp_gradients)

/** Sizes and counts of an MLP on this rank. Set struct_size before the call. */
typedef struct trireme_mlp_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Type of the gradients of weights and biases: F32 where the layer has F16 or BF16. */
    trireme_dtype gradient_dtype;
    /** The first hidden unit of this rank. */
    uint64_t first;
    /** Hidden units of this rank; may be 0. */
    uint64_t count;
    /** Rows of this rank's first weight: count, or twice as many if gated. */
    uint64_t fc1_rows;
    /** Rows of this rank's input: all, or its own with SEQUENCE. */
    uint64_t input_rows;
    /** Rows of this rank's output likewise. */
    uint64_t output_rows;
    /** Bytes of `kept` in the calls, which the caller holds from forward to backward. */
    uint64_t kept_bytes;
    /** Bytes of the memory that all layers of the tensor object share, as far as this one needs it.
     */
    uint64_t workspace_bytes;
    /** Rows that are multiplied and exchanged at a time; the last ones may be fewer. */
    uint64_t tile_rows;
    /** Bytes of this rank that peers read in a forward pass. */
    uint64_t forward_bytes;
    /** The same in a pass of trireme_mlp_backward_input(). */
    uint64_t backward_input_bytes;
    /** The same in a pass of trireme_mlp_backward_weight(). */
    uint64_t backward_weight_bytes;
    /** Forward passes that have succeeded. */
    uint64_t forward_passes;
    /** Passes of trireme_mlp_backward_input() that have succeeded. */
    uint64_t backward_input_passes;
    /** Passes of trireme_mlp_backward_weight() that have succeeded. */
    uint64_t backward_weight_passes;
} trireme_mlp_info; /* since 1.0 */

/** An info ready for trireme_mlp_get_info(). */
#define TRIREME_MLP_INFO_INIT TRIREME_INIT(trireme_mlp_info)

/**
 * Makes an MLP: a COLUMN layer, an activation, and a ROW layer with INPUT_SPLIT.
 *
 * Local: does not wait for the peers. Keeps no pointer into `options`, but for user_data. Allocates
 * the memory that its calls need, unless another layer of the tensor object has as much.
 *
 * @param tensor   The tensor object. Its options name a provider of products.
 * @param options  The MLP. Required.
 * @param[out] out_mlp  The new MLP; free it with trireme_mlp_destroy(). Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live tensor object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, a number or flag is unknown, or a
 *                 field does not suit the activation. Or the name is empty, too long, taken, not
 *                 UTF-8 or has a control character. Or an array has more bytes than memory can
 *                 hold.
 * @retval TRIREME_ERROR_INVALID_STATE  The tensor object has no provider of products. Or its
 *                 communicator is destroyed.
 * @retval TRIREME_ERROR_UNSUPPORTED  The provider has no products of this dtype. Or `options` sets
 *                 a field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_mlp_create(
    trireme_tensor *tensor, const trireme_mlp_options *options, trireme_mlp **out_mlp);

/**
 * Destroys an MLP. Its name is free again at once.
 *
 * Never waits for a peer. A call that runs in another thread goes on.
 *
 * @param mlp  An MLP; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_mlp_destroy(trireme_mlp *mlp);

/**
 * Tells the sizes and counts of an MLP.
 *
 * Does not block.
 *
 * @param mlp  The MLP.
 * @param[out] info  Where to write it. Only struct_size is read.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live MLP of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `info` is NULL, or its struct_size is too small.
 *
 * Thread safety: one call at a time per layer.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_mlp_get_info(const trireme_mlp *mlp,
                                                                      trireme_mlp_info *info);

/**
 * Computes the output.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer.
 * Written arrays have no byte in common with another array.
 *
 * @param mlp      The MLP.
 * @param input    info.input_rows by `input` elements.
 * @param weights  This rank's weights. Required.
 * @param[out] output  info.output_rows by `output` elements. After an argument error it is
 *                 untouched. After a failure on the way it may hold anything.
 * @param[out] kept  info.kept_bytes bytes, for the backward passes.
 * @param options  Options of this pass; NULL for the defaults. Its flags must be 0.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live MLP of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, arrays overlap, there is a bias
 *                 without BIAS, or an option is out of range.
 * @retval TRIREME_ERROR_INVALID_STATE  As for trireme_linear_forward().
 * @retval TRIREME_ERROR_UNSUPPORTED  As for trireme_linear_forward().
 * @retval TRIREME_ERROR_CALLBACK  The caller's product or activation failed on a rank.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one call at a time per tensor object.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_mlp_forward(trireme_mlp *mlp, const void *input, const trireme_mlp_weights *weights,
                    void *output, void *kept, const trireme_pass_options *options);

/**
 * Computes the gradient of the input.
 *
 * Collective: blocks as the forward pass does. There is one forward pass at least for each pass of
 * this function.
 *
 * @param mlp      The MLP.
 * @param output_gradient  info.output_rows by `output` elements.
 * @param weights  As in the forward pass. Biases are not read.
 * @param[out] input_gradient  info.input_rows by `input` elements. After an argument error it is
 *                 untouched. After a failure on the way it may hold anything.
 * @param[out] kept  As the forward pass has left it. This pass adds what the next one needs.
 * @param options  Options of this pass; NULL for the defaults. Its flags must be 0.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live MLP of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, arrays overlap, there is a bias
 *                 without BIAS, or an option is out of range.
 * @retval TRIREME_ERROR_INVALID_STATE  There were as many of these passes as forward passes. Or as
 *                 for trireme_linear_forward().
 * @retval TRIREME_ERROR_UNSUPPORTED  As for trireme_linear_forward().
 * @retval TRIREME_ERROR_CALLBACK  The caller's product or activation failed on a rank.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one call at a time per tensor object.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_mlp_backward_input(
    trireme_mlp *mlp, const void *output_gradient, const trireme_mlp_weights *weights,
    void *input_gradient, void *kept, const trireme_pass_options *options);

/**
 * Computes the gradients of this rank's weights and biases. It may come any time after
 * trireme_mlp_backward_input() of the same `kept`.
 *
 * Collective if info.backward_weight_bytes of any rank is above 0: SEQUENCE without KEEP_GATHERED.
 * Then it blocks.
 *
 * @param mlp      The MLP.
 * @param input    As in the forward pass. With KEEP_GATHERED: not read, may be NULL.
 * @param output_gradient  As in trireme_mlp_backward_input(). With SEQUENCE: not read, may be NULL.
 * @param kept     As the earlier passes have left it.
 * @param[out] gradients  The gradients. With TRIREME_PASS_FLAG_ADD they are added to what is there.
 * @param options  Options of this pass; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live MLP of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, arrays overlap, there is a bias's
 *                 gradient without BIAS, or an option is out of range.
 * @retval TRIREME_ERROR_INVALID_STATE  There were as many of these passes as passes of
 *                 trireme_mlp_backward_input(). Or as for trireme_linear_forward().
 * @retval TRIREME_ERROR_UNSUPPORTED  As for trireme_linear_forward().
 * @retval TRIREME_ERROR_CALLBACK  The caller's product failed on a rank.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one call at a time per tensor object.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_mlp_backward_weight(
    trireme_mlp *mlp, const void *input, const void *output_gradient, const void *kept,
    const trireme_mlp_gradients *gradients, const trireme_pass_options *options);

/**
 * Computes what trireme_mlp_backward_input() and then trireme_mlp_backward_weight() compute, with
 * the same bits. Between ranks that a transport joins, exchanges of the input's gradient go on
 * while the gradients of the weights are made (docs/tensor.md).
 *
 * Counts as one pass of each, and moves the bytes of both. All ranks make this call, or all make
 * the two others: if ranks differ, every rank gets TRIREME_ERROR_MISMATCH.
 *
 * Collective: blocks as the forward pass does. Written arrays have no byte in common with another
 * array.
 *
 * @param mlp      The MLP.
 * @param input    As in the forward pass. With KEEP_GATHERED: not read, may be NULL.
 * @param output_gradient  info.output_rows by `output` elements.
 * @param weights  As in the forward pass. Biases are not read.
 * @param[out] input_gradient  info.input_rows by `input` elements. After an argument error it is
 *                 untouched. After a failure on the way it may hold anything.
 * @param kept     As the forward pass has left it. This pass writes to it.
 * @param[out] gradients  The gradients of weights and biases. With TRIREME_PASS_FLAG_ADD they are
 *                 added to what is there. After a failure on the way they may hold anything.
 * @param options  Options of this pass; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live MLP of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, arrays overlap, there is a bias or its
 *                 gradient without BIAS, or an option is out of range.
 * @retval TRIREME_ERROR_INVALID_STATE  There were as many passes of trireme_mlp_backward_input() as
 *                 forward passes. Or as for trireme_linear_forward().
 * @retval TRIREME_ERROR_UNSUPPORTED  As for trireme_linear_forward().
 * @retval TRIREME_ERROR_CALLBACK  The caller's product or activation failed on a rank.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one call at a time per tensor object.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_mlp_backward(trireme_mlp *mlp, const void *input, const void *output_gradient,
                     const trireme_mlp_weights *weights, void *input_gradient, void *kept,
                     const trireme_mlp_gradients *gradients, const trireme_pass_options *options);

TRIREME_END_C

#endif
