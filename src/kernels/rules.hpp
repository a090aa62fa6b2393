// Update rules: their numbers, and the table with a row for each. A rule is a file rule_*.inc of
// this folder and a line in rules.inc. Formulas: trireme/optimizer.h.
#pragma once

#include <trireme/rules.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace trireme::kernels {

constexpr int kOwnNumbers = 4;
constexpr int kMostKeptStates = 3;  // of a rule of the library
constexpr int kMostVariants = 5;    // of its loop
constexpr std::size_t kMostOptionBytes = 64;

struct RuleNumbers {
  double momentum = 0, beta1 = 0, beta2 = 0, epsilon = 0;
  double own[kOwnNumbers] = {};  // those that have no name here, in an order of the rule's own
  // Of rules that go as far for a whole parameter as its norm says. Loops do not see them.
  double trust_coefficient = 0, max_trust = 0;
  double beta2_decay = 0, max_update_rms = 0, min_parameter_rms = 0;
};

struct UpdateRule : RuleNumbers {
  trireme_rule_kind kind = 0;
  std::uint32_t flags = 0;  // TRIREME_*_FLAG_* of the rule
  double weight_decay = 0;
  double step_size = 0;  // ADAFACTOR: multiplies its direction
};

// The numbers of one step in f64; a loop rounds them to its own type.
struct UpdateFactors {
  const UpdateRule& rule;
  double gradient_scale, learning_rate;
  double step_size = 0, inverse_root2 = 0;  // as prepare() of the rule says
};

// base^exponent by squaring: the same bits with every C library.
double power(double base, std::uint64_t exponent);

// ---- what a rule says of itself ----

// 0 is allowed besides: it means the default.
enum class Range { from_zero, from_zero_below_one, open_unit, above_zero, below_zero };

// A number of the options: its name there, its place in their struct and in RuleNumbers, and what 0
// stands for.
struct RuleNumber {
  const char* name;
  std::size_t from, to;
  Range range;
  double fallback;
};

struct RuleFlag {
  std::uint32_t bit;
  const char* name;
  bool in_state = false;  // whether the same number of state vectors means something else with it
};

// The class in optimizer/rules that runs it.
enum class RuleFamily { elementwise, user, lamb_lars, adafactor, muon };

template <class Field>
constexpr RuleNumber number(const char* name, std::size_t from, std::size_t to, Range range,
                            double fallback) {
  static_assert(std::is_same_v<Field, double>);
  return {name, from, to, range, fallback};
}

// The struct of a rule's options, and its size in the release that introduced it.
#define TRIREME_RULE_OPTIONS(type, size)         \
  using Options = type;                          \
  static constexpr const char* kOptions = #type; \
  static constexpr std::uint32_t kFirstSize = size;

// A field of Options, and where in RuleNumbers it goes.
#define TRIREME_NUMBER(field, place, range, fallback)                                              \
  number<decltype(Options::field)>(#field, offsetof(Options, field), offsetof(RuleNumbers, place), \
                                   Range::range, fallback)

// The defaults of a rule. A rule derives from it and adds the rest:
// - TRIREME_RULE_OPTIONS, kNumbers and kFlags.
// - states(variant): how many vectors of state its loop reads and writes.
// - step<T, kVariant>(f, p, g, s): from an element p, its gradient and the state s to the next p
//   and s. The operations and their order are those of the formula, from left to right.
struct AnyRule {
  static constexpr RuleFamily kFamily = RuleFamily::elementwise;
  static constexpr std::span<const RuleNumber> kNumbers = {};
  static constexpr std::span<const RuleFlag> kFlags = {};
  static constexpr double kLearningRate = 0.001;  // what 0 stands for
  static constexpr bool kWeightDecay = true;      // whether it knows one
  static constexpr bool kDecoupled = false;       // p decays by itself, not by its gradient
  static constexpr bool kHasLoop = true;          // whether it has step()
  static constexpr std::size_t kOtherBytes = 0;   // of fields that src/api reads by name
  static constexpr const char* kInit = nullptr;   // its INIT macro, if that has another name

  // The loop is compiled once for each variant, 0 to kVariants - 1.
  static constexpr int kVariants = 1;
  static int variant(const UpdateRule&, std::uint64_t) { return 0; }
  // Computes numbers once for many elements. Steps count from 1.
  static void prepare(UpdateFactors*, std::uint64_t) {}
  // Why these options make no sense together; null if they do.
  static const char* refuse(const UpdateRule&) { return nullptr; }
};

// ---- the table ----

struct RuleTraits {
  trireme_rule_kind kind = 0;
  const char* name = "unknown";
  RuleFamily family = RuleFamily::elementwise;
  // Of its options. `flags_at` and `reserved_at` are 0 where there are no such fields.
  const char* options = nullptr;
  const char* init = nullptr;
  std::uint32_t first_size = 0, size = 0, flags_at = 0, reserved_at = 0;
  std::span<const RuleNumber> numbers = {};
  std::span<const RuleFlag> flags = {};
  double learning_rate = 0;
  bool weight_decay = false;
  const char* (*refuse)(const UpdateRule& rule) = nullptr;
  // Of a step.
  int (*variant)(const UpdateRule& rule, std::uint64_t step) = nullptr;
  void (*prepare)(UpdateFactors* factors, std::uint64_t step) = nullptr;
  int (*states)(const UpdateRule& rule) = nullptr;
};

// Null: there is no such rule.
const RuleTraits* find_rule(trireme_rule_kind kind) noexcept;
// Of a kind that there is.
const RuleTraits& rule_traits(trireme_rule_kind kind) noexcept;
const char* rule_name(trireme_rule_kind kind) noexcept;  // or "unknown"

// The place of one of its numbers.
inline double& value_of(RuleNumbers* numbers, const RuleNumber& number) {
  return *reinterpret_cast<double*>(reinterpret_cast<char*>(numbers) + number.to);
}
inline double value_of(const RuleNumbers& numbers, const RuleNumber& number) {
  return *reinterpret_cast<const double*>(reinterpret_cast<const char*>(&numbers) + number.to);
}

}  // namespace trireme::kernels
