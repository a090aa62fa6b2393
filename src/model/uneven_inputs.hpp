// UnevenInputs of a model with uneven inputs: it tells whether a rank has data in a step, and
// repeats calls on a rank without data.
//
// The first call of a step that needs the peers starts one small operation, in which the ranks with
// data are counted. A rank without data waits for that count, repeats the calls of its own last
// step, and ends when the count is 0.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/storage.hpp"

namespace trireme::strategies {

// One call of a rank in a step.
struct StepEvent {
  enum class Kind { gather_unit, release_unit, gather_parameters, begin_backward, end_backward };
  Kind kind;
  std::uint64_t value = 0;  // the unit, or the flags
};

class UnevenInputs {
 public:
  // `word` lies in memory that peers read.
  void open(std::int64_t* word) { word_ = word; }
  bool is_open() const { return word_ != nullptr; }
  bool entered() const { return entered_; }

  // This rank has data for the step. Every function that may be the step's first calls it.
  Status enter(Link& link, const std::shared_ptr<Storage>& storage);
  // Waits until enter() is over: a rank that leaves earlier would fail its peers.
  Status settle(Link& link);
  // This rank has no data: counts the ranks that have.
  Status look(Link& link, const std::shared_ptr<Storage>& storage, std::int64_t* out_active);
  void note(StepEvent::Kind kind, std::uint64_t value = 0);
  // The step is over. A followed or discarded step leaves the record of this rank's own last step.
  Status leave(Link& link, bool own);
  // The calls of this rank's own last step, if there was one.
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
