/**
 * @file vocabulary.h
 * @brief A vocabulary that tensor-parallel ranks split: embedding, and cross-entropy of logits.
 *
 * Each rank holds the classes of its blocks: those of trireme_tensor_range() over `classes`. The
 * vocabulary may have any size, and a rank may hold no class. Nothing is padded.
 *
 * - Embedding: each rank has the weight rows of its classes. trireme_vocabulary_embed() returns
 *   the rows of all tokens on all ranks. Each row is copied from its owner, so it has the owner's
 *   bits, -0.0 and NaN among them.
 * - Cross-entropy: each rank has the columns of the logits of its classes.
 *   trireme_vocabulary_loss() returns the loss of each row on all ranks.
 *
 * Symbols of a row: x are its logits, and y is its target. V is the number of classes. s is the
 * label smoothing, and z the factor of the z-loss. lse is log(sum over all classes of exp(x)).
 *
 * - Loss: `lse - (1 - s) x[y] - s/V * (sum of x) + z lse^2`.
 * - Gradient of x[i]: `(1 + 2 z lse) exp(x[i] - lse) - s/V`. That of x[y] is less by 1 - s.
 *
 * Label smoothing: Szegedy et al. 2016, with the uniform distribution over the whole vocabulary.
 * z-loss: Chowdhery et al. 2022 (PaLM), section 5. The mean is the caller's: it gives the weight of
 * each row, such as 1 / (rows of all data ranks whose target counts), as the gradient of its loss.
 *
 * Bits: with `blocks` of G in the tensor object, losses, gradients and embeddings have the same
 * bits for every number of ranks from 1 to G. With `blocks` of 0 they have them for the same number
 * of ranks. The exponential and the logarithm are the library's own, so bits do not depend on the
 * processor. Exponentials of f32, f16 and bf16 logits are made in f32, and added in f64. Those
 * below e^-87 of the row's largest one count as 0; with f64, those below e^-708.
 *
 * Numbers that are not finite:
 * - A row with a NaN, with +inf, or with -inf alone has no soft-max: its loss is NaN, and so is
 *   each of its gradients.
 * - Else -inf is a masked class. The loss is +inf if the target is masked, or if labels are
 *   smoothed. Gradients are finite.
 * - A row with the ignored target has loss 0 and gradients 0, whatever its logits.
 *
 * Tokens and targets are the same on all ranks. Ranks compare them, the row count, the name and the
 * options in each embed and loss pass, at no further message. If ranks differ, every rank gets
 * TRIREME_ERROR_MISMATCH.
 *
 * Order: embed and loss passes are collectives of the tensor object's communicator. All ranks make
 * them in one order with each other and with the communicator's other collectives. The two backward
 * passes work on this rank alone.
 *
 * Ownership: trireme_vocabulary_create() makes an object, and trireme_vocabulary_destroy() destroys
 * it. It keeps its tensor object alive. Once the communicator is destroyed, embed and loss passes
 * answer TRIREME_ERROR_INVALID_STATE.
 *
 * Thread safety: one thread at a time may make passes of the same object. Other calls may run on
 * any thread, also concurrently.
 */
#ifndef TRIREME_VOCABULARY_H
#define TRIREME_VOCABULARY_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>
#include <trireme/tensor.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** A vocabulary that ranks split. */
typedef struct trireme_vocabulary trireme_vocabulary;

/** Bytes that a loss pass keeps of each row for its backward pass. */
#define TRIREME_VOCABULARY_KEPT_BYTES 16

/** Flags of trireme_vocabulary_options. */
enum {
    /** Rows whose target is `ignored_target` count for nothing. Else each target is a class. */
    TRIREME_VOCABULARY_FLAG_IGNORE = 1
};

/** One vocabulary. Start from TRIREME_VOCABULARY_OPTIONS_INIT. */
typedef struct trireme_vocabulary_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0, or TRIREME_VOCABULARY_FLAG_IGNORE. */
    uint32_t flags;
    /**
     * Name for messages, which ranks compare: 1 to 63 bytes of UTF-8 without control characters.
     * Required.
     */
    const char *name;
    /** Classes of all ranks together; 1 or more. Required. */
    uint64_t classes;
    /** Elements of an embedding. Default: 0, embeddings without elements. */
    uint64_t width;
    /** Most rows of a pass; memory is planned for so many. Default: 0, passes without rows. */
    uint64_t rows;
    /** Type of weights, embeddings, logits and their gradients: f32, f64, f16, bf16. Required. */
    trireme_dtype dtype;
    /** Must be 0. */
    uint32_t reserved;
    /** Share of the target that all classes get alike. In [0, 1]. Default: 0. */
    double label_smoothing;
    /** Factor of the square of the logarithm of the sum. Finite, 0 or more. Default: 0. */
    double z_loss;
    /** Target of rows to ignore; may be no class. Must be 0 without the flag IGNORE. */
    int64_t ignored_target;
} trireme_vocabulary_options; /* since 1.0 */

