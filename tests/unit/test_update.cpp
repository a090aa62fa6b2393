// Update rules against the published formulas in long double, one step from the same state.
#include <trireme/optimizer.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

extern "C" {
#include <setjmp.h>
#include <cmocka.h>
}

#include "elements.hpp"
#include "kernels/update.hpp"
#include "kernels/vector.hpp"
#include "levels.hpp"
#include "platform/mix.hpp"

namespace {

using namespace trireme::kernels;

std::uint64_t random_bits() {
  static std::uint64_t number = 0;
  return trireme::mix(3, number++);
}

double random_value() {
  return static_cast<double>(static_cast<std::int64_t>(random_bits())) * 0x1p-63;
}

UpdateRule sgd(double momentum, bool nesterov, double decay) {
  UpdateRule rule;
  rule.kind = TRIREME_RULE_SGD;
  rule.momentum = momentum;
  rule.flags = nesterov ? TRIREME_SGD_FLAG_NESTEROV : 0;
  rule.weight_decay = decay;
  return rule;
}

UpdateRule adam(trireme_rule_kind kind, double decay) {
  UpdateRule rule;
  rule.kind = kind;
  rule.beta1 = 0.9;
  rule.beta2 = 0.999;
  rule.epsilon = 1e-8;
  rule.weight_decay = decay;
  return rule;
}

UpdateRule adagrad(double decay) {
  UpdateRule rule;
  rule.kind = TRIREME_RULE_ADAGRAD;
  rule.epsilon = 1e-10;
  rule.weight_decay = decay;
  return rule;
}

UpdateRule rmsprop(double momentum, bool centered, double decay) {
  UpdateRule rule;
  rule.kind = TRIREME_RULE_RMSPROP;
  rule.momentum = momentum;
  rule.flags = centered ? TRIREME_RMSPROP_FLAG_CENTERED : 0;
  rule.beta2 = 0.99;
  rule.epsilon = 1e-8;
  rule.weight_decay = decay;
  return rule;
}

UpdateRule lion(double decay) {
  UpdateRule rule;
  rule.kind = TRIREME_RULE_LION;
  rule.beta1 = 0.9;
  rule.beta2 = 0.99;
  rule.weight_decay = decay;
  return rule;
}

// The caller itself multiplies the learning rate by the trust ratio.
UpdateRule lars(double momentum, double decay) {
  UpdateRule rule = sgd(momentum, false, decay);
  rule.kind = TRIREME_RULE_LARS;
  return rule;
}

bool has_nesterov(const UpdateRule& rule) { return (rule.flags & TRIREME_SGD_FLAG_NESTEROV) != 0; }
bool is_centered(const UpdateRule& rule) {
  return (rule.flags & TRIREME_RMSPROP_FLAG_CENTERED) != 0;
}

std::vector<UpdateRule> rules() {
  return {sgd(0, false, 0),
          sgd(0, false, 0.1),
          sgd(0.9, false, 0),
          sgd(0.9, false, 0.1),
          sgd(0.9, true, 0),
          sgd(0.9, true, 0.1),
          adam(TRIREME_RULE_ADAM, 0),
          adam(TRIREME_RULE_ADAM, 0.1),
          adam(TRIREME_RULE_ADAMW, 0),
          adam(TRIREME_RULE_ADAMW, 0.1),
          adagrad(0),
          adagrad(0.1),
          rmsprop(0, false, 0),
          rmsprop(0, false, 0.1),
          rmsprop(0.9, false, 0),
          rmsprop(0.9, false, 0.1),
          rmsprop(0, true, 0),
          rmsprop(0, true, 0.1),
          rmsprop(0.9, true, 0),
          rmsprop(0.9, true, 0.1),
          lion(0),
          lion(0.1),
          lars(0, 0.1),
          lars(0.9, 0),
          lars(0.9, 0.1)};
}

struct Element {
  long double p, g, s[3];
};

// Whether a state of a rule is a sum of squares, a mean of gradients or a velocity.
enum class StateKind { none, squares, mean, velocity };
StateKind state_kind(const UpdateRule& rule, int state) {
  if (state >= state_count(rule)) return StateKind::none;
  switch (rule.kind) {
    case TRIREME_RULE_SGD:
    case TRIREME_RULE_LARS: return StateKind::velocity;
    case TRIREME_RULE_ADAM:
    case TRIREME_RULE_ADAMW:
    case TRIREME_RULE_LAMB: return state == 0 ? StateKind::mean : StateKind::squares;
    case TRIREME_RULE_LION: return StateKind::mean;
    default: break;
  }
  if (state == 0) return StateKind::squares;
  return state == 1 && rule.momentum != 0 ? StateKind::velocity : StateKind::mean;
}

void step_rmsprop_plainly(const UpdateRule& rule, Element* e, long double g, long double rate) {
  const long double b2 = rule.beta2;
  e->s[0] = b2 * e->s[0] + (1 - b2) * g * g;
  long double spread = e->s[0];
  if (is_centered(rule)) {
    long double& m = e->s[rule.momentum != 0 ? 2 : 1];
    m = b2 * m + (1 - b2) * g;
    spread -= m * m;
  }
  long double change = g / (std::sqrt(spread) + rule.epsilon);
  if (rule.momentum != 0) change = e->s[1] = rule.momentum * e->s[1] + change;
  e->p -= rate * change;
}

Element step_plainly(const UpdateRule& rule, Element e, std::uint64_t t, long double rate,
                     long double gradient_scale) {
  long double g = e.g * gradient_scale;
  if (rule.kind == TRIREME_RULE_SGD) {
    g += rule.weight_decay * e.p;
    if (rule.momentum == 0) {
      e.p -= rate * g;
      return e;
    }
    e.s[0] = t == 1 ? g : rule.momentum * e.s[0] + g;
    e.p -= rate * (has_nesterov(rule) ? g + rule.momentum * e.s[0] : e.s[0]);
    return e;
  }
  if (rule.kind == TRIREME_RULE_LARS) {
    const long double step = rate * (g + rule.weight_decay * e.p);
    if (rule.momentum != 0) e.s[0] = rule.momentum * e.s[0] + step;
    e.p -= rule.momentum != 0 ? e.s[0] : step;
    return e;
  }
  if (rule.kind == TRIREME_RULE_ADAGRAD) {
    g += rule.weight_decay * e.p;
    e.s[0] += g * g;
    e.p -= rate * g / (std::sqrt(e.s[0]) + rule.epsilon);
    return e;
  }
  if (rule.kind == TRIREME_RULE_RMSPROP) {
    step_rmsprop_plainly(rule, &e, g + rule.weight_decay * e.p, rate);
    return e;
  }
  if (rule.kind == TRIREME_RULE_LION) {
    e.p -= rate * rule.weight_decay * e.p;
    const long double between =
        rule.beta1 * e.s[0] + (1 - static_cast<long double>(rule.beta1)) * g;
    e.p -= rate * (between > 0 ? 1 : between < 0 ? -1 : 0);
    e.s[0] = rule.beta2 * e.s[0] + (1 - static_cast<long double>(rule.beta2)) * g;
    return e;
  }
  if (rule.kind == TRIREME_RULE_ADAM) g += rule.weight_decay * e.p;
  if (rule.kind == TRIREME_RULE_ADAMW) e.p -= rate * rule.weight_decay * e.p;
  e.s[0] = rule.beta1 * e.s[0] + (1 - static_cast<long double>(rule.beta1)) * g;
  e.s[1] = rule.beta2 * e.s[1] + (1 - static_cast<long double>(rule.beta2)) * g * g;
  const long double steps = static_cast<long double>(t);
  const long double m = e.s[0] / (1 - std::pow(static_cast<long double>(rule.beta1), steps));
  const long double v = e.s[1] / (1 - std::pow(static_cast<long double>(rule.beta2), steps));
  e.p -= rate * m / (std::sqrt(v) + rule.epsilon);
  return e;
}

// Parameters, gradients and three states, each `shift` bytes off alignment, with a guard at the
// end.
template <class T>
struct Vectors {
  static constexpr unsigned char kGuard = 0xa5;
  std::size_t count, shift;
  static constexpr int kVectors = 5;
  std::vector<unsigned char> memory[kVectors];

