// NetworkBackend: a group of tcp:// whose backend is chosen when the ranks have met; see Choice.
// Until then it keeps the caller's messages, and lets operations wait.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "backends/join/choice.hpp"

namespace trireme {

class NetworkBackend final : public Backend {
 public:
  NetworkBackend(const GroupOptions& options, std::shared_ptr<Choice> choice)
      : Backend(options.rank, options.world_size), choice_(std::move(choice)) {}
  ~NetworkBackend() override { choice_->leave(); }

  std::string description() const override { return choice_->now()->description(); }
  Status wait_ready_unless(Deadline deadline, const std::function<Status()>& trouble) override {
    return choice_->wait(deadline, trouble);
  }
  bool has_joined(int rank) const override { return choice_->now()->has_joined(rank); }
  Status run(const Operation& operation, std::uint64_t sequence, Deadline deadline) override;
  SmallProgress start_small(const PlainOperation& operation, std::uint64_t sequence,
                            BriefTime* out_time) noexcept override {
    Backend* const chosen = choice_->chosen();
    return chosen == nullptr ? SmallProgress::refused
                             : chosen->start_small(operation, sequence, out_time);
  }
  Status finish_small(const Operation& operation, std::uint64_t sequence,
                      Deadline deadline) override;
  Status know_natives(Deadline deadline) override;
  bool has_native(const Operation& operation) const override;
  bool prefers_native(const Operation& operation) const override;
  Status agree(const Operation& operation, std::uint64_t sequence, Deadline deadline,
               std::vector<bool>* gives) override;
  std::optional<Status> run_over_wire(const Operation& operation, std::uint64_t sequence,
                                      Deadline deadline, std::vector<bool>* gives,
                                      const OverWire& move) override;

  void post(Message& message) override;
  void progress() override;
  bool withdraw(Message& message) override;
  bool move_at_once(Message& message) noexcept override {
    Backend* const chosen = early_.list.empty() ? choice_->chosen() : nullptr;
    return chosen != nullptr && chosen->move_at_once(message);
  }
  std::atomic<std::uint32_t>* begin_rest(std::uint32_t* out_seen) noexcept override;
  void wait_activity(std::uint32_t seen, Deadline deadline) override;
  Backoff backoff() const override { return choice_->now()->backoff(); }
  void wake_waiters() override;
  std::vector<std::int32_t> unready() const override { return choice_->unready(); }

  Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) override;
  OneMemory one_memory() const override { return {choice_->uses_memory(), false}; }
  std::uint64_t key_of(Memory& memory) const override { return choice_->now()->key_of(memory); }
  Status map_peer(int peer, std::uint64_t key, std::uint64_t bytes, Deadline deadline,
                  std::shared_ptr<Memory>* out) override {
    return choice_->now()->map_peer(peer, key, bytes, deadline, out);
  }

  void fail(const Status& status) noexcept override;
  Status failure() const override;
  Status shared_failure() const override;
  void spread_failure() noexcept override { choice_->now()->spread_failure(); }
  void on_end(std::shared_ptr<const EndListener> listener) override {
    choice_->on_end(std::move(listener));
  }

  Status decide(DecisionKind kind, std::uint64_t vote, Deadline deadline, Decision* out) override {
    return choice_->insist(deadline)->decide(kind, vote, deadline, out);
  }
  void adapt(GroupOptions* options_of_child) const override { choice_->adapt(options_of_child); }
  int first_lost(const std::vector<std::int32_t>& ranks) const override {
    return choice_->now()->first_lost(ranks);
  }
  void stop_deciding() noexcept override { choice_->stop_insisting(); }

  std::vector<std::int32_t> awaited(std::uint32_t channel) const override {
    return choice_->awaited(channel);
  }
  void on_wait(std::shared_ptr<const WaitListener> listener) override {
    choice_->on_wait(listener);
  }
  void note_wait(const RankSet& ranks, Waiting what) noexcept override {
    choice_->now()->note_wait(ranks, what);
  }
  TrafficCounters traffic() const override;
  std::vector<LastCalls> last_calls() const override { return choice_->now()->last_calls(); }

 private:
  // Messages that came before the choice; the caller of post() locks.
  struct Early {
    Backend* hand_to(Backend* chosen);  // if it is not null; returns it

    MessageList list;
  };

  const std::shared_ptr<Choice> choice_;
  Early early_;
  std::atomic<std::uint32_t> resting_{0};
};

}  // namespace trireme
