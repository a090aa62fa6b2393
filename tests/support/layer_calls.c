#include "layer_calls.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 20,
    TILE = 7,
    WIDTH = 12,
    HIDDEN = 14,
    CLASSES = 21,
    BLOCKS = 8,
    HEADS = 2,
    HEAD_WIDTH = 3,
    EXPERTS = 4,
    CHOICES = 2
};
/* Floats of an array; no array has more. */
enum { MOST = 2048, INPUTS = 8, OUTPUTS = 4 };

enum keep {
    COLUMN_KEPT,
    ROW_KEPT,
    MLP_KEPT,
    LOSS_KEPT,
    ATTENTION_KEPT,
    ROUTES_KEPT,
    RETURNED_KEPT, /* rows that experts have sent back */
    KEEPS
};

static float *input_of(const struct layer_calls *calls, int number) {
    return calls->memory + number * MOST;
}
static float *output_of(const struct layer_calls *calls, int number) {
    return input_of(calls, INPUTS + number);
}
static float *kept_of(const struct layer_calls *calls, enum keep keep) {
    return input_of(calls, INPUTS + OUTPUTS + (int)keep * 4);
}

/* --- callbacks -------------------------------------------------------------------------------- */

static int32_t tell(const struct layer_calls *calls) {
    return calls->event == NULL ? 0 : calls->event(calls->user_data);
}

static int32_t TRIREME_CALLCONV multiply(const trireme_product *p, void *user_data) {
    const int32_t failed = tell(user_data);
    if (failed != 0) return failed;
    const float *const left = p->left, *const right = p->right;
    for (uint64_t i = 0; i < p->rows; ++i) {
        for (uint64_t j = 0; j < p->columns; ++j) {
            double sum = 0;
            for (uint64_t k = 0; k < p->depth; ++k) {
                const float a =
                    left[p->left_transposed ? k * p->left_step + i : i * p->left_step + k];
                const float b =
                    right[p->right_transposed ? j * p->right_step + k : k * p->right_step + j];
                sum += (double)a * (double)b;
            }
            float *const to = (float *)p->result + i * p->result_step + j;
            *to = (float)(p->add ? (double)*to + sum : sum);
        }
    }
    return 0;
}

static int32_t TRIREME_CALLCONV square(const trireme_activation_call *call, void *user_data) {
    const int32_t failed = tell(user_data);
    if (failed != 0) return failed;
    const float *const x = call->input, *const dy = call->output_gradient;
    float *const to = call->result;
    for (uint64_t i = 0; i < call->rows * call->columns; ++i) {
        to[i] = dy == NULL ? x[i] * x[i] : 2 * x[i] * dy[i];
    }
    return 0;
}

/* --- objects ---------------------------------------------------------------------------------- */

static const char *name_of(const struct layer_calls *calls, const char *name) {
    return calls->variant.named ? name + 1 : name;
}

static trireme_status
make_region(struct layer_calls *calls, const char *name, trireme_region_kind kind,
            trireme_region_dimension dimension, trireme_region **out) {
    trireme_region_options options = TRIREME_REGION_OPTIONS_INIT;
    options.name = name_of(calls, name);
    options.kind = kind;
    options.dimension = dimension;
    options.rows = calls->rows;
    options.columns = WIDTH;
    options.dtype = TRIREME_DTYPE_F32;
    return trireme_region_create(calls->tensor, &options, out);
}

static trireme_status
make_linear(struct layer_calls *calls, const char *name, trireme_linear_kind kind, uint64_t input,
            uint64_t output, trireme_linear **out) {
    trireme_linear_options options = TRIREME_LINEAR_OPTIONS_INIT;
    options.name = name_of(calls, name);
    options.kind = kind;
    options.flags = kind == TRIREME_LINEAR_KIND_ROW
                        ? TRIREME_LINEAR_FLAG_INPUT_SPLIT | TRIREME_LINEAR_FLAG_BIAS
                        : 0;
    options.dtype = TRIREME_DTYPE_F32;
    options.input = input;
    options.output = output;
    options.rows = calls->rows;
    return trireme_linear_create(calls->tensor, &options, out);
}

