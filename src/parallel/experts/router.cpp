#include "parallel/experts/router.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/softmax.hpp"

namespace trireme::parallel {
namespace {

constexpr std::uint32_t kInserted = 32;  // choices of a row from which on sorting is faster

// The sum that divides the weights of a row.
double sum_of_slots(const std::vector<float>& probabilities, const ExpertSlot* slots,
                    std::uint32_t count) {
  double sum = 0;
  for (std::uint32_t k = 0; k < count; ++k) {
    sum += static_cast<double>(probabilities[static_cast<std::size_t>(slots[k].expert)]);
  }
  return sum;
}

}  // namespace

Router::Router(const RouterOptions& options, std::uint64_t most_rows)
    : options_(options),
      row_(options.experts),
      probabilities_(options.experts),
      gradient_(options.experts),
      d_scores_(options.experts),
      taken_(options.experts),
      order_(options.drop == TRIREME_EXPERTS_DROP_LOWEST_WEIGHT ? most_rows * options.top_k : 0),
      ranked_(options.top_k > kInserted ? options.experts : 0) {}

std::uint64_t Router::memory_bytes() const {
  return (row_.size() + probabilities_.size() + d_scores_.size()) * sizeof(float) +
         (gradient_.size() + taken_.size() + order_.size()) * sizeof(std::uint64_t) +
         ranked_.size() * sizeof(std::uint32_t);
}

// --- forward -----------------------------------------------------------------------------------

void Router::read_row(const float* scores) {
  std::memcpy(row_.data(), scores, row_.size() * sizeof(float));
  if (options_.scores == TRIREME_EXPERTS_SCORES_PROBABILITIES) {
    probabilities_ = row_;
    return;
  }
  const kernels::SoftmaxPart part =
      kernels::softmax_part(TRIREME_DTYPE_F32, row_.data(), row_.size(), false);
  kernels::softmax_gradients(TRIREME_DTYPE_F32, row_.data(), probabilities_.data(), row_.size(),
                             part.largest, 1 / part.sum, 0);
}

RefusedRow Router::check_row() const {
  const bool negative_allowed = options_.scores == TRIREME_EXPERTS_SCORES_LOGITS;
  for (std::size_t expert = 0; expert < row_.size(); ++expert) {
    if (!std::isfinite(row_[expert])) return {RefusedRow::kNotFinite, 0, expert};
    if (row_[expert] < 0 && !negative_allowed) return {RefusedRow::kNegative, 0, expert};
  }
  return {};
}

void Router::find_best(ExpertSlot* slots) {
  if (!ranked_.empty()) {
    std::iota(ranked_.begin(), ranked_.end(), 0);
    std::partial_sort(ranked_.begin(), ranked_.begin() + options_.top_k, ranked_.end(),
                      [this](std::uint32_t a, std::uint32_t b) {
                        return row_[a] != row_[b] ? row_[a] > row_[b] : a < b;
                      });
    for (std::uint32_t k = 0; k < options_.top_k; ++k) {
      slots[k].expert = static_cast<std::int32_t>(ranked_[k]);
    }
    return;
  }
  std::uint32_t count = 0;
  for (std::uint32_t expert = 0; expert < options_.experts; ++expert) {
    const auto score_of = [&](const ExpertSlot& slot) {
      return row_[static_cast<std::size_t>(slot.expert)];
    };
    if (count == options_.top_k && !(row_[expert] > score_of(slots[count - 1]))) continue;
    std::uint32_t at = count < options_.top_k ? count++ : count - 1;
    for (; at > 0 && row_[expert] > score_of(slots[at - 1]); --at) slots[at] = slots[at - 1];
    slots[at].expert = static_cast<std::int32_t>(expert);
  }
}

// False if the weights have no sum to divide by.
bool Router::choose(ExpertSlot* slots) {
  find_best(slots);
  const double sum =
      options_.normalizes ? sum_of_slots(probabilities_, slots, options_.top_k) : 1.0;
  if (!(sum > 0)) return false;
  for (std::uint32_t k = 0; k < options_.top_k; ++k) {
    const auto expert = static_cast<std::size_t>(slots[k].expert);
    slots[k].weight = options_.normalizes
                          ? static_cast<float>(static_cast<double>(probabilities_[expert]) / sum)
                          : probabilities_[expert];
    slots[k].place = 0;
  }
  return true;
}

void Router::route(const float* scores, const std::uint8_t* padding, std::uint64_t first_row,
                   std::uint64_t rows, ExpertSlot* slots, LeafCounts counts, RefusedRow* refused) {
  const std::uint64_t experts = options_.experts;
  *counts.real_rows = 0;
  std::fill_n(counts.chosen, experts, 0);
  std::fill_n(counts.dropped, experts, 0);
  std::fill_n(counts.sums, experts, std::bit_cast<std::uint64_t>(0.0));
  std::fill_n(slots, rows * options_.top_k, ExpertSlot{});
  for (std::uint64_t row = 0; row < rows; ++row) {
    if (padding != nullptr && padding[row] != 0) continue;
    read_row(scores + row * experts);
    RefusedRow found = check_row();
    ExpertSlot* const own = slots + row * options_.top_k;
    if (found.reason == RefusedRow::kNone && !choose(own)) found.reason = RefusedRow::kNoWeight;
    if (found.reason != RefusedRow::kNone) {
      if (refused->reason != RefusedRow::kNone) return;
      *refused = found;
      refused->row = first_row + row;
      return;
    }
    ++*counts.real_rows;
    for (std::uint64_t e = 0; e < experts; ++e) counts.add_probability(e, probabilities_[e]);
    for (std::uint32_t k = 0; k < options_.top_k; ++k) ++counts.chosen[own[k].expert];
  }
  if (options_.drop != TRIREME_EXPERTS_DROP_NONE) drop(slots, rows * options_.top_k, counts);
}

void Router::drop_slot(ExpertSlot* slot, LeafCounts counts) const {
  slot->place = ExpertSlot::kNowhere;
  ++counts.dropped[slot->expert];
}

void Router::drop(ExpertSlot* slots, std::uint64_t count, LeafCounts counts) {
  const bool lowest = options_.drop == TRIREME_EXPERTS_DROP_LOWEST_WEIGHT;
  std::fill(taken_.begin(), taken_.end(), 0);
  std::uint64_t waiting = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!slots[i].routed()) continue;
    const auto expert = static_cast<std::size_t>(slots[i].expert);
    if (counts.chosen[expert] <= options_.capacity) continue;
    if (lowest) {
      order_[waiting++] = i;
    } else if (++taken_[expert] > options_.capacity) {
      drop_slot(&slots[i], counts);
    }
  }
  if (!lowest) return;
  const auto end = order_.begin() + static_cast<std::ptrdiff_t>(waiting);
  std::sort(order_.begin(), end, [slots](std::uint64_t a, std::uint64_t b) {
    if (slots[a].weight != slots[b].weight) return slots[a].weight > slots[b].weight;
    return a < b;
  });
  for (auto i = order_.begin(); i != end; ++i) {
    if (++taken_[static_cast<std::size_t>(slots[*i].expert)] > options_.capacity) {
      drop_slot(&slots[*i], counts);
    }
  }
}

