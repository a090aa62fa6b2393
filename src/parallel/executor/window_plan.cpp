#include "parallel/executor/window_plan.hpp"

#include <algorithm>
#include <tuple>

#include "parallel/executor/plan.hpp"

namespace trireme::parallel {
namespace {

using Kind = StageWindowPlan::Kind;

// One call of a layer, by its place in the stage. `again`: of its forward.
struct PlannedCall {
  std::uint64_t at, place;
  const std::vector<StageLayout::Layer>& layers;
  bool again;
};

// Visits the calls of an action in the order in which PipelineTrainer makes them.
template <class Visit>
void visit_calls(const ExecutorPlan& plan, const std::vector<bool>& split_layers,
                 const pipeline::Action& action, const Visit& visit) {
  if (pipeline::is_message(action.kind)) return;
  const std::uint64_t at = plan.index(action.stage, action.micro_batch);
  const ExecutorPlan::Place& place = plan.places[at];
  const StageLayout& layout = plan.layouts[place.layout];
  const StageShape& shape = plan.stages[plan.local[action.stage]];
  const auto again = [&](std::uint64_t first, std::uint64_t end) {
    for (std::uint64_t i = first; i < end; ++i) {
      visit(PlannedCall{at, i, layout.layers, /*again=*/true});
    }
  };
  if (pipeline::is_forward(action.kind)) {
    for (std::uint64_t i = 0; i < shape.layer_count; ++i) {
      visit(PlannedCall{at, i, layout.first, /*again=*/false});
    }
    return;
  }
  if (action.kind == TRIREME_PIPELINE_KIND_R) return again(0, layout.recomputed);
  const bool weights_alone = action.kind == TRIREME_PIPELINE_KIND_W;
  if (!weights_alone && place.recomputes) again(0, layout.recomputed);
  std::uint64_t stretch = weights_alone ? 0 : layout.stretches();
  for (std::uint64_t i = shape.layer_count; i-- > 0;) {
    if (stretch > 0 && layout.firsts[stretch] == i + 1) {
      const bool is_there = place.has_last_stretch && stretch == layout.stretches();
      --stretch;
      if (!is_there) again(layout.firsts[stretch], i + 1);
    }
    if (weights_alone && !split_layers[shape.first_layer + i]) continue;
    visit(PlannedCall{at, i, layout.layers, /*again=*/false});
  }
}

}  // namespace

WindowPlanner::WindowPlanner(const ExecutorPlan& plan, const std::vector<bool>& split_layers) {
  for (std::uint64_t at = 0; at < plan.places.size(); ++at) {
    empty_.first_items.push_back(empty_.items.size());
    for (const StageLayout::Layer& layer : plan.layouts[plan.places[at].layout].layers) {
      StageWindowPlan::Item item;
      item.bytes = layer.item;
      item.micro_batch = static_cast<std::uint32_t>(at % plan.micro_batches);
      empty_.largest_item = std::max(empty_.largest_item, item.bytes);
      empty_.items.push_back(item);
    }
  }
  uses_.resize(empty_.items.size());
  for (const pipeline::Action& action : plan.actions) {
    empty_.first_steps.push_back(steps_);
    visit_calls(plan, split_layers, action, [&](const PlannedCall& call) {
      const std::uint64_t item = empty_.first_items[call.at] + call.place;
      const StageLayout::Layer& own = call.layers[call.place];
      const bool uses = own.output.base == Spot::window || own.saved.base == Spot::window;
      if (uses && empty_.items[item].bytes > 0) uses_[item].push_back(steps_);
      const bool reads = call.place > 0 && call.layers[call.place - 1].output.base == Spot::window;
      if (reads && empty_.items[item - 1].bytes > 0) uses_[item - 1].push_back(steps_);
      ++steps_;
    });
  }
}

std::vector<WindowPlanner::Run> WindowPlanner::runs(std::uint64_t reach) const {
  std::vector<Run> runs;
  for (std::uint64_t item = 0; item < uses_.size(); ++item) {
    const std::vector<std::uint64_t>& uses = uses_[item];
    for (std::size_t i = 0; i < uses.size(); ++i) {
      const bool goes = i > 0 && uses[i] - uses[i - 1] > 2 * reach + 1;
      if (i == 0) {
        runs.push_back({item, uses[0], uses[0], uses[0], uses[0], false, false});
      } else if (goes) {
        runs.back().stored = true;
        runs.back().end += reach;
        runs.push_back({item, uses[i], uses[i], uses[i] - reach, uses[i], true, false});
      }
      runs.back().last = runs.back().end = uses[i];
    }
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    return std::tie(a.begin, a.item) < std::tie(b.begin, b.item);
  });
  return runs;
}

