#include "wide.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace wide {

namespace {

// In [0, 1); a function of its arguments alone.
double draw(std::uint64_t kind, std::uint64_t number) {
  std::uint64_t x = kind * 0x9e3779b97f4a7c15u + number + 1;
  for (int i = 0; i < 3; ++i) {
    x ^= x >> 31;
    x *= 0xbf58476d1ce4e5b9u;
  }
  return static_cast<double>(x >> 11) * 0x1p-53;
}

double norm_scale(double mean_of_squares) { return 1 / std::sqrt(mean_of_squares + kNormEpsilon); }

}  // namespace

std::uint64_t first_of(int place) {
  std::uint64_t first = 0;
  for (int i = 0; i < place; ++i) first += kParameters[i].rows * kParameters[i].columns;
  return first;
}

std::vector<float> initial_values(int end) {
  std::vector<float> values;
  for (int place = 0; place < end; ++place) {
    const Parameter& parameter = kParameters[place];
    const bool is_gain = parameter.summands == Summands::rows;
    for (std::uint64_t i = 0; i < parameter.rows * parameter.columns; ++i) {
      const double value = draw(7, values.size()) - 0.5;
      values.push_back(Bf16(static_cast<float>(is_gain ? 1 + 0.2 * value : value)));
    }
  }
  return values;
}

Batch batch_of(int step, std::uint32_t leaf) {
  Batch batch = {};
  const std::uint64_t kind = 100 + static_cast<std::uint64_t>(step) * kLeaves + leaf;
  for (std::uint64_t row = 0; row < kRows; ++row) {
    batch.tokens[row] = static_cast<std::int32_t>(draw(kind, row) * 17);  // some come often
    batch.targets[row] = static_cast<std::int32_t>(draw(kind, kRows + row) * kWords);
  }
  batch.tokens[0] = kWords - 1;
  return batch;
}

std::vector<std::uint64_t> stretches_of(trireme_tensor* tensor, std::int32_t rank, int place) {
  const Parameter& parameter = kParameters[place];
  if (parameter.cut == Cut::none) return {};
  const std::uint64_t all = parameter.cut == Cut::rows ? parameter.rows : parameter.columns;
  const std::uint64_t extent = all / parameter.stretches;
  std::vector<std::uint64_t> pairs;
  for (std::uint64_t i = 0; i < parameter.stretches; ++i) {
    std::uint64_t first = 0, count = 0;
    check(trireme_tensor_range(tensor, extent, rank, &first, &count));
    pairs.push_back(i * extent + first);
    pairs.push_back(count);
  }
  return pairs;
}

std::vector<std::uint64_t> numbers_of(trireme_tensor* tensor, std::int32_t rank, int place) {
  const Parameter& parameter = kParameters[place];
  const std::vector<std::uint64_t> pairs = stretches_of(tensor, rank, place);
  std::vector<std::uint64_t> indices, numbers;
  for (std::size_t i = 0; i < pairs.size(); i += 2)
    for (std::uint64_t k = 0; k < pairs[i + 1]; ++k) indices.push_back(pairs[i] + k);
  const auto all_of = [](std::uint64_t count) {
    std::vector<std::uint64_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    return all;
  };
  const auto rows = parameter.cut == Cut::rows ? indices : all_of(parameter.rows);
  const auto columns = parameter.cut == Cut::columns ? indices : all_of(parameter.columns);
  for (const std::uint64_t row : rows)
    for (const std::uint64_t column : columns)
      numbers.push_back(first_of(place) + row * parameter.columns + column);
  return numbers;
}

// ---- loops in f64 ---------------------------------------------------------------------------

