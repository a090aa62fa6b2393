// The small transformer with its positions on two ranks along "context", or with a routed MLP whose
// experts lie on two ranks along "expert". Each layout with data and tensor ranks trains it with
// the bits of one process that computes attention, or routes rows, with plain loops.
#include "axes_training.hpp"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka.h needs the headers before it.
#include <cmocka.h>
}

namespace {

using wide::Axis;
using wide::Bf16;
using wide::kAllPlaces;
using wide::kMostRanks;
using wide::Outcome;
using wide::Setup;
using wide::TrainJob;
using wide::Way;

// Gradients of positions are added in the order of sides. So each layout has bits of its own.
template <class T>
const Outcome& of_one_process(const Setup& setup) {
  static Outcome attentions[3][3], routed[2][2];
  Outcome& found = setup.is_routed()
                       ? routed[setup.lowest][setup.one_norm]
                       : attentions[static_cast<int>(setup.context.way)][setup.context.layout];
  if (!found.numbers.empty()) return found;
  std::string problem;
  found = wide::train_plainly<T>(setup, &problem);
  if (!problem.empty()) fail_msg("one process, %s: %s", name_of(setup).c_str(), problem.c_str());
  return found;
}

template <class T>
void expect_same_bits(const Setup& setup) {
  static TrainJob job;
  const Outcome& right = of_one_process<T>(setup);
  job = TrainJob();
  job.setup = setup;
  run_ranks(setup.ranks(), wide::run_training<T>, &job);
  std::string problem;
  for (int rank = 0; rank < setup.ranks() && problem.empty(); ++rank)
    problem = job.problems[rank] + job.refusals[rank];
  if (problem.empty()) problem = wide::difference<T>(job, right);
  if (!problem.empty())
    fail_msg("%zu bytes, %s: %s", sizeof(T), name_of(setup).c_str(), problem.c_str());
}

// Every strategy, with and without sequence parallelism and summands of norms; `turn` picks some.
template <class T>
void expect_same_bits_of_layouts(Setup setup, unsigned* turn, unsigned every) {
  const bool is_long = std::getenv("TRIREME_TEST_LONG") != nullptr;
  for (setup.data = 1; setup.data * 2 <= kMostRanks; ++setup.data) {
    for (setup.tensor = 1; setup.ranks() <= kMostRanks; ++setup.tensor) {
      for (setup.strategy = TRIREME_STRATEGY_DATA_PARALLEL;
           setup.strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++setup.strategy) {
        if (setup.shards() && setup.data % 2 != 0) continue;
        for (const bool sequence : {false, true}) {
          for (const bool shared : {false, true}) {
            if (shared && (setup.tensor & (setup.tensor - 1)) != 0) continue;
            if (!is_long && (*turn)++ % (is_quick() ? 3 * every : every) != 0) continue;
            setup.sequence = sequence;
            setup.shared = shared;
            expect_same_bits<T>(setup);
          }
        }
      }
    }
  }
}

template <class T>
void expect_context(unsigned every) {
  unsigned turn = 0;
  for (const Way way : {Way::exchange, Way::pairs, Way::builtin}) {
    for (const auto layout : {TRIREME_CONTEXT_LAYOUT_CONTIGUOUS, TRIREME_CONTEXT_LAYOUT_ZIGZAG}) {
      for (const auto method : {TRIREME_CONTEXT_METHOD_GATHER, TRIREME_CONTEXT_METHOD_RING}) {
        // An exchange has neither: it cuts rows as CONTIGUOUS does.
        if (way == Way::exchange && (layout != TRIREME_CONTEXT_LAYOUT_CONTIGUOUS ||
                                     method != TRIREME_CONTEXT_METHOD_GATHER))
          continue;
        Setup setup;
        setup.context = {way, layout, method};
        expect_same_bits_of_layouts<T>(setup, &turn, every);
      }
    }
  }
}

void positions_on_two_ranks(void**) { expect_context<float>(37); }
void positions_on_two_ranks_in_16_bits(void**) { expect_context<Bf16>(53); }

template <class T>
void expect_routed(unsigned every, bool one_norm = false) {
  unsigned turn = 0;
  for (const bool lowest : {false, true}) {
    Setup setup;
    setup.axis = Axis::expert;
    setup.lowest = lowest;
    setup.one_norm = one_norm;
    expect_same_bits_of_layouts<T>(setup, &turn, every);
  }
}

void experts_on_two_ranks(void**) { expect_routed<float>(13); }
void experts_on_two_ranks_in_16_bits(void**) { expect_routed<Bf16>(17); }
void experts_and_the_rest_have_one_norm(void**) { expect_routed<float>(11, true); }
void experts_and_the_rest_have_one_norm_in_16_bits(void**) { expect_routed<Bf16>(29, true); }

// ---- the one process --------------------------------------------------------------------------

struct PlainJob {
  Setup setup;
  std::vector<double> gradients;
  std::string problem;
};

void find_gradients(trireme_communicator* communicator, int, void* context) {
  PlainJob& job = *static_cast<PlainJob*>(context);
  try {
    job.gradients = wide::Training<float>(communicator, job.setup).first_gradients();
  } catch (const std::exception& problem) {
    job.problem = problem.what();
  }
}

// Differences of two losses. Of positions, each side divides by half of the tokens.
void its_gradients_are_those_of_loops(void**) {
  for (const bool is_routed : {false, true}) {
    for (const Way way : {Way::exchange, Way::pairs, Way::builtin}) {
      static PlainJob job;
      job = PlainJob();
      job.setup.plain = true;
      job.setup.axis = is_routed ? Axis::expert : Axis::context;
      job.setup.context.way = way;
      if (is_routed && way != Way::exchange) continue;
      run_ranks(1, find_gradients, &job);
      if (!job.problem.empty()) fail_msg("%s", job.problem.c_str());
      const std::vector<float> values = wide::initial_values(kAllPlaces);
      std::vector<double> at(values.begin(), values.end());
      const auto loss = [&] {
        const double first = wide::plain_loss(at, wide::batch_of(0, 0), is_routed);
        return is_routed ? first + wide::plain_loss(at, wide::batch_of(0, 1), true) : 2 * first;
      };
      double worst = 0, size = 0;
      for (std::size_t i = 0; i < at.size(); i += 7) {
        if (std::isnan(job.gradients[i])) continue;
        constexpr double kStep = 1e-5;
        const double value = at[i];
        at[i] = value + kStep;
        const double more = loss();
        at[i] = value - kStep;
        const double slope = (more - loss()) / (2 * kStep);
        at[i] = value;
        size = std::max(size, std::abs(slope));
        worst = std::max(worst, std::abs(slope - job.gradients[i]));
      }
      if (!(worst <= 2e-5 * size))
        fail_msg("routed %d, way %d: %g off, of %g", is_routed, static_cast<int>(way), worst, size);
    }
  }
}

// The oracles train: everything but frozen parameters moves, and all steps are clipped.
void what_is_trained_moves(void**) {
  const std::vector<float> before = wide::initial_values(kAllPlaces);
  for (const bool routed : {false, true}) {
    Setup setup;
    setup.axis = routed ? Axis::expert : Axis::context;
    const Outcome& own = of_one_process<float>(setup);
    const auto* const after = reinterpret_cast<const float*>(own.values.data());
    std::size_t still = 0, frozen = 0;
    for (const std::uint64_t number : own.numbers) still += before[number] == after[number];
    for (const wide::Parameter& each : wide::kParameters)
      frozen += each.frozen ? each.rows * each.columns : 0;
    assert_int_equal(still, frozen);
    for (const auto& norms : own.norms) {
      assert_true(norms[0] > wide::kMaxNorm);
      assert_true(!routed || norms[1] > 0.01);
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(its_gradients_are_those_of_loops),
      cmocka_unit_test(what_is_trained_moves),
      cmocka_unit_test(positions_on_two_ranks),
      cmocka_unit_test(positions_on_two_ranks_in_16_bits),
      cmocka_unit_test(experts_on_two_ranks),
      cmocka_unit_test(experts_on_two_ranks_in_16_bits),
      cmocka_unit_test(experts_and_the_rest_have_one_norm),
      cmocka_unit_test(experts_and_the_rest_have_one_norm_in_16_bits),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
