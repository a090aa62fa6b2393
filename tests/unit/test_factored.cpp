// Second moments of matrices: exact in any order and at every level of vector instructions, near
// the formula, and the powers of steps.
#include <trireme/optimizer.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

extern "C" {
#include <setjmp.h>
#include <cmocka.h>
}

#include "kernels/factored.hpp"
#include "kernels/vector.hpp"
#include "levels.hpp"
#include "optimizer/rules/adafactor.hpp"
#include "platform/mix.hpp"

namespace {

using namespace trireme::kernels;
namespace optimizers = trireme::optimizers;

std::uint64_t random_bits() {
  static std::uint64_t number = 0;
  return trireme::mix(5, number++);
}

// Of very different sizes, and of both signs.
double random_value(int spread) {
  const double value = static_cast<double>(static_cast<std::int64_t>(random_bits())) * 0x1p-63;
  return std::ldexp(value, -static_cast<int>(random_bits() % static_cast<unsigned>(spread + 1)));
}

template <class T>
constexpr trireme_dtype kDtype = sizeof(T) == 8 ? TRIREME_DTYPE_F64 : TRIREME_DTYPE_F32;

struct Sums {
  std::vector<std::int64_t> words;
  std::uint64_t rows, columns;
  Sums(std::uint64_t r, std::uint64_t c) : words(2 * (r + c), 0), rows(r), columns(c) {}
  SquareSums places() {
    std::int64_t* const high = words.data();
    std::int64_t* const low = high + rows + columns;
    return {high, low, high + rows, low + rows};
  }
};

struct Shape {
  std::uint64_t rows, columns;
};
constexpr Shape kShapes[] = {{1, 1}, {1, 70}, {70, 1}, {3, 5}, {17, 33}, {64, 2}, {5, 257}};

template <class T>
void check_sums(Shape shape, double scale, double size) {
  const std::uint64_t count = shape.rows * shape.columns;
  std::vector<T> gradients(count);
  for (T& g : gradients) g = static_cast<T>(random_value(20) * size);
  force_vector_level(best_vector_level());
  const auto bits = largest_magnitude(kDtype<T>, gradients.data(), count);
  double largest = 0;
  for (const T g : gradients) largest = std::max(largest, std::fabs(static_cast<double>(g)));
  assert_true(std::bit_cast<double>(bits) == largest);
  const auto scaled = [scale](T g) { return static_cast<double>(g * static_cast<T>(scale)); };
  const FixedPoint point =
      fixed_point(std::fabs(scaled(static_cast<T>(largest))), std::max(shape.rows, shape.columns));
  const auto part = [&](std::uint64_t first, std::uint64_t end) {
    return MatrixPart{kDtype<T>, gradients.data() + first, first, end - first, shape.columns,
                      scale};
  };
  Sums whole(shape.rows, shape.columns);
  add_squares(part(0, count), point, whole.places());
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    assert_true(largest_magnitude(kDtype<T>, gradients.data(), count) == bits);
    // In parts that are cut anywhere, the last ones first.
    for (int turn = 0; turn < 4; ++turn) {
      Sums sums(shape.rows, shape.columns);
      std::uint64_t end = count;
      while (end > 0) {
        const std::uint64_t here = 1 + random_bits() % end;
        add_squares(part(end - here, end), point, sums.places());
        end -= here;
      }
      assert_memory_equal(sums.words.data(), whole.words.data(), 8 * whole.words.size());
    }
  }
  force_vector_level(best_vector_level());
  const double most = std::ldexp(1.0, point.exponent);
  const std::uint64_t sides = shape.rows + shape.columns;
  for (std::uint64_t side = 0; side < sides; ++side) {
    long double expected = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (side < shape.rows ? i / shape.columns != side : i % shape.columns != side - shape.rows) {
        continue;
      }
      const auto g = static_cast<long double>(scaled(gradients[i]));
      expected += g * g;
    }
    const double found = value_of(point, whole.words[side], whole.words[sides + side]);
    const long double error = std::fabs(static_cast<long double>(found) - expected);
    assert_true(error <= 4e-16L * expected + std::ldexp(static_cast<long double>(most), -88));
  }
}