  Vectors(std::size_t elements, std::size_t bytes) : count(elements), shift(bytes) {
    for (auto& one : memory) one.assign(count * sizeof(T) + shift + 1, kGuard);
  }
  T get(int vector, std::size_t i) const {
    T value;
    std::memcpy(&value, memory[vector].data() + shift + i * sizeof(T), sizeof(T));
    return value;
  }
  void set(int vector, std::size_t i, T value) {
    std::memcpy(memory[vector].data() + shift + i * sizeof(T), &value, sizeof(T));
  }
  void fill(const UpdateRule& rule, bool first_step) {
    for (std::size_t i = 0; i < count; ++i) {
      set(0, i, static_cast<T>(random_value()));
      set(1, i, static_cast<T>(random_value()));
      // A mean is smaller than the root of the mean square.
      const double square = std::fabs(random_value());
      for (int state = 0; state < kVectors - 2; ++state) {
        double value = random_value();
        if (state_kind(rule, state) == StateKind::squares) value = square;
        if (state_kind(rule, state) == StateKind::mean) value *= 0.9 * std::sqrt(square);
        set(2 + state, i, first_step ? T(0) : static_cast<T>(value));
      }
    }
  }
  void step(const UpdateRule& rule, std::uint64_t t, double rate, double gradient_scale) {
    void* states[8] = {};
    for (int k = 0; k < state_count(rule); ++k) states[k] = memory[2 + k].data() + shift;
    update(rule, sizeof(T) == 4 ? TRIREME_DTYPE_F32 : TRIREME_DTYPE_F64, memory[0].data() + shift,
           memory[1].data() + shift, states, count, t, rate, gradient_scale);
    for (const auto& one : memory) assert_int_equal(one.back(), kGuard);
  }
};

template <class T>
void assert_near(T got, long double expected, long double scale, const char* what) {
  const long double unit = sizeof(T) == 4 ? 0x1p-23L : 0x1p-52L;
  if (!(std::fabs(static_cast<long double>(got) - expected) <= 8 * unit * scale)) {
    fail_msg("%s: %.20Lg is not %.20Lg", what, static_cast<long double>(got), expected);
  }
}

template <class T>
void check_rule(const UpdateRule& rule, std::size_t count, std::uint64_t t, double gradient_scale) {
  const double rate = 0.01;
  Vectors<T> vectors(count, count % 9);
  vectors.fill(rule, t == 1);
  const Vectors<T> before = vectors;
  vectors.step(rule, t, rate, gradient_scale);
  for (std::size_t i = 0; i < count; ++i) {
    const Element old = {
        before.get(0, i), before.get(1, i), {before.get(2, i), before.get(3, i), before.get(4, i)}};
    const Element now = step_plainly(rule, old, t, rate, gradient_scale);
    // Rounding is relative to the largest term of a sum.
    const long double g = std::fabs(old.g * gradient_scale) + 0.1L * std::fabs(old.p);
    long double reach = rate * (2 * g + std::fabs(old.s[0]));
    long double divided = 0;  // a gradient over the root of its mean square
    if (rule.kind == TRIREME_RULE_ADAGRAD || rule.kind == TRIREME_RULE_RMSPROP) {
      long double spread = now.s[0];
      if (is_centered(rule)) spread -= std::pow(now.s[rule.momentum != 0 ? 2 : 1], 2.0L);
      // The part of the difference that rounding leaves, relative to it.
      divided = g / std::sqrt(spread) * (is_centered(rule) ? 2 * now.s[0] / spread : 1);
      reach = rate * (2 * divided + (rule.momentum != 0 ? std::fabs(old.s[1]) : 0));
    } else if (rule.kind == TRIREME_RULE_LION) {
      reach = rate;
    } else if (rule.kind == TRIREME_RULE_LARS) {
      reach = rate * 2 * g + std::fabs(old.s[0]);
    } else if (rule.kind != TRIREME_RULE_SGD) {
      const long double steps = static_cast<long double>(t);
      reach *= std::sqrt(1 - std::pow(static_cast<long double>(rule.beta2), steps)) /
               (1 - std::pow(static_cast<long double>(rule.beta1), steps)) / std::sqrt(now.s[1]);
      // 1 - beta2^t in f64 has lost up to 9 bits.
      if (sizeof(T) == 8) reach *= 512;
    }
    assert_near(vectors.get(0, i), now.p, std::fabs(old.p) + reach, "parameter");
    assert_true(vectors.get(1, i) == before.get(1, i));
    for (int state = 0; state < 3; ++state) {
      long double added = 0;
      switch (state_kind(rule, state)) {
        case StateKind::none: assert_true(vectors.get(2 + state, i) == old.s[state]); continue;
        case StateKind::squares: added = g * g; break;
        case StateKind::mean: added = g; break;
        case StateKind::velocity: added = rule.kind == TRIREME_RULE_RMSPROP ? divided : g; break;
      }
      assert_near(vectors.get(2 + state, i), now.s[state], std::fabs(old.s[state]) + added,
                  "state");
    }
  }
}

void every_rule_follows_its_formula(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const UpdateRule& rule : rules()) {
      for (const std::uint64_t t : {1, 2, 3, 10, 1000}) {
        for (const double gradient_scale : {1.0, 0.25, 1.0 / 3}) {
          check_rule<float>(rule, 67, t, gradient_scale);
          check_rule<double>(rule, 67, t, gradient_scale);
        }
      }
    }
  }
  force_vector_level(best_vector_level());
}

