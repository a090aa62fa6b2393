#include "collectives/message_queue.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "backends/last_calls.hpp"
#include "collectives/request.hpp"
#include "platform/names.hpp"
#include "platform/stall.hpp"
#include "platform/thread.hpp"

namespace trireme {
namespace {

void fill(Message* message, const MessageArguments& arguments, Deadline deadline) {
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
  message->deadline = deadline;
}

MetMessage met_by(const Message& message) {
  return {message.source, message.met_tag, message.met_count, message.met_dtype, message.allocated};
}

// Copies of this many bytes may be under way; a larger copy goes alone.
constexpr std::uint64_t kMostBuffered = 64u << 20;

bool is_done(const Message& message) { return message.done.load(std::memory_order_acquire); }

// While it exists peers wake this rank: see Backend::begin_rest().
class Rest {
 public:
  explicit Rest(Backend& backend) : sleepers_(backend.begin_rest(&seen_)) {}
  ~Rest() { sleepers_->fetch_sub(1, std::memory_order_relaxed); }
  Rest(const Rest&) = delete;
  Rest& operator=(const Rest&) = delete;
  std::uint32_t seen() const { return seen_; }  // for wait_activity()

 private:
  std::uint32_t seen_ = 0;
  std::atomic<std::uint32_t>* const sleepers_;
};

}  // namespace

class StartedMessage final : public Completion {
 public:
  StartedMessage(MessageQueue& queue, std::shared_ptr<void> keep, const void* owner)
      : Completion(owner), queue_(queue), keep_(std::move(keep)) {}

