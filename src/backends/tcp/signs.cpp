#include "backends/tcp/signs.hpp"

#include <poll.h>

#include <algorithm>

#include "platform/failpoint.hpp"
#include "schedules/overlay.hpp"

namespace trireme::tcp {
namespace {

constexpr std::uint64_t kTickNs = 200 * kMillisecond;
// A peer that has answered the call may need so much longer to begin: it gives signs once its
// acceptor has passed on the connection.
constexpr std::uint64_t kFirstNs = 10'000 * kMillisecond;

}  // namespace

Signs::Signs(int world_size, std::uint64_t silence_ns, const Waker& given_up)
    : tick_ns_(period_of(kTickNs, world_size)),
      // A rank does not know the limits of its peers.
      limit_ns_(std::max(silence_ns, 3 * tick_ns_)),
      given_up_(given_up) {
  for (int rank = 0; rank < world_size; ++rank) peers_.push_back(std::make_unique<Peer>());
  open_.reserve(peers_.size());
}

Status Signs::open() {
  TRIREME_RETURN_IF_ERROR(waker_.open());
  last_ns_ = now_ns();
  next_ns_ = last_ns_ + tick_ns_;
  return Status::success();
}

void Signs::add(int rank, Socket socket) noexcept {
  Peer& peer = *peers_[static_cast<std::size_t>(rank)];
  peer.socket = std::move(socket);
  peer.there.store(true, std::memory_order_release);
  added_.fetch_add(1, std::memory_order_release);
}

bool Signs::has(int rank) const noexcept {
  return peers_[static_cast<std::size_t>(rank)]->there.load(std::memory_order_acquire);
}

void Signs::receive(int rank) noexcept {
  peers_[static_cast<std::size_t>(rank)]->heard.store(true, std::memory_order_relaxed);
}

std::uint64_t Signs::silence_ns(int rank) const noexcept {
  return peers_[static_cast<std::size_t>(rank)]->silence_ns.load(std::memory_order_relaxed);
}

bool Signs::is_given_up(int rank) const noexcept {
  return peers_[static_cast<std::size_t>(rank)]->given_up.load(std::memory_order_acquire);
}

void Signs::stop() noexcept {
  stop_.store(true, std::memory_order_release);
  waker_.wake();
}

// Signs are read when this rank gives its own: a thread of a large group that woke for each would
// do nothing else.
bool Signs::turn() noexcept {
  const std::uint64_t now = now_ns();
  const std::uint64_t rest = now < next_ns_ ? next_ns_ - now : 0;
  pollfd waker{waker_.get(), POLLIN, 0};
  ::poll(&waker, 1, static_cast<int>((rest + kMillisecond - 1) / kMillisecond));
  if (waker.revents != 0) waker_.clear();
  if (stop_.load(std::memory_order_acquire)) {
    // A connection that is added from now on goes with this object.
    for (const auto& peer : peers_) {
      if (peer->there.load(std::memory_order_acquire)) peer->socket.reset();
    }
    return false;
  }
  const std::uint64_t after = now_ns();
  if (after < next_ns_) return true;
  find_new();
  publish();
  // Bytes that arrived while this thread did not run count before silence does.
  listen();
  try {
    static_cast<void>(failpoint("signs", "before_count"));
  } catch (...) {  // a failpoint needs memory; signs do not
  }
  const std::uint64_t counted_at = now_ns();
  count(counted_at - last_ns_);
  last_ns_ = counted_at;
  next_ns_ = counted_at + tick_ns_;
  return true;
}

void Signs::find_new() noexcept {
  if (added_.load(std::memory_order_acquire) == open_.size()) return;
  open_.clear();
  for (const auto& peer : peers_) {
    if (peer->there.load(std::memory_order_acquire)) open_.push_back(peer.get());
  }
}

// A byte without room is left out: the peer has not read earlier ones.
void Signs::publish() noexcept {
  for (const Peer* const peer : open_) {
    if (peer->ended || peer->given_up.load(std::memory_order_relaxed)) continue;
    const char sign = 1;
    std::size_t moved = 0;
    static_cast<void>(peer->socket.send(&sign, 1, &moved));
  }
}

void Signs::listen() noexcept {
  for (Peer* const peer : open_) {
    if (peer->ended) continue;
    char signs[64];
    std::size_t moved = 0;
    // The end of this connection means nothing by itself: the peer's last messages are on the other
    // one.
    if (peer->socket.receive(signs, sizeof signs, &moved) == Moved::ended) peer->ended = true;
    if (moved > 0) peer->heard.store(true, std::memory_order_relaxed);
  }
}

// A late turn counts as one on time: this thread did not run meanwhile, and perhaps no other on
// this host did.
void Signs::count(std::uint64_t elapsed_ns) noexcept {
  const std::uint64_t counted = elapsed_ns > 2 * tick_ns_ ? tick_ns_ : elapsed_ns;
  for (Peer* const peer : open_) {
    if (peer->given_up.load(std::memory_order_relaxed)) continue;
    const bool heard = peer->heard.exchange(false, std::memory_order_relaxed);
    const std::uint64_t before = peer->silence_ns.load(std::memory_order_relaxed);
    const std::uint64_t silence_ns = heard ? 0 : before + counted;
    peer->silence_ns.store(silence_ns, std::memory_order_relaxed);
    peer->begun = peer->begun || heard;
    const std::uint64_t limit_ns = peer->begun ? limit_ns_ : limit_ns_ + kFirstNs;
    if (silence_ns < limit_ns) continue;
    peer->given_up.store(true, std::memory_order_release);
    given_up_.wake();
  }
}

}  // namespace trireme::tcp
