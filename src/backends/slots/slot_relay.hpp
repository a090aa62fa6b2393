// SlotRelay: takes this rank's actions to peers that do not map the segment.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/wire.hpp"
#include "platform/clock.hpp"

namespace trireme::local {

class SlotRelay {
 public:
  virtual ~SlotRelay() = default;
  // This rank rang the bell of `rank`.
  virtual void ring(int rank) noexcept = 0;
  // This rank has published a collective in that channel; called on the thread that runs it.
  // `later`: it may wait for the first bytes of that collective, for go(), or for fetch().
  virtual void publish(std::uint32_t channel, bool later) noexcept = 0;
  // Sends the publications that wait for bytes. Any thread.
  void go() noexcept {
    if (Wire* const over = wire()) over->go();
  }
  // Whether a rank that waits for peers' publications must call fetch(): else they arrive by
  // themselves, and bells ring.
  virtual bool is_fetched() const noexcept = 0;
  // Brings the arrived publications of a channel. Any thread; never waits. Returns false if there
  // were none.
  virtual bool fetch(std::uint32_t channel) noexcept = 0;
  // Whether rest() waits for publications, so that few calls of fetch() go before it.
  virtual bool can_rest() const noexcept = 0;
  // How many publications have come, on all channels.
  virtual std::uint64_t taken() const noexcept = 0;
  // Waits for publications or for another event, but not long. Returns at once if any have come
  // since taken() was `seen`.
  virtual void rest(std::uint64_t seen, Deadline deadline) noexcept = 0;
  // This rank waits for long in that channel: makes sure that every rank knows its publication.
  // Call it again and again while it waits, at most every kTellNs. `in_cell`: it is a cell, and
  // this is the thread that called; each rank learns that this one has come.
  static constexpr std::uint64_t kTellNs = 20 * kMillisecond;
  virtual void tell(std::uint32_t channel, bool in_cell) noexcept = 0;
  // Of ranks whose publication has not come here, keeps those to blame.
  virtual void keep_absent(std::uint32_t channel, std::vector<std::int32_t>* missing) const = 0;
  // Whether small collectives with a root go only to the ranks that need them: see rooted.hpp. The
  // same on all ranks, once they have met.
  virtual bool sends_cells() const noexcept = 0;
  // Sends this rank's cell at that position to one rank, with `bytes` of its payload from `at` on.
  // Never waits: the relay keeps a copy. `later`: as in publish().
  virtual void send_cell(std::uint32_t channel, std::uint64_t position, int to, std::uint64_t at,
                         std::uint64_t bytes, bool later) noexcept = 0;
  // Whether the root of an announced call sends its cell to one rank, which passes it on: see
  // spread_cell(). The same on all ranks, once they have met.
  virtual bool spreads_cells() const noexcept = 0;
  // Sends this rank's cell, that of a broadcast or scatter, to all other ranks along a
  // SpreadTree. Each gets `bytes` of its payload: its own ones of a scatter. A rank passes it on
  // when it takes it. Never waits.
  virtual void spread_cell(std::uint32_t channel, std::uint64_t position,
                           std::uint64_t bytes) noexcept = 0;
  // Whether publications come over other ranks, which pass on only those of calls that they make.
  // Known once the ranks have met.
  virtual bool in_rounds() const noexcept = 0;
  // Over it go bytes that no cell holds, behind the cells and in their order; or null. The same on
  // all ranks, once they have met.
  virtual Wire* wire() const noexcept = 0;
  // This rank has taken the step to that position. Tells it to ranks that need to know: those whose
  // cells this rank has taken since it sent them anything.
  virtual void tell_steps(std::uint32_t channel, std::uint64_t position) noexcept = 0;
  // Brings the arrived publications of all channels.
  virtual void fetch_all() noexcept = 0;
};

}  // namespace trireme::local