void every_count_works_at_every_alignment(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const UpdateRule& rule : rules()) {
      for (std::size_t count = 0; count <= 130; ++count) {
        check_rule<float>(rule, count, 2, 1);
        check_rule<double>(rule, count, 2, 1);
      }
    }
  }
  force_vector_level(best_vector_level());
}

// Whether `got` is `value` rounded to a multiple of its unit in a format: nearest even, infinite
// from 2^top on.
bool is_nearest(double got, double value, int bits, int lowest, int top) {
  if (std::isnan(value)) return std::isnan(got);
  if (std::isinf(value) || value == 0) return got == value;
  int exponent = 0;
  std::frexp(value, &exponent);
  const int unit = std::max(exponent - bits, lowest);
  double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  if (std::fabs(rounded) >= std::ldexp(1, top)) rounded = std::copysign(HUGE_VAL, value);
  return got == rounded;
}

// Moderate, subnormal, huge, infinite and NaN values with different payloads.
template <class T>
T odd_value() {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  if (random_bits() % 8 != 0) return static_cast<T>(random_value());
  const auto bits = static_cast<Bits>(random_bits());
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return random_bits() % 4 == 0 ? value * std::numeric_limits<T>::infinity() : value;
}

template <class T>
void check_places(const UpdateRule& rule) {
  constexpr std::size_t kCount = 203;
  Vectors<T> start(kCount, 0);
  for (int vector = 0; vector < Vectors<float>::kVectors; ++vector) {
    for (std::size_t i = 0; i < kCount; ++i) start.set(vector, i, odd_value<T>());
  }
  Vectors<T> reference = start;
  force_vector_level(VectorLevel::scalar);
  for (std::uint64_t t = 1; t <= 5; ++t) reference.step(rule, t, 0.01, 0.7);
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const std::size_t cut : {0, 1, 13, 64, 200}) {  // the same vector in two pieces
      for (const bool second : {false, true}) {
        const std::size_t first = second ? cut : 0;
        Vectors<T> piece(second ? kCount - cut : cut, cut % 5);
        for (int vector = 0; vector < Vectors<float>::kVectors; ++vector) {
          for (std::size_t i = 0; i < piece.count; ++i) {
            piece.set(vector, i, start.get(vector, first + i));
          }
        }
        for (std::uint64_t t = 1; t <= 5; ++t) piece.step(rule, t, 0.01, 0.7);
        for (int vector = 0; vector < Vectors<float>::kVectors; ++vector) {
          for (std::size_t i = 0; i < piece.count; ++i) {
            const T a = piece.get(vector, i), b = reference.get(vector, first + i);
            if (std::memcmp(&a, &b, sizeof(T)) != 0) {
              fail_msg("vector %d element %zu: %a is not %a", vector, first + i,
                       static_cast<double>(a), static_cast<double>(b));
            }
          }
        }
      }
    }
  }
  force_vector_level(best_vector_level());
}

