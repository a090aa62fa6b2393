// Groups of threads: a table of names in this process, and the segment in plain memory.
#include <cerrno>
#include <map>
#include <mutex>
#include <vector>

#include "backends/slots/membership.hpp"
#include "platform/failpoint.hpp"
#include "platform/system.hpp"

namespace trireme::local {
namespace {

// One incarnation of a group; its members keep it alive.
struct ThreadGroup {
  ThreadGroup(std::string name_in, const Layout& layout, void* base)
      : name(std::move(name_in)), segment(base, layout) {}
  ~ThreadGroup();

  const std::string name;
  const Segment segment;
  std::vector<bool> taken =
      std::vector<bool>(static_cast<std::size_t>(segment.layout().world_size));
  int members = 0;

  // By rank. A rank that waits elsewhere does not look here: so the failing rank calls all
  // listeners.
  using Listener = std::shared_ptr<const EndListener>;
  std::mutex listeners_mutex;
  std::vector<Listener> listeners = std::vector<Listener>(taken.size());

  void listen(int rank, Listener listener) {
    const std::lock_guard lock(listeners_mutex);
    listeners[static_cast<std::size_t>(rank)].swap(listener);
  }
  void report(const Status& failure) {
    for (const Listener& place : listeners) {
      Listener listener;
      {
        const std::lock_guard lock(listeners_mutex);
        listener = place;
      }
      if (listener != nullptr) (*listener)(failure);
    }
  }

  bool complete() const { return members == segment.layout().world_size; }
  bool has_left(int rank) const { return segment.member(rank).left.load() != 0; }
};

struct Registry {
  std::mutex mutex;  // guards the table and `taken` and `members` of its groups
  std::map<std::string, std::weak_ptr<ThreadGroup>> groups;
};

// Never destroyed: groups may live while the process ends.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

ThreadGroup::~ThreadGroup() {
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    const auto found = all.groups.find(name);
    if (found != all.groups.end() && found->second.expired()) all.groups.erase(found);
  }
  system_table().unmap(segment.base(), segment.layout().total_bytes);
}

// Whether a newcomer belongs to a later incarnation: this one was whole once and falls apart, or
// the newcomer's own rank has left it.
bool is_over(const ThreadGroup& group, int rank) {
  const int world_size = group.segment.layout().world_size;
  if (rank < world_size && group.has_left(rank)) return true;
  for (int other = 0; group.complete() && other < world_size; ++other) {
    if (group.has_left(other)) return true;
  }
  return false;
}

class ThreadMembership final : public Membership {
 public:
  ThreadMembership(Group& group, std::shared_ptr<ThreadGroup> threads)
      : group_(group), threads_(std::move(threads)) {
    group_.failure().on_end(std::make_shared<const EndListener>(
        [all = threads_](const Status& failure) { all->report(failure); }));
  }

  ~ThreadMembership() override {
    tell_why(group_);
    // A failure of this point has no effect; it is for kill, stop and sleep.
    (void)failpoint("leave", "before_mark").ok();
    group_.presence().mark_left(group_.rank());
    (void)failpoint("leave", "after_mark").ok();
    threads_->listen(group_.rank(), nullptr);
  }

  void on_end(std::shared_ptr<const EndListener> listener) override {
    threads_->listen(group_.rank(), listener);
    const Status failure = group_.failure().shared_status();  // perhaps told before
    if (!failure.ok()) (*listener)(failure);
  }

  void announce() { group_.presence().mark_joined(); }

  bool joined(int rank) const override { return group_.presence().joined(rank); }
  Bell& bell() override { return threads_->segment.header().join_bell; }

 private:
  Group& group_;
  const std::shared_ptr<ThreadGroup> threads_;
};

}  // namespace

Status join_threads(const std::string& group_name, Group& group, std::unique_ptr<Membership>* out) {
  TRIREME_RETURN_IF_ERROR(failpoint("join", "before_claim"));
  const std::string url = "local://" + group_name;
  // Both are released after the lock: the end of a group takes the lock.
  std::shared_ptr<ThreadGroup> former;
  std::shared_ptr<ThreadGroup> threads;
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    const auto found = all.groups.find(group_name);
    if (found != all.groups.end()) threads = found->second.lock();
    if (threads != nullptr && is_over(*threads, group.rank())) former = std::move(threads);
    if (threads == nullptr) {
      const Layout layout(group.world_size(), false);
      void* const base = system_table().map(-1, layout.total_bytes);
      if (base == nullptr) return Status::system(errno, "the control segment of " + url);
      try {
        threads = std::make_shared<ThreadGroup>(group_name, layout, base);
      } catch (...) {
        system_table().unmap(base, layout.total_bytes);
        throw;
      }
      all.groups[group_name] = threads;  // only now: the last member removes it
    }
    const int world_size = threads->segment.layout().world_size;
    if (world_size != group.world_size()) {
      return Status::failure(TRIREME_ERROR_MISMATCH,
                             "rank " + std::to_string(group.rank()) + " of " + url +
                                 " names world size " + std::to_string(group.world_size()) +
                                 ", earlier ones " + std::to_string(world_size));
    }
    const auto place = static_cast<std::size_t>(group.rank());
    if (threads->taken[place]) {
      return invalid_argument("rank " + std::to_string(group.rank()) + " of " + url + " is taken");
    }
    threads->taken[place] = true;
    ++threads->members;
  }
  group.attach(threads->segment, threads);
  auto membership = std::make_unique<ThreadMembership>(group, threads);
  TRIREME_RETURN_IF_ERROR(failpoint("join", "after_claim"));
  TRIREME_RETURN_IF_ERROR(failpoint("join", "before_hello"));
  membership->announce();
  TRIREME_RETURN_IF_ERROR(failpoint("join", "after_hello"));
  *out = std::move(membership);
  return Status::success();
}

}  // namespace trireme::local
