// Exact sums against schoolbook addition of long strings of bits.
#include <trireme/types.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

extern "C" {
#include <setjmp.h>
#include <cmocka.h>
}

#include "kernels/exact_sum.hpp"
#include "kernels/vector.hpp"
#include "levels.hpp"
#include "platform/mix.hpp"

namespace {

using namespace trireme::kernels;

std::uint64_t random_bits() {
  static std::uint64_t number = 0;
  return trireme::mix(7, number++);
}

// Two sums of magnitudes, one bit an entry, bit 0 weighing 2^-1074; the result is their difference.
class BitSum {
 public:
  void add(double value) {
    int exponent = 0;
    const double fraction = std::frexp(std::fabs(value), &exponent);
    auto mantissa = static_cast<std::uint64_t>(std::ldexp(fraction, 53));
    int position = exponent - 53 + 1074;
    for (; position < 0; ++position) mantissa >>= 1;  // the bits of a subnormal that are 0
    std::vector<int>& bits = std::signbit(value) ? negative_ : positive_;
    int carry = 0;
    for (int i = position; i < kBits && (mantissa != 0 || carry != 0); ++i, mantissa >>= 1) {
      const int sum = bits[i] + static_cast<int>(mantissa & 1) + carry;
      bits[i] = sum & 1;
      carry = sum >> 1;
    }
  }

  double value() const {
    const bool minus = std::lexicographical_compare(positive_.rbegin(), positive_.rend(),
                                                    negative_.rbegin(), negative_.rend());
    const std::vector<int>& large = minus ? negative_ : positive_;
    const std::vector<int>& small = minus ? positive_ : negative_;
    std::vector<int> bits(kBits);
    int borrow = 0;
    for (int i = 0; i < kBits; ++i) {
      const int difference = large[i] - small[i] - borrow;
      bits[i] = difference & 1;
      borrow = difference < 0;
    }
    int top = kBits - 1;
    while (top >= 0 && bits[top] == 0) --top;
    if (top < 0) return 0;
    const int last = std::max(top - 52, 0);  // the last bit that fits
    std::uint64_t mantissa = 0;
    for (int i = top; i >= last; --i) mantissa = 2 * mantissa + static_cast<std::uint64_t>(bits[i]);
    if (last > 0 && bits[last - 1] != 0) {
      const bool more =
          std::any_of(bits.begin(), bits.begin() + last - 1, [](int bit) { return bit != 0; });
      if (more || mantissa % 2 == 1) ++mantissa;
    }
    const double magnitude = std::ldexp(static_cast<double>(mantissa), last - 1074);
    return minus ? -magnitude : magnitude;
  }