void an_element_gets_the_same_bits_wherever_it_lies_and_at_every_level(void**) {
  for (const UpdateRule& rule : rules()) {
    check_places<float>(rule);
    check_places<double>(rule);
  }
}

// Parameters of 16 bits: what f32 gives for the number that each is, rounded once.
void check_narrow(trireme_dtype dtype, const UpdateRule& rule, std::size_t count) {
  const bool half = dtype == TRIREME_DTYPE_F16;
  Vectors<float> start(count, 0);
  std::vector<std::uint16_t> codes(count + 1, 0xa5a5);  // and a guard
  for (std::size_t i = 0; i < count; ++i) {
    for (int vector = 1; vector < Vectors<float>::kVectors; ++vector)
      start.set(vector, i, odd_value<float>());
    codes[i] = static_cast<std::uint16_t>(random_bits());
    start.set(0, i,
              static_cast<float>(half ? decode_small(codes[i], 5, 10, true)
                                      : decode_small(codes[i], 8, 7, true)));
  }
  for (const std::uint64_t t : {1, 2}) {
    Vectors<float> wide = start;
    force_vector_level(VectorLevel::scalar);
    wide.step(rule, t, 0.01, 0.7);
    std::vector<unsigned char> same;
    for (const VectorLevel level : levels()) {
      force_vector_level(level);
      for (const std::size_t shift : {0, 1}) {
        Vectors<float> narrow(count, shift);
        std::vector<unsigned char> memory(codes.size() * 2 + shift);
        std::memcpy(memory.data() + shift, codes.data(), codes.size() * 2);
        for (int vector = 1; vector < Vectors<float>::kVectors; ++vector) {
          for (std::size_t i = 0; i < count; ++i) narrow.set(vector, i, start.get(vector, i));
        }
        void* states[8] = {};
        for (int k = 0; k < state_count(rule); ++k) states[k] = narrow.memory[2 + k].data() + shift;
        update(rule, dtype, memory.data() + shift, narrow.memory[1].data() + shift, states, count,
               t, 0.01, 0.7);
        const std::vector<unsigned char> bits(memory.begin() + static_cast<int>(shift),
                                              memory.end());
        if (same.empty()) same = bits;
        assert_true(bits == same);
        for (std::size_t i = 0; i <= count; ++i) {
          std::uint16_t code = 0;
          std::memcpy(&code, memory.data() + shift + 2 * i, 2);
          if (i == count) {
            assert_int_equal(code, 0xa5a5);
            continue;
          }
          const float value = wide.get(0, i);
          const double got =
              half ? decode_small(code, 5, 10, true) : decode_small(code, 8, 7, true);
          assert_true(is_nearest(got, value, half ? 11 : 8, half ? -24 : -133, half ? 16 : 128));
          for (int vector = 2; vector < Vectors<float>::kVectors; ++vector) {
            const float a = narrow.get(vector, i), b = wide.get(vector, i);
            assert_memory_equal(&a, &b, sizeof a);
          }
        }
      }
    }
  }
  force_vector_level(best_vector_level());
}

