#include "deep.hpp"

#include <algorithm>
#include <cmath>

namespace deep {

using wide::begin_of;
using wide::check;
using wide::kFrozenHidden;
using wide::kHeads;
using wide::kHeadWidth;
using wide::kHidden;
using wide::kKvHeads;
using wide::kRows;
using wide::kWidth;
using wide::kWords;

namespace {

constexpr std::uint64_t kQueries = kHeads * kHeadWidth;
constexpr std::uint64_t kHalf = kKvHeads * kHeadWidth;

// In [0, 1); a function of its arguments alone.
double draw(std::uint64_t kind, std::uint64_t number) {
  std::uint64_t x = kind * 0x9e3779b97f4a7c15u + number + 1;
  for (int i = 0; i < 3; ++i) {
    x ^= x >> 31;
    x *= 0xbf58476d1ce4e5b9u;
  }
  return static_cast<double>(x >> 11) * 0x1p-53;
}

}  // namespace

Kind kind_of(int layer) {
  if (layer == 0) return Kind::embedding;
  if (layer + 1 == kLayers) return Kind::head;
  constexpr Kind kTurn[] = {Kind::attention, Kind::mlp, Kind::frozen};
  return kTurn[(layer - 1) % 3];
}

std::vector<Parameter> parameters_of(int layer) {
  const std::string n = "layer" + std::to_string(layer) + ".";
  switch (kind_of(layer)) {
    case Kind::embedding: return {{n + "tokens", kWords, kWidth, Cut::rows}};
    case Kind::attention:
      return {{n + "norm", 1, kWidth, Cut::none, 1, Summands::rows},
              {n + "query", kQueries, kWidth, Cut::rows},
              {n + "key value", 2 * kHalf, kWidth, Cut::none, 1, Summands::heads},
              {n + "out", kWidth, kQueries, Cut::columns},
              {n + "out bias", 1, kWidth}};
    case Kind::mlp:
      return {{n + "norm", 1, kWidth, Cut::none, 1, Summands::rows},
              {n + "fc1", 2 * kHidden, kWidth, Cut::rows, 2},
              {n + "fc2", kWidth, kHidden, Cut::columns}};
    case Kind::frozen:
      return {{n + "fc1", kFrozenHidden, kWidth, Cut::rows, 1, Summands::none, true},
              {n + "fc2", kWidth, kFrozenHidden, Cut::columns, 1, Summands::none, true}};
    case Kind::head: break;
  }
  return {{n + "norm", 1, kWidth, Cut::none, 1, Summands::rows},
          {n + "weight", kWords, kWidth, Cut::rows}};
}

std::uint64_t first_of(int layer, std::size_t place) {
  static const std::vector<std::vector<std::uint64_t>> kFirsts = [] {
    std::vector<std::vector<std::uint64_t>> firsts(kLayers + 1);
    std::uint64_t first = 0;
    for (int i = 0; i < kLayers; ++i) {
      for (const Parameter& parameter : parameters_of(i)) {
        firsts[static_cast<std::size_t>(i)].push_back(first);
        first += parameter.rows * parameter.columns;
      }
      firsts[static_cast<std::size_t>(i)].push_back(first);
    }
    firsts[kLayers].push_back(first);
    return firsts;
  }();
  return kFirsts[static_cast<std::size_t>(layer)].at(place);
}

std::vector<float> initial_values() {
  std::vector<float> values;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Parameter& parameter : parameters_of(layer)) {
      const bool is_gain = parameter.summands == Summands::rows;
      for (std::uint64_t i = 0; i < parameter.rows * parameter.columns; ++i) {
        const double value = draw(9, values.size()) - 0.5;
        values.push_back(Bf16(static_cast<float>(is_gain ? 1 + 0.2 * value : 0.8 * value)));
      }
    }
  }
  return values;
}

