#include "parallel/tensor/layer_arrays.hpp"

#include <algorithm>
#include <string>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {
namespace {

constexpr std::uint64_t kColumnsAtOnce = 512;  // their sums stay in the nearest cache

template <class T>
void add_bias_as(const T* bias, std::uint64_t rows, std::uint64_t columns, T* matrix) {
  for (std::uint64_t row = 0; row < rows; ++row, matrix += columns) {
    for (std::uint64_t j = 0; j < columns; ++j) matrix[j] += bias[j];
  }
}

template <class T>
void end_columns(const double* sums, std::uint64_t count, bool add, T* result) {
  for (std::uint64_t j = 0; j < count; ++j) {
    result[j] = static_cast<T>(add ? static_cast<double>(result[j]) + sums[j] : sums[j]);
  }
}

template <class T>
void add_row(const T* row, std::uint64_t count, double* sums) {
  for (std::uint64_t j = 0; j < count; ++j) sums[j] += static_cast<double>(row[j]);
}

}  // namespace

Status check_arrays(std::initializer_list<LayerArray> arrays) {
  for (const LayerArray& array : arrays) {
    if (array.data != nullptr || array.bytes == 0) continue;
    return invalid_argument(std::string(array.name) + " is NULL but holds " +
                            std::to_string(array.bytes) + " bytes");
  }
  for (const LayerArray& written : arrays) {
    if (!written.written || written.bytes == 0) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(written.data);
    for (const LayerArray& other : arrays) {
      const auto at = reinterpret_cast<std::uintptr_t>(other.data);
      if (&other == &written || other.bytes == 0 || at >= begin + written.bytes ||
          begin >= at + other.bytes) {
        continue;
      }
      return invalid_argument(std::string(written.name) + " and " + other.name + " overlap");
    }
  }
  return Status::success();
}

void add_bias(trireme_dtype dtype, const void* bias, std::uint64_t rows, std::uint64_t columns,
              void* matrix) {
  if (dtype == TRIREME_DTYPE_F64) {
    add_bias_as(static_cast<const double*>(bias), rows, columns, static_cast<double*>(matrix));
  } else {
    add_bias_as(static_cast<const float*>(bias), rows, columns, static_cast<float*>(matrix));
  }
}

void add_columns(trireme_dtype dtype, const void* matrix, std::uint64_t step, std::uint64_t rows,
                 std::uint64_t columns, bool add, void* result) {
  const std::uint64_t size = dtype_size(dtype);
  double sums[kColumnsAtOnce];
  float wide[kColumnsAtOnce];
  for (std::uint64_t first = 0; first < columns; first += kColumnsAtOnce) {
    const std::uint64_t count = std::min(kColumnsAtOnce, columns - first);
    std::fill(sums, sums + count, 0.0);
    const auto* row = static_cast<const std::byte*>(matrix) + first * size;
    for (std::uint64_t i = 0; i < rows; ++i, row += step * size) {
      if (dtype == TRIREME_DTYPE_F64) {
        add_row(reinterpret_cast<const double*>(row), count, sums);
      } else if (dtype == TRIREME_DTYPE_F32) {
        add_row(reinterpret_cast<const float*>(row), count, sums);
      } else {
        kernels::widen(dtype, wide, row, count);
        add_row(wide, count, sums);
      }
    }
    if (dtype == TRIREME_DTYPE_F64) {
      end_columns(sums, count, add, static_cast<double*>(result) + first);
    } else {
      end_columns(sums, count, add, static_cast<float*>(result) + first);
    }
  }
}

}  // namespace trireme::parallel
