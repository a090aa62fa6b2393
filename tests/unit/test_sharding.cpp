// The arithmetic of sharding against naive counting.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "sharding/layout.hpp"
#include "sharding/leaf_tree.hpp"
#include "sharding/plan.hpp"
#include "sharding/range.hpp"
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

trireme_parameter_options options_of(const char* name, const char* unit,
                                     const std::uint64_t* extent,
                                     trireme_dtype dtype = TRIREME_DTYPE_F32) {
  trireme_parameter_options options = TRIREME_PARAMETER_OPTIONS_INIT;
  options.name = name;
  options.unit = unit;
  options.dtype = dtype;
  options.dimensions = 1;
  options.shape = extent;
  return options;
}

void add(Registry* registry, const char* name, const char* unit, std::uint64_t elements,
         trireme_dtype dtype = TRIREME_DTYPE_F32, bool frozen = false) {
  trireme_parameter_options options = options_of(name, unit, &elements, dtype);
  if (frozen) options.flags = TRIREME_PARAMETER_FLAG_FROZEN;
  std::uint64_t number = 0;
  assert_true(registry->add(options, &number).ok());
}

// ---- the tree ----

// Leaves by recursion over heights: the definition, word by word.
double naive_tree(const std::vector<double>& leaves) {
  if (leaves.size() == 1) return leaves[0];
  std::vector<double> pairs;
  for (std::size_t i = 0; i + 1 < leaves.size(); i += 2) pairs.push_back(leaves[i] + leaves[i + 1]);
  if (leaves.size() % 2 == 1) pairs.push_back(leaves.back());
  return naive_tree(pairs);
}

void levels_of_partial_sums_give_the_canonical_tree(void**) {
  std::uint64_t random = 1;
  for (std::uint32_t count = 1; count <= 70; ++count) {
    std::vector<double> leaves;
    for (std::uint32_t i = 0; i < count; ++i) {
      random = random * 6364136223846793005ULL + 1442695040888963407ULL;
      // Of very unequal size, so that another order of additions has other bits.
      leaves.push_back(static_cast<double>(random >> 12) * (random % 5 == 0   ? 1e-12
                                                            : random % 3 == 0 ? 1e5
                                                                              : 1));
    }
    std::vector<double> levels(tree_levels(count), 0.0);
    for (std::uint32_t leaf = 0; leaf < count; ++leaf) {
      const std::uint32_t to = level_completed_by(leaf);
      assert_true(to < levels.size());
      double sum = leaves[leaf];
      for (std::uint32_t level = 0; level < to; ++level) sum = levels[level] + sum;
      levels[to] = sum;
    }
    double whole = 0;
    bool any = false;
    for (std::uint32_t level = 0; level < levels.size(); ++level) {
      if (!level_remains(count, level)) continue;
      whole = any ? levels[level] + whole : levels[level];
      any = true;
    }
    const double expected = naive_tree(leaves);
    assert_memory_equal(&whole, &expected, sizeof whole);
  }
}

void every_leaf_has_one_rank_and_one_round(void**) {
  for (std::uint32_t leaves = 1; leaves <= 40; ++leaves) {
    for (std::uint32_t world = 1; world <= 9; ++world) {
      std::vector<std::uint32_t> counted(world, 0);
      std::uint32_t last_round = 0;
      for (std::uint32_t leaf = 0; leaf < leaves; ++leaf) {
        ++counted[leaf % world];
        last_round = leaf / world;
      }
      assert_int_equal(rounds(leaves, world), last_round + 1);
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        assert_int_equal(leaves_of_rank(leaves, world, rank), counted[rank]);
      }
    }
  }
}

// ---- ranges ----

void shards_are_balanced_and_follow_each_other(void**) {
  for (std::uint64_t elements = 0; elements <= 40; ++elements) {
    for (std::uint32_t world = 1; world <= 9; ++world) {
      std::uint64_t next = 0;
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        const Range range = shard_range(elements, world, rank);
        assert_int_equal(range.first, next);
        assert_int_equal(range.count, elements / world + (rank < elements % world ? 1 : 0));
        next = range.end();
      }
      assert_int_equal(next, elements);
    }
  }
  const Range last = shard_range((std::uint64_t{1} << 48) + 5, 8, 7);
  assert_int_equal(last.end(), (std::uint64_t{1} << 48) + 5);
}

