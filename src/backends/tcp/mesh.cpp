// Frames, and the connections of a rank that joins. The other half is in watch.cpp.
#include "backends/tcp/mesh.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "net/host_identity.hpp"
#include "net/sha256.hpp"
#include "platform/descriptors.hpp"
#include "platform/failpoint.hpp"
#include "platform/log.hpp"
#include "platform/system.hpp"
#include "platform/thread.hpp"
#include "platform/utf8.hpp"

namespace trireme::tcp {
namespace {

constexpr std::uint64_t kFrameBytes = 131'072;
constexpr std::size_t kMostInBytes = 2 * kFrameBytes;
constexpr std::size_t kFirstInBytes = 8u << 10;     // enough for most connections of a large group
constexpr std::uint32_t kMeetingNews = UINT32_MAX;  // in place of a rank's number, in an event
constexpr std::uint64_t kCallNs = 10'000'000'000;
// A rank that is not near: the first try to connect; the next ones take longer, up to kCallNs.
constexpr std::uint64_t kFirstCallNs = 1'000'000'000;
// Once the rank has this one's proof, it takes the connection. If this one gave it up, that rank
// would see a loss. So its last word may take so long, or longer in a large group.
constexpr std::uint64_t kHandshakeNs = 15'000'000'000;
constexpr std::uint64_t kHandshakeOfRankNs = 60 * kMillisecond;
constexpr std::uint64_t kFirstPauseNs = 20 * kMillisecond;
constexpr std::uint64_t kLongestPauseNs = 1'000 * kMillisecond;
// Further lines that cannot be made: the log warns after so many tries. Later tries are rare, since
// each of them may hold up the lines of other ranks.
constexpr int kTriesOfLines = 3;
constexpr std::uint64_t kLongestLinePauseNs = 10'000 * kMillisecond;
// An asked rank that does not call is asked again.
constexpr std::uint64_t kAskAgainNs = 1'000 * kMillisecond;
// The time for the directory to tell of a death before another process at the rank's address
// counts.
constexpr std::uint64_t kForeignNs = 2'000 * kMillisecond;

// Names the connections to the rank that has the nonce.
Digest job_of(const std::string& group, const Digest& nonce) {
  return sha256(group + '\n' +
                std::string(reinterpret_cast<const char*>(nonce.data()), nonce.size()));
}

HandshakeDeadlines handshake_deadlines(std::uint64_t call_ns, int world_size) {
  const std::uint64_t all_ns = kHandshakeOfRankNs * static_cast<std::uint64_t>(world_size);
  return {Deadline::after(std::max(call_ns, all_ns / 4)),
          Deadline::after(std::max(kHandshakeNs, all_ns))};
}

// How many lines each rank has with this one, of two entries the smaller number.
void expect_lines(const std::vector<Entry>& entries, int me, Lines* lines) {
  const std::uint16_t own = entries[static_cast<std::size_t>(me)].further_addresses;
  for (int rank = 0; rank < static_cast<int>(entries.size()) && lines != nullptr; ++rank) {
    const std::uint16_t theirs = entries[static_cast<std::size_t>(rank)].further_addresses;
    lines->expect(rank, rank == me ? 0 : 1 + std::min(own, theirs));
  }
}

}  // namespace

Mesh::Mesh(const Options& options)
    : options_(options),
      me_(options.rank),
      n_(options.world_size),
      name_("rank " + std::to_string(options.rank) + " of \"" + options.name + "\""),
      lines_(options.lines),
      signs_(options.world_size, options.place.silence_ns, waker_),
      silent_("it gave no sign of life for " + std::to_string(signs_.limit_ns() / kMillisecond) +
              " ms"),
      losses_(options.rank, options.world_size),
      wanted_{WantedConnections(options.world_size), WantedConnections(options.world_size)} {
  for (int rank = 0; rank < n_; ++rank) peers_.push_back(std::make_unique<Peer>());
}

Status Mesh::open(const Options& options, std::shared_ptr<Mesh>* out) {
  auto mesh = std::make_shared<Mesh>(options);
  Endpoint meeting;
  TRIREME_RETURN_IF_ERROR(resolve(mesh->options_.place, &meeting));
  std::vector<Endpoint> own;
  TRIREME_RETURN_IF_ERROR(own_addresses(mesh->options_.place, meeting, &own));
  TRIREME_FAILPOINT("mesh", "before_listen");
  std::vector<Socket> listeners;
  TRIREME_RETURN_IF_ERROR(Entrances::listen(&own, &listeners));
  own.front().text().copy(mesh->own_.endpoint, sizeof mesh->own_.endpoint - 1);
  mesh->own_.further_addresses = static_cast<std::uint16_t>(own.size() - 1);
  mesh->options_.engine.copy(mesh->own_.engine, sizeof mesh->own_.engine - 1);
  mesh->own_.host = host_identity(mesh->options_.place.label);
  mesh->own_.few_connections = options.few_connections ? 1 : 0;
  if (!system_table().random_bytes(mesh->own_.nonce.data(), mesh->own_.nonce.size())) {
    return Status::failure(TRIREME_ERROR_SYSTEM, "the system gives no random numbers");
  }
  const Visit visit{mesh->options_.place.name, mesh->me_, mesh->n_, mesh->own_};
  mesh->meeting_ = std::make_unique<Meeting>(meeting, mesh->options_.token, visit, mesh->name_);
  HandshakeTerms terms;
  terms.rank = mesh->me_;
  terms.job = job_of(mesh->options_.place.name, mesh->own_.nonce);
  mesh->entrances_ = std::make_unique<Entrances>(std::move(own), std::move(listeners),
                                                 mesh->options_.token, terms, mesh->name_);
  if (options.few_connections) {
    mesh->entrances_->make_room_for(static_cast<std::size_t>(options.world_size));
  }
  mesh->epoll_ = Socket(own_descriptor([] { return epoll_create1(EPOLL_CLOEXEC); }));
  if (!mesh->epoll_) return Status::system(errno, "an epoll descriptor");
  TRIREME_RETURN_IF_ERROR(mesh->news_.open());
  TRIREME_RETURN_IF_ERROR(mesh->waker_.open());
  TRIREME_RETURN_IF_ERROR(mesh->signs_.open());
  epoll_event event{EPOLLIN, {.u32 = kMeetingNews}};
  if (epoll_ctl(mesh->epoll_.get(), EPOLL_CTL_ADD, mesh->news_.get(), &event) != 0) {
    return Status::system(errno, "an epoll descriptor");
  }
  TRIREME_RETURN_IF_ERROR(start_thread([mesh] { mesh->watch(); }));
  if (mesh->options_.few_connections && mesh->lines_ != nullptr) {
    mesh->lines_->make_by([weak = std::weak_ptr(mesh)](int rank) {
      if (const auto open = weak.lock()) open->wanted_.connections.add(rank, Purpose::engine);
    });
  }
  Status started = start_thread([mesh] {
    while (mesh->signs_.turn()) {
    }
  });
  mesh->joiners_ = 1;
  if (started.ok()) started = start_thread([mesh] { mesh->join(); });
  if (!started.ok()) {
    mesh->joiners_ = 0;
    mesh->leave();
    return started;
  }
  *out = std::move(mesh);
  return Status::success();
}

trireme_transport Mesh::transport() {
  trireme_transport out = TRIREME_TRANSPORT_INIT;
  out.user_data = new std::shared_ptr<Mesh>(shared_from_this());
  out.maximum_frame_bytes = kFrameBytes;
  out.send = [](void* mesh, std::int32_t to, const void* data, std::uint64_t bytes,
                std::uint64_t timeout_ns) {
    return (*static_cast<std::shared_ptr<Mesh>*>(mesh))->send(to, data, bytes, timeout_ns);
  };
  out.receive = [](void* mesh, std::int32_t* from, void* data, std::uint64_t capacity,
                   std::uint64_t* bytes, std::uint64_t timeout_ns) {
    return (*static_cast<std::shared_ptr<Mesh>*>(mesh))
        ->receive(from, data, capacity, bytes, timeout_ns);
  };
  out.released = [](void* mesh) {
    const std::unique_ptr<std::shared_ptr<Mesh>> owner(static_cast<std::shared_ptr<Mesh>*>(mesh));
    (*owner)->leave();
  };
  return out;
}

Status Mesh::open_meeting(std::string* place, std::shared_ptr<const void>* out) const {
  Endpoint own;
  TRIREME_RETURN_IF_ERROR(parse_endpoint(own_.endpoint, &own));
  Endpoint bound;
  std::shared_ptr<Directory> directory;
  TRIREME_RETURN_IF_ERROR(Directory::open(own, options_.token, &bound, &directory));
  *place = bound.text();
  *out = std::move(directory);
  return Status::success();
}

void Mesh::leave() noexcept {
  stop_.store(true, std::memory_order_release);
  wanted_.connections.end();
  wanted_.lines.end();
  waker_.wake();
}

// --- failures ----------------------------------------------------------------------------------

void Mesh::lose(int rank, const std::string& why, trireme_status code) noexcept {
  if (losses_.add(rank, code, why, *meeting_)) news_.wake();
}

void Mesh::fail(const Status& status) noexcept {
  losses_.fail(status);
  news_.wake();
}

std::vector<std::int32_t> Mesh::silent() {
  std::vector<std::int32_t> out;
  const RankSet ranks = connected();
  for (int rank = ranks.lowest(); rank >= 0; rank = ranks.next(rank)) {
    if (signs_.silence_ns(rank) >= signs_.suspect_ns()) out.push_back(rank);
  }
  return out;
}

Status Mesh::loss(int rank) {
  // Before all were connected, a rank that went after the first one may have gone because of it.
  const bool was_whole = was_whole_.load(std::memory_order_acquire);
  if (rank >= 0 && !was_whole && meeting_->first_gone() >= 0) rank = meeting_->first_gone();
  return losses_.why(rank);
}

// --- frames ------------------------------------------------------------------------------------

// Watches for bytes, and for room if `for_room`, on the receiving thread. Call it under the mutex
// of the peer.
void Mesh::arm(int rank, bool for_room) {
  epoll_event event{};
  event.events = for_room ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u32 = static_cast<std::uint32_t>(rank);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, peers_[static_cast<std::size_t>(rank)]->data.get(),
            &event);
}

