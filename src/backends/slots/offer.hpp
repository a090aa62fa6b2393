// Offer: what this rank gives to its peers for a call: its slot, and its memory until no peer
// touches it any more.
#pragma once

#include <cstdint>

#include "backends/slots/call.hpp"
#include "backends/slots/memory.hpp"

namespace trireme::local {

class Offer {
 public:
  Offer(Call& call, Buffers& buffers) : call_(call), buffers_(buffers) {}

  // Before publish(): see Engine::can_lend().
  void lend() { lends_ = true; }
  // Writes this rank's slot, all but the step. `moves`: with this rank's data, or its place.
  void publish(bool moves);
  // Peers may write to this rank's receive memory.
  bool is_exposed() const { return exposed_; }
  // After a failure: returns when no peer touches this rank's memory any more.
  void settle();

 private:
  void put(Slot* slot);
  Location locate(const void* data, std::uint64_t bytes);

  Call& call_;
  Buffers& buffers_;
  bool exposed_ = false;
  bool lends_ = false;
};

}  // namespace trireme::local
