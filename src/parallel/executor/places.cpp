#include "parallel/executor/places.hpp"

#include <utility>

namespace trireme::parallel {
namespace {

constexpr std::size_t kMostPosted = 8;

}  // namespace

Status StagePlaces::meet_skips(const strategies::LayerTable& layers,
                               const std::vector<std::uint64_t>& cuts) {
  lanes_ = std::make_unique<Lanes>(schedule_);
  return skips_.meet(link_, layers, {schedule_, cuts, has_one_memory()}, lanes_.get());
}

std::uint64_t StagePlaces::mail_bytes() const {
  return has_one_memory() ? StageMail::planned_bytes(*lanes_, link_.rank()) : 0;
}

Status StagePlaces::use(std::shared_ptr<Memory> arena, std::uint64_t mail,
                        std::uint64_t hash_of_schedule) {
  arena_ = std::move(arena);
  in_place_.resize(plan_.places.size());
  if (has_one_memory()) {
    mail_ = std::make_unique<StageMail>(link_, *lanes_);
    TRIREME_RETURN_IF_ERROR(mail_->use(arena_, mail));
  }
  if (arena_ != nullptr) skips_.use(static_cast<char*>(arena_->data()) + mail + mail_bytes());
  links_.use(arena_, mail_.get());
  links_.set_hash(hash_of_schedule);
  return Status::success();
}

Status StagePlaces::open_window(const strategies::Link& link, const std::string& directory) {
  window_ = std::make_unique<StageWindow>(link, plan_.window, directory);
  return window_->open();
}

void StagePlaces::begin_pass(const Pass& pass) {
  pass_ = pass;
  links_.begin_pass();
  skips_.begin_pass(pass.trains, pass.step, pass.micro_batches);
  next_receive_ = 0;
  in_place_.assign(in_place_.size(), {});
}

StagePlaces::Cell StagePlaces::cell(std::uint32_t stage, std::uint32_t micro_batch,
                                    bool first) const {
  const ExecutorPlan::Place& place = plan_.place(stage, micro_batch);
  const InPlace& there = in_place_[plan_.index(stage, micro_batch)];
  char* const memory = arena_ ? static_cast<char*>(arena_->data()) : nullptr;
  Cell cell;
  cell.shape = &plan_.stages[plan_.local[stage]];
  cell.layout = &plan_.layouts[place.layout];
  cell.place = &place;
  cell.layers = first ? &cell.layout->first : &cell.layout->layers;
  cell.micro_batch = micro_batch;
  cell.present = micro_batch < pass_.micro_batches;
  cell.activations = memory + place.activations;
  cell.gradients = memory + place.gradients;
  cell.again = memory + place.again;
  cell.work = memory + plan_.slots;
  if (window_ != nullptr) cell.items = window_->items(plan_.index(stage, micro_batch));
  cell.input = there.input != nullptr ? there.input : cell.activations + cell.layout->input;
  cell.output_gradient = there.output_gradient != nullptr ? there.output_gradient
                                                          : cell.gradients + cell.layout->gradient;
  return cell;
}

Status StagePlaces::claim_activations(const Cell& cell) {
  return links_.claim(cell.activations, cell.layout->bytes);
}

Status StagePlaces::claim_again(const Cell& cell) {
  return links_.claim(cell.again, cell.layout->again_bytes);
}

Status StagePlaces::claim_gradients(const Cell& cell) {
  return links_.claim(cell.gradients, cell.layout->gradient_bytes);
}

char* StagePlaces::sent_gradient(const Cell& from) const {
  const std::uint32_t stage = from.shape->stage;
  return static_cast<char*>(arena_->data()) + plan_.sent[plan_.local[stage]] +
         plan_.place(stage, from.micro_batch).sent * plan_.sent_stride(stage) + plan_.header_bytes;
}

Status StagePlaces::find_input_gradient(const Cell& here, char** out) {
  const std::uint32_t stage = here.shape->stage;
  *out = nullptr;
  if (here.shape->begins) return Status::success();
  if (schedule_.crosses(stage - 1)) {
    *out = sent_gradient(here);
    return links_.claim(*out - plan_.header_bytes, plan_.sent_stride(stage));
  }
  const Cell before = cell(stage - 1, here.micro_batch);
  *out = before.gradients + before.layout->gradient;
  return claim_gradients(before);
}

StageMessage StagePlaces::message_of(StageDirection direction, std::uint32_t sender,
                                     std::uint32_t micro_batch, std::uint64_t bytes) const {
  StageMessage message;
  message.direction = direction;
  message.trains = pass_.trains;
  message.step = pass_.step;
  message.stage = sender;
  message.micro_batch = micro_batch;
  message.bytes = bytes;
  message.lane = Lanes::of_stage(sender, direction);
  return message;
}

StageMessage StagePlaces::received(const Cell& to, StageDirection direction) const {
  const bool forward = direction == StageDirection::forward;
  return message_of(direction, forward ? to.shape->stage - 1 : to.shape->stage + 1, to.micro_batch,
                    forward ? to.shape->input_bytes : to.shape->output_bytes);
}

Status StagePlaces::receive(const Cell& to, StageDirection direction, StageNews* news) {
  const bool forward = direction == StageDirection::forward;
  TRIREME_RETURN_IF_ERROR(forward ? claim_activations(to) : claim_gradients(to));
  const StageMessage message = received(to, direction);
  const std::uint32_t from = schedule_.rank_of[message.stage];
  if (forward ? to.shape->input_in_place : to.shape->gradient_in_place) {
    InPlace& here = in_place_[plan_.index(to.shape->stage, to.micro_batch)];
    return links_.receive_in_place(message, from, news,
                                   forward ? &here.input : &here.output_gradient);
  }
  return links_.receive(message, place_of(to, direction), from, news);
}

char* StagePlaces::place_of(const Cell& to, StageDirection direction) const {
  return direction == StageDirection::forward ? to.activations + to.layout->input
                                              : to.gradients + to.layout->gradient;
}

Status StagePlaces::post_receives(std::uint64_t before) {
  if (mail_ != nullptr) return Status::success();
  for (; next_receive_ < plan_.receives.size(); ++next_receive_) {
    const ExecutorPlan::Receive& receive = plan_.receives[next_receive_];
    if (receive.action < before) continue;
    // Messages of a stage meet their receives in order. So none is posted before one that is not.
    const bool may_come = receive.action > before && receive.earliest <= before;
    if (!may_come || links_.posted() >= kMostPosted) break;
    const pipeline::Action& action = plan_.actions[receive.action];
    const bool forward = action.kind == TRIREME_PIPELINE_KIND_RECV_F;
    const auto direction = forward ? StageDirection::forward : StageDirection::backward;
    const Cell to = cell(action.stage, action.micro_batch);
    if (!to.present || !(forward || pass_.trains)) continue;
    const bool is_free = forward ? links_.is_free(to.activations, to.layout->bytes)
                                 : links_.is_free(to.gradients, to.layout->gradient_bytes);
    if (!is_free) break;
    const StageMessage message = received(to, direction);
    TRIREME_RETURN_IF_ERROR(
        links_.post(message, place_of(to, direction), schedule_.rank_of[message.stage]));
  }
  return Status::success();
}

Status StagePlaces::send(const Cell& from, StageDirection direction, const StageNews& news) {
  const bool forward = direction == StageDirection::forward;
  const std::uint32_t stage = from.shape->stage;
  const StageMessage message =
      message_of(direction, stage, from.micro_batch,
                 forward ? from.shape->output_bytes : from.shape->input_bytes);
  char* const data = forward ? from.activations + from.layout->output : sent_gradient(from);
  return links_.send(message, news, data, schedule_.rank_of[forward ? stage + 1 : stage - 1]);
}

Status StagePlaces::give_back(const Cell& cell) {
  InPlace& there = in_place_[plan_.index(cell.shape->stage, cell.micro_batch)];
  if (std::exchange(there.input, nullptr) != nullptr) {
    TRIREME_RETURN_IF_ERROR(links_.release(received(cell, StageDirection::forward)));
  }
  if (std::exchange(there.output_gradient, nullptr) != nullptr) {
    TRIREME_RETURN_IF_ERROR(links_.release(received(cell, StageDirection::backward)));
  }
  return Status::success();
}

}  // namespace trireme::parallel
