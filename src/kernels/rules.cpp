#include "kernels/rules.hpp"

#include <cmath>
#include <iterator>

#include "kernels/elements/anywhere.hpp"

namespace trireme::kernels {
namespace {

#include "kernels/rules.inc"

// 0, where the struct has no such field.
template <class Options>
constexpr std::uint32_t place_of_flags() {
  if constexpr (requires(Options options) { options.flags; }) return offsetof(Options, flags);
  return 0;
}
template <class Options>
constexpr std::uint32_t place_of_reserved() {
  if constexpr (requires(Options options) { options.reserved; }) return offsetof(Options, reserved);
  return 0;
}

constexpr bool have_places_of_their_own(std::span<const RuleNumber> numbers) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (numbers[i].to == numbers[j].to || numbers[i].from == numbers[j].from) return false;
    }
  }
  return true;
}

template <class Rule>
int count_states(const UpdateRule& rule) {
  return Rule::states(Rule::variant(rule, 2));
}

template <class Rule>
constexpr RuleTraits row(trireme_rule_kind kind, const char* name, const char* init) {
  using Options = typename Rule::Options;
  constexpr std::uint32_t kFlags = place_of_flags<Options>();
  constexpr std::uint32_t kReserved = place_of_reserved<Options>();
  static_assert(sizeof(trireme_rule_options) + (kFlags != 0 ? sizeof(std::uint32_t) : 0) +
                        (kReserved != 0 ? sizeof(std::uint32_t) : 0) +
                        std::size(Rule::kNumbers) * sizeof(double) + Rule::kOtherBytes ==
                    sizeof(Options),
                "a field of the options is read by nobody");
  static_assert(Rule::kFirstSize <= sizeof(Options) && sizeof(Options) <= kMostOptionBytes);
  static_assert((kFlags != 0) == (std::size(Rule::kFlags) > 0));
  static_assert(have_places_of_their_own(Rule::kNumbers));
  RuleTraits traits;
  traits.kind = kind;
  traits.name = name;
  traits.family = Rule::kFamily;
  traits.options = Rule::kOptions;
  traits.init = Rule::kInit != nullptr ? Rule::kInit : init;
  traits.first_size = Rule::kFirstSize;
  traits.size = sizeof(Options);
  traits.flags_at = kFlags;
  traits.reserved_at = kReserved;
  traits.numbers = Rule::kNumbers;
  traits.flags = Rule::kFlags;
  traits.learning_rate = Rule::kLearningRate;
  traits.weight_decay = Rule::kWeightDecay;
  traits.refuse = Rule::refuse;
  traits.variant = Rule::variant;
  traits.prepare = Rule::prepare;
  traits.states = count_states<Rule>;
  return traits;
}

// By number; 0 is none.
#define TRIREME_ROW(KIND, name, Rule) \
  row<Rule>(TRIREME_RULE_##KIND, #name, "TRIREME_" #KIND "_OPTIONS_INIT"),
constexpr RuleTraits kRules[] = {{}, TRIREME_UPDATE_RULES(TRIREME_ROW)};
#undef TRIREME_ROW

constexpr bool lie_by_number() {
  for (std::size_t i = 0; i < std::size(kRules); ++i) {
    if (kRules[i].kind != static_cast<trireme_rule_kind>(i)) return false;
  }
  return true;
}
static_assert(lie_by_number());

}  // namespace

double power(double base, std::uint64_t exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}

const RuleTraits* find_rule(trireme_rule_kind kind) noexcept {
  return kind > 0 && kind < static_cast<trireme_rule_kind>(std::size(kRules)) ? &kRules[kind]
                                                                              : nullptr;
}

const RuleTraits& rule_traits(trireme_rule_kind kind) noexcept { return kRules[kind]; }

const char* rule_name(trireme_rule_kind kind) noexcept {
  const RuleTraits* const rule = find_rule(kind);
  return (rule != nullptr ? *rule : kRules[0]).name;
}

}  // namespace trireme::kernels
