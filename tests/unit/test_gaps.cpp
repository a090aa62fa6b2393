// Marks of memory that was not written: they are NaN in every type, are found wherever one is left,
// with all vector instructions of the machine, and are no result of arithmetic.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/gaps.hpp"
#include "kernels/reduce.hpp"
#include "kernels/vector.hpp"
#include "levels.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme::kernels;

constexpr Gap kGaps[] = {Gap::in_activations, Gap::in_gradients};

void one_of_many_is_found(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const trireme_dtype dtype : {TRIREME_DTYPE_F32, TRIREME_DTYPE_F64}) {
      const std::size_t size = dtype == TRIREME_DTYPE_F64 ? 8 : 4;
      for (const Gap gap : kGaps) {
        const Gap other = kGaps[gap == kGaps[0] ? 1 : 0];
        for (const std::size_t count : {0, 1, 5, 67, 9001}) {
          std::vector<unsigned char> bytes(count * size + 1);
          unsigned char* const values = bytes.data() + 1;  // at no multiple of its size
          assert_int_equal(find_gap(dtype, values, 0, count, gap), count);
          for (std::size_t i = 0; i<count; i += count> 1000 ? 449 : 1) {
            mark_gap(values + i * size, size, gap);
            assert_int_equal(find_gap(dtype, values, 0, count, gap), i);
            assert_int_equal(find_gap(dtype, values, 0, i, gap), i);
            assert_int_equal(find_gap(dtype, values, i + 1, count, gap), count);
            assert_int_equal(find_gap(dtype, values, 0, count, other), count);
            mark_gap(values, i * size, other);  // those before it
            assert_int_equal(find_gap(dtype, values, 0, count, gap), i);
            std::memset(values, 0, (i + 1) * size);
          }
        }
      }
    }
  }
  force_vector_level(best_vector_level());
}

void half_of_one_is_none(void**) {
  std::uint64_t number = 0;
  for (int half = 0; half < 2; ++half) {
    number = 0;
    mark_gap(reinterpret_cast<char*>(&number) + 4 * half, 4, Gap::in_gradients);
    assert_int_equal(find_gap(TRIREME_DTYPE_F64, &number, 0, 1, Gap::in_gradients), 1);
  }
}

void it_is_a_quiet_nan_of_every_type(void**) {
  for (const Gap gap : kGaps) {
    double wide = 0;
    mark_gap(&wide, sizeof wide, gap);
    assert_true(std::isnan(wide));
    float number = 0;
    mark_gap(&number, sizeof number, gap);
    assert_true(std::isnan(number));
    const float more = number * 3 + 1;
    assert_int_equal(find_gap(TRIREME_DTYPE_F32, &more, 0, 1, gap), 0);  // and stays it
    std::uint16_t half = 0;
    mark_gap(&half, sizeof half, gap);
    for (const trireme_dtype dtype : {TRIREME_DTYPE_F16, TRIREME_DTYPE_BF16}) {
      float widened = 0;
      widen(dtype, &widened, &half, 1);
      assert_true(std::isnan(widened));
    }
  }
}

void what_is_computed_from_one_has_its_trace(void**) {
  float number = 0;
  double wide = 0;
  mark_gap(&number, sizeof number, Gap::in_activations);
  mark_gap(&wide, sizeof wide, Gap::in_activations);
  volatile float factor = -3;
  std::vector<float> some(100, 1.0f);
  some[63] = number * factor + 1;
  assert_true(has_trace(TRIREME_DTYPE_F32, some.data(), 100));
  assert_false(has_trace(TRIREME_DTYPE_F32, some.data(), 63));
  for (const double one : {wide * static_cast<double>(factor), static_cast<double>(some[63])}) {
    assert_true(has_trace(TRIREME_DTYPE_F64, &one, 1));
  }
  // As hardware widens f16 and bf16: the payload's upper bits are kept.
  for (const int shift : {13, 16}) {
    std::uint32_t bits = std::uint32_t{0x7ffc} << shift | 0x7f800000;
    float widened = 0;
    std::memcpy(&widened, &bits, sizeof widened);
    widened *= factor;
    assert_true(has_trace(TRIREME_DTYPE_F32, &widened, 1));
    const double twice = static_cast<double>(widened);
    assert_true(has_trace(TRIREME_DTYPE_F64, &twice, 1));
  }
}

void what_arithmetic_makes_is_none(void**) {
  volatile float zero = 0, infinity = std::numeric_limits<float>::infinity();
  const float made[] = {zero / zero,   infinity - infinity, infinity * zero, std::sqrt(-infinity),
                        std::nanf(""), -std::nanf(""),      infinity,        -infinity,
                        3.4e38f};
  double wide[9];
  for (int i = 0; i < 9; ++i) wide[i] = static_cast<double>(made[i]);
  for (const Gap gap : kGaps) {
    assert_int_equal(find_gap(TRIREME_DTYPE_F32, made, 0, 9, gap), 9);
    assert_int_equal(find_gap(TRIREME_DTYPE_F64, wide, 0, 9, gap), 9);
  }
  assert_false(has_trace(TRIREME_DTYPE_F32, made, 9));
  assert_false(has_trace(TRIREME_DTYPE_F64, wide, 9));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(one_of_many_is_found),
                              cmocka_unit_test(half_of_one_is_none),
                              cmocka_unit_test(it_is_a_quiet_nan_of_every_type),
                              cmocka_unit_test(what_is_computed_from_one_has_its_trace),
                              cmocka_unit_test(what_arithmetic_makes_is_none)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