void sixteen_bits_are_rounded_once(void**) {
  for (const UpdateRule& rule : rules()) {
    for (const std::size_t count : {0, 1, 7, 67, 1023, 1024, 1025, 2100}) {
      check_narrow(TRIREME_DTYPE_F16, rule, count);
      check_narrow(TRIREME_DTYPE_BF16, rule, count);
    }
  }
}

void the_first_momentum_step_ignores_what_the_state_held(void**) {
  for (const bool nesterov : {false, true}) {
    Vectors<double> vectors(40, 0);
    const UpdateRule rule = sgd(0.9, nesterov, 0);
    vectors.fill(rule, false);
    for (std::size_t i = 0; i < 40; ++i) vectors.set(2, i, std::nan(""));
    vectors.step(rule, 1, 0.5, 1);
    for (std::size_t i = 0; i < 40; ++i) assert_true(vectors.get(2, i) == vectors.get(1, i));
  }
}

// 0 * inf would be NaN: a rule without decay must not look at the parameter.
void without_decay_an_infinite_parameter_spoils_no_state(void**) {
  for (const UpdateRule& rule : rules()) {
    if (rule.weight_decay != 0) continue;
    Vectors<float> vectors(40, 0);
    vectors.fill(rule, true);
    for (std::size_t i = 0; i < 40; ++i) vectors.set(0, i, HUGE_VALF);
    vectors.step(rule, 1, 0.1, 1);
    for (std::size_t i = 0; i < 40; ++i) {
      assert_true(vectors.get(0, i) == HUGE_VALF);
      for (int state = 0; state < 3; ++state) {
        assert_true(std::isfinite(vectors.get(2 + state, i)));
      }
    }
  }
}

void a_zero_gradient_and_learning_rate_leave_the_parameter(void**) {
  for (const UpdateRule& rule : rules()) {
    Vectors<double> vectors(40, 0);
    vectors.fill(rule, true);
    const Vectors<double> before = vectors;
    vectors.step(rule, 1, 0, 1);
    for (std::size_t i = 0; i < 40; ++i) assert_true(vectors.get(0, i) == before.get(0, i));
  }
}

