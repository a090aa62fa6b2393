// HostBackend: ranks whose bytes the caller's own transport carries. Collectives are made of
// messages.
#pragma once

#include <atomic>
#include <memory>

#include "backends/backend.hpp"
#include "backends/host/carrier.hpp"
#include "backends/local/memory.hpp"
#include "backends/local/messages.hpp"

namespace trireme::host {

class HostBackend final : public Backend {
 public:
  // group_name: what follows host-transport://.
  static Status join(const GroupOptions& options, const std::string& group_name,
                     std::unique_ptr<Backend>* out);
  ~HostBackend() override;

  std::string description() const override { return "host (transport)"; }
  Status wait_ready(Deadline deadline) override;
  Status run(const Operation& operation, std::uint64_t sequence, Deadline deadline) override;
  bool has_collectives() const override { return false; }
  Status agree(const Operation& operation, std::uint64_t sequence, Deadline deadline) override;
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
  Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) override {
    return buffers_->allocate(bytes, out);
  }
  void fail(const Status& status) noexcept override { group_.fail(status); }
  Status failure() const override { return group_.failure(); }
  TrafficCounters traffic() const override { return group_.traffic(); }
  std::vector<LastCalls> last_calls() const override { return group_.last_calls(); }

 private:
  HostBackend(const GroupOptions& options, std::shared_ptr<Carrier> carrier);
  local::Messages& set_of(const Message& message) {
    return message.context == 0 ? messages_ : algorithms_;
  }

  const std::shared_ptr<Carrier> carrier_;
  local::Group& group_;
  const std::shared_ptr<local::Buffers> buffers_;
  local::Messages messages_;
  local::Messages algorithms_;
  std::atomic<bool> ready_{false};
};

}  // namespace trireme::host
