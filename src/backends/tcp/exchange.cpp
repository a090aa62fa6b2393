#include "backends/tcp/exchange.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "platform/failpoint.hpp"
#include "platform/thread.hpp"

namespace trireme::tcp {
namespace {

// Small enough that a part is still in the caches when its code is compared.
constexpr std::uint64_t kPartBytes = 128u << 10;
// A peer may be so many receives, or short pieces, ahead. More than any algorithm has under way
// with one peer on all channels.
constexpr std::size_t kMostReady = 4096;
constexpr std::uint64_t kLongestPollNs = 60'000 * kMillisecond;
constexpr std::size_t kFewPeers = 2;
// How many peers are served at a time, of those that have something.
constexpr std::size_t kMostEvents = 64;
// A thread that looks for calls moves no more of a peer's bytes at a time.
constexpr std::uint64_t kTurnBytes = 1u << 20;
// A thread that rests looks at its group so often.
constexpr std::uint64_t kLongestRestNs = 10 * kMillisecond;

bool meet(const Exchange::Transfer& transfer, std::uint64_t ticket, std::uint64_t slot) {
  return transfer.ticket == ticket && transfer.slot == slot;
}

}  // namespace

Exchange::Exchange(Members members, std::shared_ptr<const Lines> lines, int polls)
    : members_(std::move(members)), lines_(std::move(lines)), polls_(polls) {
  for (int member = 0; member < size(); ++member) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->member = member;
  }
  polled_.reserve(peers_.size() + 1);
  polled_members_.reserve(peers_.size());
}