void a_rule_keeps_as_many_states_as_it_needs(void**) {
  assert_int_equal(state_count(sgd(0, false, 0.1)), 0);
  assert_int_equal(state_count(sgd(0.9, false, 0)), 1);
  assert_int_equal(state_count(sgd(0.9, true, 0)), 1);
  assert_int_equal(state_count(adam(TRIREME_RULE_ADAM, 0)), 2);
  assert_int_equal(state_count(adam(TRIREME_RULE_ADAMW, 0)), 2);
  assert_int_equal(state_count(adagrad(0)), 1);
  assert_int_equal(state_count(rmsprop(0, false, 0)), 1);
  assert_int_equal(state_count(rmsprop(0.9, false, 0)), 2);
  assert_int_equal(state_count(rmsprop(0, true, 0)), 2);
  assert_int_equal(state_count(rmsprop(0.9, true, 0)), 3);
  assert_int_equal(state_count(lion(0)), 1);
  assert_int_equal(state_count(adam(TRIREME_RULE_LAMB, 0)), 2);
  assert_int_equal(state_count(lars(0, 0.1)), 0);
  assert_int_equal(state_count(lars(0.9, 0)), 1);
}

// After thousands of the same gradient v - m * m is what rounding leaves of 0.
void a_spread_of_nothing_is_never_the_root_of_a_negative_number(void**) {
  for (const double momentum : {0.0, 0.9}) {
    Vectors<float> vectors(67, 0);
    const UpdateRule rule = rmsprop(momentum, true, 0);
    vectors.fill(rule, true);
    bool was_negative = false;
    for (std::uint64_t t = 1; t <= 3000; ++t) {
      vectors.step(rule, t, 1e-9, 1);
      for (std::size_t i = 0; i < 67; ++i) {
        assert_true(std::isfinite(vectors.get(0, i)));
        const float m = vectors.get(momentum != 0 ? 4 : 3, i);
        const float square = m * m;
        if (vectors.get(2, i) < square) was_negative = true;
      }
    }
    assert_true(was_negative);  // or nothing was tested
  }
}

void lion_steps_by_the_rate_alone_and_tells_of_a_nan(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    Vectors<float> vectors(40, 0);
    const UpdateRule rule = lion(0);
    vectors.fill(rule, true);
    const float gradients[] = {1e-30f, -1e30f, 0, -0.0f, HUGE_VALF, std::nanf("")};
    for (std::size_t i = 0; i < 40; ++i) {
      vectors.set(0, i, 1);
      vectors.set(1, i, gradients[i % 6]);
    }
    vectors.step(rule, 1, 0.25, 1);
    const float expected[] = {0.75f, 1.25f, 1, 1, 0.75f};
    for (std::size_t i = 0; i < 40; ++i) {
      if (i % 6 == 5) {
        assert_true(std::isnan(vectors.get(0, i)) && std::isnan(vectors.get(2, i)));
      } else {
        assert_true(vectors.get(0, i) == expected[i % 6]);
      }
    }
  }
  force_vector_level(best_vector_level());
}

