#include "collectives/message_queue.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "backends/last_calls.hpp"
#include "collectives/request.hpp"
#include "platform/names.hpp"
#include "platform/stall.hpp"
#include "platform/thread.hpp"
#include "platform/ticks.hpp"

namespace trireme {
namespace {

void fill(Message* message, const MessageArguments& arguments) {
  message->kind = arguments.kind;
  message->data = arguments.data;
  message->count = arguments.count;
  message->dtype = arguments.dtype;
  message->peer = arguments.peer;
  message->tag = arguments.tag;
  message->part_of = operation_name(arguments.kind);
  message->any_tag = arguments.any_tag;
  message->fit = arguments.fit;
  message->context = arguments.context;
}

MetMessage met_by(const Message& message) {
  return {message.source, message.met_tag, message.met_count, message.met_dtype, message.allocated};
}

// While callers move messages the thread only looks after this time, so a call that starts a
// message need not wake it. The second one is for a caller that waits for long, who wakes it at the
// end.
constexpr std::uint64_t kNapNs = 200'000;
// How often a caller looks for a message before it lists it: as long as a peer needs that is on its
// way.
constexpr int kPolls = 150;
// How long a rank that leaves waits for the thread to let go of the backend.
constexpr std::uint64_t kLongestHoldNs = 1'000'000'000;
constexpr std::uint64_t kLongNapNs = 10'000'000;
constexpr int kIdleNaps = 50;  // and as often when no message is under way

// Copies of this many bytes may be under way; a larger copy goes alone.
constexpr std::uint64_t kMostBuffered = 64u << 20;

bool is_done(const Message& message) { return message.done.load(std::memory_order_acquire); }

}  // namespace

class StartedMessage final : public Completion {
 public:
  StartedMessage(MessageQueue& queue, std::shared_ptr<void> keep, const void* owner)
      : Completion(owner), queue_(queue), keep_(std::move(keep)) {}

  Status cancel() override { return queue_.cancel(*this); }
  Status wait(Deadline deadline) const override {
    // The queue changes what is under way: this request stays what it is for its caller.
    if (!done() && !inside_callback_of(owner())) {
      queue_.carry(const_cast<StartedMessage&>(*this), deadline);
    }
    return Completion::wait(deadline);
  }
  Status on_complete(void (*callback)(std::int32_t, void*), void* user_data) override {
    Status status = Completion::on_complete(callback, user_data);
    urge();
    return status;
  }
  Status descriptor(int* out) override {
    Status status = Completion::descriptor(out);
    urge();
    return status;
  }
  void look() override { queue_.look(*this); }
  void urge() override {
    if (!done()) queue_.urge(*this);
  }
  const std::shared_ptr<void>& keep() const { return keep_; }
  std::uint64_t due_ns() const override { return message.deadline.moment_ns(); }
  std::string label() const override {
    return std::string(operation_name(message.kind)) + ", sequence " +
           std::to_string(message.sequence) + ",";
  }

  bool met(MetMessage* out) const override {
    if (message.kind == OperationKind::send || !done() || !result().ok()) return false;
    *out = met_by(message);
    return true;
  }

  Message message;
  std::uint64_t flight = 0;
  Stall stall{kNeverStalls};
  std::shared_ptr<const void> held;   // memory that it uses, until it is done
  std::unique_ptr<std::byte[]> copy;  // of a buffered send
  std::uint64_t copied_bytes = 0;
  bool told = false;                 // the thread was woken because it is done
  bool urged = false;                // see MessageQueue::urge()
  std::shared_ptr<Backend> backend;  // until it is done

 private:
  MessageQueue& queue_;
  const std::shared_ptr<void> keep_;
};

struct MessageQueue::Batch {
  bool done() const { return std::all_of(posted, posted + count, is_done_of); }
  static bool is_done_of(const Message* message) { return is_done(*message); }