Exchange::~Exchange() {
  if (queue_.load() >= 0) ::close(queue_.load());
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

Status Exchange::lost(int member) {
  const int rank = members_.ranks[static_cast<std::size_t>(member)];
  FailureDetails details;
  details.blamed = {rank};
  const int error_number = peer(member).error_number;
  std::string text = "rank " + std::to_string(rank) + ": its connection of the engine ";
  text = error_number == 0 ? text + "was closed"
                           : Status::system(error_number, text + "broke").message();
  return Status::failure(TRIREME_ERROR_PEER_LOST, std::move(text)).with_details(std::move(details));
}

Status Exchange::loss_of(int member) {
  const std::lock_guard lock(peer(member).mutex);
  return lost(member);
}

void Exchange::corrupt(int member, const char* what) {
  const int rank = members_.ranks[static_cast<std::size_t>(member)];
  FailureDetails details;
  details.blamed = {rank};
  // Keep this order: a thread that waits for the peer on another channel then finds the reason.
  fail(Status::failure(TRIREME_ERROR_CORRUPT, "rank " + std::to_string(rank) +
                                                  ": on its connection of the engine came " + what)
           .with_details(std::move(details)));
  end(peer(member), 0);
}

// Call it under the mutex of the peer.
void Exchange::end(Peer& peer, int error_number) noexcept {
  if (peer.ended.load()) return;
  peer.error_number = error_number;
  peer.ended.store(true);
  peer.ended_ns.store(now_ns(), std::memory_order_release);
  update_events(peer);
  const std::lock_guard lock(mutex_);
  waker_.wake();
  changed_.notify_all();
}

// --- the pieces --------------------------------------------------------------------------------

// A peer without a wanted transfer is not polled: its bytes wait in its socket.
void Exchange::update_events(Peer& peer) const noexcept {
  short events = 0;
  if (!peer.ended) {
    if (!peer.out.empty()) events |= POLLOUT;
    const bool comes = !peer.sends.empty() || !peer.receives.empty() || peer.incoming != nullptr;
    if (comes || take_call_ != nullptr || peer.broken) events |= POLLIN;
  }
  peer.events.store(events);
  const int queue = queue_.load(std::memory_order_acquire);
  if (queue < 0 || peer.socket == nullptr || events == peer.queued) return;
  epoll_event event{};
  event.events = static_cast<std::uint32_t>(events);  // both names have the same bits
  event.data.u32 = static_cast<std::uint32_t>(peer.member);
  const int change = events == 0 ? EPOLL_CTL_DEL : peer.queued == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  // A socket that is closed is not in the queue any more, so that its removal fails.
  static_cast<void>(::epoll_ctl(queue, change, peer.socket->get(), &event));
  peer.queued = events;
}

static_assert(POLLIN == static_cast<int>(EPOLLIN) && POLLOUT == static_cast<int>(EPOLLOUT));

// The same, and tells a thread that polls. One that waits at the queue sees it by itself.
void Exchange::refresh(Peer& peer) {
  const short before = peer.events.load();
  update_events(peer);
  if (queue_.load() < 0 && (peer.events.load() & ~before) != 0) poke();
}

// Another thread moves bytes, and has more to poll than before.
void Exchange::poke() {
  if (driven_.load()) waker_.wake();
}

Status Exchange::connect(Peer& there) {
  if (there.socket != nullptr) return Status::success();
  const int rank = members_.ranks[static_cast<std::size_t>(there.member)];
  const Lines::Line* const line = lines_->find(rank);
  if (line == nullptr) {
    return Status::failure(TRIREME_ERROR_INTERNAL,
                           "the engine has no connection to rank " + std::to_string(rank));
  }
  there.socket = &line->socket;
  there.sent = line->sent;
  there.received = line->received;
  return Status::success();
}

Status Exchange::prepare(Peer& there, const Transfer& transfer) {
  if (failed_.load()) {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  TRIREME_RETURN_IF_ERROR(connect(there));
  if (!there.ended) return Status::success();
  TRIREME_RETURN_IF_ERROR(look(transfer));
  return lost(transfer.peer);
}

Status Exchange::send(Transfer& transfer) {
  Peer& to = peer(transfer.peer);
  const std::lock_guard lock(to.mutex);
  TRIREME_RETURN_IF_ERROR(prepare(to, transfer));
  const auto found = std::find_if(to.ready.begin(), to.ready.end(), [&](const Header& header) {
    return meet(transfer, header.ticket, header.slot);
  });
  if (is_short(transfer.bytes)) {
    const Header header{Kind::data, 0, transfer.ticket, transfer.slot, transfer.bytes};
    enqueue(to, {header, &transfer, {}});
  } else if (found == to.ready.end()) {
    to.sends.push_back(&transfer);
  } else {
    if (found->bytes != transfer.bytes) {
      corrupt(transfer.peer, "a piece of another length");
      return look(transfer);
    }
    to.ready.erase(found);
    const Header header{Kind::data, 0, transfer.ticket, transfer.slot, transfer.bytes};
    enqueue(to, {header, &transfer, {}});
  }
  refresh(to);
  return Status::success();
}

Status Exchange::receive(Transfer& transfer) {
  Peer& from = peer(transfer.peer);
  const std::lock_guard lock(from.mutex);
  TRIREME_RETURN_IF_ERROR(prepare(from, transfer));
  const auto early = std::find_if(from.early.begin(), from.early.end(), [&](const auto& each) {
    return each->taker == nullptr && meet(transfer, each->piece.ticket, each->piece.slot);
  });
  if (early != from.early.end()) {
    if ((*early)->piece.bytes != transfer.bytes) {
      corrupt(transfer.peer, "a piece of another length");
      return look(transfer);
    }
    (*early)->taker = &transfer;
    if ((*early)->piece.done.load()) finish_early(from, &(*early)->piece);
    return Status::success();
  }
  from.receives.push_back(&transfer);
  if (!is_short(transfer.bytes)) {
    const Header header{Kind::ready, 0, transfer.ticket, transfer.slot, transfer.bytes};
    try {
      enqueue(from, {header, nullptr, {}});
    } catch (...) {  // the transfer goes
      from.receives.pop_back();
      throw;
    }
  }
  refresh(from);
  return Status::success();
}

void Exchange::drop(Transfer& transfer) noexcept {
  if (transfer.done.load(std::memory_order_acquire)) return;
  {
    Peer& with = peer(transfer.peer);
    const std::lock_guard lock(with.mutex);
    std::erase(with.sends, &transfer);
    std::erase(with.receives, &transfer);
    for (const auto& each : with.early) {
      if (each->taker == &transfer) each->taker = nullptr;
    }
    std::erase_if(with.out, [&](const Outgoing& each) { return each.transfer == &transfer; });
    if (with.incoming == &transfer) with.incoming = nullptr;
    if (!transfer.done.load()) {
      this->abort();  // first: as in corrupt()
      end(with, 0);
    }
    update_events(with);
  }
}

// --- moving ------------------------------------------------------------------------------------

// Call it under the mutex of the peer, as all functions that move bytes. Begins the next part of
// the first transfer.
void Exchange::begin_part(Peer& to) {
  Outgoing& first = to.out.front();
  to.part_bytes = std::min(kPartBytes, first.bytes() - first.begun);
  to.moved = 0;
  Seal::Head of_header{};
  if (first.begun == 0) {
    of_header = to.sent.make(&first.header, sizeof first.header);
    to.sent.advance();
  }
  Seal::Head of_part{};
  if (to.part_bytes > 0) {
    of_part = to.sent.make(first.data() + first.begun, static_cast<std::uint32_t>(to.part_bytes));
    to.sent.advance();
  }
  const Start start{of_header, first.header, of_part};
  to.before_bytes = first.begun == 0 ? sizeof start : sizeof of_part;
  const auto* const from = reinterpret_cast<const std::byte*>(&start) + sizeof start;
  std::copy(from - to.before_bytes, from, to.before.begin());
  first.begun += to.part_bytes;
}

void Exchange::enqueue(Peer& to, Outgoing&& outgoing) {
  to.out.push_back(std::move(outgoing));
  sent_messages_.fetch_add(1, std::memory_order_relaxed);
  if (to.out.size() == 1) flush(to);
}

void Exchange::flush(Peer& to) {
  while (!to.out.empty() && !to.ended) {
    const std::uint64_t whole = to.before_bytes + to.part_bytes;
    if (to.moved == whole) {
      if (to.out.front().transfer != nullptr) {
        const bool begun = to.out.front().begun > 0;
        const Status visit =
            begun ? failpoint("piece", "mid_piece") : failpoint("piece", "before_first");
        if (!visit.ok()) return end(to, failed_with(visit));
      }
      begin_part(to);
      continue;
    }
    Outgoing& first = to.out.front();
    iovec parts[2];
    int count = 0;
    if (to.moved < to.before_bytes) {
      parts[count++] = {to.before.data() + to.moved, to.before_bytes - to.moved};
    }
    if (to.part_bytes > 0) {
      const std::uint64_t rest = std::min(to.part_bytes, whole - to.moved);
      parts[count++] = {const_cast<std::byte*>(first.data()) + (first.begun - rest), rest};
    }
    std::size_t moved = 0;
    const Moved result = to.socket->send(parts, count, &moved);
    if (result == Moved::nothing) return;
    if (result == Moved::ended) {
      // What the peer has sent before still counts: the end of that ends the connection.
      to.broken = true;
      to.out.clear();
      to.before_bytes = to.part_bytes = to.moved = 0;
      return;
    }
    to.moved += moved;
    if (to.moved < whole) continue;
    if (first.transfer != nullptr) sent_bytes_.fetch_add(to.part_bytes, std::memory_order_relaxed);
    if (first.begun < first.bytes()) continue;
    if (first.transfer != nullptr) first.transfer->done.store(true, std::memory_order_release);
    to.out.pop_front();
  }
}

// A short read also takes the bytes behind it: one call of the system brings a header and a call.
Moved Exchange::receive_some(Peer& from, std::byte* to, std::size_t wanted, std::size_t* moved) {
  if (from.ahead.begin == from.ahead.end) {
    if (wanted > kAheadBytes / 2) return from.socket->receive(to, wanted, moved);
    std::size_t came = 0;
    const Moved result = from.socket->receive(from.ahead.bytes.data(), kAheadBytes, &came);
    if (result == Moved::nothing || result == Moved::ended) return result;
    from.ahead.begin = 0;
    from.ahead.end = came;
  }
  *moved = std::min(wanted, from.ahead.end - from.ahead.begin);
  std::copy_n(from.ahead.bytes.data() + from.ahead.begin, *moved, to);
  from.ahead.begin += *moved;
  return Moved::some;
}

// Reads the bytes that have come, until a look at the awaited transfer pays.
void Exchange::read(int member, const Transfer* awaited) {
  Peer& from = peer(member);
  const std::uint64_t calls = taken_calls_.load(std::memory_order_relaxed);
  std::uint64_t read_bytes = 0;
  const auto pays = [&] {
    if (awaited != nullptr) return awaited->done.load(std::memory_order_relaxed);
    return taken_calls_.load(std::memory_order_relaxed) != calls || read_bytes >= kTurnBytes;
  };
  while (!from.ended && (!pays() || from.ahead.begin < from.ahead.end)) {
    Transfer* const into = from.incoming;
    auto* to = reinterpret_cast<std::byte*>(&from.start);
    std::uint64_t whole = sizeof from.start;
    if (into != nullptr) {
      to = from.of_part ? into->data + from.arrived
                        : reinterpret_cast<std::byte*>(&from.start.of_part);
      whole = from.of_part ? std::min(kPartBytes, into->bytes - from.arrived)
                           : sizeof from.start.of_part;
    }
    std::size_t moved = 0;
    const Moved result = receive_some(from, to + from.got, whole - from.got, &moved);
    if (result == Moved::nothing) return;
    if (result == Moved::ended) return end(from, errno);
    from.got += moved;
    read_bytes += moved;
    if (from.got < whole) continue;
    from.got = 0;
    if (into == nullptr) {
      if (!take_start(member)) return;
    } else if (from.of_part) {
      if (!take_part(member)) return;
    } else {
      from.of_part = true;
    }
  }
}

bool Exchange::take_start(int member) {
  Peer& from = peer(member);
  const Header& header = from.start.header;
  const Seal::Head& code = from.start.of_header;
  if (!from.received.fits(code) || code.bytes != sizeof header ||
      !from.received.fits(code, &header)) {
    return corrupt(member, "bytes that it did not send"), false;
  }
  from.received.advance();
  if (header.kind == Kind::ready) return take_ready(member);
  if (header.kind == Kind::call) {
    if (take_call_ == nullptr || header.bytes == 0 || header.bytes > most_call_bytes_) {
      return corrupt(member, "a call of a wrong length"), false;
    }
    if (from.call_bytes.size() < header.bytes) from.call_bytes.resize(header.bytes);
    from.call.data = from.call_bytes.data();
    from.call.bytes = header.bytes;
    from.incoming = &from.call;
    from.arrived = 0;
    from.of_part = true;
    return true;
  }
  if (header.kind != Kind::data) return corrupt(member, "a message of no kind"), false;
  const auto found =
      std::find_if(from.receives.begin(), from.receives.end(),
                   [&](const Transfer* each) { return meet(*each, header.ticket, header.slot); });
  if (found == from.receives.end()) {
    if (is_short(header.bytes)) return begin_early(member);
    return corrupt(member, "a piece that was not asked for"), false;
  }
  if ((*found)->bytes != header.bytes) return corrupt(member, "a piece of another length"), false;
  Transfer* const transfer = *found;
  from.receives.erase(found);
  if (transfer->bytes == 0) {
    transfer->done.store(true, std::memory_order_release);
    return true;
  }
  from.incoming = transfer;
  from.arrived = 0;
  from.of_part = true;
  return true;
}

// Handles a whole part.
bool Exchange::take_part(int member) {
  Peer& from = peer(member);
  Transfer* const into = from.incoming;
  const std::uint64_t bytes = std::min(kPartBytes, into->bytes - from.arrived);
  const Seal::Head& code = from.start.of_part;
  if (!from.received.fits(code) || code.bytes != bytes ||
      !from.received.fits(code, into->data + from.arrived)) {
    return corrupt(member, "bytes that it did not send"), false;
  }
  from.received.advance();
  const bool is_call = into == &from.call;
  if (!is_call) received_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  from.arrived += bytes;
  from.of_part = false;
  if (from.arrived < into->bytes) return true;
  if (is_call) return take_call(member);
  from.incoming = nullptr;
  if (const Status visit = failpoint("piece", "before_done"); !visit.ok()) {
    return end(from, failed_with(visit)), false;
  }
  into->done.store(true, std::memory_order_release);
  finish_early(from, into);
  return true;
}

bool Exchange::begin_early(int member) {
  Peer& from = peer(member);
  const Header& header = from.start.header;
  if (from.early.size() >= kMostReady) return corrupt(member, "too many pieces ahead"), false;
  auto early = std::make_unique<Early>();
  early->memory.resize(header.bytes);
  early->piece.peer = member;
  early->piece.ticket = header.ticket;
  early->piece.slot = header.slot;
  early->piece.data = early->memory.data();
  early->piece.bytes = header.bytes;
  Transfer* const piece = &early->piece;
  from.early.push_back(std::move(early));
  if (header.bytes == 0) {
    piece->done.store(true);
    return true;
  }
  from.incoming = piece;
  from.arrived = 0;
  from.of_part = true;
  return true;
}

// Hands an early piece that is whole to the transfer that has asked for it, if one has.
void Exchange::finish_early(Peer& from, const Transfer* piece) {
  const auto found = std::find_if(from.early.begin(), from.early.end(),
                                  [&](const auto& each) { return &each->piece == piece; });
  if (found == from.early.end() || (*found)->taker == nullptr) return;
  Transfer* const taker = (*found)->taker;
  std::copy((*found)->memory.begin(), (*found)->memory.end(), taker->data);
  taker->done.store(true, std::memory_order_release);
  from.early.erase(found);
}

bool Exchange::take_ready(int member) {
  Peer& from = peer(member);
  const Header& header = from.start.header;
  const auto found = std::find_if(from.sends.begin(), from.sends.end(), [&](const Transfer* each) {
    return meet(*each, header.ticket, header.slot);
  });
  if (found == from.sends.end()) {
    if (from.ready.size() >= kMostReady) return corrupt(member, "too many announcements"), false;
    from.ready.push_back(header);
    return true;
  }
  Transfer* const transfer = *found;
  if (header.bytes != transfer->bytes) return corrupt(member, "a piece of another length"), false;
  from.sends.erase(found);
  const Header data{Kind::data, 0, transfer->ticket, transfer->slot, transfer->bytes};
  enqueue(from, {data, transfer, {}});
  return true;
}

bool Exchange::take_call(int member) {
  Peer& from = peer(member);
  from.incoming = nullptr;
  take_call_(member, from.call_bytes.data(), from.call.bytes);
  taken_calls_.fetch_add(1, std::memory_order_release);
  return true;
}

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
  const int queue = queue_.load(std::memory_order_acquire);
  if (queue >= 0) {
    std::array<epoll_event, kMostEvents> events;
    const int count = ::epoll_wait(queue, events.data(), static_cast<int>(events.size()), ms);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      const auto member = static_cast<std::size_t>(event.data.u32);
      if (member == peers_.size()) {
        if (!failed_.load()) waker_.clear();
      } else {
        serve(static_cast<int>(member), static_cast<short>(event.events), awaited);
      }
    }
    return;
  }
  polled_.clear();
  polled_members_.clear();
  polled_.push_back({waker_.get(), POLLIN, 0});
  for (int member = 0; member < size(); ++member) {
    const short events = peer(member).events.load();
    if (events == 0) continue;
    polled_.push_back({peer(member).socket->get(), events, 0});
    polled_members_.push_back(member);
  }
  // With few peers a look at each costs no more than to ask which of them have something.
  if (ms == 0 && polled_members_.size() <= kFewPeers) {
    for (pollfd& each : polled_) each.revents = each.events;
    polled_[0].revents = 0;
  } else {
    ::poll(polled_.data(), polled_.size(), ms);
  }
  if (polled_[0].revents != 0 && !failed_.load()) waker_.clear();
  for (std::size_t i = 0; i < polled_members_.size(); ++i) {
    const short happened = polled_[1 + i].revents;
    if (happened != 0) serve(polled_members_[i], happened, awaited);
  }
}