void sums_are_exact_in_any_order(void**) {
  for (const Shape shape : kShapes) {
    for (const double scale : {1.0, 0.3}) {
      check_sums<float>(shape, scale, 1);
      check_sums<double>(shape, scale, 1);
      check_sums<float>(shape, scale, 1e-30);
      check_sums<float>(shape, scale, 1e30);
      check_sums<double>(shape, scale, 1e-100);
      check_sums<double>(shape, scale, 1e100);
    }
  }
}

// At the ends of what the words hold: the largest square in every place of a long row.
void full_sums_do_not_overflow(void**) {
  for (const double value : {1.0, std::nextafter(1.0, 0.0), 0x1.fffffep-1}) {
    constexpr std::uint64_t kColumns = 4095;
    const std::vector<double> gradients(kColumns, value);
    const FixedPoint point = fixed_point(value, kColumns);
    Sums sums(1, kColumns);
    MatrixPart part{
        TRIREME_DTYPE_F64, const_cast<double*>(gradients.data()), 0, kColumns, kColumns, 1};
    add_squares(part, point, sums.places());
    const double found = value_of(point, sums.words[0], sums.words[1 + kColumns]);
    const double expected = kColumns * (value * value);
    assert_true(std::fabs(found - expected) <= 1e-15 * expected);
  }
}

template <class T>
void check_largest() {
  const T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const auto largest = [](std::vector<T> values) {
    return std::bit_cast<double>(largest_magnitude(kDtype<T>, values.data(), values.size()));
  };
  std::vector<T> values(67, T(-0.0));
  assert_true(largest(values) == 0);
  assert_true(largest({}) == 0);
  values[3] = std::numeric_limits<T>::denorm_min();
  assert_true(largest(values) == static_cast<double>(values[3]));
  values[66] = T(-3);
  assert_true(largest(values) == 3);
  values[20] = -inf;
  assert_true(largest(values) == static_cast<double>(inf));
  for (const T one : {nan, -nan}) {
    values[21] = one;
    assert_true(std::isnan(largest(values)));
    // Above inf, as numbers.
    assert_true(largest_magnitude(kDtype<T>, values.data(), values.size()) >
                std::bit_cast<std::uint64_t>(static_cast<double>(inf)));
  }
}

void the_largest_is_found_also_if_it_is_no_number(void**) {
  check_largest<float>();
  check_largest<double>();
}

template <class T>
void check_directions() {
  constexpr std::uint64_t kRows = 7, kColumns = 37, kCount = kRows * kColumns;
  const double inf = std::numeric_limits<double>::infinity();
  constexpr double kLimit = 100;
  std::vector<double> rows(kRows), columns(kColumns);
  for (double& row : rows) row = 1 + std::fabs(random_value(3));
  for (double& column : columns) column = 1 + std::fabs(random_value(3));
  rows[2] = inf;  // of zeros
  columns[5] = 1e9;
  rows[4] = std::numeric_limits<double>::quiet_NaN();
  std::vector<T> start(kCount), squares(kCount);
  for (T& g : start) g = static_cast<T>(random_value(10));
  start[2 * kColumns] = 0;
  for (T& v : squares) v = static_cast<T>(std::fabs(random_value(10)));
  squares[9] = start[9] = 0;
  std::vector<T> expected(kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    double factor = rows[i / kColumns] * columns[i % kColumns];
    if (factor > kLimit) factor = kLimit;
    expected[i] = static_cast<T>(static_cast<double>(start[i] * static_cast<T>(0.3)) * factor);
    if (i / kColumns == 4) expected[i] = std::numeric_limits<T>::quiet_NaN();
  }
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const std::uint64_t cut : {std::uint64_t{0}, std::uint64_t{5}, std::uint64_t{111}}) {
      std::vector<T> gradients = start, moved = start, states = squares;
      for (const auto& [first, end] : {std::pair{cut, kCount}, std::pair{std::uint64_t{0}, cut}}) {
        factored_direction({kDtype<T>, gradients.data() + first, first, end - first, kColumns, 0.3},
                           rows.data(), columns.data(), kLimit);
        factored_direction(kDtype<T>, moved.data() + first, states.data() + first, end - first, 0.3,
                           0.25, kLimit);
      }
      assert_memory_equal(gradients.data(), expected.data(), kCount * sizeof(T));
      for (std::uint64_t i = 0; i < kCount; ++i) {
        const auto g = static_cast<double>(start[i] * static_cast<T>(0.3));
        const auto before = static_cast<double>(squares[i]);
        const double v = before + 0.25 * (g * g - before);
        assert_true(states[i] == static_cast<T>(v));
        const double root = 1 / std::sqrt(v);
        assert_true(moved[i] == static_cast<T>(g * (root > kLimit ? kLimit : root)));
      }
    }
  }
  force_vector_level(best_vector_level());
}

