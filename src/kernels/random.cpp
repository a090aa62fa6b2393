#include "kernels/random.hpp"

#include <algorithm>

#include "kernels/vector.hpp"
#include "platform/names.hpp"

namespace trireme::kernels {
namespace {

// Words that stay in the first cache, with room for the blocks that stick out on both sides.
constexpr std::uint64_t kElements = 1024;
constexpr std::uint64_t kWords = kElements + 2 * 4 * kRandomBlocks;

enum Purpose : std::uint64_t { kUniform, kUniformRest, kDropout };

struct Words {
  alignas(64) std::uint32_t memory[kWords];

  // The words of `count` elements from number `first` on.
  const std::uint32_t* draw(const RandomPart& part, Purpose purpose, std::uint64_t first,
                            std::uint64_t count) {
    const std::uint64_t block = first / 4, skipped = first % 4;
    const std::uint64_t blocks = (skipped + count + 3) / 4;
    loops().random_words(memory, part.seed, part.draw, purpose << 62 | block,
                         (blocks + kRandomBlocks - 1) / kRandomBlocks * kRandomBlocks);
    return memory + skipped;
  }
};

// Calls body(number of the first element, its place in the part, elements) for pieces whose
// elements have consecutive numbers.
template <class Body>
void each_piece(const RandomPart& part, Body body) {
  if (part.columns == 0) return;
  // Rows that are whole follow each other.
  const bool whole = part.columns == part.all_columns;
  const std::uint64_t rows = whole ? std::min<std::uint64_t>(part.rows, 1) : part.rows;
  const std::uint64_t columns = whole ? part.rows * part.columns : part.columns;
  for (std::uint64_t row = 0; row < rows; ++row) {
    const std::uint64_t number = (part.first_row + row) * part.all_columns + part.first_column;
    for (std::uint64_t at = 0, here = 0; at < columns; at += here) {
      here = std::min(kElements, columns - at);
      body(number + at, row * columns + at, here);
    }
  }
}

}  // namespace

void random_uniform(trireme_dtype dtype, const RandomPart& part, void* data) {
  const std::uint64_t size = dtype_size(dtype);
  const UniformLoop loop = loops().uniform[dtype];
  Words words, rest;
  each_piece(part, [&](std::uint64_t number, std::uint64_t place, std::uint64_t count) {
    const std::uint32_t* const first = words.draw(part, kUniform, number, count);
    const std::uint32_t* second = nullptr;
    if (dtype == TRIREME_DTYPE_F64) second = rest.draw(part, kUniformRest, number, count);
    loop(static_cast<char*>(data) + place * size, first, second, count);
  });
}

void random_dropout(trireme_dtype dtype, const RandomPart& part, double rate, const void* source,
                    void* destination) {
  const std::uint64_t size = dtype_size(dtype);
  const DropoutLoop loop = loops().dropout[dtype];
  const auto limit = static_cast<std::uint32_t>(rate * 0x1p32);
  // By the probability that the limit gives, which is below `rate` by up to 2^-32.
  const double factor = 0x1p32 / (0x1p32 - limit);
  Words words;
  each_piece(part, [&](std::uint64_t number, std::uint64_t place, std::uint64_t count) {
    loop(static_cast<char*>(destination) + place * size,
         static_cast<const char*>(source) + place * size, words.draw(part, kDropout, number, count),
         count, limit, factor);
  });
}

}  // namespace trireme::kernels
