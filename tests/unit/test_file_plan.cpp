// Where parameters lie in a rank's file, against counting element by element.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "platform/names.hpp"
#include "sharding/file_plan.hpp"
#include "sharding/layout.hpp"
#include "sharding/plan.hpp"
#include "sharding/registry.hpp"

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
using namespace trireme::sharding;

void add(Registry* registry, const char* name, std::uint64_t elements, trireme_dtype dtype) {
  trireme_parameter_options options = TRIREME_PARAMETER_OPTIONS_INIT;
  options.name = name;
  options.dtype = dtype;
  options.dimensions = 1;
  options.shape = &elements;
  std::uint64_t number = 0;
  assert_true(registry->add(options, &number).ok());
}

void fill(Registry* registry) {
  add(registry, "large", 700001, TRIREME_DTYPE_F32);
  add(registry, "nothing", 0, TRIREME_DTYPE_F32);
  add(registry, "few", 3, TRIREME_DTYPE_F64);
  add(registry, "narrow", 9001, TRIREME_DTYPE_BF16);
  add(registry, "small", 50, TRIREME_DTYPE_F32);  // stays whole
  add(registry, "wide", 5003, TRIREME_DTYPE_F64);
}

Spread spread_of(std::uint32_t ranks, std::uint32_t rank, double ratio, std::uint64_t buffer) {
  Spread spread;
  spread.strategy = TRIREME_STRATEGY_ZERO3;
  spread.rank = rank;
  spread.world_size = spread.shard_ranks = ranks;
  spread.bucket_bytes = spread.first_bucket_bytes = 1 << 20;
  spread.minimum_unit_bytes = 1;
  spread.persistent_unit_bytes = 201;  // more than "small", and than "few"
  spread.in_file = true;
  spread.file_ratio = ratio;
  spread.file_buffer_bytes = buffer;
  return spread;
}

void check_plan(const Registry& registry, const Spread& spread) {
  const Layout layout(registry, spread);
  const FilePlan plan(layout, spread.rank);
  assert_int_equal(plan.first_block.size(), layout.groups.size() + 1);
  std::uint64_t held = 0, whole = 0, in_file = 0, stays = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (std::size_t number = 0; number < layout.groups.size(); ++number) {
    const Group& group = layout.groups[number];
    const std::uint64_t bytes = group.held.count * dtype_size(group.dtype);
    if (!group.in_file) {
      assert_true(group.stays_whole);
      assert_int_equal(plan.first_block[number], plan.first_block[number + 1]);
      whole += bytes;
      continue;
    }
    held += bytes;
    std::uint64_t next = 0;  // one after the other, and nothing between them
    for (std::uint64_t i = plan.first_block[number]; i < plan.first_block[number + 1]; ++i) {
      const FilePlan::Block& block = plan.blocks[i];
      assert_int_equal(block.group, number);
      assert_int_equal(block.range.first, next);
      assert_int_equal(block.bytes, block.range.count * dtype_size(group.dtype));
      next = block.range.end();
      if (!block.in_file) {
        stays += piece(block.bytes);
        continue;
      }
      in_file += block.room();
      assert_true(block.room() >= block.bytes && block.room() <= plan.slot_bytes);
      assert_int_equal(block.offset % FilePlan::kPage, 0);
      places.emplace_back(block.offset, block.offset + block.room());
    }
    assert_int_equal(next, group.held.count);
  }
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i) {
    assert_true(places[i - 1].second <= places[i].first);
  }
  assert_int_equal(plan.held_bytes, held);
  assert_int_equal(plan.file_bytes, in_file);
  assert_int_equal(plan.resident_bytes, stays);
  assert_true(plan.buffer_bytes() <= spread.file_buffer_bytes);
  if (spread.file_ratio == 1) assert_int_equal(stays, 0);
  const auto all = static_cast<double>(in_file + stays);
  assert_true(static_cast<double>(in_file) >= spread.file_ratio * static_cast<double>(held));
  assert_true(static_cast<double>(in_file) <=
              spread.file_ratio * all + static_cast<double>(2 * plan.slot_bytes));
  const MemoryPlan memory = plan_memory(registry, layout, false, false, spread.rank);
  assert_int_equal(memory.parameters, whole + stays);
  assert_int_equal(layout.arena_bytes, whole);
  assert_int_equal(memory.file_buffer, plan.buffer_bytes());
}

void every_element_that_is_held_has_one_place(void**) {
  Registry registry;
  fill(&registry);
  for (const std::uint32_t ranks : {1U, 2U, 3U, 4U, 5U, 8U}) {
    for (const double ratio : {1.0, 0.5, 0.01}) {
      for (const std::uint64_t buffer : {FilePlan::kLeastBuffer, std::uint64_t{1} << 20}) {
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
          check_plan(registry, spread_of(ranks, rank, ratio, buffer));
        }
      }
    }
  }
}

// Replicas give each other their updates block by block.
void all_ranks_have_as_many_blocks_of_a_group(void**) {
  Registry registry;
  fill(&registry);
  for (const std::uint32_t ranks : {2U, 3U, 5U, 8U}) {
    const Layout layout(registry, spread_of(ranks, 0, 1, 65536));
    const FilePlan first(layout, 0);
    for (std::uint32_t rank = 1; rank < ranks; ++rank) {
      const FilePlan other(layout, rank);
      assert_int_equal(other.blocks.size(), first.blocks.size());
      for (std::size_t i = 0; i < first.blocks.size(); ++i) {
        assert_int_equal(other.blocks[i].group, first.blocks[i].group);
        const std::uint64_t counts[] = {first.blocks[i].range.count, other.blocks[i].range.count};
        assert_true(counts[0] <= counts[1] + 1 && counts[1] <= counts[0] + 1);
      }
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_element_that_is_held_has_one_place),
      cmocka_unit_test(all_ranks_have_as_many_blocks_of_a_group),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
