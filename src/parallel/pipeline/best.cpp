#include "parallel/pipeline/best.hpp"

#include <algorithm>

#include "parallel/pipeline/list.hpp"
#include "parallel/pipeline/simulate.hpp"
#include "platform/mix.hpp"

namespace trireme::pipeline {
namespace {

// Actions that must keep their order on a rank.
bool keep_order(const Action& a, const Action& b) {
  if (a.stage == b.stage) {
    return a.micro_batch == b.micro_batch ||
           (a.kind == b.kind && a.kind != TRIREME_PIPELINE_KIND_W) ||
           (is_backward(a.kind) && is_backward(b.kind));
  }
  const std::uint32_t apart = a.stage > b.stage ? a.stage - b.stage : b.stage - a.stage;
  return apart == 1 && a.micro_batch == b.micro_batch;
}

class Search {
 public:
  Search(const BestOptions& options, const Costs& costs, Best* out)
      : options_(options), costs_(costs), out_(*out) {}

  Status run() {
    out_ = {};
    stages_ = static_cast<std::uint32_t>(costs_.stages.size());
    try_named();
    try_lists();
    if (out_.schedule.ranks == 0) return refuse();
    const Schedule found = out_.schedule;
    const double value = out_.value;
    improve();
    if (out_.value == value) out_.schedule = found;  // with its pairs
    Times times;
    simulate(out_.schedule, costs_, {.buffers = options_.limits.buffers, .record = true}, &times);
    out_.bound = is_span() ? times.lower_span : times.lower_bound;
    return Status::success();
  }

 private:
  bool is_span() const { return options_.objective == Objective::kSpan; }

  std::vector<std::vector<std::uint32_t>> placements() const {
    if (!options_.rank_of.empty()) return {options_.rank_of};
    const std::uint32_t v = stages_ / options_.ranks;
    std::vector<std::vector<std::uint32_t>> out = {place(Placement::kLoop, options_.ranks, v)};
    if (v > 1 && options_.ranks > 1) out.push_back(place(Placement::kWave, options_.ranks, v));
    return out;
  }

  bool fits(const Schedule& schedule, std::uint32_t rank) const {
    return options_.limits.bytes.empty() ||
           peak_bytes_of(schedule, rank, costs_) <= options_.limits.bytes[rank];
  }

  bool value_of(const Schedule& schedule, double* out) {
    ++out_.evaluations;
    Times times;
    if (!simulate(schedule, costs_, {.buffers = options_.limits.buffers, .bytes = false}, &times)) {
      return false;
    }
    *out = is_span() ? times.span : times.makespan;
    return true;
  }

  void consider(Schedule schedule, Name origin) {
    for (std::uint32_t rank = 0; rank < schedule.ranks; ++rank) {
      if (!fits(schedule, rank)) return;
    }
    double value = 0;
    if (!value_of(schedule, &value)) return;
    if (out_.schedule.ranks != 0 && value >= out_.value) return;
    out_.schedule = std::move(schedule);
    out_.origin = origin;
    out_.value = value;
  }

  void try_named() {
    if (stages_ % options_.ranks != 0) return;
    const Shape shape{options_.ranks, stages_ / options_.ranks, options_.micro_batches};
    for (std::int32_t n = 1; n < kNames; ++n) {
      const auto name = static_cast<Name>(n);
      if (!check_shape(name, shape).ok()) continue;
      Schedule schedule = generate(name, shape);
      if (!options_.rank_of.empty() && schedule.rank_of != options_.rank_of) continue;
      consider(std::move(schedule), name);
    }
  }

  void try_lists() {
    const bool whole_is_shorter = std::any_of(
        costs_.stages.begin(), costs_.stages.end(),
        [](const StageCosts& stage) { return stage.backward < stage.input + stage.weight; });
    for (const std::vector<std::uint32_t>& rank_of : placements()) {
      if (!has_room_for_one(rank_of, options_.ranks, costs_, options_.limits.bytes)) continue;
      ListOptions list{.limits = options_.limits.bytes};
      for (const bool split : {true, false}) {
        if (!split && !whole_is_shorter) continue;
        list.split = split;
        for (const Prefer prefer : {Prefer::kBackward, Prefer::kForward, Prefer::kAlternate}) {
          for (const bool deep : {true, false}) {
            for (const double patience : {0.0, 0.5, 1.0}) {
              if (!split && patience > 0) continue;
              list.prefer = prefer;
              list.deep_first = deep;
              list.patience = patience;
              consider(list_schedule(rank_of, options_.ranks, options_.micro_batches, costs_, list),
                       Name::kBest);
            }
          }
        }
      }
    }
  }

