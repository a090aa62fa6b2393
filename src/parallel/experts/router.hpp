// Router: which experts the rows of one rank choose, with which weights, and which rows an expert
// drops. Pure. One thread at a time.
#pragma once

#include <trireme/experts.h>

#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::parallel {

struct RouterOptions {
  std::uint32_t experts = 0;
  std::uint32_t top_k = 0;
  bool normalizes = false;
  trireme_experts_scores scores = 0;
  std::uint64_t capacity = 0;
  trireme_experts_drop drop = 0;
};

// One choice of a row. Written into memory of the caller as it is.
struct ExpertSlot {
  static constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

  std::int32_t expert = -1;  // -1: of a padding row
  float weight = 0;
  std::uint64_t place = kNowhere;  // among this rank's routed rows; nowhere: not routed

  bool routed() const { return place != kNowhere; }
};
static_assert(sizeof(ExpertSlot) == 16);

// Counts of one leaf, which ranks tell each other: numbers of 8 bytes, one after the other.
struct LeafCounts {
  std::uint64_t* real_rows;  // that are no padding
  std::uint64_t* chosen;     // by expert: rows that chose it
  std::uint64_t* dropped;    // by expert: rows of them that it drops
  std::uint64_t* sums;       // by expert: bits of an f64, the sum of its probabilities

  static std::uint64_t words(std::uint64_t experts) { return 1 + 3 * experts; }
  LeafCounts(std::uint64_t* words, std::uint64_t experts)
      : real_rows(words),
        chosen(words + 1),
        dropped(words + 1 + experts),
        sums(words + 1 + 2 * experts) {}
  double probability(std::uint64_t expert) const { return std::bit_cast<double>(sums[expert]); }
  void add_probability(std::uint64_t expert, float more) const {
    sums[expert] = std::bit_cast<std::uint64_t>(probability(expert) + static_cast<double>(more));
  }
};

// A row that cannot be routed.
struct RefusedRow {
  enum Reason : std::uint64_t { kNone, kNotFinite, kNegative, kNoWeight };
  Reason reason = kNone;
  std::uint64_t row = 0;
  std::uint64_t expert = 0;
};

class Router {
 public:
  Router(const RouterOptions& options, std::uint64_t most_rows);

  // Routes the rows of one leaf: writes `rows` times top_k slots and the leaf's counts. A slot that
  // is routed has place 0 for now. `padding` may be null. *refused gets the first row that cannot
  // be routed, counted from `first_row`.
  void route(const float* scores, const std::uint8_t* padding, std::uint64_t first_row,
             std::uint64_t rows, ExpertSlot* slots, LeafCounts counts, RefusedRow* refused);

  // The first of `rows` rows whose scores cannot have given `slots`.
  RefusedRow check_scores(const float* scores, const ExpertSlot* slots, std::uint64_t rows);

  // The gradients of `rows` rows of scores. `d_mean` may be null. `d_scores` may be `scores`.
  void gradients(const float* scores, const ExpertSlot* slots, std::uint64_t rows,
                 const float* d_weights, const double* d_mean, std::uint64_t real_rows,
                 float* d_scores);

  std::uint64_t memory_bytes() const;

 private:
  RefusedRow check_row() const;
  void read_row(const float* scores);  // makes row_ and probabilities_
  void find_best(ExpertSlot* slots);
  bool choose(ExpertSlot* slots);
  void drop(ExpertSlot* slots, std::uint64_t count, LeafCounts counts);
  void drop_slot(ExpertSlot* slot, LeafCounts counts) const;
  void row_gradient(const ExpertSlot* slots, const float* d_weights, const double* d_mean,
                    std::uint64_t real_rows);

  const RouterOptions options_;
  std::vector<float> row_;             // scores
  std::vector<float> probabilities_;   // of the row
  std::vector<double> gradient_;       // of the row's probabilities
  std::vector<float> d_scores_;        // of the row
  std::vector<std::uint64_t> taken_;   // by expert: rows of a leaf so far
  std::vector<std::uint64_t> order_;   // slots of experts that drop some
  std::vector<std::uint32_t> ranked_;  // experts of a row, if it chooses many
};

}  // namespace trireme::parallel
