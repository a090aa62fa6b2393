// Engine: collectives that run for a group of this backend beside the frames: somebody else's, Gloo's
// and MPI's, and our own by the memory of each host. The backend has seen to it that all ranks call the
// same before it answers success; the engine only moves and reduces.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "backends/backend.hpp"

namespace trireme::host {

class Engine {
 public:
  virtual ~Engine() = default;

  virtual const char* name() const = 0;  // "gloo"
  // What the group is called instead of what is under it, or "".
  virtual std::string description() const { return ""; }

  // Whether it has this collective, and whether it is faster at it than messages are. Both depend
  // on what all ranks agree on alone: kind, dtype, reduction, counts, root, world size. The answers
  // stay the same once the group is ready.
  virtual bool offers(const Operation& operation) const = 0;
  virtual bool prefers(const Operation& operation) const = 0;

  // It runs calls of the channels before this one; messages carry the others. The same on all ranks.
  virtual std::uint32_t channels() const { return kChannels; }

  // Whether calls with different tickets never meet, whatever ranks call at the same time: then
  // run() begins while the ranks still compare what they call. Else it is called after that.
  virtual bool tells_apart() const = 0;

  // Runs one collective on the calling thread; one at a time per channel, several channels at once.
  // All ranks that call the same have the same `ticket`, and no other call of the group has it while
  // this one may be under way. Returns by the deadline, or soon after abort(), and touches no
  // memory of the operation from then on. TIMEOUT if it was late; any other failure ends the group,
  // and is told as the group's only if nobody knows a better reason, such as a peer that died.
  virtual Status run(const Operation& operation, std::uint64_t ticket, Deadline deadline) = 0;

  // Whether it takes what ranks call to their peers by itself, on the threads that call it: else
  // the group's transport does. The same on all ranks, from the beginning; never where calls are told
  // apart, as whoever runs one looks for nothing else.
  virtual bool carries_slots() const { return false; }
  // Sends a frame to every peer, and keeps nothing of it. Frames of a channel arrive in order, and
  // there is one at most that a peer has not taken. Never waits; what fails ends the group.
  virtual Status publish(std::uint32_t channel, const void* frame, std::uint64_t bytes) {
    return static_cast<void>(channel), static_cast<void>(frame), static_cast<void>(bytes),
           Status::success();
  }
  // Hands over the frames that have come in that channel, or none. Any thread, when the ranks have met;
  // `take` is called by one at a time.
  using Take = std::function<Status(int from, const std::byte* frame, std::uint64_t bytes)>;
  virtual Status fetch(std::uint32_t channel, const Take& take, bool* any) {
    return static_cast<void>(channel), static_cast<void>(take), static_cast<void>(any),
           Status::success();
  }

  // Bytes that it gave to peers and got from them, if it can tell. Any thread.
  virtual TrafficCounters traffic() const { return {}; }

  // The group has failed or ends: every run() ends, and later ones fail at once. Any thread, more
  // than once; never waits.
  virtual void abort() noexcept = 0;
};

}  // namespace trireme::host
