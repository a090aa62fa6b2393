#include "optimizer/rules/adafactor_whole.hpp"

#include <algorithm>
#include <utility>

#include "platform/failpoint.hpp"
#include "sharding/whole_numbers.hpp"

namespace trireme::strategies {

using optimizers::MatrixShape;
using sharding::AxisPlacement;
using sharding::Parameter;

namespace {

constexpr std::uint64_t kSumWords = 2;      // of each entry, and
constexpr std::uint64_t kWordsOfEntry = 3;  // with the former state

// A rank that holds no element of it adds nothing, but comes.
bool is_part_of_matrix(const Parameter& parameter, std::uint64_t number,
                       const AxisPlacement& placement) {
  return parameter.target == number && !parameter.frozen && placement.is_split() &&
         placement.ranks > 1 && optimizers::is_matrix(parameter.shape);
}

MatrixShape whole_matrix(const Parameter& parameter) {
  return optimizers::matrix_of(sharding::whole_shape(parameter));
}

}  // namespace

std::uint64_t WholeMatrices::plan(const sharding::Registry& registry) {
  const std::vector<Parameter>& parameters = registry.parameters();
  std::uint64_t words = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (const AxisPlacement& placement : parameters[i].placements) {
      if (!is_part_of_matrix(parameters[i], i, placement)) continue;
      const MatrixShape shape = whole_matrix(parameters[i]);
      words += 1 + kWordsOfEntry * (shape.rows + shape.columns);
    }
  }
  return words * sizeof(std::int64_t);
}

Status WholeMatrices::allocate(const ShardView& shard) {
  shard_ = &shard;
  const std::vector<Parameter>& parameters = shard.registry().parameters();
  for (const std::string& axis : shard.axes().axis_names()) {
    Along along;
    along.axis = axis;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const AxisPlacement* const placement = placement_on(parameters[i], axis);
      if (placement == nullptr || !is_part_of_matrix(parameters[i], i, *placement)) continue;
      Matrix matrix;
      matrix.parameter = i;
      matrix.shape = whole_matrix(parameters[i]);
      const MatrixShape own = optimizers::matrix_of(parameters[i].shape);
      if (own.rows > 0 && own.columns > 0) {
        const sharding::WholeNumbers numbers(parameters[i]);
        const auto number_of = [&](std::uint64_t element) {
          std::uint64_t found = 0;
          numbers.visit(element, 1, [&](std::uint64_t, std::uint64_t number, std::uint64_t) {
            found = number;
          });
          return found;
        };
        for (std::uint64_t row = 0; row < own.rows; ++row) {
          matrix.rows.push_back(number_of(row * own.columns) / matrix.shape.columns);
        }
        for (std::uint64_t column = 0; column < own.columns; ++column) {
          matrix.columns.push_back(number_of(column) % matrix.shape.columns);
        }
      }
      along.entries += matrix.entries();
      along.matrices.push_back(std::move(matrix));
    }
    if (along.matrices.empty()) continue;
    const std::uint64_t words = along.matrices.size() + kWordsOfEntry * along.entries;
    TRIREME_RETURN_IF_ERROR(along.words.allocate(*shard.axes().own_link(axis)->communicator,
                                                 shard.storage()->allocated, MemoryKind::working,
                                                 words * sizeof(std::int64_t)));
    auto* next = reinterpret_cast<std::int64_t*>(along.words.data());
    for (Matrix& matrix : along.matrices) matrix.largest = next++;
    for (Matrix& matrix : along.matrices) {
      matrix.high = next;
      matrix.low = next + matrix.entries();
      next += kSumWords * matrix.entries();
    }
    for (Matrix& matrix : along.matrices) {
      matrix.before = next;
      next += matrix.entries();
    }
    axes_.push_back(std::move(along));
  }
  return Status::success();
}

const WholeMatrices::Matrix* WholeMatrices::of(std::uint64_t parameter) const {
  for (const Along& along : axes_) {
    for (const Matrix& matrix : along.matrices) {
      if (matrix.parameter == parameter) return &matrix;
    }
  }
  return nullptr;
}

WholeMatrices::Matrix* WholeMatrices::of(std::uint64_t parameter) {
  return const_cast<Matrix*>(std::as_const(*this).of(parameter));
}

void WholeMatrices::clear() {
  for (Along& along : axes_) std::fill_n(along.words.data(), along.words.bytes(), 0);
}

Status WholeMatrices::run(const Along& along, std::uint64_t first, std::uint64_t count,
                          trireme_reduction reduction) const {
  const Link& link = *shard_->axes().own_link(along.axis);
  Operation operation = in_place(link, link.gathers, OperationKind::all_reduce, TRIREME_DTYPE_I64,
                                 reinterpret_cast<std::int64_t*>(along.words.data()) + first, count,
                                 along.words.memory());
  operation.reduction = reduction;
  TRIREME_FAILPOINT("step", "before_axis_norms");
  return shard_->axes().run_along(along.axis, std::move(operation));
}

template <class Copy>
void WholeMatrices::carry(const Along& along, const Copy& copy) const {
  for (const Matrix& matrix : along.matrices) {
    const Matrix& first = *of(matrix.parameter);
    if (&first != &matrix) copy(first, matrix);
  }
}

Status WholeMatrices::find_largest() const {
  for (const Along& along : axes_) {
    carry(along, [](const Matrix& first, const Matrix& here) { *here.largest = *first.largest; });
    TRIREME_RETURN_IF_ERROR(run(along, 0, along.matrices.size(), TRIREME_REDUCTION_MAX));
    carry(along, [](const Matrix& first, const Matrix& here) { *first.largest = *here.largest; });
  }
  return Status::success();
}

Status WholeMatrices::add_up() const {
  const auto copy = [](const Matrix& from, const Matrix& to) {
    std::copy_n(from.high, from.entries(), to.high);
    std::copy_n(from.low, from.entries(), to.low);
    std::copy_n(from.before, from.entries(), to.before);
  };
  for (const Along& along : axes_) {
    const std::uint64_t first = along.matrices.size(), sums = kSumWords * along.entries;
    carry(along, copy);
    TRIREME_RETURN_IF_ERROR(run(along, first, sums, TRIREME_REDUCTION_SUM));
    TRIREME_RETURN_IF_ERROR(run(along, first + sums, along.entries, TRIREME_REDUCTION_MAX));
    carry(along, [&](const Matrix& of_first, const Matrix& here) { copy(here, of_first); });
  }
  return Status::success();
}

}  // namespace trireme::strategies
