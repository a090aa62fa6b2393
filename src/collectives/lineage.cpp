#include "collectives/lineage.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "collectives/communicator.hpp"

namespace trireme {

Status inherited_failure(const Lineage& failed, const Status& failure, const Lineage& heir) {
  FailureDetails details;
  details.communicator = heir.name;
  if (const FailureDetails* const cause = failure.details()) {
    details.system_error = cause->system_error;
    for (const std::int32_t blamed : cause->blamed) {
      const auto place = static_cast<std::size_t>(blamed);
      if (failed.root != heir.root || place >= failed.ranks.size()) continue;
      const auto found = std::find(heir.ranks.begin(), heir.ranks.end(), failed.ranks[place]);
      if (found == heir.ranks.end()) continue;
      details.blamed.push_back(static_cast<std::int32_t>(found - heir.ranks.begin()));
    }
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

// Whoever comes later is failed by add(). Without the lock: the failure of a child may take others.
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
