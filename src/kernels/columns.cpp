#include "kernels/columns.hpp"

#include <algorithm>
#include <cstddef>

#include "kernels/reduce.hpp"
#include "kernels/vector.hpp"
#include "platform/names.hpp"

namespace trireme::kernels {
namespace {

constexpr std::uint64_t kColumnsAtOnce = 512;  // their sums stay in the nearest cache

const ColumnLoops& column_loops(trireme_dtype dtype) {
  return loops().columns[dtype == TRIREME_DTYPE_F64 ? 1 : 0];
}

}  // namespace

void add_bias(trireme_dtype dtype, const void* bias, std::uint64_t rows, std::uint64_t columns,
              void* matrix) {
  column_loops(dtype).add_bias(bias, rows, columns, matrix);
}

void add_columns(trireme_dtype dtype, const void* matrix, std::uint64_t step, std::uint64_t rows,
                 std::uint64_t columns, bool add, void* result) {
  const ColumnLoops& loop = column_loops(dtype);
  const std::uint64_t size = dtype_size(dtype);
  const std::uint64_t result_size = dtype == TRIREME_DTYPE_F64 ? sizeof(double) : sizeof(float);
  double sums[kColumnsAtOnce];
  float wide[kColumnsAtOnce];
  for (std::uint64_t first = 0; first < columns; first += kColumnsAtOnce) {
    const std::uint64_t count = std::min(kColumnsAtOnce, columns - first);
    std::fill(sums, sums + count, 0.0);
    const auto* row = static_cast<const std::byte*>(matrix) + first * size;
    if (!is_narrow(dtype)) {
      loop.add_rows(row, step, rows, count, sums);
    } else {
      for (std::uint64_t i = 0; i < rows; ++i, row += step * size) {
        widen(dtype, wide, row, count);
        loop.add_rows(wide, 0, 1, count, sums);
      }
    }
    loop.end(sums, count, add, static_cast<std::byte*>(result) + first * result_size);
  }
}

}  // namespace trireme::kernels
