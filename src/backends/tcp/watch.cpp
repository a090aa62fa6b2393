// The watching thread of a mesh: lets peers in, tells of those who were given up, and takes the rank out.
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <new>

#include "backends/tcp/mesh.hpp"
#include "platform/failpoint.hpp"

namespace trireme::tcp {
namespace {

constexpr int kTurnMs = 200;
constexpr int kPauseMs = 10;
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
  while (!stop_.load(std::memory_order_acquire)) {
    try {
      turn();
    } catch (...) {  // no memory for a moment
      ::poll(nullptr, 0, kPauseMs);
    }
  }
  linger();
}

void Mesh::turn() {
  // Needs no memory, and so comes first.
  for (int rank = 0; rank < n_; ++rank) {
    if (signs_.is_given_up(rank)) lose(rank, silent_);
  }
  if (!failpoint("mesh", "before_watch").ok()) throw std::bad_alloc();
  std::vector<pollfd> polled{{waker_.get(), POLLIN, 0}};
  gate_->add_to(&polled);
  ::poll(polled.data(), polled.size(), kTurnMs);
  if (polled[0].revents != 0) waker_.clear();
  std::vector<Purpose> purposes{Purpose::control, Purpose::data};
  if (lines_ != nullptr) purposes.push_back(Purpose::engine);
  gate_->serve(polled, 1, purposes,
               [this](int rank, Purpose purpose, Socket socket, const SessionKeys& keys) {
                 if (wants(rank, purpose)) adopt(rank, purpose, std::move(socket), keys);
               });
  if (all_are_in()) gate_->close();
}

bool Mesh::all_are_in() {
  for (int rank = 0; rank < n_; ++rank) {
    if (rank == me_) continue;
    if (!signs_.has(rank)) return false;
    Peer& peer = *peers_[static_cast<std::size_t>(rank)];
    const std::lock_guard lock(peer.mutex);
    if (!peer.data) return false;
  }
  return true;
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
  signs_.stop();
}

}  // namespace trireme::tcp
