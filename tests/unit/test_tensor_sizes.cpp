// Arrays of more than 2^31 elements: how large parts and messages are, and where parts lie. Memory
// that is not touched is not there.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "parallel/tensor/split.hpp"
#include "parallel/tensor/tree_sum.hpp"
#include "sharding/blocks.hpp"

// cmocka's names are macros that the standard library must not see.
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// cmocka.h comes after those it needs.
#include <cmocka.h>
}

namespace {

using namespace trireme;
using parallel::Array;
using parallel::Split;
using parallel::TreeSum;

constexpr std::uint64_t kTwo30 = 1ull << 30;

std::vector<sharding::Range> ranges_of(std::uint64_t extent, std::uint32_t ranks) {
  std::vector<sharding::Range> ranges;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    ranges.push_back(sharding::range_of_rank(extent, ranks, ranks, r));
  }
  return ranges;
}

void parts_are_counted_beyond_31_bits(void**) {
  const Array whole{3, 5 * kTwo30 + 1, 2};
  const Split columns(whole, false, ranges_of(whole.columns, 2));
  assert_true(columns.count(0) == 3 * (whole.columns / 2));
  assert_true(columns.count(1) == 3 * (whole.columns / 2 + 1));
  assert_true(columns.before(1) == columns.count(0));
  const Array tall{5 * kTwo30 + 1, 3, 2};
  const Split rows(tall, true, ranges_of(tall.rows, 2));
  assert_true(rows.count(0) == 3 * (tall.rows / 2) && rows.before(1) == rows.count(0));
  assert_true(rows.count(1) == 3 * (tall.rows / 2 + 1));
}

// Elements of two bytes, 2^30 columns: row 2 begins 2^32 bytes behind row 0.
void columns_are_found_beyond_32_bits(void**) {
  const Array whole{3, kTwo30, 2};
  const Split split(whole, false, {{0, kTwo30 - 3}, {kTwo30 - 3, 3}});
  const std::size_t bytes = whole.count() * whole.size;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) abort();
  auto* const elements = static_cast<std::uint16_t*>(memory);
  std::uint16_t part[9];
  for (std::uint16_t i = 0; i < 9; ++i) part[i] = static_cast<std::uint16_t>(100 + i);
  split.put_columns(1, memory, part);
  for (std::uint64_t row = 0; row < 3; ++row) {
    for (std::uint64_t k = 0; k < 3; ++k) {
      assert_int_equal(elements[row * kTwo30 + kTwo30 - 3 + k], 100 + row * 3 + k);
    }
    assert_int_equal(elements[row * kTwo30 + kTwo30 - 4], 0);
  }
  std::uint16_t back[9] = {};
  split.take(1, memory, back);
  assert_memory_equal(back, part, sizeof part);
  // The last row alone, to its place in the part.
  std::uint16_t last[9] = {};
  split.take_columns(1, elements + 2 * kTwo30, {2, 1}, last);
  for (int i = 0; i < 9; ++i) assert_int_equal(last[i], i < 6 ? 0 : part[i]);
  munmap(memory, bytes);
}

// 8 summands on 3 ranks: they have 1, 2 and 2 nodes, and those of the last one begin with a
// summand alone. So there are two rounds, and each rank keeps its piece of all 5 nodes.
void sums_are_measured_beyond_31_bits(void**) {
  const std::uint64_t nodes[] = {1, 2, 2};
  const Array whole{3, 5 * kTwo30, 1};
  const Split columns(whole, false, ranges_of(whole.columns, 3));
  const Array tall{5 * kTwo30, 3, 1};
  const Split rows(tall, true, ranges_of(tall.rows, 3));
  const std::uint64_t all = 15 * kTwo30;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const TreeSum sum(TRIREME_DTYPE_U8, 3, 8, rank);
    const std::uint64_t own = columns.count(rank);
    assert_true(sum.given_bytes(columns) == nodes[rank] * (all - own));
    // All nodes are made, a row at once. Then they lie in columns of each rank.
    assert_true(sum.scratch_bytes(columns) == nodes[rank] * all + 5 * kTwo30 + 5 * own);
    const std::uint64_t part = rows.count(rank);
    assert_true(sum.given_bytes(rows) == nodes[rank] * (all - part));
    // A summand alone travels from where the caller has it.
    const std::uint64_t made = rank == 0 ? 1 : nodes[rank] - 1;
    assert_true(sum.scratch_bytes(rows) == made * all + 5 * part);
    // Sums of 16 bits travel in 32.
    const TreeSum narrow(TRIREME_DTYPE_BF16, 3, 8, rank);
    assert_true(narrow.given_bytes(rows) == 4 * nodes[rank] * (all - part));
    assert_true(narrow.scratch_bytes(rows) == 4 * (nodes[rank] * all + 5 * part));
    const TreeSum single(TRIREME_DTYPE_BF16, 3, 3, rank);
    assert_true(single.given_bytes(rows) == 2 * (all - part) && single.scratch_bytes(rows) == 0);
  }
}

}  // namespace

int main() {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parts_are_counted_beyond_31_bits),
      cmocka_unit_test(columns_are_found_beyond_32_bits),
      cmocka_unit_test(sums_are_measured_beyond_31_bits),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
