// Random numbers have the published values of their generator and the same bits at every vector
// level, for parts of any shape.
#include <cstdint>
#include <cstring>
#include <vector>

#include "elements.hpp"
#include "kernels/random.hpp"
#include "kernels/vector.hpp"
#include "levels.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme::kernels;

constexpr trireme_dtype kTypes[] = {TRIREME_DTYPE_F16, TRIREME_DTYPE_BF16, TRIREME_DTYPE_F32,
                                    TRIREME_DTYPE_F64};

// Counter, key and result, as the authors of Philox publish them for philox4x32 with 10 rounds.
struct Answer {
  std::uint32_t counter[4], key[2], words[4];
};
constexpr Answer kAnswers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

std::uint64_t whole(const std::uint32_t* halves) {
  return halves[0] | std::uint64_t{halves[1]} << 32;
}

void words_are_the_published_ones(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const Answer& answer : kAnswers) {
      // In every lane: the block lies further and further from the first.
      for (std::uint64_t lane = 0; lane < 2 * kRandomBlocks; ++lane) {
        std::vector<std::uint32_t> words(2 * kRandomBlocks * 4 + 1, 7);
        loops().random_words(words.data(), whole(answer.key), whole(answer.counter + 2),
                             whole(answer.counter) - lane, 2 * kRandomBlocks);
        assert_memory_equal(words.data() + 4 * lane, answer.words, sizeof answer.words);
        assert_int_equal(words.back(), 7);
      }
    }
  }
  force_vector_level(best_vector_level());
}

// All rows, or a part with gaps between its rows; lengths around the steps of the loops.
constexpr RandomPart kParts[] = {
    {5, 6, 0, 1, 0, 1, 1},
    {5, 6, 0, 1, 3, 2051, 4000},
    {0x0123456789abcdef, 0xfedcba9876543210, 3, 5, 0, 1027, 1027},
    {7, 0, 11, 9, 1, 129, 131},
    {7, 0, 11, 40, 130, 1, 131},
    {1, 1, 0, 1, (std::uint64_t{1} << 34) - 77, 400, std::uint64_t{1} << 35},
    {1, 1, UINT64_MAX / 5 - 600, 600, 0, 5, 5},
    {1, 2, 0, 3, 0, 0, 9},
    {1, 2, UINT64_MAX, UINT64_MAX, 0, 0, 0},
};

void every_level_has_the_same_bits(void**) {
  for (const trireme_dtype dtype : kTypes) {
    for (const RandomPart& part : kParts) {
      const std::uint64_t count = part.columns == 0 ? 0 : part.rows * part.columns;
      force_vector_level(VectorLevel::scalar);
      Elements expected(dtype, count), dropped(dtype, count);
      random_uniform(dtype, part, expected.data());
      random_dropout(dtype, part, 0.375, expected.data(), dropped.data());
      for (const VectorLevel level : levels()) {
        force_vector_level(level);
        // One byte off a multiple of the size.
        std::vector<std::byte> bytes((count + 1) * dtype_size(dtype) + 1, std::byte{9});
        random_uniform(dtype, part, bytes.data() + 1);
        assert_memory_equal(bytes.data() + 1, expected.data(), count * dtype_size(dtype));
        random_dropout(dtype, part, 0.375, bytes.data() + 1, bytes.data() + 1);
        assert_memory_equal(bytes.data() + 1, dropped.data(), count * dtype_size(dtype));
        for (std::size_t i = count * dtype_size(dtype) + 1; i < bytes.size(); ++i) {
          assert_int_equal(bytes[i], 9);
        }
        assert_int_equal(bytes[0], 9);
      }
      assert_true(expected.guard_is_whole() && dropped.guard_is_whole());
    }
  }
  force_vector_level(best_vector_level());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(words_are_the_published_ones),
                              cmocka_unit_test(every_level_has_the_same_bits)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