// --- backward ----------------------------------------------------------------------------------

// Makes gradient_, of the row's probabilities.
void Router::row_gradient(const ExpertSlot* slots, const float* d_weights, const double* d_mean,
                          std::uint64_t real_rows) {
  for (std::size_t expert = 0; expert < gradient_.size(); ++expert) {
    gradient_[expert] = d_mean == nullptr ? 0 : d_mean[expert] / static_cast<double>(real_rows);
  }
  double sum = 1, mean = 0;
  if (options_.normalizes) {
    sum = sum_of_slots(probabilities_, slots, options_.top_k);
    for (std::uint32_t k = 0; k < options_.top_k; ++k) {
      const auto expert = static_cast<std::size_t>(slots[k].expert);
      mean += static_cast<double>(d_weights[k]) * static_cast<double>(probabilities_[expert]) / sum;
    }
  }
  for (std::uint32_t k = 0; k < options_.top_k; ++k) {
    gradient_[static_cast<std::size_t>(slots[k].expert)] +=
        (static_cast<double>(d_weights[k]) - mean) / sum;
  }
}

RefusedRow Router::check_scores(const float* scores, const ExpertSlot* slots, std::uint64_t rows) {
  const std::size_t experts = options_.experts;
  for (std::uint64_t row = 0; row < rows; ++row) {
    const ExpertSlot* const own = slots + row * options_.top_k;
    if (own[0].expert < 0) continue;  // padding
    std::memcpy(row_.data(), scores + row * experts, experts * sizeof(float));
    RefusedRow found = check_row();
    if (found.reason == RefusedRow::kNone && options_.normalizes) {
      read_row(scores + row * experts);
      if (!(sum_of_slots(probabilities_, own, options_.top_k) > 0)) {
        found.reason = RefusedRow::kNoWeight;
      }
    }
    found.row = row;
    if (found.reason != RefusedRow::kNone) return found;
  }
  return {};
}

void Router::gradients(const float* scores, const ExpertSlot* slots, std::uint64_t rows,
                       const float* d_weights, const double* d_mean, std::uint64_t real_rows,
                       float* d_scores) {
  const std::uint64_t experts = options_.experts;
  for (std::uint64_t row = 0; row < rows; ++row) {
    const ExpertSlot* const own = slots + row * options_.top_k;
    const bool padding = own[0].expert < 0;
    std::fill(d_scores_.begin(), d_scores_.end(), 0.0f);
    if (!padding) {
      read_row(scores + row * experts);
      row_gradient(own, d_weights + row * options_.top_k, d_mean, real_rows);
      const bool logits = options_.scores == TRIREME_EXPERTS_SCORES_LOGITS;
      double mean = 0;
      for (std::uint64_t e = 0; e < experts; ++e) {
        mean += static_cast<double>(probabilities_[e]) * gradient_[e];
      }
      for (std::uint64_t e = 0; e < experts; ++e) {
        d_scores_[e] = static_cast<float>(
            logits ? static_cast<double>(probabilities_[e]) * (gradient_[e] - mean) : gradient_[e]);
      }
    }
    std::memcpy(d_scores + row * experts, d_scores_.data(), experts * sizeof(float));
  }
}

}  // namespace trireme::parallel