static trireme_status make_tensor(trireme_communicator *communicator, struct layer_calls *calls) {
    trireme_gemm_options gemm = TRIREME_GEMM_OPTIONS_INIT;
    gemm.kind = TRIREME_GEMM_KIND_CALLER;
    gemm.callback = multiply;
    gemm.user_data = calls;
    trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
    options.blocks = BLOCKS;
    options.flags = TRIREME_TENSOR_FLAG_SEQUENCE;
    options.row_tile = TILE;
    options.gemm = &gemm;
    const trireme_status status = trireme_tensor_create(communicator, &options, &calls->tensor);
    trireme_tensor_info info = TRIREME_TENSOR_INFO_INIT;
    if (status != TRIREME_OK) return status;
    if (trireme_tensor_get_info(calls->tensor, &info) != TRIREME_OK) abort();
    calls->rank = info.rank;
    calls->ranks = info.world_size;
    calls->blocks = info.block_count;
    return TRIREME_OK;
}

static trireme_status make_mlp(struct layer_calls *calls) {
    trireme_mlp_options options = TRIREME_MLP_OPTIONS_INIT;
    options.name = name_of(calls, "fc");
    options.dtype = TRIREME_DTYPE_F32;
    options.activation = TRIREME_ACTIVATION_KIND_CALLER;
    options.forward = options.backward = square;
    options.user_data = calls;
    options.input = options.output = WIDTH;
    options.hidden = HIDDEN;
    options.rows = calls->rows;
    return trireme_mlp_create(calls->tensor, &options, &calls->mlp);
}

static trireme_status make_vocabulary(struct layer_calls *calls) {
    trireme_vocabulary_options options = TRIREME_VOCABULARY_OPTIONS_INIT;
    options.name = name_of(calls, "words");
    options.dtype = TRIREME_DTYPE_F32;
    options.classes = CLASSES;
    options.width = WIDTH;
    options.rows = calls->rows;
    return trireme_vocabulary_create(calls->tensor, &options, &calls->vocabulary);
}

static trireme_status make_context(trireme_communicator *communicator, struct layer_calls *calls) {
    trireme_context_options options = TRIREME_CONTEXT_OPTIONS_INIT;
    options.name = name_of(calls, "attention");
    options.flags = TRIREME_CONTEXT_FLAG_CAUSAL;
    options.positions = calls->rows;
    options.chunks = BLOCKS;
    options.layout = TRIREME_CONTEXT_LAYOUT_CONTIGUOUS;
    options.method = TRIREME_CONTEXT_METHOD_GATHER;
    options.dtype = TRIREME_DTYPE_F32;
    options.heads = HEADS;
    options.width = HEAD_WIDTH;
    options.provider = TRIREME_ATTENTION_PROVIDER_BUILTIN;
    return trireme_context_create(communicator, &options, &calls->context);
}

static trireme_status make_experts(trireme_communicator *communicator, struct layer_calls *calls) {
    trireme_experts_options options = TRIREME_EXPERTS_OPTIONS_INIT;
    options.name = name_of(calls, "moe");
    options.experts = EXPERTS;
    options.top_k = CHOICES;
    options.width = WIDTH + (calls->variant.longer ? 1 : 0);
    options.rows = calls->rows;
    options.dtype = TRIREME_DTYPE_F32;
    options.scores = TRIREME_EXPERTS_SCORES_LOGITS;
    const trireme_status status = trireme_experts_create(communicator, &options, &calls->experts);
    trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
    if (status != TRIREME_OK) return status;
    if (trireme_experts_get_info(calls->experts, &info) != TRIREME_OK) abort();
    const uint64_t most = MOST / options.width; /* rows of an array */
    if (info.most_received > most || info.most_sent > most) abort();
    if (info.kept_bytes > 4 * MOST * sizeof(float)) abort();
    return TRIREME_OK;
}

