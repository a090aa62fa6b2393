#include "parallel/pipeline/list.hpp"

#include <algorithm>
#include <queue>

namespace trireme::pipeline {
namespace {

constexpr double kNotYet = -1;

class ListScheduler {
 public:
  ListScheduler(const std::vector<std::uint32_t>& rank_of, std::uint32_t ranks,
                std::uint32_t micro_batches, const Costs& costs, const ListOptions& options)
      : costs_(costs), options_(options) {
    out_.ranks = ranks;
    out_.micro_batches = micro_batches;
    out_.rank_of = rank_of;
    const std::uint64_t cells = out_.cell(out_.stages(), 0);
    forward_at_.assign(cells, kNotYet);
    backward_at_.assign(cells, kNotYet);
    stages_.resize(out_.stages());
    ranks_.resize(ranks);
    own_ = out_.stages_of_ranks();
    wires_.resize(2 * out_.stages());
  }

  Schedule run() {
    for (std::uint32_t m = 0; m < out_.micro_batches; ++m) forward_at_[out_.cell(0, m)] = 0;
    for (std::uint32_t rank = 0; rank < out_.ranks; ++rank) wake(rank, 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      RankState& state = ranks_[event.rank];
      if (event.time < state.free_at) continue;  // it has begun something since
      decide(event.rank, event.time);
    }
    std::vector<std::vector<Action>> lists;
    for (RankState& state : ranks_) lists.push_back(std::move(state.list));
    put_lists(lists, &out_);
    return std::move(out_);
  }

 private:
  struct StageState {
    std::uint32_t forward = 0, backward = 0, weight = 0;  // micro-batches done
  };
  struct RankState {
    double free_at = 0;
    std::uint64_t bytes = 0;
    bool last_forward = false;
    std::vector<Action> list{};
  };
  struct Event {
    double time;
    std::uint32_t rank;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : rank > other.rank;
    }
  };

  std::uint64_t most_bytes(std::uint32_t stage) const {
    return std::max(costs_.stages[stage].kept_bytes,
                    options_.split ? costs_.stages[stage].held_bytes : 0);
  }

  void wake(std::uint32_t rank, double time) { events_.push({time, rank}); }

  struct Target {
    std::uint64_t time;
    Action action;
  };

  // A possible action of a rank; kind 0 is none. `at` is when its message is there.
  struct Choice {
    Action action{};
    double at = 0;
  };

  Choice best_forward(std::uint32_t rank, double until) const {
    Choice best;
    for (const std::uint32_t stage : own_[rank]) {
      const std::uint32_t m = stages_[stage].forward;
      if (m == out_.micro_batches) continue;
      const double at = forward_at_[out_.cell(stage, m)];
      if (at == kNotYet || at > until) continue;
      const bool deeper = best.action.kind == 0 || options_.deep_first;
      if (!deeper || !is_admitted(rank, stage)) continue;
      best = {{TRIREME_PIPELINE_KIND_F, stage, m, 0}, at};
    }
    return best;
  }

  Choice best_backward(std::uint32_t rank, double until) const {
    Choice best;
    for (const std::uint32_t stage : own_[rank]) {
      const std::uint32_t m = stages_[stage].backward;
      if (m == out_.micro_batches) continue;
      const double at = backward_at_[out_.cell(stage, m)];
      if (at == kNotYet || at > until) continue;
      // The micro-batch that came first; of one, what is nearest to its end.
      if (best.action.kind != 0 && best.action.micro_batch < m) continue;
      if (best.action.kind != 0 && best.action.micro_batch == m && best.action.stage < stage) {
        continue;
      }
      best = {{options_.split ? TRIREME_PIPELINE_KIND_I : TRIREME_PIPELINE_KIND_B, stage, m, 0},
              at};
    }
    return best;
  }