void intersections_are_clamped_at_both_ends(void**) {
  for (std::uint64_t a = 0; a < 6; ++a) {
    for (std::uint64_t n = 0; n < 6; ++n) {
      std::uint64_t both = 0;
      for (std::uint64_t i = 0; i < 20; ++i) both += i >= a && i < a + n && i >= 3 && i < 7;
      assert_int_equal(intersect({a, n}, {3, 4}).count, both);
    }
  }
}

// ---- the layout ----

Spread spread_of(trireme_strategy strategy, std::uint32_t rank, std::uint32_t world,
                 std::uint64_t bucket_bytes) {
  Spread spread;
  spread.strategy = strategy;
  spread.rank = rank;
  spread.world_size = spread.shard_ranks = world;
  spread.bucket_bytes = spread.first_bucket_bytes = bucket_bytes;
  spread.minimum_unit_bytes = 1;
  return spread;
}

void buckets_hold_every_trainable_element_of_its_owner_once(void**) {
  for (std::uint32_t world = 1; world <= 6; ++world) {
    for (const std::uint64_t bucket_bytes : {1, 60, 1 << 20}) {
      Registry registry;
      add(&registry, "a", "first", 7);
      add(&registry, "b", "first", 4, TRIREME_DTYPE_F32, true);
      add(&registry, "c", "first", 1);
      add(&registry, "d", nullptr, 5, TRIREME_DTYPE_F64);
      add(&registry, "e", nullptr, 3, TRIREME_DTYPE_F32, true);
      add(&registry, "f", nullptr, 0);
      add(&registry, "g", nullptr, 13);
      std::uint64_t kept = 0;
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        const Layout layout(registry, spread_of(TRIREME_STRATEGY_ZERO3, rank, world, bucket_bytes));
        std::vector<std::vector<int>> seen;
        for (const Parameter& parameter : registry.parameters()) {
          seen.emplace_back(parameter.elements, 0);
        }
        std::uint64_t own = 0;
        for (const Bucket& bucket : layout.buckets) {
          std::uint64_t position = 0;
          for (const Segment& segment : bucket.segments) {
            assert_int_equal(segment.position, position);
            position += segment.count;
            assert_true(segment.position >= bucket.block_first[segment.owner]);
            assert_true(position <= bucket.block_first[segment.owner + 1]);
            const Parameter& parameter = registry.parameters()[segment.parameter];
            assert_int_equal(parameter.dtype, bucket.dtype);
            const Range shard =
                shard_range(registry.units()[parameter.unit].elements, world, segment.owner);
            for (std::uint64_t i = segment.first; i < segment.first + segment.count; ++i) {
              ++seen[segment.parameter][i];
              assert_true(parameter.first + i >= shard.first);
              assert_true(parameter.first + i < shard.end());
            }
            if (segment.owner == rank)
              own += segment.count * (bucket.dtype == TRIREME_DTYPE_F64 ? 8 : 4);
          }
          assert_int_equal(position, bucket.elements);
        }
        assert_int_equal(own, layout.shard_gradient_bytes);
        assert_int_equal(layout.whole_gradient_bytes, (7 + 1 + 13) * 4 + 5 * 8);
        kept += layout.parameter_bytes;
        for (std::size_t i = 0; i < seen.size(); ++i) {
          const int times = registry.parameters()[i].frozen ? 0 : 1;
          for (const int count : seen[i]) assert_int_equal(count, times);
        }
      }
      assert_int_equal(kept, (12 + 3 + 13) * 4 + 5 * 8);
    }
  }
}