std::vector<std::uint64_t> stretches_of(trireme_tensor* tensor, std::int32_t rank,
                                        const Parameter& parameter) {
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

std::vector<std::uint64_t> numbers_of(trireme_tensor* tensor, std::int32_t rank,
                                      const Parameter& parameter) {
  const std::vector<std::uint64_t> pairs = stretches_of(tensor, rank, parameter);
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t row = 0; row < parameter.rows; ++row) {
    for (std::uint64_t column = 0; column < parameter.columns; ++column) {
      const std::uint64_t at = parameter.cut == Cut::rows ? row : column;
      bool own = parameter.cut == Cut::none;
      for (std::size_t i = 0; i < pairs.size(); i += 2) own |= at - pairs[i] < pairs[i + 1];
      if (own) numbers.push_back(row * parameter.columns + column);
    }
  }
  return numbers;
}

wide::Batch batch_of(std::uint64_t step, std::uint32_t leaf) {
  wide::Batch batch = {};
  const std::uint64_t kind = 1000 + step * kLeaves + leaf;
  for (std::uint64_t row = 0; row < kRows; ++row) {
    batch.tokens[row] = static_cast<std::int32_t>(draw(kind, row) * 17);  // some come often
    batch.targets[row] = static_cast<std::int32_t>(draw(kind, kRows + row) * kWords);
  }
  batch.tokens[0] = kWords - 1;
  return batch;
}

// ---- loops in f64 ---------------------------------------------------------------------------

namespace {

using Matrix = std::vector<double>;

double scale_of(double squares) { return 1 / std::sqrt(squares / kWidth + wide::kNormEpsilon); }

// x * transpose(weight)
Matrix times(const Matrix& x, const double* weight, std::uint64_t inputs, std::uint64_t outputs) {
  Matrix y(kRows * outputs, 0);
  for (std::uint64_t row = 0; row < kRows; ++row)
    for (std::uint64_t j = 0; j < outputs; ++j)
      for (std::uint64_t i = 0; i < inputs; ++i)
        y[row * outputs + j] += x[row * inputs + i] * weight[j * inputs + i];
  return y;
}

Matrix normal_of(const Matrix& x, const double* gain) {
  Matrix y(x.size());
  for (std::uint64_t row = 0; row < kRows; ++row) {
    double squares = 0;
    for (std::uint64_t i = 0; i < kWidth; ++i) squares += x[row * kWidth + i] * x[row * kWidth + i];
    for (std::uint64_t i = 0; i < kWidth; ++i)
      y[row * kWidth + i] = x[row * kWidth + i] * scale_of(squares) * gain[i];
  }
  return y;
}

Matrix attention_of(const Matrix& q, const Matrix& kv) {
  Matrix mixed(kRows * kQueries, 0);
  for (std::uint64_t row = 0; row < kRows; ++row) {
    for (std::uint64_t i = 0; i < kQueries; i += kHeadWidth) {
      const std::uint64_t kv_at = i / kHeadWidth / (kHeads / kKvHeads) * kHeadWidth;
      double sum = 0;
      for (std::uint64_t other = begin_of(row); other <= row; ++other) {
        double score = 0;
        for (std::uint64_t k = 0; k < kHeadWidth; ++k)
          score += q[row * kQueries + i + k] * kv[other * 2 * kHalf + kv_at + k];
        const double weight = std::exp(score / std::sqrt(double{kHeadWidth}));
        sum += weight;
        for (std::uint64_t k = 0; k < kHeadWidth; ++k)
          mixed[row * kQueries + i + k] += weight * kv[other * 2 * kHalf + kHalf + kv_at + k];
      }
      for (std::uint64_t k = 0; k < kHeadWidth; ++k) mixed[row * kQueries + i + k] /= sum;
    }
  }
  return mixed;
}

double silu(double x) { return x / (1 + std::exp(-x)); }

Matrix layer_of(int layer, const std::vector<double>& values, const Matrix& x) {
  const auto at = [&](std::size_t place) { return values.data() + first_of(layer, place); };
  switch (kind_of(layer)) {
    case Kind::attention: {
      const Matrix normal = normal_of(x, at(AttentionAt::norm));
      Matrix y = times(attention_of(times(normal, at(AttentionAt::query), kWidth, kQueries),
                                    times(normal, at(AttentionAt::key_value), kWidth, 2 * kHalf)),
                       at(AttentionAt::out), kQueries, kWidth);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += at(AttentionAt::out_bias)[i % kWidth];
      return y;
    }
    case Kind::mlp: {
      const Matrix both = times(normal_of(x, at(MlpAt::norm)), at(MlpAt::fc1), kWidth, 2 * kHidden);
      Matrix bent(kRows * kHidden);
      for (std::size_t i = 0; i < bent.size(); ++i) {
        const std::size_t gate = i / kHidden * 2 * kHidden + i % kHidden;
        bent[i] = silu(both[gate]) * both[gate + kHidden];
      }
      return times(bent, at(MlpAt::fc2), kHidden, kWidth);
    }
    default: break;
  }
  Matrix bent = times(x, at(FrozenAt::fc1), kWidth, kFrozenHidden);
  std::transform(bent.begin(), bent.end(), bent.begin(), silu);
  return times(bent, at(FrozenAt::fc2), kFrozenHidden, kWidth);
}

// The four words of a block of Philox 4x32-10, as random.h numbers the blocks of dropout.
void draw_words(std::uint64_t block, std::uint64_t draw, std::uint32_t words[4]) {
  const std::uint64_t place = block + (std::uint64_t{2} << 62);
  const std::uint64_t counter[] = {place & 0xffffffff, place >> 32, draw & 0xffffffff, draw >> 32};
  std::copy_n(counter, 4, words);
  std::uint32_t low = kDropoutSeed & 0xffffffff, high = kDropoutSeed >> 32;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xd2511f53} * words[0];
    const std::uint64_t b = std::uint64_t{0xcd9e8d57} * words[2];
    words[0] = static_cast<std::uint32_t>(b >> 32) ^ words[1] ^ low;
    words[1] = static_cast<std::uint32_t>(b);
    words[2] = static_cast<std::uint32_t>(a >> 32) ^ words[3] ^ high;
    words[3] = static_cast<std::uint32_t>(a);
    low += 0x9e3779b9;
    high += 0xbb67ae85;
  }
}