namespace {

using Matrix = std::vector<double>;

// x * transpose(weight)
Matrix times(const Matrix& x, const double* weight, std::uint64_t inputs, std::uint64_t outputs) {
  Matrix y(kRows * outputs, 0);
  for (std::uint64_t row = 0; row < kRows; ++row)
    for (std::uint64_t j = 0; j < outputs; ++j)
      for (std::uint64_t i = 0; i < inputs; ++i)
        y[row * outputs + j] += x[row * inputs + i] * weight[j * inputs + i];
  return y;
}

Matrix normal(const Matrix& x, const double* gain) {
  Matrix y(x.size());
  for (std::uint64_t row = 0; row < kRows; ++row) {
    double squares = 0;
    for (std::uint64_t i = 0; i < kWidth; ++i) squares += x[row * kWidth + i] * x[row * kWidth + i];
    const double scale = norm_scale(squares / kWidth);
    for (std::uint64_t i = 0; i < kWidth; ++i)
      y[row * kWidth + i] = x[row * kWidth + i] * scale * gain[i];
  }
  return y;
}

Matrix attention(const Matrix& q, const Matrix& kv) {
  constexpr std::uint64_t kAll = kHeads * kHeadWidth, kHalf = kKvHeads * kHeadWidth;
  Matrix mixed(kRows * kAll, 0);
  for (std::uint64_t row = 0; row < kRows; ++row) {
    const std::uint64_t begin = begin_of(row);
    for (std::uint64_t head = 0; head < kHeads; ++head) {
      const std::uint64_t kv_head = head / (kHeads / kKvHeads);
      double sum = 0;
      for (std::uint64_t other = begin; other <= row; ++other) {
        double score = 0;
        for (std::uint64_t i = 0; i < kHeadWidth; ++i)
          score += q[row * kAll + head * kHeadWidth + i] *
                   kv[other * 2 * kHalf + kv_head * kHeadWidth + i];
        const double weight = std::exp(score / std::sqrt(double{kHeadWidth}));
        sum += weight;
        for (std::uint64_t i = 0; i < kHeadWidth; ++i)
          mixed[row * kAll + head * kHeadWidth + i] +=
              weight * kv[other * 2 * kHalf + kHalf + kv_head * kHeadWidth + i];
      }
      for (std::uint64_t i = 0; i < kHeadWidth; ++i)
        mixed[row * kAll + head * kHeadWidth + i] /= sum;
    }
  }
  return mixed;
}

void add_to(Matrix* x, const Matrix& y) {
  for (std::size_t i = 0; i < x->size(); ++i) (*x)[i] += y[i];
}

// Each row goes to the experts with its highest scores, which are sigmoids.
Matrix routed(const Matrix& x, const std::vector<double>& values) {
  const Matrix scores = times(x, values.data() + first_of(kRouter), kWidth, kExperts);
  Matrix y(x.size(), 0);
  std::uint64_t taken[kExperts] = {};
  for (std::uint64_t row = 0; row < kRows; ++row) {
    double weights[kExperts], sum = 0;
    std::uint32_t order[kExperts];
    for (std::uint32_t e = 0; e < kExperts; ++e) {
      order[e] = e;
      weights[e] = 1 / (1 + std::exp(-scores[row * kExperts + e]));
    }
    std::sort(order, order + kExperts,
              [&](std::uint32_t a, std::uint32_t b) { return weights[a] > weights[b]; });
    for (std::uint32_t k = 0; k < kChoices; ++k) sum += weights[order[k]];
    for (std::uint32_t k = 0; k < kChoices; ++k) {
      const std::uint32_t e = order[k];
      if (++taken[e] > kCapacity) continue;
      const double* const fc1 = values.data() + first_of(kExpert1 + 2 * static_cast<int>(e));
      const double* const fc2 = fc1 + kExpertHidden * kWidth;
      for (std::uint64_t h = 0; h < kExpertHidden; ++h) {
        double hidden = 0;
        for (std::uint64_t i = 0; i < kWidth; ++i)
          hidden += x[row * kWidth + i] * fc1[h * kWidth + i];
        hidden = hidden / (1 + std::exp(-hidden)) * weights[e] / sum;
        for (std::uint64_t i = 0; i < kWidth; ++i)
          y[row * kWidth + i] += hidden * fc2[i * kExpertHidden + h];
      }
    }
  }
  return y;
}

Matrix dense(const Matrix& x, const std::vector<double>& values) {
  const Matrix both = times(x, values.data() + first_of(kFc1), kWidth, 2 * kHidden);
  Matrix bent(kRows * kHidden);
  for (std::uint64_t row = 0; row < kRows; ++row) {
    for (std::uint64_t i = 0; i < kHidden; ++i) {
      const double gate = both[row * 2 * kHidden + i];
      bent[row * kHidden + i] =
          gate / (1 + std::exp(-gate)) * both[row * 2 * kHidden + kHidden + i];
    }
  }
  return times(bent, values.data() + first_of(kFc2), kHidden, kWidth);
}

}  // namespace