// data_parallel: every parameter is one stretch, and every rank's block is n/N.
void buckets_of_data_parallel_are_in_the_order_of_parameters_and_cut_evenly(void**) {
  for (std::uint32_t world = 1; world <= 6; ++world) {
    for (const std::uint64_t bucket_bytes : {1, 60, 1 << 20}) {
      Registry registry;
      add(&registry, "a", "first", 7);
      add(&registry, "b", "first", 4, TRIREME_DTYPE_F32, true);
      add(&registry, "c", "first", 1);
      add(&registry, "d", nullptr, 5, TRIREME_DTYPE_F64);
      add(&registry, "f", nullptr, 0);
      add(&registry, "g", nullptr, 13);
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        const Layout layout(registry,
                            spread_of(TRIREME_STRATEGY_DATA_PARALLEL, rank, world, bucket_bytes));
        std::vector<int> seen(registry.parameters().size(), 0);
        for (const Bucket& bucket : layout.buckets) {
          std::uint64_t position = 0;
          for (const Segment& segment : bucket.segments) {
            assert_int_equal(segment.position, position);
            assert_int_equal(segment.first, 0);
            assert_int_equal(segment.count, registry.parameters()[segment.parameter].elements);
            position += segment.count;
            ++seen[segment.parameter];
          }
          assert_int_equal(position, bucket.elements);
          for (std::uint32_t other = 0; other < world; ++other) {
            const std::uint64_t more = other < position % world ? 1 : 0;
            assert_int_equal(bucket.counts[other], position / world + more);
            assert_int_equal(bucket.block_first[other + 1],
                             bucket.block_first[other] + bucket.counts[other]);
          }
          assert_int_equal(bucket.block_first[world], position);
        }
        assert_true((seen == std::vector<int>{1, 0, 1, 1, 0, 1}));
        for (std::uint64_t i = 0; i < seen.size(); ++i) {
          assert_int_equal(layout.is_one_stretch(i), seen[i]);
        }
      }
    }
  }
}

// The other strategies keep what one owner has together: only a bucket of one group is in order.
void gradients_are_one_stretch_where_no_owner_cuts_them(void**) {
  Registry registry;
  add(&registry, "a", nullptr, 10);
  add(&registry, "b", nullptr, 10);
  const auto stretches = [&](std::uint32_t world, std::uint64_t bucket_bytes) {
    const Layout layout(registry, spread_of(TRIREME_STRATEGY_ZERO1, 0, world, bucket_bytes));
    return std::vector<bool>{layout.is_one_stretch(0), layout.is_one_stretch(1)};
  };
  assert_true((stretches(2, 1) == std::vector<bool>{true, true}));
  assert_true((stretches(2, 1 << 20) == std::vector<bool>{false, false}));
  assert_true((stretches(1, 1 << 20) == std::vector<bool>{true, true}));
}

void buckets_go_backward_are_full_before_they_close_and_have_one_dtype(void**) {
  Registry registry;
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    add(&registry, name, nullptr, 10, *name == 'c' ? TRIREME_DTYPE_F64 : TRIREME_DTYPE_F32);
  }
  const Layout layout(registry, spread_of(TRIREME_STRATEGY_ZERO2, 0, 2, 41));
  assert_int_equal(layout.buckets.size(), 3);
  assert_true((layout.buckets[0].groups == std::vector<std::uint64_t>{4, 3}));
  assert_true((layout.buckets[1].groups == std::vector<std::uint64_t>{2}));
  assert_true((layout.buckets[2].groups == std::vector<std::uint64_t>{1, 0}));
}

void doubles_stay_aligned_whatever_lies_around_them(void**) {
  for (std::uint32_t world = 1; world <= 5; ++world) {
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      Registry registry;
      add(&registry, "a", nullptr, 3);
      add(&registry, "b", nullptr, 5, TRIREME_DTYPE_F64);
      add(&registry, "c", nullptr, 1);
      add(&registry, "d", nullptr, 7, TRIREME_DTYPE_F64);
      const Layout layout(registry, spread_of(TRIREME_STRATEGY_ZERO1, rank, world, 1));
      for (const Bucket& bucket : layout.buckets) {
        const std::uint64_t size = bucket.dtype == TRIREME_DTYPE_F64 ? 8 : 4;
        assert_int_equal(bucket.whole_offset % size, 0);
        assert_int_equal(bucket.shard_offset % size, 0);
      }
      for (const std::size_t unit : {1, 3}) {
        assert_int_equal(layout.groups[layout.group_of[unit]].offset % 8, 0);
      }
    }
  }
}

