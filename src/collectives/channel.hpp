// Channel: the queue in which one rank's collectives run, one after the other in the order of the
// calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "collectives/algorithm_run.hpp"
#include "collectives/communicator.hpp"
#include "collectives/message_queue.hpp"
#include "collectives/records.hpp"

namespace trireme {

// Ends queued operations whose deadline passes while others run before them. One thread, made when
// it is first needed.
class Timekeeper {
 public:
  // `expire` ends late operations and returns the earliest moment that is left, or UINT64_MAX.
  explicit Timekeeper(std::function<std::uint64_t()> expire) : expire_(std::move(expire)) {}

  // `keep` keeps this object alive.
  Status expect(std::uint64_t moment_ns, const std::shared_ptr<void>& keep);
  void stop() noexcept;

 private:
  void work() noexcept;

  const std::function<std::uint64_t()> expire_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_ns_ = UINT64_MAX;
  bool running_ = false;
  bool stopped_ = false;
};

class Collective;

class Channel {
 public:
  Channel(std::uint32_t number, Records& records, Timekeeper& timekeeper, MessageQueue& messages)
      : number_(number),
        records_(records),
        timekeeper_(timekeeper),
        messages_(messages),
        tuning_is_told_(number >= kModelChannel) {}

  void open(std::shared_ptr<Backend> backend);
  // Later operations belong to this model.
  void give_to(std::uint32_t model) noexcept { model_.store(model, std::memory_order_relaxed); }
  std::uint32_t model() const noexcept { return model_.load(std::memory_order_relaxed); }
  Status run(const Operation& operation, Deadline deadline);
  // The same; its deadline is made only if the operation has to wait.
  Status run(const PlainOperation& operation, std::uint64_t timeout_ns);
  // `keep` keeps the communicator, and with it this channel, alive; `owner` is its address.
  Status start(const std::shared_ptr<void>& keep, const void* owner, Operation operation,
               Deadline deadline, std::shared_ptr<Request>* out);
  Status cancel(const Collective& collective);
  // Ends started operations that wait behind others and are late; returns the next moment to look.
  std::uint64_t expire();
  // No operation begins after this. True if one runs or waits; it ends once the group has failed.
  bool stop() noexcept;

 private:
  // One place in the queue, of a caller that waits for it or of a started operation.
  struct Turn {
    std::uint64_t sequence = 0;
    std::shared_ptr<Collective> started;
  };
  using Queue = std::list<Turn>;

  void know_natives(const Operation& operation, Deadline deadline);
  Status move(Backend& backend, const Operation& operation, std::uint64_t sequence,
              Deadline deadline);
  bool is_left_as_it_is(const PlainOperation& operation) const noexcept;
  const Operation& tuned(const Backend& backend, const Operation& operation,
                         std::optional<Operation>* changed);
  Status wait_turn(std::unique_lock<std::mutex>& lock, Queue* turn, OperationKind kind,
                   std::uint64_t sequence, Deadline deadline);
  Status fail_composite(Backend& backend, OperationKind kind, std::uint64_t sequence,
                        const Status& status) const;
  // `published`: Backend::start_small() has published it.
  Status execute(Backend& backend, const Operation& operation, std::uint64_t sequence,
                 Deadline deadline, bool published = false) noexcept;
  // The failure of an operation that is late and has not begun: the group's failure. It is this
  // operation's own if the running one has more time. Null: the running one was due earlier, and
  // its verdict is still to come.
  std::optional<Status> verdict_behind(Backend& backend, OperationKind kind, std::uint64_t sequence,
                                       Deadline deadline) const noexcept;
  std::uint64_t judge_late(std::shared_ptr<Backend>* failed);
  void withdraw(Queue::iterator turn, const Status& status) noexcept;
  FlightRecord::What describe(const PlainOperation& operation,
                              std::uint64_t sequence) const noexcept;
  std::uint64_t begin_record(const Operation& operation, std::uint64_t sequence,
                             Deadline deadline) noexcept;

  // --- state_; all but the first two with the lock held ---
  bool begin_at_once(std::uint64_t* sequence) noexcept;  // if nothing runs or waits
  void end_small() noexcept;
  bool runs() const { return (state_.load(std::memory_order_acquire) & kRuns) != 0; }
  // For an operation that has to wait: from here on no operation begins at once.
  std::uint64_t take_sequence() noexcept {
    state_.fetch_or(kWaits);
    return state_.fetch_add(kOneCollective) / kOneCollective + 1;
  }
  void begin_next() noexcept;  // the first turn, which has left the queue
  void note_queue() noexcept;  // call it after the queue has become shorter
  // Release the result without the lock; it has no other use.
  [[nodiscard]] std::shared_ptr<Backend> end_run() noexcept;

  bool may_run() const { return !runs() && !queue_.empty() && queue_.front().started != nullptr; }
  void work() noexcept;
  void run_started(std::unique_lock<std::mutex>& lock) noexcept;

  const std::uint32_t number_;
  std::atomic<std::uint32_t> model_{0};
  Records& records_;
  Timekeeper& timekeeper_;
  MessageQueue& messages_;
  Scratch passing_;  // of algorithms; only the running operation touches it
  // The peers know which tuning table this rank has. The models' channels leave it to the others.
  std::atomic<bool> tuning_is_told_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Backend> backend_;  // null: not open, or stopped
  std::shared_ptr<Backend> leaving_;  // stopped, but an operation may still run in it
  Backend* opened_ = nullptr;         // lives while kRuns is set
  std::shared_ptr<Memory> scratch_;   // of composites; only the running one touches it
  // The number of the last collective, above flags that keep the next one from beginning at once:
  // one is in the backend, some are in the queue, the channel is not open. A small collective takes
  // its number and begins, or not, by one exchange. At its end it needs the lock only if such a
  // flag is set.
  static constexpr std::uint64_t kRuns = 1, kWaits = 2, kClosed = 4, kOneCollective = 8;
  std::atomic<std::uint64_t> state_{kClosed};
  std::atomic<std::uint64_t> due_ns_{
      UINT64_MAX};  // the deadline of the operation that runs, if it has one yet
  Queue queue_;
  Queue withdrawn_;  // done; the progress thread has yet to call their callbacks
  bool has_thread_ = false;
};

}  // namespace trireme
