// Soft-max of parts of a row: the same bits at every vector level and address, exponentials and
// logarithms next to those of the standard library, and parts that merge.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/reduce.hpp"
#include "kernels/softmax.hpp"
#include "kernels/vector.hpp"
#include "levels.hpp"
#include "platform/names.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme::kernels;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double random_unit(std::uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<double>(*state >> 11) * 0x1p-53;
}

// The error in units of the last bit of `type`.
double error_of(double value, long double right, int bits) {
  if (right == 0) return value == 0 ? 0 : kInfinity;
  const int exponent = static_cast<int>(std::floor(std::log2(static_cast<double>(right))));
  return static_cast<double>(std::fabs(value - right) / std::ldexp(1.0L, exponent - bits + 1));
}

void exponentials_of_f64_are_exact_to_a_unit(void**) {
  std::uint64_t state = 1;
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    assert_true(exponential(0) == 1 && exponential(-kInfinity) == 0 && exponential(-800) == 0);
    for (int i = 0; i < 200'000; ++i) {
      const double x = -(i % 4 == 0 ? 700 : 5) * random_unit(&state);
      assert_true(error_of(exponential(x), std::exp(static_cast<long double>(x)), 53) < 1.5);
    }
  }
  force_vector_level(best_vector_level());
}

// One element below a largest one: the part's sum is 1 + exp(x), and its gradient exp(x).
void exponentials_of_f32_are_exact_to_two_units(void**) {
  std::uint64_t state = 2;
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (int i = 0; i < 200'000; ++i) {
      const auto x = static_cast<float>(-(i % 4 == 0 ? 86 : 5) * random_unit(&state));
      float result = 0;
      softmax_gradients(TRIREME_DTYPE_F32, &x, &result, 1, 0, 1, 0);
      assert_true(error_of(static_cast<double>(result), std::exp(static_cast<long double>(x)), 24) <
                  2);
    }
    const float ends[] = {0.0f, -87.5f, -1e30f, -std::numeric_limits<float>::infinity()};
    float results[4] = {7, 7, 7, 7};
    softmax_gradients(TRIREME_DTYPE_F32, ends, results, 4, 0, 1, 0);
    assert_true(results[0] == 1 && results[1] == 0 && results[2] == 0 && results[3] == 0);
  }
  force_vector_level(best_vector_level());
}

void logarithms_are_exact_to_a_unit(void**) {
  std::uint64_t state = 3;
  assert_true(logarithm(1) == 0);
  for (int i = 0; i < 300'000; ++i) {
    const double x = 1 + std::exp2(60 * random_unit(&state) - 30);
    const long double right = std::log(static_cast<long double>(x));
    // Near 1 the result has fewer bits than the argument's distance from 1.
    assert_true(error_of(logarithm(x), right, 53) < 2);
  }
}

