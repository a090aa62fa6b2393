#include "parallel/executor/plan.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "parallel/executor/gradient_order.hpp"
#include "parallel/pipeline/walk.hpp"

namespace trireme::parallel {

using pipeline::Action;
using pipeline::Schedule;

std::uint64_t FirstFit::take(std::uint64_t bytes) {
  if (bytes == 0) return 0;
  std::uint64_t place = 0;
  for (const auto& [begin, end] : taken_) {
    if (begin - place >= bytes) break;
    place = end;
  }
  taken_.emplace(place, place + bytes);
  most_ = std::max(most_, place + bytes);
  return place;
}

namespace {

// When each byte was given back last.
class GivenBack {
 public:
  // `moment` is later than those before.
  void note(std::uint64_t begin, std::uint64_t end, std::uint64_t moment) {
    if (begin == end) return;
    cut(begin);
    cut(end);
    pieces_.erase(pieces_.lower_bound(begin), pieces_.lower_bound(end));
    pieces_[begin] = {end, moment};
  }
  // Of the bytes in between; 0 if none of them was given back.
  std::uint64_t latest(std::uint64_t begin, std::uint64_t end) {
    cut(begin);
    std::uint64_t moment = 0;
    for (auto next = pieces_.lower_bound(begin); next != pieces_.end() && next->first < end;
         ++next) {
      moment = std::max(moment, next->second.moment);
    }
    return moment;
  }

 private:
  struct Piece {
    std::uint64_t end = 0, moment = 0;
  };

  void cut(std::uint64_t at) {
    const auto after = pieces_.lower_bound(at);
    if (after == pieces_.begin()) return;
    Piece& piece = std::prev(after)->second;
    if (piece.end <= at) return;
    pieces_[at] = piece;
    piece.end = at;
  }

  std::map<std::uint64_t, Piece> pieces_{};  // by begin
};

// Whether a rank is done with each gradient of the stage's output before it receives the next one.
bool takes_gradients_in_turn(const Schedule& schedule, std::uint32_t stage) {
  bool waits = false;
  for (const Action& action : schedule.of(schedule.rank_of[stage])) {
    if (action.stage != stage) continue;
    if (pipeline::is_backward(action.kind)) waits = false;
    if (action.kind == TRIREME_PIPELINE_KIND_RECV_B && std::exchange(waits, true)) return false;
  }
  return true;
}

// W reads the input of its stage, too, and the gradient of its output. Their sender may need the
// memory earlier: no action of another rank waits for a W. B has no such half. It comes before
// backward of the stage before, so that no sender waits for the memory of an output. A stage
// without layers copies.
void find_in_place(const Schedule& schedule, StageShape* shape) {
  if (shape->layer_count == 0) return;
  for (const Action& action : schedule.of(schedule.rank_of[shape->stage])) {
    const bool half = action.kind == TRIREME_PIPELINE_KIND_W && action.stage == shape->stage;
    if (half && shape->split) return;
  }
  shape->input_in_place = !shape->begins && schedule.crosses(shape->stage - 1);
  shape->gradient_in_place =
      schedule.crosses(shape->stage) && takes_gradients_in_turn(schedule, shape->stage);
}

// Whether each SEND_B follows the I or B that computes its gradient.
bool sends_gradients_at_once(const Schedule& schedule) {
  for (std::uint32_t rank = 0; rank < schedule.ranks; ++rank) {
    const auto list = schedule.of(rank);
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind != TRIREME_PIPELINE_KIND_SEND_B) continue;
      const bool follows = i > 0 && pipeline::is_backward(list[i - 1].kind) &&
                           list[i - 1].stage == list[i].stage &&
                           list[i - 1].micro_batch == list[i].micro_batch;
      if (!follows) return false;
    }
  }
  return true;
}

