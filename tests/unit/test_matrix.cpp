// Products of matrices have the bits of plain loops at every vector level, in whatever order their
// elements lie and whatever is added.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/matrix.hpp"
#include "levels.hpp"
#include "optimizer/rules/orthogonal.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme::kernels;
namespace optimizers = trireme::optimizers;

struct Size {
  std::uint64_t rows, columns, depth;
};
// Around the sizes of tiles and of blocks.
constexpr Size kSizes[] = {{1, 1, 1},    {3, 5, 2},    {4, 4, 7},    {6, 8, 255},  {7, 9, 256},
                           {8, 24, 257}, {25, 49, 12}, {96, 192, 3}, {97, 193, 5}, {200, 7, 300}};

template <class T>
std::vector<T> numbers(std::uint64_t count, std::uint64_t seed) {
  std::vector<T> values(count);
  for (T& value : values) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<T>(static_cast<double>(seed >> 40) / 8388608 - 1);
  }
  return values;
}

template <class T>
constexpr trireme_dtype kDtype = sizeof(T) == 8 ? TRIREME_DTYPE_F64 : TRIREME_DTYPE_F32;

// Of `turned` ones the elements of a column lie side by side.
template <class T>
void check(const Size& size, bool left_turned, bool right_turned, bool added) {
  const auto [rows, columns, depth] = size;
  const std::vector<T> left = numbers<T>(rows * depth, 1), right = numbers<T>(depth * columns, 2);
  const std::vector<T> more = numbers<T>(rows * columns, 3);
  MatrixProduct p = {};
  p.left = left.data();
  p.left_row = left_turned ? 1 : depth;
  p.left_k = left_turned ? rows : 1;
  p.right = right.data();
  p.right_k = right_turned ? 1 : columns;
  p.right_column = right_turned ? depth : 1;
  p.result_step = columns + 3;
  p.added = added ? more.data() : nullptr;
  p.added_step = columns;
  p.added_factor = -4.775;
  p.factor = 2.0315;
  p.rows = rows;
  p.columns = columns;
  p.depth = depth;
  std::vector<T> expected(rows * p.result_step, T(7));
  for (std::uint64_t i = 0; i < rows; ++i) {
    for (std::uint64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (std::uint64_t k = 0; k < depth; ++k) {
        sum += static_cast<double>(left[i * p.left_row + k * p.left_k]) *
               static_cast<double>(right[k * p.right_k + j * p.right_column]);
      }
      if (added) {
        sum = p.added_factor * static_cast<double>(more[i * columns + j]) + p.factor * sum;
      }
      expected[i * p.result_step + j] = static_cast<T>(sum);
    }
  }
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    std::vector<T> result(expected.size(), T(7));
    p.result = result.data();
    std::vector<double> memory(product_memory(rows, columns, depth) + 1, -1.0);
    multiply(kDtype<T>, p, memory.data());
    assert_memory_equal(result.data(), expected.data(), result.size() * sizeof(T));
    assert_true(memory.back() == -1);
  }
  force_vector_level(best_vector_level());
}

void every_level_gives_the_bits_of_plain_loops(void**) {
  for (const Size& size : kSizes) {
    for (int way = 0; way < 8; ++way) {
      check<float>(size, way & 1, way & 2, way & 4);
      check<double>(size, way & 1, way & 2, way & 4);
    }
  }
}

// Half of it is computed, and the other half is that.
template <class T>
void check_symmetric(std::uint64_t side, std::uint64_t depth) {
  const std::vector<T> values = numbers<T>(side * depth, 4);
  std::vector<T> results[2];
  for (const bool lower : {false, true}) {
    MatrixProduct p = {};
    p.left = p.right = values.data();
    p.left_row = p.right_column = depth;
    p.left_k = p.right_k = 1;
    p.rows = p.columns = p.result_step = side;
    p.depth = depth;
    p.lower = lower;
    results[lower].resize(side * side);
    p.result = results[lower].data();
    std::vector<double> memory(product_memory(side, side, depth));
    multiply(kDtype<T>, p, memory.data());
  }
  assert_memory_equal(results[0].data(), results[1].data(), side * side * sizeof(T));
}

void a_symmetric_product_is_that_of_all_elements(void**) {
  for (const std::uint64_t side : {1, 2, 5, 24, 31, 97, 200}) {
    for (const VectorLevel level : levels()) {
      force_vector_level(level);
      check_symmetric<float>(side, 33);
      check_symmetric<double>(side, 33);
    }
  }
  force_vector_level(best_vector_level());
}

