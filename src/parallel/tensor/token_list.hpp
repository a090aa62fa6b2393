// TokenList: the tokens or targets of the rows of one pass, checked and in order.
#pragma once

#include <trireme/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "platform/status.hpp"

namespace trireme::parallel {

// Numbers of the caller: i32 or i64, at any address.
struct TokenArray {
  const char* name = "";  // for messages
  const void* data = nullptr;
  trireme_dtype dtype = 0;
  std::uint64_t count = 0;

  std::uint64_t bytes() const;
};

// One thread at a time.
class TokenList {
 public:
  TokenList(std::uint64_t classes, std::uint64_t most) : classes_(classes), values_(most) {}

  // Copies the tokens. Each is below `classes`, or the ignored one.
  Status read(const TokenArray& tokens, std::optional<std::int64_t> ignored);

  std::uint64_t count() const { return count_; }
  bool is_ignored(std::uint64_t row) const { return values_[row] == kIgnored; }
  std::uint64_t operator[](std::uint64_t row) const { return values_[row]; }
  std::uint64_t hash() const;
  std::uint64_t memory_bytes() const { return values_.size() * sizeof(std::uint64_t); }

 private:
  static constexpr std::uint64_t kIgnored = ~std::uint64_t{0};

  const std::uint64_t classes_;
  std::vector<std::uint64_t> values_;
  std::uint64_t count_ = 0;
};

}  // namespace trireme::parallel
