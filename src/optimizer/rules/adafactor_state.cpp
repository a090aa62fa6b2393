#include "optimizer/rules/adafactor_state.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/factored.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "sharding/whole_numbers.hpp"

namespace trireme::strategies {

using optimizers::MatrixShape;
using optimizers::Piece;
using sharding::Parameter;
using sharding::Range;

namespace {

constexpr double kBeyondSquares = 0x1p500;

// Visits the numbers of trained matrices.
template <class Visit>
void for_each_matrix(const sharding::Registry& registry, const Visit& visit) {
  const std::vector<Parameter>& parameters = registry.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (is_trained(parameters[i], i) && optimizers::is_matrix(parameters[i].shape)) visit(i);
  }
}

double read_number(trireme_dtype dtype, const void* data, std::uint64_t i) {
  return dtype == TRIREME_DTYPE_F64 ? static_cast<const double*>(data)[i]
                                    : static_cast<double>(static_cast<const float*>(data)[i]);
}

// A value beyond every f32 becomes the largest one, or it would stay inf for ever.
void write_number(trireme_dtype dtype, void* data, std::uint64_t i, double value) {
  constexpr double most = std::numeric_limits<float>::max();
  if (dtype == TRIREME_DTYPE_F64) {
    static_cast<double*>(data)[i] = value;
  } else {
    static_cast<float*>(data)[i] = static_cast<float>(value > most ? most : value);
  }
}

}  // namespace

std::uint64_t Factored::plan_state(const sharding::Registry& registry,
                                   const sharding::Layout& layout, std::uint32_t rank) {
  const std::vector<Parameter>& parameters = registry.parameters();
  std::uint64_t bytes = 0;
  for (const sharding::Bucket& bucket : layout.buckets) {
    for (const sharding::Segment& segment : bucket.segments) {
      if (optimizers::is_matrix(parameters[segment.parameter].shape)) continue;
      if (!layout.spread.whole_state() && segment.owner != rank) continue;
      bytes += segment.count * dtype_size(bucket.dtype);
    }
  }
  for_each_matrix(registry, [&](std::uint64_t number) {
    const MatrixShape shape = optimizers::matrix_of(parameters[number].shape);
    const std::uint32_t ranks = layout.spread.world_size;
    bytes += (sharding::shard_range(shape.rows, ranks, rank).count +
              sharding::shard_range(shape.columns, ranks, rank).count) *
             dtype_size(gradient_dtype(parameters[number].dtype));
  });
  return bytes;
}

std::uint64_t Factored::plan_working(const sharding::Registry& registry) {
  std::uint64_t count = 0;
  for_each_matrix(registry, [&](std::uint64_t number) {
    const MatrixShape shape = optimizers::matrix_of(registry.parameters()[number].shape);
    count += 1 + 3 * (shape.rows + shape.columns);
  });
  return count * sizeof(std::int64_t) + WholeMatrices::plan(registry);
}

