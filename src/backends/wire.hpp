// Wire: moves bytes from the memory of one rank into that of another one. The receiver of a long
// piece announces its memory first, so those bytes are kept nowhere else. Algorithms run over it
// where a backend has one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme {

// Some ranks of a group, ascending.
struct Members {
  std::vector<int> ranks;
  int own = 0;  // this rank's index among them
};
inline Members all_ranks(int own, int world_size) {
  Members all{std::vector<int>(static_cast<std::size_t>(world_size)), own};
  std::iota(all.ranks.begin(), all.ranks.end(), 0);
  return all;
}

class Wire {
 public:
  // An algorithm numbers its slots from 0 on, and has at most so many.
  static constexpr std::uint64_t kSlots = 4;

  // One piece under way. Its maker keeps it until it is done or dropped.
  struct Transfer {
    int peer = 0;
    std::uint64_t ticket = 0;   // of the operation
    std::uint32_t channel = 0;  // the operation's; it has one operation at a time
    std::uint64_t slot = 0;     // within it; pieces of one slot arrive in order
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    // A short piece goes at once, and waits at its receiver. An announced one goes when its
    // receiver has asked for it, so that no receiver keeps many. Both ends say the same.
    bool announced = false;
    // The bytes that it sends at once wait for go(), and leave together with others that wait.
    bool later = false;
    // Not null: `data` lies in this memory, which no caller sees. A wire that cannot take bytes
    // back may use it without a copy, and keeps it as long as they move.
    const std::shared_ptr<std::byte[]>* keeper = nullptr;
    // `data` is the address of a twin: a wire that cannot take bytes back may use it without a
    // copy. Its maker revokes the twin after it has dropped an unfinished piece.
    bool lent = false;
    std::atomic<bool> done{false};
    void* record = nullptr;  // the wire's own
  };

  virtual ~Wire() = default;

  // Whether it copies the bytes of pieces that have no keeper and are not lent.
  virtual bool copies() const { return false; }
  // Neither waits for the peer. Its piece must have the same size: else the wire ends with a
  // failure.
  virtual Status send(Transfer& transfer) = 0;
  virtual Status receive(Transfer& transfer) = 0;
  // Sends all that waits for it. wait() does so, too.
  virtual void go() noexcept = 0;
  // TIMEOUT: the deadline has passed. Otherwise the wire has ended, or the peer has gone.
  virtual Status wait(Transfer& transfer, Deadline deadline) = 0;
  // The wire does not touch the transfer or its memory from now on. Dropping an unfinished one ends
  // the wire: the peer counts on it.
  virtual void drop(Transfer& transfer) noexcept = 0;
};

}  // namespace trireme
