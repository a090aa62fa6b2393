#include "collectives/lineage.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "collectives/communicator.hpp"

namespace trireme {
namespace {

// The number of a rank of `from` in `to`; -1: it is not in both.
std::int32_t rank_of(const Lineage& from, std::int32_t rank, const Lineage& to) noexcept {
  const auto place = static_cast<std::size_t>(rank);
  if (from.root != to.root || place >= from.ranks.size()) return -1;
  const auto found = std::find(to.ranks.begin(), to.ranks.end(), from.ranks[place]);
  return found == to.ranks.end() ? -1 : static_cast<std::int32_t>(found - to.ranks.begin());
}

}  // namespace

std::vector<std::int32_t> ranks_of(const Lineage& from, const std::vector<std::int32_t>& ranks,
                                   const Lineage& to) {
  std::vector<std::int32_t> own;
  for (const std::int32_t rank : ranks) {
    const std::int32_t there = rank_of(from, rank, to);
    if (there >= 0) own.push_back(there);
  }
  return own;
}

RankSet ranks_of(const Lineage& from, const RankSet& ranks, const Lineage& to) noexcept {
  RankSet own;
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    const std::int32_t there = ranks.has(rank) ? rank_of(from, rank, to) : -1;
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