double plain_loss(const std::vector<double>& values, const Batch& batch, bool is_routed) {
  const auto at = [&](int place) { return values.data() + first_of(place); };
  constexpr std::uint64_t kAll = kHeads * kHeadWidth;
  Matrix x(kRows * kWidth);
  for (std::uint64_t row = 0; row < kRows; ++row)
    std::copy_n(at(kTokens) + static_cast<std::uint64_t>(batch.tokens[row]) * kWidth, kWidth,
                x.begin() + static_cast<std::ptrdiff_t>(row * kWidth));
  const Matrix first = normal(x, at(kNorm1));
  const Matrix mixed = attention(times(first, at(kQuery), kWidth, kAll),
                                 times(first, at(kKeyValue), kWidth, 2 * kKvHeads * kHeadWidth));
  add_to(&x, times(mixed, at(kOut), kAll, kWidth));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += at(kOutBias)[i % kWidth];

  const Matrix normal2 = normal(x, at(kNorm2));
  add_to(&x, is_routed ? routed(normal2, values) : dense(normal2, values));

  Matrix frozen = times(x, at(kFrozen1), kWidth, kFrozenHidden);
  for (double& each : frozen) each = each / (1 + std::exp(-each));
  add_to(&x, times(frozen, at(kFrozen2), kFrozenHidden, kWidth));

  const Matrix logits = times(normal(x, at(kNorm3)), at(kTokens), kWidth, kWords);
  double loss = 0;
  for (std::uint64_t row = 0; row < kRows; ++row) {
    double sum = 0;
    for (std::uint64_t i = 0; i < kWords; ++i) sum += std::exp(logits[row * kWords + i]);
    loss += std::log(sum) - logits[row * kWords + static_cast<std::uint64_t>(batch.targets[row])];
  }
  return loss / kRows;
}

// ---- with the library's layers --------------------------------------------------------------

template <class T>
typename Network<T>::Layer Network<T>::make_linear(const char* name, trireme_linear_kind kind,
                                                   std::uint64_t input, std::uint64_t output,
                                                   std::uint32_t flags) const {
  trireme_linear_options options = TRIREME_LINEAR_OPTIONS_INIT;
  options.name = name;
  options.kind = kind;
  options.dtype = kType<T>;
  options.input = input;
  options.output = output;
  options.rows = all_;
  options.flags = flags;
  trireme_linear* made = nullptr;
  check(trireme_linear_create(tensor_, &options, &made));
  Layer layer;
  layer.linear.reset(made);
  check(trireme_linear_get_info(made, &layer.info));
  layer.kept.resize(layer.info.kept_bytes + 1);
  return layer;
}

template <class T>
typename Network<T>::Mlp Network<T>::make_mlp(const char* name, trireme_activation_kind activation,
                                              std::uint64_t hidden) const {
  trireme_mlp_options options = TRIREME_MLP_OPTIONS_INIT;
  options.name = name;
  options.dtype = kType<T>;
  options.activation = activation;
  options.input = options.output = kWidth;
  options.hidden = hidden;
  options.rows = all_;
  trireme_mlp* made = nullptr;
  check(trireme_mlp_create(tensor_, &options, &made));
  Mlp mlp;
  mlp.mlp.reset(made);
  check(trireme_mlp_get_info(made, &mlp.info));
  mlp.kept.resize(mlp.info.kept_bytes + 1);
  return mlp;
}

template <class T>
Handle<trireme_region> Network<T>::make_region(const char* name, trireme_region_kind kind,
                                               bool by_rows, std::uint64_t rows,
                                               trireme_dtype dtype) const {
  trireme_region_options options = TRIREME_REGION_OPTIONS_INIT;
  options.name = name;
  options.kind = kind;
  options.dimension = by_rows ? TRIREME_REGION_DIMENSION_ROWS : TRIREME_REGION_DIMENSION_NONE;
  options.rows = rows;
  options.columns = kWidth;
  options.dtype = dtype;
  trireme_region* region = nullptr;
  check(trireme_region_create(tensor_, &options, &region));
  return Handle<trireme_region>(region);
}

