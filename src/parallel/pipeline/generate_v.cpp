#include "parallel/pipeline/generate_v.hpp"

#include <algorithm>

#include "parallel/pipeline/list.hpp"
#include "parallel/pipeline/simulate.hpp"

namespace trireme::pipeline {
namespace {

using Lists = std::vector<std::vector<Action>>;

// Two stages of a rank: chunk 0 on the way down the V, chunk 1 on the way up. Counts what each
// kind has done, and leaves out micro-batches that the step does not have.
class VWriter {
 public:
  VWriter(const Shape& shape, std::uint32_t rank, std::vector<Action>* list)
      : micro_batches_(shape.micro_batches),
        stages_{rank, 2 * shape.ranks - 1 - rank},
        list_(*list) {}

  void f(int chunk, std::uint32_t pair = 0) {
    add(TRIREME_PIPELINE_KIND_F, chunk, forward[chunk]++, pair);
  }
  void i(int chunk) { add(TRIREME_PIPELINE_KIND_I, chunk, backward[chunk]++, 0); }
  // B takes no part in the order of W: its weights are done at once.
  void b(int chunk, std::uint32_t pair = 0) {
    add(TRIREME_PIPELINE_KIND_B, chunk, backward[chunk]++, pair);
  }
  void w(int chunk, std::uint32_t micro_batch) {
    add(TRIREME_PIPELINE_KIND_W, chunk, micro_batch, 0);
  }

  std::uint32_t forward[2] = {0, 0}, backward[2] = {0, 0};

 private:
  void add(trireme_pipeline_kind kind, int chunk, std::uint32_t micro_batch, std::uint32_t pair) {
    if (micro_batch < micro_batches_) list_.push_back({kind, stages_[chunk], micro_batch, pair});
  }

