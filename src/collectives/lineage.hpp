// Lineage: the ranks from which a group was made, and the groups that fail with another one.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/rank_set.hpp"
#include "platform/status.hpp"

namespace trireme {

class Communicator;

struct Lineage {
  std::uint64_t root = 0;  // this process' number of the group from which all others descend
  std::vector<std::int32_t> ranks;  // by rank: its number there
  std::string name;                 // of this group
};

// Ranks of `from` in the numbers of `to`, as far as they are in both.
std::vector<std::int32_t> ranks_of(const Lineage& from, const std::vector<std::int32_t>& ranks,
                                   const Lineage& to);
RankSet ranks_of(const Lineage& from, const RankSet& ranks, const Lineage& to) noexcept;

// Translates the failure of `failed` for `heir`: blame stays with the ranks that are in both.
Status inherited_failure(const Lineage& failed, const Status& failure, const Lineage& heir);

// The groups that were made from one, and fail with it. Any thread. It keeps none of them alive.
class Offspring {
 public:
  explicit Offspring(const Lineage& parent) : parent_(parent) {}
  // Adds a child; fails it now if the parent has failed.
  void add(const std::weak_ptr<Communicator>& child);
  // Fails all children, because the parent has failed; only the first call counts.
  void end(const Status& failure) noexcept;

 private:
  const Lineage parent_;
  std::mutex mutex_;
  Status failure_ = Status::success();
  std::vector<std::weak_ptr<Communicator>> children_;
};

}  // namespace trireme