template <class T>
Network<T>::Network(trireme_tensor* tensor, NetworkOptions given)
    : tensor_(tensor), options_(std::move(given)) {
  const bool sequence = options_.sequence, shared = options_.shared;
  if (options_.rows.empty()) {
    options_.rows.resize(kRows);
    std::iota(options_.rows.begin(), options_.rows.end(), 0);
  }
  all_ = rows_ = options_.rows.size();
  check(trireme_tensor_get_info(tensor, &info_));
  check(trireme_tensor_heads(tensor, kHeads, kKvHeads, info_.rank, &heads_));
  if (sequence) check(trireme_tensor_range(tensor, all_, info_.rank, &first_row_, &rows_));
  constexpr auto kColumn = TRIREME_LINEAR_KIND_COLUMN, kRow = TRIREME_LINEAR_KIND_ROW;
  query_ = make_linear("query", kColumn, kWidth, kHeads * kHeadWidth, 0);
  out_ = make_linear("out", kRow, kHeads * kHeadWidth, kWidth,
                     TRIREME_LINEAR_FLAG_BIAS | TRIREME_LINEAR_FLAG_INPUT_SPLIT);
  head_ = make_linear("head", kColumn, kWidth, kWords, 0);
  mlp_ = make_mlp("mlp", TRIREME_ACTIVATION_KIND_SWIGLU, kHidden);
  frozen_ = make_mlp("frozen", TRIREME_ACTIVATION_KIND_SILU, kFrozenHidden);
  if (sequence)
    scatter_ = make_region("embedding", TRIREME_REGION_KIND_SCATTER, true, all_, kType<T>);
  kv_input_ = make_region("key value input",
                          sequence ? TRIREME_REGION_KIND_GATHER_SUM : TRIREME_REGION_KIND_COPY,
                          sequence, all_, kType<T>);
  if (!shared) {
    norm_sum_ = make_region("norm sums", TRIREME_REGION_KIND_REDUCE, false, 1, TRIREME_DTYPE_F32);
    kv_sum_ = make_region("key value sums", TRIREME_REGION_KIND_REDUCE, false,
                          kParameters[kKeyValue].rows, TRIREME_DTYPE_F32);
  }
  trireme_vocabulary_options options = TRIREME_VOCABULARY_OPTIONS_INIT;
  options.name = "vocabulary";
  options.classes = kWords;
  options.width = kWidth;
  options.rows = all_;
  options.dtype = kType<T>;
  trireme_vocabulary* vocabulary = nullptr;
  check(trireme_vocabulary_create(tensor, &options, &vocabulary));
  vocabulary_.reset(vocabulary);
}

template <class T>
typename Network<T>::Rows Network<T>::linear_forward(Layer& layer, const Rows& x,
                                                     const Rows& weight, const T* bias) {
  Rows y(layer.info.output_rows * layer.info.output_columns);
  check(trireme_linear_forward(layer.linear.get(), x.data(), weight.data(), bias, y.data(),
                               layer.kept.data(), nullptr));
  return y;
}

template <class T>
typename Network<T>::Rows Network<T>::linear_backward(Layer& layer, const Rows& x, const Rows& dy,
                                                      const Rows& weight,
                                                      std::vector<float>* dweight, float* dbias) {
  Rows dx(layer.info.input_rows * layer.info.input_columns);
  dweight->resize(layer.info.weight_rows * layer.info.weight_columns);
  check(trireme_linear_backward_input(layer.linear.get(), dy.data(), weight.data(), dx.data(),
                                      layer.kept.data(), nullptr));
  check(trireme_linear_backward_weight(layer.linear.get(), x.data(), dy.data(), layer.kept.data(),
                                       dweight->data(), dbias, nullptr));
  return dx;
}

template <class T>
typename Network<T>::Rows Network<T>::norm(const Rows& x, const Rows& gain) const {
  Rows y(x.size());
  for (std::uint64_t row = 0; row < rows_; ++row) {
    double squares = 0;
    for (std::uint64_t i = 0; i < kWidth; ++i) {
      const double each = x[row * kWidth + i];
      squares += each * each;
    }
    const double scale = norm_scale(squares / kWidth);
    for (std::uint64_t i = 0; i < kWidth; ++i)
      y[row * kWidth + i] = static_cast<float>(x[row * kWidth + i] * scale * gain[i]);
  }
  return y;
}

