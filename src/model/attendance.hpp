// Attendance of a model with uneven inputs: whether a step has somebody with data, and what a rank
// without data does in it.
//
// The first call of a step that needs the peers, whichever it is, starts one small operation in
// which the ranks with data are counted. A rank that has run out waits for that count, does what it
// did itself in its last step, and ends when the count is 0.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/storage.hpp"

namespace trireme::strategies {

// What a rank did in a step, call by call.
struct StepEvent {
  enum class Kind { gather_unit, release_unit, gather_parameters, begin_backward, end_backward };
  Kind kind;
  std::uint64_t value = 0;  // the unit, or the flags
};

class Attendance {
 public:
  // `word` lies in memory that peers read.
  void open(std::int64_t* word) { word_ = word; }
  bool is_open() const { return word_ != nullptr; }
  bool entered() const { return entered_; }

  // This rank has data for the step. Called by every function that may be the step's first.
  Status enter(Link& link, const std::shared_ptr<Storage>& storage);
  // Waits until enter() is over: a rank that leaves before would fail its peers.
  Status settle(Link& link);
  // This rank has none: answers how many have.
  Status look(Link& link, const std::shared_ptr<Storage>& storage, std::int64_t* out_active);
  void note(StepEvent::Kind kind, std::uint64_t value = 0);
  // The step is over. One that was followed or discarded leaves the record of this rank's last own
  // one.
  Status leave(Link& link, bool own);
  // What this rank did in the last step that it made itself, if there was one.
  bool has_last_step() const { return has_last_; }
  const std::vector<StepEvent>& last_step() const { return last_; }

 private:
  Operation operation(Link& link, const std::shared_ptr<Storage>& storage);

  std::int64_t* word_ = nullptr;
  bool entered_ = false;
  bool has_last_ = false;
  std::shared_ptr<Request> request_;
  std::vector<StepEvent> events_, last_;
};

}  // namespace trireme::strategies