static void make_numbers(struct layer_calls *calls) {
    const uint64_t count = (uint64_t)MOST * (INPUTS + OUTPUTS + 4 * KEEPS);
    calls->memory = malloc(count * sizeof *calls->memory);
    if (calls->memory == NULL) abort();
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t mixed = (i + 1 + (uint64_t)calls->rank * 97) * 0x9e3779b97f4a7c15u;
        calls->memory[i] = (float)(mixed >> 48) / 65536 - 0.5f;
    }
    /* A bias and the embedding's gradient are whole on all ranks. */
    for (uint64_t i = 0; i < MOST; ++i) input_of(calls, INPUTS - 1)[i] = (float)(i % 7) / 8;
}

trireme_status make_layer_calls(trireme_communicator *communicator, struct layer_variant variant,
                                struct layer_calls *calls) {
    calls->variant = variant;
    calls->rows = ROWS + (variant.longer ? 1 : 0);
    trireme_status status = calls->tensor == NULL ? make_tensor(communicator, calls) : TRIREME_OK;
    if (status == TRIREME_OK && calls->memory == NULL) make_numbers(calls);
    const trireme_region_dimension none = TRIREME_REGION_DIMENSION_NONE,
                                   rows = TRIREME_REGION_DIMENSION_ROWS;
#define MAKE(object, call) \
    if (status == TRIREME_OK && calls->object == NULL) status = (call)
    MAKE(reduce,
         make_region(calls, "sum of parts", TRIREME_REGION_KIND_REDUCE, none, &calls->reduce));
    MAKE(copy, make_region(calls, "same on all", TRIREME_REGION_KIND_COPY, none, &calls->copy));
    MAKE(gather,
         make_region(calls, "whole rows", TRIREME_REGION_KIND_GATHER, rows, &calls->gather));
    MAKE(gather_sum, make_region(calls, "rows of all", TRIREME_REGION_KIND_GATHER_SUM, rows,
                                 &calls->gather_sum));
    MAKE(reduce_scatter, make_region(calls, "own sums", TRIREME_REGION_KIND_REDUCE_SCATTER, rows,
                                     &calls->reduce_scatter));
    MAKE(scatter,
         make_region(calls, "own rows", TRIREME_REGION_KIND_SCATTER, rows, &calls->scatter));
    MAKE(exchange,
         make_region(calls, "heads", TRIREME_REGION_KIND_EXCHANGE, rows, &calls->exchange));
    MAKE(column,
         make_linear(calls, "column", TRIREME_LINEAR_KIND_COLUMN, WIDTH, HIDDEN, &calls->column));
    MAKE(row, make_linear(calls, "row", TRIREME_LINEAR_KIND_ROW, HIDDEN, WIDTH, &calls->row));
    MAKE(mlp, make_mlp(calls));
    MAKE(vocabulary, make_vocabulary(calls));
    MAKE(context, make_context(communicator, calls));
    MAKE(experts, make_experts(communicator, calls));
#undef MAKE
    return status;
}

void free_layer_calls(struct layer_calls *calls) {
    trireme_experts_destroy(calls->experts);
    trireme_context_destroy(calls->context);
    trireme_vocabulary_destroy(calls->vocabulary);
    trireme_mlp_destroy(calls->mlp);
    trireme_linear_destroy(calls->row);
    trireme_linear_destroy(calls->column);
    trireme_region_destroy(calls->exchange);
    trireme_region_destroy(calls->scatter);
    trireme_region_destroy(calls->reduce_scatter);
    trireme_region_destroy(calls->gather_sum);
    trireme_region_destroy(calls->gather);
    trireme_region_destroy(calls->copy);
    trireme_region_destroy(calls->reduce);
    trireme_tensor_destroy(calls->tensor);
    free(calls->memory);
    memset(calls, 0, sizeof *calls);
}

