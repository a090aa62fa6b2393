// Exchange: a wire between some ranks, over lines. A short piece is sent at once, and waits in this
// rank's memory until it is asked for. A longer one goes when its receiver has announced the memory
// for it. So one operation never waits behind another. There is no thread: a thread that waits
// moves the bytes of all operations. All bytes are under codes: bytes that were changed on the way
// are CORRUPT.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/backend.hpp"
#include "backends/tcp/exchange_peer.hpp"
#include "backends/tcp/lines.hpp"
#include "backends/wire.hpp"

namespace trireme::tcp {

// How often a thread looks for bytes before it sleeps, and whether it yields after each look.
struct Polls {
  int count = 0;
  bool yields = false;
};

// All functions but the constructor count the members from 0, and so do the transfers.
class Exchange final : public Wire {
 public:
  using Transfer = Wire::Transfer;

  // The lines must be there, and stay, during every call but abort().
  Exchange(Members members, std::shared_ptr<const Lines> lines, Polls polls = {});
  Status open();

  int size() const { return static_cast<int>(members_.ranks.size()); }
  int own() const { return members_.own; }

  Status send(Transfer& transfer) override;
  Status receive(Transfer& transfer) override;
  Status wait(Transfer& transfer, Deadline deadline) override;
  void go() noexcept override;
  void drop(Transfer& transfer) noexcept override;
  // --- calls: short frames that each member sends to all others ---
  // Receives them, on a thread that moves bytes. Set it before the first call.
  using TakeCall = ExchangePeer::TakeCall;
  void take_calls_by(TakeCall take) { common_.take_call = std::move(take); }
  static constexpr std::uint64_t kMostCallBytes = 4608;  // of a frame, unless after_calls() says so
  // `taken` is called after calls were taken, outside of all locks. Set it as take_calls_by().
  void after_calls(std::function<void()> taken, std::uint64_t most_call_bytes) {
    after_calls_ = std::move(taken);
    common_.most_call_bytes = most_call_bytes;
  }
  // Never waits: a copy waits where a connection has no room. `later`: for go(), too, or for the
  // next look for bytes.
  Status publish(const void* frame, std::uint64_t bytes, bool later = false);
  Status publish_to(int member, const void* frame, std::uint64_t bytes, bool later = false);
  // Moves what can be moved now, unless another thread does. *any: whether calls have come.
  Status fetch(bool* any);
  // How many calls have come.
  std::uint64_t taken_calls() const { return common_.taken_calls.load(std::memory_order_acquire); }
  // Moves bytes, or waits while another thread does: until something happens, but not long. Returns
  // at once if a call has come since taken_calls() was `seen`.
  void rest(std::uint64_t seen, Deadline deadline);
  // Sends the bytes for which there was no room. True: there are none left.
  bool flush_calls() noexcept;
  // Bytes that went to the first lines, headers and calls included. Any thread.
  std::uint64_t moved_bytes() const noexcept {
    return common_.moved_bytes.load(std::memory_order_relaxed);
  }
  // Whether any connection has ended. Any thread.
  bool has_ended() const { return common_.has_ended.load(std::memory_order_acquire); }
  // When the connection to that member ended; 0: it has not. Any thread.
  std::uint64_t ended_ns(int member) const {
    return peers_[static_cast<std::size_t>(member)]->ended_ns();
  }
  Status loss_of(int member);
  // Tells all peers that have a connection that the end of it is no loss.
  void say_goodbye() noexcept;
  bool has_left(int member) const { return peers_[static_cast<std::size_t>(member)]->has_left(); }

  // The bytes of the pieces, and all messages. Any thread.
  TrafficCounters traffic() const {
    return {common_.sent_bytes.load(), common_.received_bytes.load(), common_.sent_messages.load()};
  }
  // A line to that rank of the group is there. Any thread.
  void take_line(int rank) noexcept;
  // Ends the exchange. Any thread, more than once.
  void abort() noexcept;

 private:
  ExchangePeer& peer(int member) { return *peers_[static_cast<std::size_t>(member)]; }
  Status prepare(ExchangePeer& peer, const Transfer& transfer);
  void serve(int key, short happened, const Transfer* awaited);
  void poke();
  void tell_done() noexcept;
  void move_bytes(const Transfer* awaited, Deadline deadline);
  bool begin_driving() noexcept;
  void end_driving(std::uint64_t calls_before) noexcept;
  Status listen_to_all();
  Status look(const Transfer& transfer);
  static Status lost(const ExchangePeer& peer);
  void corrupt(ExchangePeer& peer, const char* what);
  void fail(const Status& status) noexcept;

  const Members members_;
  const std::shared_ptr<const Lines> lines_;
  const Polls polls_;
  // Made beforehand: there may be no memory when it is needed.
  const Status aborted_ =
      Status::failure(TRIREME_ERROR_ABORTED, "the group ended during a collective of its engine");
  const Status no_memory_ =
      Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "no memory for a message of an engine's peer");
  ExchangePeer::Common common_;
  std::vector<std::unique_ptr<ExchangePeer>> peers_;
  Waker waker_;
  std::function<void()> after_calls_;  // may be empty
  std::atomic<bool> listens_{false};   // to all members

  std::mutex mutex_;  // taken after that of a peer
  std::condition_variable changed_;
  std::atomic<bool> driven_{false};  // somebody moves bytes; written under the mutex
  int waiting_ = 0;                  // others who wait meanwhile
  Status failure_ = Status::success();
  std::atomic<bool> failed_{false};
  std::vector<pollfd> polled_;  // of the moving thread
  std::vector<int> polled_keys_;
};

}  // namespace trireme::tcp
