#include "parallel/executor/plan.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "parallel/executor/gradient_order.hpp"
#include "parallel/pipeline/walk.hpp"

namespace trireme::parallel {

using pipeline::Action;
using pipeline::Schedule;
using strategies::activation_piece;

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

StageLayout lay_out(const StageShape& shape, const std::vector<strategies::LayerBytes>& layers,
                    std::uint64_t header_bytes) {
  StageLayout layout;
  std::uint64_t at = 0;
  const auto put = [&at, header_bytes](std::uint64_t bytes, bool has_header) {
    if (has_header) at += header_bytes;
    return std::exchange(at, at + activation_piece(bytes));
  };
  if (!shape.begins && !shape.input_in_place) layout.input = put(shape.input_bytes, true);
  layout.output = layout.input;  // of a stage without layers
  layout.layers.resize(shape.layer_count);
  for (std::uint64_t i = 0; i < shape.layer_count; ++i) {
    const bool sent = i + 1 == shape.layer_count && !shape.ends;
    const strategies::LayerBytes& bytes = layers[shape.first_layer + i];
    layout.layers[i].output = layout.output = put(bytes.output, sent);
    layout.layers[i].saved = put(bytes.saved, false);
  }
  layout.bytes = std::exchange(at, 0);
  if (!shape.ends && !shape.gradient_in_place) layout.gradient = put(shape.output_bytes, true);
  // Backward for the weights needs all of them. Else two neighbours have theirs at a time.
  std::uint64_t turns[2] = {};
  std::uint64_t largest[2] = {};
  for (std::uint64_t i = 0; i + 1 < shape.layer_count; ++i) {
    const std::uint64_t bytes = layers[shape.first_layer + i].output;
    if (shape.split) {
      layout.layers[i].gradient = put(bytes, false);
    } else {
      largest[i % 2] = std::max(largest[i % 2], bytes);
    }
  }
  for (int turn = 0; turn < 2; ++turn) turns[turn] = put(largest[turn], false);
  for (std::uint64_t i = 0; i + 1 < shape.layer_count && !shape.split; ++i) {
    layout.layers[i].gradient = turns[i % 2];
  }
  if (shape.layer_count > 0) layout.layers.back().gradient = layout.gradient;
  layout.gradient_bytes = at;
  return layout;
}

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

class Planner final : public GradientWay {
 public:
  Planner(const Schedule& schedule, const std::vector<bool>& split_layers,
          const std::vector<std::uint64_t>& gradients, bool by_pass, ExecutorPlan* plan)
      : schedule_(schedule),
        split_layers_(split_layers),
        gradients_(gradients),
        order_(gradients.size(), by_pass),
        plan_(*plan),
        taken_(plan->places.size()),
        sent_(plan->stages.size()) {
    order_.begin(plan_.micro_batches);
  }

  void run() {
    for (const Action& action : plan_.actions) {
      visit(action);
      ++moment_;
    }
    plan_.slots = slots_.most();
    plan_.parked_bytes = parked_.most();
  }

 private:
  struct Taken {
    bool activations = false, gradients = false;
  };
  std::uint64_t cell(std::uint32_t stage, std::uint32_t micro_batch) const {
    return std::uint64_t{plan_.local[stage]} * plan_.micro_batches + micro_batch;
  }
  void take_activations(std::uint32_t stage, std::uint32_t micro_batch) {
    const std::uint64_t at = cell(stage, micro_batch);
    if (std::exchange(taken_[at].activations, true)) return;
    plan_.places[at].activations = slots_.take(plan_.layouts[plan_.local[stage]].bytes);
  }
  void take_gradients(std::uint32_t stage, std::uint32_t micro_batch) {
    const std::uint64_t at = cell(stage, micro_batch);
    if (std::exchange(taken_[at].gradients, true)) return;
    plan_.places[at].gradients = slots_.take(plan_.layouts[plan_.local[stage]].gradient_bytes);
  }
  void give_back(std::uint32_t stage, std::uint32_t micro_batch) {
    const StageLayout& layout = plan_.layouts[plan_.local[stage]];
    const ExecutorPlan::Place& place = plan_.places[cell(stage, micro_batch)];
    if (layout.bytes > 0) slots_.give_back(place.activations);
    if (layout.gradient_bytes > 0) slots_.give_back(place.gradients);
    given_back_.note(place.activations, place.activations + layout.bytes, moment_ + 1);
    given_back_.note(place.gradients, place.gradients + layout.gradient_bytes, moment_ + 1);
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
  void visit(const Action& action) {
    const std::uint32_t s = action.stage, m = action.micro_batch;
    switch (action.kind) {
      case TRIREME_PIPELINE_KIND_RECV_F:
        take_activations(s, m);
        note_receive(plan_.place(s, m).activations, plan_.layouts[plan_.local[s]].bytes);
        break;
      case TRIREME_PIPELINE_KIND_F:
        take_activations(s, m);
        if (s + 1 < schedule_.stages() && !schedule_.crosses(s)) take_activations(s + 1, m);
        break;
      case TRIREME_PIPELINE_KIND_RECV_B:
        take_gradients(s, m);
        note_receive(plan_.place(s, m).gradients, plan_.layouts[plan_.local[s]].gradient_bytes);
        break;
      case TRIREME_PIPELINE_KIND_I:
      case TRIREME_PIPELINE_KIND_B: {
        take_gradients(s, m);
        if (s > 0 && !schedule_.crosses(s - 1)) take_gradients(s - 1, m);
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
  GivenBack given_back_{};    // of slots
  std::uint64_t moment_ = 0;  // the number of the action
};

}  // namespace

ExecutorPlan plan_execution(const Schedule& schedule, std::uint32_t rank, bool one_memory,
                            std::vector<StageShape> stages,
                            const std::vector<strategies::LayerBytes>& layers,
                            const std::vector<bool>& split_layers,
                            const std::vector<std::uint64_t>& gradients, bool by_pass) {
  ExecutorPlan plan;
  if (one_memory) plan.header_bytes = 0;
  plan.micro_batches = schedule.micro_batches;
  plan.stages = std::move(stages);
  plan.local.resize(schedule.stages());
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    plan.local[plan.stages[i].stage] = static_cast<std::uint32_t>(i);
    if (one_memory) find_in_place(schedule, &plan.stages[i]);
    plan.layouts.push_back(lay_out(plan.stages[i], layers, plan.header_bytes));
  }
  const auto list = schedule.of(rank);
  plan.actions.assign(list.begin(), list.end());
  plan.places.resize(plan.stages.size() * plan.micro_batches);
  plan.sent_places = waiting_messages(schedule);
  // The receiver reads one more in place.
  if (one_memory && plan.sent_places < plan.micro_batches) ++plan.sent_places;
  Planner(schedule, split_layers, gradients, by_pass, &plan).run();
  for (const StageShape& shape : plan.stages) {
    plan.sent.push_back(plan.slots + plan.sent_bytes);
    const bool sends = !shape.begins && schedule.crosses(shape.stage - 1);
    if (sends) plan.sent_bytes += plan.sent_places * plan.sent_stride(shape.stage);
  }
  for (auto& [key, place] : plan.parked) place += plan.slots + plan.sent_bytes;
  return plan;
}

}  // namespace trireme::parallel