template <class T>
void Network<T>::norm_backward(const Rows& x, const Rows& gain, const Rows& dy, Rows* dx,
                               std::vector<float>* dgain) {
  std::vector<std::vector<float>> summands;
  for (std::uint32_t block = 0; block < kBlocks; ++block) {
    const bool is_own = block - info_.first_block < info_.block_count;
    if (options_.sequence && !is_own) continue;
    std::uint64_t first = 0, count = 0;
    check(trireme_tensor_block(tensor_, all_, block, &first, &count));
    std::vector<double> sums(kWidth, 0);
    for (std::uint64_t row = first - first_row_; row < first - first_row_ + count; ++row) {
      double squares = 0, slope = 0;
      for (std::uint64_t i = 0; i < kWidth; ++i) {
        const double each = x[row * kWidth + i];
        squares += each * each;
        slope += each * gain[i] * dy[row * kWidth + i];
      }
      const double scale = norm_scale(squares / kWidth);
      for (std::uint64_t i = 0; i < kWidth; ++i) {
        const std::uint64_t at = row * kWidth + i;
        sums[i] += dy[at] * (x[at] * scale);
        (*dx)[at] =
            static_cast<float>((*dx)[at] + (scale * gain[i] * dy[at] -
                                            x[at] * scale * scale * scale * slope / kWidth));
      }
    }
    // The other ranks make their own blocks' sums.
    if (is_own) summands.emplace_back(sums.begin(), sums.end());
  }
  add_up(norm_sum_.get(), &summands, dgain);
}

template <class T>
void Network<T>::add_up(trireme_region* region, std::vector<std::vector<float>>* summands,
                        std::vector<float>* sum) const {
  sum->resize((*summands)[0].size());
  if (!options_.shared) {
    std::vector<const void*> parts;
    for (const std::vector<float>& each : *summands) parts.push_back(each.data());
    return check(trireme_region_forward(
        region, parts.data(), static_cast<std::uint32_t>(parts.size()), sum->data(), nullptr));
  }
  // The rank's blocks are a subtree: their number is a power of two.
  for (std::size_t distance = 1; distance < summands->size(); distance *= 2) {
    for (std::size_t i = 0; i < summands->size(); i += 2 * distance) {
      std::vector<float>&left = (*summands)[i], &right = (*summands)[i + distance];
      for (std::size_t k = 0; k < left.size(); ++k) left[k] += right[k];
    }
  }
  *sum = (*summands)[0];
}

// One query head of one sequence.
template <class T>
struct Network<T>::Attention {
  Attention(const Network& network, std::uint64_t number, const Rows& queries, const Rows& both)
      : q_step(network.heads_.head_count * kHeadWidth),
        q_at(number * kHeadWidth),
        k_at(((network.heads_.first_head + number) / (kHeads / kKvHeads) -
              network.heads_.first_kv_head) *
             kHeadWidth),
        v_at(k_at + network.heads_.kv_head_count * kHeadWidth),
        kv_step(2 * network.heads_.kv_head_count * kHeadWidth),
        q(queries),
        kv(both) {}
  // The weights of the positions from `begin` to `row`.
  std::vector<double> weights(std::uint64_t begin, std::uint64_t row) const {
    std::vector<double> made;
    double sum = 0;
    for (std::uint64_t other = begin; other <= row; ++other) {
      double score = 0;
      for (std::uint64_t i = 0; i < kHeadWidth; ++i)
        score += double{q[row * q_step + q_at + i]} * kv[other * kv_step + k_at + i];
      made.push_back(std::exp(score / std::sqrt(double{kHeadWidth})));
      sum += made.back();
    }
    for (double& each : made) each /= sum;
    return made;
  }
  const std::uint64_t q_step, q_at, k_at, v_at, kv_step;
  const Rows &q, &kv;
};

