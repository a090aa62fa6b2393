#include "optimizer/rules/matrix_plan.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "optimizer/rules/orthogonal.hpp"
#include "platform/names.hpp"
#include "sharding/plan.hpp"
#include "sharding/whole_numbers.hpp"

namespace trireme::strategies {

using sharding::Bucket;
using sharding::Parameter;
using sharding::Segment;

namespace {

// The axes along which models hold parts of it.
std::vector<std::string> axes_of_parts(const Parameter& parameter) {
  std::vector<std::string> axes;
  for (const sharding::AxisPlacement& each : parameter.placements) {
    if (each.is_split() && each.ranks > 1) axes.push_back(each.axis);
  }
  return axes;
}

}  // namespace

std::uint64_t Matrix::bytes() const { return elements * dtype_size(dtype); }
std::uint64_t Matrix::whole_bytes() const { return rows * columns * dtype_size(dtype); }

std::uint64_t MatrixPlan::Bytes::travelling() const {
  return sharding::piece(own) + sharding::piece(assigned) + sharding::piece(whole) +
         sharding::piece(scratch);
}

std::uint64_t MatrixPlan::Bytes::working() const {
  std::uint64_t sum = travelling();
  for (const auto& [axis, most] : gathered) sum += most;
  return sum;
}

MatrixPlan::MatrixPlan(const sharding::Registry& registry, const sharding::Layout& layout,
                       const optimizers::Settings& settings)
    : bytes(layout.spread.world_size) {
  const std::vector<Parameter>& parameters = registry.parameters();
  for (std::uint64_t number = 0; number < parameters.size(); ++number) {
    const Parameter& parameter = parameters[number];
    // A model without an element of a part comes, too.
    const std::uint64_t elements = sharding::whole_elements(parameter);
    if (parameter.target != number || parameter.frozen || elements == 0) continue;
    if (!settings.is_matrix(parameter.shape, parameter.parameter_group)) continue;
    const std::uint64_t rows = sharding::whole_shape(parameter)[0];
    matrices.push_back({number, rows, elements / rows, parameter.elements,
                        gradient_dtype(parameter.dtype), axes_of_parts(parameter), 0});
  }
  std::stable_sort(matrices.begin(), matrices.end(), [](const Matrix& a, const Matrix& b) {
    if (a.is_part() != b.is_part()) return a.is_part();
    if (a.axes != b.axes) return a.axes < b.axes;
    if (!a.is_part()) return false;
    if (a.dtype != b.dtype) return a.dtype == TRIREME_DTYPE_F64;
    return a.whole_bytes() > b.whole_bytes();
  });
  assign(layout.spread.world_size);
  if (!has_whole_matrices(layout)) make_rounds(layout);
  count(registry, layout, settings);
}

// Gives the longest job first, to the rank with the least work. For matrices with parts along some
// axes only others along the same ones count: models along them have no more in common.
void MatrixPlan::assign(std::uint32_t ranks) {
  const auto cost = [&](std::size_t i) {
    return optimizers::orthogonal_cost(matrices[i].rows, matrices[i].columns);
  };
  std::vector<double> of_parts(ranks);
  for (std::size_t first = 0, end = 0; first < matrices.size(); first = end) {
    const std::vector<std::string>& axes = matrices[first].axes;
    while (end < matrices.size() && matrices[end].axes == axes) ++end;
    std::vector<std::size_t> order(end - first);
    std::iota(order.begin(), order.end(), first);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return cost(a) > cost(b); });
    std::vector<double> loads = axes.empty() ? of_parts : std::vector<double>(ranks);
    for (const std::size_t i : order) {
      const auto least = std::min_element(loads.begin(), loads.end());
      *least += cost(i);
      matrices[i].rank = static_cast<std::uint32_t>(least - loads.begin());
      of_parts[matrices[i].rank] += cost(i);
    }
  }
}

// Takes the memory of a round.
void MatrixPlan::add_round(const sharding::Layout& layout, std::vector<std::size_t> round) {
  std::vector<std::uint64_t> assigned(bytes.size()), own(bytes.size());
  std::uint64_t size = 0;
  for (const std::size_t i : round) {
    size = dtype_size(matrices[i].dtype);
    assigned[matrices[i].rank] += matrices[i].bytes();
    for (const Segment& segment : layout.segments[matrices[i].parameter]) {
      own[segment.owner] += segment.count * size;
    }
  }
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    // A rank without a part of them takes part, too, with memory of its own.
    bytes[rank].own = std::max({bytes[rank].own, own[rank], size});
    bytes[rank].assigned = std::max(bytes[rank].assigned, assigned[rank]);
  }
  rounds.push_back(std::move(round));
}

// One of each rank, the largest first. Other models of the axes come to the same rounds, so that no
// two wait for each other.
void MatrixPlan::make_rounds_of_parts(const sharding::Layout& layout) {
  std::set<std::vector<std::string>> all_axes;
  for (const Matrix& matrix : matrices) {
    if (matrix.is_part()) all_axes.insert(matrix.axes);
  }
  for (const std::vector<std::string>& axes : all_axes) {
    for (const trireme_dtype dtype : {TRIREME_DTYPE_F64, TRIREME_DTYPE_F32}) {
      std::vector<std::vector<std::size_t>> by_rank(bytes.size());
      std::size_t most = 0;
      for (std::size_t i = 0; i < matrices.size(); ++i) {
        if (matrices[i].axes != axes || matrices[i].dtype != dtype) continue;
        std::vector<std::size_t>& list = by_rank[matrices[i].rank];
        list.push_back(i);
        most = std::max(most, list.size());
      }
      for (std::size_t k = 0; k < most; ++k) {
        std::vector<std::size_t> round;
        for (const std::vector<std::size_t>& list : by_rank) {
          if (k < list.size()) round.push_back(list[k]);
        }
        std::sort(round.begin(), round.end());
        add_round(layout, std::move(round));
      }
    }
  }
}

// Each rank's largest matrix comes first, beside other ranks' matrices of equal work.
void MatrixPlan::make_rounds(const sharding::Layout& layout) {
  make_rounds_of_parts(layout);
  const std::uint32_t ranks = layout.spread.world_size;
  const auto is_of = [&](const Matrix& matrix, trireme_dtype dtype) {
    return matrix.dtype == dtype && !matrix.is_part();
  };
  for (const trireme_dtype dtype : {TRIREME_DTYPE_F64, TRIREME_DTYPE_F32}) {
    std::vector<std::vector<std::size_t>> waiting(ranks);  // the next one last
    for (std::size_t i = matrices.size(); i-- > 0;) {
      if (is_of(matrices[i], dtype)) waiting[matrices[i].rank].push_back(i);
    }
    for (std::vector<std::size_t>& list : waiting) {
      std::stable_sort(list.begin(), list.end(), [&](std::size_t a, std::size_t b) {
        return matrices[a].bytes() < matrices[b].bytes();
      });
    }
    std::uint64_t most = kRoundBytes;
    for (const Matrix& matrix : matrices) {
      if (is_of(matrix, dtype)) most = std::max(most, matrix.bytes());
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
      add_round(layout, std::move(round));
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
    for (const std::string& axis : matrix.axes) {
      std::uint64_t& gathered = here.gathered[axis];
      gathered = std::max(gathered, matrix.whole_bytes());
    }
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
