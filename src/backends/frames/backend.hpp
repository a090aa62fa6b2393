// HostBackend: ranks whose bytes a transport carries in frames. Ranks compare their calls, and
// exchange small data, through slots that the frame link takes to the peers; messages make larger
// collectives, or an engine runs them where there is one.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backends/backend.hpp"
#include "backends/engine.hpp"
#include "backends/frames/frame_link.hpp"
#include "backends/slots/collective.hpp"
#include "backends/slots/memory.hpp"
#include "backends/slots/messages.hpp"

namespace trireme::host {

class HostBackend final : public Backend {
 public:
  // The ways under this backend.
  struct Ways {
    trireme_transport transport;
    std::shared_ptr<Engine> engine;  // may be null; released when the transport is, and before it
    std::string description;         // "frames (transport)"
    // Own transports only: receive() may return PEER_LOST for a rank whose last frame was taken,
    // and this says why. For rank -1 it says why the group fails. Null: the transport knows no
    // losses.
    std::function<Status(int)> loss;
    // Own transports only: waits a short time until the system has all frames that send() took, and
    // the process may end. `because_of_another`: the rank leaves because it lost another one.
    std::function<void(bool because_of_another)> settle = nullptr;
    // Own transports only: a rank has said goodbye, so the end of its connections is no loss.
    std::function<void(int rank)> left = nullptr;
    // Own transports only: the ranks that give no sign of life.
    std::function<std::vector<std::int32_t>()> silent = nullptr;
    // Own transports only: see local::Membership.
    local::Membership::Absence absence = nullptr;
    // Opens a place where a group of some of the ranks can meet, until *out is released;
    // "ADDRESS:PORT". Null: the ranks cannot decide anything.
    std::function<Status(std::string* place, std::shared_ptr<const void>* out)> open_meeting =
        nullptr;
    // Other ranks of the group may not know yet that it sends frames.
    bool others_may_choose = false;
    // Own transports only: a connection to a rank that is not near is made by the first frame for
    // it. See schedules/overlay.hpp.
    bool few_connections = false;
  };
  // group_name: the group's name on all its ranks. `ways` is kept if this succeeds.
  static Status join(const GroupOptions& options, const std::string& group_name, Ways ways,
                     std::unique_ptr<Backend>* out);
  ~HostBackend() override;

  std::string description() const override;
  Status wait_ready_unless(Deadline deadline, const std::function<Status()>& trouble) override;
  bool has_joined(int peer) const override { return peer == rank() || frame_link_->joined(peer); }
  Status run(const Operation& operation, std::uint64_t sequence, Deadline deadline) override;
  // The first step of run(): waits until all ranks have joined. A failure is the group's.
  Status begin(const Operation& operation, std::uint64_t sequence, Deadline deadline);
  // Fails the group with this status of an operation. Returns the group's failure.
  Status fail_operation(const Operation& operation, std::uint64_t sequence, const Status& status);
  SmallProgress start_small(const PlainOperation& operation, std::uint64_t sequence,
                            BriefTime* out_time) noexcept override;
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
  void post(Message& message) override { set_of(message).post(message); }
  void progress() override {
    messages_.progress();
    algorithms_.progress();
  }
  bool withdraw(Message& message) override { return set_of(message).withdraw(message); }
  void wait_activity(std::uint32_t seen, Deadline deadline) override {
    group_.wait_activity(seen, deadline);
  }
  std::atomic<std::uint32_t>* begin_rest(std::uint32_t* out_seen) noexcept override {
    return group_.begin_rest(out_seen);
  }
  Backoff backoff() const override { return group_.bells().backoff(); }
  void wake_waiters() override { group_.bells().wake_waiters(); }
  Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) override {
    return buffers_->allocate(bytes, out);
  }
  OneMemory one_memory() const override { return {false, !others_may_choose_, true}; }
  Status decide(DecisionKind kind, std::uint64_t vote, Deadline deadline, Decision* out) override;
  int first_lost(const std::vector<std::int32_t>& ranks) const override {
    return frame_link_->decisions().first_lost(ranks);
  }
  void stop_deciding() noexcept override { frame_link_->decisions().stop(); }
  void fail(const Status& status) noexcept override;
  Status failure() const override { return group_.failure().status(); }
  Status shared_failure() const override { return group_.failure().shared_status(); }
  void spread_failure() noexcept override {
    if (group_.failure().happened()) frame_link_->spread_failure();
  }
  void on_end(std::shared_ptr<const EndListener> listener) override {
    frame_link_->on_end(std::move(listener));
  }
  TrafficCounters traffic() const override;
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
  bool is_rooted(const Operation& operation) const;
  HostBackend(const GroupOptions& options, std::shared_ptr<FrameLink> frame_link, Ways ways);
  local::Messages& set_of(const Message& message) {
    return message.context == 0 ? messages_ : algorithms_;
  }

  const std::shared_ptr<FrameLink> frame_link_;
  const std::string description_;
  const std::function<void(bool)> settle_;
  const std::function<Status(std::string*, std::shared_ptr<const void>*)> open_meeting_;
  const bool others_may_choose_;
  local::Group& group_;
  const std::shared_ptr<local::Buffers> buffers_;
  local::Collectives collectives_;
  local::Messages messages_;
  local::Messages algorithms_;
  std::atomic<bool> ready_{false};
};

}  // namespace trireme::host