template <class T>
void Network<T>::attend() {
  const Rows &q = pass_.q, &kv = pass_.kv;
  pass_.mixed.resize(q.size());
  for (std::uint64_t number = 0; number < heads_.head_count; ++number) {
    const Attention head(*this, number, q, kv);
    for (std::uint64_t row = 0; row < all_; ++row) {
      const std::uint64_t begin = begin_of(row);
      const std::vector<double> weights = head.weights(begin, row);
      for (std::uint64_t i = 0; i < kHeadWidth; ++i) {
        double sum = 0;
        for (std::size_t k = 0; k < weights.size(); ++k)
          sum += weights[k] * kv[(begin + k) * head.kv_step + head.v_at + i];
        pass_.mixed[row * head.q_step + head.q_at + i] = static_cast<float>(sum);
      }
    }
  }
}

template <class T>
void Network<T>::attend_backward() {
  const Rows &q = pass_.q, &kv = pass_.kv, &dmixed = pass_.dmixed;
  pass_.dq.resize(q.size());
  pass_.dkv.clear();
  for (std::uint64_t number = 0; number < heads_.head_count; ++number) {
    const Attention head(*this, number, q, kv);
    std::vector<double> sums(2 * all_ * kHeadWidth, 0);
    for (std::uint64_t row = 0; row < all_; ++row) {
      const std::uint64_t begin = begin_of(row);
      const std::vector<double> weights = head.weights(begin, row);
      std::vector<double> slopes(weights.size(), 0), to_q(kHeadWidth, 0);
      double mean = 0;
      for (std::size_t k = 0; k < weights.size(); ++k) {
        for (std::uint64_t i = 0; i < kHeadWidth; ++i) {
          const double dy = dmixed[row * head.q_step + head.q_at + i];
          slopes[k] += dy * kv[(begin + k) * head.kv_step + head.v_at + i];
          sums[(all_ + begin + k) * kHeadWidth + i] += weights[k] * dy;
        }
        mean += weights[k] * slopes[k];
      }
      for (std::size_t k = 0; k < weights.size(); ++k) {
        const double slope = weights[k] * (slopes[k] - mean) / std::sqrt(double{kHeadWidth});
        for (std::uint64_t i = 0; i < kHeadWidth; ++i) {
          to_q[i] += slope * kv[(begin + k) * head.kv_step + head.k_at + i];
          sums[(begin + k) * kHeadWidth + i] += slope * q[row * head.q_step + head.q_at + i];
        }
      }
      for (std::uint64_t i = 0; i < kHeadWidth; ++i)
        pass_.dq[row * head.q_step + head.q_at + i] = static_cast<float>(to_q[i]);
    }
    pass_.dkv.emplace_back(sums.begin(), sums.end());
  }
}

template <class T>
typename Network<T>::Rows Network<T>::mlp_forward(Mlp& mlp, const std::vector<T> values[],
                                                  const Rows& input, int fc1, int fc2) const {
  trireme_mlp_weights weights = TRIREME_MLP_WEIGHTS_INIT;
  weights.fc1_weight = values[fc1].data();
  weights.fc2_weight = values[fc2].data();
  Rows output(input.size());
  check(trireme_mlp_forward(mlp.mlp.get(), input.data(), &weights, output.data(), mlp.kept.data(),
                            nullptr));
  return output;
}

template <class T>
typename Network<T>::Rows Network<T>::mlp_backward(Mlp& mlp, const std::vector<T> values[],
                                                   const Rows& input, const Rows& dy, int fc1,
                                                   int fc2, Gradients<T>* to) const {
  trireme_mlp_weights weights = TRIREME_MLP_WEIGHTS_INIT;
  weights.fc1_weight = values[fc1].data();
  weights.fc2_weight = values[fc2].data();
  Rows dx(dy.size());
  check(trireme_mlp_backward_input(mlp.mlp.get(), dy.data(), &weights, dx.data(), mlp.kept.data(),
                                   nullptr));
  if (kParameters[fc1].frozen) return dx;
  trireme_mlp_gradients of = TRIREME_MLP_GRADIENTS_INIT;
  to->of[fc1].resize(values[fc1].size());
  to->of[fc2].resize(values[fc2].size());
  of.fc1_weight = to->of[fc1].data();
  of.fc2_weight = to->of[fc2].data();
  check(trireme_mlp_backward_weight(mlp.mlp.get(), input.data(), dy.data(), mlp.kept.data(), &of,
                                    nullptr));
  return dx;
}

namespace {

template <class T>
void add_rows(std::vector<T>* x, const std::vector<T>& y) {
  for (std::size_t i = 0; i < x->size(); ++i) (*x)[i] = static_cast<float>((*x)[i]) + y[i];
}

}  // namespace

