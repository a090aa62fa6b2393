#include "optimizer/rules/orthogonal.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/matrix.hpp"
#include "optimizer/rules/clipping.hpp"
#include "platform/names.hpp"

namespace trireme::optimizers {
namespace {

// Keller Jordan's coefficients: the shortest directions grow fastest. Lengths end near 1, not at
// it.
constexpr double kFirst = 3.4445, kThird = -4.7750, kFifth = 2.0315;
constexpr double kLeastNorm = 1e-7;

// Replaces so many lines of a long matrix at a time.
constexpr std::uint64_t kLines = kernels::kProductColumns;

// The places of the working memory.
struct Places {
  std::uint64_t side = 0, length = 0;  // the shorter one and the longer one
  std::uint64_t panel = 0;             // elements of kLines lines
  std::uint64_t products = 0;          // f64 for products
};

Places places_of(std::uint64_t rows, std::uint64_t columns) {
  Places places;
  places.side = std::min(rows, columns);
  places.length = std::max(rows, columns);
  const std::uint64_t lines = std::min(kLines, places.length);
  places.panel = places.side * lines;
  places.products = std::max({kernels::product_memory(places.side, places.side, places.length),
                              kernels::product_memory(places.side, lines, places.side),
                              kernels::product_memory(lines, places.side, places.side)});
  return places;
}

double norm_of(trireme_dtype dtype, const void* matrix, std::uint64_t elements) {
  GradientNorm sum;
  sum.add(dtype, matrix, elements);
  std::int64_t words[GradientNorm::kWords];
  sum.write(words);
  return GradientNorm::norm(words);
}

template <class T>
void divide_by_norm(trireme_dtype dtype, T* matrix, std::uint64_t elements) {
  double norm = norm_of(dtype, matrix, elements);
  if (norm < kLeastNorm) norm = kLeastNorm;
  if constexpr (sizeof(T) == sizeof(double)) {
    if (!std::isfinite(norm)) {
      // The squares can be too large though the elements are not, and so can the norm itself. With
      // smaller exponents both have room, and the elements that count lose no bit; inf and NaN stay
      // as they are.
      for (std::uint64_t i = 0; i < elements; ++i) matrix[i] *= 0x1p-600;
      norm = norm_of(dtype, matrix, elements);
    }
  }
  for (std::uint64_t i = 0; i < elements; ++i) {
    matrix[i] = static_cast<T>(static_cast<double>(matrix[i]) / norm);
  }
}

template <class T>
Status orthogonalise(trireme_dtype dtype, T* matrix, std::uint64_t rows, std::uint64_t columns,
                     std::uint32_t steps, char* memory, const std::function<Status()>& may_go_on) {
  const auto multiply = [&](const kernels::MatrixProduct& p, double* products) -> Status {
    if (may_go_on) TRIREME_RETURN_IF_ERROR(may_go_on());
    kernels::multiply(dtype, p, products);
    return Status::success();
  };
  divide_by_norm(dtype, matrix, rows * columns);
  const Places places = places_of(rows, columns);
  const std::uint64_t side = places.side;
  const bool tall = rows > columns;
  auto* const products = reinterpret_cast<double*>(memory);
  auto* const squared = reinterpret_cast<T*>(products + places.products);
  T* const factors = squared + side * side;
  T* const panel = factors + side * side;
  // Takes lines of the shorter side, so that a tall matrix need not be transposed.
  const std::uint64_t line = tall ? 1 : columns, along = tall ? columns : 1;
  for (std::uint32_t step = 0; step < steps; ++step) {
    kernels::MatrixProduct p = {};
    p.left = p.right = matrix;
    p.left_row = p.right_column = line;
    p.left_k = p.right_k = along;
    p.result = squared;
    p.result_step = side;
    p.rows = p.columns = side;
    p.depth = places.length;
    p.lower = true;
    TRIREME_RETURN_IF_ERROR(multiply(p, products));

    p.left = p.right = p.added = squared;
    p.left_row = p.right_k = p.added_step = side;
    p.left_k = p.right_column = 1;
    p.result = factors;
    p.added_factor = kThird;
    p.factor = kFifth;
    p.depth = side;
    TRIREME_RETURN_IF_ERROR(multiply(p, products));

    for (std::uint64_t first = 0; first < places.length; first += kLines) {
      const std::uint64_t lines = std::min(kLines, places.length - first);
      T* const part = matrix + first * (tall ? columns : 1);
      p = {};
      p.left = tall ? part : factors;
      p.right = tall ? factors : part;
      p.left_row = tall ? columns : side;
      p.right_k = tall ? side : columns;
      p.left_k = p.right_column = 1;
      p.rows = tall ? lines : side;
      p.columns = tall ? side : lines;
      p.result = panel;
      p.result_step = p.columns;
      p.added = part;
      p.added_step = columns;
      p.added_factor = kFirst;
      p.factor = 1;
      p.depth = side;
      TRIREME_RETURN_IF_ERROR(multiply(p, products));
      for (std::uint64_t row = 0; row < p.rows; ++row) {
        std::memcpy(part + row * columns, panel + row * p.columns, p.columns * sizeof(T));
      }
    }
  }
  return Status::success();
}

}  // namespace

std::uint64_t orthogonal_bytes(trireme_dtype dtype, std::uint64_t rows, std::uint64_t columns) {
  const Places places = places_of(rows, columns);
  return places.products * sizeof(double) +
         (2 * places.side * places.side + places.panel) * dtype_size(dtype);
}

double orthogonal_cost(std::uint64_t rows, std::uint64_t columns) {
  const auto side = static_cast<double>(std::min(rows, columns));
  const auto length = static_cast<double>(std::max(rows, columns));
  return side * side * (3 * length + side);
}

Status orthogonalise(trireme_dtype dtype, void* matrix, std::uint64_t rows, std::uint64_t columns,
                     std::uint32_t steps, char* memory, const std::function<Status()>& may_go_on) {
  if (dtype == TRIREME_DTYPE_F64) {
    return orthogonalise(dtype, static_cast<double*>(matrix), rows, columns, steps, memory,
                         may_go_on);
  }
  return orthogonalise(dtype, static_cast<float*>(matrix), rows, columns, steps, memory, may_go_on);
}

}  // namespace trireme::optimizers
