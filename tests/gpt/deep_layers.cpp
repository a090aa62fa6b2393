// The layers, with those of the library.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "deep.hpp"

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

double scale_of(double squares) { return 1 / std::sqrt(squares / kWidth + wide::kNormEpsilon); }

// Memory of `saved`, array after array. Without memory it counts.
class Room {
 public:
  explicit Room(void* saved) : at_(reinterpret_cast<std::uintptr_t>(saved)) {}
  template <class U>
  U* take(std::uint64_t count) {
    const std::uintptr_t place = at_;
    at_ += (count * sizeof(U) + 63) / 64 * 64;
    return reinterpret_cast<U*>(place);
  }
  std::uint64_t bytes() const { return at_; }

 private:
  std::uintptr_t at_;
};

const void* values_at(const trireme_layer_call& call, int place) { return call.parameters[place]; }

float* gradient_at(const trireme_layer_call& call, int place) {
  return static_cast<float*>(call.gradients[place]);
}

// A layer of the residual stream.
template <class T>
class Common : public Layer {
 public:
  Common(int number, const Setting& setting)
      : setting_(setting), name_("layer" + std::to_string(number)), number_(number) {
    check(trireme_tensor_get_info(setting.tensor, &info_));
    if (setting.sequence)
      check(trireme_tensor_range(setting.tensor, kRows, info_.rank, &first_row_, &rows_));
  }
  // A rank may have no rows. A layer before the last one has an output all the same.
  std::uint64_t output_bytes() const override {
    return std::max<std::uint64_t>(own(), 1) * sizeof(T);
  }

 protected:
  std::uint64_t own() const { return rows_ * kWidth; }
  static const T* input(const trireme_layer_call& call) {
    return static_cast<const T*>(call.input);
  }
  static const T* slope(const trireme_layer_call& call) {
    return static_cast<const T*>(call.output_gradient);
  }
  static const T* weight(const trireme_layer_call& call, int place) {
    return static_cast<const T*>(values_at(call, place));
  }

  Handle<trireme_linear> make_linear(const char* what, trireme_linear_kind kind,
                                     std::uint64_t inputs, std::uint64_t outputs,
                                     std::uint32_t flags, trireme_linear_info* info) const {
    const std::string name = name_ + what;
    trireme_linear_options options = TRIREME_LINEAR_OPTIONS_INIT;
    options.name = name.c_str();
    options.kind = kind;
    options.dtype = wide::kType<T>;
    options.input = inputs;
    options.output = outputs;
    options.rows = kRows;
    options.flags = flags;
    trireme_linear* made = nullptr;
    check(trireme_linear_create(setting_.tensor, &options, &made));
    Handle<trireme_linear> linear(made);
    check(trireme_linear_get_info(made, info));
    return linear;
  }
  Handle<trireme_region> make_region(const char* what, trireme_region_kind kind, bool by_rows,
                                     std::uint64_t rows, trireme_dtype dtype) const {
    const std::string name = name_ + what;
    trireme_region_options options = TRIREME_REGION_OPTIONS_INIT;
    options.name = name.c_str();
    options.kind = kind;
    options.dimension = by_rows ? TRIREME_REGION_DIMENSION_ROWS : TRIREME_REGION_DIMENSION_NONE;
    options.rows = rows;
    options.columns = kWidth;
    options.dtype = dtype;
    trireme_region* region = nullptr;
    check(trireme_region_create(setting_.tensor, &options, &region));
    return Handle<trireme_region>(region);
  }
  // A summand of this rank for each of its blocks.
  void make_sum(std::uint64_t rows) {
    if (!setting_.shared)
      sum_ = make_region(".sum", TRIREME_REGION_KIND_REDUCE, false, rows, TRIREME_DTYPE_F32);
  }
  void add_up(const float* summands, std::uint64_t parts, std::uint64_t count,
              trireme_region* region, float* sum) const {
    if (region != nullptr) {
      std::vector<const void*> list;
      for (std::uint64_t i = 0; i < parts; ++i) list.push_back(summands + i * count);
      return check(trireme_region_forward(region, list.data(), static_cast<std::uint32_t>(parts),
                                          sum, nullptr));
    }
    // The rank's blocks are a subtree: their number is a power of two.
    std::vector<float> tree(summands, summands + parts * count);
    for (std::uint64_t distance = 1; distance < parts; distance *= 2)
      for (std::uint64_t i = 0; i < parts; i += 2 * distance)
        for (std::uint64_t k = 0; k < count; ++k)
          tree[i * count + k] += tree[(i + distance) * count + k];
    std::copy_n(tree.data(), count, sum);
  }
  void add_norm_gradient(const float* summands, float* to) const {
    add_up(summands, info_.block_count, kWidth, sum_.get(), to);
  }

