#include "layers.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "numbers.hpp"

namespace gpt {

namespace {

constexpr double kNormEpsilon = 1e-5;

// The mean of a row, and what it is multiplied with to have variance 1.
template <class T>
struct Moments {
  T mean, scale;
  Moments(int width, const T* x) {
    T sum = 0, squares = 0;
    for (int i = 0; i < width; ++i) sum += x[i];
    mean = sum / static_cast<T>(width);
    for (int i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean);
    scale = T(1) / std::sqrt(squares / static_cast<T>(width) + static_cast<T>(kNormEpsilon));
  }
};

// Softmax of the first `count` elements, in place. Returns the logarithm of the divisor, with
// which log softmax(x)[i] = x[i] - result.
template <class T>
double softmax(int count, T* x) {
  T largest = x[0];
  for (int i = 1; i < count; ++i) largest = std::max(largest, x[i]);
  for (int i = 0; i < count; ++i) x[i] = exponential(x[i] - largest);
  T sum = 0;
  for (int i = 0; i < count; ++i) sum += x[i];
  const T scale = T(1) / sum;
  for (int i = 0; i < count; ++i) x[i] *= scale;
  return static_cast<double>(largest) + std::log(static_cast<double>(sum));
}

// A block of `qkv` that belongs to one head of one sequence: 0 query, 1 key, 2 value.
template <class T>
T* head_part(const AttentionShape& s, T* qkv, int sequence, int head, int part) {
  return qkv + static_cast<std::ptrdiff_t>(sequence) * s.context * 3 * s.width + part * s.width +
         head * (s.width / s.heads);
}

template <class T>
T* head_rows(const AttentionShape& s, T* y, int sequence, int head) {
  return y + static_cast<std::ptrdiff_t>(sequence) * s.context * s.width +
         head * (s.width / s.heads);
}

}  // namespace

template <class T>
void embedding_forward(int rows, int context, int width, const std::int32_t* tokens, const T* token,
                       const T* position, T* x) {
  for (int row = 0; row < rows; ++row) {
    const T* a = token + static_cast<std::ptrdiff_t>(tokens[row]) * width;
    const T* b = position + static_cast<std::ptrdiff_t>(row % context) * width;
    for (int i = 0; i < width; ++i) *x++ = a[i] + b[i];
  }
}

template <class T>
void embedding_backward(int rows, int context, int width, int vocabulary,
                        const std::int32_t* tokens, const T* dx, T* dtoken, T* dposition) {
  std::fill_n(dtoken, static_cast<std::ptrdiff_t>(vocabulary) * width, T(0));
  std::fill_n(dposition, static_cast<std::ptrdiff_t>(context) * width, T(0));
  for (int row = 0; row < rows; ++row, dx += width) {
    T* a = dtoken + static_cast<std::ptrdiff_t>(tokens[row]) * width;
    T* b = dposition + static_cast<std::ptrdiff_t>(row % context) * width;
    for (int i = 0; i < width; ++i) a[i] += dx[i];
    for (int i = 0; i < width; ++i) b[i] += dx[i];
  }
}

template <class T>
void linear_forward(int rows, int in, int out, const T* x, const T* weight, const T* bias, T* y) {
  for (int row = 0; bias != nullptr && row < rows; ++row)
    std::copy_n(bias, out, y + static_cast<std::ptrdiff_t>(row) * out);
  multiply(rows, out, in, T(1), {x, in}, {weight, out}, bias != nullptr ? T(1) : T(0), y, out);
}

template <class T>
void linear_backward(int rows, int in, int out, const T* x, const T* weight, const T* dy, T* dx,
                     T* dweight, T* dbias) {
  multiply(rows, in, out, T(1), {dy, out}, {weight, out, true}, T(0), dx, in);
  multiply(in, out, rows, T(1), {x, in, true}, {dy, out}, T(0), dweight, out);
  if (dbias == nullptr) return;
  std::fill_n(dbias, out, T(0));
  for (int row = 0; row < rows; ++row, dy += out)
    for (int i = 0; i < out; ++i) dbias[i] += dy[i];
}

template <class T>
void norm_forward(int rows, int width, const T* x, const T* gain, const T* bias, T* y) {
  for (int row = 0; row < rows; ++row, x += width, y += width) {
    const Moments<T> m(width, x);
    for (int i = 0; i < width; ++i) y[i] = (x[i] - m.mean) * m.scale * gain[i] + bias[i];
  }
}

template <class T>
void norm_backward(int rows, int width, const T* x, const T* gain, const T* dy, T* dx, T* dgain,
                   T* dbias) {
  std::fill_n(dgain, width, T(0));
  std::fill_n(dbias, width, T(0));
  for (int row = 0; row < rows; ++row, x += width, dy += width, dx += width) {
    const Moments<T> m(width, x);
    T sum = 0, product = 0;
    for (int i = 0; i < width; ++i) {
      const T normal = (x[i] - m.mean) * m.scale, d = dy[i] * gain[i];
      dgain[i] += dy[i] * normal;
      dbias[i] += dy[i];
      sum += d;
      product += d * normal;
    }
    sum /= static_cast<T>(width);
    product /= static_cast<T>(width);
    for (int i = 0; i < width; ++i) {
      const T normal = (x[i] - m.mean) * m.scale;
      dx[i] += (dy[i] * gain[i] - sum - normal * product) * m.scale;
    }
  }
}

template <class T>
void gelu_forward(std::int64_t count, const T* x, T* y) {
  const T twice = static_cast<T>(2 * std::sqrt(2 / M_PI)), cubic = static_cast<T>(0.044715);
  for (std::int64_t i = 0; i < count; ++i)
    y[i] = x[i] / (T(1) + exponential(-twice * (x[i] + cubic * x[i] * x[i] * x[i])));
}

template <class T>
void gelu_backward(std::int64_t count, const T* x, const T* dy, T* dx) {
  const T twice = static_cast<T>(2 * std::sqrt(2 / M_PI)), cubic = static_cast<T>(0.044715);
  for (std::int64_t i = 0; i < count; ++i) {
    const T square = x[i] * x[i];
    const T s = T(1) / (T(1) + exponential(-twice * (x[i] + cubic * square * x[i])));
    const T slope = s + x[i] * s * (T(1) - s) * twice * (T(1) + T(3) * cubic * square);
    dx[i] = dy[i] * slope;
  }
}

template <class T>
void attention_forward(const AttentionShape& s, const T* qkv, T* weights, T* y) {
  const int size = s.width / s.heads, n = s.context, ld = 3 * s.width;
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(size)));
  for (int sequence = 0; sequence < s.sequences; ++sequence) {
    for (int head = 0; head < s.heads; ++head, weights += n * n) {
      multiply(n, n, size, scale, {head_part(s, qkv, sequence, head, 0), ld},
               {head_part(s, qkv, sequence, head, 1), ld, true}, T(0), weights, n);
      for (int row = 0; row < n; ++row) {
        softmax(row + 1, weights + row * n);
        std::fill_n(weights + row * n + row + 1, n - row - 1, T(0));
      }
      multiply(n, size, n, T(1), {weights, n}, {head_part(s, qkv, sequence, head, 2), ld}, T(0),
               head_rows(s, y, sequence, head), s.width);
    }
  }
}

