#include "model/strategy.hpp"

#include <string.h>

#include <string>

#include "sharding/strategy.hpp"

namespace trireme::strategies {
namespace {

struct Synonym {
  const char* text;
  trireme_strategy strategy;
};
constexpr Synonym kSynonyms[] = {
    {"ddp", TRIREME_STRATEGY_DATA_PARALLEL},   {"no_shard", TRIREME_STRATEGY_DATA_PARALLEL},
    {"shard_grad_op", TRIREME_STRATEGY_ZERO2}, {"fsdp", TRIREME_STRATEGY_ZERO3},
    {"full_shard", TRIREME_STRATEGY_ZERO3},    {"hsdp", TRIREME_STRATEGY_HYBRID_SHARD}};

// "FullShard", "FULL_SHARD" and "full-shard" are one name: case and separators do not matter.
bool same_name(const char* a, const char* b) noexcept {
  const auto next = [](const char** at) {
    while (**at == '_' || **at == '-') ++*at;
    const char letter = **at;
    if (letter != '\0') ++*at;
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  };
  for (;;) {
    const char letter = next(&a);
    if (letter != next(&b)) return false;
    if (letter == '\0') return true;
  }
}

}  // namespace

const char* strategy_name(trireme_strategy strategy) noexcept {
  return sharding::traits_of(strategy).name;
}

Status parse_strategy(const char* text, trireme_strategy* out) {
  for (trireme_strategy strategy = 1; sharding::is_strategy(strategy); ++strategy) {
    if (same_name(text, strategy_name(strategy))) {
      *out = strategy;
      return Status::success();
    }
  }
  for (const Synonym& synonym : kSynonyms) {
    if (same_name(text, synonym.text)) {
      *out = synonym.strategy;
      return Status::success();
    }
  }
  return invalid_argument("no strategy is called \"" + std::string(text, strnlen(text, 64)) +
                          "\"; data_parallel, zero1, zero2, zero3 and hybrid_shard are strategies");
}

}  // namespace trireme::strategies
