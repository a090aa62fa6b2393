#include "text.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "numbers.hpp"

namespace gpt {

Text encode(const std::string& bytes) {
  std::array<bool, 256> occurs{};
  for (const char c : bytes) occurs[static_cast<unsigned char>(c)] = true;
  std::array<std::int32_t, 256> place{};
  Text text;
  for (int c = 0; c < 256; ++c) {
    if (!occurs[static_cast<std::size_t>(c)]) continue;
    place[static_cast<std::size_t>(c)] = static_cast<std::int32_t>(text.alphabet.size());
    text.alphabet += static_cast<char>(c);
  }
  text.tokens.reserve(bytes.size());
  for (const char c : bytes) text.tokens.push_back(place[static_cast<unsigned char>(c)]);
  return text;
}

std::string decode(const Text& text, const std::vector<std::int32_t>& tokens) {
  std::string bytes;
  for (const std::int32_t token : tokens) bytes += text.alphabet[static_cast<std::size_t>(token)];
  return bytes;
}

double unigram_entropy(const Text& text) {
  std::vector<double> counts(text.alphabet.size());
  for (const std::int32_t token : text.tokens) ++counts[static_cast<std::size_t>(token)];
  double sum = 0;
  for (const double count : counts)
    sum -= count * std::log(count / static_cast<double>(text.tokens.size()));
  return sum / static_cast<double>(text.tokens.size());
}

Sampler::Sampler(const std::vector<std::int32_t>& tokens, std::int64_t first, std::int64_t end,
                 int context, std::uint64_t seed)
    : tokens_(tokens), first_(first), end_(end), context_(context), seed_(seed) {
  if (end - first <= context) throw std::runtime_error("the text is shorter than the context");
}

void Sampler::leaf(int step, int leaf, int sequences, std::int32_t* inputs,
                   std::int32_t* targets) const {
  const std::uint64_t key =
      stream(stream(seed_, static_cast<std::uint64_t>(step)), static_cast<std::uint64_t>(leaf));
  const auto starts = static_cast<std::uint64_t>(end_ - first_ - context_);
  for (int i = 0; i < sequences; ++i, inputs += context_, targets += context_) {
    const std::uint64_t start = stream(key, static_cast<std::uint64_t>(i)) % starts;
    copy(first_ + static_cast<std::int64_t>(start), inputs, targets);
  }
}

int Sampler::stretches() const { return static_cast<int>((end_ - first_ - 1) / context_); }

void Sampler::stretch(int number, std::int32_t* inputs, std::int32_t* targets) const {
  copy(first_ + std::int64_t{number} * context_, inputs, targets);
}

void Sampler::copy(std::int64_t from, std::int32_t* inputs, std::int32_t* targets) const {
  std::copy_n(tokens_.begin() + from, context_, inputs);
  std::copy_n(tokens_.begin() + from + 1, context_, targets);
}

}  // namespace gpt