/* --- calls ------------------------------------------------------------------------------------ */

static const struct {
    const char *name, *object;
    bool local, first;
} about[LAYER_CALLS] = {
    [REDUCE_FORWARD] = {"forward of REDUCE", "sum of parts", false, true},
    [COPY_FORWARD] = {"forward of COPY", "same on all", true, true},
    [COPY_BACKWARD] = {"backward of COPY", "same on all", false, false},
    [GATHER_FORWARD] = {"forward of GATHER", "whole rows", false, true},
    [GATHER_BACKWARD] = {"backward of GATHER", "whole rows", true, false},
    [GATHER_SUM_FORWARD] = {"forward of GATHER_SUM", "rows of all", false, true},
    [GATHER_SUM_BACKWARD] = {"backward of GATHER_SUM", "rows of all", false, false},
    [REDUCE_SCATTER_FORWARD] = {"forward of REDUCE_SCATTER", "own sums", false, true},
    [REDUCE_SCATTER_BACKWARD] = {"backward of REDUCE_SCATTER", "own sums", false, false},
    [SCATTER_FORWARD] = {"forward of SCATTER", "own rows", true, true},
    [SCATTER_BACKWARD] = {"backward of SCATTER", "own rows", false, false},
    [EXCHANGE_FORWARD] = {"forward of EXCHANGE", "heads", false, true},
    [EXCHANGE_BACKWARD] = {"backward of EXCHANGE", "heads", false, false},
    [COLUMN_FORWARD] = {"column forward", "column", false, true},
    [COLUMN_BACKWARD] = {"column backward", "column", false, false},
    [COLUMN_WEIGHT] = {"column weight", "column", false, false},
    [COLUMN_BOTH] = {"column gradients", "column", false, false},
    [ROW_FORWARD] = {"row forward", "row", false, true},
    [ROW_BACKWARD] = {"row backward", "row", false, false},
    [ROW_WEIGHT] = {"row weight", "row", true, false},
    [ROW_BOTH] = {"row gradients", "row", false, false},
    [MLP_FORWARD] = {"MLP forward", "fc", false, true},
    [MLP_BACKWARD] = {"MLP backward", "fc", false, false},
    [MLP_WEIGHT] = {"MLP weight", "fc", false, false},
    [MLP_BOTH] = {"MLP gradients", "fc", false, false},
    [EMBED] = {"embed", "words", false, true},
    [EMBED_BACKWARD] = {"embed backward", "words", true, true},
    [LOSS] = {"loss", "words", false, true},
    [LOSS_BACKWARD] = {"loss backward", "words", true, false},
    [ATTEND] = {"attention forward", "attention", false, true},
    [ATTEND_BACKWARD] = {"attention backward", "attention", false, false},
    [ROUTE] = {"route", "moe", false, true},
    [DISPATCH] = {"dispatch", "moe", false, false},
    [COMBINE] = {"combine", "moe", false, false},
    [COMBINE_BACKWARD] = {"combine backward", "moe", false, false},
    [DISPATCH_BACKWARD] = {"dispatch backward", "moe", false, false},
    [ROUTE_BACKWARD] = {"route backward", "moe", true, false},
};

const char *layer_call_name(enum layer_call call) {
    return about[call].name;
}
const char *layer_call_object(enum layer_call call) {
    return about[call].object;
}
bool is_local_call(enum layer_call call) {
    return about[call].local;
}
bool is_first_call(enum layer_call call) {
    return about[call].first;
}

bool is_forward_call(enum layer_call call) {
    return is_first_call(call) || call == DISPATCH || call == COMBINE;
}
bool is_weight_call(enum layer_call call) {
    return call == COLUMN_WEIGHT || call == ROW_WEIGHT || call == MLP_WEIGHT ||
           call == COLUMN_BOTH || call == ROW_BOTH || call == MLP_BOTH;
}

