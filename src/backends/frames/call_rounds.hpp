// CallRounds: takes the calls of many ranks to all of them, in ceil(log2 n) messages of a rank: see
// schedules/dissemination.hpp. Each message has the calls of some ranks; equal ones stand once. A
// rank passes on only calls that it makes itself, so the threads that wait in a call carry it. One
// whose thread stands still does it by the thread that receives frames.
//
// A rank that waits long tells its call to every rank directly. So all know who has come, even if
// a rank that should pass it on has not.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "backends/engine.hpp"
#include "backends/frames/frame.hpp"
#include "backends/slots/group.hpp"
#include "backends/slots/segment.hpp"

namespace trireme::host {

// A slot as it goes to peers: the call, and its payload of `carried` bytes.
inline Call call_of(const local::Slot& slot) {
  return {slot.print_hash, slot.flags, slot.carried, slot.fingerprint};
}
inline const std::byte* payload_of(const local::Slot& slot) {
  return (slot.flags & local::kTiny) != 0 ? slot.tiny : slot.payload;
}

class CallRounds {
 public:
  // With so few ranks each call goes to every rank at once. That takes one step, which counts on a
  // link between hosts.
  static constexpr int kMostDirect = 8;
  // On one host a step costs little, but each message costs its sender and its receiver.
  static constexpr int kMostDirectOnOneHost = 5;
  // Most bytes that a rank may contribute: those of all ranks reach each of them.
  static std::uint64_t most_bytes(int world_size);
  // Most bytes of a frame with so much payload in each call.
  static std::uint64_t longest_frame(int world_size, std::uint64_t payload_bytes);

  CallRounds(local::Group& group, Engine& engine) : group_(group), engine_(engine) {}
  void use(const local::Segment& segment) { segment_ = &segment; }

  // This rank has published call `position` in that channel; `frame` has it as it goes to one rank.
  Status publish(std::uint32_t channel, std::uint64_t position, const std::byte* frame,
                 std::uint64_t bytes);
  // Calls have come: sends what can go on. Any thread.
  Status pass_on();
  // Sends this rank's last two calls to all other ranks, once for each call.
  Status tell(std::uint32_t channel);
  // A rank has told its call to this one. Takes no lock.
  void note_told(std::uint32_t channel, std::uint64_t position) noexcept;

  // Takes a message apart. `take`: for each call in it.
  using TakeCall = std::function<Status(int rank, const Call& call, const std::byte* payload)>;
  static Status take(int from, int to, int world_size, const std::byte* rest, std::uint64_t bytes,
                     const TakeCall& take);

 private:
  struct Passing {
    std::uint64_t position = 0;  // of this rank's last call; 0: none
    int round = 0;               // the next one of that call
    int known = 0;               // so many ranks before this one have come to that call
    std::uint64_t told = 0;      // the last call of this rank that it has told to all
    std::array<std::vector<std::byte>, 2> own;  // this rank's last two calls, the last one last
  };

  Status advance(std::uint32_t channel);
  Status send_round(std::uint32_t channel, const Passing& passing);
  Status tell_locked(std::uint32_t channel);
  bool has_come(std::uint32_t channel, int rank, std::uint64_t position) const;

  local::Group& group_;
  Engine& engine_;
  const local::Segment* segment_ = nullptr;
  std::mutex mutex_;  // guards passing_ and frame_; not taken by threads that take calls
  std::array<Passing, kChannels> passing_;
  std::vector<std::byte> frame_;
  std::array<std::atomic<std::uint64_t>, kChannels> heard_{};  // the last call that a peer has told
};

}  // namespace trireme::host
