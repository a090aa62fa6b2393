#include "tensor_network.hpp"

#include <algorithm>
#include <numeric>

#include "check.hpp"
#include "layers.hpp"
#include "numbers.hpp"

namespace gpt {

namespace {

const float* parameter_at(const trireme_layer_call& call, int place) {
  return static_cast<const float*>(call.parameters[place]);
}

float* gradient_at(const trireme_layer_call& call, int place) {
  return static_cast<float*>(call.gradients[place]);
}

trireme_linear_info about(const trireme_linear* linear) {
  trireme_linear_info info = TRIREME_LINEAR_INFO_INIT;
  check(trireme_linear_get_info(linear, &info));
  return info;
}

// The tokens or targets of the call's micro-batch.
const std::int32_t* leaf_of(const std::int32_t* all, const trireme_layer_call& call, int rows) {
  return all + std::int64_t{call.leaf} * rows;
}

const Batch& batch_at(const trireme_layer_call& call) {
  return *static_cast<const Batch*>(call.batch);
}

void add_to(std::uint64_t count, const float* x, float* y) {
  for (std::uint64_t i = 0; i < count; ++i) y[i] = x[i] + y[i];
}

// The gradient of a row-parallel layer's output has only the rows of this rank with SEQUENCE. All
// rows come to `gathered`.
void linear_backward(trireme_linear* linear, const float* x, const float* weight, const float* dy,
                     float* dx, float* dweight, float* dbias, void* gathered) {
  check(trireme_linear_backward(linear, x, dy, weight, dx, gathered, dweight, dbias, nullptr));
}

}  // namespace

// Values that forward of a block leaves for its backward, one after the other in `saved`.
struct TensorNetwork::Kept {
  static std::uint64_t count(const TensorNetwork& n) {
    const std::uint64_t rows = static_cast<std::uint64_t>(n.rows_);
    return 3 * n.narrow() + rows * (4 * n.local_ + 2 * n.hidden_) + n.weights();
  }
  Kept(const TensorNetwork& n, void* saved)
      : normal1(static_cast<float*>(saved)),
        middle(normal1 + n.narrow()),
        normal2(middle + n.narrow()),
        qkv(normal2 + n.narrow()),
        mixed(qkv + 3 * n.rows_ * n.local_),
        wide(mixed + n.rows_ * n.local_),
        bent(wide + n.rows_ * n.hidden_),
        weights(bent + n.rows_ * n.hidden_) {}
  float *const normal1,
      *const middle, *const normal2, *const qkv, *const mixed, *const wide, *const bent,
                                                                                *const weights;
};

TensorNetwork::TensorNetwork(const Config& config, int sequences, trireme_tensor* tensor,
                             bool sequence)
    : config_(config),
      sequences_(sequences),
      rows_(sequences * config.context),
      sequence_(sequence),
      tensor_(tensor) {
  check(trireme_tensor_get_info(tensor, &info_));
  const auto rows = static_cast<std::uint64_t>(rows_);
  const auto d = static_cast<std::uint64_t>(config.width);
  own_ = {0, rows};
  if (sequence) check(trireme_tensor_range(tensor, rows, info_.rank, &own_.first, &own_.count));

  for (int i = 0; i < config.blocks; ++i) {
    const std::string block = "block" + std::to_string(i);
    constexpr auto kColumn = TRIREME_LINEAR_KIND_COLUMN, kRow = TRIREME_LINEAR_KIND_ROW;
    layers_.push_back({make_linear(block + ".attention", kColumn, d, 3 * d, 3, true),
                       make_linear(block + ".project", kRow, d, d, 1, true),
                       make_linear(block + ".expand", kColumn, d, 4 * d, 1, true),
                       make_linear(block + ".contract", kRow, 4 * d, d, 1, true)});
  }
  const auto words = static_cast<std::uint64_t>(config.vocabulary);
  head_ = make_linear("head", TRIREME_LINEAR_KIND_COLUMN, d, words, 1, false);
  local_ = about(layers_[0].attention.get()).count;
  hidden_ = about(layers_[0].expand.get()).count;
  words_ = about(head_.get()).count;

  if (sequence) {
    scatter_ = make_region("embedding", TRIREME_REGION_KIND_SCATTER, TRIREME_REGION_DIMENSION_ROWS,
                           rows, d);
  }
  norms_ = make_region("norms", TRIREME_REGION_KIND_REDUCE, TRIREME_REGION_DIMENSION_NONE, 2, d);
  trireme_vocabulary_options options = TRIREME_VOCABULARY_OPTIONS_INIT;
  options.name = "vocabulary";
  options.classes = words;
  options.width = d;
  options.rows = rows;
  options.dtype = TRIREME_DTYPE_F32;
  trireme_vocabulary* vocabulary = nullptr;
  check(trireme_vocabulary_create(tensor, &options, &vocabulary));
  vocabulary_.reset(vocabulary);

  whole_.resize(rows * d);
  narrow_.resize(narrow());
  wide_.resize(rows * std::max(4 * local_, hidden_));
  square_.resize(static_cast<std::size_t>(config.context) * config.context);
  partial_.resize(2 * d * (info_.block_count + 1));
  sums_.resize(2 * d);
  losses_.resize(rows);
  for (const BlockLayers& block : layers_) {
    const std::uint64_t bytes =
        std::max(about(block.project.get()).kept_bytes, about(block.contract.get()).kept_bytes);
    gathered_.resize(std::max<std::size_t>(gathered_.size(), bytes));
  }
}

TensorNetwork::Linear TensorNetwork::make_linear(const std::string& name, trireme_linear_kind kind,
                                                 std::uint64_t input, std::uint64_t output,
                                                 std::uint32_t stretches, bool has_bias) const {
  trireme_linear_options options = TRIREME_LINEAR_OPTIONS_INIT;
  options.name = name.c_str();
  options.kind = kind;
  options.dtype = TRIREME_DTYPE_F32;
  options.input = input;
  options.output = output;
  options.rows = static_cast<std::uint64_t>(rows_);
  options.stretches = stretches;
  if (has_bias) options.flags |= TRIREME_LINEAR_FLAG_BIAS;
  if (kind == TRIREME_LINEAR_KIND_ROW) options.flags |= TRIREME_LINEAR_FLAG_INPUT_SPLIT;
  trireme_linear* linear = nullptr;
  check(trireme_linear_create(tensor_, &options, &linear));
  return Linear(linear);
}

TensorNetwork::Region TensorNetwork::make_region(const char* name, trireme_region_kind kind,
                                                 trireme_region_dimension dimension,
                                                 std::uint64_t rows, std::uint64_t columns) const {
  trireme_region_options options = TRIREME_REGION_OPTIONS_INIT;
  options.name = name;
  options.kind = kind;
  options.dimension = dimension;
  options.rows = rows;
  options.columns = columns;
  options.dtype = TRIREME_DTYPE_F32;
  trireme_region* region = nullptr;
  check(trireme_region_create(tensor_, &options, &region));
  return Region(region);
}

std::uint64_t TensorNetwork::weights() const {
  const std::uint64_t heads = local_ / static_cast<std::uint64_t>(config_.width / config_.heads);
  return heads * static_cast<std::uint64_t>(rows_) * static_cast<std::uint64_t>(config_.context);
}

std::uint64_t TensorNetwork::output_bytes(int layer) const {
  // A rank may have no rows; a layer before the last one has an output all the same.
  return is_head(static_cast<std::uint64_t>(layer))
             ? 0
             : std::max<std::uint64_t>(narrow(), 1) * sizeof(float);
}

std::uint64_t TensorNetwork::saved_bytes(int layer) const {
  if (layer == 0) return 0;
  if (!is_head(static_cast<std::uint64_t>(layer))) return Kept::count(*this) * sizeof(float);
  const auto rows = static_cast<std::uint64_t>(rows_);
  return (rows * words_ + narrow()) * sizeof(float) + rows * TRIREME_VOCABULARY_KEPT_BYTES;
}

void TensorNetwork::forward(const trireme_layer_call& call) {
  if (call.number == 0) return embedding_forward(call);
  if (is_head(call.number)) return head_forward(call);
  block_forward(call);
}

void TensorNetwork::backward(const trireme_layer_call& call) {
  if (call.number == 0) return embedding_backward(call);
  if (is_head(call.number)) return head_backward(call);
  block_backward(call);
}

// An element is dropped by its place among the rows of all ranks.
void TensorNetwork::drop(const trireme_layer_call& call, std::uint64_t place, float* x) const {
  if (call.phase == TRIREME_PHASE_EVALUATE || config_.dropout == 0) return;
  trireme_random_options options = TRIREME_RANDOM_OPTIONS_INIT;
  options.seed = call.random_seed;
  options.draw = place;
  options.first_row = own_.first;
  options.rows = own_.count;
  options.columns = options.all_columns = static_cast<std::uint64_t>(config_.width);
  check(trireme_random_dropout(&options, config_.dropout, x, x, TRIREME_DTYPE_F32));
}

void TensorNetwork::embedding_forward(const trireme_layer_call& call) {
  const auto rows = static_cast<std::uint64_t>(rows_);
  const auto d = static_cast<std::uint64_t>(config_.width);
  check(trireme_vocabulary_embed(vocabulary_.get(), leaf_of(batch_at(call).tokens, call, rows_),
                                 TRIREME_DTYPE_I32, rows, parameter_at(call, EmbeddingAt::token),
                                 whole_.data(), nullptr));
  const float* const position = parameter_at(call, EmbeddingAt::position);
  for (std::uint64_t row = 0; row < rows; ++row) {
    const std::uint64_t at = row % static_cast<std::uint64_t>(config_.context);
    add_to(d, position + at * d, whole_.data() + row * d);
  }
  const void* const whole = whole_.data();
  if (sequence_) {
    check(trireme_region_forward(scatter_.get(), &whole, 1, call.output, nullptr));
  } else {
    std::copy(whole_.begin(), whole_.end(), static_cast<float*>(call.output));
  }
}

void TensorNetwork::embedding_backward(const trireme_layer_call& call) {
  const auto rows = static_cast<std::uint64_t>(rows_);
  const auto d = static_cast<std::uint64_t>(config_.width);
  const void* own = call.output_gradient;
  const float* whole = static_cast<const float*>(own);
  if (sequence_) {
    check(trireme_region_backward(scatter_.get(), &own, 1, whole_.data(), nullptr));
    whole = whole_.data();
  }
  trireme_vocabulary_info words = TRIREME_VOCABULARY_INFO_INIT;
  check(trireme_vocabulary_get_info(vocabulary_.get(), &words));
  float* const token = gradient_at(call, EmbeddingAt::token);
  std::fill_n(token, words.class_count * d, 0.0f);
  check(trireme_vocabulary_embed_backward(vocabulary_.get(),
                                          leaf_of(batch_at(call).tokens, call, rows_),
                                          TRIREME_DTYPE_I32, rows, whole, token));
  float* const position = gradient_at(call, EmbeddingAt::position);
  const auto context = static_cast<std::uint64_t>(config_.context);
  std::fill_n(position, context * d, 0.0f);
  for (std::uint64_t row = 0; row < rows; ++row) {
    add_to(d, whole + row * d, position + row % context * d);
  }
}

void TensorNetwork::block_forward(const trireme_layer_call& call) {
  using At = BlockAt;
  const auto p = [&](int place) { return parameter_at(call, place); };
  const BlockLayers& layers = layers_[call.number - 1];
  const int own = static_cast<int>(own_.count), d = config_.width;
  const Kept k(*this, call.saved);
  const auto* const x = static_cast<const float*>(call.input);
  norm_forward(own, d, x, p(At::norm1_gain), p(At::norm1_bias), k.normal1);
  check(trireme_linear_forward(layers.attention.get(), k.normal1, p(At::attention_weight),
                               p(At::attention_bias), k.qkv, nullptr, nullptr));
  attention_forward<float>(heads(), k.qkv, k.weights, k.mixed);
  check(trireme_linear_forward(layers.project.get(), k.mixed, p(At::project_weight),
                               p(At::project_bias), k.middle, nullptr, nullptr));
  drop(call, 0, k.middle);
  add_to(narrow(), x, k.middle);

  auto* const y = static_cast<float*>(call.output);
  norm_forward<float>(own, d, k.middle, p(At::norm2_gain), p(At::norm2_bias), k.normal2);
  check(trireme_linear_forward(layers.expand.get(), k.normal2, p(At::expand_weight),
                               p(At::expand_bias), k.wide, nullptr, nullptr));
  gelu_forward<float>(static_cast<std::int64_t>(rows_ * hidden_), k.wide, k.bent);
  check(trireme_linear_forward(layers.contract.get(), k.bent, p(At::contract_weight),
                               p(At::contract_bias), y, nullptr, nullptr));
  drop(call, 1, y);
  add_to(narrow(), k.middle, y);
}

void TensorNetwork::block_backward(const trireme_layer_call& call) {
  using At = BlockAt;
  const auto p = [&](int place) { return parameter_at(call, place); };
  const auto g = [&](int place) { return gradient_at(call, place); };
  const BlockLayers& layers = layers_[call.number - 1];
  const Kept k(*this, call.saved);
  float *const down = narrow_.data(), *const wide = wide_.data();
  // The gradient of the residual stream, to which the norms add.
  auto* const stream = static_cast<float*>(call.input_gradient);
  std::copy_n(static_cast<const float*>(call.output_gradient), narrow(), stream);

  std::copy_n(stream, narrow(), down);
  drop(call, 1, down);
  linear_backward(layers.contract.get(), k.bent, p(At::contract_weight), down, wide,
                  g(At::contract_weight), g(At::contract_bias), gathered_.data());
  gelu_backward<float>(static_cast<std::int64_t>(rows_ * hidden_), k.wide, wide, wide);
  linear_backward(layers.expand.get(), k.normal2, p(At::expand_weight), wide, down,
                  g(At::expand_weight), g(At::expand_bias), nullptr);
  norm_backward(k.middle, p(At::norm2_gain), down, stream, g(At::norm2_gain), g(At::norm2_bias));

  // The gradient of queries, keys and values, and then that of what attention gave.
  float* const mixed = wide + 3 * rows_ * local_;
  std::copy_n(stream, narrow(), down);
  drop(call, 0, down);
  linear_backward(layers.project.get(), k.mixed, p(At::project_weight), down, mixed,
                  g(At::project_weight), g(At::project_bias), gathered_.data());
  attention_backward<float>(heads(), k.qkv, k.weights, mixed, wide, square_.data());
  linear_backward(layers.attention.get(), k.normal1, p(At::attention_weight), wide, down,
                  g(At::attention_weight), g(At::attention_bias), nullptr);
  norm_backward(static_cast<const float*>(call.input), p(At::norm1_gain), down, stream,
                g(At::norm1_gain), g(At::norm1_bias));
}

void TensorNetwork::head_forward(const trireme_layer_call& call) {
  auto* const scores = static_cast<float*>(call.saved);
  const auto rows = static_cast<std::uint64_t>(rows_);
  float* const normal = scores + rows * words_;
  norm_forward(static_cast<int>(own_.count), config_.width, static_cast<const float*>(call.input),
               parameter_at(call, HeadAt::norm_gain), parameter_at(call, HeadAt::norm_bias),
               normal);
  check(trireme_linear_forward(head_.get(), normal, parameter_at(call, HeadAt::weight), nullptr,
                               scores, nullptr, nullptr));
  if (call.loss == nullptr) return;
  check(trireme_vocabulary_loss(vocabulary_.get(), leaf_of(batch_at(call).targets, call, rows_),
                                TRIREME_DTYPE_I32, rows, scores, losses_.data(), normal + narrow(),
                                nullptr));
  *call.loss = std::accumulate(losses_.begin(), losses_.end(), 0.0) / rows_;
}

void TensorNetwork::head_backward(const trireme_layer_call& call) {
  auto* const scores = static_cast<float*>(call.saved);
  const auto rows = static_cast<std::uint64_t>(rows_);
  const float* const normal = scores + rows * words_;
  std::fill(losses_.begin(), losses_.end(), static_cast<float>(call.loss_scale / rows_));
  check(trireme_vocabulary_loss_backward(
      vocabulary_.get(), leaf_of(batch_at(call).targets, call, rows_), TRIREME_DTYPE_I32, rows,
      scores, normal + narrow(), losses_.data(), scores));
  auto* const stream = static_cast<float*>(call.input_gradient);
  std::fill_n(stream, narrow(), 0.0f);
  linear_backward(head_.get(), normal, parameter_at(call, HeadAt::weight), scores, narrow_.data(),
                  gradient_at(call, HeadAt::weight), nullptr, nullptr);
  norm_backward(static_cast<const float*>(call.input), parameter_at(call, HeadAt::norm_gain),
                narrow_.data(), stream, gradient_at(call, HeadAt::norm_gain),
                gradient_at(call, HeadAt::norm_bias));
}

// A norm's gradients are sums over rows. They have one summand for each block of rows, which the
// region adds in the same order for every number of ranks.
void TensorNetwork::norm_backward(const float* x, const float* gain, const float* dy, float* dx,
                                  float* dgain, float* dbias) {
  const auto d = static_cast<std::uint64_t>(config_.width);
  std::vector<const void*> summands;
  for (std::uint32_t block = 0; block < info_.blocks; ++block) {
    const bool is_own = block - info_.first_block < info_.block_count;
    if (sequence_ && !is_own) continue;
    // Without SEQUENCE this rank has the rows of all blocks, and needs dx of all.
    const std::uint64_t place = is_own ? block - info_.first_block : info_.block_count;
    float* const to = partial_.data() + place * 2 * d;
    Rows rows = {};
    check(trireme_tensor_block(tensor_, static_cast<std::uint64_t>(rows_), block, &rows.first,
                               &rows.count));
    const std::uint64_t at = (rows.first - own_.first) * d;
    gpt::norm_backward(static_cast<int>(rows.count), config_.width, x + at, gain, dy + at, dx + at,
                       to, to + d);
    if (is_own) summands.push_back(to);
  }
  check(trireme_region_forward(norms_.get(), summands.data(),
                               static_cast<std::uint32_t>(summands.size()), sums_.data(), nullptr));
  std::copy_n(sums_.data(), d, dgain);
  std::copy_n(sums_.data() + d, d, dbias);
}

}  // namespace gpt