// Lengths around the groups of lanes and the pieces of narrow types, at odd addresses.
void all_levels_give_the_same_bits(void**) {
  constexpr trireme_dtype kTypes[] = {TRIREME_DTYPE_F32, TRIREME_DTYPE_F64, TRIREME_DTYPE_F16,
                                      TRIREME_DTYPE_BF16};
  constexpr std::uint64_t kCounts[] = {0, 1, 7, 8, 15, 16, 17, 31, 33, 100, 2047, 2049, 5003};
  std::uint64_t state = 4;
  for (const trireme_dtype dtype : kTypes) {
    const std::uint64_t size = trireme::dtype_size(dtype);
    for (const std::uint64_t count : kCounts) {
      std::vector<unsigned char> memory(count * size + 8);
      unsigned char* const elements = memory.data() + 3;
      double largest = -kInfinity, sum = 0, plain = 0;
      std::vector<double> values;
      for (std::uint64_t i = 0; i < count; ++i) {
        const auto value = static_cast<float>(30 * random_unit(&state) - 20);
        float stored = value;
        if (dtype == TRIREME_DTYPE_F64) {
          const double wide = static_cast<double>(value) + 1e-9;
          std::memcpy(elements + i * size, &wide, size);
          values.push_back(wide);
        } else if (dtype == TRIREME_DTYPE_F32) {
          std::memcpy(elements + i * size, &value, size);
          values.push_back(static_cast<double>(value));
        } else {
          narrow(dtype, elements + i * size, &value, 1);
          widen(dtype, &stored, elements + i * size, 1);
          values.push_back(static_cast<double>(stored));
        }
        largest = std::fmax(largest, values.back());
      }
      for (const double value : values) {
        sum += std::exp(value - largest);
        plain += value;
      }
      SoftmaxPart first;
      std::vector<unsigned char> expected;
      for (const VectorLevel level : levels()) {
        force_vector_level(level);
        const SoftmaxPart part = softmax_part(dtype, elements, count, true);
        assert_true(part.largest == largest);
        assert_true(std::fabs(part.sum - sum) <= 1e-6 * sum);
        assert_true(std::fabs(part.linear - plain) <= 1e-9 * (1 + std::fabs(plain)));
        std::vector<unsigned char> gradients(count * size + 2, 0xa5);
        softmax_gradients(dtype, elements, gradients.data() + 1, count, 10, 0.5, 0.25);
        assert_int_equal(gradients.front(), 0xa5);
        assert_int_equal(gradients.back(), 0xa5);
        if (level == levels().front()) {
          first = part;
          expected = gradients;
        }
        assert_memory_equal(&part, &first, sizeof part);
        assert_memory_equal(gradients.data(), expected.data(), expected.size());
        // The other sums stay as they are without this one.
        const SoftmaxPart less = softmax_part(dtype, elements, count, false);
        assert_true(less.largest == part.largest && less.sum == part.sum && less.linear == 0);
      }
    }
  }
  force_vector_level(best_vector_level());
}

// A NaN or an infinity at any place, in any part of a vector.
void odd_numbers_are_found_everywhere(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (std::size_t place = 0; place < 70; ++place) {
      std::vector<double> wide(70, 1.0);
      std::vector<float> values(70, 1.0f);
      values[place] = std::numeric_limits<float>::quiet_NaN();
      wide[place] = -std::numeric_limits<double>::quiet_NaN();
      assert_true(std::isnan(softmax_part(TRIREME_DTYPE_F32, values.data(), 70, false).largest));
      assert_true(std::isnan(softmax_part(TRIREME_DTYPE_F64, wide.data(), 70, true).largest));
      values[place] = std::numeric_limits<float>::infinity();
      assert_true(softmax_part(TRIREME_DTYPE_F32, values.data(), 70, false).largest == kInfinity);
      values[place] = 5;
      assert_true(softmax_part(TRIREME_DTYPE_F32, values.data(), 70, false).largest == 5);
      values[place] = -std::numeric_limits<float>::infinity();
      const SoftmaxPart part = softmax_part(TRIREME_DTYPE_F32, values.data(), 70, true);
      assert_true(part.largest == 1 && part.sum == 69 && part.linear == -kInfinity);
    }
  }
  force_vector_level(best_vector_level());
}

void parts_merge(void**) {
  const SoftmaxPart none, a{2, 3, 5}, b{1, 4, -1}, nan{std::nan(""), 0, 0}, high{kInfinity, 0, 0};
  const SoftmaxPart same = merge(a, none), other = merge(none, a);
  assert_true(same.largest == 2 && same.sum == 3 && same.linear == 5);
  assert_memory_equal(&same, &other, sizeof same);
  const SoftmaxPart both = merge(a, b);
  assert_true(both.largest == 2 && both.linear == 4);
  assert_true(std::fabs(both.sum - (3 + 4 * std::exp(-1.0))) < 1e-15 * both.sum * 4);
  assert_true(merge(none, none).largest == -kInfinity && merge(none, none).sum == 0);
  assert_true(std::isnan(merge(a, nan).largest) && std::isnan(merge(nan, a).largest));
  assert_true(std::isnan(merge(high, nan).largest) && merge(a, high).largest == kInfinity);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(exponentials_of_f64_are_exact_to_a_unit),
      cmocka_unit_test(exponentials_of_f32_are_exact_to_two_units),
      cmocka_unit_test(logarithms_are_exact_to_a_unit),
      cmocka_unit_test(all_levels_give_the_same_bits),
      cmocka_unit_test(odd_numbers_are_found_everywhere),
      cmocka_unit_test(parts_merge),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
