#include "parallel/tensor/token_list.hpp"

#include <cstring>
#include <string>

#include "kernels/hash.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {
namespace {

std::int64_t token_at(const TokenArray& tokens, std::uint64_t row) {
  const auto* const bytes = static_cast<const unsigned char*>(tokens.data);
  if (tokens.dtype == TRIREME_DTYPE_I64) {
    std::int64_t token = 0;
    std::memcpy(&token, bytes + row * sizeof token, sizeof token);
    return token;
  }
  std::int32_t token = 0;
  std::memcpy(&token, bytes + row * sizeof token, sizeof token);
  return token;
}

}  // namespace

std::uint64_t TokenArray::bytes() const { return count * dtype_size(dtype); }

Status TokenList::read(const TokenArray& tokens, std::optional<std::int64_t> ignored) {
  const std::string name = tokens.name;
  if (tokens.dtype != TRIREME_DTYPE_I32 && tokens.dtype != TRIREME_DTYPE_I64) {
    return unsupported("the dtype of " + name + " is " + std::to_string(tokens.dtype) +
                       ", must be TRIREME_DTYPE_I32 or TRIREME_DTYPE_I64");
  }
  if (tokens.count > values_.size()) {
    return invalid_argument("rows is " + std::to_string(tokens.count) +
                            ", above options.rows of the vocabulary, " +
                            std::to_string(values_.size()));
  }
  if (tokens.data == nullptr && tokens.count > 0) {
    return invalid_argument(name + " is NULL but holds " + std::to_string(tokens.count) +
                            " numbers");
  }
  for (std::uint64_t row = 0; row < tokens.count; ++row) {
    const std::int64_t token = token_at(tokens, row);
    if (ignored && token == *ignored) {
      values_[row] = kIgnored;
    } else if (token >= 0 && static_cast<std::uint64_t>(token) < classes_) {
      values_[row] = static_cast<std::uint64_t>(token);
    } else {
      return invalid_argument(name + "[" + std::to_string(row) + "] is " + std::to_string(token) +
                              ", not a class: the vocabulary has the classes 0 to " +
                              std::to_string(classes_ - 1));
    }
  }
  count_ = tokens.count;
  return Status::success();
}

std::uint64_t TokenList::hash() const {
  return kernels::hash(values_.data(), count_ * sizeof(std::uint64_t), 0);
}

}  // namespace trireme::parallel
