// The watching thread of a mesh: lets peers in, gives and hears signs of life, and takes the rank out.
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>

#include "backends/tcp/mesh.hpp"

namespace trireme::tcp {
namespace {

constexpr std::uint64_t kTickNs = 200 * kMillisecond;
// How long a rank that leaves goes on to deliver what it has sent.
constexpr std::uint64_t kLingerNs = 2'000 * kMillisecond;
constexpr int kLingerStepMs = 2;
// How long nothing may move of what a rank has sent before it goes without.
constexpr std::uint64_t kStuckNs = 300 * kMillisecond;

bool has_unanswered(const Socket& socket) {
  int bytes = 0;
  return ::ioctl(socket.get(), SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

}  // namespace

void Mesh::watch() noexcept {
  std::uint64_t last_ns = now_ns();
  std::uint64_t next_tick_ns = last_ns + kTickNs;
  while (!stop_.load(std::memory_order_acquire)) {
    try {
      turn(&next_tick_ns, &last_ns);
    } catch (...) {  // no memory for a moment: the peers' signs of life go on
    }
  }
  linger();
}

void Mesh::turn(std::uint64_t* next_tick_ns, std::uint64_t* last_ns) {
  std::vector<pollfd> polled{{waker_.get(), POLLIN, 0}};
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t rank = 0; rank < life_.size(); ++rank) {
      polled.push_back({peers_[rank]->life_ended ? -1 : life_[rank].get(), POLLIN, 0});
    }
  }
  const std::size_t gate = polled.size();
  gate_->add_to(&polled);
  const std::uint64_t now = now_ns();
  const std::uint64_t rest = now < *next_tick_ns ? *next_tick_ns - now : 0;
  ::poll(polled.data(), polled.size(), static_cast<int>((rest + kMillisecond - 1) / kMillisecond));
  if (polled[0].revents != 0) waker_.clear();
  for (std::size_t rank = 0; rank < life_.size(); ++rank) {
    if (polled[1 + rank].revents == 0) continue;
    char signs[64];
    std::size_t moved = 0;
    const std::lock_guard lock(mutex_);
    // That it ends says nothing by itself: what the peer has said before is on the other connection.
    if (life_[rank].receive(signs, sizeof signs, &moved) == Moved::ended) {
      peers_[rank]->life_ended = true;
    }
    peers_[rank]->heard = peers_[rank]->heard || moved > 0;
  }
  std::vector<Purpose> purposes{Purpose::control, Purpose::data};
  if (lines_ != nullptr) purposes.push_back(Purpose::engine);
  gate_->serve(polled, gate, purposes,
               [this](int rank, Purpose purpose, Socket socket, const SessionKeys& keys) {
                 if (wants(rank, purpose)) adopt(rank, purpose, std::move(socket), keys);
               });
  const std::uint64_t after = now_ns();
  if (after < *next_tick_ns) return;
  tick(after - *last_ns);
  *last_ns = after;
  *next_tick_ns = after + kTickNs;
}

void Mesh::tick(std::uint64_t elapsed_ns) {
  // A time in which this thread did not run is none in which a peer was silent.
  const std::uint64_t counted = std::min(elapsed_ns, 2 * kTickNs);
  bool all = true;
  for (std::size_t rank = 0; rank < life_.size(); ++rank) {
    Peer& peer = *peers_[rank];
    if (static_cast<int>(rank) == me_) continue;
    {
      const std::lock_guard lock(peer.mutex);
      all = all && peer.data;
    }
    bool silent = false;
    {
      const std::lock_guard lock(mutex_);
      all = all && life_[rank];
      if (!life_[rank] || peer.given_up) continue;
      const char sign = 1;
      std::size_t moved = 0;
      if (!peer.life_ended) static_cast<void>(life_[rank].send(&sign, 1, &moved));
      peer.silence_ns = peer.heard ? 0 : peer.silence_ns + counted;
      peer.heard = false;
      silent = peer.silence_ns >= place_.silence_ns;
      peer.given_up = silent;
    }
    if (silent) {
      lose(static_cast<int>(rank), "it gave no sign of life for " +
                                       std::to_string(place_.silence_ns / kMillisecond) + " ms");
    }
  }
  if (all) gate_->close();
}

// Called when nothing more is sent. A process that ends takes what its system has not got yet with it.
void Mesh::settle() noexcept {
  std::uint64_t before = UINT64_MAX;
  std::uint64_t since_ns = now_ns();
  while (true) {
    std::uint64_t unsent = 0;
    for (int rank = 0; rank < n_; ++rank) {
      const auto& peer = peers_[static_cast<std::size_t>(rank)];
      const std::lock_guard lock(peer->mutex);
      if (!peer->data || !flush(*peer)) continue;
      int queued = 0;
      if (::ioctl(peer->data.get(), SIOCOUTQNSD, &queued) != 0) queued = 0;
      const Lines::Line* const line = lines_ == nullptr ? nullptr : lines_->find(rank);
      int of_engine = 0;
      if (line != nullptr && ::ioctl(line->socket.get(), SIOCOUTQNSD, &of_engine) == 0) {
        unsent += static_cast<std::uint64_t>(of_engine);
      }
      unsent += peer->rest.size() - peer->rest_at + static_cast<std::uint64_t>(queued);
    }
    const std::uint64_t now = now_ns();
    if (unsent != before) since_ns = now;
    if (unsent == 0 || now - since_ns >= kStuckNs) return;
    before = unsent;
    ::poll(nullptr, 0, 1);
  }
}

// Nothing else is called any more but join(), which ends soon.
void Mesh::linger() noexcept {
  gate_->close();
  const Deadline deadline = Deadline::after(kLingerNs);
  std::vector<bool> shut(peers_.size());
  bool waiting = true;
  while ((waiting || joiners_ != 0) && !deadline.passed()) {
    waiting = false;
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      Peer& peer = *peers_[rank];
      const std::lock_guard lock(peer.mutex);
      if (!peer.data) continue;
      const Lines::Line* const line =
          lines_ == nullptr ? nullptr : lines_->find(static_cast<int>(rank));
      // The engine has gone before the rank leaves: nobody uses its line any more.
      if (line != nullptr && !shut[rank]) ::shutdown(line->socket.get(), SHUT_WR);
      if (line != nullptr && has_unanswered(line->socket)) waiting = true;
      if (!flush(peer)) continue;
      if (peer.rest.empty() && !shut[rank]) {
        ::shutdown(peer.data.get(), SHUT_WR);
        shut[rank] = true;
      }
      if (has_unanswered(peer.data)) waiting = true;
    }
    ::poll(nullptr, 0, kLingerStepMs);
  }
  // join() may still hold one that it made; it goes with the mesh.
  for (const auto& peer : peers_) {
    const std::lock_guard lock(peer->mutex);
    peer->data.reset();
  }
  if (lines_ != nullptr) lines_->close();
  const std::lock_guard lock(mutex_);
  for (Socket& life : life_) life.reset();
}

}  // namespace trireme::tcp
