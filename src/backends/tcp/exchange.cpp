#include "backends/tcp/exchange.hpp"

#include <algorithm>
#include <string>

#include "platform/backoff.hpp"
#include "platform/thread.hpp"
#include "schedules/overlay.hpp"

namespace trireme::tcp {
namespace {

constexpr std::uint64_t kLongestPollNs = 60'000 * kMillisecond;
constexpr std::size_t kFewPeers = 2;
// A thread that rests looks at its group so often. In a large group that takes a while.
constexpr std::uint64_t kLongestRestNs = 10 * kMillisecond;
constexpr std::uint64_t kLongestRestOfManyNs = 100 * kMillisecond;

}  // namespace

Exchange::Exchange(Members members, std::shared_ptr<const Lines> lines, Polls polls)
    : members_(std::move(members)), lines_(std::move(lines)), polls_(polls) {
  common_.most_call_bytes = kMostCallBytes;
  common_.corrupt = [this](ExchangePeer& from, const char* what) { corrupt(from, what); };
  common_.wake_all = [this] {
    const std::lock_guard lock(mutex_);
    waker_.wake();
    changed_.notify_all();
  };
  common_.wake_poll = [this] { poke(); };
  common_.out_of_memory = [this] { fail(no_memory_); };
  for (int member = 0; member < size(); ++member) {
    const int rank = members_.ranks[static_cast<std::size_t>(member)];
    peers_.push_back(std::make_unique<ExchangePeer>(member, rank, common_));
  }
  common_.ahead.resize(ExchangePeer::kAheadBytes);
  polled_.reserve(peers_.size() + 1);
  polled_keys_.reserve(peers_.size());
}

Status Exchange::open() { return waker_.open(); }

// --- failures ----------------------------------------------------------------------------------

void Exchange::fail(const Status& status) noexcept {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = status;
  failed_.store(true);
  waker_.wake();  // and stays awake
  changed_.notify_all();
}

void Exchange::abort() noexcept { fail(aborted_); }

Status Exchange::lost(const ExchangePeer& with) {
  FailureDetails details;
  details.blamed = {with.rank()};
  std::string text = "rank " + std::to_string(with.rank()) + ": its connection of the engine ";
  text = with.error_number() == 0 ? text + "was closed"
                                  : Status::system(with.error_number(), text + "broke").message();
  return Status::failure(TRIREME_ERROR_PEER_LOST, std::move(text)).with_details(std::move(details));
}

Status Exchange::loss_of(int member) {
  const std::lock_guard lock(peer(member).mutex);
  return lost(peer(member));
}

void Exchange::corrupt(ExchangePeer& from, const char* what) {
  FailureDetails details;
  details.blamed = {from.rank()};
  // Keep this order: a thread that waits for the peer on another channel then finds the reason.
  fail(Status::failure(TRIREME_ERROR_CORRUPT, "rank " + std::to_string(from.rank()) +
                                                  ": on its connection of the engine came " + what)
           .with_details(std::move(details)));
  from.end(0);
}

// --- the pieces --------------------------------------------------------------------------------

// Another thread moves bytes, and has more to poll than before.
void Exchange::poke() {
  if (driven_.load()) waker_.wake();
}

// Call it under the mutex of the peer.
Status Exchange::prepare(ExchangePeer& there, const Transfer& transfer) {
  if (failed_.load()) {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  TRIREME_RETURN_IF_ERROR(there.connect(*lines_));
  if (!there.has_ended()) return Status::success();
  TRIREME_RETURN_IF_ERROR(look(transfer));
  return lost(there);
}

Status Exchange::send(Transfer& transfer) {
  ExchangePeer& to = peer(transfer.peer);
  const std::lock_guard lock(to.mutex);
  TRIREME_RETURN_IF_ERROR(prepare(to, transfer));
  if (!to.send(transfer)) return look(transfer);
  to.refresh();
  return Status::success();
}

Status Exchange::receive(Transfer& transfer) {
  ExchangePeer& from = peer(transfer.peer);
  const std::lock_guard lock(from.mutex);
  const Status ready = prepare(from, transfer);
  // A peer may have sent the whole piece, and left since.
  if (!ready.ok() && (failed_.load() || !from.has_early(transfer))) return ready;
  if (!from.receive(transfer)) return look(transfer);
  from.refresh();
  return Status::success();
}

void Exchange::go() noexcept {
  if (common_.held.load() == 0) return;
  bool done = false;
  for (const auto& to : peers_) {
    if (!to->is_held()) continue;
    const std::lock_guard lock(to->mutex);
    done = to->flush() || done;
    to->refresh();
  }
  if (done) tell_done();
}

// Transfers of other threads may be done, on a thread that is not the moving one.
void Exchange::tell_done() noexcept {
  // A thread becomes the moving one, or begins to wait, under the mutex, after a look.
  const std::lock_guard lock(mutex_);
  poke();
  if (waiting_ > 0) changed_.notify_all();
}

void Exchange::drop(Transfer& transfer) noexcept {
  if (transfer.done.load(std::memory_order_acquire)) return;
  ExchangePeer& with = peer(transfer.peer);
  const std::lock_guard lock(with.mutex);
  // The peer gets the call of this rank, whatever has ended the transfer.
  if (with.is_held() && with.flush()) tell_done();
  with.forget(transfer);
  if (!transfer.done.load()) {
    this->abort();  // first: as in corrupt()
    with.end(0);
  }
  with.update_events();
}

// --- moving ------------------------------------------------------------------------------------

Status Exchange::look(const Transfer& transfer) {
  if (transfer.done.load(std::memory_order_acquire)) return Status::success();
  if (failed_.load()) {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  return Status::success();
}

// Waits once for the peers with a wanted transfer, and moves their bytes.
void Exchange::move_bytes(const Transfer* awaited, Deadline deadline) {
  const std::uint64_t rest = std::min(deadline.remaining_ns(), kLongestPollNs);
  const int ms = static_cast<int>((rest + kMillisecond - 1) / kMillisecond);
  if (common_.queue.is_open()) {
    common_.queue.wait(ms, [&](int key, short happened) {
      if (key >= 0) return serve(key, happened, awaited);
      if (!failed_.load()) waker_.clear();
    });
    return;
  }
  polled_.clear();
  polled_keys_.clear();
  polled_.push_back({waker_.get(), POLLIN, 0});
  for (int member = 0; member < size(); ++member) {
    const ExchangePeer& there = peer(member);
    if (const short events = there.events(); events != 0) {
      polled_.push_back({there.socket(), events, 0});
      polled_keys_.push_back(member * kMostLines);
    }
    const FurtherLines& further = there.further();
    for (int line = 1; line <= further.count(); ++line) {
      const short events = further.events(line);
      if (events == 0) continue;
      polled_.push_back({further.socket(line), events, 0});
      polled_keys_.push_back(member * kMostLines + line);
    }
  }
  // With few peers a look at each costs no more than to ask which of them have something.
  if (ms == 0 && polled_keys_.size() <= kFewPeers) {
    for (pollfd& each : polled_) each.revents = each.events;
    polled_[0].revents = 0;
  } else {
    ::poll(polled_.data(), polled_.size(), ms);
  }
  if (polled_[0].revents != 0 && !failed_.load()) waker_.clear();
  for (std::size_t i = 0; i < polled_keys_.size(); ++i) {
    const short happened = polled_[1 + i].revents;
    if (happened != 0) serve(polled_keys_[i], happened, awaited);
  }
}

// A peer may have sent and then left. Its bytes still count, so this reads before it sends.
// `key`: of a line of a member.
void Exchange::serve(int key, short happened, const Transfer* awaited) {
  ExchangePeer& there = peer(key / kMostLines);
  const std::lock_guard lock(there.mutex);
  if ((happened & ~POLLOUT) != 0) there.read(key % kMostLines, awaited);
  if ((happened & POLLOUT) != 0) static_cast<void>(there.flush());
  there.update_events();
}

Status Exchange::wait(Transfer& transfer, Deadline deadline) {
  ExchangePeer& with = peer(transfer.peer);
  int polls = polls_.count;
  Backoff yields(0, polls_.count);
  go();
  while (!transfer.done.load(std::memory_order_acquire)) {
    TRIREME_RETURN_IF_ERROR(look(transfer));
    if (with.has_ended()) {
      const std::lock_guard lock(with.mutex);
      if (transfer.done.load()) break;
      TRIREME_RETURN_IF_ERROR(look(transfer));  // the reason why this rank itself has ended it
      return lost(with);
    }
    if (deadline.passed()) {
      FailureDetails details;
      details.blamed = {members_.ranks[static_cast<std::size_t>(transfer.peer)]};
      return Status::failure(
                 TRIREME_ERROR_TIMEOUT,
                 "a collective of the engine was late: it waited for " + list_ranks(details.blamed))
          .with_details(std::move(details));
    }
    std::unique_lock lock(mutex_);
    // A thread that moves bytes announces it under the mutex, after its work. It may have ended
    // this transfer just now: then no event would come.
    if (transfer.done.load() || failed_.load() || with.has_ended()) continue;
    if (driven_.load()) {
      ++waiting_;
      changed_.wait_for(
          lock, std::chrono::nanoseconds(std::min(deadline.remaining_ns(), kLongestPollNs)));
      --waiting_;
      continue;
    }
    driven_.store(true);
    lock.unlock();
    const std::uint64_t calls = taken_calls();
    const bool only_looks = polls > 0;
    if (only_looks) --polls;
    try {
      move_bytes(&transfer, only_looks ? Deadline::after(0) : deadline);
    } catch (...) {
      fail(no_memory_);
    }
    end_driving(calls);
    const bool yields_now = only_looks && polls_.yields && !transfer.done.load();
    if (yields_now && !yields.wait(deadline)) polls = 0;
  }
  return Status::success();
}

bool Exchange::begin_driving() noexcept {
  const std::lock_guard lock(mutex_);
  if (driven_.load()) return false;
  driven_.store(true);
  return true;
}

// `calls_before`: taken_calls() when it began.
void Exchange::end_driving(std::uint64_t calls_before) noexcept {
  const bool any_calls = taken_calls() != calls_before;
  {
    const std::lock_guard lock(mutex_);
    driven_.store(false);
    if (waiting_ > 0) changed_.notify_all();
  }
  if (any_calls && after_calls_ != nullptr) after_calls_();
}

// --- calls -------------------------------------------------------------------------------------

Status Exchange::publish(const void* frame, std::uint64_t bytes, bool later) {
  for (int step = 1; step < size(); ++step) {
    TRIREME_RETURN_IF_ERROR(publish_to((own() + step) % size(), frame, bytes, later));
  }
  return Status::success();
}

// Calls come from members to which this one sends nothing.
Status Exchange::listen_to_all() {
  if (listens_.exchange(true)) return Status::success();
  if (peers_.size() > kFewPeers + 1) common_.queue.open(waker_.get());
  for (const auto& from : peers_) {
    if (from->rank() == members_.ranks[static_cast<std::size_t>(own())]) continue;
    const std::lock_guard lock(from->mutex);
    // A line that is not there yet is made when there is something for it.
    if (from->has_ended() || lines_->find(from->rank()) == nullptr) continue;
    const Status connected = from->connect(*lines_);
    from->update_events();
    if (connected.ok()) continue;
    poke();
    return connected;
  }
  poke();
  return Status::success();
}

// Bytes that wait for the line go now.
void Exchange::take_line(int rank) noexcept {
  const auto found = std::find(members_.ranks.begin(), members_.ranks.end(), rank);
  if (found == members_.ranks.end()) return;
  ExchangePeer& to = peer(static_cast<int>(found - members_.ranks.begin()));
  bool done = false;
  try {
    const std::lock_guard lock(to.mutex);
    if (!listens_.load() && !to.is_asked()) return;  // listen_to_all() takes it
    if (to.is_connected() || to.has_ended()) return;
    const Status connected = to.connect(*lines_);
    if (!connected.ok()) return fail(connected);
    if (to.has_ended()) return;
    done = to.flush();
    to.refresh();
  } catch (...) {
    return fail(no_memory_);
  }
  if (done) tell_done();
}

// Calls go after a failure of the wire, too: a rank that disagrees ends its own wire, but the
// others need its call, and those that it passes on, to see why.
Status Exchange::publish_to(int member, const void* frame, std::uint64_t bytes, bool later) {
  TRIREME_RETURN_IF_ERROR(listen_to_all());
  const auto* const begin = static_cast<const std::byte*>(frame);
  ExchangePeer& to = peer(member);
  const std::lock_guard lock(to.mutex);
  if (to.has_ended()) return Status::success();  // see ended_ns()
  TRIREME_RETURN_IF_ERROR(to.connect(*lines_));
  if (to.has_ended()) return Status::success();
  to.publish({begin, begin + bytes}, later);
  to.refresh();
  return Status::success();
}

Status Exchange::fetch(bool* any) {
  *any = false;
  go();
  const std::uint64_t before = taken_calls();
  if (!begin_driving()) return Status::success();
  try {
    move_bytes(nullptr, Deadline::after(0));
  } catch (...) {
    fail(no_memory_);
  }
  end_driving(before);
  *any = taken_calls() != before;
  if (!failed_.load()) return Status::success();
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Exchange::rest(std::uint64_t seen, Deadline deadline) {
  const int n = static_cast<int>(peers_.size());
  const std::uint64_t longest_ns =
      n > kMostFullyConnected ? period_of(kLongestRestOfManyNs, n) : kLongestRestNs;
  const Deadline end = Deadline::at(std::min(deadline.moment_ns(), now_ns() + longest_ns));
  go();
  {
    std::unique_lock lock(mutex_);
    if (taken_calls() != seen) return;
    if (driven_.load() || failed_.load()) {
      // The reason of a failure comes soon; its waker would keep a poll from sleeping.
      const Deadline until = failed_.load() ? Deadline::after(kMillisecond) : end;
      ++waiting_;
      changed_.wait_for(lock, std::chrono::nanoseconds(until.remaining_ns()));
      --waiting_;
      return;
    }
    driven_.store(true);
  }
  try {
    move_bytes(nullptr, end);
  } catch (...) {
    fail(no_memory_);
  }
  end_driving(seen);
}

void Exchange::say_goodbye() noexcept {
  for (const auto& to : peers_) {
    const std::lock_guard lock(to->mutex);
    if (to->has_ended() || lines_->find(to->rank()) == nullptr) continue;
    try {
      if (to->connect(*lines_).ok()) to->say_goodbye();
      to->refresh();
    } catch (...) {  // no memory: the peer sees a loss
    }
  }
}

bool Exchange::flush_calls() noexcept {
  if (common_.unsent_peers.load() == 0) return true;  // as nearly always
  bool all = true;
  bool done = false;
  for (const auto& to : peers_) {
    const std::lock_guard lock(to->mutex);
    if (!to->has_unsent()) continue;
    done = to->flush() || done;
    to->refresh();
    all = all && !to->has_unsent();
  }
  if (done) tell_done();
  return all;
}

}  // namespace trireme::tcp
