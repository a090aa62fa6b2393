// The parts of the way of gradients that need no peers: passes of a step, what is handed in, memory
// of buckets, encodings and sinks, against loops over the same numbers.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/reduce.hpp"
#include "model/gradients/bucket_memory.hpp"
#include "model/gradients/encoding.hpp"
#include "model/gradients/exchange.hpp"
#include "model/gradients/intake.hpp"
#include "model/gradients/overflow.hpp"
#include "model/gradients/passes.hpp"
#include "model/gradients/sink.hpp"
#include "platform/clock.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;
using namespace trireme::strategies;
using sharding::Bucket;
using sharding::Spread;

using When = ExchangeWay::When;

Spread spread_of(trireme_strategy strategy, std::uint32_t rank, std::uint32_t world_size,
                 std::uint32_t leaves = 0) {
  Spread spread;
  spread.strategy = strategy;
  spread.rank = rank;
  spread.world_size = spread.shard_ranks = world_size;
  spread.leaves = leaves;
  spread.bucket_bytes = spread.first_bucket_bytes = 1;  // one for each unit
  return spread;
}

// Memory of one rank of a group in which no other rank is needed.
struct Rank {
  explicit Rank(const Spread& spread, std::uint32_t tied = 0) {
    const std::uint64_t sizes[] = {7, 4, 9};
    for (std::uint64_t i = 0; i < 3; ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      add(name, sizes[i], nullptr);
    }
    for (std::uint32_t i = 0; i < tied; ++i) add("tied" + std::to_string(i), sizes[0], "a");
    layout = std::make_unique<const sharding::Layout>(registry, spread);
    plan = plan_memory(registry, *layout, false, false, spread.rank);
    static int number = 0;
    GroupOptions options;
    options.rendezvous = "local://gradients-" + std::to_string(number++);
    options.name = "job";
    const Status made = Communicator::create(options, 60'000'000'000, &link.communicator);
    assert_true(made.ok());
    assert_true(
        storage->gradients
            .allocate(*link.communicator, storage->allocated, MemoryKind::gradients, plan.gradients)
            .ok());
    assert_true(
        storage->working
            .allocate(*link.communicator, storage->allocated, MemoryKind::working, plan.arena())
            .ok());
    memory = std::make_unique<BucketMemory>(*layout, plan, storage);
  }
  void add(const std::string& name, std::uint64_t elements, const char* tied_to) {
    trireme_parameter_options options = TRIREME_PARAMETER_OPTIONS_INIT;
    options.name = name.c_str();
    options.dtype = TRIREME_DTYPE_F32;
    options.dimensions = 1;
    options.shape = &elements;
    options.tied_to = tied_to;
    std::uint64_t parameter = 0;
    assert_true(registry.add(options, &parameter).ok());
  }

  sharding::Registry registry;
  std::unique_ptr<const sharding::Layout> layout;
  sharding::MemoryPlan plan;
  Link link;
  std::shared_ptr<Storage> storage = std::make_shared<Storage>();
  std::unique_ptr<BucketMemory> memory;
};

// Element i of what `rank` brings in `pass`: of very unequal size, so that another order of
// additions has other bits.
float value(std::uint32_t rank, std::uint32_t pass, std::uint64_t i) {
  const auto mixed = static_cast<std::uint32_t>(i * 2654435761u) ^ (rank * 40503u + pass * 9973u);
  const float scale = mixed % 3 == 0 ? 1e-3f : mixed % 3 == 1 ? 1.0f : 1e4f;
  return scale * (static_cast<float>(mixed % 20011) - 10005.0f) / 7.0f;
}

// The block of `rank` in the contribution that another one brings.
std::vector<float> brought(const Bucket& bucket, std::uint32_t owner, std::uint32_t rank,
                           std::uint32_t pass) {
  std::vector<float> out;
  const std::uint64_t first = bucket.block_first[owner];
  for (std::uint64_t i = 0; i < bucket.counts[owner]; ++i)
    out.push_back(value(rank, pass, first + i));
  return out;
}

// Shows a fold the block in two stretches, as a backend may.
void show(const Fold& fold, std::uint64_t count, const std::vector<std::vector<float>>& blocks) {
  const std::uint64_t half = count / 2;
  const sharding::Range stretches[] = {{0, half}, {half, count - half}};
  for (const auto& [first, here] : stretches) {
    if (here == 0) continue;
    std::vector<const void*> sources;
    for (const std::vector<float>& block : blocks) {
      sources.push_back(block.empty() ? nullptr : block.data() + first);
    }
    fold(first, here, sources.data(), static_cast<std::uint32_t>(sources.size()));
  }
}

void assert_same_bits(const void* found, const std::vector<float>& wanted) {
  assert_memory_equal(found, wanted.data(), wanted.size() * sizeof(float));
}

// ---- the table ----

void every_strategy_has_its_way(void**) {
  const auto check = [](const Spread& spread, When when, SinkKind sink) {
    assert_true(way_of(spread).when == when);
    assert_true(way_of(spread).sink == sink);
  };
  for (const trireme_strategy strategy :
       {TRIREME_STRATEGY_DATA_PARALLEL, TRIREME_STRATEGY_ZERO1, TRIREME_STRATEGY_ZERO2,
        TRIREME_STRATEGY_ZERO3, TRIREME_STRATEGY_HYBRID_SHARD}) {
    Spread spread = spread_of(strategy, 0, 2);
    const bool whole =
        strategy == TRIREME_STRATEGY_DATA_PARALLEL || strategy == TRIREME_STRATEGY_ZERO1;
    check(spread, whole ? When::last_pass : When::each_pass,
          whole ? SinkKind::in_place : SinkKind::shard);
    spread.update_in_backward = true;
    check(spread, When::each_pass, SinkKind::in_place);
    spread.leaves = 4;
    check(spread, When::each_leaf, SinkKind::leaf_tree);
    spread.update_in_backward = false;
    check(spread, When::each_leaf, SinkKind::leaf_tree);
  }
}

// ---- passes ----

void a_reproducible_step_has_a_pass_for_each_leaf(void**) {
  const Spread spread = spread_of(TRIREME_STRATEGY_ZERO2, 1, 2, 5);
  StepPasses passes(spread, true);
  assert_int_equal(passes.step_passes(), 3);
  assert_int_equal(passes.own_passes(), 2);
  for (int step = 0; step < 2; ++step) {
    assert_false(passes.under_way());
    assert_true(passes.begin(true, false).code() == TRIREME_ERROR_UNSUPPORTED);
    assert_true(passes.begin(false, false).ok());
    assert_true(passes.begin(false, false).code() == TRIREME_ERROR_INVALID_STATE);
    assert_true(passes.check_complete().code() == TRIREME_ERROR_INVALID_STATE);
    passes.end();
    assert_true(passes.under_way() && !passes.all_leaves_made());
    assert_true(passes.check_complete().code() == TRIREME_ERROR_INVALID_STATE);
    assert_true(passes.begin(false, true).ok());
    passes.end();
    assert_true(passes.all_leaves_made() && passes.check_complete().ok());
    assert_int_equal(passes.contributed(), 1);  // the other leaf was absent
    assert_true(passes.begin(false, false).code() == TRIREME_ERROR_INVALID_STATE);
    passes.clear();
  }
  assert_false(passes.is_last(1));
  assert_true(passes.is_last(2));
}

void other_steps_end_with_a_pass_that_is_exchanged(void**) {
  const Spread spread = spread_of(TRIREME_STRATEGY_ZERO1, 0, 2);
  StepPasses passes(spread, false);
  assert_true(passes.begin(false, true).code() == TRIREME_ERROR_UNSUPPORTED);
  assert_true(passes.check_complete().code() == TRIREME_ERROR_INVALID_STATE);
  for (int pass = 0; pass < 3; ++pass) {
    assert_true(passes.begin(true, false).ok());
    passes.end();
    assert_true(passes.check_complete().code() == TRIREME_ERROR_INVALID_STATE);
  }
  assert_true(passes.begin(false, false).ok());
  passes.drop();  // is not counted
  assert_int_equal(passes.made(), 3);
  passes.clear();
  assert_true(passes.begin(false, false).ok());
  passes.end();
  assert_true(passes.check_complete().ok());
  assert_int_equal(passes.contributed(), 1);
  assert_true(passes.begin(false, false).code() == TRIREME_ERROR_INVALID_STATE);
}

// ---- what is handed in ----

void tied_gradients_are_added_in_the_order_of_registration(void**) {
  // a, tied0, tied1 in any order of arrival.
  const std::uint64_t names[] = {0, 3, 4};
  const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    Rank rank(spread_of(TRIREME_STRATEGY_ZERO1, 0, 1), 2);
    GradientIntake intake(rank.registry, *rank.layout, rank.plan, rank.storage);
    intake.begin_pass({});
    const std::uint64_t number = intake.bucket_of(0);
    rank.memory->place_in_gradients(number);
    char* const bucket = rank.memory->contribution(number);
    std::vector<std::vector<float>> gradients(3, std::vector<float>(7));
    std::vector<float> sum(7);
    for (std::uint32_t name = 0; name < 3; ++name) {
      for (std::uint64_t i = 0; i < 7; ++i) {
        gradients[name][i] = value(name, 0, i);
        sum[i] = name == 0 ? gradients[0][i] : sum[i] + gradients[name][i];
      }
    }
    for (const int at : order) {
      const auto name = static_cast<std::uint64_t>(at);
      assert_false(intake.is_complete(number));
      assert_true(intake.awaits(names[name]));
      const HandedGradient handed = {gradients[name].data(), TRIREME_DTYPE_F32};
      assert_true(intake.check_memory(names[name], handed).ok());
      intake.put(names[name], handed, bucket, false);
      intake.note(names[name], handed, false);
      assert_true(intake.check_awaited(names[name]).code() == TRIREME_ERROR_INVALID_STATE);
    }
    assert_true(intake.is_complete(number));
    assert_same_bits(rank.storage->gradients.data() + rank.layout->buckets[number].whole_offset,
                     sum);
    assert_true(intake.used()[0]);
    assert_false(intake.used()[1]);
    const Status missing = intake.check_all_in();
    assert_true(missing.code() == TRIREME_ERROR_INVALID_STATE);
    assert_true(missing.message().find("gradients of 2 of 5 parameters") != std::string::npos);
    assert_true(missing.message().find("\"b\"") != std::string::npos);
    intake.clear();
    assert_false(intake.used()[0]);
  }
}