  void norm(const T* x, const T* gain, T* y) const {
    for (std::uint64_t row = 0; row < rows_; ++row) {
      double squares = 0;
      for (std::uint64_t i = 0; i < kWidth; ++i)
        squares += double{x[row * kWidth + i]} * x[row * kWidth + i];
      for (std::uint64_t i = 0; i < kWidth; ++i)
        y[row * kWidth + i] = static_cast<float>(x[row * kWidth + i] * scale_of(squares) * gain[i]);
    }
  }
  // Adds to dx. `summands` get the gradient of the gain, one for each block of this rank.
  void norm_backward(const T* x, const T* gain, const T* dy, T* dx, float* summands) const {
    for (std::uint32_t block = 0; block < wide::kBlocks; ++block) {
      const bool is_own = block - info_.first_block < info_.block_count;
      if (setting_.sequence && !is_own) continue;
      std::uint64_t first = 0, count = 0;
      check(trireme_tensor_block(setting_.tensor, kRows, block, &first, &count));
      std::vector<double> sums(kWidth, 0);
      for (std::uint64_t row = first - first_row_; row < first - first_row_ + count; ++row) {
        double squares = 0, along = 0;
        for (std::uint64_t i = 0; i < kWidth; ++i) {
          const double each = x[row * kWidth + i];
          squares += each * each;
          along += each * gain[i] * dy[row * kWidth + i];
        }
        const double scale = scale_of(squares);
        for (std::uint64_t i = 0; i < kWidth; ++i) {
          const std::uint64_t at = row * kWidth + i;
          sums[i] += dy[at] * (x[at] * scale);
          dx[at] = static_cast<float>(
              dx[at] + (scale * gain[i] * dy[at] - x[at] * scale * scale * scale * along / kWidth));
        }
      }
      if (is_own)
        std::copy(sums.begin(), sums.end(), summands + (block - info_.first_block) * kWidth);
    }
  }
  void drop(const trireme_layer_call& call, T* x) const {
    if (setting_.dropout == 0 || call.phase == TRIREME_PHASE_EVALUATE) return;
    trireme_random_options options = TRIREME_RANDOM_OPTIONS_INIT;
    options.seed = kDropoutSeed;
    options.draw = draw_of(call.step, call.leaf, number_);
    options.first_row = first_row_;
    options.rows = rows_;
    options.columns = options.all_columns = kWidth;
    check(trireme_random_dropout(&options, setting_.dropout, x, x, wide::kType<T>));
  }
  void add(const T* x, T* y) const {
    for (std::uint64_t i = 0; i < own(); ++i) y[i] = static_cast<float>(y[i]) + x[i];
  }

  const Setting setting_;
  const std::string name_;
  const int number_;
  trireme_tensor_info info_ = TRIREME_TENSOR_INFO_INIT;
  std::uint64_t first_row_ = 0, rows_ = kRows;
  Handle<trireme_region> sum_;
};

template <class T>
class Embedding final : public Common<T> {
 public:
  Embedding(int number, const Setting& setting) : Common<T>(number, setting) {
    if (setting.sequence)
      scatter_ =
          this->make_region(".scatter", TRIREME_REGION_KIND_SCATTER, true, kRows, wide::kType<T>);
    trireme_vocabulary_options options = TRIREME_VOCABULARY_OPTIONS_INIT;
    options.name = "embedding";
    options.classes = kWords;
    options.width = kWidth;
    options.rows = kRows;
    options.dtype = wide::kType<T>;
    trireme_vocabulary* made = nullptr;
    check(trireme_vocabulary_create(setting.tensor, &options, &made));
    vocabulary_.reset(made);
  }
  std::uint64_t saved_bytes() const override { return 0; }
  void forward(const trireme_layer_call& call) override {
    const wide::Batch batch = batch_of(call.step, call.leaf);
    std::vector<T> whole(kRows * kWidth);
    check(trireme_vocabulary_embed(vocabulary_.get(), batch.tokens, TRIREME_DTYPE_I32, kRows,
                                   values_at(call, 0), whole.data(), nullptr));
    const void* part = whole.data();
    if (scatter_ != nullptr)
      return check(trireme_region_forward(scatter_.get(), &part, 1, call.output, nullptr));
    std::copy(whole.begin(), whole.end(), static_cast<T*>(call.output));
  }
  void backward(const trireme_layer_call& call) override {
    const wide::Batch batch = batch_of(call.step, call.leaf);
    std::vector<T> whole(kRows * kWidth);
    const void* part = call.output_gradient;
    if (scatter_ != nullptr) {
      check(trireme_region_backward(scatter_.get(), &part, 1, whole.data(), nullptr));
      part = whole.data();
    }
    std::vector<T> gradient(call.parameter_counts[0], T(0.0f));
    check(trireme_vocabulary_embed_backward(vocabulary_.get(), batch.tokens, TRIREME_DTYPE_I32,
                                            kRows, part, gradient.data()));
    std::copy(gradient.begin(), gradient.end(), gradient_at(call, 0));
  }