void small_neighbours_of_one_type_are_gathered_together(void**) {
  Registry registry;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) {
    const bool wide = *name == 'c';
    add(&registry, name, nullptr, *name == 'f' ? 100 : 10,
        wide ? TRIREME_DTYPE_F64 : TRIREME_DTYPE_F32);
  }
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    Spread spread = spread_of(TRIREME_STRATEGY_ZERO3, rank, 3, 1000);
    spread.minimum_unit_bytes = 80;
    const Layout layout(registry, spread);
    // a and b are full at 80 bytes; c is of another type; d and e are full; f; g is the rest.
    assert_true((layout.group_of == std::vector<std::uint64_t>{0, 0, 1, 2, 2, 3, 4}));
    assert_true((layout.unit_first == std::vector<std::uint64_t>{0, 10, 0, 0, 10, 0, 0}));
    assert_int_equal(layout.groups[0].elements, 20);
    assert_int_equal(layout.groups[2].flat_first, 30);
    assert_int_equal(layout.largest_group_bytes, 400);
    spread.persistent_unit_bytes = 41;  // all but c and f
    const Layout persistent(registry, spread);
    assert_true((persistent.group_of == std::vector<std::uint64_t>{0, 0, 1, 2, 2, 3, 4}));
    for (const std::size_t group : {0, 2, 4}) {
      assert_true(!persistent.groups[group].gathered && persistent.groups[group].stays_whole);
      assert_int_equal(persistent.groups[group].held.count, persistent.groups[group].elements);
    }
    assert_true(persistent.groups[1].gathered && persistent.groups[3].gathered);
    std::uint64_t bytes = 0;
    for (const Group& group : persistent.groups) {
      bytes += (!group.gathered ? group.elements : shard_range(group.elements, 3, rank).count) *
               (group.dtype == TRIREME_DTYPE_F64 ? 8 : 4);
    }
    assert_int_equal(persistent.parameter_bytes, bytes);
  }
}

// By counting: each element is held by every replica once, and owned by one rank of all.
void hybrid_shards_hold_each_element_once_a_replica_and_own_it_once(void**) {
  for (std::uint32_t world = 1; world <= 12; ++world) {
    for (std::uint32_t shard_ranks = 1; shard_ranks <= world; ++shard_ranks) {
      if (world % shard_ranks != 0) continue;
      for (const std::uint64_t elements : {0, 1, 5, 12, 29}) {
        Registry registry;
        add(&registry, "a", nullptr, elements);
        std::vector<std::uint32_t> held(elements, 0), owned(elements, 0);
        for (std::uint32_t rank = 0; rank < world; ++rank) {
          Spread spread = spread_of(TRIREME_STRATEGY_HYBRID_SHARD, rank, world, 1);
          spread.shard_ranks = shard_ranks;
          const Layout layout(registry, spread);
          const Group& group = layout.groups[0];
          for (std::uint64_t i = 0; i < group.held.count; ++i) ++held[group.held.first + i];
          for (std::uint64_t i = 0; i < group.owned.count; ++i) ++owned[group.owned.first + i];
          assert_true(group.owned.first >= group.held.first);
          assert_true(group.owned.end() <= group.held.end());
          assert_int_equal(group.held_counts[rank % shard_ranks], group.held.count);
          assert_int_equal(group.owned_counts[rank / shard_ranks], group.owned.count);
        }
        for (const std::uint32_t count : held) assert_int_equal(count, world / shard_ranks);
        for (const std::uint32_t count : owned) assert_int_equal(count, 1);
      }
    }
  }
}

// ---- registration ----

void refused(Registry* registry, const trireme_parameter_options& options, trireme_status code,
             const char* words) {
  std::uint64_t number = 77;
  const std::size_t before = registry->parameters().size();
  const Status status = registry->add(options, &number);
  assert_int_equal(status.code(), code);
  if (std::strstr(status.message().c_str(), words) == nullptr) {
    fail_msg("\"%s\" does not say \"%s\"", status.message().c_str(), words);
  }
  assert_int_equal(number, 77);
  assert_int_equal(registry->parameters().size(), before);
}