void a_view_is_taken_in_where_it_is_and_only_once_it_was_asked_for(void**) {
  Rank rank(spread_of(TRIREME_STRATEGY_ZERO1, 0, 1), 1);
  GradientIntake intake(rank.registry, *rank.layout, rank.plan, rank.storage);
  intake.begin_pass({});
  assert_true(intake.has_view(1));
  const GradientView view = intake.view(1, true);
  assert_true(view.adds);
  assert_false(intake.is_outside(view.data, 4));
  const HandedGradient handed = {view.data, TRIREME_DTYPE_F32};
  assert_true(intake.check_memory(1, handed).code() == TRIREME_ERROR_INVALID_STATE);
  intake.note_view(1);
  assert_true(intake.check_memory(1, handed).ok());
  assert_true(intake.check_memory(2, handed).code() == TRIREME_ERROR_INVALID_ARGUMENT);
  auto* const elements = reinterpret_cast<float*>(view.data);
  elements[3] = 5;
  const std::uint64_t number = intake.bucket_of(1);
  rank.memory->place_in_gradients(number);
  intake.put(1, handed, rank.memory->contribution(number), true);
  assert_true(elements[3] == 5);  // not doubled
  // The second name of a parameter has the place once the first one is in.
  assert_null(intake.view(3, false).data);
  const HandedGradient zeros;
  rank.memory->place_in_gradients(intake.bucket_of(0));
  intake.put(0, zeros, rank.memory->contribution(intake.bucket_of(0)), false);
  intake.note(0, zeros, false);
  assert_non_null(intake.view(3, false).data);
  assert_true(intake.view(3, false).adds);
  assert_false(intake.used()[0]);
  // Where gradients do not stay whole, there is none.
  Rank sharded(spread_of(TRIREME_STRATEGY_ZERO2, 0, 2));
  GradientIntake other(sharded.registry, *sharded.layout, sharded.plan, sharded.storage);
  other.begin_pass({});
  assert_false(other.has_view(1));
  assert_null(other.view(1, false).data);
}

