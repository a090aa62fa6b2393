// Membership: how one rank enters its group, learns which others are in, and leaves.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/slots/group.hpp"
#include "backends/slots/memory.hpp"
#include "net/token.hpp"

namespace trireme::local {

class Membership {
 public:
  virtual ~Membership() = default;  // marks this rank as left and wakes the peers
  // Whether this rank and `rank` can work together; stays true.
  virtual bool joined(int rank) const = 0;
  // Whether a process that claims to be `rank` has another token.
  virtual bool has_other_token(int) const { return false; }
  // Returns the ranks that have not come, if some process knows them; none: no process does.
  // `gives_up`: this rank's deadline has passed. May wait until `deadline`, or until `ended`, which
  // it asks every few milliseconds. Set it before the first wait.
  using Absence = std::function<std::optional<std::vector<std::int32_t>>(
      bool gives_up, Deadline deadline, const std::function<bool()>& ended)>;
  void ask_by(Absence absence) { absence_ = std::move(absence); }
  // Of the ranks that have not joined, those that have not come; the others wait as this rank does.
  std::vector<std::int32_t> absent(std::vector<std::int32_t> missing, bool gives_up,
                                   Deadline deadline, const std::function<bool()>& ended) const;
  // The last wait for all ranks ended at its deadline without these; none: something else ended it.
  // A rank that then leaves tells the ranks that it still misses: the rest do not blame it.
  void note_missed(std::vector<std::int32_t> ranks) {
    const std::lock_guard lock(mutex_);
    missed_ = std::move(ranks);
  }
  // Rings when joined() may have changed.
  virtual Bell& bell() = 0;
  // As Backend's.
  virtual void on_end(std::shared_ptr<const EndListener> listener) = 0;
  // The group has failed: waits until the peers know that, but not for long.
  virtual void spread_failure() noexcept {}

 protected:
  // Call it before this rank's mark of leaving.
  void tell_why(Group& group) noexcept;

 private:
  Absence absence_;
  std::mutex mutex_;  // guards the following: several threads may wait
  std::vector<std::int32_t> missed_;
};

// Backend::wait_ready_unless(). Sets `ready` once all are there; `trouble` may be empty.
Status wait_for_members(Group& group, Membership& membership, std::atomic<bool>& ready,
                        Deadline deadline, const std::function<Status()>& trouble);

// Call it before each collective: all ranks are there, and ranks that map the segment can read this
// call. A failure ends the group.
Status begin_collective(Group& group, Membership& membership, std::atomic<bool>& ready,
                        const Operation& operation, std::uint64_t sequence, Deadline deadline);

// Threads: ranks of one process that name the same group.
Status join_threads(const std::string& group_name, Group& group, std::unique_ptr<Membership>* out);

// Processes: see local/processes.cpp. `token` may be null.
Status join_processes(const std::string& group_name, std::shared_ptr<const Token> token,
                      Group& group, const std::shared_ptr<Buffers>& buffers,
                      std::unique_ptr<Membership>* out);

}  // namespace trireme::local