/** No vocabulary yet. */
#define TRIREME_VOCABULARY_OPTIONS_INIT TRIREME_INIT(trireme_vocabulary_options)

/** Sizes of a vocabulary on this rank. Set struct_size before the call. */
typedef struct trireme_vocabulary_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** The first class of this rank. */
    uint64_t first_class;
    /** Classes of this rank: rows of its weight, and columns of its logits. May be 0. */
    uint64_t class_count;
    /** Bytes at `kept` of a loss pass with options.rows rows. */
    uint64_t kept_bytes;
    /** Memory of the object's arrays, which trireme_vocabulary_create() allocates. */
    uint64_t memory_bytes;
    /**
     * Memory that an embed pass takes at most, in bytes. Passes of one communicator use the same
     * memory, one after the other.
     */
    uint64_t scratch_bytes;
    /**
     * Bytes of this rank that peers read in an embed pass, at most. The pass moves each embedding
     * once, however many rows have its token.
     */
    uint64_t embed_bytes;
    /** Bytes of this rank that peers read in a loss pass with options.rows rows. */
    uint64_t loss_bytes;
} trireme_vocabulary_info; /* since 1.0 */

/** An info ready for trireme_vocabulary_get_info(). */
#define TRIREME_VOCABULARY_INFO_INIT TRIREME_INIT(trireme_vocabulary_info)

