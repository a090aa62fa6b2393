#include "network.hpp"

#include <algorithm>

#include "layers.hpp"
#include "numbers.hpp"

namespace gpt {

namespace {

std::uint64_t dropout_key(const Batch& batch, int block, int place) {
  return stream(stream(batch.key, static_cast<std::uint64_t>(block)),
                static_cast<std::uint64_t>(place));
}

template <class T>
void add(std::int64_t count, const T* x, T* y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = x[i] + y[i];
}

}  // namespace

// A segment is what is computed again at one time. Without checkpoints all blocks are one segment;
// the last segment's activations are still there when backward begins.
template <class T>
Network<T>::Network(const Config& config, int most_sequences)
    : config_(config),
      segment_(config.checkpoint > 0 ? std::min(config.checkpoint, config.blocks) : config.blocks) {
  const auto rows = static_cast<std::size_t>(most_sequences) * config.context;
  const std::size_t narrow = rows * config.width;
  kept_.resize(segment_);
  for (Kept& kept : kept_) {
    kept.normal1.resize(narrow);
    kept.qkv.resize(3 * narrow);
    kept.weights.resize(rows * config.heads * config.context);
    kept.mixed.resize(narrow);
    kept.middle.resize(narrow);
    kept.normal2.resize(narrow);
    kept.wide.resize(4 * narrow);
    kept.bent.resize(4 * narrow);
  }
  inputs_.resize(segment_, std::vector<T>(narrow));
  inputs_[0].clear();
  inputs_[0].shrink_to_fit();
  checkpoints_.resize((config.blocks + segment_ - 1) / segment_, std::vector<T>(narrow));
  last_.resize(narrow);
  normal_.resize(narrow);
  scores_.resize(rows * config.vocabulary);
  stream_.resize(narrow);
  narrow_.resize(narrow);
  wide_.resize(4 * narrow);
  square_.resize(static_cast<std::size_t>(config.context) * config.context);
}

template <class T>
std::uint64_t Network<T>::activation_bytes() const {
  std::uint64_t count = last_.size() + normal_.size() + scores_.size();
  for (const auto& input : inputs_) count += input.size();
  for (const auto& input : checkpoints_) count += input.size();
  for (const Kept& k : kept_)
    count += k.normal1.size() + k.qkv.size() + k.weights.size() + k.mixed.size() + k.middle.size() +
             k.normal2.size() + k.wide.size() + k.bent.size();
  return count * sizeof(T);
}

template <class T>
T* Network<T>::input(int block) {
  if (block == config_.blocks) return last_.data();
  const int place = block % segment_;
  return place == 0 ? checkpoints_[block / segment_].data() : inputs_[place].data();
}

template <class T>
void Network<T>::forward(Store<T>& store, const Batch* batch) {
  const T* p[EmbeddingAt::end];
  store.open(0, p);
  if (batch != nullptr)
    embedding_forward(rows(*batch), config_.context, config_.width, batch->tokens,
                      p[EmbeddingAt::token], p[EmbeddingAt::position], input(0));
  store.close(0);
  for (int block = 0; block < config_.blocks; ++block) forward_block(store, block, batch);
  forward_head(store, batch);
}

template <class T>
void Network<T>::backward(Store<T>& store, const Batch* batch) {
  backward_head(store, batch);
  const int segments = static_cast<int>(checkpoints_.size());
  for (int segment = segments - 1; segment >= 0; --segment) {
    const int first = segment * segment_, end = std::min(first + segment_, config_.blocks);
    for (int block = first; segment < segments - 1 && block < end; ++block)
      forward_block(store, block, batch);
    for (int block = end - 1; block >= first; --block) backward_block(store, block, batch);
  }
  const T* p[EmbeddingAt::end];
  store.open(0, p);
  if (batch != nullptr) {
    T* d[EmbeddingAt::end];
    store.gradients(0, d);
    embedding_backward(rows(*batch), config_.context, config_.width, config_.vocabulary,
                       batch->tokens, stream_.data(), d[EmbeddingAt::token],
                       d[EmbeddingAt::position]);
    store.hand_in(0, d);
  }
  store.close(0);
}

template <class T>
void Network<T>::forward_block(Store<T>& store, int block, const Batch* batch) {
  using At = BlockAt;
  const T* p[At::end];
  store.open(block + 1, p);
  if (batch != nullptr) {
    const int n = rows(*batch), d = config_.width;
    const std::int64_t count = std::int64_t{n} * d;
    const double rate = batch->training ? config_.dropout : 0;
    const T* x = input(block);
    Kept& k = kept_[block % segment_];
    norm_forward(n, d, x, p[At::norm1_gain], p[At::norm1_bias], k.normal1.data());
    linear_forward(n, d, 3 * d, k.normal1.data(), p[At::attention_weight], p[At::attention_bias],
                   k.qkv.data());
    attention_forward({batch->sequences, config_.context, d, config_.heads}, k.qkv.data(),
                      k.weights.data(), k.mixed.data());
    linear_forward(n, d, d, k.mixed.data(), p[At::project_weight], p[At::project_bias],
                   k.middle.data());
    dropout(count, rate, dropout_key(*batch, block, 0), k.middle.data());
    add(count, x, k.middle.data());

    T* y = input(block + 1);
    norm_forward(n, d, k.middle.data(), p[At::norm2_gain], p[At::norm2_bias], k.normal2.data());
    linear_forward(n, d, 4 * d, k.normal2.data(), p[At::expand_weight], p[At::expand_bias],
                   k.wide.data());
    gelu_forward(4 * count, k.wide.data(), k.bent.data());
    linear_forward(n, 4 * d, d, k.bent.data(), p[At::contract_weight], p[At::contract_bias], y);
    dropout(count, rate, dropout_key(*batch, block, 1), y);
    add(count, k.middle.data(), y);
  }
  store.close(block + 1);
}

template <class T>
void Network<T>::backward_block(Store<T>& store, int block, const Batch* batch) {
  using At = BlockAt;
  const T* p[At::end];
  store.open(block + 1, p);
  if (batch != nullptr) {
    T* g[At::end];
    store.gradients(block + 1, g);
    const int n = rows(*batch), d = config_.width;
    const std::int64_t count = std::int64_t{n} * d;
    const double rate = batch->training ? config_.dropout : 0;
    const Kept& k = kept_[block % segment_];
    T *const stream = stream_.data(), *const narrow = narrow_.data(), *const wide = wide_.data();

    std::copy_n(stream, count, narrow);
    dropout(count, rate, dropout_key(*batch, block, 1), narrow);
    linear_backward(n, 4 * d, d, k.bent.data(), p[At::contract_weight], narrow, wide,
                    g[At::contract_weight], g[At::contract_bias]);
    gelu_backward(4 * count, k.wide.data(), wide, wide);
    linear_backward(n, d, 4 * d, k.normal2.data(), p[At::expand_weight], wide, narrow,
                    g[At::expand_weight], g[At::expand_bias]);
    norm_backward(n, d, k.middle.data(), p[At::norm2_gain], narrow, stream, g[At::norm2_gain],
                  g[At::norm2_bias]);

    // The gradient of queries, keys and values is 3 wide and that of what attention gave 1.
    T* const mixed = wide + 3 * count;
    std::copy_n(stream, count, narrow);
    dropout(count, rate, dropout_key(*batch, block, 0), narrow);
    linear_backward(n, d, d, k.mixed.data(), p[At::project_weight], narrow, mixed,
                    g[At::project_weight], g[At::project_bias]);
    attention_backward({batch->sequences, config_.context, d, config_.heads}, k.qkv.data(),
                       k.weights.data(), mixed, wide, square_.data());
    linear_backward(n, d, 3 * d, k.normal1.data(), p[At::attention_weight], wide, narrow,
                    g[At::attention_weight], g[At::attention_bias]);
    norm_backward(n, d, input(block), p[At::norm1_gain], narrow, stream, g[At::norm1_gain],
                  g[At::norm1_bias]);
    store.hand_in(block + 1, g);
  }
  store.close(block + 1);
}

template <class T>
void Network<T>::forward_head(Store<T>& store, const Batch* batch) {
  const T* p[HeadAt::end];
  store.open(config_.blocks + 1, p);
  if (batch != nullptr) {
    norm_forward(rows(*batch), config_.width, last_.data(), p[HeadAt::norm_gain],
                 p[HeadAt::norm_bias], normal_.data());
    linear_forward<T>(rows(*batch), config_.width, config_.vocabulary, normal_.data(),
                      p[HeadAt::weight], nullptr, scores_.data());
  }
  store.close(config_.blocks + 1);
}

template <class T>
double Network<T>::loss(const Batch& batch) {
  return cross_entropy(rows(batch), config_.vocabulary, scores_.data(), batch.targets);
}

template <class T>
void Network<T>::backward_head(Store<T>& store, const Batch* batch) {
  const T* p[HeadAt::end];
  store.open(config_.blocks + 1, p);
  if (batch != nullptr) {
    T* g[HeadAt::end];
    store.gradients(config_.blocks + 1, g);
    std::fill(stream_.begin(), stream_.end(), T(0));
    linear_backward<T>(rows(*batch), config_.width, config_.vocabulary, normal_.data(),
                       p[HeadAt::weight], scores_.data(), narrow_.data(), g[HeadAt::weight],
                       nullptr);
    norm_backward(rows(*batch), config_.width, last_.data(), p[HeadAt::norm_gain], narrow_.data(),
                  stream_.data(), g[HeadAt::norm_gain], g[HeadAt::norm_bias]);
    store.hand_in(config_.blocks + 1, g);
  }
  store.close(config_.blocks + 1);
}

template class Network<float>;
template class Network<double>;

}  // namespace gpt