  Status refuse() const {
    std::vector<std::uint64_t> needs(options_.ranks);
    const std::vector<std::uint32_t> rank_of = placements().front();
    for (std::uint32_t s = 0; s < stages_; ++s) {
      needs[rank_of[s]] += std::max(costs_.stages[s].kept_bytes, costs_.stages[s].held_bytes);
    }
    std::string text = "no schedule is within the limits";
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
      if (options_.limits.bytes.empty() || needs[rank] <= options_.limits.bytes[rank]) continue;
      text += "; rank " + std::to_string(rank) + " needs " + std::to_string(needs[rank]) +
              " bytes for one micro-batch, but its limit is " +
              std::to_string(options_.limits.bytes[rank]);
      break;
    }
    return invalid_argument(text);
  }

  std::uint64_t draw(std::uint64_t end) { return mix(options_.seed, draws_++) % end; }

  // Actions of the critical path move to the front, those before them to the back.
  void improve() {
    Schedule& best = out_.schedule;
    if (best.ranks < 2) return;
    for (Action& action : best.actions) action.pair = 0;  // their neighbours change
    const std::uint64_t end = out_.evaluations + options_.evaluations;
    Times times;
    bool fresh = false;
    while (out_.evaluations < end) {
      if (!fresh) {
        simulate(best, costs_, {.buffers = options_.limits.buffers, .record = true, .bytes = false},
                 &times);
        ++out_.evaluations;
        fresh = true;
        const double bound = is_span() ? times.lower_span : times.lower_bound;
        if (out_.value <= bound) return;  // nothing is shorter
      }
      const Step& step = times.critical[draw(times.critical.size())];
      const std::span<Action> list = best.of(step.rank);
      std::uint64_t from = step.index, to = 0;
      const std::uint64_t by = 1 + draw(8);
      if (draw(2) == 0) {
        to = from - std::min(from, by);
      } else {
        from -= std::min<std::uint64_t>(from, 1);
        to = std::min<std::uint64_t>(list.size() - 1, from + by);
      }
      to = reachable(list, from, to);
      if (to == from) {
        // Moves that change nothing cost no evaluation, but not without end.
        if (++spent_ > 64 * options_.evaluations) return;
        continue;
      }
      shift(list, from, to);
      double value = 0;
      const bool good = fits(best, step.rank) && value_of(best, &value) && value <= out_.value;
      if (!good) {
        if (++spent_ > 64 * options_.evaluations) return;
        shift(list, to, from);
        continue;
      }
      fresh = fresh && value == out_.value && draw(16) != 0;
      out_.value = value;
    }
  }

  // How far an action can go towards `to`.
  static std::uint64_t reachable(std::span<const Action> list, std::uint64_t from,
                                 std::uint64_t to) {
    std::uint64_t at = from;
    while (at != to) {
      const std::uint64_t next = to > at ? at + 1 : at - 1;
      if (keep_order(list[from], list[next])) break;
      at = next;
    }
    return at;
  }

  static void shift(std::span<Action> list, std::uint64_t from, std::uint64_t to) {
    if (from < to) {
      std::rotate(list.begin() + from, list.begin() + from + 1, list.begin() + to + 1);
    } else {
      std::rotate(list.begin() + to, list.begin() + from, list.begin() + from + 1);
    }
  }

  const BestOptions& options_;
  const Costs& costs_;
  Best& out_;
  std::uint32_t stages_ = 0;
  std::uint64_t draws_ = 0, spent_ = 0;
};

}  // namespace

Status find_best(const BestOptions& options, const Costs& costs, Best* out) {
  const auto stages = static_cast<std::uint32_t>(costs.stages.size());
  TRIREME_RETURN_IF_ERROR(check_sizes(options.ranks, stages, options.micro_batches));
  if (options.rank_of.empty() && stages % options.ranks != 0) {
    return invalid_argument(std::to_string(stages) + " stages are no multiple of " +
                            std::to_string(options.ranks) + " ranks; give a placement");
  }
  if (!options.rank_of.empty()) {
    TRIREME_RETURN_IF_ERROR(check_placement(options.ranks, options.rank_of));
  }
  return Search(options, costs, out).run();
}

}  // namespace trireme::pipeline
