#include "backends/tcp/signs.hpp"

#include "platform/failpoint.hpp"

namespace trireme::tcp {
namespace {

constexpr std::uint64_t kTickNs = 200 * kMillisecond;
// A peer that has answered the call may need so much longer to begin: it gives signs once its
// acceptor has passed on the connection.
constexpr std::uint64_t kFirstNs = 10'000 * kMillisecond;

}  // namespace

Signs::Signs(int world_size, std::uint64_t silence_ns, const Waker& given_up)
    : limit_ns_(silence_ns), given_up_(given_up) {
  for (int rank = 0; rank < world_size; ++rank) peers_.push_back(std::make_unique<Peer>());
  polled_.resize(peers_.size() + 1, {-1, POLLIN, 0});
}

Status Signs::open() {
  TRIREME_RETURN_IF_ERROR(waker_.open());
  polled_.back().fd = waker_.get();
  last_ns_ = now_ns();
  next_ns_ = last_ns_ + kTickNs;
  return Status::success();
}

void Signs::add(int rank, Socket socket) noexcept {
  Peer& peer = *peers_[static_cast<std::size_t>(rank)];
  peer.socket = std::move(socket);
  peer.there.store(true, std::memory_order_release);
  waker_.wake();
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

bool Signs::turn() noexcept {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = *peers_[rank];
    const bool open = peer.there.load(std::memory_order_acquire) && !peer.ended;
    polled_[rank].fd = open ? peer.socket.get() : -1;
  }
  const std::uint64_t now = now_ns();
  const std::uint64_t rest = now < next_ns_ ? next_ns_ - now : 0;
  ::poll(polled_.data(), polled_.size(),
         static_cast<int>((rest + kMillisecond - 1) / kMillisecond));
  if (polled_.back().revents != 0) waker_.clear();
  if (stop_.load(std::memory_order_acquire)) {
    // A connection that is added from now on goes with this object.
    for (const auto& peer : peers_) {
      if (peer->there.load(std::memory_order_acquire)) peer->socket.reset();
    }
    return false;
  }
  const std::uint64_t after = now_ns();
  const bool due = after >= next_ns_;
  if (due) publish();
  // Bytes that arrived while this thread did not run count before silence does.
  listen();
  if (!due) return true;
  try {
    static_cast<void>(failpoint("signs", "before_count"));
  } catch (...) {  // a failpoint needs memory; signs do not
  }
  const std::uint64_t counted_at = now_ns();
  count(counted_at - last_ns_);
  last_ns_ = counted_at;
  next_ns_ = counted_at + kTickNs;
  return true;
}

// A byte without room is left out: the peer has not read earlier ones.
void Signs::publish() noexcept {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = *peers_[rank];
    if (polled_[rank].fd < 0 || peer.ended || peer.given_up.load(std::memory_order_relaxed))
      continue;
    const char sign = 1;
    std::size_t moved = 0;
    static_cast<void>(peer.socket.send(&sign, 1, &moved));
  }
}

void Signs::listen() noexcept {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = *peers_[rank];
    if (polled_[rank].fd < 0 || peer.ended) continue;
    char signs[64];
    std::size_t moved = 0;
    // The end of this connection means nothing by itself: the peer's last messages are on the other
    // one.
    if (peer.socket.receive(signs, sizeof signs, &moved) == Moved::ended) peer.ended = true;
    if (moved > 0) peer.heard.store(true, std::memory_order_relaxed);
  }
}

// A late turn counts as one on time: this thread did not run meanwhile, and perhaps no other on
// this host did.
void Signs::count(std::uint64_t elapsed_ns) noexcept {
  const std::uint64_t counted = elapsed_ns > 2 * kTickNs ? kTickNs : elapsed_ns;
  for (const auto& peer : peers_) {
    if (!peer->there.load(std::memory_order_acquire)) continue;
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