void drop(std::uint64_t draw, double rate, Matrix* x) {
  std::uint32_t words[4];
  for (std::size_t i = 0; i < x->size() && rate > 0; ++i) {
    if (i % 4 == 0) draw_words(i / 4, draw, words);
    (*x)[i] = words[i % 4] < std::floor(rate * 0x1p32) ? 0 : (*x)[i] / (1 - rate);
  }
}

}  // namespace

double plain_loss(const std::vector<double>& values, const Pass& pass) {
  const wide::Batch batch = batch_of(pass.step, pass.leaf);
  Matrix x(kRows * kWidth);
  for (std::uint64_t row = 0; row < kRows; ++row)
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(batch.tokens[row] * kWidth), kWidth,
                x.begin() + static_cast<std::ptrdiff_t>(row * kWidth));
  for (int layer = 1; layer + 1 < kLayers; ++layer) {
    Matrix y = layer_of(layer, values, x);
    if (kind_of(layer) != Kind::frozen)
      drop(draw_of(pass.step, pass.leaf, layer), pass.dropout, &y);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  const double* const head = values.data() + first_of(kLayers - 1);
  const double* const weight = pass.tied ? values.data() : head + kWidth;
  const Matrix scores = times(normal_of(x, head), weight, kWidth, kWords);
  double loss = 0;
  for (std::uint64_t row = 0; row < kRows; ++row) {
    double sum = 0;
    for (std::uint64_t i = 0; i < kWords; ++i) sum += std::exp(scores[row * kWords + i]);
    loss += std::log(sum) - scores[row * kWords + static_cast<std::uint64_t>(batch.targets[row])];
  }
  return loss / kRows;
}

}  // namespace deep