namespace {

// Places that are taken from one step to another.
class TimedFit {
 public:
  // Calls come in the order of `begin`. The place is free again in the step `free`.
  std::uint64_t take(std::uint64_t begin, std::uint64_t free, std::uint64_t bytes) {
    while (!ends_.empty() && ends_.begin()->first <= begin) {
      fit_.give_back(ends_.begin()->second);
      ends_.erase(ends_.begin());
    }
    const std::uint64_t place = fit_.take(bytes);
    ends_.emplace(free, place);
    return place;
  }
  std::uint64_t most() const { return fit_.most(); }

 private:
  FirstFit fit_{};
  std::multimap<std::uint64_t, std::uint64_t> ends_{};
};

}  // namespace

StageWindowPlan WindowPlanner::plan(std::uint64_t reach) const {
  StageWindowPlan out = empty_;
  std::vector<Run> all = runs(reach);
  TimedFit memory;
  std::vector<std::uint64_t> read_last(out.items.size());
  for (Run& run : all) {
    run.place = memory.take(run.begin, run.end + 1, out.items[run.item].bytes);
    const auto move = [&](std::uint64_t step, Kind kind) {
      out.moves.push_back({step, kind, run.item, run.place});
    };
    move(run.begin, run.fetched ? Kind::fetch : Kind::take);
    if (run.fetched) move(run.first, Kind::need);
    if (run.fetched) read_last[run.item] = std::max(read_last[run.item], run.first);
    if (run.stored) move(run.last, Kind::store);
    if (run.stored) move(run.end + 1, Kind::settle);
  }
  out.bytes = memory.most();
  std::sort(out.moves.begin(), out.moves.end(), [](const auto& a, const auto& b) {
    return std::tie(a.step, a.kind, a.item) < std::tie(b.step, b.kind, b.item);
  });
  // A place in the file is an item's from its first write to its last read, which ends before the
  // writes of that step begin.
  TimedFit file;
  std::vector<bool> has_place(out.items.size());
  for (const StageWindowPlan::Move& move : out.moves) {
    if (move.kind != Kind::store || has_place[move.item]) continue;
    has_place[move.item] = true;
    StageWindowPlan::Item& item = out.items[move.item];
    item.offset = file.take(move.step, read_last[move.item], item.bytes);
  }
  out.file_bytes = file.most();
  for (const std::uint64_t step : out.first_steps) {
    const auto first = std::partition_point(out.moves.begin(), out.moves.end(),
                                            [&](const auto& move) { return move.step < step; });
    out.first_moves.push_back(static_cast<std::uint64_t>(first - out.moves.begin()));
  }
  return out;
}

StageWindowPlan WindowPlanner::widest(std::uint64_t most) const {
  StageWindowPlan best = plan(0);
  std::uint64_t fits = 0, next = 1;
  const auto try_next = [&] {
    StageWindowPlan tried = plan(next);
    if (tried.bytes > most) return false;
    best = std::move(tried);
    fits = next;
    return true;
  };
  while (best.file_bytes > 0 && try_next()) next *= 2;
  // The first reach that takes too much.
  std::uint64_t over = best.file_bytes > 0 ? next : fits;
  while (over > fits + 1) {
    next = fits + (over - fits) / 2;
    if (!try_next()) over = next;
  }
  return best;
}

std::uint64_t count_recomputed(const ExecutorPlan& plan, const std::vector<bool>& split_layers) {
  std::vector<bool> twice(split_layers.size());
  for (const pipeline::Action& action : plan.actions) {
    if (pipeline::is_message(action.kind)) continue;
    const std::uint64_t first = plan.stages[plan.local[action.stage]].first_layer;
    visit_calls(plan, split_layers, action, [&](const PlannedCall& call) {
      if (call.again) twice[first + call.place] = true;
    });
  }
  return static_cast<std::uint64_t>(std::count(twice.begin(), twice.end(), true));
}

}  // namespace trireme::parallel