void directions_are_those_of_plain_loops(void**) {
  check_directions<float>();
  check_directions<double>();
}

void powers_are_near_those_of_the_c_library(void**) {
  for (const double exponent : {-0.8, -0.5, -1.0, -0.01, -3.0}) {
    assert_true(optimizers::falling_power(1, exponent) == 1);
    for (std::uint64_t base = 2; base < std::uint64_t{1} << 50; base += 1 + base / 7) {
      const double expected = std::pow(static_cast<double>(base), exponent);
      const double found = optimizers::falling_power(static_cast<double>(base), exponent);
      const double most = 3e-16 * (2 - exponent * std::log(static_cast<double>(base)));
      assert_true(std::fabs(found - expected) <= most * expected);
    }
  }
  assert_true(optimizers::falling_power(2, -2000) == 0);
  assert_true(optimizers::falling_power(3, -1e308) == 0);
  // Other machines must compute these values, too.
  assert_true(optimizers::falling_power(2, -0.8) == 0x1.2611186bae675p-1);
  assert_true(optimizers::falling_power(3, -0.8) == 0x1.a935a16704c71p-2);
  assert_true(optimizers::falling_power(100, -0.8) == 0x1.9b8c272fbe6dbp-6);
}

void steps_are_as_long_as_the_formula_says(void**) {
  optimizers::Settings settings;
  settings.rule.kind = TRIREME_RULE_ADAFACTOR;
  settings.rule.max_update_rms = 2;
  settings.rule.min_parameter_rms = 0.5;
  // 16 elements: roots are a quarter of norms.
  assert_true(optimizers::step_length(settings, 0.25, 4, 16, 12, 4) == 3 * 0.25);
  assert_true(optimizers::step_length(settings, 0.75, 4, 16, 12, 4) == 3 * 0.5);
  assert_true(optimizers::step_length(settings, 0.25, 4, 16, 1, 4) == 0.5 * 0.25);
  assert_true(optimizers::step_length(settings, 0.25, 4, 16, 12, 32) == 3 * 0.25 / 4);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  assert_true(optimizers::step_length(settings, 0.25, 4, 16, nan, nan) == 0.5 * 0.25);
  assert_true(optimizers::step_length(settings, 0, 4, 16, 12, 32) == 0);
}

void shapes_are_a_first_dimension_and_the_rest(void**) {
  assert_false(optimizers::is_matrix({}));
  assert_false(optimizers::is_matrix({7}));
  assert_true(optimizers::is_matrix({7, 1}));
  const optimizers::MatrixShape shape = optimizers::matrix_of({3, 4, 5});
  assert_true(shape.rows == 3 && shape.columns == 20);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(sums_are_exact_in_any_order),
                              cmocka_unit_test(full_sums_do_not_overflow),
                              cmocka_unit_test(the_largest_is_found_also_if_it_is_no_number),
                              cmocka_unit_test(directions_are_those_of_plain_loops),
                              cmocka_unit_test(powers_are_near_those_of_the_c_library),
                              cmocka_unit_test(steps_are_as_long_as_the_formula_says),
                              cmocka_unit_test(shapes_are_a_first_dimension_and_the_rest)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