// Messages of a boundary that may wait: two, so that a rank goes on while its peer is late, or as
// many as the schedule needs. A gradient takes its place before it is computed. If its message
// begins later, each micro-batch has a place of its own, and no rank waits for a place.
std::uint32_t waiting_messages(const Schedule& schedule) {
  if (!sends_gradients_at_once(schedule)) return schedule.micro_batches;
  std::uint32_t count = std::min<std::uint32_t>(2, schedule.micro_batches);
  const auto goes = [&schedule](std::uint32_t buffers) {
    return pipeline::Walk(schedule, buffers)
        .run([](std::uint32_t, std::uint64_t, const Action&, const pipeline::Need&) {});
  };
  while (count < schedule.micro_batches && !goes(count)) {
    count = count > schedule.micro_batches / 2 ? schedule.micro_batches : count * 2;
  }
  return count;
}

// The layouts of a stage, in this order. All layers are computed again where the schedule has R.
enum LayoutKind : std::uint32_t { kKeepsAll, kWithR, kAtOnce, kInStretches, kLayoutKinds };

class Planner final : public GradientWay {
 public:
  Planner(const PlanInput& input, ExecutorPlan* plan)
      : schedule_(input.schedule),
        split_layers_(input.split_layers),
        gradients_(input.gradients),
        order_(input.gradients.size(), input.by_pass),
        plan_(*plan),
        taken_(plan->places.size()),
        sent_(plan->stages.size()) {
    order_.begin(plan_.micro_batches);
  }

  void run() {
    choose_layouts();
    for (const Action& action : plan_.actions) {
      visit(action);
      ++moment_;
    }
    plan_.slots = slots_.most();
    plan_.parked_bytes = parked_.most();
  }

 private:
  struct Taken {
    bool activations = false, gradients = false, again = false;
  };
  static constexpr std::uint64_t kNobody = UINT64_MAX;

  std::uint64_t cell(std::uint32_t stage, std::uint32_t micro_batch) const {
    return plan_.index(stage, micro_batch);
  }
  const StageLayout& layout(std::uint64_t at) const {
    return plan_.layouts[plan_.places[at].layout];
  }

