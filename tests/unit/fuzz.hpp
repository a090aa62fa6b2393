// The common parts of the fuzzing tests: draws that a seed repeats, and changes to bytes that were
// valid.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "platform/mix.hpp"

namespace fuzz {

struct Random {
  std::uint64_t seed;
  std::uint64_t number = 0;
  std::uint64_t next() { return trireme::mix(seed, number++); }
  std::size_t below(std::size_t end) { return next() % end; }
  bool one_in(std::size_t times) { return below(times) == 0; }
};

// TRIREME_FUZZ_SEED repeats a run that a test has printed.
inline std::uint64_t seed() {
  static const std::uint64_t chosen = [] {
    const char* const text = std::getenv("TRIREME_FUZZ_SEED");
    const std::uint64_t value = text == nullptr ? 20240229 : std::strtoull(text, nullptr, 0);
    std::printf("TRIREME_FUZZ_SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return chosen;
}

// Sanitizers do a part, the long run a hundred times as many.
inline std::uint64_t trials(std::uint64_t usual) {
  if (std::getenv("TRIREME_TEST_LONG") != nullptr) return usual * 100;
  return std::getenv("TRIREME_TEST_QUICK") != nullptr ? std::max<std::uint64_t>(usual / 10, 1)
                                                      : usual;
}

inline std::string noise(Random& random, std::size_t most) {
  std::string out(random.below(most + 1), '\0');
  for (char& each : out) each = static_cast<char>(random.next());
  return out;
}

// The number itself, a neighbour, a typical bound, or any number: numbers that parsers trip over.
inline std::uint64_t evil(Random& random, std::uint64_t before) {
  switch (random.below(8)) {
    case 0: return 0;
    case 1: return before + 1;
    case 2: return before - 1;
    case 3: return ~std::uint64_t{0};
    case 4: return std::uint64_t{1} << random.below(64);
    case 5: return random.below(300);
    case 6: return before + (std::uint64_t{1} << random.below(40));
    default: return random.next();
  }
}

// One change, which may leave the bytes as they were.
inline void change(Random& random, std::string* bytes) {
  const std::size_t size = bytes->size();
  const std::size_t at = size == 0 ? 0 : random.below(size);
  const std::size_t some = std::min(size - at, std::size_t{1} + random.below(9));
  switch (random.below(9)) {
    case 0: bytes->resize(at); return;
    case 1: bytes->erase(at, some); return;
    case 2: bytes->insert(at, noise(random, 12)); return;
    case 3: bytes->insert(at, bytes->substr(at, some)); return;  // a part twice
    case 4: bytes->append(noise(random, 200)); return;
    case 5: {  // a number of 4 or 8 bytes, at a place where one may be
      const std::size_t width = random.one_in(2) ? 4 : 8;
      if (size < width) return;
      const std::size_t place = random.below(size - width + 1) / 4 * 4;
      std::uint64_t value = 0;
      for (std::size_t i = 0; i < width; ++i) {
        value |= std::uint64_t{static_cast<unsigned char>((*bytes)[place + i])} << 8 * i;
      }
      value = evil(random, value);
      for (std::size_t i = 0; i < width; ++i) {
        (*bytes)[place + i] = static_cast<char>(value >> 8 * i);
      }
      return;
    }
    case 6:
      if (size > 0) (*bytes)[at] = static_cast<char>(random.next());
      return;
    default:
      if (size > 0) (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << random.below(8)));
      return;
  }
}

inline std::string changed(Random& random, std::string bytes) {
  for (std::size_t i = 0; i <= random.below(4); ++i) change(random, &bytes);
  return bytes;
}

}  // namespace fuzz
