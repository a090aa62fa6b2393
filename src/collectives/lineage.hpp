// Lineage: from which ranks a group was made, and which groups end when another one fails.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "platform/status.hpp"

namespace trireme {

class Communicator;

struct Lineage {
  std::uint64_t root = 0;            // a number that this process gave to the group that all descend from
  std::vector<std::int32_t> ranks;  // by rank: its number there
  std::string name;                  // of this group
};

// The failure of `failed` as one of `heir`: ranks that are to blame keep the blame where they are in both.
Status inherited_failure(const Lineage& failed, const Status& failure, const Lineage& heir);

// The groups that were made from one, and fail when it does. Any thread. Holds none of them.
class Offspring {
 public:
  explicit Offspring(const Lineage& parent) : parent_(parent) {}
  // Fails it now if the parent has failed.
  void add(const std::weak_ptr<Communicator>& child);
  // The parent has failed; the first time counts.
  void end(const Status& failure) noexcept;

 private:
  const Lineage parent_;
  std::mutex mutex_;
  Status failure_ = Status::success();
  std::vector<std::weak_ptr<Communicator>> children_;
};

}  // namespace trireme
