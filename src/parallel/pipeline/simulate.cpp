#include "parallel/pipeline/simulate.hpp"

#include <algorithm>
#include <unordered_map>

#include "parallel/pipeline/walk.hpp"

namespace trireme::pipeline {
namespace {

double transfer(const Costs& costs, std::uint32_t stage) {
  if (costs.bytes_per_second == 0) return 0;
  return static_cast<double>(costs.stages[stage].message_bytes) / costs.bytes_per_second;
}

class Simulator {
 public:
  Simulator(const Schedule& schedule, const Costs& costs, const SimulateOptions& options,
            Times* out)
      : schedule_(schedule),
        costs_(costs),
        options_(options),
        out_(*out),
        walk_(schedule, options.buffers) {}

  bool run() {
    const std::uint64_t cells = schedule_.cell(schedule_.stages(), 0);
    arrival_.assign(2 * cells, 0);
    now_.assign(schedule_.ranks, 0);
    out_ = {};
    out_.ranks.resize(schedule_.ranks);
    if (options_.buffers != 0) {
      freed_.assign(2 * std::size_t{schedule_.stages()}, {});
      made_.assign(freed_.size(), 0);
    }
    if (options_.record) {
      out_.start.resize(schedule_.actions.size());
      out_.end.resize(schedule_.actions.size());
      cause_.assign(schedule_.actions.size(), kNothing);
      maker_.assign(2 * cells, kNothing);
    }
    const bool ran = walk_.run([this](std::uint32_t rank, std::uint64_t index, const Action& action,
                                      const Need& need) { visit(rank, index, action, need); });
    if (ran) finish();
    return ran;
  }

 private:
  void visit(std::uint32_t rank, std::uint64_t index, const Action& action, const Need& need) {
    const std::uint64_t cells = schedule_.cell(schedule_.stages(), 0);
    const std::uint64_t number = schedule_.first[rank] + index;
    double start = now_[rank];
    std::uint64_t cause = kNothing;
    if (need.cell != kNothing) {
      const std::uint64_t cell = need.cell + (need.backward ? cells : 0);
      if (arrival_[cell] > start) {
        start = arrival_[cell];
        if (options_.record) cause = maker_[cell];
      }
    }
    const Messages& messages = walk_.messages();
    const bool forward = messages.makes_forward(action);
    const bool makes = forward || messages.makes_backward(action);
    const std::uint32_t link = (forward ? 0 : schedule_.stages()) + action.stage;
    if (makes && options_.buffers != 0) {
      // The buffer is that of the message `buffers` before this one.
      const std::uint64_t message = made_[link]++;
      if (message >= options_.buffers) {
        const Freed& freed = freed_[link][message - options_.buffers];
        if (freed.time > start) {
          start = freed.time;
          cause = freed.action;
        }
      }
    }
    const double time = time_of(costs_, action);
    const double end = start + time;
    now_[rank] = end;
    RankTimes& own = out_.ranks[rank];
    if (index == 0) own.first_start = start;
    own.last_end = end;
    own.work += time;
    if (makes) send(rank, action, forward, end, number);
    if (need.cell != kNothing && options_.buffers != 0) freed_[need.link].push_back({end, number});
    if (options_.record) {
      out_.start[number] = start;
      out_.end[number] = end;
      cause_[number] = cause;
    }
  }

  void send(std::uint32_t rank, const Action& action, bool forward, double end,
            std::uint64_t number) {
    const std::uint64_t cells = schedule_.cell(schedule_.stages(), 0);
    const std::uint64_t cell =
        schedule_.cell(action.stage, action.micro_batch) + (forward ? 0 : cells);
    // The gradient of a stage's input has the size of the output of the stage before.
    const std::uint32_t size_of = forward ? action.stage : action.stage - 1;
    double arrival = end + costs_.latency;
    if (costs_.bytes_per_second > 0) {
      const std::uint64_t wire = std::uint64_t{rank} * schedule_.ranks + walk_.taker(action);
      double& busy = wires_[wire];
      busy = std::max(busy, end) + transfer(costs_, size_of);
      arrival = busy + costs_.latency;
    }
    arrival_[cell] = arrival;
    if (options_.record) maker_[cell] = number;
    out_.ranks[rank].sent_bytes += costs_.stages[size_of].message_bytes;
  }

