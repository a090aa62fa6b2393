#include "store/server.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "net/acceptor.hpp"
#include "net/handshake.hpp"
#include "net/tcp_socket.hpp"
#include "platform/clock.hpp"
#include "platform/descriptors.hpp"
#include "platform/failpoint.hpp"
#include "platform/system.hpp"
#include "platform/thread.hpp"
#include "store/state.hpp"
#include "store/wire.hpp"

namespace trireme::cluster {
namespace {

using tcp::Moved;
using tcp::Socket;

constexpr std::uint64_t kServerSilenceNs = 5'000'000'000;
constexpr std::size_t kMostFromStranger = 256;  // bytes at a time
constexpr int kMostEvents = 256;

// Numbers of epoll's descriptors that are not callers.
constexpr std::uint64_t kWaker = 0;
constexpr std::uint64_t kListener = 1;
constexpr std::uint64_t kFirstCaller = 2;

// A caller writes nothing here before it has proved itself. It has one request at a time: a caller
// that sends more before its answer is turned away.
struct Caller {
  Caller(Socket its_socket, const Token& token, std::uint64_t now_ns)
      : socket(std::move(its_socket)), since_ns(now_ns) {
    handshake.emplace(token, Handshake::Side::called, store_terms(), "a caller");
  }

  Socket socket;
  std::uint64_t since_ns;
  std::optional<Handshake> handshake;  // until it is done
  std::optional<FrameReader> reader;   // from then on
  std::optional<FrameWriter> writer;
  bool asked = false;   // and has no answer yet
  std::string out;      // bytes that it has yet to read
  bool drains = false;  // epoll waits until it can take more
};

}  // namespace

class StoreServer::Loop {
 public:
  Loop(const Token& token, Socket listener, std::string name)
      : token_(token), acceptor_(std::move(listener), std::move(name)) {}

  Status open();
  void stop() noexcept {
    // Frees the address at once.
    ::shutdown(acceptor_.get(), SHUT_RDWR);
    stop_.store(true, std::memory_order_release);
    waker_.wake();
    // The requests under way take microseconds.
    std::unique_lock lock(mutex_);
    wait_until(condition_, lock, Deadline::after(kServerSilenceNs), [&] { return ended_; });
  }
  void run() noexcept;

 private:
  using Callers = std::map<std::uint64_t, Caller>;

  Status add(int descriptor, std::uint64_t what);
  void watch(int descriptor, std::uint64_t what, std::uint32_t events);
  std::uint64_t opens_ns() const;
  int next_wait_ms() const;
  void turn();
  void turn_away_the_slow(std::uint64_t now);
  void accept_callers(std::uint64_t now);
  void serve(Callers::iterator entry);
  bool read(std::uint64_t id, Caller& caller);
  bool receive_unauthenticated(std::uint64_t id, Caller& caller, std::string_view bytes);
  bool hear_frames(std::uint64_t id, Caller& caller, std::string_view bytes);
  bool answer(std::uint64_t id, std::string_view body);
  void deliver(const std::vector<StoreState::Answer>& answers);
  bool flush(std::uint64_t id, Caller& caller);
  void drop(Callers::iterator entry);