// ---- memory ----

void slots_are_taken_once_and_come_back(void**) {
  Rank rank(spread_of(TRIREME_STRATEGY_ZERO2, 0, 2));
  BucketMemory& memory = *rank.memory;
  assert_int_equal(rank.layout->buckets.size(), 3);
  assert_int_equal(rank.plan.slot_count, 2);
  assert_true(memory.place_in_slot(0) && memory.place_in_slot(2));
  assert_ptr_not_equal(memory.contribution(0), memory.contribution(2));
  assert_false(memory.place_in_slot(1));
  assert_null(memory.contribution(1));
  assert_true(memory.place_in_extra(rank.link, 1).ok());
  assert_true(memory.extra_bytes() > 0);
  assert_int_equal(memory.extra_buckets(), 1);
  memory.begin_reading(1);
  assert_true(memory.is_read(1) && !memory.is_read(0));
  memory.end_reading(1);
  memory.release(1);
  assert_int_equal(memory.extra_bytes(), 0);
  char* const place = memory.contribution(2);
  memory.release(2);
  assert_null(memory.contribution(2));
  assert_true(memory.place_in_slot(1));
  assert_ptr_equal(memory.contribution(1), place);
}

// ---- sinks ----

void a_shard_grows_by_what_each_pass_brings(void**) {
  constexpr std::uint32_t kRanks = 3;
  for (const bool uneven : {false, true}) {
    for (std::uint32_t own = 0; own < kRanks; ++own) {
      Rank rank(spread_of(TRIREME_STRATEGY_ZERO2, own, kRanks));
      const GradientSink sink(SinkKind::shard, *rank.layout, *rank.memory, true, uneven);
      std::vector<std::vector<float>> wanted;
      for (std::uint64_t number = 0; number < 3; ++number) {
        const Bucket& bucket = rank.layout->buckets[number];
        assert_true(rank.memory->place_in_slot(number));
        std::vector<float> sum(bucket.counts[own]);
        for (std::uint32_t pass = 0; pass < 2; ++pass) {
          std::vector<std::vector<float>> blocks;
          for (std::uint32_t from = 0; from < kRanks; ++from) {
            // Rank 2 is absent in the second pass.
            const bool absent = pass == 1 && from == 2;
            blocks.emplace_back();
            for (std::uint64_t i = 0; !absent && i < bucket.counts[own]; ++i) {
              blocks.back().push_back(static_cast<float>(i + 7 * from + 20 * pass));
            }
          }
          show(sink.fold(number, pass, false), bucket.counts[own], blocks);
          for (std::uint64_t i = 0; i < sum.size(); ++i) {
            double of_pass = 0;
            for (const std::vector<float>& block : blocks) {
              if (!block.empty()) of_pass += block[i];
            }
            sum[i] = static_cast<float>(sum[i] + (uneven ? of_pass : of_pass / kRanks));
          }
        }
        rank.memory->release(number);
        wanted.push_back(sum);
      }
      sink.finish(5);
      for (std::uint64_t number = 0; number < 3; ++number) {
        const auto* const found = reinterpret_cast<const float*>(
            rank.memory->reduced_block(rank.layout->buckets[number]));
        for (std::uint64_t i = 0; i < wanted[number].size(); ++i) {
          const float expected = uneven ? wanted[number][i] / 5 : wanted[number][i];
          assert_true(std::fabs(found[i] - expected) <= 1e-4f);
        }
      }
    }
  }
}