Status Factored::allocate(const ShardView& shard, std::vector<Piece>* pieces) {
  const Link& link = shard.link();
  const std::shared_ptr<AllocatedBytes>& counter = shard.storage()->allocated;
  const sharding::Registry& registry = shard.registry();
  const sharding::Layout& layout = shard.layout();
  const std::vector<Parameter>& parameters = registry.parameters();
  scales_.resize(parameters.size());
  matrix_by_parameter_.assign(parameters.size(), sharding::kNone);
  for_each_matrix(registry, [&](std::uint64_t number) {
    matrix_by_parameter_[number] = matrices_.size();
    const MatrixShape shape = optimizers::matrix_of(parameters[number].shape);
    matrices_.push_back({number, gradient_dtype(parameters[number].dtype), shape, entries_,
                         optimizers::matrix_of(sharding::whole_shape(parameters[number]))});
    entries_ += shape.rows + shape.columns;
  });
  for (const bool columns : {false, true}) {
    for (const Matrix& matrix : matrices_) {
      const Range own = sharding::shard_range(columns ? matrix.shape.columns : matrix.shape.rows,
                                              link.world_size(), link.rank());
      if (own.count > 0) own_.push_back({matrix.parameter, columns, own.first, own.count, nullptr});
    }
  }
  TRIREME_RETURN_IF_ERROR(state_.allocate(*link.communicator, counter, MemoryKind::optimizer_state,
                                          plan_state(registry, layout, link.rank())));
  TRIREME_RETURN_IF_ERROR(words_.allocate(*link.communicator, counter, MemoryKind::working,
                                          plan_working(registry) - WholeMatrices::plan(registry)));
  TRIREME_RETURN_IF_ERROR(wholes_.allocate(shard));
  // All f64 before all f32, so that nothing needs padding.
  char* next = state_.data();
  for (const trireme_dtype dtype : {TRIREME_DTYPE_F64, TRIREME_DTYPE_F32}) {
    const auto place = [&](trireme_dtype of, std::uint64_t count, void** out) {
      if (gradient_dtype(of) != dtype) return;
      *out = next;
      next += count * dtype_size(dtype);
    };
    for (Piece& piece : *pieces) {
      if (matrix_of(piece.parameter) != nullptr) continue;
      place(piece.dtype, piece.count, &piece.states[0]);
    }
    for (Own& own : own_) place(parameters[own.parameter].dtype, own.count, &own.data);
  }
  return Status::success();
}

const Factored::Matrix* Factored::matrix_of(std::uint64_t parameter) const {
  const std::uint64_t number = matrix_by_parameter_[parameter];
  return number == sharding::kNone ? nullptr : &matrices_[number];
}

const std::uint64_t* Factored::shape(std::uint64_t parameter, bool columns) const {
  const MatrixShape& shape = matrix_of(parameter)->shape;
  return columns ? &shape.columns : &shape.rows;
}

// The largest of the gradients as the rule sees them: rounding is monotone.
double Factored::largest_of(const Matrix& matrix) const {
  const auto number = static_cast<std::size_t>(&matrix - matrices_.data());
  const double largest = std::bit_cast<double>(words()[number]);
  const double scale = scales_[matrix.parameter].gradient_scale;
  if (matrix.dtype == TRIREME_DTYPE_F64) return largest * scale;
  return static_cast<double>(static_cast<float>(largest) * static_cast<float>(scale));
}

Status Factored::find_largest(const Link& link, const Job& job) {
  std::fill_n(words(), matrices_.size(), 0);
  for (std::size_t i = 0; i < job.pieces->size(); ++i) {
    const Piece& piece = (*job.pieces)[i];
    const Range own = (*job.own_parts)[i];
    const Matrix* const matrix = matrix_of(piece.parameter);
    if (matrix == nullptr || own.count == 0 || scales_[piece.parameter].skipped) continue;
    std::int64_t& most = words()[matrix - matrices_.data()];
    const auto* const gradients = static_cast<const char*>(piece.gradients);
    most = std::max(
        most, static_cast<std::int64_t>(kernels::largest_magnitude(
                  matrix->dtype, gradients + own.first * dtype_size(matrix->dtype), own.count)));
  }
  Operation operation = in_place(link, link.reductions, OperationKind::all_reduce,
                                 TRIREME_DTYPE_I64, words(), matrices_.size(), words_.memory());
  operation.reduction = TRIREME_REDUCTION_MAX;
  TRIREME_FAILPOINT("step", "before_largest");
  return link.run(std::move(operation));
}

