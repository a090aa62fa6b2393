// GroupFailure: the failure that ends a group. The first one wins, on all ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "backends/slots/bells.hpp"
#include "backends/slots/blame.hpp"
#include "backends/slots/presence.hpp"
#include "backends/slots/seat.hpp"
#include "platform/status.hpp"

namespace trireme::local {

class GroupFailure {
 public:
  GroupFailure(const Seat& seat, const Bells& bells, const Presence& presence, const Blame& blame)
      : seat_(seat), bells_(bells), presence_(presence), blame_(blame) {}

  bool happened() const noexcept {
    if (here_.load(std::memory_order_acquire)) return true;
    const Segment* const shared = segment_.load(std::memory_order_acquire);
    return shared != nullptr && shared->header().first_failure.load(std::memory_order_seq_cst) != 0;
  }
  // Tells all ranks and wakes all waiting threads. Details of the status (operation, sequence,
  // blamed, system_error) are passed on. Any thread, any time.
  void tell(const Status& status) noexcept;
  void tell(const FailureRecord& record) noexcept;  // as a peer reported it
  // The failure, with its details, or success. The first operation that meets a failure without an
  // operation (a lost peer) adds its name; without arguments none is added.
  Status status(const char* operation = nullptr, std::uint64_t sequence = 0) const {
    return status_for(Reader::this_rank, operation, sequence);
  }
  Status shared_status() const { return status_for(Reader::all, nullptr, 0); }

  // Called once, after the failure was recorded here: takes the failure to peers that share no
  // segment yet.
  void on_record(std::function<void()> listener);
  FailureRecord own_record() const;  // valid in the listener and after it
  // As Backend's: called when this rank has recorded the failure. Between processes each rank calls
  // its own, by its process mesh.
  void on_end(std::shared_ptr<const EndListener> listener);

  // The segment has come: it gets a failure from before.
  void attach(const Segment& segment);

 private:
  void tell_end() const noexcept;
  std::string with_last_calls(const Status& status) const;
  enum class Reader { this_rank, all };  // only this rank learns that it is itself to blame
  Status status_for(Reader reader, const char* operation, std::uint64_t sequence) const;

  const Seat& seat_;
  const Bells& bells_;
  const Presence& presence_;
  const Blame& blame_;

  // Lies here, too, because every step of a collective asks happened().
  std::atomic<const Segment*> segment_{nullptr};
  std::atomic<bool> here_{false};

  mutable std::mutex mutex_;  // guards the six below; never held across a wait
  bool recorded_ = false;     // own_record_ is written
  FailureRecord own_record_{};
  mutable std::string met_by_;  // first operation that met the failure
  mutable std::uint64_t met_at_ = 0;
  std::function<void()> listener_;
  std::shared_ptr<const EndListener> end_listener_;
};

}  // namespace trireme::local
