// LocalBackend: ranks of one host, as threads of one process or as processes.
#pragma once

#include <atomic>
#include <memory>

#include "backends/backend.hpp"
#include "backends/slots/collective.hpp"
#include "backends/slots/decisions.hpp"
#include "backends/slots/group.hpp"
#include "backends/slots/membership.hpp"
#include "backends/slots/memory.hpp"
#include "backends/slots/messages.hpp"

namespace trireme::local {

class LocalBackend final : public Backend {
 public:
  // group_name: what follows local:// or host://.
  static Status join(const GroupOptions& options, const std::string& group_name, bool processes,
                     std::unique_ptr<Backend>* out);
  ~LocalBackend() override;

  std::string description() const override;
  Status wait_ready(Deadline deadline) override;
  Status run(const Operation& operation, std::uint64_t sequence, Deadline deadline) override;
  Brief start_brief(const PlainOperation& operation, std::uint64_t sequence,
                    BriefTime* out_time) noexcept override;
  Status finish_brief(const Operation& operation, std::uint64_t sequence,
                      Deadline deadline) override;
  bool has_native(const Operation&) const override { return true; }
  Status agree(const Operation& operation, std::uint64_t sequence, Deadline deadline,
               std::vector<bool>* gives) override;
  void post(Message& message) override { set_of(message).post(message); }
  void progress() override {
    messages_.progress();
    algorithms_.progress();
  }
  bool withdraw(Message& message) override { return set_of(message).withdraw(message); }
  std::uint32_t activity() const override { return group_.activity(); }
  void wait_activity(std::uint32_t seen, Deadline deadline) override {
    group_.wait_activity(seen, deadline);
  }
  void wake_waiters() override { group_.wake_waiters(); }
  bool shares_memory() const override { return true; }
  std::uint64_t key_of(Memory& memory) const override {
    return buffers_->key_of(memory);
  }
  Status map_peer(int peer, std::uint64_t key, std::uint64_t bytes, Deadline deadline,
                  std::shared_ptr<Memory>* out) override {
    return buffers_->map_peer(peer, key, bytes, deadline, out);
  }
  Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) override {
    return buffers_->allocate(bytes, out);
  }
  void fail(const Status& status) noexcept override { group_.fail(status); }
  Status failure() const override { return group_.failure(); }
  Status shared_failure() const override { return group_.shared_failure(); }
  void on_end(std::shared_ptr<const EndListener> listener) override {
    membership_->on_end(std::move(listener));
  }
  Status decide(DecisionKind kind, std::uint64_t vote, Deadline deadline, Decision* out) override {
    return decisions_.decide(kind, vote, deadline, out);
  }
  bool counts_as_lost(int rank) const override {
    return group_.segment() != nullptr && group_.counts_as_lost(rank);
  }
  void stop_deciding() noexcept override { decisions_.stop(); }
  TrafficCounters traffic() const override {
    const TrafficCounters brief = collectives_.brief_traffic();
    TrafficCounters all = group_.traffic();
    all.bytes_sent += brief.bytes_sent;
    all.bytes_received += brief.bytes_received;
    return all;
  }
  std::vector<std::int32_t> awaited(std::uint32_t channel) const override {
    return group_.awaited(channel);
  }
  std::vector<LastCalls> last_calls() const override { return group_.last_calls(); }

 private:
  LocalBackend(const GroupOptions& options, bool processes);
  Messages& set_of(const Message& message) {
    return message.context == 0 ? messages_ : algorithms_;
  }
  const std::string met_by_;
  Group group_;
  const std::shared_ptr<Buffers> buffers_;
  Collectives collectives_;
  Messages messages_;
  Messages algorithms_;  // their messages
  Decisions decisions_;
  std::unique_ptr<Membership> membership_;
  std::atomic<bool> ready_{false};
};

}  // namespace trireme::local