void refused_parameters_leave_the_registry_alone(void**) {
  Registry registry;
  add(&registry, "a", "u", 6);
  add(&registry, "b", "v", 6);
  const std::uint64_t six = 6, seven = 7;
  const std::uint64_t huge[] = {std::uint64_t{1} << 40, std::uint64_t{1} << 40};
  const auto good = [&] { return options_of("x", "v", &six); };
  auto bad = good();
  bad.name = nullptr;
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "options.name is NULL");
  bad = good();
  bad.name = "";
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "options.name is empty");
  const std::string long_name(256, 'n');
  bad.name = long_name.c_str();
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "longer than 255");
  std::string letters;
  while (letters.size() < 256) letters += "\u20ac";  // 3 bytes each, so byte 32 is inside one
  bad.name = letters.c_str();
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT,
          ("options.name \"" + letters.substr(0, 30) + "\"... is longer").c_str());
  for (const char* const broken : {"caf\xe9", "\xed\xa0\x80", "\xc0\xaf"}) {
    bad = good();
    bad.name = broken;
    refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "options.name is not UTF-8");
    bad = good();
    bad.unit = broken;
    refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "options.unit is not UTF-8");
    bad = good();
    bad.tied_to = broken;
    refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "options.tied_to is not UTF-8");
  }
  bad = good();
  bad.name = "a";
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "\"a\" is taken by parameter 0");
  bad = good();
  bad.flags = 2;
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "options.flags 2");
  bad = good();
  bad.dtype = 0;
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "options.dtype 0");
  bad.dtype = TRIREME_DTYPE_F8E5M2;
  refused(&registry, bad, TRIREME_ERROR_UNSUPPORTED, "f8e5m2");
  bad.dtype = TRIREME_DTYPE_I32;
  refused(&registry, bad, TRIREME_ERROR_UNSUPPORTED, "i32");
  bad.dtype = TRIREME_DTYPE_F64;
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "but unit \"v\" is f32");
  bad = good();
  bad.dimensions = 17;
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "options.dimensions 17");
  bad = good();
  bad.shape = nullptr;
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "options.shape is NULL");
  bad = good();
  bad.dimensions = 2;
  bad.shape = huge;
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "2^48");
  bad = good();
  bad.unit = "u";
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "unit \"u\" of parameter \"x\" was left");
  bad = good();
  bad.tied_to = "nobody";
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "\"nobody\" of parameter \"x\" names no");
  bad.tied_to = "b";
  bad.shape = &seven;
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "is f32 [7], but \"b\"");
  bad.shape = &six;
  bad.flags = TRIREME_PARAMETER_FLAG_FROZEN;
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "frozen");
  bad.flags = 0;
  bad.unit = "u";
  refused(&registry, bad, TRIREME_ERROR_INVALID_ARGUMENT, "is \"u\", but it is tied to \"b\"");
}

void an_alias_of_an_alias_is_one_of_the_first(void**) {
  Registry registry;
  add(&registry, "a", nullptr, 6);
  const std::uint64_t six = 6;
  auto alias = options_of("b", nullptr, &six);
  alias.tied_to = "a";
  std::uint64_t number = 0;
  assert_true(registry.add(alias, &number).ok());
  alias.name = "c";
  alias.tied_to = "b";
  assert_true(registry.add(alias, &number).ok());
  assert_int_equal(number, 2);
  assert_int_equal(registry.parameters()[2].target, 0);
  assert_true((registry.parameters()[0].aliases == std::vector<std::uint64_t>{1, 2}));
  assert_int_equal(registry.elements(), 6);
  assert_int_equal(registry.units().size(), 1);
}

void names_in_messages_stay_on_one_line(void**) {
  assert_string_equal(quoted("plain").c_str(), "\"plain\"");
  assert_string_equal(quoted("a\n\t\"b\\").c_str(), "\"a\\x0a\\x09\\\"b\\\\\"");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(levels_of_partial_sums_give_the_canonical_tree),
      cmocka_unit_test(every_leaf_has_one_rank_and_one_round),
      cmocka_unit_test(shards_are_balanced_and_follow_each_other),
      cmocka_unit_test(intersections_are_clamped_at_both_ends),
      cmocka_unit_test(buckets_hold_every_trainable_element_of_its_owner_once),
      cmocka_unit_test(buckets_of_data_parallel_are_in_the_order_of_parameters_and_cut_evenly),
      cmocka_unit_test(gradients_are_one_stretch_where_no_owner_cuts_them),
      cmocka_unit_test(buckets_go_backward_are_full_before_they_close_and_have_one_dtype),
      cmocka_unit_test(doubles_stay_aligned_whatever_lies_around_them),
      cmocka_unit_test(small_neighbours_of_one_type_are_gathered_together),
      cmocka_unit_test(hybrid_shards_hold_each_element_once_a_replica_and_own_it_once),
      cmocka_unit_test(refused_parameters_leave_the_registry_alone),
      cmocka_unit_test(an_alias_of_an_alias_is_one_of_the_first),
      cmocka_unit_test(names_in_messages_stay_on_one_line),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