static trireme_status run_region(struct layer_calls *calls, trireme_region *region, bool forward) {
    trireme_region_info info = TRIREME_REGION_INFO_INIT;
    const trireme_status status = trireme_region_get_info(region, &info);
    if (status != TRIREME_OK) return status;
    const void *parts[BLOCKS];
    const uint32_t count = forward ? info.forward_parts : info.backward_parts;
    for (uint32_t i = 0; i < count; ++i) parts[i] = input_of(calls, 0) + i * 100;
    return forward ? trireme_region_forward(region, parts, count, output_of(calls, 0), NULL)
                   : trireme_region_backward(region, parts, count, output_of(calls, 0), NULL);
}

static trireme_status run_mlp(struct layer_calls *calls, enum layer_call call) {
    trireme_mlp_weights weights = TRIREME_MLP_WEIGHTS_INIT;
    weights.fc1_weight = input_of(calls, 1);
    weights.fc2_weight = input_of(calls, 2);
    trireme_mlp_gradients gradients = TRIREME_MLP_GRADIENTS_INIT;
    gradients.fc1_weight = output_of(calls, 0);
    gradients.fc2_weight = output_of(calls, 1);
    float *const kept = kept_of(calls, MLP_KEPT);
    if (call == MLP_FORWARD) {
        return trireme_mlp_forward(calls->mlp, input_of(calls, 0), &weights, output_of(calls, 0),
                                   kept, NULL);
    }
    if (call == MLP_BACKWARD) {
        return trireme_mlp_backward_input(calls->mlp, input_of(calls, 3), &weights,
                                          output_of(calls, 0), kept, NULL);
    }
    return trireme_mlp_backward_weight(calls->mlp, input_of(calls, 0), input_of(calls, 3), kept,
                                       &gradients, NULL);
}

static void clear_outputs(struct layer_calls *calls) {
    for (int i = 0; i < OUTPUTS * MOST; ++i) output_of(calls, 0)[i] = 0.25f;
}

static trireme_status run_mlp_gradients(struct layer_calls *calls) {
    trireme_mlp_info info = TRIREME_MLP_INFO_INIT;
    trireme_status status = trireme_mlp_get_info(calls->mlp, &info);
    if (status == TRIREME_OK && info.backward_input_passes == info.forward_passes) {
        status = run_mlp(calls, MLP_FORWARD);
        clear_outputs(calls);
    }
    if (status != TRIREME_OK) return status;
    trireme_mlp_weights weights = TRIREME_MLP_WEIGHTS_INIT;
    weights.fc1_weight = input_of(calls, 1);
    weights.fc2_weight = input_of(calls, 2);
    trireme_mlp_gradients gradients = TRIREME_MLP_GRADIENTS_INIT;
    gradients.fc1_weight = output_of(calls, 1);
    gradients.fc2_weight = output_of(calls, 2);
    return trireme_mlp_backward(calls->mlp, input_of(calls, 0), input_of(calls, 3), &weights,
                                output_of(calls, 0), kept_of(calls, MLP_KEPT), &gradients, NULL);
}

static trireme_status run_linear(struct layer_calls *calls, enum layer_call call) {
    const bool is_row = call >= ROW_FORWARD;
    trireme_linear *const linear = is_row ? calls->row : calls->column;
    float *const kept = kept_of(calls, is_row ? ROW_KEPT : COLUMN_KEPT);
    const float *const x = input_of(calls, 0), *const dy = input_of(calls, 3);
    switch (call) {
        case COLUMN_FORWARD:
        case ROW_FORWARD:
            return trireme_linear_forward(linear, x, input_of(calls, 1),
                                          is_row ? input_of(calls, INPUTS - 1) : NULL,
                                          output_of(calls, 0), kept, NULL);
        case COLUMN_BACKWARD:
        case ROW_BACKWARD:
            return trireme_linear_backward_input(linear, dy, input_of(calls, 1),
                                                 output_of(calls, 0), kept, NULL);
        default:
            return trireme_linear_backward_weight(linear, x, dy, kept, output_of(calls, 0),
                                                  is_row ? output_of(calls, 1) : NULL, NULL);
    }
}