  // A backward right after its forward finds all where that has left it. Before W, the whole stage
  // is in memory anyway, so such a one keeps it.
  void choose_layouts() {
    std::vector<bool> has_r(plan_.places.size()), has_w(has_r), at_hand(has_r);
    std::uint64_t before = kNobody;  // of the last action that is no message, if that is an F
    for (const Action& action : plan_.actions) {
      if (pipeline::is_message(action.kind)) continue;
      const std::uint64_t at = cell(action.stage, action.micro_batch);
      if (action.kind == TRIREME_PIPELINE_KIND_R) has_r[at] = true;
      if (action.kind == TRIREME_PIPELINE_KIND_W) has_w[at] = true;
      if (pipeline::is_backward(action.kind) && before == at) at_hand[at] = true;
      before = pipeline::is_forward(action.kind) ? at : kNobody;
    }
    for (std::uint64_t at = 0; at < plan_.places.size(); ++at) {
      const auto first = static_cast<std::uint32_t>(at / plan_.micro_batches * kLayoutKinds);
      LayoutKind kind = kInStretches;
      if (has_w[at] && plan_.stages[at / plan_.micro_batches].split) {
        kind = at_hand[at] ? kKeepsAll : kAtOnce;
      }
      if (has_r[at]) kind = kWithR;
      // None of its layers is computed again.
      if (plan_.layouts[first + kind].recomputed == 0) kind = kKeepsAll;
      plan_.places[at].layout = first + kind;
      plan_.places[at].recomputes = kind == kAtOnce;
      plan_.work = std::max(plan_.work, layout(at).work_bytes);
    }
  }
  void take_activations(std::uint32_t stage, std::uint32_t micro_batch) {
    const std::uint64_t at = cell(stage, micro_batch);
    if (std::exchange(taken_[at].activations, true)) return;
    plan_.places[at].activations = slots_.take(layout(at).bytes);
  }
  void take_gradients(std::uint32_t stage, std::uint32_t micro_batch) {
    const std::uint64_t at = cell(stage, micro_batch);
    if (std::exchange(taken_[at].gradients, true)) return;
    plan_.places[at].gradients = slots_.take(layout(at).gradient_bytes);
  }
  void take_again(std::uint64_t at) {
    if (std::exchange(taken_[at].again, true)) return;
    plan_.places[at].again = slots_.take(layout(at).again_bytes);
  }
  void give_back(std::uint32_t stage, std::uint32_t micro_batch) {
    const std::uint64_t at = cell(stage, micro_batch);
    const ExecutorPlan::Place& place = plan_.places[at];
    give_back(place.activations, layout(at).bytes);
    give_back(place.gradients, layout(at).gradient_bytes);
    give_back(place.again, layout(at).again_bytes);
  }
  void give_back(std::uint64_t place, std::uint64_t bytes) {
    if (bytes > 0) slots_.give_back(place);
    given_back_.note(place, place + bytes, moment_ + 1);
  }
  void note_receive(std::uint64_t place, std::uint64_t bytes) {
    plan_.receives.push_back({moment_, given_back_.latest(place, place + bytes)});
  }
  void produce(std::uint32_t stage, std::uint32_t micro_batch, bool of_split, bool of_others) {
    const StageShape& shape = plan_.stages[plan_.local[stage]];
    for (std::uint64_t i = shape.layer_count; i-- > 0;) {
      const std::uint64_t layer = shape.first_layer + i;
      if (!(split_layers_[layer] ? of_split : of_others)) continue;
      static_cast<void>(order_.produced(layer, micro_batch, *this));
    }
  }
  void use_work(std::uint64_t at) {
    if (layout(at).way != StageLayout::Way::kept) in_work_ = at;
  }
  // An output that is sent lies elsewhere after the first forward.
  void find_last_stretch(std::uint32_t stage, std::uint64_t at) {
    const StageLayout& own = layout(at);
    if (own.way != StageLayout::Way::stretches) return;
    const StageShape& shape = plan_.stages[plan_.local[stage]];
    const bool elsewhere = shape.sends && own.recomputed == shape.layer_count;
    plan_.places[at].has_last_stretch = in_work_ == at && !elsewhere;
    in_work_ = kNobody;
  }
  void visit(const Action& action) {
    const std::uint32_t s = action.stage, m = action.micro_batch;
    switch (action.kind) {
      case TRIREME_PIPELINE_KIND_RECV_F:
        take_activations(s, m);
        note_receive(plan_.place(s, m).activations, plan_.layout(s, m).bytes);
        break;
      case TRIREME_PIPELINE_KIND_F:
        take_activations(s, m);
        if (s + 1 < schedule_.stages() && !schedule_.crosses(s)) take_activations(s + 1, m);
        use_work(cell(s, m));
        break;
      case TRIREME_PIPELINE_KIND_R: take_again(cell(s, m)); break;
      case TRIREME_PIPELINE_KIND_RECV_B:
        take_gradients(s, m);
        note_receive(plan_.place(s, m).gradients, plan_.layout(s, m).gradient_bytes);
        break;
      case TRIREME_PIPELINE_KIND_I:
      case TRIREME_PIPELINE_KIND_B: {
        take_gradients(s, m);
        if (s > 0 && !schedule_.crosses(s - 1)) take_gradients(s - 1, m);
        if (plan_.places[cell(s, m)].recomputes) take_again(cell(s, m));
        find_last_stretch(s, cell(s, m));
        plan_.places[cell(s, m)].sent = sent_[plan_.local[s]]++ % plan_.sent_places;
        const bool all = action.kind == TRIREME_PIPELINE_KIND_B;
        produce(s, m, all, true);
        if (all || !plan_.stages[plan_.local[s]].split) give_back(s, m);
        break;
      }
      case TRIREME_PIPELINE_KIND_W:
        produce(s, m, true, false);
        if (plan_.stages[plan_.local[s]].split) give_back(s, m);
        break;
      default: break;
    }
  }