 private:
  Handle<trireme_region> scatter_;
  Handle<trireme_vocabulary> vocabulary_;
};

template <class T>
class Attention final : public Common<T> {
  using Base = Common<T>;
  using At = AttentionAt;
  using Base::input;
  using Base::own;
  using Base::weight;

 public:
  Attention(int number, const Setting& setting) : Base(number, setting) {
    check(trireme_tensor_heads(setting.tensor, kHeads, kKvHeads, this->info_.rank, &heads_));
    query_ =
        this->make_linear(".query", TRIREME_LINEAR_KIND_COLUMN, kWidth, kQueries, 0, &query_info_);
    out_ =
        this->make_linear(".out", TRIREME_LINEAR_KIND_ROW, kQueries, kWidth,
                          TRIREME_LINEAR_FLAG_BIAS | TRIREME_LINEAR_FLAG_INPUT_SPLIT, &out_info_);
    copy_ = this->make_region(
        ".copy", setting.sequence ? TRIREME_REGION_KIND_GATHER_SUM : TRIREME_REGION_KIND_COPY,
        setting.sequence, kRows, wide::kType<T>);
    this->make_sum(1);
    if (!setting.shared)
      kv_sum_ = this->make_region(".kv sum", TRIREME_REGION_KIND_REDUCE, false, 2 * kHalf,
                                  TRIREME_DTYPE_F32);
    for (std::uint64_t part = 0; part < 2; ++part)
      for (std::uint64_t i = 0; i < heads_.kv_head_count * kHeadWidth; ++i)
        kv_rows_.push_back((part * kKvHeads + heads_.first_kv_head) * kHeadWidth + i);
  }
  bool is_split() const override { return true; }
  std::uint64_t saved_bytes() const override { return Kept(*this, nullptr).bytes; }

  void forward(const trireme_layer_call& call) override {
    const Kept k(*this, call.saved);
    this->norm(input(call), weight(call, At::norm), k.normal);
    check(trireme_linear_forward(query_.get(), k.normal, weight(call, At::query), nullptr, k.q,
                                 k.of_query, nullptr));
    const void* part = k.normal;
    check(trireme_region_forward(copy_.get(), &part, 1, k.copied, nullptr));
    const T* const kv_weight = weight(call, At::key_value);
    for (std::uint64_t row = 0; row < kRows; ++row) {
      for (std::uint64_t j = 0; j < kv_rows_.size(); ++j) {
        double sum = 0;
        for (std::uint64_t i = 0; i < kWidth; ++i)
          sum += double{k.copied[row * kWidth + i]} * kv_weight[kv_rows_[j] * kWidth + i];
        k.kv[row * kv_rows_.size() + j] = static_cast<float>(sum);
      }
    }
    for (std::uint64_t head = 0; head < heads_.head_count; ++head) attend(head, k);
    T* const y = static_cast<T*>(call.output);
    check(trireme_linear_forward(out_.get(), k.mixed, weight(call, At::out),
                                 weight(call, At::out_bias), y, k.of_out, nullptr));
    this->drop(call, y);
    this->add(input(call), y);
  }