// Every rank adds its own squares, and its own part of the state, which no other rank has.
Status Factored::add_up(const Link& link, const Job& job) {
  std::int64_t* const high = words() + matrices_.size();
  std::int64_t* const low = high + entries_;
  std::int64_t* const before = low + entries_;
  std::fill_n(high, 3 * entries_, 0);
  for (std::size_t i = 0; i < job.pieces->size(); ++i) {
    const Piece& piece = (*job.pieces)[i];
    const Range own = (*job.own_parts)[i];
    const Matrix* const matrix = matrix_of(piece.parameter);
    if (matrix == nullptr || own.count == 0 || scales_[piece.parameter].skipped) continue;
    const double largest = largest_of(*matrix);
    if (!(largest < kBeyondSquares)) continue;
    const auto [rows, columns] = matrix->shape;
    const std::uint64_t row = matrix->place, column = row + rows;
    kernels::add_squares(
        {matrix->dtype, static_cast<char*>(piece.gradients) + own.first * dtype_size(matrix->dtype),
         piece.first + own.first, own.count, columns, scales_[piece.parameter].gradient_scale},
        kernels::fixed_point(largest, std::max(matrix->whole.rows, matrix->whole.columns)),
        {high + row, low + row, high + column, low + column});
  }
  for (const Own& own : own_) {
    const Matrix& matrix = *matrix_of(own.parameter);
    std::int64_t* const to = before + matrix.place + (own.columns ? matrix.shape.rows : 0);
    for (std::uint64_t i = 0; i < own.count; ++i) {
      to[own.first + i] = std::bit_cast<std::int64_t>(read_number(matrix.dtype, own.data, i));
    }
  }
  Operation operation = in_place(link, link.reductions, OperationKind::all_reduce,
                                 TRIREME_DTYPE_I64, high, 3 * entries_, words_.memory());
  TRIREME_FAILPOINT("step", "before_squares");
  return link.run(std::move(operation));
}

Factored::Sums Factored::sums_of(const Matrix& matrix) const {
  if (const WholeMatrices::Matrix* const whole = wholes_.of(matrix.parameter); whole != nullptr) {
    return {whole->shape, whole->high, whole->low, whole->before};
  }
  std::int64_t* const high = words() + matrices_.size() + matrix.place;
  return {matrix.shape, high, high + entries_, high + 2 * entries_};
}

// Models wait for one another, also for one that skips the matrix.
Status Factored::find_largest_of_wholes() {
  if (!wholes_.any()) return Status::success();
  wholes_.clear();
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const WholeMatrices::Matrix* const whole = wholes_.of(matrices_[i].parameter);
    if (whole != nullptr) *whole->largest = words()[i];
  }
  TRIREME_RETURN_IF_ERROR(wholes_.find_largest());
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const WholeMatrices::Matrix* const whole = wholes_.of(matrices_[i].parameter);
    if (whole != nullptr) words()[i] = *whole->largest;
  }
  return Status::success();
}

Status Factored::add_up_wholes() {
  if (!wholes_.any()) return Status::success();
  for (const Matrix& matrix : matrices_) {
    const WholeMatrices::Matrix* const whole = wholes_.of(matrix.parameter);
    if (whole == nullptr) continue;
    const std::int64_t* const high = words() + matrices_.size() + matrix.place;
    for (std::uint64_t i = 0; i < matrix.shape.rows + matrix.shape.columns; ++i) {
      const std::uint64_t to = whole->place(i);
      whole->high[to] = high[i];
      whole->low[to] = high[entries_ + i];
      whole->before[to] = high[2 * entries_ + i] & std::numeric_limits<std::int64_t>::max();
    }
  }
  return wholes_.add_up();
}

// Computes the means of the rows and columns of one matrix.
void Factored::mean_of(const Matrix& matrix, const Job& job) const {
  const Sums sums = sums_of(matrix);
  const auto [rows, columns] = sums.shape;
  double* const mean = sums.means();
  const double weight = optimizers::mean_weight(*job.settings, scales_[matrix.parameter].step);
  const double largest = largest_of(matrix);
  const bool broken = !(largest < kBeyondSquares);
  const kernels::FixedPoint point =
      kernels::fixed_point(broken ? 0 : largest, std::max(rows, columns));
  for (std::uint64_t i = 0; i < rows + columns; ++i) {
    const double sum = kernels::value_of(point, sums.high[i], sums.low[i]);
    mean[i] = broken ? std::numeric_limits<double>::quiet_NaN()
                     : optimizers::moved_mean(std::bit_cast<double>(sums.before[i]),
                                              sum / static_cast<double>(i < rows ? columns : rows),
                                              weight);
  }
}