 private:
  static constexpr int kBits = 2300;
  std::vector<int> positive_ = std::vector<int>(kBits);
  std::vector<int> negative_ = std::vector<int>(kBits);
};

double exact(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

double plain(const std::vector<double>& values) {
  BitSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

void assert_same_bits(double a, double b) {
  if (std::memcmp(&a, &b, 8) != 0) fail_msg("%a is not %a", a, b);
}

double random_double(int low, int high) {
  const auto mantissa = static_cast<double>(random_bits() >> 11);
  const int exponent =
      low + static_cast<int>(random_bits() % static_cast<unsigned>(high - low + 1));
  const double value = std::ldexp(mantissa, exponent - 53);
  return random_bits() % 2 ? value : -value;
}

void an_empty_sum_is_zero(void**) {
  assert_same_bits(exact({}), 0.0);
  assert_same_bits(exact({-0.0}), 0.0);
  assert_same_bits(exact({1e300, -1e300}), 0.0);
}

void known_sums_are_rounded_to_nearest_even(void**) {
  assert_same_bits(exact({1, 0x1p-53}), 1.0);
  assert_same_bits(exact({1, 0x1p-53, 0x1p-1074}), 0x1.0000000000001p+0);
  assert_same_bits(exact({1, 0x1p-53, -0x1p-1074}), 1.0);
  assert_same_bits(exact({0x1.0000000000001p+0, 0x1p-53}), 0x1.0000000000002p+0);
  assert_same_bits(exact({-1, -0x1p-53, -0x1p-300}), -0x1.0000000000001p+0);
  assert_same_bits(exact({1e308, 1e308, -1e308, -1e308, 3}), 3.0);
  assert_same_bits(exact({0x1p-1074, 0x1p-1074, -0x1p-1073, 0x1p-1074}), 0x1p-1074);
  assert_same_bits(exact({0x1.fffffffffffffp+52, 0.5}), 0x1p+53);
}

void beyond_the_largest_f64_the_sum_is_infinite(void**) {
  const double largest = std::numeric_limits<double>::max();
  assert_same_bits(exact({largest, largest}), HUGE_VAL);
  assert_same_bits(exact({-largest, -largest}), -HUGE_VAL);
  assert_same_bits(exact({largest, 0x1p+969}), largest);
  assert_same_bits(exact({largest, 0x1p+970}), HUGE_VAL);
  assert_same_bits(exact(std::vector<double>(1000, largest)), HUGE_VAL);
  assert_same_bits(exact({largest, largest, -largest}), largest);
}

void a_value_that_is_not_finite_makes_the_sum_nan(void**) {
  assert_true(std::isnan(exact({1, HUGE_VAL})));
  assert_true(std::isnan(exact({HUGE_VAL, -HUGE_VAL, 2})));
  assert_true(std::isnan(exact({std::nan(""), 1})));
  ExactSum sum;
  sum.add(HUGE_VAL);
  sum.add(std::nan(""));
  sum.add(1);
  assert_int_equal(sum.not_finite, 2);
}

void random_sums_equal_schoolbook_addition(void**) {
  const int ranges[][2] = {{-1074, -1000}, {-60, 60}, {-1074, 1023}, {900, 1020}, {0, 3}};
  for (const auto& range : ranges) {
    for (int round = 0; round < 60; ++round) {
      std::vector<double> values;
      const std::size_t count = 1 + random_bits() % 40;
      for (std::size_t i = 0; i < count; ++i) values.push_back(random_double(range[0], range[1]));
      // Often all but cancelled, so that the sign and the carries are put to the test.
      if (round % 2 == 1) {
        for (std::size_t i = 0; i + 1 < count; ++i) values.push_back(-values[i]);
      }
      assert_same_bits(exact(values), plain(values));
    }
  }
}

void order_and_partition_do_not_matter(void**) {
  std::vector<double> values;
  for (int i = 0; i < 500; ++i) values.push_back(random_double(-300, 300));
  const double expected = plain(values);
  for (int round = 0; round < 50; ++round) {
    for (std::size_t i = values.size() - 1; i > 0; --i) {
      std::swap(values[i], values[random_bits() % (i + 1)]);
    }
    ExactSum parts[5];
    for (const double value : values) parts[random_bits() % 5].add(value);
    ExactSum sum;
    for (ExactSum& part : parts) {
      if (random_bits() % 2) part.normalise();
      for (int i = 0; i < ExactSum::kDigits; ++i) sum.digits[i] += part.digits[i];
      sum.not_finite += part.not_finite;
    }
    assert_same_bits(sum.value(), expected);
  }
}

void a_sum_goes_on_after_its_value_was_read(void**) {
  ExactSum sum;
  BitSum oracle;
  for (int i = 0; i < 200; ++i) {
    const double value = random_double(-80, 80);
    sum.add(value);
    oracle.add(value);
    assert_same_bits(sum.value(), oracle.value());
  }
  assert_int_equal(sum.pending, 0);
}

// Digits as they are after 2^30 - 1 additions: the next one carries.
void the_carry_comes_before_a_digit_overflows(void**) {
  ExactSum sum;
  sum.add(0x1.fffffffffffffp+0);
  for (std::int64_t& digit : sum.digits) digit *= (1 << 30) - 1;
  sum.pending = (1 << 30) - 1;
  sum.add(0x1.fffffffffffffp+0);
  assert_int_equal(sum.pending, 0);
  for (int i = 0; i + 1 < ExactSum::kDigits; ++i) {
    assert_true(sum.digits[i] >= 0 && sum.digits[i] < 1ll << 32);
  }
  assert_same_bits(sum.value(), 0x1.fffffffffffffp+30);
}

template <class T>
void check_squares(const std::vector<T>& values) {
  const trireme_dtype dtype = sizeof(T) == 4 ? TRIREME_DTYPE_F32 : TRIREME_DTYPE_F64;
  BitSum oracle;
  int not_finite = 0;
  for (const T value : values) {
    const double square = static_cast<double>(value) * static_cast<double>(value);
    if (std::isfinite(square)) {
      oracle.add(square);
    } else {
      ++not_finite;
    }
  }
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const std::size_t shift : {0, 1}) {
      std::vector<unsigned char> memory(values.size() * sizeof(T) + shift);
      if (!values.empty()) {
        std::memcpy(memory.data() + shift, values.data(), values.size() * sizeof(T));
      }
      ExactSum sum;
      sum.add_squares(dtype, memory.data() + shift, values.size());
      assert_int_equal(sum.not_finite, not_finite);
      if (not_finite == 0) {
        assert_same_bits(sum.value(), oracle.value());
      } else {
        assert_true(std::isnan(sum.value()));
      }
    }
  }
  force_vector_level(best_vector_level());
}

template <class T>
void check_squares_of_range(int low, int high, std::size_t count) {
  std::vector<T> values;
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(static_cast<T>(random_double(low, high)));
    if (i % 13 == 5) values.back() = 0;
  }
  check_squares(values);
}