  void finish() {
    for (std::uint32_t rank = 0; rank < schedule_.ranks; ++rank) {
      RankTimes& own = out_.ranks[rank];
      out_.makespan = std::max(out_.makespan, own.last_end);
      out_.span = std::max(out_.span, own.span());
      out_.work += own.work;
      if (options_.bytes) own.peak_bytes = peak_bytes_of(schedule_, rank, costs_);
    }
    if (options_.record) {
      const Bounds bounds = lower_bounds(schedule_, costs_);
      // Sums in another order may round above them.
      out_.lower_bound = std::min(bounds.makespan, out_.makespan);
      out_.lower_span = std::min(bounds.span, out_.span);
      follow();
    }
  }

  // From the action that ends last back to the beginning.
  void follow() {
    std::uint32_t rank = 0;
    while (schedule_.of(rank).empty() || out_.ranks[rank].last_end != out_.makespan) {
      if (++rank == schedule_.ranks) return;
    }
    std::uint64_t number = schedule_.first[rank + 1] - 1;
    for (;;) {
      const std::uint64_t cause = cause_[number];
      out_.critical.push_back({rank, number - schedule_.first[rank], cause != kNothing});
      if (cause != kNothing) {
        number = cause;
        rank = schedule_.rank_of[schedule_.actions[number].stage];
      } else if (number == schedule_.first[rank]) {
        break;
      } else {
        --number;
      }
    }
    std::reverse(out_.critical.begin(), out_.critical.end());
  }

  struct Freed {
    double time = 0;
    std::uint64_t action = kNothing;
  };

  const Schedule& schedule_;
  const Costs& costs_;
  const SimulateOptions& options_;
  Times& out_;
  Walk walk_;
  std::vector<double> arrival_{};                      // of messages, by cell, forward ones first
  std::vector<double> now_{};                          // of ranks
  std::unordered_map<std::uint64_t, double> wires_{};  // until when each carries bytes
  std::vector<std::vector<Freed>> freed_{};            // by link and message
  std::vector<std::uint64_t> made_{};                  // messages of each link
  std::vector<std::uint64_t> cause_{}, maker_{};       // actions
};

}  // namespace

bool simulate(const Schedule& schedule, const Costs& costs, const SimulateOptions& options,
              Times* out) {
  return Simulator(schedule, costs, options, out).run();
}

Bounds lower_bounds(const Schedule& schedule, const Costs& costs) {
  const std::uint32_t stages = schedule.stages();
  std::vector<double> work(schedule.ranks), head(schedule.ranks, -1);
  const auto between = [&](std::uint32_t stage) {
    return schedule.crosses(stage) ? costs.latency + transfer(costs, stage) : 0;
  };
  double way = 0;
  for (std::uint32_t s = 0; s < stages; ++s) {
    const StageCosts& stage = costs.stages[s];
    const std::uint32_t rank = schedule.rank_of[s];
    if (head[rank] < 0) head[rank] = way;
    const double backward =
        std::min(stage.backward + costs.overhead, stage.input + stage.weight + 2 * costs.overhead);
    work[rank] += schedule.micro_batches * (stage.forward + costs.overhead + backward);
    way += stage.forward + costs.overhead + between(s);
  }
  Bounds out;
  for (std::uint32_t rank = 0; rank < schedule.ranks; ++rank) {
    out.makespan = std::max(out.makespan, head[rank] + work[rank]);
    out.span = std::max(out.span, work[rank]);
  }
  for (std::uint32_t s = stages; s-- > 0;) {
    const StageCosts& stage = costs.stages[s];
    const double last = std::min(stage.backward, stage.input + stage.weight + costs.overhead);
    out.makespan = std::max(out.makespan, way + last + costs.overhead);
    way += std::min(stage.backward, stage.input) + costs.overhead;
    if (s > 0) way += between(s - 1);
  }
  return out;
}

}  // namespace trireme::pipeline