  // The oldest W.
  Choice best_weight(std::uint32_t rank) const {
    Choice best;
    for (const std::uint32_t stage : own_[rank]) {
      const StageState& state = stages_[stage];
      if (!options_.split || state.weight == state.backward) continue;
      if (best.action.kind != 0 && best.action.micro_batch <= state.weight) continue;
      best.action = {TRIREME_PIPELINE_KIND_W, stage, state.weight, 0};
    }
    return best;
  }

  // The banker's rule. Micro-batches end in their order. Each must find room on this rank for its
  // stages that are still to come, after those before it have given theirs back.
  bool is_admitted(std::uint32_t rank, std::uint32_t stage) const {
    if (options_.limits.empty()) return true;
    const std::uint64_t limit = options_.limits[rank];
    const std::uint64_t held = ranks_[rank].bytes + most_bytes(stage);
    if (held > limit) return false;
    std::uint64_t free = limit - held;
    // W that could be done at once give their bytes back first.
    std::uint32_t begin = out_.micro_batches, end = 0;
    for (const std::uint32_t own : own_[rank]) {
      const StageState& state = stages_[own];
      free += std::uint64_t{state.backward - state.weight} * most_bytes(own);
      begin = std::min(begin, state.backward);
      end = std::max(end, state.forward + (own == stage ? 1 : 0));
    }
    for (std::uint32_t m = begin; m < end; ++m) {
      std::uint64_t holds = 0, needs = 0;
      for (const std::uint32_t own : own_[rank]) {
        const StageState& state = stages_[own];
        if (m < state.backward) continue;  // counted above
        (m < state.forward + (own == stage ? 1 : 0) ? holds : needs) += most_bytes(own);
      }
      if (needs > free) return false;
      free += holds;
    }
    return true;
  }

  // The F and I of a rank that come next, by target.
  void decide_by_target(std::uint32_t rank, double now) {
    const Pattern& pattern = options_.pattern;
    std::vector<Target>& heads = heads_;
    heads.clear();
    std::uint64_t held = 0;
    for (const std::uint32_t stage : own_[rank]) {
      const StageState& state = stages_[stage];
      held += state.backward - state.weight;
      const auto target = [&](std::uint32_t first, std::uint32_t m) {
        return first + std::uint64_t{pattern.period} * m;
      };
      if (state.forward < out_.micro_batches) {
        heads.push_back({target(pattern.forward[stage], state.forward),
                         {TRIREME_PIPELINE_KIND_F, stage, state.forward, 0}});
      }
      if (state.backward < out_.micro_batches) {
        heads.push_back({target(pattern.backward[stage], state.backward),
                         {options_.split ? TRIREME_PIPELINE_KIND_I : TRIREME_PIPELINE_KIND_B, stage,
                          state.backward, 0}});
      }
    }
    std::sort(heads.begin(), heads.end(), [](const Target& a, const Target& b) {
      return a.time != b.time ? a.time < b.time : a.action.stage < b.action.stage;
    });
    const bool full = pattern.most_held != 0 && held >= pattern.most_held;
    for (const Target& head : heads) {
      if (full || head.time > heads[0].time + pattern.window) break;
      const bool forward = is_forward(head.action.kind);
      const std::uint64_t cell = out_.cell(head.action.stage, head.action.micro_batch);
      const double at = forward ? forward_at_[cell] : backward_at_[cell];
      if (at == kNotYet || at > now) continue;
      if (forward && !is_admitted(rank, head.action.stage)) continue;
      return begin(rank, now, head.action);
    }
    const Choice weight = best_weight(rank);
    if (weight.action.kind != 0) begin(rank, now, weight.action);
  }