  Message* const* posted = nullptr;
  std::size_t count = 0;
  bool of_caller = false;  // run(): messages of the caller, not of an algorithm
  bool sleeps = false;     // its thread does not look whether it is done
  Batch* next = nullptr;
  std::size_t started = 0;  // how many of them are in `started_`
};

void MessageQueue::open(std::shared_ptr<Backend> backend) {
  const std::lock_guard lock(mutex_);
  backend_ = std::move(backend);
}

namespace {

FlightRecord::What described(const Message& message) {
  return {message.kind, message.dtype, message.peer, 0, message.sequence, message.count};
}

}  // namespace

std::uint64_t MessageQueue::begin_record(const Message& message, std::uint64_t start_ns) noexcept {
  return records_.flight.begin(described(message), start_ns);
}

// Moves the messages that can move, and wakes the callers whose message is now done.
void MessageQueue::drive(Backend& backend) noexcept {
  const Status status = caught(records_, OperationKind::receive, 0, [&] {
    backend.progress();
    return Status::success();
  });
  if (!status.ok()) {
    backend.fail(status);
    backend.progress();  // ends all of them, as the group has failed
  }
  wake_ended(backend);
}

void MessageQueue::wake_ended(Backend& backend) noexcept {
  bool wake = false;
  for (auto next = started_.begin(); next != started_.end();) {
    const auto place = next++;
    StartedMessage& started = **place;
    if (!is_done(started.message)) continue;
    if (started.message.status.ok()) {
      wake = conclude(place) || wake;
    } else if (!started.told) {  // the thread ends it: the peers must be told without this lock
      wake = started.told = true;
      changed_.notify_all();
    }
  }
  for (Batch* batch = batches_; batch != nullptr; batch = batch->next) {
    if (!batch->sleeps || !batch->done()) continue;
    batch->sleeps = false;
    wake = true;
  }
  if (wake) backend.wake_waiters();
}

// Ends a message that went well. Answers whether it has a callback, which is the thread's to call.
bool MessageQueue::conclude(std::list<std::shared_ptr<StartedMessage>>::iterator place) noexcept {
  const std::shared_ptr<StartedMessage> started = *place;
  started->backend.reset();  // whoever moves messages holds it, too
  started->held.reset();
  started->copy.reset();
  buffered_bytes_ -= started->copied_bytes;
  started->complete(finish(started->message, started->flight, now_ns()));
  const bool calls = started->owes_callback();
  if (calls) {
    withdrawn_.splice(withdrawn_.end(), started_, place);
  } else {
    started_.erase(place);
  }
  if (calls || started->copied_bytes > 0) changed_.notify_all();
  return calls;
}

namespace {

// The peers that have not taken, or not given, their part.
std::vector<std::int32_t> peers_of_unfinished(Message* const* messages, std::size_t count) {
  std::vector<std::int32_t> ranks;
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_done(*messages[i])) ranks.push_back(messages[i]->peer);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// For messages: "sent the message with tag 3".
std::string missing_half(const Message& message) {
  const bool any = message.peer == kAnySource;
  std::string text = message.kind == OperationKind::send ? "taken" : "sent";
  text += message.any_tag ? (any ? " a message" : " any message")
                          : " the message with tag " + std::to_string(message.tag);
  return text;
}

}  // namespace

void MessageQueue::warn(const Backend& backend, const Batch& batch, OperationKind kind,
                        std::uint64_t sequence, std::uint64_t waited_ns) const noexcept {
  try {
    std::vector<std::int32_t> ranks;
    std::string what = std::string("not done its part of ") + operation_name(kind) + ", sequence " +
                       std::to_string(sequence) + ",";
    ranks = peers_of_unfinished(batch.posted, batch.count);
    if (ranks.empty()) return;  // done meanwhile
    warn_slow(records_.name, records_.rank, backend.last_calls(), ranks, what, waited_ns);
  } catch (...) {  // no memory for a line, so there is none
  }
}

void MessageQueue::warn(const Backend& backend, const Message& message,
                        std::uint64_t waited_ns) const noexcept {
  try {
    const bool any = message.peer == kAnySource;
    std::vector<std::int32_t> ranks;
    if (!any) ranks.push_back(message.peer);
    warn_slow(records_.name, records_.rank, backend.last_calls(), ranks,
              (any ? "" : "not ") + missing_half(message), waited_ns);
  } catch (...) {  // no memory for a line, so there is none
  }
}

Status MessageQueue::late(const Batch& batch, OperationKind kind, std::uint64_t sequence) noexcept {
  return caught(records_, kind, sequence, [&] {
    std::vector<std::int32_t> missing = peers_of_unfinished(batch.posted, batch.count);
    const std::string text = list_ranks(missing) + " did not arrive before the deadline";
    return make_failure(records_, kind, sequence, TRIREME_ERROR_TIMEOUT, text.c_str(),
                        std::move(missing));
  });
}

// A caller moves its own messages: while it polls no thread has to be woken, on either side. It
// reads the clock, and sleeps, only where a peer takes longer than that.
template <class Late, class Slow>
void MessageQueue::drive_until(std::unique_lock<std::mutex>& lock, Backend& backend, Batch& batch,
                               Deadline deadline, Late late, Slow slow) {
  Stall stall(records_.stall_ns);
  ++callers_moves_;
  if (rests_) backend.wake_waiters();  // the thread, which naps from now on
  for (;;) {
    Backoff before_rest = backend.backoff();
    bool polls = true;
    do {
      drive(backend);
      if (batch.done()) return;
      const bool alone =
          started_.size() <= batch.started && batches_ == &batch && batch.next == nullptr;
      if (alone && before_rest.spins()) {
        polls = before_rest.wait(deadline);  // too short to unlock for it
      } else {
        lock.unlock();
        polls = before_rest.wait(deadline);
        lock.lock();
      }
    } while (polls && !batch.done());
    const Rest rest(backend);
    drive(backend);
    if (batch.done()) return;
    const std::uint64_t now = now_ns();
    if (now >= deadline.moment_ns()) {
      if (!late()) return;
      continue;
    }
    batch.sleeps = true;
    lock.unlock();
    if (stall.due(now)) slow(stall.waited_ns());
    backend.wait_activity(rest.seen(), stall.before(deadline));
    lock.lock();
    batch.sleeps = false;
  }
}

// The caller holds the lock.
void MessageQueue::leave(const Batch& batch) noexcept {
  Batch** place = &batches_;
  while (*place != &batch) place = &(*place)->next;
  *place = batch.next;
  if (naps_long_) changed_.notify_all();  // it takes what is under way
}

Status MessageQueue::exchange(Backend& backend, const std::vector<Message*>& messages,
                              OperationKind kind, std::uint64_t sequence,
                              Deadline deadline) noexcept {
  std::unique_lock lock(mutex_);
  Batch batch{messages.data(), 0, false, false, batches_};
  batches_ = &batch;
  const Status posted = caught(records_, kind, sequence, [&] {
    for (; batch.count < messages.size(); ++batch.count) backend.post(*messages[batch.count]);
    return Status::success();
  });
  if (!posted.ok()) backend.fail(posted);
  drive_until(
      lock, backend, batch, deadline,
      [&] {
        backend.fail(late(batch, kind, sequence));  // which ends all messages
        return true;
      },
      [&](std::uint64_t waited_ns) { warn(backend, batch, kind, sequence, waited_ns); });
  leave(batch);
  if (!posted.ok()) return posted;
  for (const Message* const message : messages) {
    if (!message->status.ok()) return message->status;
  }
  return Status::success();
}

Status MessageQueue::give_up(Backend& backend, Message& message) noexcept {
  std::vector<std::int32_t> unready;  // before the message is taken back
  static_cast<void>(caught(records_, message.kind, message.sequence, [&] {
    unready = backend.unready();
    return Status::success();
  }));
  const bool untouched = backend.withdraw(message);
  if (!untouched && is_done(message)) return message.status;
  const std::uint64_t sequence = message.sequence;
  const Status failure = caught(records_, message.kind, sequence, [&] {
    const bool any = message.peer == kAnySource;
    const std::string peer = any ? "no rank" : "rank " + std::to_string(message.peer);
    std::string text = peer + (any ? " has " : " has not ") + missing_half(message);
    std::vector<std::int32_t> blamed;
    if (!any) blamed.push_back(message.peer);
    if (!any && !backend.has_joined(message.peer)) {
      text = peer + " has not joined";
    } else if (!unready.empty()) {  // the peer may have made its call
      const bool joined = backend.has_joined(unready.front());
      text = list_ranks(unready) + (unready.size() == 1 ? " has" : " have") +
             (joined ? " not told how it reaches the ranks" : " not joined");
      blamed = unready;
    }
    const std::string calls = describe_last_calls(backend.last_calls(), blamed);
    if (!calls.empty()) text += " (" + calls + ")";
    return make_failure(records_, message.kind, sequence, TRIREME_ERROR_TIMEOUT, text.c_str(),
                        std::move(blamed));
  });
  if (!untouched) {  // a part of it has moved: the stream of this pair is broken
    backend.fail(failure);
    backend.progress();  // ends it, as the group has failed
  }
  return with_operation(records_, message.kind, sequence, failure);
}

// The message's own outcome, with the operation named in a failure of the group that names none.
Status MessageQueue::finish(const Message& message, std::uint64_t flight,
                            std::uint64_t end_ns) noexcept {
  records_.flight.end(flight, message.status.code(), end_ns);
  const FailureDetails* const details = message.status.details();
  if (message.status.ok() || (details != nullptr && !details->operation.empty())) {
    return message.status;
  }
  return with_operation(records_, message.kind, message.sequence, message.status);
}

// Small messages of a caller alone, whose peers are on their way: then nothing is listed, and no
// clock is read. The caller holds the lock, and so do others for a moment that short.
bool MessageQueue::move_at_once(Message* messages, int count) noexcept {
  if (batches_ != nullptr || !started_.empty()) return false;
  for (int polls = backend_->backoff().spins() ? kPolls : 1; polls > 0; --polls) {
    bool all = true;
    for (int i = 0; i < count; ++i) {
      Message& message = messages[i];
      if (is_done(message)) continue;
      const bool moved = backend_->move_at_once(message);
      if (!moved && message.kind != OperationKind::receive) return false;
      message.done.store(moved, std::memory_order_relaxed);
      all = all && moved;
    }
    if (all) return true;
  }
  return false;
}

Status MessageQueue::run(const MessageArguments* arguments, int count, std::uint64_t timeout_ns,
                         MetMessage* out_met) {
  Message messages[2];
  for (int i = 0; i < count; ++i) fill(&messages[i], arguments[i]);
  std::unique_lock lock(mutex_);
  if (backend_ == nullptr) return records_.left();
  for (int i = 0; i < count; ++i) messages[i].sequence = ++last_sequence_;
  const std::uint64_t start_ticks = ticks_now();
  Status status = Status::success();
  const bool all = move_at_once(messages, count);
  const std::uint64_t end_ticks = ticks_now();
  for (int i = 0; i < count; ++i) {
    if (!is_done(messages[i])) continue;
    records_.flight.note(described(messages[i]), start_ticks, end_ticks);
  }
  if (!all) status = run_listed(lock, messages, count, Deadline::after(timeout_ns));
  if (status.ok() && out_met != nullptr) *out_met = met_by(messages[0]);
  return status;
}

Status MessageQueue::run(const MessageArguments& message, Deadline deadline) {
  Message listed;
  fill(&listed, message);
  std::unique_lock lock(mutex_);
  if (backend_ == nullptr) return records_.left();
  listed.sequence = ++last_sequence_;
  return run_listed(lock, &listed, 1, deadline);
}

// Those of the messages that are done already have moved at once, and are in the record.
Status MessageQueue::run_listed(std::unique_lock<std::mutex>& lock, Message* messages, int count,
                                Deadline deadline) {
  const std::shared_ptr<Backend> backend = backend_;
  Message* posted[2] = {};
  std::uint64_t flights[2] = {};
  int listed = 0;
  for (int i = 0; i < count; ++i) {
    if (!is_done(messages[i])) posted[listed++] = &messages[i];
  }
  Batch batch{posted, static_cast<std::size_t>(listed), true, false, batches_};
  batches_ = &batch;
  for (int i = 0; i < listed; ++i) {
    Message& message = *posted[i];
    message.deadline = deadline;
    flights[i] = begin_record(message, deadline.made_ns());
    const Status refused = caught(records_, message.kind, message.sequence, [&] {
      backend->post(message);
      return Status::success();
    });
    if (refused.ok()) continue;
    message.status = refused;
    message.done = true;
  }
  const auto give_all_up = [&] {
    for (int i = 0; i < listed; ++i) {
      Message& message = *posted[i];
      if (is_done(message)) continue;
      message.status = give_up(*backend, message);
      message.done = true;
    }
    wake_ended(*backend);
    return true;
  };
  drive_until(lock, *backend, batch, deadline, give_all_up, [&](std::uint64_t waited_ns) {
    for (int i = 0; i < listed; ++i) {
      if (!is_done(*posted[i])) warn(*backend, *posted[i], waited_ns);
    }
  });
  leave(batch);
  lock.unlock();
  const std::uint64_t end_ns = now_ns();
  Status first = Status::success();
  for (int i = 0; i < listed; ++i) {
    Status status = finish(*posted[i], flights[i], end_ns);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

Status MessageQueue::start(const std::shared_ptr<void>& keep, const void* owner,
                           const MessageArguments& arguments, Deadline deadline,
                           std::shared_ptr<Request>* out) {
  auto started = std::make_shared<StartedMessage>(*this, keep, owner);
  fill(&started->message, arguments);
  started->message.deadline = deadline;
  started->held = arguments.owner;
  const std::lock_guard lock(mutex_);
  TRIREME_RETURN_IF_ERROR(start(started));
  *out = std::move(started);
  return Status::success();
}

// The caller holds the lock.
Status MessageQueue::start(std::shared_ptr<StartedMessage> started) {
  std::list<std::shared_ptr<StartedMessage>> node{started};
  if (backend_ == nullptr) return records_.left();
  TRIREME_RETURN_IF_ERROR(backend_->failure());
  if (!has_thread_) {
    TRIREME_RETURN_IF_ERROR(start_thread([this, keep = started->keep()] { work(); }));
    has_thread_ = true;
  }
  Message& message = started->message;
  message.sequence = ++last_sequence_;
  started->flight = begin_record(message, message.deadline.made_ns());
  started->stall = Stall(records_.stall_ns);
  started->backend = backend_;
  const Status posted = caught(records_, message.kind, last_sequence_, [&] {
    backend_->post(message);
    return Status::success();
  });
  if (!posted.ok()) {
    message.status = posted;
    message.done = true;
  }
  // Most sends end here, as their bytes fit into a ring: then no thread has to be woken. The thread
  // ends those that failed, as their peers must be told without this lock.
  drive(*backend_);
  if (is_done(message) && message.status.ok()) {
    started->backend.reset();
    started->held.reset();
    started->copy.reset();
    started->complete(finish(message, started->flight, 0));
    return Status::success();
  }
  buffered_bytes_ += started->copied_bytes;
  started_.splice(started_.end(), node);
  ++callers_moves_;
  if (rests_) backend_->wake_waiters();  // the thread may sleep on an older deadline
  if (!rests_ && !naps_) changed_.notify_all();
  return Status::success();
}

void MessageQueue::carry(StartedMessage& started, Deadline deadline) noexcept {
  Message* const posted = &started.message;
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Backend> backend = started.backend;
  if (backend == nullptr) return;
  Batch batch{&posted, 1, false, false, batches_, 1};
  batches_ = &batch;
  const auto no_warning = [](std::uint64_t) {};  // the thread warns of started messages
  drive_until(
      lock, *backend, batch, deadline, [] { return false; }, no_warning);
  leave(batch);
  lock.unlock();
}

void MessageQueue::look(StartedMessage& started) noexcept {
  std::shared_ptr<Backend> backend;  // released outside the lock
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // another thread moves messages
  backend = started.backend;
  if (backend != nullptr) drive(*backend);
}

void MessageQueue::urge(StartedMessage& started) noexcept {
  const std::lock_guard lock(mutex_);
  if (started.urged) return;
  started.urged = true;
  if (naps_ || naps_long_) changed_.notify_all();
}

bool MessageQueue::any_urged() const noexcept {
  return std::any_of(started_.begin(), started_.end(),
                     [](const auto& started) { return started->urged; });
}

Status MessageQueue::send_buffered(const std::shared_ptr<void>& keep, const void* owner,
                                   const MessageArguments& arguments, Deadline deadline) {
  const std::uint64_t bytes = arguments.count * dtype_size(arguments.dtype);
  auto started = std::make_shared<StartedMessage>(*this, keep, owner);
  fill(&started->message, arguments);
  started->message.deadline = Deadline::at(UINT64_MAX);
  {
    std::unique_lock lock(mutex_);
    TRIREME_RETURN_IF_ERROR(wait_for_room(lock, bytes, deadline));
    buffered_bytes_ += bytes;  // reserved, so that the copy is made without the lock
  }
  Status status = Status::success();
  started->copy.reset(new (std::nothrow) std::byte[bytes]);
  if (started->copy == nullptr) {
    status = Status::failure(TRIREME_ERROR_OUT_OF_MEMORY,
                             "host memory has run out for the copy of a buffered send");
  } else if (bytes > 0) {
    std::memcpy(started->copy.get(), arguments.data, bytes);
  }
  started->message.data = started->copy.get();
  started->copied_bytes = bytes;
  const std::lock_guard lock(mutex_);
  buffered_bytes_ -= bytes;
  if (status.ok()) status = start(std::move(started));
  changed_.notify_all();  // there may be room again
  return status;
}

Status MessageQueue::wait_for_room(std::unique_lock<std::mutex>& lock, std::uint64_t bytes,
                                   Deadline deadline) {
  const auto fits = [&] {
    return buffered_bytes_ == 0 ||
           (bytes <= kMostBuffered && buffered_bytes_ <= kMostBuffered - bytes);
  };
  if (wait_until(changed_, lock, deadline, [&] { return backend_ == nullptr || fits(); })) {
    return backend_ == nullptr ? records_.left() : Status::success();
  }
  const std::string text = std::to_string(buffered_bytes_) +
                           " bytes of buffered sends wait for their receivers, and " +
                           std::to_string(bytes) + " more do not fit";
  return with_operation(records_, OperationKind::send, last_sequence_ + 1,
                        make_failure(records_, OperationKind::send, last_sequence_ + 1,
                                     TRIREME_ERROR_TIMEOUT, text.c_str()));
}

Status MessageQueue::cancel(StartedMessage& started) {
  const std::string name = started.label();
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(started_.begin(), started_.end(),
                                  [&](const auto& each) { return each.get() == &started; });
  if (found == started_.end() || is_done(started.message) ||
      !started.backend->withdraw(started.message)) {
    return invalid_state(name + " is matched or done");
  }
  withdrawn_.splice(withdrawn_.end(), started_, found);
  started.message.status = make_failure(records_, started.message.kind, started.message.sequence,
                                        TRIREME_ERROR_CANCELLED, "withdrawn by its own rank");
  started.message.done = true;  // for a caller that carries it
  const std::shared_ptr<Backend> backend = std::move(started.backend);
  started.complete(with_operation(records_, started.message.kind, started.message.sequence,
                                  started.message.status));
  records_.flight.end(started.flight, TRIREME_ERROR_CANCELLED);
  changed_.notify_all();
  backend->wake_waiters();
  return Status::success();
}

bool MessageQueue::stop() noexcept {
  std::shared_ptr<Backend> backend;
  std::unique_lock lock(mutex_);
  // A peer may have taken a message since the last look.
  if (backend_ != nullptr && (!started_.empty() || batches_ != nullptr)) drive(*backend_);
  backend = std::move(backend_);  // released outside the lock
  backend_ = nullptr;
  changed_.notify_all();
  for (const Batch* batch = batches_; batch != nullptr; batch = batch->next) {
    if (batch->of_caller && !batch->done()) return true;
  }
  const bool busy = std::any_of(started_.begin(), started_.end(),
                                [](const auto& each) { return !is_done(each->message); });
  // This rank has left once no thread holds the backend. Its process may end after this call.
  if (!busy && holds_ && backend != nullptr && std::this_thread::get_id() != thread_) {
    backend->wake_waiters();
    wait_until(changed_, lock, Deadline::after(kLongestHoldNs), [this] { return !holds_; });
  }
  return busy;
}

bool MessageQueue::any_late() const noexcept {
  const std::uint64_t now = now_ns();
  return std::any_of(started_.begin(), started_.end(), [&](const auto& each) {
    return !is_done(each->message) && now >= each->message.deadline.moment_ns();
  });
}

// Moves ended messages to `ended`, and late ones, too, after it has withdrawn them. `slow` are the
// messages to warn of.
bool MessageQueue::collect(std::list<std::shared_ptr<StartedMessage>>* ended,
                           std::list<std::shared_ptr<StartedMessage>>* slow,
                           std::uint64_t* earliest) noexcept {
  *earliest = UINT64_MAX;
  const std::uint64_t now = now_ns();
  for (auto next = started_.begin(); next != started_.end();) {
    const auto place = next++;
    StartedMessage& started = **place;
    if (!is_done(started.message) && now >= started.message.deadline.moment_ns()) {
      started.message.status = give_up(*started.backend, started.message);
      started.message.done = true;
    }
    if (is_done(started.message)) {
      ended->splice(ended->end(), started_, place);
    } else {
      if (started.stall.due(now)) {
        try {
          slow->push_back(*place);
        } catch (...) {  // no memory for a line, so there is none
        }
      }
      *earliest = std::min(*earliest, started.stall.before(started.message.deadline).moment_ns());
    }
  }
  return !ended->empty();
}

// The thread waits until there is something to do. At first it naps, as callers that exchange
// messages soon start the next one.
void MessageQueue::idle(std::unique_lock<std::mutex>& lock) {
  const auto has_work = [&] {
    return !withdrawn_.empty() || !started_.empty() || backend_ == nullptr;
  };
  naps_ = true;
  for (int i = 0; i < kIdleNaps && !has_work(); ++i) {
    changed_.wait_for(lock, std::chrono::nanoseconds(kNapNs));
  }
  naps_ = false;
  changed_.wait(lock, has_work);
}

// Whether callers have moved the messages: then the thread has napped and not looked.
bool MessageQueue::nap(std::unique_lock<std::mutex>& lock) {
  if ((batches_ == nullptr && callers_moves_ == seen_moves_) || any_urged()) return false;
  const auto wakes = [&] {
    return !withdrawn_.empty() ||
           std::any_of(started_.begin(), started_.end(),
                       [](const auto& each) { return each->urged || is_done(each->message); });
  };
  // While a caller waits for long it need not look often.
  naps_long_ = callers_moves_ == seen_moves_;
  naps_ = !naps_long_;
  seen_moves_ = callers_moves_;
  if (!wakes()) {
    changed_.wait_for(lock, std::chrono::nanoseconds(naps_long_ ? kLongNapNs : kNapNs));
  }
  naps_ = naps_long_ = false;
  return true;
}

void MessageQueue::work() noexcept {
  std::unique_lock lock(mutex_);
  thread_ = std::this_thread::get_id();
  for (;;) {
    idle(lock);
    std::list<std::shared_ptr<StartedMessage>> ended;
    std::list<std::shared_ptr<StartedMessage>> slow;
    if (!withdrawn_.empty()) {
      ended.splice(ended.end(), withdrawn_);
      lock.unlock();
      for (const auto& started : ended) {
        started->held.reset();
        started->deliver();
      }
      ended.clear();
      lock.lock();
      continue;
    }
    if (started_.empty()) return;
    // Held only while a message is under way, so that this rank can leave the group. It is never
    // released under the lock, as it may be the last reference.
    std::shared_ptr<Backend> backend = started_.front()->backend;
    holds_ = true;
    const bool napped = nap(lock);
    const auto any_done = [&] {
      return std::any_of(started_.begin(), started_.end(),
                         [](const auto& each) { return is_done(each->message); });
    };
    const auto carried = [&] { return batches_ != nullptr && !any_urged(); };  // callers move them
    Backoff before_rest = backend->backoff();
    for (bool polls = !napped; polls && !started_.empty() && !any_done();) {
      drive(*backend);
      lock.unlock();
      polls = before_rest.wait(Deadline::at(UINT64_MAX));
      lock.lock();
      if (carried()) polls = false;
    }
    std::optional<Rest> rest;
    if (!napped && withdrawn_.empty() && !started_.empty() && !carried()) {
      rest.emplace(*backend);
      drive(*backend);
    }
    // A late message may have moved since the last look.
    if (!rest.has_value() && any_late()) drive(*backend);
    std::uint64_t earliest = UINT64_MAX;
    const bool any_ended = collect(&ended, &slow, &earliest);
    rests_ = rest.has_value() && !any_ended && withdrawn_.empty() && !started_.empty();
    const bool sleeps = rests_;
    const bool awaited = any_ended && batches_ != nullptr;
    lock.unlock();
    if (awaited) backend->wake_waiters();
    for (const auto& started : slow) {
      warn(*backend, started->message, started->stall.waited_ns());
    }
    slow.clear();
    if (sleeps) backend->wait_activity(rest->seen(), Deadline::at(earliest));
    rest.reset();
    const auto has_failed = [](const auto& each) { return !each->message.status.ok(); };
    if (std::any_of(ended.begin(), ended.end(), has_failed)) backend->spread_failure();
    backend.reset();
    lock.lock();
    holds_ = false;
    changed_.notify_all();
    lock.unlock();
    for (const auto& started : ended) {
      Status status = finish(started->message, started->flight, now_ns());
      lock.lock();  // carry() and look() read it
      backend = std::move(started->backend);
      lock.unlock();
      backend.reset();
      started->held.reset();
      started->copy.reset();
      started->complete(std::move(status));
      started->deliver();
    }
    std::uint64_t room = 0;
    for (const auto& started : ended) room += started->copied_bytes;
    ended.clear();
    lock.lock();
    rests_ = false;
    buffered_bytes_ -= room;
    if (room > 0) changed_.notify_all();
  }
}

}  // namespace trireme
