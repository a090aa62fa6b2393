#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "axes.hpp"

namespace wide {

namespace {

constexpr double kScale = 0.57735026918962576;  // 1 / sqrt(kHeadWidth)
static_assert(kHeadWidth == 3);

std::uint64_t first_of_chunk(std::uint32_t chunk) { return chunk * kRows / kChunks; }

// ---- whole sequences, one head after the other ------------------------------------------------

template <class T>
std::vector<double> weights_of(const HeadRows<T>& rows, std::uint64_t head, std::uint64_t row) {
  const std::uint64_t step = rows.heads * kHeadWidth, at = head * kHeadWidth;
  std::vector<double> weights;
  double sum = 0;
  for (std::uint64_t other = begin_of(row); other <= row; ++other) {
    double score = 0;
    for (std::uint64_t i = 0; i < kHeadWidth; ++i)
      score += double{rows.q[row * step + at + i]} * rows.k[other * step + at + i];
    weights.push_back(std::exp(score * kScale));
    sum += weights.back();
  }
  for (double& each : weights) each /= sum;
  return weights;
}

template <class T>
class Loops final : public AttentionCore<T> {
 public:
  void forward(HeadRows<T>* rows) override {
    const std::uint64_t step = rows->heads * kHeadWidth;
    rows->mixed.resize(rows->q.size());
    for (std::uint64_t at = 0; at < rows->q.size(); ++at) {
      const std::uint64_t row = at / step, column = at % step;
      const std::vector<double> weights = weights_of(*rows, column / kHeadWidth, row);
      double sum = 0;
      for (std::size_t k = 0; k < weights.size(); ++k)
        sum += weights[k] * rows->v[(begin_of(row) + k) * step + column];
      rows->mixed[at] = static_cast<float>(sum);
    }
  }
  void backward(HeadRows<T>* rows) override {
    const std::uint64_t step = rows->heads * kHeadWidth;
    std::vector<double> dq(rows->q.size()), dk(dq.size()), dv(dq.size());
    for (std::uint64_t head = 0; head < rows->heads; ++head) {
      for (std::uint64_t row = 0; row < rows->positions.size(); ++row) {
        const std::vector<double> weights = weights_of(*rows, head, row);
        const std::uint64_t begin = begin_of(row), own = row * step + head * kHeadWidth;
        std::vector<double> slopes(weights.size());
        double mean = 0;
        for (std::size_t k = 0; k < weights.size(); ++k) {
          const std::uint64_t other = (begin + k) * step + head * kHeadWidth;
          for (std::uint64_t i = 0; i < kHeadWidth; ++i) {
            slopes[k] += double{rows->dmixed[own + i]} * rows->v[other + i];
            dv[other + i] += weights[k] * rows->dmixed[own + i];
          }
          mean += weights[k] * slopes[k];
        }
        for (std::size_t k = 0; k < weights.size(); ++k) {
          const std::uint64_t other = (begin + k) * step + head * kHeadWidth;
          const double slope = weights[k] * (slopes[k] - mean) * kScale;
          for (std::uint64_t i = 0; i < kHeadWidth; ++i) {
            dq[own + i] += slope * rows->k[other + i];
            dk[other + i] += slope * rows->q[own + i];
          }
        }
      }
    }
    const auto rounded = [](const std::vector<double>& from) {
      std::vector<T> to;
      for (const double each : from) to.push_back(T(static_cast<float>(each)));
      return to;
    };
    rows->dq = rounded(dq);
    rows->dk = rounded(dk);
    rows->dv = rounded(dv);
  }
};

// ---- pairs of chunks, by a function of the caller ---------------------------------------------

// Scores are small, so sums need no maximum but 0. Then merging is adding.
template <class T>
std::int32_t TRIREME_CALLCONV pair_forward(const trireme_attention_call* call, void*) {
  const auto *q = static_cast<const T*>(call->q), *k = static_cast<const T*>(call->k),
             *v = static_cast<const T*>(call->v);
  const std::uint64_t step = call->heads * kHeadWidth;
  for (std::uint64_t row = 0; row < call->q_count; ++row) {
    const std::uint64_t first = call->visible_first[row], end = call->visible_end[row];
    for (std::uint64_t head = 0; head < call->heads; ++head) {
      const std::uint64_t at = row * step + head * kHeadWidth;
      double sum = 0, output[kHeadWidth] = {};
      for (std::uint64_t key = first; key < end; ++key) {
        double score = 0;
        const std::uint64_t other = key * step + head * kHeadWidth;
        for (std::uint64_t i = 0; i < kHeadWidth; ++i) score += double{q[at + i]} * k[other + i];
        const double weight = std::exp(score * call->scale);
        sum += weight;
        for (std::uint64_t i = 0; i < kHeadWidth; ++i) output[i] += weight * v[other + i];
      }
      for (std::uint64_t i = 0; i < kHeadWidth; ++i)
        call->output[at + i] = static_cast<float>(output[i]);
      call->sum[row * call->heads + head] = static_cast<float>(sum);
      call->maximum[row * call->heads + head] =
          first < end ? 0 : -std::numeric_limits<float>::infinity();
    }
  }
  return 0;
}

template <class T>
std::int32_t TRIREME_CALLCONV pair_backward(const trireme_attention_call* call, void*) {
  const auto *q = static_cast<const T*>(call->q), *k = static_cast<const T*>(call->k),
             *v = static_cast<const T*>(call->v), *dy = static_cast<const T*>(call->d_output);
  const std::uint64_t step = call->heads * kHeadWidth;
  std::vector<double> dq(call->q_count * step), dk(call->kv_count * step), dv(dk.size());
  for (std::uint64_t row = 0; row < call->q_count; ++row) {
    for (std::uint64_t head = 0; head < call->heads; ++head) {
      const std::uint64_t at = row * step + head * kHeadWidth, number = row * call->heads + head;
      for (std::uint64_t key = call->visible_first[row]; key < call->visible_end[row]; ++key) {
        double score = 0, slope = 0;
        const std::uint64_t other = key * step + head * kHeadWidth;
        for (std::uint64_t i = 0; i < kHeadWidth; ++i) {
          score += double{q[at + i]} * k[other + i];
          slope += double{dy[at + i]} * v[other + i];
        }
        const double p =
            std::exp(score * call->scale - call->total_maximum[number]) / call->total_sum[number];
        const double ds = p * (slope - call->delta[number]) * call->scale;
        for (std::uint64_t i = 0; i < kHeadWidth; ++i) {
          dq[at + i] += ds * k[other + i];
          dk[other + i] += ds * q[at + i];
          dv[other + i] += p * dy[at + i];
        }
      }
    }
  }
  std::copy(dq.begin(), dq.end(), call->dq);
  std::copy(dk.begin(), dk.end(), call->dk);
  std::copy(dv.begin(), dv.end(), call->dv);
  return 0;
}

using Summand = std::optional<std::vector<float>>;

// Summands 2k and 2k+1, then pairs of those; one without a partner moves up alone.
Summand sum_of(const std::array<Summand, kChunks>& summands) {
  std::vector<Summand> level(summands.begin(), summands.end());
  while (level.size() > 1) {
    std::vector<Summand> next;
    for (std::size_t i = 0; i < level.size(); i += 2) {
      Summand sum = level[i];
      if (i + 1 < level.size() && level[i + 1]) {
        if (!sum) {
          sum = level[i + 1];
        } else {
          for (std::size_t n = 0; n < sum->size(); ++n) (*sum)[n] += (*level[i + 1])[n];
        }
      }
      next.push_back(sum);
    }
    level = next;
  }
  return level[0];
}

template <class T>
class PlainPairs final : public AttentionCore<T> {
 public:
  void forward(HeadRows<T>* rows) override {
    rows->mixed.resize(rows->q.size());
    sums_.resize(kRows * rows->heads);
    for (std::uint32_t q = 0; q < kChunks; ++q) {
      std::array<Summand, kChunks> outputs, sums;
      for (std::uint32_t kv = 0; kv < kChunks; ++kv) {
        Pair pair(*rows, q, kv);
        if (!pair.is_seen()) continue;
        std::vector<float> maximum(pair.call.q_count * rows->heads);
        outputs[kv].emplace(pair.call.q_count * pair.step);
        sums[kv].emplace(maximum.size());
        pair.call.output = outputs[kv]->data();
        pair.call.sum = sums[kv]->data();
        pair.call.maximum = maximum.data();
        pair_forward<T>(&pair.call, nullptr);
      }
      const Summand output = sum_of(outputs), sum = sum_of(sums);
      const std::uint64_t first = first_of_chunk(q) * rows->heads;
      std::copy(sum->begin(), sum->end(), sums_.begin() + static_cast<std::ptrdiff_t>(first));
      for (std::size_t i = 0; i < output->size(); ++i)
        rows->mixed[first * kHeadWidth + i] = (*output)[i] / (*sum)[i / kHeadWidth];
    }
  }
  void backward(HeadRows<T>* rows) override {
    for (std::vector<T>* const each : {&rows->dq, &rows->dk, &rows->dv})
      each->resize(rows->q.size());
    std::vector<float> delta(sums_.size()), maximum(sums_.size(), 0.0f);
    for (std::size_t i = 0; i < delta.size(); ++i)
      for (std::uint64_t d = i * kHeadWidth; d < (i + 1) * kHeadWidth; ++d)
        delta[i] += static_cast<float>(rows->mixed[d]) * static_cast<float>(rows->dmixed[d]);
    std::array<std::array<Summand, kChunks>, kChunks> dq, dk, dv;  // by whose sum it is
    for (std::uint32_t q = 0; q < kChunks; ++q) {
      for (std::uint32_t kv = 0; kv < kChunks; ++kv) {
        Pair pair(*rows, q, kv);
        if (!pair.is_seen()) continue;
        dq[q][kv].emplace(pair.call.q_count * pair.step);
        dk[kv][q].emplace(pair.call.kv_count * pair.step);
        dv[kv][q].emplace(pair.call.kv_count * pair.step);
        const std::uint64_t first = pair.call.q_first * rows->heads;
        pair.call.d_output = rows->dmixed.data() + first * kHeadWidth;
        pair.call.delta = delta.data() + first;
        pair.call.total_maximum = maximum.data() + first;
        pair.call.total_sum = sums_.data() + first;
        pair.call.dq = dq[q][kv]->data();
        pair.call.dk = dk[kv][q]->data();
        pair.call.dv = dv[kv][q]->data();
        pair_backward<T>(&pair.call, nullptr);
      }
    }
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      const auto put = [&](std::vector<T>* to, const std::array<Summand, kChunks>& summands) {
        const Summand sum = sum_of(summands);
        std::copy(sum->begin(), sum->end(),
                  to->begin() + static_cast<std::ptrdiff_t>(first_of_chunk(chunk) * rows->heads *
                                                            kHeadWidth));
      };
      put(&rows->dq, dq[chunk]);
      put(&rows->dk, dk[chunk]);
      put(&rows->dv, dv[chunk]);
    }
  }

