// Wire: moves bytes from the memory of one rank into that of another one. The receiver of a long
// piece announces its memory first, so those bytes are kept nowhere else. Algorithms run over it
// where a backend has one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme {

class Wire {
 public:
  // One piece under way. Its maker keeps it until it is done or dropped.
  struct Transfer {
    int peer = 0;
    std::uint64_t ticket = 0;  // of the operation
    std::uint64_t slot = 0;    // within it; pieces of one slot arrive in order
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    // A short piece goes at once, and waits at its receiver. An announced one goes when its
    // receiver has asked for it, so that no receiver keeps many. Both ends say the same.
    bool announced = false;
    // The bytes that it sends at once wait for go(), and leave together with others that wait.
    bool later = false;
    std::atomic<bool> done{false};
  };

  virtual ~Wire() = default;

  // Neither waits for the peer, whose piece must have the same size: else the wire ends with
  // CORRUPT.
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
