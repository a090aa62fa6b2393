#include "network.hpp"

#include <algorithm>

#include "layers.hpp"
#include "numbers.hpp"

namespace gpt {

namespace {

template <class T>
const T* parameter(const trireme_layer_call& call, int place) {
  return static_cast<const T*>(call.parameters[place]);
}

template <class T>
T* gradient(const trireme_layer_call& call, int place) {
  return static_cast<T*>(call.gradients[place]);
}

// Values that forward of a block leaves for its backward, one after the other in `saved`.
template <class T>
struct Kept {
  static std::uint64_t count(const Config& config, int rows) {
    const auto narrow = static_cast<std::uint64_t>(rows) * config.width;
    return 15 * narrow + static_cast<std::uint64_t>(rows) * config.heads * config.context;
  }
  Kept(std::int64_t narrow, void* saved)
      : normal1(static_cast<T*>(saved)),
        qkv(normal1 + narrow),
        mixed(qkv + 3 * narrow),
        middle(mixed + narrow),
        normal2(middle + narrow),
        wide(normal2 + narrow),
        bent(wide + 4 * narrow),
        weights(bent + 4 * narrow) {}
  T *const normal1, *const qkv, *const mixed, *const middle, *const normal2, *const wide,
                                                                                 *const bent,
                                                                                     *const weights;
};

// Dropout happens in training only. It follows from the call's seed, which is the same in forward,
// when forward is computed again, and in backward.
template <class T>
void drop(const Config& config, const trireme_layer_call& call, int place, std::int64_t count,
          T* x) {
  if (call.phase == TRIREME_PHASE_EVALUATE) return;
  dropout(count, config.dropout, stream(call.random_seed, static_cast<std::uint64_t>(place)), x);
}

template <class T>
void add(std::int64_t count, const T* x, T* y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = x[i] + y[i];
}

template <class T>
void turn(int rows, int columns, const T* from, T* to) {
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      to[column * rows + row] = from[row * columns + column];
}

const Batch& batch_of(const trireme_layer_call& call) {
  return *static_cast<const Batch*>(call.batch);
}

}  // namespace

template <class T>
Network<T>::Network(const Config& config, int sequences)
    : config_(config),
      sequences_(sequences),
      rows_(sequences * config.context),
      narrow_(narrow()),
      wide_(4 * narrow()),
      square_(static_cast<std::size_t>(config.context) * config.context),
      turned_(config.tie ? static_cast<std::size_t>(config.width) * config.vocabulary : 0),
      turned_gradient_(turned_.size()) {}

template <class T>
std::uint64_t Network<T>::output_bytes(int layer) const {
  return is_head(layer) ? 0 : narrow() * sizeof(T);
}

template <class T>
std::uint64_t Network<T>::saved_bytes(int layer) const {
  if (layer == 0) return 0;
  if (!is_head(layer)) return Kept<T>::count(config_, rows_) * sizeof(T);
  return (static_cast<std::uint64_t>(rows_) * config_.vocabulary + narrow()) * sizeof(T);
}

template <class T>
void Network<T>::forward(const trireme_layer_call& call) {
  if (call.number == 0) return embedding_forward(call);
  if (is_head(call.number)) return head_forward(call);
  block_forward(call);
}

template <class T>
void Network<T>::backward(const trireme_layer_call& call) {
  if (call.number == 0) return embedding_backward(call);
  if (is_head(call.number)) return head_backward(call);
  block_backward(call);
}

template <class T>
void Network<T>::embedding_forward(const trireme_layer_call& call) const {
  gpt::embedding_forward(rows_, config_.context, config_.width,
                         batch_of(call).tokens + std::int64_t{call.leaf} * rows_,
                         parameter<T>(call, EmbeddingAt::token),
                         parameter<T>(call, EmbeddingAt::position), static_cast<T*>(call.output));
}

template <class T>
void Network<T>::embedding_backward(const trireme_layer_call& call) const {
  gpt::embedding_backward(rows_, config_.context, config_.width, config_.vocabulary,
                          batch_of(call).tokens + std::int64_t{call.leaf} * rows_,
                          static_cast<const T*>(call.output_gradient),
                          gradient<T>(call, EmbeddingAt::token),
                          gradient<T>(call, EmbeddingAt::position));
}

template <class T>
void Network<T>::block_forward(const trireme_layer_call& call) const {
  using At = BlockAt;
  const auto p = [&](int place) { return parameter<T>(call, place); };
  const int n = rows_, d = config_.width;
  const std::int64_t count = std::int64_t{n} * d;
  const Kept<T> k(count, call.saved);
  const T* x = static_cast<const T*>(call.input);
  norm_forward(n, d, x, p(At::norm1_gain), p(At::norm1_bias), k.normal1);
  linear_forward<T>(n, d, 3 * d, k.normal1, p(At::attention_weight), p(At::attention_bias), k.qkv);
  attention_forward<T>({sequences_, config_.context, d, config_.heads}, k.qkv, k.weights, k.mixed);
  linear_forward<T>(n, d, d, k.mixed, p(At::project_weight), p(At::project_bias), k.middle);
  drop(config_, call, 0, count, k.middle);
  add(count, x, k.middle);

  T* y = static_cast<T*>(call.output);
  norm_forward<T>(n, d, k.middle, p(At::norm2_gain), p(At::norm2_bias), k.normal2);
  linear_forward<T>(n, d, 4 * d, k.normal2, p(At::expand_weight), p(At::expand_bias), k.wide);
  gelu_forward<T>(4 * count, k.wide, k.bent);
  linear_forward<T>(n, 4 * d, d, k.bent, p(At::contract_weight), p(At::contract_bias), y);
  drop(config_, call, 1, count, y);
  add<T>(count, k.middle, y);
}

template <class T>
void Network<T>::block_backward(const trireme_layer_call& call) {
  using At = BlockAt;
  const auto p = [&](int place) { return parameter<T>(call, place); };
  const auto g = [&](int place) { return gradient<T>(call, place); };
  const int n = rows_, d = config_.width;
  const std::int64_t count = std::int64_t{n} * d;
  const Kept<T> k(count, call.saved);
  T *const narrow = narrow_.data(), *const wide = wide_.data();
  // The gradient of the residual stream, to which the norms add.
  T* const stream = static_cast<T*>(call.input_gradient);
  std::copy_n(static_cast<const T*>(call.output_gradient), count, stream);

  std::copy_n(stream, count, narrow);
  drop(config_, call, 1, count, narrow);
  linear_backward<T>(n, 4 * d, d, k.bent, p(At::contract_weight), narrow, wide,
                     g(At::contract_weight), g(At::contract_bias));
  gelu_backward<T>(4 * count, k.wide, wide, wide);
  linear_backward<T>(n, d, 4 * d, k.normal2, p(At::expand_weight), wide, narrow,
                     g(At::expand_weight), g(At::expand_bias));
  norm_backward<T>(n, d, k.middle, p(At::norm2_gain), narrow, stream, g(At::norm2_gain),
                   g(At::norm2_bias));

  // The gradient of queries, keys and values is 3 wide and that of what attention gave 1.
  T* const mixed = wide + 3 * count;
  std::copy_n(stream, count, narrow);
  drop(config_, call, 0, count, narrow);
  linear_backward<T>(n, d, d, k.mixed, p(At::project_weight), narrow, mixed, g(At::project_weight),
                     g(At::project_bias));
  attention_backward<T>({sequences_, config_.context, d, config_.heads}, k.qkv, k.weights, mixed,
                        wide, square_.data());
  linear_backward<T>(n, d, 3 * d, k.normal1, p(At::attention_weight), wide, narrow,
                     g(At::attention_weight), g(At::attention_bias));
  norm_backward(n, d, static_cast<const T*>(call.input), p(At::norm1_gain), narrow, stream,
                g(At::norm1_gain), g(At::norm1_bias));
}

template <class T>
const T* Network<T>::head_weight(const trireme_layer_call& call) {
  const T* const weight = parameter<T>(call, HeadAt::weight);
  if (!config_.tie) return weight;
  turn(config_.vocabulary, config_.width, weight, turned_.data());
  return turned_.data();
}

template <class T>
void Network<T>::head_forward(const trireme_layer_call& call) {
  T* const scores = static_cast<T*>(call.saved);
  T* const normal = scores + std::int64_t{rows_} * config_.vocabulary;
  norm_forward(rows_, config_.width, static_cast<const T*>(call.input),
               parameter<T>(call, HeadAt::norm_gain), parameter<T>(call, HeadAt::norm_bias),
               normal);
  linear_forward<T>(rows_, config_.width, config_.vocabulary, normal, head_weight(call), nullptr,
                    scores);
  if (call.loss != nullptr)
    *call.loss = cross_entropy(rows_, config_.vocabulary, scores,
                               batch_of(call).targets + std::int64_t{call.leaf} * rows_);
}

template <class T>
void Network<T>::head_backward(const trireme_layer_call& call) {
  const std::int64_t count = std::int64_t{rows_} * config_.vocabulary;
  T* const dscores = static_cast<T*>(call.saved);
  const T* const normal = dscores + count;
  for (std::int64_t i = 0; i < count; ++i) dscores[i] *= static_cast<T>(call.loss_scale);
  T* const stream = static_cast<T*>(call.input_gradient);
  std::fill_n(stream, narrow(), T(0));
  T* const dweight = gradient<T>(call, HeadAt::weight);
  linear_backward<T>(rows_, config_.width, config_.vocabulary, normal, head_weight(call), dscores,
                     narrow_.data(), config_.tie ? turned_gradient_.data() : dweight, nullptr);
  if (config_.tie) turn(config_.width, config_.vocabulary, turned_gradient_.data(), dweight);
  norm_backward<T>(rows_, config_.width, static_cast<const T*>(call.input),
                   parameter<T>(call, HeadAt::norm_gain), narrow_.data(), stream,
                   gradient<T>(call, HeadAt::norm_gain), gradient<T>(call, HeadAt::norm_bias));
}

template class Network<float>;
template class Network<double>;

}  // namespace gpt