// Returns false if the connection has ended. Call it under the mutex of the peer.
bool Mesh::flush(Peer& peer) {
  if (!peer.rest.empty() && !failpoint("frame", "before_rest").ok()) return false;
  while (peer.rest_at < peer.rest.size()) {
    std::size_t moved = 0;
    const Moved result =
        peer.data.send(peer.rest.data() + peer.rest_at, peer.rest.size() - peer.rest_at, &moved);
    if (result == Moved::ended) return false;
    if (result == Moved::nothing) return true;
    peer.rest_at += moved;
  }
  peer.rest.clear();
  peer.rest_at = 0;
  return true;
}

std::int32_t Mesh::send(int to, const void* data, std::uint64_t bytes, std::uint64_t timeout_ns) {
  Peer& peer = *peers_[static_cast<std::size_t>(to)];
  std::unique_lock lock(peer.mutex);
  if (!peer.data) {
    if (!is_near(to)) wanted_.connections.add(to, Purpose::data);
    return TRIREME_ERROR_TIMEOUT;
  }
  if (!flush(peer)) return TRIREME_ERROR_PEER_LOST;
  if (!peer.rest.empty()) {
    const int descriptor = peer.data.get();
    lock.unlock();
    wait_for(descriptor, POLLOUT, Deadline::after(timeout_ns), stop_);
    lock.lock();
    if (!flush(peer)) return TRIREME_ERROR_PEER_LOST;
    if (!peer.rest.empty()) return TRIREME_ERROR_TIMEOUT;
  }
  Seal::Head head = peer.sent.make(data, static_cast<std::uint32_t>(bytes));
  iovec parts[2] = {{&head, sizeof head}, {const_cast<void*>(data), bytes}};
  int count = 2;
  if (failed_with(failpoint("frame", "mid_head")) == kCutShort) {
    parts[0].iov_len /= 2;
    count = 1;
  }
  if (failed_with(failpoint("frame", "mid_body")) == kCutShort) parts[1].iov_len /= 2;
  std::size_t moved = 0;
  const Moved result = peer.data.send(parts, count, &moved);
  if (result == Moved::ended) return TRIREME_ERROR_PEER_LOST;
  if (result == Moved::nothing) {
    lock.unlock();
    wait_for(peer.data.get(), POLLOUT, Deadline::after(timeout_ns), stop_);
    return TRIREME_ERROR_TIMEOUT;
  }
  peer.sent.advance();
  if (moved == sizeof head + bytes) return TRIREME_OK;
  if (moved < sizeof head) {
    const char* const from = reinterpret_cast<const char*>(&head);
    peer.rest.assign(from + moved, from + sizeof head);
    moved = sizeof head;
  }
  const char* const from = static_cast<const char*>(data);
  peer.rest.insert(peer.rest.end(), from + (moved - sizeof head), from + bytes);
  arm(to, true);
  return TRIREME_OK;
}