  void backward(const trireme_layer_call& call) override {
    const Kept k(*this, call.saved);
    std::copy_n(this->slope(call), own(), k.dropped);
    this->drop(call, k.dropped);
    std::vector<T> dmixed(kRows * width()), dnormal(own()), of_kv(own());
    check(trireme_linear_backward_input(out_.get(), k.dropped, weight(call, At::out), dmixed.data(),
                                        k.of_out, nullptr));
    std::vector<std::vector<T>> inputs;
    std::vector<const void*> parts;
    for (std::uint64_t head = 0; head < heads_.head_count; ++head) {
      attend_backward(head, k, dmixed);
      inputs.push_back(input_of_kv(head, k, weight(call, At::key_value)));
    }
    for (const std::vector<T>& each : inputs) parts.push_back(each.data());
    check(trireme_linear_backward_input(query_.get(), k.dq, weight(call, At::query), dnormal.data(),
                                        k.of_query, nullptr));
    check(trireme_region_backward(copy_.get(), parts.data(),
                                  static_cast<std::uint32_t>(parts.size()), of_kv.data(), nullptr));
    this->add(of_kv.data(), dnormal.data());
    T* const dx = static_cast<T*>(call.input_gradient);
    std::copy_n(this->slope(call), own(), dx);
    this->norm_backward(input(call), weight(call, At::norm), dnormal.data(), dx, k.norms);
  }

  void backward_weight(const trireme_layer_call& call) override {
    const Kept k(*this, call.saved);
    check(trireme_linear_backward_weight(out_.get(), k.mixed, k.dropped, k.of_out,
                                         gradient_at(call, At::out),
                                         gradient_at(call, At::out_bias), nullptr));
    // One summand for each query head, which is a block.
    std::vector<float> summands(heads_.head_count * 2 * kHalf * kWidth, 0.0f);
    for (std::uint64_t head = 0; head < heads_.head_count; ++head) {
      for (std::uint64_t j = 0; j < 2 * kHeadWidth; ++j) {
        for (std::uint64_t c = 0; c < kWidth; ++c) {
          double sum = 0;
          for (std::uint64_t row = 0; row < kRows; ++row)
            sum += double{slope_of(head, j, row, k)} * k.copied[row * kWidth + c];
          summands[(head * 2 * kHalf + row_of(head, j)) * kWidth + c] = static_cast<float>(sum);
        }
      }
    }
    this->add_up(summands.data(), heads_.head_count, 2 * kHalf * kWidth, kv_sum_.get(),
                 gradient_at(call, At::key_value));
    check(trireme_linear_backward_weight(query_.get(), k.normal, k.dq, k.of_query,
                                         gradient_at(call, At::query), nullptr, nullptr));
    this->add_norm_gradient(k.norms, gradient_at(call, At::norm));
  }

 private:
  struct Kept {
    Kept(const Attention& a, void* saved) {
      Room room(saved);
      normal = room.take<T>(a.own());
      q = room.take<T>(kRows * a.width());
      copied = room.take<T>(kRows * kWidth);
      kv = room.take<T>(kRows * a.kv_rows_.size());
      mixed = room.take<T>(kRows * a.width());
      dropped = room.take<T>(a.own());
      dq = room.take<T>(kRows * a.width());
      dkv = room.take<float>(a.heads_.head_count * 2 * kRows * kHeadWidth);
      norms = room.take<float>(a.info_.block_count * kWidth);
      of_query = room.take<char>(a.query_info_.kept_bytes);
      of_out = room.take<char>(a.out_info_.kept_bytes);
      bytes = room.bytes();
    }
    T *normal, *q, *copied, *kv, *mixed, *dropped, *dq;
    float *dkv, *norms;  // of each head: keys, then values
    char *of_query, *of_out;
    std::uint64_t bytes;
  };

  std::uint64_t width() const { return heads_.head_count * kHeadWidth; }
  std::uint64_t kv_head(std::uint64_t head) const {
    return (heads_.first_head + head) / (kHeads / kKvHeads);
  }
  // Row of the whole key/value weight that makes number j of a head's keys and values.
  std::uint64_t row_of(std::uint64_t head, std::uint64_t j) const {
    return (j / kHeadWidth * kKvHeads + kv_head(head)) * kHeadWidth + j % kHeadWidth;
  }
  static float slope_of(std::uint64_t head, std::uint64_t j, std::uint64_t row, const Kept& k) {
    const std::uint64_t half = j / kHeadWidth;
    return k.dkv[((head * 2 + half) * kRows + row) * kHeadWidth + j % kHeadWidth];
  }
  const T* key(std::uint64_t head, std::uint64_t row, const Kept& k) const {
    return k.kv + row * kv_rows_.size() + (kv_head(head) - heads_.first_kv_head) * kHeadWidth;
  }
  const T* value(std::uint64_t head, std::uint64_t row, const Kept& k) const {
    return key(head, row, k) + heads_.kv_head_count * kHeadWidth;
  }