static trireme_status run_linear_gradients(struct layer_calls *calls, bool is_row) {
    trireme_linear *const linear = is_row ? calls->row : calls->column;
    trireme_linear_info info = TRIREME_LINEAR_INFO_INIT;
    trireme_status status = trireme_linear_get_info(linear, &info);
    if (status == TRIREME_OK && (info.backward_input_passes == info.forward_passes ||
                                 info.backward_weight_passes == info.forward_passes)) {
        status = run_linear(calls, is_row ? ROW_FORWARD : COLUMN_FORWARD);
        clear_outputs(calls);
    }
    if (status != TRIREME_OK) return status;
    return trireme_linear_backward(linear, input_of(calls, 0), input_of(calls, 3),
                                   input_of(calls, 1), output_of(calls, 0),
                                   kept_of(calls, is_row ? ROW_KEPT : COLUMN_KEPT),
                                   output_of(calls, 1), is_row ? output_of(calls, 2) : NULL, NULL);
}

static trireme_status run_vocabulary(struct layer_calls *calls, enum layer_call call) {
    trireme_vocabulary *const words = calls->vocabulary;
    int32_t tokens[ROWS + 1];
    for (int i = 0; i <= ROWS; ++i) tokens[i] = (i * 5 + (calls->variant.tokens ? 1 : 0)) % CLASSES;
    const trireme_dtype dtype = TRIREME_DTYPE_I32;
    const uint64_t rows = calls->rows;
    const float *const x = input_of(calls, 4);
    switch (call) {
        case EMBED:
            return trireme_vocabulary_embed(words, tokens, dtype, rows, x, output_of(calls, 0),
                                            NULL);
        case EMBED_BACKWARD:
            return trireme_vocabulary_embed_backward(words, tokens, dtype, rows,
                                                     input_of(calls, INPUTS - 1),
                                                     output_of(calls, 0));
        case LOSS:
            return trireme_vocabulary_loss(words, tokens, dtype, rows, x, output_of(calls, 0),
                                           kept_of(calls, LOSS_KEPT), NULL);
        default:
            return trireme_vocabulary_loss_backward(words, tokens, dtype, rows, x,
                                                    kept_of(calls, LOSS_KEPT), NULL,
                                                    output_of(calls, 0));
    }
}

static trireme_status run_context(struct layer_calls *calls, bool forward) {
    trireme_attention_arrays arrays = TRIREME_ATTENTION_ARRAYS_INIT;
    arrays.q = input_of(calls, 0);
    arrays.k = input_of(calls, 1);
    arrays.v = input_of(calls, 2);
    arrays.kept = kept_of(calls, ATTENTION_KEPT);
    arrays.output = arrays.kept + MOST;
    if (forward) return trireme_context_attention_forward(calls->context, &arrays, NULL);
    arrays.d_output = input_of(calls, 3);
    arrays.dq = output_of(calls, 0);
    arrays.dk = output_of(calls, 1);
    arrays.dv = output_of(calls, 2);
    return trireme_context_attention_backward(calls->context, &arrays, NULL);
}

