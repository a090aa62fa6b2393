// exp of the built-in attention, against the C library in f64.
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "parallel/context/exponential.hpp"

// cmocka's names are macros that the standard library must not see.
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// cmocka.h comes after those it needs.
#include <cmocka.h>
}

namespace {

using trireme::parallel::exponential;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The distance between two neighbours of f32 at this number.
double unit_at(double number) {
  const float near = static_cast<float>(number);
  return static_cast<double>(std::nextafter(near, kInfinity)) - static_cast<double>(near);
}

void is_near_the_exact_one(void**) {
  double most = 0;
  for (float x = -103.5f; x < 88.7f; x += 0.000731f) {
    const double exact = std::exp(static_cast<double>(x));
    const double off = std::fabs(static_cast<double>(exponential(x)) - exact) / unit_at(exact);
    most = std::fmax(most, off);
  }
  if (most > 2) fail_msg("%g units in the last place", most);
}

void ends_of_the_range(void**) {
  assert_true(exponential(0.0f) == 1.0f && exponential(-0.0f) == 1.0f);
  assert_true(exponential(-kInfinity) == 0.0f && !std::signbit(exponential(-kInfinity)));
  assert_true(exponential(-104.0f) == 0.0f && exponential(-1e30f) == 0.0f);
  assert_true(exponential(kInfinity) == kInfinity && exponential(89.0f) == kInfinity);
  assert_true(exponential(-103.0f) > 0.0f);  // below the normal numbers
  assert_true(exponential(88.7f) < kInfinity);
  for (const std::uint32_t bits : {0x7fc00000u, 0xffc00001u, 0x7f800001u}) {
    assert_true(std::isnan(exponential(std::bit_cast<float>(bits))));
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(is_near_the_exact_one),
      cmocka_unit_test(ends_of_the_range),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
