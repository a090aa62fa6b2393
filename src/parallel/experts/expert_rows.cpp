#include "parallel/experts/expert_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {
namespace {

constexpr std::uint64_t kRowPiece = 512;  // elements that are computed at a time
constexpr std::uint64_t kProductLanes = 8;
static_assert(kRowPiece % kProductLanes == 0);

// One dtype's elements as Number, which is f32 or f64.
template <class Number>
class RowPieces {
 public:
  explicit RowPieces(trireme_dtype dtype)
      : dtype_(dtype), size_(dtype_size(dtype)), narrow_(kernels::is_narrow(dtype)) {}

  void read(const void* row, std::uint64_t first, std::uint64_t count, Number* to) const {
    const auto* const from = static_cast<const std::byte*>(row) + first * size_;
    if constexpr (sizeof(Number) == sizeof(float)) {
      if (narrow_) return kernels::widen(dtype_, to, from, count);
    }
    std::memcpy(to, from, count * size_);
  }
  void write(void* row, std::uint64_t first, std::uint64_t count, const Number* from) const {
    auto* const to = static_cast<std::byte*>(row) + first * size_;
    if constexpr (sizeof(Number) == sizeof(float)) {
      if (narrow_) return kernels::narrow(dtype_, to, from, count);
    }
    std::memcpy(to, from, count * size_);
  }

 private:
  const trireme_dtype dtype_;
  const std::uint64_t size_;
  const bool narrow_;
};

// Calls body(first, count) for the pieces of a row.
template <class Body>
void each_row_piece(std::uint64_t width, Body body) {
  for (std::uint64_t first = 0; first < width; first += kRowPiece) {
    body(first, std::min(kRowPiece, width - first));
  }
}

template <class Number>
void add_rows_as(trireme_dtype dtype, const void* const* sources, const float* weights,
                 std::uint64_t source_count, std::uint64_t width, void* out) {
  const RowPieces<Number> pieces(dtype);
  each_row_piece(width, [&](std::uint64_t first, std::uint64_t count) {
    Number sum[kRowPiece] = {};
    Number summand[kRowPiece];
    for (std::uint64_t source = 0; source < source_count; ++source) {
      const Number weight = weights == nullptr ? Number{1} : Number{weights[source]};
      if (source == 0) {  // keeps a -0
        pieces.read(sources[0], first, count, sum);
        for (std::uint64_t i = 0; i < count; ++i) sum[i] = weight * sum[i];
        continue;
      }
      pieces.read(sources[source], first, count, summand);
      for (std::uint64_t i = 0; i < count; ++i) sum[i] += weight * summand[i];
    }
    pieces.write(out, first, count, sum);
  });
}

template <class Number>
double multiply_as(trireme_dtype dtype, const void* a, const void* b, std::uint64_t width) {
  const RowPieces<Number> pieces(dtype);
  double lanes[kProductLanes] = {};
  each_row_piece(width, [&](std::uint64_t first, std::uint64_t count) {
    Number left[kRowPiece], right[kRowPiece];
    pieces.read(a, first, count, left);
    pieces.read(b, first, count, right);
    const std::uint64_t whole = count / kProductLanes * kProductLanes;
    for (std::uint64_t i = 0; i < whole; i += kProductLanes) {
      for (std::uint64_t lane = 0; lane < kProductLanes; ++lane) {
        lanes[lane] += static_cast<double>(left[i + lane]) * static_cast<double>(right[i + lane]);
      }
    }
    for (std::uint64_t i = whole; i < count; ++i) {
      lanes[i - whole] += static_cast<double>(left[i]) * static_cast<double>(right[i]);
    }
  });
  for (std::uint64_t half = kProductLanes / 2; half > 0; half /= 2) {
    for (std::uint64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

}  // namespace

void add_weighted_rows(trireme_dtype dtype, const void* const* sources, const float* weights,
                       std::uint64_t source_count, std::uint64_t width, void* out) {
  if (dtype == TRIREME_DTYPE_F64) {
    add_rows_as<double>(dtype, sources, weights, source_count, width, out);
  } else {
    add_rows_as<float>(dtype, sources, weights, source_count, width, out);
  }
}

void scale_row(trireme_dtype dtype, float weight, const void* from, std::uint64_t width, void* to) {
  add_weighted_rows(dtype, &from, &weight, 1, width, to);
}

double multiply_rows(trireme_dtype dtype, const void* a, const void* b, std::uint64_t width) {
  return dtype == TRIREME_DTYPE_F64 ? multiply_as<double>(dtype, a, b, width)
                                    : multiply_as<float>(dtype, a, b, width);
}

}  // namespace trireme::parallel