// Takes the next whole frame of this rank that has arrived.
bool Mesh::take_frame(int rank, void* data, std::uint64_t capacity, std::uint64_t* bytes) {
  Peer& peer = *peers_[static_cast<std::size_t>(rank)];
  Seal::Head head;
  if (peer.end - peer.begin < sizeof head) return false;
  std::memcpy(&head, peer.in.data() + peer.begin, sizeof head);
  const bool told = peer.received.fits(head);
  const bool takes = head.bytes > 0 && head.bytes <= capacity && head.bytes <= kFrameBytes;
  if (told && takes && peer.end - peer.begin < sizeof head + head.bytes) return false;
  const char* const frame = peer.in.data() + peer.begin + sizeof head;
  if (!told || !takes || !peer.received.fits(head, frame)) {
    peer.begin = peer.end = 0;
    end(rank, TRIREME_ERROR_CORRUPT,
        told && !takes ? "it sent a frame of " + std::to_string(head.bytes) + " bytes"
                       : "the bytes that came are not the bytes that it sent");
    return false;
  }
  std::memcpy(data, frame, head.bytes);
  *bytes = head.bytes;
  peer.begin += sizeof head + head.bytes;
  peer.received.advance();
  return true;
}

// Reads the bytes that the connection has, as far as there is room: there is always room for the
// rest of one frame.
void Mesh::read(int rank) {
  Peer& peer = *peers_[static_cast<std::size_t>(rank)];
  if (peer.ended) return;
  if (peer.begin > 0) {
    std::memmove(peer.in.data(), peer.in.data() + peer.begin, peer.end - peer.begin);
    peer.end -= peer.begin;
    peer.begin = 0;
  }
  if (peer.end == peer.in.size()) {
    if (peer.in.size() == kMostInBytes) return;
    peer.in.resize(std::max(kFirstInBytes, 2 * peer.in.size()));
  }
  std::size_t moved = 0;
  const Moved result =
      peer.data.receive(peer.in.data() + peer.end, peer.in.size() - peer.end, &moved);
  peer.end += moved;
  if (moved > 0) {
    signs_.receive(rank);
    unread_.add(rank);
  }
  if (result != Moved::ended) return;
  const int error_number = errno;
  end(rank, TRIREME_ERROR_PEER_LOST,
      error_number == 0 ? "its connection was closed"
                        : Status::system(error_number, "its connection broke").message());
}

