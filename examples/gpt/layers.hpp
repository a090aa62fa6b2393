// Forward and backward of each kind of layer, as functions over arrays: no state, no allocation,
// nothing that knows of parameters' owners, ranks or steps. T is float, or double for the tests.
//
// Arrays are row-major; a row is one position of one sequence. Backward takes what forward read,
// overwrites gradients of parameters, and says of each other output whether it adds.
#pragma once

#include <cstdint>

namespace gpt {

// x[row] = token[tokens[row]] + position[row mod context].
template <class T>
void embedding_forward(int rows, int context, int width, const std::int32_t* tokens, const T* token,
                       const T* position, T* x);
template <class T>
void embedding_backward(int rows, int context, int width, int vocabulary,
                        const std::int32_t* tokens, const T* dx, T* dtoken, T* dposition);

// y = x * weight + bias; weight has `in` rows and `out` columns. bias may be null.
template <class T>
void linear_forward(int rows, int in, int out, const T* x, const T* weight, const T* bias, T* y);
template <class T>
void linear_backward(int rows, int in, int out, const T* x, const T* weight, const T* dy, T* dx,
                     T* dweight, T* dbias);

// Each row to mean 0 and variance 1, then times gain plus bias (Ba et al. 2016, arXiv 1607.06450).
// Backward adds to dx.
template <class T>
void norm_forward(int rows, int width, const T* x, const T* gain, const T* bias, T* y);
template <class T>
void norm_backward(int rows, int width, const T* x, const T* gain, const T* dy, T* dx, T* dgain,
                   T* dbias);

// x / (1 + e^(-2u)), u = sqrt(2 / pi) * (x + 0.044715 x^3): GELU by its tanh form (Hendrycks and
// Gimpel 2016, arXiv 1606.08415). Backward works in place too.
template <class T>
void gelu_forward(std::int64_t count, const T* x, T* y);
template <class T>
void gelu_backward(std::int64_t count, const T* x, const T* dy, T* dx);

// Causal attention with several heads (Vaswani et al. 2017, arXiv 1706.03762). A row of `qkv` is
// the query, key and value of all heads, 3 * width; `weights` has context x context elements for
// each sequence and head.
struct AttentionShape {
  int sequences, context, width, heads;
};
template <class T>
void attention_forward(const AttentionShape& shape, const T* qkv, T* weights, T* y);
// `work` has context x context elements.
template <class T>
void attention_backward(const AttentionShape& shape, const T* qkv, const T* weights, const T* dy,
                        T* dqkv, T* work);

// Sets elements to 0 with probability `rate` and scales the others so that their mean stays. Key
// and index alone choose them, so backward calls the same function on the gradient.
template <class T>
void dropout(std::int64_t count, double rate, std::uint64_t key, T* x);

// Mean over rows of -log softmax(scores)[target]; what lies in `scores` becomes its gradient.
template <class T>
double cross_entropy(int rows, int classes, T* scores, const std::int32_t* targets);

}  // namespace gpt