 private:
  struct Pair {
    Pair(const HeadRows<T>& rows, std::uint32_t q, std::uint32_t kv)
        : step(rows.heads * kHeadWidth) {
      call.q_first = first_of_chunk(q);
      call.q_count = first_of_chunk(q + 1) - call.q_first;
      call.kv_first = first_of_chunk(kv);
      call.kv_count = first_of_chunk(kv + 1) - call.kv_first;
      call.heads = rows.heads;
      call.scale = kScale;
      call.q = rows.q.data() + call.q_first * step;
      call.k = rows.k.data() + call.kv_first * step;
      call.v = rows.v.data() + call.kv_first * step;
      for (std::uint64_t row = call.q_first; row < call.q_first + call.q_count; ++row) {
        const auto in_chunk = [&](std::uint64_t position) {
          return std::clamp(position, call.kv_first, call.kv_first + call.kv_count) - call.kv_first;
        };
        first.push_back(in_chunk(begin_of(row)));
        end.push_back(in_chunk(row + 1));
      }
      call.visible_first = first.data();
      call.visible_end = end.data();
    }
    bool is_seen() const { return first != end; }

    const std::uint64_t step;
    std::vector<std::uint64_t> first, end;
    trireme_attention_call call = {};
  };
  std::vector<float> sums_;
};

// ---- over ranks -------------------------------------------------------------------------------

template <class T>
class OverContext final : public AttentionCore<T> {
 public:
  OverContext(trireme_communicator* communicator, std::uint64_t heads, const ContextSetup& setup) {
    trireme_attention_callbacks callbacks = TRIREME_ATTENTION_CALLBACKS_INIT;
    callbacks.forward = pair_forward<T>;
    callbacks.backward = pair_backward<T>;
    trireme_context_options options = TRIREME_CONTEXT_OPTIONS_INIT;
    options.name = "attention";
    options.flags = TRIREME_CONTEXT_FLAG_CAUSAL;
    options.positions = kRows;
    options.chunks = kChunks;
    options.layout = setup.layout;
    options.method = setup.method;
    options.dtype = kType<T>;
    options.heads = heads;
    options.width = kHeadWidth;
    options.scale = kScale;
    options.provider = TRIREME_ATTENTION_PROVIDER_BUILTIN;
    if (setup.way == Way::pairs) {
      options.provider = TRIREME_ATTENTION_PROVIDER_CALLER;
      options.callbacks = &callbacks;
    }
    trireme_context* context = nullptr;
    check(trireme_context_create(communicator, &options, &context));
    context_.reset(context);
    trireme_context_info info = TRIREME_CONTEXT_INFO_INIT;
    check(trireme_context_get_info(context, &info));
    kept_.resize(info.kept_count);
    positions_.resize(info.rows);
    std::uint64_t count = 0;
    check(trireme_context_positions(context, info.rank, positions_.data(), info.rows, &count));
  }
  void forward(HeadRows<T>* rows) override {
    if (rows->positions != positions_) throw std::runtime_error("other positions");
    rows->mixed.resize(rows->q.size());
    const trireme_attention_arrays arrays = arrays_of(rows);
    check(trireme_context_attention_forward(context_.get(), &arrays, &pass()));
  }
  void backward(HeadRows<T>* rows) override {
    trireme_attention_arrays arrays = arrays_of(rows);
    for (std::vector<T>* const each : {&rows->dq, &rows->dk, &rows->dv})
      each->resize(rows->q.size());
    arrays.d_output = rows->dmixed.data();
    arrays.dq = rows->dq.data();
    arrays.dk = rows->dk.data();
    arrays.dv = rows->dv.data();
    check(trireme_context_attention_backward(context_.get(), &arrays, &pass()));
  }