  Status cancel() override { return queue_.cancel(*this); }
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
};

void MessageQueue::open(std::shared_ptr<Backend> backend) {
  const std::lock_guard lock(mutex_);
  backend_ = std::move(backend);
}

std::uint64_t MessageQueue::begin_record(const Message& message, std::uint64_t start_ns) noexcept {
  return records_.flight.begin(
      {message.kind, message.dtype, message.peer, 0, message.sequence, message.count}, start_ns);
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
  for (const auto& started : started_) {
    if (!started->told && is_done(started->message)) wake = started->told = true;
  }
  for (Batch* batch = batches_; batch != nullptr; batch = batch->next) {
    if (!batch->sleeps || !batch->done()) continue;
    batch->sleeps = false;
    wake = true;
  }
  if (wake) backend.wake_waiters();
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
  for (;;) {
    Backoff before_rest = backend.backoff();
    bool polls = true;
    do {
      drive(backend);
      if (batch.done()) return;
      const bool alone = started_.empty() && batches_ == &batch && batch.next == nullptr;
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
      late();
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
      [&] { backend.fail(late(batch, kind, sequence)); },  // which ends all messages
      [&](std::uint64_t waited_ns) { warn(backend, batch, kind, sequence, waited_ns); });
  leave(batch);
  if (!posted.ok()) return posted;
  for (const Message* const message : messages) {
    if (!message->status.ok()) return message->status;
  }
  return Status::success();
}

Status MessageQueue::give_up(Backend& backend, Message& message) noexcept {
  const bool untouched = backend.withdraw(message);
  if (!untouched && is_done(message)) return message.status;
  const std::uint64_t sequence = message.sequence;
  const Status failure = caught(records_, message.kind, sequence, [&] {
    const bool any = message.peer == kAnySource;
    const std::string peer = any ? "no rank" : "rank " + std::to_string(message.peer);
    std::string text = peer + (any ? " has " : " has not ") + missing_half(message);
    if (!any && !backend.has_joined(message.peer)) text = peer + " has not joined";
    std::vector<std::int32_t> asked;
    if (!any) asked.push_back(message.peer);
    const std::string calls = describe_last_calls(backend.last_calls(), asked);
    if (!calls.empty()) text += " (" + calls + ")";
    return make_failure(
        records_, message.kind, sequence, TRIREME_ERROR_TIMEOUT, text.c_str(),
        any ? std::vector<std::int32_t>{} : std::vector<std::int32_t>{message.peer});
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

Status MessageQueue::run(const MessageArguments* arguments, int count, Deadline deadline,
                         MetMessage* out_met) {
  Message messages[2];
  Message* posted[2] = {&messages[0], &messages[1]};
  for (int i = 0; i < count; ++i) fill(&messages[i], arguments[i], deadline);

  std::unique_lock lock(mutex_);
  const std::shared_ptr<Backend> backend = backend_;
  if (backend == nullptr) return records_.left();
  std::uint64_t flights[2] = {};
  Batch batch{posted, static_cast<std::size_t>(count), true, false, batches_};
  batches_ = &batch;
  for (int i = 0; i < count; ++i) {
    Message& message = messages[i];
    message.sequence = ++last_sequence_;
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
    for (int i = 0; i < count; ++i) {
      Message& message = messages[i];
      if (is_done(message)) continue;
      message.status = give_up(*backend, message);
      message.done = true;
    }
    wake_ended(*backend);
  };
  drive_until(lock, *backend, batch, deadline, give_all_up, [&](std::uint64_t waited_ns) {
    for (int i = 0; i < count; ++i) {
      if (!is_done(messages[i])) warn(*backend, messages[i], waited_ns);
    }
  });
  leave(batch);
  lock.unlock();
  const std::uint64_t end_ns = now_ns();
  Status first = Status::success();
  for (int i = 0; i < count; ++i) {
    Status status = finish(messages[i], flights[i], end_ns);
    if (first.ok()) first = std::move(status);
  }
  if (first.ok() && out_met != nullptr) *out_met = met_by(messages[0]);
  return first;
}

Status MessageQueue::start(const std::shared_ptr<void>& keep, const void* owner,
                           const MessageArguments& arguments, Deadline deadline,
                           std::shared_ptr<Request>* out) {
  auto started = std::make_shared<StartedMessage>(*this, keep, owner);
  fill(&started->message, arguments, deadline);
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
  changed_.notify_all();
  backend_->wake_waiters();  // the thread may sleep on an older deadline
  return Status::success();
}

Status MessageQueue::send_buffered(const std::shared_ptr<void>& keep, const void* owner,
                                   const MessageArguments& arguments, Deadline deadline) {
  const std::uint64_t bytes = arguments.count * dtype_size(arguments.dtype);
  auto started = std::make_shared<StartedMessage>(*this, keep, owner);
  fill(&started->message, arguments, Deadline::at(UINT64_MAX));
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
  const std::lock_guard lock(mutex_);
  backend = std::move(backend_);  // released outside the lock
  backend_ = nullptr;
  changed_.notify_all();
  for (const Batch* batch = batches_; batch != nullptr; batch = batch->next) {
    if (batch->of_caller && !batch->done()) return true;
  }
  return std::any_of(started_.begin(), started_.end(),
                     [](const auto& each) { return !is_done(each->message); });
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

void MessageQueue::work() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock,
                  [&] { return !withdrawn_.empty() || !started_.empty() || backend_ == nullptr; });
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
    // Held only while a message is under way, so that this rank can leave the group.
    std::shared_ptr<Backend> backend = started_.front()->backend;
    Backoff before_rest = backend->backoff();
    const auto any_done = [&] {
      return std::any_of(started_.begin(), started_.end(),
                         [](const auto& each) { return is_done(each->message); });
    };
    for (bool polls = true; polls && !any_done();) {
      drive(*backend);
      lock.unlock();
      polls = before_rest.wait(Deadline::at(UINT64_MAX));
      lock.lock();
    }
    if (!withdrawn_.empty() || started_.empty()) continue;
    std::optional<Rest> rest(std::in_place, *backend);
    drive(*backend);
    std::uint64_t earliest = UINT64_MAX;
    const bool any_ended = collect(&ended, &slow, &earliest);
    lock.unlock();
    for (const auto& started : slow) {
      warn(*backend, started->message, started->stall.waited_ns());
    }
    slow.clear();
    if (!any_ended) {
      backend->wait_activity(rest->seen(), Deadline::at(earliest));
      rest.reset();
      backend.reset();
      lock.lock();
      continue;
    }
    rest.reset();
    const auto has_failed = [](const auto& each) { return !each->message.status.ok(); };
    if (std::any_of(ended.begin(), ended.end(), has_failed)) backend->spread_failure();
    backend.reset();
    for (const auto& started : ended) {
      Status status = finish(started->message, started->flight, now_ns());
      started->backend.reset();
      started->held.reset();
      started->copy.reset();
      started->complete(std::move(status));
      started->deliver();
    }
    std::uint64_t room = 0;
    for (const auto& started : ended) room += started->copied_bytes;
    ended.clear();
    lock.lock();
    buffered_bytes_ -= room;
    if (room > 0) changed_.notify_all();
  }
}

}  // namespace trireme