  std::vector<double> weights(std::uint64_t head, std::uint64_t row, const Kept& k) const {
    std::vector<double> made;
    double sum = 0;
    for (std::uint64_t other = begin_of(row); other <= row; ++other) {
      double score = 0;
      for (std::uint64_t i = 0; i < kHeadWidth; ++i)
        score += double{k.q[row * width() + head * kHeadWidth + i]} * key(head, other, k)[i];
      made.push_back(std::exp(score / std::sqrt(double{kHeadWidth})));
      sum += made.back();
    }
    for (double& each : made) each /= sum;
    return made;
  }
  void attend(std::uint64_t head, const Kept& k) const {
    for (std::uint64_t row = 0; row < kRows; ++row) {
      const std::vector<double> made = weights(head, row, k);
      for (std::uint64_t i = 0; i < kHeadWidth; ++i) {
        double sum = 0;
        for (std::size_t at = 0; at < made.size(); ++at)
          sum += made[at] * value(head, begin_of(row) + at, k)[i];
        k.mixed[row * width() + head * kHeadWidth + i] = static_cast<float>(sum);
      }
    }
  }
  void attend_backward(std::uint64_t head, const Kept& k, const std::vector<T>& dmixed) const {
    std::vector<double> sums(2 * kRows * kHeadWidth, 0);
    for (std::uint64_t row = 0; row < kRows; ++row) {
      const std::uint64_t begin = begin_of(row);
      const std::vector<double> made = weights(head, row, k);
      std::vector<double> slopes(made.size(), 0), to_q(kHeadWidth, 0);
      double mean = 0;
      for (std::size_t at = 0; at < made.size(); ++at) {
        for (std::uint64_t i = 0; i < kHeadWidth; ++i) {
          const double dy = dmixed[row * width() + head * kHeadWidth + i];
          slopes[at] += dy * value(head, begin + at, k)[i];
          sums[(kRows + begin + at) * kHeadWidth + i] += made[at] * dy;
        }
        mean += made[at] * slopes[at];
      }
      for (std::size_t at = 0; at < made.size(); ++at) {
        const double slope = made[at] * (slopes[at] - mean) / std::sqrt(double{kHeadWidth});
        for (std::uint64_t i = 0; i < kHeadWidth; ++i) {
          to_q[i] += slope * key(head, begin + at, k)[i];
          sums[(begin + at) * kHeadWidth + i] += slope * k.q[row * width() + head * kHeadWidth + i];
        }
      }
      for (std::uint64_t i = 0; i < kHeadWidth; ++i)
        k.dq[row * width() + head * kHeadWidth + i] = static_cast<float>(to_q[i]);
    }
    std::copy(sums.begin(), sums.end(), k.dkv + head * sums.size());
  }
  std::vector<T> input_of_kv(std::uint64_t head, const Kept& k, const T* kv_weight) const {
    std::vector<double> sums(kRows * kWidth, 0);
    for (std::uint64_t j = 0; j < 2 * kHeadWidth; ++j)
      for (std::uint64_t row = 0; row < kRows; ++row)
        for (std::uint64_t c = 0; c < kWidth; ++c)
          sums[row * kWidth + c] +=
              double{slope_of(head, j, row, k)} * kv_weight[row_of(head, j) * kWidth + c];
    std::vector<T> made(sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) made[i] = static_cast<float>(sums[i]);
    return made;
  }

  trireme_head_info heads_ = TRIREME_HEAD_INFO_INIT;
  trireme_linear_info query_info_ = TRIREME_LINEAR_INFO_INIT, out_info_ = TRIREME_LINEAR_INFO_INIT;
  Handle<trireme_linear> query_, out_;
  Handle<trireme_region> copy_, kv_sum_;
  std::vector<std::uint64_t> kv_rows_;  // of the whole key/value weight that this rank uses
};

// With a norm and dropout, or frozen and without.
template <class T>
class Mlp final : public Common<T> {
  using Base = Common<T>;
  using Base::input;
  using Base::own;