/**
 * Makes a vocabulary.
 *
 * Local: does not wait for the peers. Keeps no pointer into `options`.
 *
 * @param tensor   The tensor object, whose blocks cut the classes.
 * @param options  The vocabulary. Required.
 * @param[out] out_vocabulary  The new object; free it with trireme_vocabulary_destroy(). Not
 *                 written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live tensor object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, a flag is unknown, `reserved` is not
 *                 0, or a number is out of range. Or the name is empty, too long, not UTF-8 or has
 *                 a control character. Or an array has more bytes than memory can hold.
 * @retval TRIREME_ERROR_UNSUPPORTED  The dtype is not f32, f64, f16 or bf16. Or `options` sets a
 *                 field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_vocabulary_create(trireme_tensor *tensor, const trireme_vocabulary_options *options,
                          trireme_vocabulary **out_vocabulary);

/**
 * Destroys a vocabulary.
 *
 * Never waits for a peer. A pass that runs in another thread goes on.
 *
 * @param vocabulary  A vocabulary; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_vocabulary_destroy(trireme_vocabulary *vocabulary);

/**
 * Tells this rank's classes and the planned bytes.
 *
 * Does not block.
 *
 * @param vocabulary  The vocabulary.
 * @param[out] info  Where to write it. Only struct_size is read.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live vocabulary of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `info` is NULL, or its struct_size is too small.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_vocabulary_get_info(const trireme_vocabulary *vocabulary, trireme_vocabulary_info *info);

/**
 * Returns the embeddings of all tokens, on every rank.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer. The
 * result is whole: a SCATTER region by rows makes it split for sequence parallelism.
 *
 * @param vocabulary   The vocabulary.
 * @param tokens       `rows` classes, the same on all ranks.
 * @param token_dtype  TRIREME_DTYPE_I32 or TRIREME_DTYPE_I64.
 * @param rows         At most options.rows; the same on all ranks.
 * @param weight       `class_count` rows of `width` elements: those of this rank's classes.
 * @param[out] output  `rows` rows of `width` elements. After an argument error it is untouched.
 *                     After a failure on the way it may hold anything.
 * @param options      Options of this pass; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live vocabulary of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer to elements is NULL, or `output` overlaps
 * another array. Or a token is no class, there are too many rows, or an option is out of range. A
 * peer that has called the pass waits until its deadline.
 * @retval TRIREME_ERROR_INVALID_STATE  Called inside a batch or a completion callback of the
 *                     communicator, or after its destruction.
 * @retval TRIREME_ERROR_UNSUPPORTED  token_dtype is another one, or `options` sets a field newer
 *                     than this library.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one call at a time per vocabulary.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_vocabulary_embed(
    trireme_vocabulary *vocabulary, const void *tokens, trireme_dtype token_dtype, uint64_t rows,
    const void *weight, void *output, const trireme_pass_options *options);

/**
 * Adds the gradients of embeddings to the gradient of this rank's weight.
 *
 * Does not block, and compares nothing: give the tokens of the embed pass. The rows of a token are
 * added in ascending order to what `weight_gradient` holds. Sums of f16 and bf16 are made in f32,
 * and rounded once.
 *
 * @param vocabulary   The vocabulary.
 * @param tokens       `rows` classes.
 * @param token_dtype  TRIREME_DTYPE_I32 or TRIREME_DTYPE_I64.
 * @param rows         At most options.rows.
 * @param gradients    `rows` rows of `width` elements: the whole gradient, the same on all ranks.
 * @param[out] weight_gradient  `class_count` rows of `width` elements. After an error it is
 *                     untouched.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live vocabulary of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer to elements is NULL, `weight_gradient` overlaps
 *                     another array, a token is no class, or there are too many rows.
 * @retval TRIREME_ERROR_UNSUPPORTED  token_dtype is another one.
 *
 * Thread safety: one call at a time per vocabulary.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_vocabulary_embed_backward(
    trireme_vocabulary *vocabulary, const void *tokens, trireme_dtype token_dtype, uint64_t rows,
    const void *gradients, void *weight_gradient);

/**
 * Returns the cross-entropy of each row, on every rank.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer. Ranks
 * exchange three numbers of each row for each node of the tree that they hold: the largest logit,
 * the sum of exponentials, and the sum that the formula subtracts.
 *
 * @param vocabulary    The vocabulary.
 * @param targets       `rows` classes or ignored targets, the same on all ranks.
 * @param target_dtype  TRIREME_DTYPE_I32 or TRIREME_DTYPE_I64.
 * @param rows          At most options.rows; the same on all ranks.
 * @param logits        `rows` rows of `class_count` elements: the columns of this rank's classes.
 * @param[out] losses   `rows` numbers of f64 if the logits are f64, else of f32. After an argument
 *                      error it is untouched. After a failure on the way it may hold anything.
 * @param[out] kept     `rows` times TRIREME_VOCABULARY_KEPT_BYTES bytes for the backward pass, or
 *                      NULL if there is none. The caller keeps as many of them as it has
 *                      micro-batches under way.
 * @param options       Options of this pass; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live vocabulary of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer to elements is NULL, or arrays overlap. Or a
 * target is neither a class nor ignored, there are too many rows, or an option is out of range. A
 * peer that has called the pass waits until its deadline.
 * @retval TRIREME_ERROR_INVALID_STATE  Called inside a batch or a completion callback of the
 *                      communicator, or after its destruction.
 * @retval TRIREME_ERROR_UNSUPPORTED  target_dtype is another one, or `options` sets a field newer
 *                      than this library.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed.
 *
 * Thread safety: one call at a time per vocabulary.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_vocabulary_loss(
    trireme_vocabulary *vocabulary, const void *targets, trireme_dtype target_dtype, uint64_t rows,
    const void *logits, void *losses, void *kept, const trireme_pass_options *options);

/**
 * Writes the gradients of this rank's logits.
 *
 * Does not block, and compares nothing: give the targets, logits and kept bytes of one loss pass.
 *
 * @param vocabulary      The vocabulary.
 * @param targets         `rows` classes or ignored targets.
 * @param target_dtype    TRIREME_DTYPE_I32 or TRIREME_DTYPE_I64.
 * @param rows            At most options.rows.
 * @param logits          `rows` rows of `class_count` elements.
 * @param kept            The bytes that the loss pass kept of these rows.
 * @param loss_gradients  `rows` numbers of the losses' type: the gradient of each row's loss. NULL
 *                        means 1 for each row.
 * @param[out] gradients  `rows` rows of `class_count` elements. May be `logits`. After an error it
 *                        is untouched.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live vocabulary of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer to elements is NULL, or `gradients` overlaps
 *                        another array, or the logits in part. Or a target is neither a class nor
 *                        ignored, or there are too many rows.
 * @retval TRIREME_ERROR_UNSUPPORTED  target_dtype is another one.
 *
 * Thread safety: one call at a time per vocabulary.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_vocabulary_loss_backward(
    trireme_vocabulary *vocabulary, const void *targets, trireme_dtype target_dtype, uint64_t rows,
    const void *logits, const void *kept, const void *loss_gradients, void *gradients);

TRIREME_END_C

#endif
