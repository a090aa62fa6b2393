// The dynamic loss scale against lists that were written by hand, and against a second count that
// looks at the whole past each time.
#include <cmath>
#include <cstdint>
#include <string>

#include "optimizer/rules/loss_scale.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using trireme::optimizers::LossScale;
using trireme::optimizers::LossScaleRule;

LossScaleRule rule_of(double first, double growth, double backoff, double floor,
                      std::uint64_t window, std::uint64_t hysteresis) {
  LossScaleRule rule;
  rule.first = first;
  rule.growth = growth;
  rule.backoff = backoff;
  rule.floor = floor;
  rule.window = window;
  rule.hysteresis = hysteresis;
  return rule;
}

// '.' is a good step, 'x' an overflow; `scales` are those after each, `floors` marks with '!' the
// overflows that found the scale at its floor.
struct Row {
  LossScaleRule rule;
  std::string steps;
  double scales[16];
  std::string floors;
};

void scales_are_those_of_the_list(void**) {
  const Row rows[] = {
      // Grows after two good steps in a row; an overflow begins the count anew.
      {rule_of(8, 2, 0.5, 1, 2, 1), "..x.x..x..", {8, 16, 8, 8, 4, 4, 8, 4, 4, 8}, "          "},
      // Down to the floor and no further; up again from there.
      {rule_of(4, 2, 0.5, 1, 1, 1), "xxxx.x", {2, 1, 1, 1, 2, 1}, "  !!  "},
      // A back-off that would go below the floor ends there.
      {rule_of(8, 4, 0.125, 2, 3, 1), "xx...x", {2, 2, 2, 2, 8, 2}, " !    "},
      // The first two overflows are let pass, the third and fourth are not; growth begins anew.
      {rule_of(64, 2, 0.5, 1, 2, 3),
       "x.x.xx..xxx",
       {64, 64, 64, 64, 32, 16, 16, 32, 32, 32, 16},
       "           "},
      // Let pass at the floor, too.
      {rule_of(1, 2, 0.5, 1, 9, 2), "x.xx", {1, 1, 1, 1}, "  !!"},
      // Fixed.
      {rule_of(32, 1, 0.5, 32, 1, 1), "..x.", {32, 32, 32, 32}, "  ! "},
      // Up to 2^64, whose inverse times a factor is still a normal f32.
      {rule_of(0x1p62, 2, 0.5, 1, 1, 1),
       "....x",
       {0x1p63, 0x1p64, 0x1p64, 0x1p64, 0x1p63},
       "     "},
  };
  for (const Row& row : rows) {
    LossScale scale(row.rule);
    assert_true(scale.on());
    assert_true(scale.scale() == row.rule.first);
    std::uint64_t skipped = 0;
    for (std::size_t i = 0; i < row.steps.size(); ++i) {
      if (row.steps[i] == '.') {
        scale.step_made();
      } else {
        ++skipped;
        assert_true(scale.step_overflowed() == (row.floors[i] != '!'));
      }
      assert_true(scale.scale() == row.scales[i]);
      assert_int_equal(scale.state().skipped_steps, skipped);
    }
  }
}

// From the first step on, with exponents instead of scales.
struct Counted {
  int exponent = 0;
  bool floor = false;
};
Counted count_again(const std::string& steps, int first, int grows, int shrinks, int floor,
                    std::size_t window, std::size_t hysteresis) {
  Counted now{first, false};
  std::size_t grown = 0;  // the place after which the scale last grew
  for (std::size_t end = 1; end <= steps.size(); ++end) {
    now.floor = false;
    const std::string since = steps.substr(grown, end - grown);
    if (since.back() == 'x') {
      std::size_t overflows = 0;
      for (const char step : since) overflows += step == 'x';
      if (overflows < hysteresis) continue;
      now.floor = now.exponent == floor;
      now.exponent = std::max(floor, now.exponent - shrinks);
    } else {
      const std::size_t last = since.find_last_of('x');
      const std::size_t good = last == std::string::npos ? since.size() : since.size() - 1 - last;
      if (good < window) continue;
      now.exponent = std::min(64, now.exponent + grows);
      grown = end;
    }
  }
  return now;
}

void scales_are_those_of_a_second_count(void**) {
  std::uint64_t random = 1;
  const auto below = [&random](std::uint64_t limit) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return (random >> 33) % limit;
  };
  for (int trial = 0; trial < 300; ++trial) {
    const int first = static_cast<int>(below(60)) - 20;
    const int floor = first - static_cast<int>(below(6));
    const int grows = static_cast<int>(below(4)), shrinks = 1 + static_cast<int>(below(3));
    const std::uint64_t window = 1 + below(5), hysteresis = 1 + below(3), often = 2 + below(4);
    LossScale scale(rule_of(std::ldexp(1, first), std::ldexp(1, grows), std::ldexp(1, -shrinks),
                            std::ldexp(1, floor), window, hysteresis));
    std::string steps;
    for (int step = 0; step < 60; ++step) {
      steps += below(often) == 0 ? 'x' : '.';
      bool fits = true;
      if (steps.back() == 'x') {
        fits = scale.step_overflowed();
      } else {
        scale.step_made();
      }
      const Counted counted = count_again(steps, first, grows, shrinks, floor, window, hysteresis);
      assert_true(scale.scale() == std::ldexp(1, counted.exponent));
      assert_true(fits == !counted.floor);
      // A saved scale goes on like its original.
      LossScale other(rule_of(std::ldexp(1, first), std::ldexp(1, grows), std::ldexp(1, -shrinks),
                              std::ldexp(1, floor), window, hysteresis));
      other.restore(scale.state());
      scale = other;
    }
  }
}

void without_a_scale_nothing_is_scaled(void**) {
  LossScale scale;
  scale.step_made();
  assert_false(scale.on());
  assert_false(scale.at_floor());
  assert_true(scale.scale() == 1);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(scales_are_those_of_the_list),
      cmocka_unit_test(scales_are_those_of_a_second_count),
      cmocka_unit_test(without_a_scale_nothing_is_scaled),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