// Reads no more bytes of this rank. Its whole frames are taken first.
void Mesh::end(int rank, trireme_status code, const std::string& why) {
  Peer& peer = *peers_[static_cast<std::size_t>(rank)];
  peer.ended = true;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.data.get(), nullptr);
  lose(rank, why, code);
}

std::int32_t Mesh::receive(std::int32_t* from, void* data, std::uint64_t capacity,
                           std::uint64_t* bytes, std::uint64_t timeout_ns) {
  const Deadline deadline = Deadline::after(timeout_ns);
  bool looked = false;
  while (true) {
    // No frame is delivered before the ranks have met: an engine of the group needs their entries
    // first.
    const bool open = met_.load(std::memory_order_acquire);
    while (open && !unread_.empty()) {
      int rank = unread_.next(next_ - 1);
      if (rank < 0) rank = unread_.lowest();
      if (!take_frame(rank, data, capacity, bytes)) {
        unread_.remove(rank);  // until more bytes come
        continue;
      }
      *from = rank;
      next_ = (rank + 1) % n_;
      return TRIREME_OK;
    }
    // The loss comes last, when all earlier frames of the lost peer have been taken.
    if (losses_.next(open, from)) return TRIREME_ERROR_PEER_LOST;
    const std::uint64_t rest = deadline.remaining_ns();
    // Early, as frames that had no connection may go now.
    if (has_new_.exchange(false)) return TRIREME_ERROR_TIMEOUT;
    if (rest == 0 && looked) return TRIREME_ERROR_TIMEOUT;
    looked = true;
    epoll_event events[64];
    const int ms = static_cast<int>((rest + kMillisecond - 1) / kMillisecond);
    const int count = epoll_wait(epoll_.get(), events, 64, ms);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u32 == kMeetingNews) {
        news_.clear();
        continue;
      }
      const int rank = static_cast<int>(events[i].data.u32);
      if ((events[i].events & EPOLLOUT) != 0) {
        Peer& peer = *peers_[static_cast<std::size_t>(rank)];
        const std::lock_guard lock(peer.mutex);
        if (!flush(peer) || peer.rest.empty()) arm(rank, false);
      }
      if ((events[i].events & ~EPOLLOUT) != 0) read(rank);
    }
  }
}