 public:
  Mlp(int number, const Setting& setting, bool frozen) : Base(number, setting), frozen_(frozen) {
    const std::string name = this->name_ + ".mlp";
    trireme_mlp_options options = TRIREME_MLP_OPTIONS_INIT;
    options.name = name.c_str();
    options.dtype = wide::kType<T>;
    options.activation = frozen ? TRIREME_ACTIVATION_KIND_SILU : TRIREME_ACTIVATION_KIND_SWIGLU;
    options.input = options.output = kWidth;
    options.hidden = frozen ? kFrozenHidden : kHidden;
    options.rows = kRows;
    trireme_mlp* made = nullptr;
    check(trireme_mlp_create(setting.tensor, &options, &made));
    mlp_.reset(made);
    check(trireme_mlp_get_info(made, &info_));
    if (!frozen) this->make_sum(1);
  }
  bool is_split() const override { return !frozen_; }
  std::uint64_t saved_bytes() const override { return Kept(*this, nullptr).bytes; }

  void forward(const trireme_layer_call& call) override {
    const Kept k(*this, call.saved);
    if (!frozen_) this->norm(input(call), this->weight(call, MlpAt::norm), k.normal);
    const trireme_mlp_weights weights = weights_of(call);
    T* const y = static_cast<T*>(call.output);
    check(trireme_mlp_forward(mlp_.get(), frozen_ ? input(call) : k.normal, &weights, y, k.of_mlp,
                              nullptr));
    if (!frozen_) this->drop(call, y);
    this->add(input(call), y);
  }
  void backward(const trireme_layer_call& call) override {
    const Kept k(*this, call.saved);
    const trireme_mlp_weights weights = weights_of(call);
    T* const dx = static_cast<T*>(call.input_gradient);
    if (frozen_) {
      check(trireme_mlp_backward_input(mlp_.get(), this->slope(call), &weights, dx, k.of_mlp,
                                       nullptr));
      return this->add(this->slope(call), dx);
    }
    std::copy_n(this->slope(call), own(), k.dropped);
    this->drop(call, k.dropped);
    std::vector<T> dnormal(own());
    check(trireme_mlp_backward_input(mlp_.get(), k.dropped, &weights, dnormal.data(), k.of_mlp,
                                     nullptr));
    std::copy_n(this->slope(call), own(), dx);
    this->norm_backward(input(call), this->weight(call, MlpAt::norm), dnormal.data(), dx, k.norms);
  }
  void backward_weight(const trireme_layer_call& call) override {
    const Kept k(*this, call.saved);
    trireme_mlp_gradients to = TRIREME_MLP_GRADIENTS_INIT;
    to.fc1_weight = gradient_at(call, MlpAt::fc1);
    to.fc2_weight = gradient_at(call, MlpAt::fc2);
    check(trireme_mlp_backward_weight(mlp_.get(), k.normal, k.dropped, k.of_mlp, &to, nullptr));
    this->add_norm_gradient(k.norms, gradient_at(call, MlpAt::norm));
  }

 private:
  struct Kept {
    Kept(const Mlp& m, void* saved) {
      Room room(saved);
      of_mlp = room.take<char>(m.info_.kept_bytes);
      normal = room.take<T>(m.frozen_ ? 0 : m.own());
      dropped = room.take<T>(m.frozen_ ? 0 : m.own());
      norms = room.take<float>(m.frozen_ ? 0 : m.Base::info_.block_count * kWidth);
      bytes = room.bytes();
    }
    char* of_mlp;
    T *normal, *dropped;
    float* norms;
    std::uint64_t bytes;
  };
  trireme_mlp_weights weights_of(const trireme_layer_call& call) const {
    trireme_mlp_weights weights = TRIREME_MLP_WEIGHTS_INIT;
    weights.fc1_weight = values_at(call, frozen_ ? int{FrozenAt::fc1} : int{MlpAt::fc1});
    weights.fc2_weight = values_at(call, frozen_ ? int{FrozenAt::fc2} : int{MlpAt::fc2});
    return weights;
  }

  const bool frozen_;
  Handle<trireme_mlp> mlp_;
  trireme_mlp_info info_ = TRIREME_MLP_INFO_INIT;
};

template <class T>
class Head final : public Common<T> {
  using Base = Common<T>;
  using At = HeadAt;