static trireme_status run_experts(struct layer_calls *calls, enum layer_call call) {
    trireme_experts *const experts = calls->experts;
    void *const kept = kept_of(calls, ROUTES_KEPT);
    float *const out = output_of(calls, 0), *const returned = kept_of(calls, RETURNED_KEPT);
    switch (call) {
        case ROUTE: {
            trireme_experts_route_arrays arrays = TRIREME_EXPERTS_ROUTE_ARRAYS_INIT;
            trireme_experts_route_info routed = TRIREME_EXPERTS_ROUTE_INFO_INIT;
            uint64_t segments[EXPERTS * BLOCKS + 1];
            arrays.rows = calls->rows;
            arrays.scores = input_of(calls, 1);
            arrays.kept = kept;
            arrays.segments = segments;
            arrays.weights = out;
            return trireme_experts_route(experts, &arrays, &routed, NULL);
        }
        case DISPATCH:
            return trireme_experts_dispatch(experts, kept, input_of(calls, 0), out, NULL);
        case COMBINE:
            return trireme_experts_combine(experts, kept, input_of(calls, 2), returned, out, NULL);
        case COMBINE_BACKWARD:
            return trireme_experts_combine_backward(experts, kept, input_of(calls, 3), returned,
                                                    out, output_of(calls, 1), NULL);
        case DISPATCH_BACKWARD:
            return trireme_experts_dispatch_backward(experts, kept, input_of(calls, 4), out, NULL);
        default:
            return trireme_experts_route_backward(experts, kept, input_of(calls, 1),
                                                  input_of(calls, 5), NULL, out);
    }
}

trireme_status make_layer_call(struct layer_calls *calls, enum layer_call call) {
    clear_outputs(calls);
    calls->last = call;
    const int32_t failed = tell(calls);
    if (failed != 0) return TRIREME_ERROR_CALLBACK;
    switch (call) {
        case REDUCE_FORWARD: return run_region(calls, calls->reduce, true);
        case COPY_FORWARD: return run_region(calls, calls->copy, true);
        case COPY_BACKWARD: return run_region(calls, calls->copy, false);
        case GATHER_FORWARD: return run_region(calls, calls->gather, true);
        case GATHER_BACKWARD: return run_region(calls, calls->gather, false);
        case GATHER_SUM_FORWARD: return run_region(calls, calls->gather_sum, true);
        case GATHER_SUM_BACKWARD: return run_region(calls, calls->gather_sum, false);
        case REDUCE_SCATTER_FORWARD: return run_region(calls, calls->reduce_scatter, true);
        case REDUCE_SCATTER_BACKWARD: return run_region(calls, calls->reduce_scatter, false);
        case SCATTER_FORWARD: return run_region(calls, calls->scatter, true);
        case SCATTER_BACKWARD: return run_region(calls, calls->scatter, false);
        case EXCHANGE_FORWARD: return run_region(calls, calls->exchange, true);
        case EXCHANGE_BACKWARD: return run_region(calls, calls->exchange, false);
        case COLUMN_FORWARD:
        case COLUMN_BACKWARD:
        case COLUMN_WEIGHT:
        case ROW_FORWARD:
        case ROW_BACKWARD:
        case ROW_WEIGHT: return run_linear(calls, call);
        case COLUMN_BOTH:
        case ROW_BOTH: return run_linear_gradients(calls, call == ROW_BOTH);
        case MLP_FORWARD:
        case MLP_BACKWARD:
        case MLP_WEIGHT: return run_mlp(calls, call);
        case MLP_BOTH: return run_mlp_gradients(calls);
        case EMBED:
        case EMBED_BACKWARD:
        case LOSS:
        case LOSS_BACKWARD: return run_vocabulary(calls, call);
        case ATTEND:
        case ATTEND_BACKWARD: return run_context(calls, call == ATTEND);
        case ROUTE:
        case DISPATCH:
        case COMBINE:
        case COMBINE_BACKWARD:
        case DISPATCH_BACKWARD:
        case ROUTE_BACKWARD: return run_experts(calls, call);
        default: abort();
    }
}

uint64_t hash_of_outputs(const struct layer_calls *calls) {
    uint64_t hash = 1;
    /* The output of attention lies elsewhere, because backward reads it. */
    const float *const written =
        calls->last == ATTEND ? kept_of(calls, ATTENTION_KEPT) + MOST : output_of(calls, 0);
    const int count = calls->last == ATTEND ? 16 : OUTPUTS * MOST;
    for (int i = 0; i < count; ++i) {
        uint32_t word = 0;
        memcpy(&word, &written[i], sizeof word);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return hash;
}