// --- getting in --------------------------------------------------------------------------------

// Ranks that ask for different ones would wait for each other for ever.
bool Mesh::same_terms(const std::vector<Entry>& entries) {
  const auto asked = [](const Entry& entry) {
    const std::string name(entry.engine, strnlen(entry.engine, sizeof entry.engine));
    return "backend \"" + (name.empty() ? kFrames : clean_text(name)) +
           (entry.few_connections != 0 ? "\" with few connections" : "\"");
  };
  const auto said = [&](std::size_t rank) {
    return "rank " + std::to_string(rank) + " asks for " + asked(entries[rank]);
  };
  const auto me = static_cast<std::size_t>(me_);
  for (std::size_t rank = 0; rank < entries.size(); ++rank) {
    if (asked(entries[rank]) == asked(own_)) continue;
    FailureDetails details;
    details.blamed = {static_cast<std::int32_t>(std::min(rank, me)),
                      static_cast<std::int32_t>(std::max(rank, me))};
    fail(Status::failure(TRIREME_ERROR_MISMATCH,
                         said(std::min(rank, me)) + ", " + said(std::max(rank, me)))
             .with_details(std::move(details)));
    return false;
  }
  return true;
}

// Returns true once there is a connection to the rank, or the rank has been asked for one.
bool Mesh::dial(int rank, const Entry& entry, Purpose purpose) {
  const std::string text(entry.endpoint, strnlen(entry.endpoint, sizeof entry.endpoint));
  const std::string where = "rank " + std::to_string(rank) + " at " + text;
  Endpoint endpoint;
  Status status = parse_endpoint(text, &endpoint);
  if (!status.ok()) return fail(status), false;
  HandshakeTerms terms;
  terms.purpose = purpose;
  terms.rank = me_;
  terms.peer = rank;
  terms.job = job_of(options_.place.name, entry.nonce);
  int refusals = 0;
  std::uint64_t refused_ns = 0;  // the moment of the first one
  int gone = 0;
  const std::uint64_t begin = now_ns();
  for (int attempt = 0;; ++attempt) {
    Socket socket;
    SessionKeys keys;
    status = failpoint("mesh", "before_dial");
    if (status.ok()) {
      status = call(endpoint, where, options_.token, terms, Deadline::after(kCallNs), stop_,
                    &socket, &keys);
    }
    if (status.ok() && purpose == Purpose::addresses) {
      status = make_further_lines(rank, entry, socket, kCallNs);
    }
    if (status.ok()) status = failpoint("mesh", "before_adopt");
    if (status.ok()) return adopt(rank, purpose, std::move(socket), keys), true;
    if (stop_.load(std::memory_order_acquire)) return false;
    FailureDetails details;
    details.blamed = {rank};
    const bool unknown =
        status.code() == TRIREME_ERROR_AUTHENTICATION || status.code() == TRIREME_ERROR_MISMATCH;
    // A dead rank's port may belong to another process by now. The directory tells of the death.
    const std::uint64_t now = now_ns();
    if (unknown && ++refusals == 1) refused_ns = now;
    if (unknown && refusals >= kMostRefusals && now - refused_ns >= kForeignNs) {
      return fail(Status::failure(status.code(), status.message()).with_details(details)), false;
    }
    // The rank was there when the ranks met, and listens until this rank has come. The directory
    // knows why it does not listen: it may have left because of another rank. A rank that is not
    // near listens until it leaves.
    gone = unknown || failed_with(status) == ECONNREFUSED ? gone + 1 : 0;
    const bool is_gone = gone >= kMostRefusals && meeting_->is_over();
    if (is_gone || now - begin > options_.place.silence_ns + kCallNs) {
      meeting_->note_gone(rank);
      return lose(rank, "no connection could be made: " + status.message()), false;
    }
    if (!pause(attempt, stop_)) return false;
  }
}