  const Token token_;
  tcp::Acceptor acceptor_;
  Socket poll_;
  tcp::Waker waker_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable condition_;
  bool ended_ = false;
  StoreInstance instance_ = 0;
  StoreState state_;
  Callers callers_;
  std::set<std::uint64_t> unauthenticated_;  // of these, the oldest first
  std::vector<std::uint64_t> gone_;          // to be dropped at the end of the turn
  std::uint64_t next_caller_ = kFirstCaller;
  bool paused_ = false;  // epoll does not report new callers
  char buffer_[65'536];
};

Status StoreServer::Loop::open() {
  while (instance_ == 0) {
    if (!system_table().random_bytes(&instance_, sizeof instance_)) {
      return Status::failure(TRIREME_ERROR_SYSTEM, "the system gives no random numbers");
    }
  }
  TRIREME_RETURN_IF_ERROR(waker_.open());
  poll_ = Socket(own_descriptor([] { return epoll_create1(EPOLL_CLOEXEC); }));
  if (!poll_) return Status::system(errno, "a descriptor for events");
  TRIREME_RETURN_IF_ERROR(add(waker_.get(), kWaker));
  return add(acceptor_.get(), kListener);
}

Status StoreServer::Loop::add(int descriptor, std::uint64_t what) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = what;
  if (epoll_ctl(poll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return Status::success();
  return Status::system(errno, "a descriptor for events");
}

void StoreServer::Loop::watch(int descriptor, std::uint64_t what, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = what;
  epoll_ctl(poll_.get(), EPOLL_CTL_MOD, descriptor, &event);
}

void StoreServer::Loop::run() noexcept {
  while (!stop_.load(std::memory_order_acquire)) {
    try {
      turn();
    } catch (...) {  // no memory for a new caller: the rest goes on
    }
  }
  callers_.clear();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  condition_.notify_all();
}

std::uint64_t StoreServer::Loop::opens_ns() const {
  const std::size_t count = unauthenticated_.size();
  return acceptor_.opens_ns(count,
                            count == 0 ? 0 : callers_.at(*unauthenticated_.begin()).since_ns);
}

int StoreServer::Loop::next_wait_ms() const {
  std::uint64_t moment = state_.next_moment_ns().value_or(UINT64_MAX);
  if (paused_) moment = std::min(moment, opens_ns());
  if (!unauthenticated_.empty()) {
    moment =
        std::min(moment, callers_.at(*unauthenticated_.begin()).since_ns + tcp::kUnauthenticatedNs);
  }
  const std::uint64_t now = now_ns();
  if (moment <= now) return 0;
  constexpr std::uint64_t kMostMs = 60'000;
  return static_cast<int>(std::min((moment - now) / 1'000'000 + 1, kMostMs));
}

void StoreServer::Loop::turn() {
  epoll_event events[kMostEvents];
  const int count = epoll_wait(poll_.get(), events, kMostEvents, next_wait_ms());
  std::uint64_t now = now_ns();
  bool called = false;
  for (int i = 0; i < count; ++i) {
    called = called || events[i].data.u64 == kListener;
    const auto entry = callers_.find(events[i].data.u64);
    if (entry != callers_.end()) serve(entry);
  }
  std::vector<StoreState::Answer> answers;
  state_.time_passed(now, &answers);
  deliver(answers);
  for (const std::uint64_t id : std::exchange(gone_, {})) {
    if (const auto entry = callers_.find(id); entry != callers_.end()) drop(entry);
  }
  now = now_ns();
  turn_away_the_slow(now);
  if (called || paused_) accept_callers(now);
}

void StoreServer::Loop::turn_away_the_slow(std::uint64_t now) {
  while (!unauthenticated_.empty()) {
    const auto oldest = callers_.find(*unauthenticated_.begin());
    if (now - oldest->second.since_ns < tcp::kUnauthenticatedNs) return;
    drop(oldest);
  }
}

void StoreServer::Loop::accept_callers(std::uint64_t now) {
  while (now >= opens_ns()) {
    Socket socket = acceptor_.accept();
    if (!socket) break;
    if (unauthenticated_.size() >= tcp::kMostUnauthenticated)
      drop(callers_.find(*unauthenticated_.begin()));
    socket.tune(kServerSilenceNs);
    socket.keep_alive();
    const std::uint64_t id = next_caller_++;
    const auto entry = callers_.try_emplace(id, std::move(socket), token_, now).first;
    unauthenticated_.insert(id);
    std::string nothing;
    if (!entry->second.handshake->start(&nothing).ok() ||
        !add(entry->second.socket.get(), id).ok()) {
      drop(entry);
    }
  }
  // epoll would return at once while a caller waits.
  const bool pauses = now < opens_ns();
  if (pauses != paused_) watch(acceptor_.get(), kListener, pauses ? 0u : std::uint32_t{EPOLLIN});
  paused_ = pauses;
}

void StoreServer::Loop::drop(Callers::iterator entry) {
  if (unauthenticated_.erase(entry->first) > 0) acceptor_.turned_away();
  state_.forget(entry->first);
  callers_.erase(entry);
}

void StoreServer::Loop::serve(Callers::iterator entry) {
  bool stays = false;
  try {
    Caller& caller = entry->second;
    stays = caller.drains ? flush(entry->first, caller) : read(entry->first, caller);
  } catch (...) {  // no memory for it
  }
  if (!stays) gone_.push_back(entry->first);
}

bool StoreServer::Loop::read(std::uint64_t id, Caller& caller) {
  const std::size_t most = caller.handshake ? kMostFromStranger : sizeof buffer_;
  std::size_t moved = 0;
  const Moved result = caller.socket.receive(buffer_, most, &moved);
  if (result == Moved::nothing) return true;
  if (result == Moved::ended) return false;
  const std::string_view bytes(buffer_, moved);
  return caller.handshake ? receive_unauthenticated(id, caller, bytes)
                          : hear_frames(id, caller, bytes);
}

bool StoreServer::Loop::receive_unauthenticated(std::uint64_t id, Caller& caller,
                                                std::string_view bytes) {
  std::size_t used = 0;
  const Status status = caller.handshake->take(bytes, &used, &caller.out);
  // Sends the answer even now: it tells the other end why it is turned away.
  if (!flush(id, caller) || !status.ok() || used != bytes.size()) return false;
  if (!caller.handshake->done()) return !caller.drains;
  caller.reader.emplace(caller.handshake->keys().receive, kMaxStoreRequestBytes);
  caller.writer.emplace(caller.handshake->keys().send);
  caller.handshake.reset();
  unauthenticated_.erase(id);
  return true;
}

bool StoreServer::Loop::hear_frames(std::uint64_t id, Caller& caller, std::string_view bytes) {
  while (!bytes.empty()) {
    std::size_t used = 0;
    if (caller.asked || !caller.reader->take(bytes, &used).ok()) return false;
    bytes.remove_prefix(used);
    if (!caller.reader->whole()) continue;
    if (!bytes.empty()) return false;
    caller.asked = true;
    if (!answer(id, caller.reader->body())) return false;
  }
  return true;
}

// False if the request makes no sense: no member of the job sends such a thing.
bool StoreServer::Loop::answer(std::uint64_t id, std::string_view body) {
  StoreRequest request;
  StoreInstance meant = 0;
  if (!decode(body, &request, &meant)) return false;
  if (!failpoint("store", "before_take").ok()) return false;
  std::vector<StoreState::Answer> answers;
  if (meant != 0 && meant != instance_) {
    answers.push_back({id,
                       {TRIREME_ERROR_PEER_LOST,
                        0,
                        {},
                        "the store has been started anew: its former contents are lost"}});
  } else {
    state_.take(id, request, now_ns(), &answers);
  }
  if (!failpoint("store", "before_answer").ok()) return false;
  deliver(answers);
  return true;
}

void StoreServer::Loop::deliver(const std::vector<StoreState::Answer>& answers) {
  for (const StoreState::Answer& each : answers) {
    const auto entry = callers_.find(each.to);
    if (entry == callers_.end()) continue;
    Caller& caller = entry->second;
    caller.asked = false;
    try {
      caller.writer->write(encode(each.reply, instance_), &caller.out);
      if (flush(each.to, caller)) continue;
    } catch (...) {  // no memory for it
    }
    gone_.push_back(each.to);
  }
}

bool StoreServer::Loop::flush(std::uint64_t id, Caller& caller) {
  std::size_t moved = 0;
  if (!caller.out.empty()) {
    if (caller.socket.send(caller.out.data(), caller.out.size(), &moved) == Moved::ended) {
      return false;
    }
    caller.out.erase(0, moved);
    if (caller.out.empty() && caller.out.capacity() > sizeof buffer_) caller.out.shrink_to_fit();
  }
  const bool drains = !caller.out.empty();
  if (drains != caller.drains) {
    caller.drains = drains;
    watch(caller.socket.get(), id, drains ? EPOLLOUT : EPOLLIN);
  }
  return true;
}

Status StoreServer::start(const tcp::Endpoint& endpoint, const Token& token,
                          std::unique_ptr<StoreServer>* out) {
  Socket listener;
  tcp::Endpoint bound;
  TRIREME_RETURN_IF_ERROR(tcp::listen_at(endpoint, &listener, &bound));
  auto loop = std::make_shared<Loop>(token, std::move(listener), "the store at " + bound.text());
  TRIREME_RETURN_IF_ERROR(loop->open());
  TRIREME_RETURN_IF_ERROR(start_thread([loop] { loop->run(); }));
  out->reset(new StoreServer(std::move(loop), bound));
  return Status::success();
}

void StoreServer::stop() noexcept { loop_->stop(); }

}  // namespace trireme::cluster
