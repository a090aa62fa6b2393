#include "optimizer/rules/matrix_plan.hpp"

#include <algorithm>
#include <numeric>

#include "optimizer/rules/orthogonal.hpp"
#include "platform/names.hpp"
#include "sharding/plan.hpp"

namespace trireme::strategies {

using sharding::Bucket;
using sharding::Parameter;
using sharding::Segment;

std::uint64_t Matrix::bytes() const { return elements() * dtype_size(dtype); }

std::uint64_t MatrixPlan::Bytes::working() const {
  return sharding::piece(own) + sharding::piece(assigned) + sharding::piece(whole) +
         sharding::piece(scratch);
}

MatrixPlan::MatrixPlan(const sharding::Registry& registry, const sharding::Layout& layout,
                       const optimizers::Settings& settings)
    : bytes(layout.spread.world_size) {
  const std::vector<Parameter>& parameters = registry.parameters();
  for (std::uint64_t number = 0; number < parameters.size(); ++number) {
    const Parameter& parameter = parameters[number];
    if (parameter.target != number || parameter.frozen || parameter.elements == 0) continue;
    if (!settings.is_matrix(parameter.shape, parameter.parameter_group)) continue;
    const std::uint64_t rows = parameter.shape[0];
    matrices.push_back(
        {number, rows, parameter.elements / rows, gradient_dtype(parameter.dtype), 0});
  }
  assign(layout.spread.world_size);
  if (!has_whole_matrices(layout)) make_rounds(layout);
  count(registry, layout, settings);
}

// Gives the longest job first, to the rank with the least work.
void MatrixPlan::assign(std::uint32_t ranks) {
  const auto cost = [&](std::size_t i) {
    return optimizers::orthogonal_cost(matrices[i].rows, matrices[i].columns);
  };
  std::vector<std::size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return cost(a) > cost(b); });
  std::vector<double> loads(ranks);
  for (const std::size_t i : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += cost(i);
    matrices[i].rank = static_cast<std::uint32_t>(least - loads.begin());
  }
}

// Each rank's largest matrix comes first, beside other ranks' matrices of equal work.
void MatrixPlan::make_rounds(const sharding::Layout& layout) {
  const std::uint32_t ranks = layout.spread.world_size;
  for (const trireme_dtype dtype : {TRIREME_DTYPE_F64, TRIREME_DTYPE_F32}) {
    std::vector<std::vector<std::size_t>> waiting(ranks);  // the next one last
    for (std::size_t i = matrices.size(); i-- > 0;) {
      if (matrices[i].dtype == dtype) waiting[matrices[i].rank].push_back(i);
    }
    for (std::vector<std::size_t>& list : waiting) {
      std::stable_sort(list.begin(), list.end(), [&](std::size_t a, std::size_t b) {
        return matrices[a].bytes() < matrices[b].bytes();
      });
    }
    std::uint64_t most = kRoundBytes;
    for (const Matrix& matrix : matrices) {
      if (matrix.dtype == dtype) most = std::max(most, matrix.bytes());
    }
    const auto all_done = [&] {
      return std::all_of(waiting.begin(), waiting.end(),
                         [](const auto& list) { return list.empty(); });
    };
    while (!all_done()) {
      std::vector<std::size_t> round;
      std::vector<std::uint64_t> assigned(ranks), own(ranks);
      for (bool added = true; added;) {
        added = false;
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
          if (waiting[rank].empty()) continue;
          const Matrix& next = matrices[waiting[rank].back()];
          std::vector<std::uint64_t> parts(ranks);
          for (const Segment& segment : layout.segments[next.parameter]) {
            parts[segment.owner] += segment.count * dtype_size(dtype);
          }
          // A rank's first matrix may be large, but the parts of one owner must not add up to too
          // much.
          bool fits = assigned[rank] == 0 || assigned[rank] + next.bytes() <= kRoundBytes;
          for (std::uint32_t owner = 0; owner < ranks; ++owner) {
            fits = fits && own[owner] + parts[owner] <= most;
          }
          if (!fits) continue;
          assigned[rank] += next.bytes();
          for (std::uint32_t owner = 0; owner < ranks; ++owner) own[owner] += parts[owner];
          round.push_back(waiting[rank].back());
          waiting[rank].pop_back();
          added = true;
        }
      }
      std::sort(round.begin(), round.end());
      rounds.push_back(std::move(round));
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        // A rank without a part of them takes part, too, with memory of its own.
        bytes[rank].own = std::max({bytes[rank].own, own[rank], dtype_size(dtype)});
        bytes[rank].assigned = std::max(bytes[rank].assigned, assigned[rank]);
      }
    }
  }
}

void MatrixPlan::count(const sharding::Registry& registry, const sharding::Layout& layout,
                       const optimizers::Settings& settings) {
  const bool whole = has_whole_matrices(layout);
  for (const Matrix& matrix : matrices) {
    Bytes& here = bytes[matrix.rank];
    if (layout.spread.whole_state()) here.given += matrix.bytes() * (bytes.size() - 1);
    if (!whole) here.whole = std::max(here.whole, matrix.bytes());
    for (const Segment& segment : layout.segments[matrix.parameter]) {
      if (whole || segment.owner == matrix.rank) continue;
      const std::uint64_t part = segment.count * dtype_size(matrix.dtype);
      bytes[segment.owner].given += part;
      here.given += part;
    }
    here.scratch = std::max(
        here.scratch, optimizers::orthogonal_bytes(matrix.dtype, matrix.rows, matrix.columns));
  }
  for (const Bucket& bucket : layout.buckets) {
    for (const Segment& segment : bucket.segments) {
      const Parameter& parameter = registry.parameters()[segment.parameter];
      const bool matrix = settings.is_matrix(parameter.shape, parameter.parameter_group);
      const std::uint64_t added =
          settings.states_of(matrix) * segment.count * dtype_size(bucket.dtype);
      if (!layout.spread.whole_state()) {
        bytes[segment.owner].state += added;
        continue;
      }
      for (Bytes& of_rank : bytes) of_rank.state += added;
    }
  }
}

}  // namespace trireme::strategies