// All ranks compute all means, and keep their own.
void Factored::move_means(const Job& job) {
  for (const Matrix& matrix : matrices_) {
    if (!scales_[matrix.parameter].skipped) mean_of(matrix, job);
  }
  for (const Own& own : own_) {
    if (scales_[own.parameter].skipped) continue;
    const Matrix& matrix = *matrix_of(own.parameter);
    const WholeMatrices::Matrix* const whole = wholes_.of(own.parameter);
    const double* const from = sums_of(matrix).means();
    for (std::uint64_t i = 0; i < own.count; ++i) {
      const std::uint64_t entry = own.first + i + (own.columns ? matrix.shape.rows : 0);
      write_number(matrix.dtype, own.data, i, from[whole != nullptr ? whole->place(entry) : entry]);
    }
  }
  for (const Matrix& matrix : matrices_) {
    if (scales_[matrix.parameter].skipped) continue;
    const Sums sums = sums_of(matrix);
    optimizers::make_factors(*job.settings, matrix.dtype, sums.shape, sums.means(),
                             sums.means() + sums.shape.rows);
    const WholeMatrices::Matrix* const whole = wholes_.of(matrix.parameter);
    for (std::uint64_t i = 0; whole != nullptr && i < matrix.shape.rows + matrix.shape.columns;
         ++i) {
      means()[matrix.place + i] = sums.means()[whole->place(i)];
    }
  }
}

// A square that is rounded to 0 beside the largest one belongs to a gradient below this many times
// the largest: without a limit it alone would take the whole step.
double Factored::largest_factor(const Matrix& matrix) const {
  const double largest = largest_of(matrix);
  if (!(largest > 0 && largest < kBeyondSquares)) return std::numeric_limits<double>::max();
  const auto [rows, columns] = matrix.whole;
  return std::ldexp(1 / largest, kernels::fixed_point(largest, std::max(rows, columns)).bits);
}

void Factored::direct(const Piece& piece, const Job& job) const {
  const Scale& scale = scales_[piece.parameter];
  const trireme_dtype dtype = gradient_dtype(piece.dtype);
  const double limit = optimizers::largest_factor(*job.settings, dtype);
  const Matrix* const matrix = matrix_of(piece.parameter);
  if (matrix == nullptr) {
    kernels::factored_direction(dtype, piece.gradients, piece.states[0], piece.count,
                                scale.gradient_scale,
                                optimizers::mean_weight(*job.settings, scale.step), limit);
    return;
  }
  const double* const rows = means() + matrix->place;
  kernels::factored_direction({dtype, piece.gradients, piece.first, piece.count,
                               matrix->shape.columns, scale.gradient_scale},
                              rows, rows + matrix->shape.rows,
                              std::min(limit, largest_factor(*matrix)));
}

Status Factored::find_directions(const Link& link, const Job& job) {
  if (!matrices_.empty()) TRIREME_RETURN_IF_ERROR(find_largest(link, job));
  TRIREME_RETURN_IF_ERROR(find_largest_of_wholes());
  if (!matrices_.empty()) TRIREME_RETURN_IF_ERROR(add_up(link, job));
  TRIREME_RETURN_IF_ERROR(add_up_wholes());
  move_means(job);
  for (const Piece& piece : *job.pieces) {
    if (!scales_[piece.parameter].skipped) direct(piece, job);
  }
  return Status::success();
}

}  // namespace trireme::strategies