// The called rank tells its further addresses to the caller. `call_ns`: how long one call may take.
Status Mesh::make_further_lines(int rank, const Entry& entry, const Socket& caller,
                                std::uint64_t call_ns) {
  FurtherAddresses theirs{};
  TRIREME_RETURN_IF_ERROR(
      caller.receive_all(&theirs, sizeof theirs, Deadline::after(call_ns), stop_));
  HandshakeTerms terms;
  terms.rank = me_;
  terms.peer = rank;
  terms.job = job_of(options_.place.name, entry.nonce);
  for (int line = 1; line < lines_->expected(rank); ++line) {
    if (lines_->find(rank, line) != nullptr) continue;
    Endpoint there;
    TRIREME_RETURN_IF_ERROR(theirs.of_line(line, &there));
    const Endpoint from = entrances_->source_of(line);
    const std::string where = "line " + std::to_string(line) + " from " + from.text() + " (" +
                              options_.place.interfaces[static_cast<std::size_t>(line)] +
                              ") to rank " + std::to_string(rank) + " at " + there.text();
    terms.purpose = purpose_of_line(line);
    Socket made;
    Socket socket;
    SessionKeys keys;
    Status status = connect_to(there, Deadline::after(call_ns), stop_, &made, &from);
    if (status.ok()) {
      status = shake_hands(std::move(made), where, options_.token, terms,
                           handshake_deadlines(call_ns, n_), stop_, &socket, &keys);
    }
    if (!status.ok()) {
      return Status::failure(status.code(), where + ": " + status.message())
          .with_details(status.details() == nullptr ? FailureDetails{} : *status.details());
    }
    adopt(rank, terms.purpose, std::move(socket), keys);
  }
  return Status::success();
}

bool Mesh::dial_near(const std::vector<Entry>& entries, const std::vector<bool>& line) {
  for (int rank = 0; rank < me_; ++rank) {
    if (!is_near(rank)) continue;
    const Entry& entry = entries[static_cast<std::size_t>(rank)];
    if (!dial(rank, entry, Purpose::control)) return false;
    // The engine's lines come before the connection for frames, by which peers know that this
    // rank is there.
    if (line[static_cast<std::size_t>(rank)]) {
      if (!dial(rank, entry, Purpose::engine)) return false;
      if (lines_->expected(rank) > 1 && !dial(rank, entry, Purpose::addresses)) return false;
    }
    if (!dial(rank, entry, Purpose::data)) return false;
  }
  return true;
}

// Until this rank leaves.
void Mesh::dial_wanted(WantedConnections& all, const std::vector<Entry>& entries) {
  while (auto wanted = all.next()) {
    const int rank = wanted->rank;
    if (is_made(rank, wanted->purpose)) continue;
    if (losses_.has(rank)) {
      if (wanted->purpose == Purpose::engine) lines_->refuse(rank);
      continue;
    }
    if (!try_wanted(&*wanted, entries[static_cast<std::size_t>(rank)])) all.again(*wanted);
  }
}

bool Mesh::is_made(int rank, Purpose purpose) {
  if (purpose == Purpose::engine) return lines_->find(rank) != nullptr;
  if (purpose == Purpose::addresses) return lines_->is_whole(rank);
  return has_data(rank);
}

