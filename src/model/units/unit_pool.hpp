// Whole groups of units in flight on a rank that holds shards of them (zero3, hybrid_shard):
// memory, gathers, prefetch.
//
// All ranks gather and release the same groups in the same order. Every decision here depends on
// that order alone, never on whether an operation is done. So the operations on the channel have
// one order on all ranks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exchange/device_units.hpp"
#include "exchange/storage.hpp"
#include "offload/parameter_file.hpp"
#include "sharding/layout.hpp"
#include "sharding/plan.hpp"

namespace trireme::strategies {

class UnitPool {
 public:
  UnitPool(const sharding::Registry& registry, const sharding::Layout& layout,
           const sharding::MemoryPlan& plan, Link& link, const std::shared_ptr<Storage>& storage,
           ParameterFile* file, char* memory, DeviceUnits* on_device);

  // Makes the group whole and keeps it until release(); it must not be in use.
  Status gather(std::uint64_t group);
  // The same as a step of the caller's pass: also begins to gather the group that followed the last
  // time.
  Status gather_and_follow(std::uint64_t group);
  // With reshard_ranks this rank's part of each group stays, and later gathers start from it. A
  // group of several units stays whole until another one is gathered or released: its other units
  // are often needed next. With keep_gathered all groups stay until drop_unused(); the pool has
  // room for all.
  void release(std::uint64_t group);
  // Begins to gather a group, if there is room.
  Status prefetch(std::uint64_t group);
  // Whether ranks read shards of the group in a gather that was begun here.
  bool is_under_way(std::uint64_t group) const {
    return places_[group].request != nullptr && !places_[group].request->done();
  }
  // Whether a whole copy of the group, or a part of one, stays here, which would hide a change of
  // its shard from a gather.
  bool has_copy(std::uint64_t group) const {
    return places_[group].present || (!parts_.empty() && parts_[group].good);
  }
  // The place of a group in use, and its distance from the begin of the pool; kNone: it lies
  // elsewhere.
  char* data(std::uint64_t group) const { return places_[group].data; }
  std::uint64_t place_of(std::uint64_t group) const {
    const Place& place = places_[group];
    return place.extra ? sharding::kNone : static_cast<std::uint64_t>(place.data - memory_);
  }
  std::uint64_t room(std::uint64_t group) const {
    return sharding::piece(layout_.groups[group].bytes);
  }
  // Before shards change: no copy may be read later, and no peer may still read a shard of this
  // rank. Ends the pass.
  Status drop_unused();
  // Begins to read the groups that a step's first pass gathers first from the file.
  Status read_first();
  // Ends the pass, but shards do not change: with keep_gathered whole groups stay.
  Status end_pass();
  // Room for the largest group; valid only while no group is gathered.
  char* scratch() const { return memory_; }
  // Bytes beyond the pool, of groups that the caller keeps gathered at the same time.
  std::uint64_t extra_bytes() const { return extra_bytes_; }
  std::uint64_t gathers() const { return gathers_; }
  std::uint64_t prefetched() const { return prefetched_; }
  std::uint64_t peak() const { return peak_; }
  std::uint64_t reshard_gathers() const { return reshard_gathers_; }

 private:
  // The part of a gathered group that stays, with reshard_ranks.
  struct Part {
    std::uint64_t first = 0, offset = 0, bytes = 0;  // in the group, in the arena of parts
    bool good = false;                               // until shards change
  };
  struct Place {
    bool present = false;  // gathered, or being gathered
    bool in_use = false;
    bool ahead = false;  // prefetched, and not asked for yet
    bool again = false;  // gathered from parts
    char* data = nullptr;
    Arena extra;                       // memory of its own if the pool was full
    std::shared_ptr<Request> request;  // a prefetch that is still to be waited for
  };

  Communicator& ranks() const { return link_.shard ? *link_.shard : *link_.communicator; }
  Communicator& ranks_of(const Place& place) const {
    return place.again && link_.reshard ? *link_.reshard : ranks();
  }
  Status start(std::uint64_t group);
  bool find_hole(std::uint64_t bytes, char** out) const;
  Status take_place(std::uint64_t group);
  void mark_present(std::uint64_t group);
  bool is_gathered(const Place& place, std::uint64_t group) const;
  Status load_part(std::uint64_t group);
  Status read_next();
  Operation operation(std::uint64_t group);
  Status finish(std::uint64_t group);
  void keep_part(std::uint64_t group);
  Status drop_places();
  Status begin(std::uint64_t group);
  Status follow();
  Status settle(std::uint64_t group);
  void forget(std::uint64_t group);

  const sharding::Layout& layout_;
  const sharding::MemoryPlan& plan_;
  Link& link_;
  const std::shared_ptr<Storage> storage_;
  ParameterFile* const file_;     // or null
  DeviceUnits* const on_device_;  // or null
  char* const memory_;
  using Names = std::vector<std::string>;
  const std::shared_ptr<const Names> names_;  // by group, for messages
  std::vector<Place> places_;
  std::vector<Part> parts_;               // by group; empty: none stays
  std::uint64_t kept_ = sharding::kNone;  // released, but not forgotten
  std::uint64_t extra_bytes_ = 0;
  std::uint64_t gathers_ = 0, reshard_gathers_ = 0, prefetched_ = 0, present_ = 0, peak_ = 0;
  // The group that was gathered after a group and its predecessor. The two tell forward from
  // backward.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> next_;
  std::uint64_t previous_ = sharding::kNone, current_ = sharding::kNone;
};

}  // namespace trireme::strategies