  void decide(std::uint32_t rank, double now) {
    if (!options_.pattern.forward.empty()) return decide_by_target(rank, now);
    const RankState& state = ranks_[rank];
    Choice forward = best_forward(rank, now), backward = best_backward(rank, now);
    const bool both = forward.action.kind != 0 && backward.action.kind != 0;
    bool take_forward = forward.action.kind != 0 && backward.action.kind == 0;
    if (both) {
      take_forward = options_.prefer == Prefer::kForward ||
                     (options_.prefer == Prefer::kAlternate && !state.last_forward);
    }
    if (take_forward) return begin(rank, now, forward.action);
    if (backward.action.kind != 0) return begin(rank, now, backward.action);
    const Choice weight = best_weight(rank);
    if (weight.action.kind == 0) return;  // the next message wakes it
    const double end = now + time_of(costs_, weight.action);
    if (options_.patience > 0) {
      const double until = now + options_.patience * (end - now);
      Choice soon = best_backward(rank, until);
      if (soon.action.kind == 0) soon = best_forward(rank, until);
      if (soon.action.kind != 0) return wake(rank, soon.at);
    }
    begin(rank, now, weight.action);
  }

  void begin(std::uint32_t rank, double now, const Action& action) {
    RankState& state = ranks_[rank];
    StageState& stage = stages_[action.stage];
    const double end = now + time_of(costs_, action);
    state.list.push_back(action);
    state.free_at = end;
    const std::uint32_t s = action.stage, m = action.micro_batch;
    if (action.kind == TRIREME_PIPELINE_KIND_W) {
      ++stage.weight;
      state.bytes -= most_bytes(s);
    } else if (action.kind == TRIREME_PIPELINE_KIND_F) {
      ++stage.forward;
      state.bytes += most_bytes(s);
      state.last_forward = true;
      if (s + 1 < out_.stages()) {
        arrive(s, s + 1, end, &forward_at_[out_.cell(s + 1, m)]);
      } else {
        backward_at_[out_.cell(s, m)] = end;
      }
    } else {
      ++stage.backward;
      state.last_forward = false;
      if (!options_.split) {
        ++stage.weight;
        state.bytes -= most_bytes(s);
      }
      if (s > 0) arrive(s, s - 1, end, &backward_at_[out_.cell(s - 1, m)]);
    }
    wake(rank, end);
  }

  void arrive(std::uint32_t from, std::uint32_t to, double end, double* at) {
    const std::uint32_t receiver = out_.rank_of[to];
    *at = end;
    if (receiver != out_.rank_of[from]) {
      if (costs_.bytes_per_second > 0) {
        double& busy = wires_[from + (to < from ? out_.stages() : 0)];
        busy = std::max(busy, end) +
               static_cast<double>(costs_.stages[std::min(from, to)].message_bytes) /
                   costs_.bytes_per_second;
        *at = busy;
      }
      *at += costs_.latency;
    }
    wake(receiver, std::max(*at, ranks_[receiver].free_at));
  }

  const Costs& costs_;
  const ListOptions& options_;
  Schedule out_{};
  std::vector<double> forward_at_{}, backward_at_{};  // when each may begin, by cell
  std::vector<StageState> stages_{};
  std::vector<RankState> ranks_{};
  std::vector<std::vector<std::uint32_t>> own_{};  // stages of each rank
  std::vector<double> wires_{};
  std::vector<Target> heads_{};  // of one decision
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_{};
};

}  // namespace

bool has_room_for_one(const std::vector<std::uint32_t>& rank_of, std::uint32_t ranks,
                      const Costs& costs, const std::vector<std::uint64_t>& limits) {
  if (limits.empty()) return true;
  std::vector<std::uint64_t> needs(ranks);
  for (std::size_t s = 0; s < rank_of.size(); ++s) {
    needs[rank_of[s]] += std::max(costs.stages[s].kept_bytes, costs.stages[s].held_bytes);
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (needs[rank] > limits[rank]) return false;
  }
  return true;
}

Schedule list_schedule(const std::vector<std::uint32_t>& rank_of, std::uint32_t ranks,
                       std::uint32_t micro_batches, const Costs& costs,
                       const ListOptions& options) {
  return ListScheduler(rank_of, ranks, micro_batches, costs, options).run();
}

}  // namespace trireme::pipeline