// Calls the rank once, or asks it to call. True: it is not to be called again.
bool Mesh::try_wanted(WantedConnections::Wanted* wanted, const Entry& entry) {
  const int rank = wanted->rank;
  const std::string text(entry.endpoint, strnlen(entry.endpoint, sizeof entry.endpoint));
  Endpoint endpoint;
  Status status = parse_endpoint(text, &endpoint);
  if (!status.ok()) return fail(status), true;
  HandshakeTerms terms;
  const bool asks = rank > me_;
  terms.purpose = !asks                                ? wanted->purpose
                  : wanted->purpose == Purpose::engine ? Purpose::ask_engine
                                                       : Purpose::ask_data;
  terms.rank = me_;
  terms.peer = rank;
  terms.job = job_of(options_.place.name, entry.nonce);
  const int doubled = std::min(wanted->attempts++, 6);
  Socket socket;
  SessionKeys keys;
  status = failpoint("mesh", "before_dial");
  const bool of_lines = wanted->purpose == Purpose::addresses;
  const std::uint64_t call_ns =
      of_lines ? kFirstCallNs : std::min(kCallNs, kFirstCallNs << doubled);
  if (status.ok()) {
    Socket made;
    status = connect_to(endpoint, Deadline::after(call_ns), stop_, &made);
    if (status.ok()) {
      status = shake_hands(std::move(made), "rank " + std::to_string(rank) + " at " + text,
                           options_.token, terms, handshake_deadlines(call_ns, n_), stop_, &socket,
                           &keys);
    }
  }
  const bool answers = status.ok();  // at its first address: one of a further line tells of no end
  if (answers && of_lines) status = make_further_lines(rank, entry, socket, call_ns);
  if (status.ok()) status = failpoint("mesh", "before_adopt");
  if (status.ok()) {
    if (!asks) return adopt(rank, wanted->purpose, std::move(socket), keys), true;
    wanted->refusals = 0;
    wanted->due_ns = now_ns() + kAskAgainNs;
    return false;
  }
  if (stop_.load(std::memory_order_acquire)) return true;
  const int error_number = failed_with(status);
  if (error_number == EMFILE || error_number == ENFILE) {
    FailureDetails details;
    details.blamed = {me_};
    details.system_error = error_number;
    return fail(Status::failure(status.code(), status.message()).with_details(details)), true;
  }
  // It listens until it leaves or ends. Its port may belong to another process by then.
  const bool refuses = status.code() == TRIREME_ERROR_AUTHENTICATION ||
                       status.code() == TRIREME_ERROR_MISMATCH || error_number == ECONNREFUSED;
  wanted->refusals = refuses && !answers ? wanted->refusals + 1 : 0;
  if (wanted->refusals >= kMostRefusals) {
    lose(rank, "no connection could be made: " + status.message());
    if (wanted->purpose == Purpose::engine) lines_->refuse(rank);
    return true;
  }
  if (of_lines && wanted->attempts == kTriesOfLines) {
    log_line(TRIREME_LOG_WARNING,
             name_ + ": " + status.message() + ". Its first line carries all bytes meanwhile");
  }
  const std::uint64_t longest_ns = of_lines ? kLongestLinePauseNs : kLongestPauseNs;
  wanted->due_ns = now_ns() + std::min(longest_ns, kFirstPauseNs << std::min(wanted->attempts, 9));
  return false;
}

void Mesh::join() noexcept {
  try {
    std::vector<Entry> entries;
    const Status met = n_ > 1 ? meeting_->attend(stop_, &entries) : Status::success();
    if (!met.ok() && met.code() != TRIREME_ERROR_CANCELLED) fail(met);
    if (n_ == 1) entries.push_back(own_);
    if (met.ok() && same_terms(entries)) {
      expect_lines(entries, me_, lines_.get());
      std::vector<bool> line(entries.size());
      if (options_.line_peers != nullptr) {
        std::vector<int> wanted;
        const Status status = options_.line_peers(entries, &wanted);
        if (!status.ok()) fail(status);
        for (const int rank : wanted) line[static_cast<std::size_t>(rank)] = true;
      }
      met_.store(true, std::memory_order_release);
      news_.wake();
      waker_.wake();
      if (dial_near(entries, line) && options_.few_connections) {
        waker_.wake();  // all may be in
        if (entrances_->count() > 1) {
          ++joiners_;
          const Status started = start_thread([mesh = shared_from_this(), entries] {
            try {
              mesh->dial_wanted(mesh->wanted_.lines, entries);
            } catch (...) {
              // Short enough to need no memory.
              mesh->fail(Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "out of memory"));
            }
            --mesh->joiners_;
            mesh->waker_.wake();
          });
          if (!started.ok()) --joiners_, fail(started);
        }
        dial_wanted(wanted_.connections, entries);
      }
    }
  } catch (...) {
    fail(Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "out of memory"));
  }
  --joiners_;
  waker_.wake();
}

