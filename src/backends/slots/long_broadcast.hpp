// LongBroadcast: the bytes of a broadcast that no cell holds. Behind the cells they go over a wire,
// from rank to rank along a tree, straight between the callers' memory.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backends/slots/arrivals.hpp"
#include "backends/slots/broadcast_tree.hpp"
#include "backends/slots/call.hpp"
#include "backends/slots/slot_relay.hpp"
#include "backends/wire.hpp"

namespace trireme::local {

class LongBroadcast {
 public:
  // The call is published, in a cell.
  LongBroadcast(Call& call, Arrivals& arrivals, SlotRelay& relay);
  ~LongBroadcast();
  LongBroadcast(const LongBroadcast&) = delete;
  LongBroadcast& operator=(const LongBroadcast&) = delete;

  // From the rank above, whose call is the same.
  Status receive();
  // Gives the bytes to the ranks below. They may wait for go(), or for finish().
  Status send();
  // Returns when the system has all bytes.
  Status finish();

 private:
  static constexpr std::size_t kMostBelow = 4;  // of kMostLinkedRanks

  Wire::Transfer& prepare(Wire::Transfer& transfer, int peer) const;
  bool is_from_above(const Wire::Transfer& transfer) const { return &transfer == &from_above_; }
  std::vector<std::int32_t> late(const Wire::Transfer& transfer) const;
  Status wait(Wire::Transfer& transfer);
  Status reason(const Wire::Transfer& transfer, const Status& failed);

  Call& call_;
  Arrivals& arrivals_;
  SlotRelay& relay_;
  Wire& wire_;
  const BroadcastTree tree_;
  const std::uint64_t ticket_;
  Wire::Transfer from_above_;
  std::array<Wire::Transfer, kMostBelow> to_below_;
  bool receives_ = false;  // from_above_ is on the wire
  std::size_t sends_ = 0;  // of to_below_ that are
};

}  // namespace trireme::local
