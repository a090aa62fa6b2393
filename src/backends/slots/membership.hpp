// Membership: how one rank gets into its group, knows who else is in, and gets out.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "backends/slots/group.hpp"
#include "backends/slots/memory.hpp"
#include "net/token.hpp"

namespace trireme::local {

class Membership {
 public:
  virtual ~Membership() = default;  // marks this rank as left and wakes the peers
  // Whether this rank and `rank` can work together; stays true.
  virtual bool joined(int rank) const = 0;
  // Whether a process that says it is `rank` has another token.
  virtual bool has_other_token(int) const { return false; }
  // Rung when that may have changed.
  virtual Bell& bell() = 0;
  // As Backend's.
  virtual void on_end(std::shared_ptr<const EndListener> listener) = 0;
};

// Backend::wait_ready(). `ready` is set once all are there.
Status wait_for_members(Group& group, Membership& membership, std::atomic<bool>& ready,
                        Deadline deadline);

// Before each collective: all ranks are there, and those who see the segment can read what this one
// calls. A failure ends the group.
Status begin_collective(Group& group, Membership& membership, std::atomic<bool>& ready,
                        const Operation& operation, std::uint64_t sequence, Deadline deadline);

// Threads: ranks of one process that name the same group.
Status join_threads(const std::string& group_name, Group& group, std::unique_ptr<Membership>* out);

// Processes: see local/processes.cpp. `token` may be null.
Status join_processes(const std::string& group_name, std::shared_ptr<const Token> token, Group& group,
                      const std::shared_ptr<Buffers>& buffers, std::unique_ptr<Membership>* out);

}  // namespace trireme::local
