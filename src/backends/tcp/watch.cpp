// The watching thread of a mesh: lets peers in, reports ranks that were given up, and leaves the
// group.
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <new>

#include "backends/tcp/mesh.hpp"
#include "platform/failpoint.hpp"
#include "schedules/overlay.hpp"

namespace trireme::tcp {
namespace {

constexpr std::uint64_t kWatchNs = 200 * kMillisecond;
constexpr int kPauseMs = 10;
// How long a leaving rank goes on to deliver its bytes.
constexpr std::uint64_t kLingerNs = 2'000 * kMillisecond;
constexpr int kLingerStepMs = 2;
// A leaving rank whose bytes do not move for so long gives up on them.
constexpr std::uint64_t kStuckNs = 300 * kMillisecond;

std::uint64_t unsent_bytes(const Socket& socket) {
  int bytes = 0;
  return ::ioctl(socket.get(), SIOCOUTQNSD, &bytes) == 0 ? static_cast<std::uint64_t>(bytes) : 0;
}

}  // namespace

void Mesh::watch() noexcept {
  bool heard = false;
  LineWatch lines(signs_.limit_ns());
  while (!stop_.load(std::memory_order_acquire)) {
    try {
      turn(&heard, &lines);
    } catch (...) {  // no memory for a moment
      ::poll(nullptr, 0, kPauseMs);
    }
  }
  linger();
}

void Mesh::turn(bool* heard, LineWatch* lines) {
  // It needs no memory, so it comes first.
  for (int rank = 0; rank < n_; ++rank) {
    if (signs_.is_given_up(rank)) lose(rank, silent_);
  }
  if (!failpoint("mesh", "before_watch").ok()) throw std::bad_alloc();
  if (entrances_->count() > 1 && lines_ != nullptr && met_.load(std::memory_order_acquire)) {
    lines->look(*lines_, n_, now_ns(),
                [this](int rank, const std::string& why) { lose(rank, why); });
  }
  // The directory's news concern ranks that met this one.
  const int seat = met_.load(std::memory_order_acquire) ? meeting_->descriptor() : -1;
  std::vector<pollfd> polled{{waker_.get(), POLLIN, 0}, {seat, POLLIN, 0}};
  entrances_->add_to(&polled);
  const bool lets_in = polled[2].fd >= 0;  // a door that is full opens with time
  const std::uint64_t longest_ns = lets_in ? period_of(kWatchNs, n_) : kWatchNs;
  ::poll(polled.data(), polled.size(), static_cast<int>(longest_ns / kMillisecond));
  if (polled[0].revents != 0) waker_.clear();
  // A connection that comes in now may be of a rank that has left since, because of another one.
  const bool was_in = *heard && all_are_in();
  std::vector<Purpose> purposes{Purpose::control, Purpose::data};
  if (lines_ != nullptr) purposes.push_back(Purpose::engine);
  if (lines_ != nullptr && entrances_->count() > 1) purposes.push_back(Purpose::addresses);
  if (options_.few_connections)
    purposes.insert(purposes.end(), {Purpose::ask_data, Purpose::ask_engine});
  entrances_->serve(polled, 2, purposes,
                    [this](int rank, Purpose purpose, Socket socket, const SessionKeys& keys) {
                      enter(rank, purpose, std::move(socket), keys);
                    });
  if (polled[1].revents != 0) receive_gone(was_in);
  *heard = seat >= 0;
  if (!all_are_in()) return;
  if (*heard && meeting_->first_gone() < 0) was_whole_.store(true, std::memory_order_release);
  if (!options_.few_connections) entrances_->close();
  if (*heard) meeting_->end_well();
}

// A rank that has a connection for frames reports there, and the connection's end tells that it is
// gone.
void Mesh::receive_gone(bool was_in) {
  for (const int rank : meeting_->receive()) {
    if (rank == me_ && !all_are_in()) {
      // The other ranks leave, and no connection would tell this rank why.
      FailureDetails details;
      details.blamed = {me_};
      fail(Status::failure(TRIREME_ERROR_PEER_LOST,
                           "rank " + std::to_string(me_) + " was given up by the other ranks")
               .with_details(std::move(details)));
    }
    if (rank >= n_ || rank == me_) continue;
    if (!was_in) meeting_->note_gone(rank);
    if (has_data(rank)) continue;
    // The rest have the same news, and need no report that this rank leaves because of it.
    meeting_->end_well();
    lose(rank, "it ended before it was connected");
  }
}

bool Mesh::has_data(int rank) {
  Peer& peer = *peers_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(peer.mutex);
  return static_cast<bool>(peer.data);
}

bool Mesh::all_are_in() {
  for (int rank = 0; rank < n_; ++rank) {
    if (rank != me_ && is_near(rank) && !(signs_.has(rank) && has_data(rank))) return false;
  }
  return true;
}

// Called when there are no more bytes to send. Bytes that the system has not sent yet are lost when
// the process ends.
void Mesh::settle(bool because_of_another) noexcept {
  if (met_.load(std::memory_order_acquire)) {
    // The process may end before the watching thread says so: the rest would take its end for a
    // death before all were connected.
    if (because_of_another || all_are_in()) meeting_->end_well();
    if (because_of_another) meeting_->settle();
  }
  std::uint64_t before = UINT64_MAX;
  std::uint64_t since_ns = now_ns();
  while (true) {
    std::uint64_t unsent = 0;
    const RankSet ranks = connected();
    for (int rank = ranks.lowest(); rank >= 0; rank = ranks.next(rank)) {
      const auto& peer = peers_[static_cast<std::size_t>(rank)];
      const std::lock_guard lock(peer->mutex);
      if (lines_ != nullptr) {
        lines_->each(rank, [&](int, const Socket& line) { unsent += unsent_bytes(line); });
      }
      if (!peer->data || !flush(*peer)) continue;
      unsent += peer->rest.size() - peer->rest_at + unsent_bytes(peer->data);
    }
    const std::uint64_t now = now_ns();
    if (unsent != before) since_ns = now;
    if (unsent == 0 || now - since_ns >= kStuckNs) return;
    before = unsent;
    ::poll(nullptr, 0, 1);
  }
}

// After this only join() is called, which ends soon.
void Mesh::linger() noexcept {
  entrances_->close();
  if (all_are_in()) meeting_->end_well();
  meeting_->end();
  const Deadline deadline = Deadline::after(kLingerNs);
  std::vector<bool> shut(peers_.size());
  std::vector<bool> line_shut(peers_.size() * kMostLines);
  bool waiting = true;
  while ((waiting || joiners_ != 0) && !deadline.passed()) {
    waiting = false;
    const RankSet ranks = connected();
    for (int each = ranks.lowest(); each >= 0; each = ranks.next(each)) {
      const auto rank = static_cast<std::size_t>(each);
      Peer& peer = *peers_[rank];
      const std::lock_guard lock(peer.mutex);
      // The engine is gone before the rank leaves, so its lines are not in use.
      const auto end_line = [&](int number, const Socket& line) {
        const auto at = rank * kMostLines + static_cast<std::size_t>(number);
        if (!line_shut[at]) line_shut[at] = ::shutdown(line.get(), SHUT_WR) == 0;
        if (line.unanswered_bytes() > 0) waiting = true;
      };
      if (lines_ != nullptr) lines_->each(each, end_line);
      if (!peer.data || !flush(peer)) continue;
      if (peer.rest.empty() && !shut[rank]) {
        ::shutdown(peer.data.get(), SHUT_WR);
        shut[rank] = true;
      }
      if (peer.data.unanswered_bytes() > 0) waiting = true;
    }
    ::poll(nullptr, 0, kLingerStepMs);
  }
  // join() may still use a connection that it made; the mesh's end closes it.
  for (const auto& peer : peers_) {
    const std::lock_guard lock(peer->mutex);
    peer->data.reset();
  }
  if (lines_ != nullptr) lines_->close();
  signs_.stop();
}

}  // namespace trireme::tcp
