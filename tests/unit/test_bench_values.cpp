// The benchmark's values: a sum of them in any order is the one expected, and a wrong element is
// seen.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "cli/bench/values.hpp"

namespace {

using trireme::bench::Values;

constexpr std::uint64_t kCount = 2500;  // more than two periods

template <class T>
std::vector<T> given(const Values& values, int source) {
  std::vector<T> all(kCount);
  values.fill(all.data(), source, 0, kCount);
  return all;
}

// Combines the ranks' values by `combine`, from the first rank on and from the last.
template <class T, class Combine>
void expect_any_order(trireme_dtype dtype, trireme_reduction reduction, Combine combine,
                      int divisor = 1) {
  for (const int ranks : {1, 2, 3, 8, 64}) {
    const Values values(dtype, reduction, ranks);
    std::vector<T> forwards = given<T>(values, 0);
    std::vector<T> backwards = given<T>(values, ranks - 1);
    bool differs = ranks == 1;
    for (int rank = 1; rank < ranks; ++rank) {
      const std::vector<T> next = given<T>(values, rank);
      const std::vector<T> last = given<T>(values, ranks - 1 - rank);
      differs = differs || next != given<T>(values, 0);
      for (std::size_t i = 0; i < kCount; ++i) {
        forwards[i] = static_cast<T>(combine(forwards[i], next[i]));
        backwards[i] = static_cast<T>(combine(backwards[i], last[i]));
      }
    }
    for (T& value : forwards) value = static_cast<T>(value / (divisor < 0 ? ranks : divisor));
    for (T& value : backwards) value = static_cast<T>(value / (divisor < 0 ? ranks : divisor));
    assert_true(differs);
    assert_int_equal(values.wrong(forwards.data(), -1, 0, kCount), 0);
    assert_int_equal(values.wrong(backwards.data(), -1, 0, kCount), 0);
  }
}

void any_order_gives_the_expected_result(void**) {
  const auto add = [](auto a, auto b) { return a + b; };
  const auto multiply = [](auto a, auto b) { return a * b; };
  const auto smaller = [](auto a, auto b) { return b < a ? b : a; };
  const auto exclusive = [](auto a, auto b) { return a ^ b; };
  expect_any_order<float>(TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, add);
  expect_any_order<double>(TRIREME_DTYPE_F64, TRIREME_REDUCTION_SCALED_SUM, add, 2);
  expect_any_order<float>(TRIREME_DTYPE_F32, TRIREME_REDUCTION_AVERAGE, add, -1);
  expect_any_order<float>(TRIREME_DTYPE_F32, TRIREME_REDUCTION_PRODUCT, multiply);
  expect_any_order<std::int8_t>(TRIREME_DTYPE_I8, TRIREME_REDUCTION_SUM, add);
  expect_any_order<std::int8_t>(TRIREME_DTYPE_I8, TRIREME_REDUCTION_AVERAGE, add, -1);
  expect_any_order<std::int8_t>(TRIREME_DTYPE_I8, TRIREME_REDUCTION_PRODUCT, multiply);
  expect_any_order<std::uint16_t>(TRIREME_DTYPE_U16, TRIREME_REDUCTION_MIN, smaller);
  expect_any_order<std::uint64_t>(TRIREME_DTYPE_U64, TRIREME_REDUCTION_BXOR, exclusive);
}

void every_wrong_element_is_seen(void**) {
  for (trireme_dtype dtype = TRIREME_DTYPE_I8; dtype <= TRIREME_DTYPE_BYTES; ++dtype) {
    const std::uint64_t size = trireme_dtype_bytes(dtype);
    const Values values(dtype, 0, 3);
    std::vector<unsigned char> memory(kCount * size);
    values.fill(memory.data(), 1, 5, kCount);
    assert_int_equal(values.wrong(memory.data(), 1, 5, kCount), 0);
    for (const std::uint64_t element : {std::uint64_t{0}, std::uint64_t{1015}, kCount - 1}) {
      memory[element * size + size - 1] ^= 0x40;
    }
    assert_int_equal(values.wrong(memory.data(), 1, 5, kCount), 3);
    // Another rank's elements, or one's own a little further on, are wrong nearly everywhere.
    values.fill(memory.data(), 2, 5, kCount);
    assert_true(values.wrong(memory.data(), 1, 5, kCount) > kCount / 3);
    values.fill(memory.data(), 1, 69, kCount);
    assert_true(values.wrong(memory.data(), 1, 5, kCount) > kCount / 3);
  }
}

void a_missing_contribution_is_seen(void**) {
  for (const trireme_dtype dtype : {TRIREME_DTYPE_F32, TRIREME_DTYPE_F64}) {
    const Values values(dtype, TRIREME_REDUCTION_SUM, 2);
    std::vector<unsigned char> memory(kCount * trireme_dtype_bytes(dtype));
    for (int rank = 0; rank < 2; ++rank) {
      values.fill(memory.data(), rank, 0, kCount);
      assert_true(values.wrong(memory.data(), -1, 0, kCount) > kCount / 2);
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(any_order_gives_the_expected_result),
      cmocka_unit_test(every_wrong_element_is_seen),
      cmocka_unit_test(a_missing_contribution_is_seen),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
