#include "kernels/matrix.hpp"

#include <algorithm>

namespace trireme::kernels {
namespace {

template <class T>
void mirror(const MatrixProduct& p) {
  auto* const result = static_cast<T*>(p.result);
  constexpr std::uint64_t kBlock = 32;  // both halves of a block stay in the nearest cache
  for (std::uint64_t row = 0; row < p.rows; row += kBlock) {
    for (std::uint64_t column = 0; column <= row; column += kBlock) {
      for (std::uint64_t i = row; i < std::min(row + kBlock, p.rows); ++i) {
        for (std::uint64_t j = column; j < std::min(column + kBlock, i); ++j) {
          result[j * p.result_step + i] = result[i * p.result_step + j];
        }
      }
    }
  }
}

std::uint64_t rounded(std::uint64_t count, std::uint64_t most) {
  return std::min((count + kProductStep - 1) / kProductStep * kProductStep, most);
}

}  // namespace

static_assert(kProductRows % kProductStep == 0 && kProductColumns % kProductStep == 0);

std::uint64_t product_memory(std::uint64_t rows, std::uint64_t columns, std::uint64_t depth) {
  const std::uint64_t down = rounded(rows, kProductRows),
                      across = rounded(columns, kProductColumns);
  return down * across + (down + across) * std::min(depth, kProductDepth);
}

void multiply(trireme_dtype dtype, const MatrixProduct& product, double* memory) {
  const bool wide = dtype == TRIREME_DTYPE_F64;
  loops().product[dtype](product, memory);
  if (!product.lower) return;
  wide ? mirror<double>(product) : mirror<float>(product);
}

}  // namespace trireme::kernels
