#include "trainer/step_caller.hpp"

#include "platform/clock.hpp"

namespace trireme::strategies {

namespace {

class Running {
 public:
  explicit Running(std::atomic<bool>& flag) : flag_(flag) { flag_.store(true); }
  ~Running() { flag_.store(false); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

void StepCaller::request_stop() { stop_asked_.store(true, std::memory_order_relaxed); }

Status StepCaller::check_between_steps(ShardView& shard) {
  if (!shard.gradients().step_under_way()) return Status::success();
  return invalid_state(
      "a step is under way; end it with trireme_optimizer_step() or "
      "trireme_model_discard_gradients()");
}

Status StepCaller::check_ready() const {
  TRIREME_RETURN_IF_ERROR(shard_.check_sealed());
  TRIREME_RETURN_IF_ERROR(check_between_steps(shard_));
  return shard_.check_released("the trainer's step");
}

Status StepCaller::check_call() const {
  TRIREME_RETURN_IF_ERROR(model().check_call());
  if (!running_.load(std::memory_order_relaxed)) return Status::success();
  return invalid_state(
      "called from inside a callback of the trainer; only trireme_trainer_request_stop() and calls "
      "that destroy are allowed there");
}

Status StepCaller::layer_costs(Status, std::uint64_t, std::vector<LayerCost>*) {
  return invalid_state("the trainer was created without options.pipeline");
}

Status StepCaller::step(void* batch, trireme_trainer_metrics* out) {
  TRIREME_RETURN_IF_ERROR(check_ready());
  const Running running(running_);
  const std::uint64_t begin = now_ns(), exposed = exposed_ns();
  trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
  metrics.loss_scale = optimizer_->norms().loss_scale().scale();
  const std::uint64_t before = optimizer_->step_count();
  TRIREME_RETURN_IF_ERROR(pass(batch, true, &metrics.loss));
  if (Status status = optimizer_->step(); !status.ok()) {
    // A schedule that had a rate before and has none now fails before this rank has met the others,
    // which wait. A rank without a part in the step has no operation under way.
    const bool alone =
        shard_.gradients().step_under_way() || status.code() == TRIREME_ERROR_CALLBACK;
    if (alone && shard_.failure().ok()) {
      shard_.fail_groups(status.code(), status.message());
      shard_.give_up(status);
    }
    return status;
  }
  metrics.learning_rate = optimizer_->last_rate();
  metrics.stop = stop_ ? 1 : 0;
  metrics.step = optimizer_->step_count();
  metrics.skipped = metrics.step == before ? 1 : 0;
  metrics.micro_batches = micro_batches();
  metrics.sent_bytes = shard_.last_step_bytes();
  const double norm = optimizer_->norms().last_norm();
  metrics.gradient_norm = norm < 0 || metrics.skipped != 0 ? -1 : norm;
  metrics.seconds = static_cast<double>(now_ns() - begin) / 1e9;
  metrics.exposed_seconds = static_cast<double>(exposed_ns() - exposed) / 1e9;
  *out = metrics;
  if (after_step_ == nullptr) return Status::success();
  std::int32_t answer = 1;
  try {
    answer = after_step_(&metrics, user_data_);
  } catch (...) {  // of a caller in C++: the step is done all the same
  }
  if (answer != 0) request_stop();
  return Status::success();
}

Status StepCaller::evaluate(void* batch, double* out_loss) {
  TRIREME_RETURN_IF_ERROR(check_ready());
  const Running running(running_);
  return pass(batch, false, out_loss);
}

}  // namespace trireme::strategies