void a_sum_in_place_leaves_the_blocks_of_others(void**) {
  constexpr std::uint32_t kRanks = 3;
  Rank rank(spread_of(TRIREME_STRATEGY_ZERO1, 1, kRanks));
  const GradientSink sink(SinkKind::in_place, *rank.layout, *rank.memory, false, false);
  const Bucket& bucket = rank.layout->buckets[2];
  rank.memory->place_in_gradients(2);
  auto* const own = reinterpret_cast<float*>(rank.memory->contribution(2));
  for (std::uint64_t i = 0; i < bucket.elements; ++i) own[i] = -1;
  std::vector<std::vector<float>> blocks;
  for (std::uint32_t from = 0; from < kRanks; ++from) {
    blocks.push_back(std::vector<float>(bucket.counts[1], static_cast<float>(from + 1)));
  }
  // Passes before have grown on their ranks.
  show(sink.fold(2, 3, true), bucket.counts[1], blocks);
  for (std::uint64_t i = 0; i < bucket.elements; ++i) {
    const bool in_block = i >= bucket.block_first[1] && i < bucket.block_first[2];
    assert_true(own[i] == (in_block ? 6 : -1));
  }
}

// Leaves by recursion over heights, each sum as f32.
std::vector<float> tree_of(const std::vector<std::vector<float>>& leaves) {
  if (leaves.size() == 1) return leaves[0];
  std::vector<std::vector<float>> pairs;
  for (std::size_t i = 0; i + 1 < leaves.size(); i += 2) {
    pairs.push_back(leaves[i]);
    for (std::size_t at = 0; at < pairs.back().size(); ++at) pairs.back()[at] += leaves[i + 1][at];
  }
  if (leaves.size() % 2 == 1) pairs.push_back(leaves.back());
  return tree_of(pairs);
}

