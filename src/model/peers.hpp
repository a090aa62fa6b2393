// The way of a model to its peers, and the effect of a failure on the model and on its groups.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exchange/storage.hpp"
#include "model/model_axes.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

class Peers {
 public:
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  Link& link() { return link_; }
  const Link& link() const { return link_; }
  Communicator& communicator() const { return *link_.communicator; }
  // In this group other models wait for this one. Null: none do.
  void set_norm_group(std::shared_ptr<Communicator> group) { norm_group_ = std::move(group); }
  bool steps_alone() const { return norm_group_ == nullptr; }
  // Ranks of it; 0: there is none.
  std::uint32_t norm_ranks() const {
    return norm_group_ == nullptr ? 0 : static_cast<std::uint32_t>(norm_group_->world_size());
  }
  // Groups of a trainer, in which ranks of other models wait for this one. They fail with it.
  void join(std::shared_ptr<Communicator> group) { joined_.push_back(std::move(group)); }
  void leave(const std::shared_ptr<Communicator>& group) noexcept { std::erase(joined_, group); }
  // Of a mesh, along which other models lie.
  const ModelAxes& axes() const { return axes_; }

  // Refuses a call from inside the caller's own hook or rule, in the middle of another one.
  Status check_call() const {
    if (!link_.in_callback.load(std::memory_order_relaxed)) [[likely]]
      return Status::success();
    return refuse_call();
  }
  const Status& failure() const { return failed_; }
  // Remembers a failure that leaves this rank's part of the model undefined. Other failures are the
  // caller's mistakes, or memory that a later call may find.
  Status keep(Status status) {
    if (status.ok()) [[likely]]
      return status;
    return keep_failure(std::move(status));
  }
  void give_up(const Status& status);
  // The same, where all ranks of the model have the failure: the caller's group goes on.
  void give_up_together(const Status& status);
  // Gives up, and fails the caller's group, too.
  void abort(const Status& status, const std::string& why);
  // For a failure of a disk or a callback of this rank: the peers may have no trouble, and wait.
  Status report_disk(Status status) const;
  // Fails all its groups: this rank cannot take the step that all ranks take.
  void fail_groups(trireme_status code, std::string_view why) const noexcept;

 protected:
  Peers(std::shared_ptr<Communicator> communicator, ModelAxes axes) : axes_(std::move(axes)) {
    link_.communicator = std::move(communicator);
  }
  ~Peers() = default;

  void end_groups(const Status& status) const noexcept;
  void tell() const noexcept;

  Link link_;
  ModelAxes axes_;
  Status failed_ = Status::success();

 private:
  // The unlikely halves of two functions above, which every call of a unit runs through.
  [[gnu::cold]] static Status refuse_call();
  [[gnu::cold]] Status keep_failure(Status status);
  // Fails all its groups if only this rank cannot go on, because the others would wait for it.
  void report(const Status& status) const noexcept;

  // The group in which other models wait for this one, while it has an optimizer with a norm of all
  // of them, or gets one; or null.
  std::shared_ptr<Communicator> norm_group_;
  std::vector<std::shared_ptr<Communicator>> joined_;
};

constexpr std::string_view kNoMemory = "no memory left in the middle of a call";

}  // namespace trireme::strategies