template <class T>
void Network<T>::begin(const std::vector<T> values[], const Batch& batch) {
  const std::uint64_t kv_heads = heads_.kv_head_count;
  const std::uint64_t kv_width = 2 * kv_heads * kHeadWidth;
  // Rows of the whole key/value weight that this rank uses.
  std::vector<std::uint64_t> kv_rows;
  for (std::uint64_t part = 0; part < 2; ++part)
    for (std::uint64_t i = 0; i < kv_heads * kHeadWidth; ++i)
      kv_rows.push_back((part * kKvHeads + heads_.first_kv_head) * kHeadWidth + i);

  pass_.tokens.clear();
  pass_.targets.clear();
  for (const std::uint64_t row : options_.rows) {
    pass_.tokens.push_back(batch.tokens[row]);
    pass_.targets.push_back(batch.targets[row]);
  }
  Rows whole(all_ * kWidth);
  check(trireme_vocabulary_embed(vocabulary_.get(), pass_.tokens.data(), TRIREME_DTYPE_I32, all_,
                                 values[kTokens].data(), whole.data(), nullptr));
  pass_.x0.resize(rows_ * kWidth);
  const void* part = whole.data();
  if (options_.sequence)
    check(trireme_region_forward(scatter_.get(), &part, 1, pass_.x0.data(), nullptr));
  if (!options_.sequence) pass_.x0 = whole;
  pass_.normal1 = norm(pass_.x0, values[kNorm1]);
  pass_.q = linear_forward(query_, pass_.normal1, values[kQuery], nullptr);
  Rows &kv_input = pass_.kv_input, &kv = pass_.kv;
  kv_input.resize(all_ * kWidth);
  kv.resize(all_ * kv_width);
  part = pass_.normal1.data();
  check(trireme_region_forward(kv_input_.get(), &part, 1, kv_input.data(), nullptr));
  for (std::uint64_t row = 0; row < all_; ++row) {
    for (std::uint64_t j = 0; j < kv_width; ++j) {
      double sum = 0;
      for (std::uint64_t i = 0; i < kWidth; ++i)
        sum += double{kv_input[row * kWidth + i]} * values[kKeyValue][kv_rows[j] * kWidth + i];
      kv[row * kv_width + j] = static_cast<float>(sum);
    }
  }
}

template <class T>
void Network<T>::mix(const std::vector<T> values[]) {
  pass_.x1 = linear_forward(out_, pass_.mixed, values[kOut], values[kOutBias].data());
  add_rows(&pass_.x1, pass_.x0);
  pass_.normal2 = norm(pass_.x1, values[kNorm2]);
}

template <class T>
void Network<T>::mlp(const std::vector<T> values[]) {
  pass_.mlp_output = mlp_forward(mlp_, values, pass_.normal2, kFc1, kFc2);
}

template <class T>
void Network<T>::turn(const std::vector<T> values[], Gradients<T>* to) {
  x2_ = pass_.mlp_output;
  add_rows(&x2_, pass_.x1);
  x3_ = mlp_forward(frozen_, values, x2_, kFrozen1, kFrozen2);
  add_rows(&x3_, x2_);
  normal3_ = norm(x3_, values[kNorm3]);
  Rows logits = linear_forward(head_, normal3_, values[kTokens], nullptr);
  std::vector<float> losses(all_);
  std::vector<char> kept(all_ * TRIREME_VOCABULARY_KEPT_BYTES);
  check(trireme_vocabulary_loss(vocabulary_.get(), pass_.targets.data(), TRIREME_DTYPE_I32, all_,
                                logits.data(), losses.data(), kept.data(), nullptr));
  pass_.loss = std::accumulate(losses.begin(), losses.end(), 0.0) / options_.tokens;

  std::fill(losses.begin(), losses.end(), static_cast<float>(1 / options_.tokens));
  check(trireme_vocabulary_loss_backward(vocabulary_.get(), pass_.targets.data(), TRIREME_DTYPE_I32,
                                         all_, logits.data(), kept.data(), losses.data(),
                                         logits.data()));
  pass_.dx.assign(rows_ * kWidth, T(0.0f));
  const Rows dy =
      linear_backward(head_, normal3_, logits, values[kTokens], &to->of[kTokens], nullptr);
  norm_backward(x3_, values[kNorm3], dy, &pass_.dx, &to->of[kNorm3]);
  add_rows(&pass_.dx, mlp_backward(frozen_, values, x2_, pass_.dx, kFrozen1, kFrozen2, to));
}