  const std::uint32_t micro_batches_;
  const std::uint32_t stages_[2];
  std::vector<Action>& list_;
};

// An action whose partner was left out has no pair.
void drop_halves(std::vector<Action>* list) {
  for (std::size_t i = 0; i < list->size(); ++i) {
    Action& action = (*list)[i];
    const auto is_partner = [&](std::size_t k) {
      return k < list->size() && (*list)[k].pair == action.pair;
    };
    if (action.pair != 0 && !is_partner(i + 1) && !(i > 0 && is_partner(i - 1))) action.pair = 0;
  }
}

}  // namespace

// arXiv 2401.10241, section 6. With fewer than 2p-1 micro-batches each phase is cut short.
std::vector<std::vector<Action>> zero_bubble_v(const Shape& shape) {
  const std::uint32_t p = shape.ranks, all = shape.micro_batches;
  Lists lists(p);
  for (std::uint32_t rank = 0; rank < p; ++rank) {
    VWriter out(shape, rank, &lists[rank]);
    std::uint32_t weight[2] = {0, 0};
    const auto forward = [&](int chunk) {
      if (out.forward[chunk] < all) out.f(chunk);
    };
    const auto input = [&](int chunk) {
      if (out.backward[chunk] < all) out.i(chunk);
    };
    const auto weights = [&](int chunk) {
      if (weight[chunk] < out.backward[chunk]) out.w(chunk, weight[chunk]++);
    };
    for (std::uint32_t k = 0; k < 2 * (p - rank) - 1; ++k) forward(0);
    for (std::uint32_t k = 0; k < rank; ++k) {
      forward(1);
      forward(0);
    }
    for (std::uint32_t k = 0; k < p - rank; ++k) {
      forward(1);
      input(1);
      weights(1);
    }
    while (out.forward[1] < all) {
      forward(0);
      for (const int chunk : {0, 1}) {
        if (chunk == 1) forward(1);
        input(chunk);
        weights(chunk);
      }
    }
    for (std::uint32_t k = 0; k < rank; ++k) {
      input(0);
      input(1);
    }
    while (out.backward[1] < all) input(1);
    while (out.backward[0] < all) {
      input(0);
      weights(0);
    }
    for (const int chunk : {1, 0}) {
      while (weight[chunk] < all) weights(chunk);
    }
  }
  return lists;
}

// DeepSeek's DualPipe, folded to a V. Pairs are an F and a B that may overlap.
std::vector<std::vector<Action>> dual_pipe_v(const Shape& shape) {
  const std::uint32_t p = shape.ranks;
  const std::uint32_t all = std::max(shape.micro_batches, 2 * p);
  Lists lists(p);
  for (std::uint32_t rank = 0; rank < p; ++rank) {
    VWriter out(shape, rank, &lists[rank]);
    std::uint32_t pair = 0;
    struct Held {
      int chunk;
      std::uint32_t micro_batch;
    };
    std::vector<Held> held;  // whose W are to come
    std::size_t next = 0;
    const auto backward = [&](int chunk, bool split) {
      if (!split) return out.b(chunk);
      held.push_back({chunk, out.backward[chunk]});
      out.i(chunk);
    };
    const auto weight = [&] {
      out.w(held[next].chunk, held[next].micro_batch);
      ++next;
    };
    const auto both = [&](int forward) {
      ++pair;
      out.f(forward, pair);
      out.b(1 - forward, pair);
    };
    for (std::uint32_t k = 0; k < 2 * (p - rank - 1); ++k) out.f(0);
    for (std::uint32_t k = 0; k <= rank; ++k) {
      out.f(0);
      out.f(1);
    }
    for (std::uint32_t k = 0; k < p - rank - 1; ++k) {
      backward(1, true);
      weight();
      out.f(1);
    }
    for (std::uint32_t k = 0; k < all - 2 * p + rank + 1; ++k) {
      if (k == 0 && rank == p - 1) {
        out.f(0);
        out.b(1);
      } else {
        both(0);
      }
      both(1);
    }
    for (std::uint32_t k = 0; k < p - rank - 1; ++k) {
      out.b(1);
      both(1);
    }
    bool split = false;
    for (std::uint32_t k = 0; k <= rank; ++k) {
      if (k == (rank + 1) / 2 && rank % 2 == 1) split = true;
      backward(1, split);
      if (k == (rank + 1) / 2 && rank % 2 == 0) split = true;
      backward(0, split);
    }
    for (std::uint32_t k = 0; k < p - rank - 1; ++k) {
      weight();
      backward(0, true);
    }
    while (next < held.size()) weight();
    drop_halves(&lists[rank]);
  }
  return lists;
}

namespace {

// Distances between the F and I of one micro-batch, in actions: from rank to rank on the four ways
// down and up the V, and at its three turns.
struct VShape {
  std::uint32_t steps[4];
  std::uint32_t turns[3];
  std::uint32_t window;
  std::uint32_t most_held;
};

// arXiv 2405.15362: two F, two I and two W of a rank repeat with each micro-batch. The shorter the
// way of a micro-batch, the less a rank holds.
constexpr VShape kHalfShapes[] = {
    {{1, 2, 1, 2}, {1, 3, 1}, 2, 0},  {{1, 1, 2, 1}, {4, 3, 1}, 2, 0},
    {{1, 2, 1, 2}, {4, 1, 4}, 0, 0},  {{1, 2, 2, 1}, {3, 1, 3}, 0, 0},
    {{1, 1, 2, 1}, {1, 3, 3}, 12, 0},
};
constexpr VShape kMinShapes[] = {
    {{1, 1, 1, 1}, {1, 4, 1}, 3, 0}, {{1, 1, 1, 1}, {1, 4, 1}, 3, 2},
    {{1, 1, 1, 1}, {1, 2, 1}, 2, 2}, {{1, 1, 1, 1}, {2, 4, 2}, 2, 2},
    {{1, 1, 1, 1}, {1, 1, 1}, 0, 2}, {{1, 1, 1, 1}, {1, 3, 1}, 6, 2},
};
// From so many ranks times micro-batches on, the first shape that works is taken.
constexpr std::uint64_t kManyCells = 1u << 14;

Pattern pattern_of(const VShape& shape, std::uint32_t p) {
  Pattern out{.forward = std::vector<std::uint32_t>(2 * p),
              .backward = std::vector<std::uint32_t>(2 * p),
              .period = 6,
              .window = shape.window,
              .most_held = shape.most_held};
  for (std::uint32_t s = 1; s < 2 * p; ++s) {
    out.forward[s] = out.forward[s - 1] + (s == p ? shape.turns[0] : shape.steps[s < p ? 0 : 1]);
  }
  out.backward[2 * p - 1] = out.forward[2 * p - 1] + shape.turns[1];
  for (std::uint32_t s = 2 * p - 1; s-- > 0;) {
    out.backward[s] =
        out.backward[s + 1] + (s == p - 1 ? shape.turns[2] : shape.steps[s >= p ? 2 : 3]);
  }
  return out;
}

Lists lists_of(const Schedule& schedule) {
  Lists lists(schedule.ranks);
  for (std::uint32_t rank = 0; rank < schedule.ranks; ++rank) {
    const std::span<const Action> list = schedule.of(rank);
    lists[rank].assign(list.begin(), list.end());
  }
  return lists;
}

// Makes the schedule of each shape for F, I and W of equal time, and keeps the shortest.
Lists within(const Shape& shape, std::uint32_t chunks, std::span<const VShape> shapes) {
  const std::uint32_t p = shape.ranks;
  const Costs costs = equal_costs(2 * p, 2, 2);
  const std::vector<std::uint32_t> rank_of = place(Placement::kV, p, 2);
  ListOptions options;
  options.limits.assign(p, chunks);
  const std::uint64_t all = 6 * std::uint64_t{p} * shape.micro_batches;
  Schedule best;
  double shortest = 0;
  for (const VShape& each : shapes) {
    options.pattern = pattern_of(each, p);
    Schedule schedule = list_schedule(rank_of, p, shape.micro_batches, costs, options);
    if (schedule.actions.size() != all) continue;
    Times times;
    simulate(schedule, costs, {.bytes = false}, &times);
    if (best.ranks == 0 || times.makespan < shortest) {
      shortest = times.makespan;
      best = std::move(schedule);
    }
    if (std::uint64_t{p} * shape.micro_batches >= kManyCells) break;
  }
  if (best.ranks == 0) {
    options.pattern = {};
    best = list_schedule(rank_of, p, shape.micro_batches, costs, options);
  }
  return lists_of(best);
}

}  // namespace

std::vector<std::vector<Action>> v_half(const Shape& shape) {
  return within(shape, shape.ranks + 2, kHalfShapes);
}

std::vector<std::vector<Action>> v_min(const Shape& shape) {
  return within(shape, std::max(2u, 2 * ((shape.ranks + 4) / 3)), kMinShapes);
}

std::vector<std::vector<Action>> wave(const Shape& shape) {
  const std::uint32_t v = shape.stages_per_rank;
  const Costs costs = equal_costs(v * shape.ranks, v, v);
  ListOptions options;
  options.limits.assign(shape.ranks, std::uint64_t{v} * shape.ranks);
  return lists_of(list_schedule(place(Placement::kWave, shape.ranks, v), shape.ranks,
                                shape.micro_batches, costs, options));
}

}  // namespace trireme::pipeline