 private:
  static const trireme_attention_options& pass() {
    static constexpr std::uint64_t kStarts[] = {kSecondSequence};
    static const trireme_attention_options options = [] {
      trireme_attention_options made = TRIREME_ATTENTION_OPTIONS_INIT;
      made.sequence_starts = kStarts;
      made.sequence_count = 1;
      return made;
    }();
    return options;
  }
  trireme_attention_arrays arrays_of(HeadRows<T>* rows) {
    trireme_attention_arrays arrays = TRIREME_ATTENTION_ARRAYS_INIT;
    arrays.q = rows->q.data();
    arrays.k = rows->k.data();
    arrays.v = rows->v.data();
    arrays.output = rows->mixed.data();
    arrays.kept = kept_.data();
    return arrays;
  }
  std::unique_ptr<trireme_context, DestroyAxes> context_;
  std::vector<float> kept_;
  std::vector<std::uint64_t> positions_;
};

// Each rank gets all rows of some heads.
template <class T>
class Exchange final : public AttentionCore<T> {
 public:
  Exchange(trireme_communicator* communicator, std::uint64_t heads) {
    trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
    options.blocks = kChunks;
    trireme_tensor* tensor = nullptr;
    check(trireme_tensor_create(communicator, &options, &tensor));
    tensor_.reset(tensor);
    trireme_tensor_info info = TRIREME_TENSOR_INFO_INIT;
    check(trireme_tensor_get_info(tensor, &info));
    std::uint64_t first = 0;
    check(trireme_tensor_range(tensor, kRows, info.rank, &first, &rows_));
    check(trireme_tensor_range(tensor, heads, info.rank, &first, &heads_));
    columns_ = heads * kHeadWidth;
    to_heads_ = region("to heads", TRIREME_REGION_DIMENSION_ROWS);
    to_rows_ = region("to rows", TRIREME_REGION_DIMENSION_COLUMNS);
  }
  void forward(HeadRows<T>* rows) override {
    inner_.heads = heads_;
    inner_.positions.resize(kRows);
    std::iota(inner_.positions.begin(), inner_.positions.end(), 0);
    convert(to_heads_, false, rows->q, &inner_.q, inner_size());
    convert(to_heads_, false, rows->k, &inner_.k, inner_size());
    convert(to_heads_, false, rows->v, &inner_.v, inner_size());
    loops_.forward(&inner_);
    convert(to_rows_, false, inner_.mixed, &rows->mixed, rows_ * columns_);
  }
  void backward(HeadRows<T>* rows) override {
    convert(to_rows_, true, rows->dmixed, &inner_.dmixed, inner_size());
    loops_.backward(&inner_);
    convert(to_heads_, true, inner_.dq, &rows->dq, rows_ * columns_);
    convert(to_heads_, true, inner_.dk, &rows->dk, rows_ * columns_);
    convert(to_heads_, true, inner_.dv, &rows->dv, rows_ * columns_);
  }