  Status park(std::uint64_t layer, std::uint32_t micro_batch) override {
    plan_.parked[{micro_batch, layer}] = parked_.take(gradients_[layer]);
    return Status::success();
  }
  Status take(std::uint64_t layer, std::uint32_t micro_batch, bool parked) override {
    if (parked && gradients_[layer] > 0) parked_.give_back(plan_.parked[{micro_batch, layer}]);
    return Status::success();
  }
  Status end_pass() override { return Status::success(); }

  const Schedule& schedule_;
  const std::vector<bool>& split_layers_;
  const std::vector<std::uint64_t>& gradients_;
  GradientOrder order_;
  ExecutorPlan& plan_;
  std::vector<Taken> taken_;
  std::vector<std::uint32_t> sent_;  // by stage: gradients of its input
  FirstFit slots_{}, parked_{};
  std::uint64_t in_work_ = kNobody;  // whose forward was the last one to use it
  GivenBack given_back_{};           // of slots
  std::uint64_t moment_ = 0;         // the number of the action
};

void count_stretches(const std::vector<StageCut>& cuts, ExecutorPlan* plan) {
  plan->stretches = 0;
  bool cut = false;
  for (std::size_t i = 0; i < plan->stages.size(); ++i) {
    const std::uint64_t count = plan->stages[i].layer_count;
    plan->stretches += cuts[i].size() - 1 + (cuts[i].back() < count ? 1 : 0);
    cut = cut || cuts[i].back() > 0;
  }
  if (!cut) plan->stretches = 1;
}

}  // namespace

PlanInput::PlanInput(const Schedule& of_all, std::uint32_t own, bool has_one_memory,
                     std::vector<StageShape> shapes)
    : schedule(of_all),
      rank(own),
      one_memory(has_one_memory),
      stages(std::move(shapes)),
      sent_places(waiting_messages(of_all)) {
  // The receiver reads one more in place.
  if (one_memory && sent_places < schedule.micro_batches) ++sent_places;
  for (StageShape& shape : stages) {
    shape.sends = schedule.crosses(shape.stage);
    if (one_memory) find_in_place(schedule, &shape);
  }
}

ExecutorPlan plan_execution(const PlanInput& input, const std::vector<StageCut>& cuts) {
  const Schedule& schedule = input.schedule;
  ExecutorPlan plan;
  if (input.one_memory) plan.header_bytes = 0;
  plan.micro_batches = schedule.micro_batches;
  plan.stages = input.stages;
  plan.local.resize(schedule.stages());
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const StageShape& shape = plan.stages[i];
    plan.local[shape.stage] = static_cast<std::uint32_t>(i);
    const auto put = [&](StageLayout::Way way, const StageCut& firsts) {
      plan.layouts.push_back(lay_out(shape, input.layers, plan.header_bytes, way, firsts));
    };
    put(StageLayout::Way::kept, {});
    put(StageLayout::Way::at_once, {0, shape.layer_count});
    put(StageLayout::Way::at_once, cuts[i]);
    put(StageLayout::Way::stretches, cuts[i]);
  }
  const auto list = schedule.of(input.rank);
  plan.actions.assign(list.begin(), list.end());
  plan.places.resize(plan.stages.size() * plan.micro_batches);
  plan.sent_places = input.sent_places;
  Planner(input, &plan).run();
  for (const StageShape& shape : plan.stages) {
    plan.sent.push_back(plan.slots + plan.work + plan.sent_bytes);
    const bool sends = !shape.begins && schedule.crosses(shape.stage - 1);
    if (sends) plan.sent_bytes += plan.sent_places * plan.sent_stride(shape.stage);
  }
  for (auto& [key, place] : plan.parked) place += plan.activation_bytes();
  count_stretches(cuts, &plan);
  plan.recomputed = count_recomputed(plan, input.split_layers);
  return plan;
}

}  // namespace trireme::parallel