 public:
  Head(int number, const Setting& setting) : Base(number, setting) {
    linear_ = this->make_linear(".weight", TRIREME_LINEAR_KIND_COLUMN, kWidth, kWords, 0, &info_);
    trireme_vocabulary_options options = TRIREME_VOCABULARY_OPTIONS_INIT;
    options.name = "head";
    options.classes = kWords;
    options.width = kWidth;
    options.rows = kRows;
    options.dtype = wide::kType<T>;
    trireme_vocabulary* made = nullptr;
    check(trireme_vocabulary_create(setting.tensor, &options, &made));
    vocabulary_.reset(made);
    this->make_sum(1);
  }
  bool is_split() const override { return true; }
  std::uint64_t output_bytes() const override { return 0; }
  std::uint64_t saved_bytes() const override { return Kept(*this, nullptr).bytes; }

  void forward(const trireme_layer_call& call) override {
    const Kept k(*this, call.saved);
    const wide::Batch batch = batch_of(call.step, call.leaf);
    this->norm(this->input(call), this->weight(call, At::norm), k.normal);
    check(trireme_linear_forward(linear_.get(), k.normal, values_at(call, At::weight), nullptr,
                                 k.scores, k.of_linear, nullptr));
    std::vector<float> losses(kRows);
    check(trireme_vocabulary_loss(vocabulary_.get(), batch.targets, TRIREME_DTYPE_I32, kRows,
                                  k.scores, losses.data(), k.of_loss, nullptr));
    *call.loss = std::accumulate(losses.begin(), losses.end(), 0.0) / kRows;
  }
  void backward(const trireme_layer_call& call) override {
    const Kept k(*this, call.saved);
    const wide::Batch batch = batch_of(call.step, call.leaf);
    std::vector<float> losses(kRows, static_cast<float>(call.loss_scale / kRows));
    check(trireme_vocabulary_loss_backward(vocabulary_.get(), batch.targets, TRIREME_DTYPE_I32,
                                           kRows, k.scores, k.of_loss, losses.data(), k.scores));
    std::vector<T> dnormal(this->own());
    check(trireme_linear_backward_input(linear_.get(), k.scores, values_at(call, At::weight),
                                        dnormal.data(), k.of_linear, nullptr));
    T* const dx = static_cast<T*>(call.input_gradient);
    std::fill_n(dx, this->own(), T(0.0f));
    this->norm_backward(this->input(call), this->weight(call, At::norm), dnormal.data(), dx,
                        k.norms);
  }
  void backward_weight(const trireme_layer_call& call) override {
    const Kept k(*this, call.saved);
    check(trireme_linear_backward_weight(linear_.get(), k.normal, k.scores, k.of_linear,
                                         gradient_at(call, At::weight), nullptr, nullptr));
    this->add_norm_gradient(k.norms, gradient_at(call, At::norm));
  }

 private:
  struct Kept {
    Kept(const Head& h, void* saved) {
      Room room(saved);
      normal = room.take<T>(h.own());
      scores = room.take<T>(kRows * h.info_.output_columns);
      norms = room.take<float>(h.Base::info_.block_count * kWidth);
      of_loss = room.take<char>(kRows * TRIREME_VOCABULARY_KEPT_BYTES);
      of_linear = room.take<char>(h.info_.kept_bytes);
      bytes = room.bytes();
    }
    T *normal, *scores;
    float* norms;
    char *of_loss, *of_linear;
    std::uint64_t bytes;
  };

  trireme_linear_info info_ = TRIREME_LINEAR_INFO_INIT;
  Handle<trireme_linear> linear_;
  Handle<trireme_vocabulary> vocabulary_;
};

}  // namespace

template <class T>
std::unique_ptr<Layer> make_layer(int number, const Setting& setting) {
  switch (kind_of(number)) {
    case Kind::embedding: return std::make_unique<Embedding<T>>(number, setting);
    case Kind::attention: return std::make_unique<Attention<T>>(number, setting);
    case Kind::mlp: return std::make_unique<Mlp<T>>(number, setting, false);
    case Kind::frozen: return std::make_unique<Mlp<T>>(number, setting, true);
    case Kind::head: break;
  }
  return std::make_unique<Head<T>>(number, setting);
}

template std::unique_ptr<Layer> make_layer<float>(int number, const Setting& setting);
template std::unique_ptr<Layer> make_layer<Bf16>(int number, const Setting& setting);

}  // namespace deep
