// Arrivals: the steps of a call. This rank takes one, and waits until all have taken it; it tells
// who is late, and why.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backends/slots/call.hpp"

namespace trireme::local {

// When a wait until that deadline counts as long.
std::uint64_t long_wait_ns(Deadline deadline);

class Arrivals {
 public:
  explicit Arrivals(Call& call) : call_(call) {}

  // `later`: see SlotRelay::publish().
  void take_step(bool later = false);
  // Waits for the slots of the ranks that the call awaits. `until_two_differ`: or until one differs
  // from this rank's, if this rank takes them by itself. A rank that is elsewhere may never come.
  Status wait_for_slots(bool until_two_differ = false);
  // Waits until every rank has taken `least` steps.
  Status wait_for_steps(std::uint64_t least);
  // Waits until it waits for no rank any more. Bit r of what `awaited` returns: for rank r.
  Status wait_for_ranks(const std::function<std::uint64_t(const Lane* lanes)>& awaited);
  Status barrier();
  // PEER_LOST if a rank has left without having published.
  Status look_for_gone() const;
  // PEER_LOST if that rank has left, though this one awaits it.
  Status look_for_gone(int rank) const;
  // Waits until all ranks have published or left, or the group has failed: but for a moment only,
  // since the ranks disagree and the peers do not know yet.
  void await_calls();
  // A step with a peer has failed: waits until look() finds the reason, or the group has failed,
  // but not long. Returns what look() found.
  Status await_reason(const std::function<Status()>& look);

 private:
  // Waits until arrived(rank) holds for every rank; each rank rings its bell when it becomes true.
  template <class Arrived>
  Status wait_until_all(Arrived arrived);
  // The same; `long_wait` shows the wait.
  template <class Arrived, class Shown>
  Status wait_until_all(Arrived arrived, Shown& long_wait);
  // PEER_LOST if one of the ranks from `first` on has left without arriving: it never will.
  template <class Arrived>
  Status look_for_gone(int first, Arrived arrived) const;
  // PEER_LOST if a rank that should pass on the awaited cell has left: see Call::left_above().
  Status look_for_gone_above() const;
  // The rest of a message about a root that is missing, or "".
  std::string or_not_passed_on() const;
  // The likely reason why these ranks stay away, as far as their last calls show; "" or the rest of
  // a message.
  std::string likely_cause(const std::vector<std::int32_t>& missing) const;
  std::string where_else(const std::vector<std::int32_t>& missing) const;

  Call& call_;
};

}  // namespace trireme::local
