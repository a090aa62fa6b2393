// Whole units in flight on a rank that owns shards of them (zero3): memory, gathers, prefetch.
//
// All ranks gather and release the same units in the same order, and every decision here depends on
// that order alone, never on which operation is done already; so the operations on the channel come
// in one order on all ranks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "sharding/layout.hpp"
#include "sharding/plan.hpp"
#include "strategies/storage.hpp"

namespace trireme::strategies {

class UnitPool {
 public:
  UnitPool(const sharding::Registry& registry, const sharding::Layout& layout,
           const sharding::MemoryPlan& plan, Link& link, const std::shared_ptr<Storage>& storage,
           char* memory);

  // Makes the unit whole and keeps it until release(); it must not be in use.
  Status gather(std::uint64_t unit);
  // The same as a step of the caller's pass: begins to gather what followed it the last time, too.
  Status gather_and_follow(std::uint64_t unit);
  void release(std::uint64_t unit);
  // Begins to gather a unit, if there is room.
  Status prefetch(std::uint64_t unit);
  // Where a unit in use lies.
  char* data(std::uint64_t unit) const { return places_[unit].data; }
  // Before shards change: no copy may be read later, and no peer may still read a shard of this
  // rank. Ends the pass.
  Status drop_prefetched();
  // Room for the largest unit; nothing may be gathered.
  char* scratch() const { return memory_; }
  // Bytes beyond the pool, of units that the caller keeps gathered at the same time.
  std::uint64_t extra_bytes() const { return extra_bytes_; }

 private:
  struct Place {
    bool present = false;  // gathered, or being gathered
    bool in_use = false;
    char* data = nullptr;
    Arena extra;                       // memory of its own if the pool was full
    std::shared_ptr<Request> request;  // a prefetch that was not waited for
  };

  std::uint64_t room(std::uint64_t unit) const { return sharding::piece(layout_.unit_bytes[unit]); }
  bool find_hole(std::uint64_t bytes, char** out) const;
  Status take_place(std::uint64_t unit);
  Operation operation(std::uint64_t unit);
  Status begin(std::uint64_t unit);
  Status follow();
  Status settle(std::uint64_t unit);
  void forget(std::uint64_t unit);

  const sharding::Registry& registry_;
  const sharding::Layout& layout_;
  const sharding::MemoryPlan& plan_;
  Link& link_;
  const std::shared_ptr<Storage> storage_;
  char* const memory_;
  std::vector<Place> places_;
  std::uint64_t extra_bytes_ = 0;
  // What was gathered after a unit and the one before it. Two units of memory tell forward from
  // backward.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> next_;
  std::uint64_t previous_ = sharding::kNone, current_ = sharding::kNone;
};

}  // namespace trireme::strategies