template <class T>
void Network<T>::mlp_backward(const std::vector<T> values[], Gradients<T>* to) {
  pass_.dmlp_input = mlp_backward(mlp_, values, pass_.normal2, pass_.dx, kFc1, kFc2, to);
}

template <class T>
void Network<T>::unmix(const std::vector<T> values[], Gradients<T>* to) {
  norm_backward(pass_.x1, values[kNorm2], pass_.dmlp_input, &pass_.dx, &to->of[kNorm2]);
  to->of[kOutBias].resize(kWidth);
  pass_.dmixed = linear_backward(out_, pass_.mixed, pass_.dx, values[kOut], &to->of[kOut],
                                 to->of[kOutBias].data());
}

template <class T>
void Network<T>::end(const std::vector<T> values[], Gradients<T>* to) {
  Rows dy =
      linear_backward(query_, pass_.normal1, pass_.dq, values[kQuery], &to->of[kQuery], nullptr);
  // One summand for each query head, which is a block.
  std::vector<std::vector<float>> kv_gradients;
  std::vector<Rows> inputs;
  for (std::uint64_t number = 0; number < heads_.head_count; ++number) {
    const std::uint64_t kv_head = (heads_.first_head + number) / (kHeads / kKvHeads);
    std::vector<float>& weight =
        kv_gradients.emplace_back(kParameters[kKeyValue].rows * kWidth, 0.0f);
    Rows& input = inputs.emplace_back(all_ * kWidth);
    std::vector<double> sums(all_ * kWidth, 0);
    for (std::uint64_t j = 0; j < 2 * kHeadWidth; ++j) {
      const std::uint64_t half = j / kHeadWidth, i = j % kHeadWidth;
      const std::uint64_t at = (half * kKvHeads + kv_head) * kHeadWidth + i;
      const float* const slope = pass_.dkv[number].data() + half * all_ * kHeadWidth + i;
      for (std::uint64_t c = 0; c < kWidth; ++c) {
        double sum = 0;
        for (std::uint64_t row = 0; row < all_; ++row) {
          sum += double{slope[row * kHeadWidth]} * pass_.kv_input[row * kWidth + c];
          sums[row * kWidth + c] +=
              double{slope[row * kHeadWidth]} * values[kKeyValue][at * kWidth + c];
        }
        weight[at * kWidth + c] = static_cast<float>(sum);
      }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) input[i] = static_cast<float>(sums[i]);
  }
  add_up(kv_sum_.get(), &kv_gradients, &to->of[kKeyValue]);
  std::vector<const void*> parts;
  for (const Rows& each : inputs) parts.push_back(each.data());
  Rows of_kv(rows_ * kWidth);
  check(trireme_region_backward(kv_input_.get(), parts.data(),
                                static_cast<std::uint32_t>(parts.size()), of_kv.data(), nullptr));
  add_rows(&dy, of_kv);
  norm_backward(pass_.x0, values[kNorm1], dy, &pass_.dx, &to->of[kNorm1]);

  Rows whole(all_ * kWidth);
  const void* part = pass_.dx.data();
  if (options_.sequence) {
    check(trireme_region_backward(scatter_.get(), &part, 1, whole.data(), nullptr));
    part = whole.data();
  }
  to->tokens.assign(values[kTokens].size(), T(0.0f));
  check(trireme_vocabulary_embed_backward(vocabulary_.get(), pass_.tokens.data(), TRIREME_DTYPE_I32,
                                          all_, part, to->tokens.data()));
}

template <class T>
double Network<T>::run(const std::vector<T> values[], const Batch& batch, Gradients<T>* gradients) {
  begin(values, batch);
  attend();
  mix(values);
  mlp(values);
  turn(values, gradients);
  mlp_backward(values, gradients);
  unmix(values, gradients);
  attend_backward();
  end(values, gradients);
  return pass_.loss;
}

template class Network<float>;
template class Network<Bf16>;

}  // namespace wide