// Whether this rank waits for such a connection. Only the watching thread asks, and then adopts it.
bool Mesh::wants(int rank, Purpose purpose) {
  if (rank <= me_ || rank >= n_) return false;
  const auto at = static_cast<std::size_t>(rank);
  if (purpose == Purpose::control) return is_near(rank) && !signs_.has(rank);
  const int line = line_of(purpose);
  if (line >= 0) return lines_ != nullptr && lines_->find(rank, line) == nullptr;
  const std::lock_guard lock(peers_[at]->mutex);
  return !peers_[at]->data;
}

// A caller has proved itself.
void Mesh::enter(int rank, Purpose purpose, Socket socket, const SessionKeys& keys) {
  if (purpose == Purpose::addresses) return entrances_->tell(socket);
  if (purpose != Purpose::ask_data && purpose != Purpose::ask_engine) {
    if (wants(rank, purpose)) adopt(rank, purpose, std::move(socket), keys);
    return;
  }
  if (rank < 0 || rank >= me_ || is_near(rank)) return;
  if (purpose == Purpose::ask_engine && lines_ == nullptr) return;
  wanted_.connections.add(rank, purpose == Purpose::ask_data ? Purpose::data : Purpose::engine);
}

void Mesh::adopt(int rank, Purpose purpose, Socket socket, const SessionKeys& keys) {
  if (purpose == Purpose::addresses) return;  // it has done its work
  const int line = line_of(purpose);
  const auto at = static_cast<std::size_t>(rank);
  // A peer reads no bytes of an engine while it computes: its full window is no silence. The signs
  // of life tell of a peer that is gone.
  socket.tune(line >= 0 ? 0 : options_.place.silence_ns);
  if (purpose == Purpose::control) {
    signs_.add(rank, std::move(socket));
    return;
  }
  if (line >= 0) {
    socket.keep_alive(period_of(kIdleNs, n_, kLongestIdleNs));
    static_cast<void>(lines_->add(rank, std::move(socket), keys, line));
    // In a large group a rank makes the first line when it is needed, and then the others.
    const bool is_needed = line == 0 && !is_near(rank) && rank < me_;
    if (is_needed && lines_->expected(rank) > 1) wanted_.lines.add(rank, Purpose::addresses);
    return note_connected(rank);
  }
  // It has no signs of life.
  if (!is_near(rank)) socket.keep_alive(period_of(kIdleNs, n_, kLongestIdleNs));
  note_connected(rank);
  Peer& peer = *peers_[at];
  const std::lock_guard lock(peer.mutex);
  peer.sent = Seal(keys.send);
  peer.received = Seal(keys.receive);
  peer.data = std::move(socket);
  Endpoint there;
  there.length = sizeof there.address;
  if (getpeername(peer.data.get(), reinterpret_cast<sockaddr*>(&there.address), &there.length) ==
      0) {
    losses_.set_place(rank, there.text());
  }
  epoll_event event{EPOLLIN, {.u32 = static_cast<std::uint32_t>(rank)}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, peer.data.get(), &event) != 0) {
    lose(rank, Status::system(errno, "its connection cannot be watched").message());
  }
  has_new_.store(true);
  news_.wake();
}

void Mesh::note_connected(int rank) {
  const std::lock_guard lock(connected_mutex_);
  connected_.add(rank);
}

RankSet Mesh::connected() {
  const std::lock_guard lock(connected_mutex_);
  return connected_;
}

}  // namespace trireme::tcp