 private:
  Handle<trireme_region> region(const char* name, trireme_region_dimension dimension) const {
    trireme_region_options options = TRIREME_REGION_OPTIONS_INIT;
    options.name = name;
    options.kind = TRIREME_REGION_KIND_EXCHANGE;
    options.dimension = dimension;
    options.rows = kRows;
    options.columns = columns_;
    options.column_unit = kHeadWidth;
    options.dtype = kType<T>;
    trireme_region* made = nullptr;
    check(trireme_region_create(tensor_.get(), &options, &made));
    return Handle<trireme_region>(made);
  }
  static void convert(const Handle<trireme_region>& region, bool backward,
                      const std::vector<T>& from, std::vector<T>* to, std::uint64_t count) {
    to->resize(count);
    const void* part = from.data();
    check((backward ? trireme_region_backward : trireme_region_forward)(region.get(), &part, 1,
                                                                        to->data(), nullptr));
  }
  std::uint64_t inner_size() const { return kRows * heads_ * kHeadWidth; }

  Handle<trireme_tensor> tensor_;
  Handle<trireme_region> to_heads_, to_rows_;
  std::uint64_t rows_ = 0, heads_ = 0, columns_ = 0;
  Loops<T> loops_;
  HeadRows<T> inner_;
};

// Where the rows of networks lie among those of all of them.
template <class T>
std::vector<std::uint64_t> all_positions(const Networks<T>& networks) {
  std::vector<std::uint64_t> all;
  for (const auto& each : networks) all.insert(all.end(), each->rows().begin(), each->rows().end());
  std::sort(all.begin(), all.end());
  return all;
}

std::uint64_t place_in(const std::vector<std::uint64_t>& all, std::uint64_t position) {
  return static_cast<std::uint64_t>(std::lower_bound(all.begin(), all.end(), position) -
                                    all.begin());
}

template <class T>
HeadRows<T> rows_of(const Networks<T>& networks) {
  const trireme_head_info& heads = networks[0]->heads();
  HeadRows<T> rows;
  rows.heads = heads.head_count;
  rows.positions = all_positions(networks);
  const std::uint64_t step = rows.heads * kHeadWidth;
  const std::uint64_t kv_half = heads.kv_head_count * kHeadWidth;
  for (std::vector<T>* const each : {&rows.q, &rows.k, &rows.v, &rows.mixed, &rows.dmixed})
    each->resize(rows.positions.size() * step);
  for (const auto& network : networks) {
    const Pass<T>& pass = network->pass();
    for (std::size_t own = 0; own < network->rows().size(); ++own) {
      const std::uint64_t to = place_in(rows.positions, network->rows()[own]) * step;
      for (std::uint64_t i = 0; i < step; ++i) {
        const std::uint64_t kv_head =
            (heads.first_head + i / kHeadWidth) / (kHeads / kKvHeads) - heads.first_kv_head;
        const std::uint64_t kv = own * 2 * kv_half + kv_head * kHeadWidth + i % kHeadWidth;
        rows.q[to + i] = pass.q[own * step + i];
        rows.k[to + i] = pass.kv[kv];
        rows.v[to + i] = pass.kv[kv + kv_half];
        if (!pass.mixed.empty()) rows.mixed[to + i] = pass.mixed[own * step + i];
        if (!pass.dmixed.empty()) rows.dmixed[to + i] = pass.dmixed[own * step + i];
      }
    }
  }
  return rows;
}

}  // namespace