// The direction of LAMB: that of ADAM without a rate, and the decay. Parameters stay as they are.
template <class T>
void check_direction(double decay, std::uint64_t t) {
  constexpr std::size_t kCount = 203;
  const UpdateRule rule = adam(TRIREME_RULE_LAMB, decay);
  Vectors<T> start(kCount, 0);
  start.fill(rule, t == 1);
  std::vector<T> first;
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const std::size_t shift : {0, 3}) {
      for (const std::size_t cut : {0, 1, 64, 200}) {
        Vectors<T> now(kCount, shift);
        for (int vector = 0; vector < 4; ++vector) {
          for (std::size_t i = 0; i < kCount; ++i) now.set(vector, i, start.get(vector, i));
        }
        for (const std::size_t begin : {std::size_t{0}, cut}) {  // in two pieces
          const std::size_t end = begin == cut ? kCount : cut;
          if (begin == 0 && cut == 0) continue;
          unsigned char* at[4];
          for (int k = 0; k < 4; ++k) at[k] = now.memory[k].data() + shift + begin * sizeof(T);
          void* const states[] = {at[2], at[3]};
          lamb_direction(rule, sizeof(T) == 4 ? TRIREME_DTYPE_F32 : TRIREME_DTYPE_F64, at[0], at[1],
                         states, end - begin, t, 0.25);
        }
        if (cut == 0) {
          void* const states[] = {now.memory[2].data() + shift, now.memory[3].data() + shift};
          lamb_direction(rule, sizeof(T) == 4 ? TRIREME_DTYPE_F32 : TRIREME_DTYPE_F64,
                         now.memory[0].data() + shift, now.memory[1].data() + shift, states, kCount,
                         t, 0.25);
        }
        std::vector<T> all;
        for (int vector = 1; vector < 4; ++vector) {
          for (std::size_t i = 0; i < kCount; ++i) all.push_back(now.get(vector, i));
        }
        for (std::size_t i = 0; i < kCount; ++i) assert_true(now.get(0, i) == start.get(0, i));
        for (const auto& one : now.memory) assert_int_equal(one.back(), Vectors<T>::kGuard);
        if (first.empty()) first = all;
        assert_memory_equal(all.data(), first.data(), all.size() * sizeof(T));
      }
    }
  }
  force_vector_level(best_vector_level());
  for (std::size_t i = 0; i < kCount; ++i) {
    const long double g = static_cast<long double>(start.get(1, i)) / 4;
    const long double b1 = rule.beta1, b2 = rule.beta2, steps = static_cast<long double>(t);
    const long double m = b1 * start.get(2, i) + (1 - b1) * g;
    const long double v = b2 * start.get(3, i) + (1 - b2) * g * g;
    const long double along =
        m / (1 - std::pow(b1, steps)) /
        (std::sqrt(v / (1 - std::pow(b2, steps))) + static_cast<long double>(rule.epsilon));
    const long double parameter = start.get(0, i);
    assert_near(first[kCount + i], m, std::fabs(m) + std::fabs(g), "m");
    assert_near(first[2 * kCount + i], v, v, "v");
    const long double reach =
        (std::fabs(b1 * start.get(2, i)) + std::fabs(g)) / (1 - std::pow(b1, steps)) / std::sqrt(v);
    assert_near(first[i], along + decay * parameter,
                (sizeof(T) == 8 ? 512 : 1) * reach + std::fabs(parameter), "direction");
  }
}

void lamb_goes_the_same_way_at_every_level(void**) {
  for (const double decay : {0.0, 0.1}) {
    for (const std::uint64_t t : {1, 2, 1000}) {
      check_direction<float>(decay, t);
      check_direction<double>(decay, t);
    }
  }
}

// For parameters of 16 bits it is the direction of what f32 makes of them.
void lamb_widens_what_is_narrow(void**) {
  constexpr std::size_t kCount = 2100;
  const UpdateRule rule = adam(TRIREME_RULE_LAMB, 0.1);
  for (const trireme_dtype dtype : {TRIREME_DTYPE_F16, TRIREME_DTYPE_BF16}) {
    const bool half = dtype == TRIREME_DTYPE_F16;
    Vectors<float> wide(kCount, 0);
    wide.fill(rule, false);
    std::vector<std::uint16_t> codes(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      codes[i] = static_cast<std::uint16_t>(random_bits() & 0xbbff);  // no inf, no NaN
      wide.set(0, i,
               static_cast<float>(half ? decode_small(codes[i], 5, 10, true)
                                       : decode_small(codes[i], 8, 7, true)));
    }
    Vectors<float> narrow = wide;
    const std::vector<std::uint16_t> before = codes;
    const auto states = [](Vectors<float>& of, int k) { return of.memory[2 + k].data(); };
    void* const wide_states[] = {states(wide, 0), states(wide, 1)};
    void* const narrow_states[] = {states(narrow, 0), states(narrow, 1)};
    lamb_direction(rule, TRIREME_DTYPE_F32, wide.memory[0].data(), wide.memory[1].data(),
                   wide_states, kCount, 2, 0.7);
    lamb_direction(rule, dtype, codes.data(), narrow.memory[1].data(), narrow_states, kCount, 2,
                   0.7);
    assert_true(codes == before);
    for (int vector = 1; vector < 4; ++vector) {
      assert_true(narrow.memory[vector] == wide.memory[vector]);
    }
  }
}

}  // namespace

// A number that is no kind has none.
void every_kind_has_a_row_in_the_table(void**) {
  int kinds = 0;
  for (trireme_rule_kind kind = 1; find_rule(kind) != nullptr; ++kind) {
    const RuleTraits& rule = rule_traits(kind);
    assert_int_equal(rule.kind, kind);
    assert_string_equal(rule_name(kind), rule.name);
    assert_true(rule.first_size >= sizeof(trireme_rule_options) && rule.first_size <= rule.size);
    for (const RuleNumber& number : rule.numbers) {
      RuleNumbers numbers;
      value_of(&numbers, number) = 0.5;
      assert_true(value_of(numbers, number) == 0.5);
      assert_true(number.from >= sizeof(trireme_rule_options) && number.from < rule.size);
    }
    for (trireme_rule_kind other = 1; other < kind; ++other) {
      assert_string_not_equal(rule_name(kind), rule_name(other));
    }
    ++kinds;
  }
  assert_true(kinds >= TRIREME_RULE_MUON);
  for (const trireme_rule_kind none : {0, -1, kinds + 1, INT32_MIN, INT32_MAX}) {
    assert_null(find_rule(none));
    assert_string_equal(rule_name(none), "unknown");
  }
}