void squares_of_alike_values_are_exact(void**) {
  for (std::size_t count = 0; count <= 130; ++count) {
    check_squares_of_range<float>(-5, 5, count);
    check_squares_of_range<double>(-5, 5, count);
  }
  check_squares_of_range<float>(-12, 0, 20000);
  check_squares_of_range<double>(-12, 0, 20000);
}

void squares_of_values_of_all_sizes_are_exact(void**) {
  check_squares_of_range<float>(-149, 127, 9000);
  check_squares_of_range<float>(-149, -120, 3000);
  check_squares_of_range<float>(100, 127, 3000);
  check_squares_of_range<float>(-40, 0, 9000);
  check_squares_of_range<double>(-600, 500, 9000);
  check_squares_of_range<double>(-1074, -400, 3000);
  check_squares_of_range<double>(480, 511, 3000);
  check_squares_of_range<double>(-40, 0, 9000);
  check_squares<float>({0x1p-149f});
  check_squares<float>({3.4e38f, 3.4e38f, 0x1p-149f});
  check_squares<float>(std::vector<float>(100, 0.0f));
  check_squares<double>({0x1p-1074, 1e-160, 1e154});
}

// Full blocks of the largest value of a binade: the partial sums are as long as they can be.
void full_blocks_of_the_longest_squares_are_exact(void**) {
  check_squares(std::vector<float>(2 * kSquareBlock + 3, 0x1.fffffep+3f));
  check_squares(std::vector<double>(2 * kSquareBlock + 3, 0x1.fffffffffffffp+3));
  std::vector<double> mixed(kSquareBlock, 0x1.fffffffffffffp+3);
  for (std::size_t i = 0; i < mixed.size(); i += 3) mixed[i] = 0x1.fffffffffffffp-17;
  for (std::size_t i = 1; i < mixed.size(); i += 3) mixed[i] = 0x1.fffffffffffffp-30;
  check_squares(mixed);
}

void squares_that_are_not_finite_are_counted(void**) {
  std::vector<float> values(300, 1.5f);
  values[7] = HUGE_VALF;
  values[290] = std::nanf("");
  check_squares(values);
  std::vector<double> wide(300, 1.5);
  wide[3] = 1e200;  // its square is beyond f64
  wide[299] = -HUGE_VAL;
  check_squares(wide);
}

// f equal sums, added and divided by f, are the one sum; whatever f.
void a_sum_of_equal_sums_divides_into_them(void**) {
  const double values[] = {0, 1, 0x1p-1074, 0x1p-500, 3.25, 1e300, 0x1.fffffffffffffp1023};
  for (const std::uint32_t parts : {1u, 2u, 3u, 7u, 8u, 4097u, 0xffffffffu}) {
    trireme::kernels::ExactSum one, all;
    for (const double value : values) one.add(value);
    for (std::uint32_t i = 0; i < parts && parts <= 4097; ++i) all.add(one);
    if (parts > 4097) {  // (2^32 - 1) times it, by doubling
      trireme::kernels::ExactSum power = one;
      for (int bit = 0; bit < 32; ++bit) {
        all.add(power);
        power.add(power);
      }
    }
    all.divide(parts);
    one.normalise();
    for (int i = 0; i < trireme::kernels::ExactSum::kDigits; ++i) {
      assert_true(all.digits[i] == one.digits[i]);
    }
    all.not_finite = 0;
    trireme::kernels::ExactSum bad;
    bad.add(HUGE_VAL);
    all.add(bad);
    assert_true(std::isnan(all.value()));
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_sum_of_equal_sums_divides_into_them),
      cmocka_unit_test(an_empty_sum_is_zero),
      cmocka_unit_test(known_sums_are_rounded_to_nearest_even),
      cmocka_unit_test(beyond_the_largest_f64_the_sum_is_infinite),
      cmocka_unit_test(a_value_that_is_not_finite_makes_the_sum_nan),
      cmocka_unit_test(random_sums_equal_schoolbook_addition),
      cmocka_unit_test(order_and_partition_do_not_matter),
      cmocka_unit_test(a_sum_goes_on_after_its_value_was_read),
      cmocka_unit_test(the_carry_comes_before_a_digit_overflows),
      cmocka_unit_test(squares_of_alike_values_are_exact),
      cmocka_unit_test(squares_of_values_of_all_sizes_are_exact),
      cmocka_unit_test(full_blocks_of_the_longest_squares_are_exact),
      cmocka_unit_test(squares_that_are_not_finite_are_counted),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
