// MessageQueue: one rank's messages that are under way. A caller that waits for one message moves
// all of them. A thread of the library moves the started messages while no caller does.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "collectives/communicator.hpp"
#include "collectives/records.hpp"

namespace trireme {

class StartedMessage;

class MessageQueue {
 public:
  explicit MessageQueue(Records& records) : records_(records) {}

  void open(std::shared_ptr<Backend> backend);
  // Runs one or two at once, and returns the first failure. *out_met may be null.
  Status run(const MessageArguments* arguments, int count, std::uint64_t timeout_ns,
             MetMessage* out_met);
  Status run(const MessageArguments& message, Deadline deadline);
  // The same contract as Channel::start().
  Status start(const std::shared_ptr<void>& keep, const void* owner,
               const MessageArguments& arguments, Deadline deadline, std::shared_ptr<Request>* out);
  // Sends a copy of the data, without a deadline of its own; waits while too much is under way.
  Status send_buffered(const std::shared_ptr<void>& keep, const void* owner,
                       const MessageArguments& arguments, Deadline deadline);
  Status cancel(StartedMessage& message);
  // Moves messages until this one is done, or the deadline passes. The thread ends one that fails.
  void carry(StartedMessage& message, Deadline deadline) noexcept;
  void look(StartedMessage& message) noexcept;  // moves messages, once
  void urge(StartedMessage& message) noexcept;  // from now on the thread moves it without a nap
  // For algorithms: posts all messages and waits until all are done. A failure fails the group,
  // also a missed deadline. The messages belong to a running collective, so `backend` is there.
  Status exchange(Backend& backend, const std::vector<Message*>& messages, OperationKind kind,
                  std::uint64_t sequence, Deadline deadline) noexcept;
  // No message begins after this. True if one is under way; it ends once the group has failed.
  bool stop() noexcept;

 private:
  struct Batch;  // the messages for which a caller blocks, in run(), exchange() or carry()

  bool move_at_once(Message* messages, int count) noexcept;
  Status run_listed(std::unique_lock<std::mutex>& lock, Message* messages, int count,
                    Deadline deadline);
  Status start(std::shared_ptr<StartedMessage> started);
  Status wait_for_room(std::unique_lock<std::mutex>& lock, std::uint64_t bytes, Deadline deadline);
  void drive(Backend& backend) noexcept;
  // Drives the messages until those of the batch are done. At the deadline `late()` must end them,
  // or the group, or answer false: then the wait ends. `slow(waited_ns)` warns, without the lock.
  template <class Late, class Slow>
  void drive_until(std::unique_lock<std::mutex>& lock, Backend& backend, Batch& batch,
                   Deadline deadline, Late late, Slow slow);
  void leave(const Batch& batch) noexcept;
  void wake_ended(Backend& backend) noexcept;
  bool conclude(std::list<std::shared_ptr<StartedMessage>>::iterator place) noexcept;
  bool any_urged() const noexcept;
  void idle(std::unique_lock<std::mutex>& lock);
  bool nap(std::unique_lock<std::mutex>& lock);
  // Withdraws a late message; afterwards it is done.
  Status give_up(Backend& backend, Message& message) noexcept;
  Status late(const Batch& batch, OperationKind kind, std::uint64_t sequence) noexcept;
  // Logs the peers for which the call waits.
  void warn(const Backend& backend, const Batch& batch, OperationKind kind, std::uint64_t sequence,
            std::uint64_t waited_ns) const noexcept;
  void warn(const Backend& backend, const Message& message, std::uint64_t waited_ns) const noexcept;
  Status finish(const Message& message, std::uint64_t flight, std::uint64_t end_ns) noexcept;
  std::uint64_t begin_record(const Message& message, std::uint64_t start_ns) noexcept;
  void work() noexcept;
  bool any_late() const noexcept;
  bool collect(std::list<std::shared_ptr<StartedMessage>>* ended,
               std::list<std::shared_ptr<StartedMessage>>* slow, std::uint64_t* earliest) noexcept;

  Records& records_;
  std::mutex mutex_;  // also the lock that Backend requires around post, progress and withdraw
  std::condition_variable changed_;
  std::shared_ptr<Backend> backend_;  // null: not open, or stopped
  std::uint64_t last_sequence_ = 0;
  Batch* batches_ = nullptr;  // the first of a list
  std::list<std::shared_ptr<StartedMessage>> started_;
  std::list<std::shared_ptr<StartedMessage>>
      withdrawn_;                     // done; their callbacks are not called yet
  std::uint64_t buffered_bytes_ = 0;  // of copies under way
  bool has_thread_ = false;
  std::thread::id thread_;  // once it has begun
  bool holds_ = false;      // the thread holds the backend
  // Of the thread, so that callers wake it only where it must be awake.
  bool naps_ = false;                // it looks by itself before long
  bool naps_long_ = false;           // it looks when it is woken, or much later
  bool rests_ = false;               // peers wake it by this rank's bell
  std::uint64_t callers_moves_ = 0;  // how often callers have moved messages
  std::uint64_t seen_moves_ = 0;     // the same when the thread last looked
};

}  // namespace trireme
