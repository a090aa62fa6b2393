// A text as numbers, and which stretches of it make a micro-batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpt {

struct Text {
  std::string alphabet;              // every byte that occurs, in rising order
  std::vector<std::int32_t> tokens;  // places in the alphabet
};

Text encode(const std::string& bytes);
std::string decode(const Text& text, const std::vector<std::int32_t>& tokens);

// Nats a character of a guess that knows only how often each occurs. A model must beat it.
double unigram_entropy(const Text& text);

// Whoever computes a leaf of a step asks for it by these two numbers and gets the same.
class Sampler {
 public:
  // Stretches begin in [first, end - context).
  Sampler(const std::vector<std::int32_t>& tokens, std::int64_t first, std::int64_t end,
          int context, std::uint64_t seed);
  void leaf(int step, int leaf, int sequences, std::int32_t* inputs, std::int32_t* targets) const;
  // Stretch by stretch in the order of the text, for a measure on text that was not trained on.
  int stretches() const;
  void stretch(int number, std::int32_t* inputs, std::int32_t* targets) const;

 private:
  void copy(std::int64_t from, std::int32_t* inputs, std::int32_t* targets) const;
  const std::vector<std::int32_t>& tokens_;
  const std::int64_t first_, end_;
  const int context_;
  const std::uint64_t seed_;
};

}  // namespace gpt
