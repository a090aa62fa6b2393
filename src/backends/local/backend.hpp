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
  // group_name: the part after local:// or host://.
  static Status join(const GroupOptions& options, const std::string& group_name, bool processes,
                     std::unique_ptr<Backend>* out);
  // The two halves of join(). Between them only allocate() and the listeners may be called.
  static std::unique_ptr<LocalBackend> make(const GroupOptions& options, bool processes);
  Status meet(const std::string& group_name, std::shared_ptr<const Token> token);

  // For ranks that have another way to each other. Whether all ranks use this group: the first call
  // of any rank that maps the segment decides. A rank that has not joined yet must not join after
  // it has asked for `use` false.
  bool settle(bool use) noexcept;

  ~LocalBackend() override;

  std::string description() const override;
  Status wait_ready_unless(Deadline deadline, const std::function<Status()>& trouble) override;
  bool has_joined(int peer) const override { return peer == rank() || membership_->joined(peer); }
  Status run(const Operation& operation, std::uint64_t sequence, Deadline deadline) override;
  SmallProgress start_small(const PlainOperation& operation, std::uint64_t sequence,
                            BriefTime* out_time) noexcept override;
  Status finish_small(const Operation& operation, std::uint64_t sequence,
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
  bool move_at_once(Message& message) noexcept override {
    return set_of(message).move_at_once(message);
  }
  void wait_activity(std::uint32_t seen, Deadline deadline) override {
    group_.wait_activity(seen, deadline);
  }
  std::atomic<std::uint32_t>* begin_rest(std::uint32_t* out_seen) noexcept override {
    return group_.begin_rest(out_seen);
  }
  Backoff backoff() const override { return group_.bells().backoff(); }
  void wake_waiters() override { group_.bells().wake_waiters(); }
  OneMemory one_memory() const override { return {true, true}; }
  std::uint64_t key_of(Memory& memory) const override { return buffers_->key_of(memory); }
  Status map_peer(int peer, std::uint64_t key, std::uint64_t bytes, Deadline deadline,
                  std::shared_ptr<Memory>* out) override {
    return buffers_->map_peer(peer, key, bytes, deadline, out);
  }
  Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) override {
    return buffers_->allocate(bytes, out);
  }
  void fail(const Status& status) noexcept override { group_.failure().tell(status); }
  Status failure() const override { return group_.failure().status(); }
  Status shared_failure() const override { return group_.failure().shared_status(); }
  void spread_failure() noexcept override {
    if (group_.failure().happened()) membership_->spread_failure();
  }
  void on_end(std::shared_ptr<const EndListener> listener) override {
    membership_->on_end(std::move(listener));
  }
  Status decide(DecisionKind kind, std::uint64_t vote, Deadline deadline, Decision* out) override {
    return decisions_.decide(kind, vote, deadline, out);
  }
  int first_lost(const std::vector<std::int32_t>& ranks) const override {
    for (const std::int32_t rank : ranks) {
      if (group_.segment() != nullptr && group_.presence().counts_as_lost(rank)) return rank;
    }
    return -1;
  }
  void stop_deciding() noexcept override { decisions_.stop(); }
  TrafficCounters traffic() const override {
    const TrafficCounters small = collectives_.small_traffic();
    TrafficCounters all = group_.traffic().all();
    all.sent_bytes += small.sent_bytes;
    all.received_bytes += small.received_bytes;
    return all;
  }
  void on_wait(std::shared_ptr<const WaitListener> listener) override {
    group_.blame().on_wait(std::move(listener));
  }
  void note_wait(const RankSet& ranks, Waiting what) noexcept override {
    group_.blame().note_wait(ranks, what);
  }
  std::vector<std::int32_t> awaited(std::uint32_t channel) const override {
    return group_.blame().awaited(channel);
  }
  std::vector<LastCalls> last_calls() const override { return group_.presence().last_calls(); }

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