std::vector<std::uint64_t> rows_of_side(trireme_context_layout layout, std::uint32_t side) {
  const bool zigzag = layout == TRIREME_CONTEXT_LAYOUT_ZIGZAG;
  std::vector<std::uint64_t> rows;
  for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    const std::uint32_t owner = zigzag ? (chunk == 1 || chunk == 2) : chunk / 2;
    if (owner != side) continue;
    for (std::uint64_t row = first_of_chunk(chunk); row < first_of_chunk(chunk + 1); ++row)
      rows.push_back(row);
  }
  return rows;
}

template <class T>
std::unique_ptr<AttentionCore<T>> make_attention(trireme_communicator* communicator,
                                                 std::uint64_t heads, const ContextSetup& setup) {
  if (setup.way == Way::exchange) return std::make_unique<Exchange<T>>(communicator, heads);
  return std::make_unique<OverContext<T>>(communicator, heads, setup);
}

template <class T>
std::unique_ptr<AttentionCore<T>> make_plain_attention(trireme_communicator* one,
                                                       std::uint64_t heads,
                                                       const ContextSetup& setup) {
  if (setup.way == Way::exchange) return std::make_unique<Loops<T>>();
  if (setup.way == Way::pairs) return std::make_unique<PlainPairs<T>>();
  return std::make_unique<OverContext<T>>(one, heads, setup);
}