template <class T>
void attention_backward(const AttentionShape& s, const T* qkv, const T* weights, const T* dy,
                        T* dqkv, T* work) {
  const int size = s.width / s.heads, n = s.context, ld = 3 * s.width;
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(size)));
  for (int sequence = 0; sequence < s.sequences; ++sequence) {
    for (int head = 0; head < s.heads; ++head, weights += n * n) {
      const T* up = head_rows(s, dy, sequence, head);
      multiply(n, size, n, T(1), {weights, n, true}, {up, s.width}, T(0),
               head_part(s, dqkv, sequence, head, 2), ld);
      multiply(n, n, size, T(1), {up, s.width}, {head_part(s, qkv, sequence, head, 2), ld, true},
               T(0), work, n);
      for (int row = 0; row < n; ++row) {  // through the softmax; masked weights are 0
        const T* w = weights + row * n;
        T* d = work + row * n;
        T sum = 0;
        for (int i = 0; i <= row; ++i) sum += w[i] * d[i];
        for (int i = 0; i <= row; ++i) d[i] = w[i] * (d[i] - sum);
        std::fill_n(d + row + 1, n - row - 1, T(0));
      }
      multiply(n, size, n, scale, {work, n}, {head_part(s, qkv, sequence, head, 1), ld}, T(0),
               head_part(s, dqkv, sequence, head, 0), ld);
      multiply(n, size, n, scale, {work, n, true}, {head_part(s, qkv, sequence, head, 0), ld}, T(0),
               head_part(s, dqkv, sequence, head, 1), ld);
    }
  }
}

template <class T>
void dropout(std::int64_t count, double rate, std::uint64_t key, T* x) {
  if (rate == 0) return;
  const T scale = static_cast<T>(1 / (1 - rate));
  for (std::int64_t i = 0; i < count; ++i)
    x[i] = uniform(key, static_cast<std::uint64_t>(i)) < rate ? T(0) : x[i] * scale;
}

template <class T>
double cross_entropy(int rows, int classes, T* scores, const std::int32_t* targets) {
  const T share = static_cast<T>(1.0 / rows);
  double sum = 0;
  for (int row = 0; row < rows; ++row, scores += classes) {
    const double score = scores[targets[row]];
    sum += softmax(classes, scores) - score;
    for (int i = 0; i < classes; ++i) scores[i] *= share;
    scores[targets[row]] -= share;
  }
  return sum / rows;
}

#define GPT_LAYERS(T)                                                                            \
  template void embedding_forward(int, int, int, const std::int32_t*, const T*, const T*, T*);   \
  template void embedding_backward(int, int, int, int, const std::int32_t*, const T*, T*, T*);   \
  template void linear_forward(int, int, int, const T*, const T*, const T*, T*);                 \
  template void linear_backward(int, int, int, const T*, const T*, const T*, T*, T*, T*);        \
  template void norm_forward(int, int, const T*, const T*, const T*, T*);                        \
  template void norm_backward(int, int, const T*, const T*, const T*, T*, T*, T*);               \
  template void gelu_forward(std::int64_t, const T*, T*);                                        \
  template void gelu_backward(std::int64_t, const T*, const T*, T*);                             \
  template void attention_forward(const AttentionShape&, const T*, T*, T*);                      \
  template void attention_backward(const AttentionShape&, const T*, const T*, const T*, T*, T*); \
  template void dropout(std::int64_t, double, std::uint64_t, T*);                                \
  template double cross_entropy(int, int, T*, const std::int32_t*);
GPT_LAYERS(float)
GPT_LAYERS(double)

}  // namespace gpt
