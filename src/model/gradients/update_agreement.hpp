// Decides whether the ranks update in backward in a step.
//
// Before their first bucket of the last pass the ranks exchange their learning rates and whether
// they go on. That operation comes before all those buckets on the channel. So it is over before
// any of these buckets can be updated: all ranks update in this step, or none does.
#pragma once

#include <cstdint>
#include <memory>

#include "exchange/storage.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

class UpdateAgreement {
 public:
  // `on`: the model updates in backward.
  UpdateAgreement(Link& link, const std::shared_ptr<Storage>& storage, bool on)
      : link_(link), storage_(storage), on_(on) {}

  // This rank brings the hash of its rates and the first of them. Without it, or if it refuses, no
  // rank updates; too late once its first bucket has gone out.
  void bring_rate(std::uint64_t rates, double rate) {
    has_rate_ = true;
    rates_ = rates;
    rate_ = rate;
  }
  bool has_rate() const { return has_rate_; }
  void refuse() { refuses_ = on_; }
  bool refuses() const { return refuses_; }

  // ask() sends this rank's words, once in a step; look() waits for the others'.
  Status ask();
  Status look();
  // Since ask() some ranks may update.
  bool asked() const { return asked_ != nullptr; }
  bool agreed() const { return answer_ == Answer::yes; }
  bool refused() const { return answer_ == Answer::no; }
  // After look(), the same on all ranks: the reason why there is no update, if there is none.
  const Status& verdict() const { return verdict_; }
  // The step is over.
  void clear();

 private:
  enum class Answer { unknown, yes, no };

  Link& link_;
  const std::shared_ptr<Storage> storage_;
  const bool on_;
  bool has_rate_ = false, refuses_ = false;
  std::uint64_t rates_ = 0;
  double rate_ = 0;
  std::shared_ptr<Request> asked_;
  Answer answer_ = Answer::unknown;
  Status verdict_ = Status::success();
};

}  // namespace trireme::strategies