template <class T>
void attend_together(const Networks<T>& networks, AttentionCore<T>* core) {
  for (const auto& network : networks) {
    network->pass().mixed.clear();
    network->pass().dmixed.clear();
  }
  HeadRows<T> rows = rows_of(networks);
  core->forward(&rows);
  const std::uint64_t step = rows.heads * kHeadWidth;
  for (const auto& network : networks) {
    Pass<T>& pass = network->pass();
    pass.mixed.resize(pass.q.size());
    for (std::size_t own = 0; own < network->rows().size(); ++own)
      std::copy_n(rows.mixed.begin() + static_cast<std::ptrdiff_t>(
                                           place_in(rows.positions, network->rows()[own]) * step),
                  step, pass.mixed.begin() + static_cast<std::ptrdiff_t>(own * step));
  }
}

template <class T>
void attend_backward_together(const Networks<T>& networks, AttentionCore<T>* core) {
  HeadRows<T> rows = rows_of(networks);
  core->backward(&rows);
  const std::uint64_t step = rows.heads * kHeadWidth;
  for (const auto& network : networks) {
    Pass<T>& pass = network->pass();
    const std::uint64_t count = network->rows().size();
    pass.dq.resize(pass.q.size());
    pass.dkv.assign(rows.heads, std::vector<float>(2 * count * kHeadWidth));
    for (std::size_t own = 0; own < count; ++own) {
      const std::uint64_t from = place_in(rows.positions, network->rows()[own]) * step;
      for (std::uint64_t i = 0; i < step; ++i) {
        std::vector<float>& of_head = pass.dkv[i / kHeadWidth];
        const std::uint64_t at = own * kHeadWidth + i % kHeadWidth;
        pass.dq[own * step + i] = rows.dq[from + i];
        of_head[at] = rows.dk[from + i];
        of_head[count * kHeadWidth + at] = rows.dv[from + i];
      }
    }
  }
}

#define WIDE_INSTANTIATE(T)                                                \
  template std::unique_ptr<AttentionCore<T>> make_attention<T>(            \
      trireme_communicator*, std::uint64_t, const ContextSetup&);          \
  template std::unique_ptr<AttentionCore<T>> make_plain_attention<T>(      \
      trireme_communicator*, std::uint64_t, const ContextSetup&);          \
  template void attend_together<T>(const Networks<T>&, AttentionCore<T>*); \
  template void attend_backward_together<T>(const Networks<T>&, AttentionCore<T>*);
WIDE_INSTANTIATE(float)
WIDE_INSTANTIATE(Bf16)

}  // namespace wide