// A peer may have sent and then left. Its bytes still count, so this reads before it sends.
void Exchange::serve(int member, short happened, const Transfer* awaited) {
  Peer& there = peer(member);
  const std::lock_guard lock(there.mutex);
  if ((happened & ~POLLOUT) != 0) read(member, awaited);
  if ((happened & POLLOUT) != 0) flush(there);
  update_events(there);
}

// A queue of the kernel costs the same however many peers are watched. Without a descriptor for it
// the peers are polled.
void Exchange::open_queue() noexcept {
  if (size() - 1 <= static_cast<int>(kFewPeers)) return;
  const int queue = ::epoll_create1(EPOLL_CLOEXEC);
  if (queue < 0) return;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = static_cast<std::uint32_t>(size());
  if (::epoll_ctl(queue, EPOLL_CTL_ADD, waker_.get(), &event) != 0) {
    ::close(queue);
    return;
  }
  queue_.store(queue, std::memory_order_release);
}

Status Exchange::wait(Transfer& transfer, Deadline deadline) {
  Peer& with = peer(transfer.peer);
  int polls = polls_;
  while (!transfer.done.load(std::memory_order_acquire)) {
    TRIREME_RETURN_IF_ERROR(look(transfer));
    if (with.ended.load()) {
      const std::lock_guard lock(with.mutex);
      if (transfer.done.load()) break;
      TRIREME_RETURN_IF_ERROR(look(transfer));  // the reason why this rank itself has ended it
      return lost(transfer.peer);
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
    if (driven_.load()) {
      // A thread that moves bytes announces it under the mutex, after its work.
      if (transfer.done.load() || failed_.load() || with.ended.load()) continue;
      ++waiting_;
      changed_.wait_for(
          lock, std::chrono::nanoseconds(std::min(deadline.remaining_ns(), kLongestPollNs)));
      --waiting_;
      continue;
    }
    driven_.store(true);
    lock.unlock();
    const std::uint64_t calls = taken_calls();
    try {
      move_bytes(&transfer, polls-- > 0 ? Deadline::after(0) : deadline);
    } catch (...) {
      fail(no_memory_);
    }
    end_driving(calls);
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
  const bool any_calls = taken_calls_.load(std::memory_order_relaxed) != calls_before;
  {
    const std::lock_guard lock(mutex_);
    driven_.store(false);
    if (waiting_ > 0) changed_.notify_all();
  }
  if (any_calls && after_calls_ != nullptr) after_calls_();
}

// --- calls -------------------------------------------------------------------------------------

Status Exchange::publish(const void* frame, std::uint64_t bytes) {
  for (int step = 1; step < size(); ++step) {
    TRIREME_RETURN_IF_ERROR(publish_to((own() + step) % size(), frame, bytes));
  }
  return Status::success();
}

// Calls come from members to which this one sends nothing.
Status Exchange::listen_to_all() {
  if (listens_.exchange(true)) return Status::success();
  open_queue();
  for (int member = 0; member < size(); ++member) {
    if (member == own()) continue;
    Peer& from = peer(member);
    const std::lock_guard lock(from.mutex);
    if (from.ended) continue;
    TRIREME_RETURN_IF_ERROR(connect(from));
    update_events(from);
  }
  poke();
  return Status::success();
}

// Calls go after a failure of the wire, too: a rank that disagrees ends its own wire, but the
// others need its call, and those that it passes on, to see why.
Status Exchange::publish_to(int member, const void* frame, std::uint64_t bytes) {
  TRIREME_RETURN_IF_ERROR(listen_to_all());
  const auto* const begin = static_cast<const std::byte*>(frame);
  Peer& to = peer(member);
  const std::lock_guard lock(to.mutex);
  if (to.ended) return Status::success();  // see ended_ns()
  TRIREME_RETURN_IF_ERROR(connect(to));
  enqueue(to, {{Kind::call, 0, 0, 0, bytes}, nullptr, {begin, begin + bytes}});
  refresh(to);
  return Status::success();
}

Status Exchange::fetch(bool* any) {
  *any = false;
  const std::uint64_t before = taken_calls_.load(std::memory_order_acquire);
  if (!begin_driving()) return Status::success();
  try {
    move_bytes(nullptr, Deadline::after(0));
  } catch (...) {
    fail(no_memory_);
  }
  end_driving(before);
  *any = taken_calls_.load(std::memory_order_acquire) != before;
  if (!failed_.load()) return Status::success();
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Exchange::rest(std::uint64_t seen, Deadline deadline) {
  const Deadline end = Deadline::at(std::min(deadline.moment_ns(), now_ns() + kLongestRestNs));
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

bool Exchange::flush_calls() noexcept {
  bool all = true;
  for (int member = 0; member < size(); ++member) {
    Peer& to = peer(member);
    if ((to.events.load() & POLLOUT) == 0) continue;
    const std::lock_guard lock(to.mutex);
    const std::size_t before = to.out.size();
    flush(to);
    update_events(to);
    all = all && (to.ended || to.out.empty());
    if (to.out.size() == before) continue;
    // A transfer of another thread may be done.
    poke();
    const std::lock_guard guard(mutex_);
    changed_.notify_all();
  }
  return all;
}

}  // namespace trireme::tcp
