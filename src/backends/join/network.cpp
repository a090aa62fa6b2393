#include "backends/join/network.hpp"

namespace trireme {
namespace {

// begin_rest() gives this number before the choice. Another backend gives it once in 2^32 times,
// and then a thread does not sleep.
constexpr std::uint32_t kNoChoice = UINT32_MAX;

}  // namespace

Status NetworkBackend::run(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  if (choice_->chosen() == nullptr) {
    TRIREME_RETURN_IF_ERROR(choice_->wait_for(operation, sequence, deadline));
  }
  return choice_->chosen()->run(operation, sequence, deadline);
}

Status NetworkBackend::finish_small(const Operation& operation, std::uint64_t sequence,
                                    Deadline deadline) {
  return choice_->chosen()->finish_small(operation, sequence, deadline);
}

Status NetworkBackend::agree(const Operation& operation, std::uint64_t sequence, Deadline deadline,
                             std::vector<bool>* gives) {
  if (choice_->chosen() == nullptr) {
    TRIREME_RETURN_IF_ERROR(choice_->wait_for(operation, sequence, deadline));
  }
  return choice_->chosen()->agree(operation, sequence, deadline, gives);
}

std::optional<Status> NetworkBackend::run_over_wire(const Operation& operation,
                                                    std::uint64_t sequence, Deadline deadline,
                                                    std::vector<bool>* gives,
                                                    const OverWire& move) {
  if (choice_->chosen() == nullptr) {
    TRIREME_RETURN_IF_ERROR(choice_->wait_for(operation, sequence, deadline));
  }
  return choice_->chosen()->run_over_wire(operation, sequence, deadline, gives, move);
}

Status NetworkBackend::know_natives(Deadline deadline) {
  if (choice_->chosen() == nullptr) TRIREME_RETURN_IF_ERROR(wait_ready(deadline));
  return choice_->chosen()->know_natives(deadline);
}

bool NetworkBackend::has_native(const Operation& operation) const {
  return choice_->now()->has_native(operation);
}

bool NetworkBackend::prefers_native(const Operation& operation) const {
  return choice_->now()->prefers_native(operation);
}

Backend* NetworkBackend::Early::hand_to(Backend* chosen) {
  while (chosen != nullptr && !list.empty()) {
    Message& message = *list.front();
    list.remove(message);
    chosen->post(message);
  }
  return chosen;
}

void NetworkBackend::post(Message& message) {
  Backend* const chosen = early_.hand_to(choice_->chosen());
  if (chosen == nullptr) return early_.list.push_back(message);
  chosen->post(message);
}

void NetworkBackend::progress() {
  if (Backend* const chosen = early_.hand_to(choice_->chosen())) chosen->progress();
}

bool NetworkBackend::withdraw(Message& message) {
  if (Backend* const chosen = early_.hand_to(choice_->chosen())) return chosen->withdraw(message);
  early_.list.remove(message);
  return true;
}

std::atomic<std::uint32_t>* NetworkBackend::begin_rest(std::uint32_t* out_seen) noexcept {
  if (Backend* const chosen = choice_->chosen()) return chosen->begin_rest(out_seen);
  *out_seen = kNoChoice;
  resting_.fetch_add(1, std::memory_order_relaxed);
  return &resting_;
}

void NetworkBackend::wait_activity(std::uint32_t seen, Deadline deadline) {
  if (seen == kNoChoice) return choice_->rest(deadline);
  choice_->chosen()->wait_activity(seen, deadline);
}

void NetworkBackend::wake_waiters() {
  if (Backend* const chosen = choice_->chosen()) chosen->wake_waiters();
  choice_->wake();
}

Status NetworkBackend::allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) {
  return choice_->allocate(bytes, out);
}

void NetworkBackend::fail(const Status& status) noexcept {
  if (Backend* const chosen = choice_->chosen()) return chosen->fail(status);
  choice_->fail(status);
}

Status NetworkBackend::failure() const {
  if (const Backend* const chosen = choice_->chosen()) return chosen->failure();
  return choice_->failure(false);
}

Status NetworkBackend::shared_failure() const {
  if (const Backend* const chosen = choice_->chosen()) return chosen->shared_failure();
  return choice_->failure(true);
}

TrafficCounters NetworkBackend::traffic() const {
  const Backend* const chosen = choice_->chosen();
  return chosen == nullptr ? TrafficCounters{} : chosen->traffic();
}

}  // namespace trireme