void leaves_are_added_up_along_their_tree_on_any_ranks(void**) {
  for (const std::uint32_t leaves : {1u, 3u, 5u, 8u}) {
    for (const std::uint32_t ranks : {1u, 2u, 3u, 8u}) {
      for (const bool backward : {false, true}) {
        Spread spread = spread_of(TRIREME_STRATEGY_ZERO2, 0, ranks, leaves);
        spread.update_in_backward = backward;
        Rank rank(spread);
        const StepPasses passes(rank.layout->spread, false);
        const GradientSink sink(SinkKind::leaf_tree, *rank.layout, *rank.memory, false, false);
        const Bucket& bucket = rank.layout->buckets[0];
        assert_true(!rank.layout->spread.update_in_backward || rank.memory->place_in_slot(0));
        std::vector<std::vector<float>> all;
        for (std::uint32_t round = 0; round < passes.rounds(); ++round) {
          std::vector<std::vector<float>> blocks;
          for (std::uint32_t from = 0; from < ranks; ++from) {
            const bool has_leaf = round * ranks + from < leaves;
            blocks.push_back(has_leaf ? brought(bucket, 0, from, round) : std::vector<float>());
            if (has_leaf) all.push_back(blocks.back());
          }
          show(sink.fold(0, round, passes.is_last(round)), bucket.counts[0], blocks);
        }
        if (!backward) sink.finish(leaves);
        assert_int_equal(all.size(), leaves);
        assert_same_bits(rank.memory->reduced_block(bucket), tree_of(all));
      }
    }
  }
}

// ---- encodings ----

void narrow_contributions_are_added_as_f32_and_their_overflow_is_noted(void**) {
  Spread spread = spread_of(TRIREME_STRATEGY_ZERO2, 0, 2);
  assert_null(encoding_of(spread));
  for (const trireme_dtype dtype : {TRIREME_DTYPE_F16, TRIREME_DTYPE_BF16}) {
    spread.reduce_dtype = dtype;
    const Encoding* const encoding = encoding_of(spread);
    assert_non_null(encoding);
    assert_int_equal(encoding->dtype, dtype);
    Rank rank(spread);
    const Bucket& bucket = rank.layout->buckets[0];
    assert_true(rank.memory->place_in_slot(0));
    std::vector<float> contribution(bucket.elements);
    for (std::uint64_t i = 0; i < bucket.elements; ++i) {
      contribution[i] = static_cast<float>(i) + 0.125f;
    }
    OverflowWatch overflow;
    const auto encode = [&] {
      encoding->encode(encoding->dtype, bucket, reinterpret_cast<const char*>(contribution.data()),
                       rank.memory->encoded(0), overflow);
    };
    overflow.watch(true);
    encode();
    assert_true(overflow.first() == sharding::kNone);
    const Fold fold = encoding->decoding(
        encoding->dtype, [&](std::uint64_t first, std::uint64_t count, const void* const* sources,
                             std::uint32_t source_count) {
          assert_int_equal(source_count, 2);
          assert_null(sources[1]);
          for (std::uint64_t i = 0; i < count; ++i) {
            assert_true(static_cast<const float*>(sources[0])[i] == contribution[first + i]);
          }
        });
    const void* const sources[] = {rank.memory->encoded(0), nullptr};
    fold(0, bucket.elements, sources, 2);
    // 1e6 is inf in f16 alone, 3.4e38 in both.
    contribution.back() = dtype == TRIREME_DTYPE_F16 ? 1e6f : 3.4e38f;
    overflow.watch(false);
    encode();
    assert_true(overflow.first() == sharding::kNone);
    overflow.watch(true);
    encode();
    assert_int_equal(overflow.first(), bucket.segments.back().parameter);
    overflow.clear();
    assert_true(overflow.first() == sharding::kNone);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_strategy_has_its_way),
      cmocka_unit_test(a_reproducible_step_has_a_pass_for_each_leaf),
      cmocka_unit_test(other_steps_end_with_a_pass_that_is_exchanged),
      cmocka_unit_test(tied_gradients_are_added_in_the_order_of_registration),
      cmocka_unit_test(a_view_is_taken_in_where_it_is_and_only_once_it_was_asked_for),
      cmocka_unit_test(slots_are_taken_once_and_come_back),
      cmocka_unit_test(a_shard_grows_by_what_each_pass_brings),
      cmocka_unit_test(a_sum_in_place_leaves_the_blocks_of_others),
      cmocka_unit_test(leaves_are_added_up_along_their_tree_on_any_ranks),
      cmocka_unit_test(narrow_contributions_are_added_as_f32_and_their_overflow_is_noted),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