// The transpose of a matrix becomes the transpose of the result, zeros stay, one NaN spoils all. No
// byte is written past the requested memory.
template <class T>
void check_orthogonal(std::uint64_t rows, std::uint64_t columns) {
  const std::vector<T> values = numbers<T>(rows * columns, 5);
  std::vector<T> turned(values.size());
  for (std::uint64_t i = 0; i < rows; ++i) {
    for (std::uint64_t j = 0; j < columns; ++j) turned[j * rows + i] = values[i * columns + j];
  }
  const auto run = [](std::vector<T> matrix, std::uint64_t height, std::uint64_t width) {
    const std::uint64_t bytes = optimizers::orthogonal_bytes(kDtype<T>, height, width);
    std::vector<double> memory(bytes / sizeof(double) + 2);
    auto* const end = reinterpret_cast<char*>(memory.data()) + bytes;
    std::memset(end, 0x5a, sizeof(double));
    assert_true(optimizers::orthogonalise(kDtype<T>, matrix.data(), height, width, 5,
                                          reinterpret_cast<char*>(memory.data()))
                    .ok());
    for (std::size_t i = 0; i < sizeof(double); ++i) assert_int_equal(end[i], 0x5a);
    return matrix;
  };
  const std::vector<T> one = run(values, rows, columns), other = run(turned, columns, rows);
  // Of a square one the sums would be over rows, and not over columns.
  for (std::uint64_t i = 0; i < rows && rows != columns; ++i) {
    for (std::uint64_t j = 0; j < columns; ++j) {
      assert_memory_equal(&one[i * columns + j], &other[j * rows + i], sizeof(T));
    }
  }
  for (const T value : run(std::vector<T>(rows * columns), rows, columns)) assert_true(value == 0);
  std::vector<T> spoilt = values;
  spoilt.back() = std::numeric_limits<T>::infinity();
  for (const T value : run(spoilt, rows, columns)) assert_true(value != value);
}

void orthogonal_matrices_do_not_depend_on_how_they_lie(void**) {
  for (const Size& size : kSizes) {
    check_orthogonal<float>(size.rows, size.columns);
    check_orthogonal<double>(size.rows, size.columns);
  }
}

// How large the elements are is divided out: times a power of two, the same bits come out, also
// where squares, their sum or the norm are more than the largest f64.
void large_matrices_have_the_directions_of_small_ones(void**) {
  constexpr int kMore[] = {1, 400, 500, 506, 508, 510, 511, 512, 513, 520, 1000, 1022, 1023};
  for (const Size& size : kSizes) {
    const std::uint64_t bytes =
        optimizers::orthogonal_bytes(TRIREME_DTYPE_F64, size.rows, size.columns);
    std::vector<double> memory(bytes / sizeof(double) + 1);
    const auto run = [&](std::vector<double> matrix) {
      assert_true(optimizers::orthogonalise(TRIREME_DTYPE_F64, matrix.data(), size.rows,
                                            size.columns, 5, reinterpret_cast<char*>(memory.data()))
                      .ok());
      return matrix;
    };
    const std::vector<double> values = numbers<double>(size.rows * size.columns, 6);
    const std::vector<double> expected = run(values);
    for (const int more : kMore) {
      std::vector<double> large = values;
      for (double& value : large) value = std::ldexp(value, more);
      assert_true(std::isfinite(large.front()));
      const std::vector<double> result = run(large);
      assert_memory_equal(result.data(), expected.data(), result.size() * sizeof(double));
      for (const double no_number :
           {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
            std::numeric_limits<double>::quiet_NaN()}) {
        large.back() = no_number;
        for (const double value : run(large)) assert_true(std::isnan(value));
      }
    }
  }
}

// A caller that may not go on makes no further product.
void it_ends_when_it_may_not_go_on(void**) {
  constexpr std::uint64_t kRows = 3, kColumns = 500;  // three products of lines
  constexpr std::uint32_t kSteps = 4, kAsked = kSteps * (2 + 3);
  const std::uint64_t bytes = optimizers::orthogonal_bytes(TRIREME_DTYPE_F32, kRows, kColumns);
  std::vector<double> memory(bytes / sizeof(double) + 1);
  for (std::uint32_t last = 1; last <= kAsked + 1; ++last) {
    std::vector<float> matrix = numbers<float>(kRows * kColumns, 7);
    std::uint32_t asked = 0;
    const trireme::Status status = optimizers::orthogonalise(
        TRIREME_DTYPE_F32, matrix.data(), kRows, kColumns, kSteps,
        reinterpret_cast<char*>(memory.data()), [&] {
          return ++asked == last ? trireme::Status::failure(TRIREME_ERROR_ABORTED, "enough")
                                 : trireme::Status::success();
        });
    assert_int_equal(status.code(), last <= kAsked ? TRIREME_ERROR_ABORTED : TRIREME_OK);
    assert_int_equal(asked, last <= kAsked ? last : kAsked);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_level_gives_the_bits_of_plain_loops),
      cmocka_unit_test(a_symmetric_product_is_that_of_all_elements),
      cmocka_unit_test(orthogonal_matrices_do_not_depend_on_how_they_lie),
      cmocka_unit_test(large_matrices_have_the_directions_of_small_ones),
      cmocka_unit_test(it_ends_when_it_may_not_go_on),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