// A rule that needs more than one element has no loop, and not that of another rule.
void a_rule_without_a_loop_takes_no_other_one(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const RuleLoops* all : loops().update) {
      const trireme_rule_kind without[] = {0, TRIREME_RULE_USER, TRIREME_RULE_LAMB,
                                           TRIREME_RULE_MUON};
      for (const trireme_rule_kind kind : without) {
        assert_true(all[kind].of[0][0] == nullptr && all[kind].of[0][1] == nullptr);
      }
      assert_true(all[TRIREME_RULE_LION].of[0][0] != all[TRIREME_RULE_SGD].of[0][0]);
    }
  }
  force_vector_level(best_vector_level());
}

// The same draws at every level and in every cut, also where the element's number passes 2^32, and
// each to a neighbour.
void chance_goes_by_the_number_of_the_element(void**) {
  constexpr std::uint64_t kCount = 3001, kFirst = (1ull << 32) - 1234;
  UpdateRule rule;
  rule.kind = TRIREME_RULE_SGD;
  std::vector<std::uint16_t> start(kCount), wanted;
  std::vector<float> gradients(kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    start[i] = static_cast<std::uint16_t>((i % 2 == 0 ? 0x3f80 : 0xbf80) + i % 300);
    gradients[i] = std::ldexp(static_cast<float>(i % 97) - 48.0f, -13);
  }
  gradients[7] = std::numeric_limits<float>::infinity();
  gradients[2900] = std::numeric_limits<float>::quiet_NaN();
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const std::uint64_t piece : {kCount, std::uint64_t{1000}, std::uint64_t{17}}) {
      std::vector<std::uint16_t> values = start;
      for (std::uint64_t first = 0; first < kCount; first += piece) {
        const RandomRounding random{0x0123456789abcdef, kFirst + first};
        update(rule, TRIREME_DTYPE_BF16, values.data() + first, gradients.data() + first, nullptr,
               std::min(piece, kCount - first), 1, 1, 1, &random);
      }
      if (wanted.empty()) wanted = values;
      assert_true(values == wanted);
    }
  }
  force_vector_level(best_vector_level());
  int towards = 0, away = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const auto wide = [](std::uint16_t bits) {
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    };
    const float exact = wide(start[i]) - gradients[i], got = wide(wanted[i]);
    if (std::isnan(exact)) {
      assert_int_equal(wanted[i], 0x7fc0);
    } else if (got != exact) {
      const auto inner = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(exact) >> 16);
      assert_true(wanted[i] == inner || wanted[i] == inner + 1);
      ++(wanted[i] == inner ? towards : away);
    }
  }
  assert_true(towards > 500 && away > 500);
}

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_rule_follows_its_formula),
      cmocka_unit_test(every_count_works_at_every_alignment),
      cmocka_unit_test(an_element_gets_the_same_bits_wherever_it_lies_and_at_every_level),
      cmocka_unit_test(sixteen_bits_are_rounded_once),
      cmocka_unit_test(the_first_momentum_step_ignores_what_the_state_held),
      cmocka_unit_test(without_decay_an_infinite_parameter_spoils_no_state),
      cmocka_unit_test(a_zero_gradient_and_learning_rate_leave_the_parameter),
      cmocka_unit_test(a_rule_keeps_as_many_states_as_it_needs),
      cmocka_unit_test(a_spread_of_nothing_is_never_the_root_of_a_negative_number),
      cmocka_unit_test(lamb_goes_the_same_way_at_every_level),
      cmocka_unit_test(lamb_widens_what_is_narrow),
      cmocka_unit_test(lion_steps_by_the_rate_alone_and_tells_of_a_nan),
      cmocka_unit_test(every_kind_has_a_row_in_the_table),
      cmocka_unit_test(a_rule_without_a_loop_takes_no_other_one),
      cmocka_unit_test(chance_goes_by_the_number_of_the_element),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
