#include "collectives/lineage.hpp"

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "collectives/communicator.hpp"

namespace trireme {
namespace {

// The numbers that ranks of one group have in another one.
class Numbers {
 public:
  Numbers(const Lineage& from, const Lineage& to) noexcept : from_(from) {
    there_.fill(-1);
    if (from.root != to.root) return;
    std::int32_t number = 0;
    for (const std::int32_t rank : to.ranks) there_[static_cast<std::size_t>(rank)] = number++;
  }

  // -1: it is not in both.
  std::int32_t of(std::int32_t rank) const noexcept {
    const auto place = static_cast<std::size_t>(rank);
    if (place >= from_.ranks.size()) return -1;
    return there_[static_cast<std::size_t>(from_.ranks[place])];
  }

 private:
  const Lineage& from_;
  std::array<std::int32_t, kMaxRanks> there_;  // by the number in the group that both descend from
};

}  // namespace

std::vector<std::int32_t> ranks_of(const Lineage& from, const std::vector<std::int32_t>& ranks,
                                   const Lineage& to) {
  const Numbers numbers(from, to);
  std::vector<std::int32_t> own;
  for (const std::int32_t rank : ranks) {
    const std::int32_t there = numbers.of(rank);
    if (there >= 0) own.push_back(there);
  }
  return own;
}

RankSet ranks_of(const Lineage& from, const RankSet& ranks, const Lineage& to) noexcept {
  const Numbers numbers(from, to);
  RankSet own;
  for (int rank = ranks.lowest(); rank >= 0; rank = ranks.next(rank)) {
    const std::int32_t there = numbers.of(rank);
    if (there >= 0) own.add(there);
  }
  return own;
}

Status inherited_failure(const Lineage& failed, const Status& failure, const Lineage& heir) {
  FailureDetails details;
  details.communicator = heir.name;
  if (const FailureDetails* const cause = failure.details()) {
    details.system_error = cause->system_error;
    details.blamed = ranks_of(failed, cause->blamed, heir);
  }
  return Status::failure(failure.code(), "\"" + failed.name + "\" failed: " + failure.message())
      .with_details(std::move(details));
}

void Offspring::add(const std::weak_ptr<Communicator>& child) {
  Status failure = Status::success();
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(children_, [](const auto& each) { return each.expired(); });
    children_.push_back(child);
    failure = failure_;
  }
  if (failure.ok()) return;
  if (const auto alive = child.lock()) alive->fail_with(parent_, failure);
}

// add() itself fails later children. The lock is not held, because the failure of a child may take
// other locks.
void Offspring::end(const Status& failure) noexcept {
  try {
    std::vector<std::weak_ptr<Communicator>> children;
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.ok()) return;
      failure_ = failure;
      children.swap(children_);
    }
    for (const auto& child : children) {
      if (const auto alive = child.lock()) alive->fail_with(parent_, failure);
    }
  } catch (...) {  // a mutex: the deadlines are left
  }
}

}  // namespace trireme
