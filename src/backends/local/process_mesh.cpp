#include "backends/local/process_mesh.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <thread>

#include "net/unix_socket.hpp"
#include "platform/death_word.hpp"
#include "platform/descriptors.hpp"
#include "platform/failpoint.hpp"
#include "platform/log.hpp"
#include "platform/system.hpp"
#include "platform/thread.hpp"

namespace trireme::local {
namespace {

// The longest wait of a failed call for the mesh's thread, which tells the peers. That thread waits
// for no peer, so it is late only where it gets no processor. The first call that gives up ends the
// wait of all later ones.
constexpr std::uint64_t kSpreadNs = 2'000 * kMillisecond;
constexpr std::uint64_t kFirstBackoff = 1 * kMillisecond;
constexpr std::uint64_t kLongestBackoff = 20 * kMillisecond;
constexpr std::uint64_t kLongestDeath = 1'000 * kMillisecond;
constexpr std::uint64_t kStrangerTime = 5'000 * kMillisecond;
constexpr std::uint64_t kRefusedTime = 500 * kMillisecond;
constexpr std::uint64_t kNoDescriptorsTime = 50 * kMillisecond;
constexpr std::uint64_t kForeignPause = 1 * kMillisecond;
constexpr int kMostCallers = 32;  // accepted before peers are served again
constexpr std::size_t kMostUnauthenticated =
    64;  // descriptors belong to the host program; the rest is retried

void close_descriptor(int* descriptor) {
  if (*descriptor >= 0) system_table().close(*descriptor);
  *descriptor = -1;
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

Status blame(trireme_status code, std::string text, int rank) {
  FailureDetails details;
  details.blamed = {rank};
  return Status::failure(code, std::move(text)).with_details(std::move(details));
}

Status held_by(const PeerCredentials& holder, int rank) {
  return blame(TRIREME_ERROR_AUTHENTICATION,
               "the place of " + rank_text(rank) + " is held by user " +
                   std::to_string(holder.uid) + " (process " + std::to_string(holder.pid) +
                   "), not " + std::to_string(geteuid()),
               rank);
}

// Whether bytes are left to read before the end.
bool says_more(int socket) {
  char byte = 0;
  return ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

// The process that listens under the name; false if there is none, or too many call there.
bool peer_at(const std::string& name, PeerCredentials* out) {
  int socket = connect_abstract(name);
  const bool known = socket >= 0 && peer_credentials(socket, out);
  close_descriptor(&socket);
  return known;
}

}  // namespace

ProcessMesh::ProcessMesh(const std::string& group_name, std::shared_ptr<const Token> token,
                         Group& group, std::shared_ptr<Buffers> buffers)
    : greetings_(group_name, std::move(token), group.rank(), group.world_size()),
      group_(group),
      buffers_(std::move(buffers)),
      layout_(group.world_size(), group.world_size() > 1),
      links_(static_cast<std::size_t>(group.world_size())) {}

ProcessMesh::~ProcessMesh() {
  buffers_->set_sink({});
  group_.failure().on_record(nullptr);
  group_.deaths().on_death(nullptr);
  if (started_) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    std::unique_lock lock(exit_->mutex);
    exit_->gone.wait(lock, [this] { return exit_->done; });
  }
  close_all();
  close_descriptor(&wake_);
}

Status ProcessMesh::claim() {
  // A dying process keeps its name while the kernel frees its memory.
  const Deadline backoff = Deadline::after(kLongestDeath);
  for (;;) {
    listener_ = listen_abstract(greetings_.address(group_.rank()));
    if (listener_ >= 0) return Status::success();
    if (errno != EADDRINUSE) break;
    PeerCredentials holder;
    if (peer_at(greetings_.address(group_.rank()), &holder) && holder.uid != geteuid()) {
      return held_by(holder, group_.rank());
    }
    if (backoff.passed()) {
      errno = EADDRINUSE;
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const std::string place = rank_text(group_.rank()) + " of host://" + greetings_.group_name();
  if (errno == EADDRINUSE) return invalid_argument(place + " is taken");
  return Status::system(errno, "the socket of " + place);
}

Status ProcessMesh::start() {
  if (!system_table().random_bytes(&random_, sizeof random_)) {
    return Status::system(errno, "random numbers");
  }
  random_ |= 1;
  if (group_.rank() == 0) {
    segment_file_ = system_table().memory_file("trireme-control", layout_.total_bytes);
    if (segment_file_ < 0) {
      return Status::system(errno, "the control segment of " + std::to_string(layout_.total_bytes) +
                                       " bytes of host://" + greetings_.group_name());
    }
    TRIREME_RETURN_IF_ERROR(attach(segment_file_));
  }
  if (group_.world_size() == 1) return Status::success();
  wake_ = system_table().event_fd();
  if (wake_ < 0) return Status::system(errno, "an eventfd");
  const auto request = [this](Packet::Type type, std::uint64_t id) {
    Packet wanted = greetings_.packet(type);
    wanted.id = id;
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(wanted);
    }
    wake();
  };
  buffers_->set_sink({[request](std::uint64_t id) { request(Packet::buffer, id); },
                      [request](std::uint64_t id) { request(Packet::drop, id); }});
  group_.failure().on_record([request] { request(Packet::failure, 0); });
  group_.deaths().on_death([this](int rank) {
    died_[static_cast<unsigned>(rank)].store(true);
    wake();
  });
  const std::shared_ptr<Exit> exit = exit_;
  TRIREME_RETURN_IF_ERROR(start_thread([this, exit]() noexcept {
    try {
      loop();
    } catch (...) {  // out of memory; the record's own text needs none
      FailureRecord record{};
      record.code = TRIREME_ERROR_OUT_OF_MEMORY;
      std::snprintf(record.text, sizeof record.text, "rank %d has no memory left to hear its peers",
                    group_.rank());
      record.blamed[group_.rank() / 64] |= 1ull << (group_.rank() % 64);
      group_.failure().tell(record);
    }
    close_all();
    const std::lock_guard lock(exit->mutex);
    exit->done = true;
    exit->gone.notify_all();
  }));
  started_ = true;
  return Status::success();
}

// A caller that gets the failure may end at once, whichever thread has found it. Peers that do not
// know the failure by then would blame this rank. Ranks that map the segment find the failure
// there.
void ProcessMesh::spread_failure() noexcept {
  bool all_map = true;
  for (int rank = 0; all_map && rank < group_.world_size(); ++rank) {
    all_map = group_.presence().joined(rank);
  }
  if (all_map || !started_) return;
  std::unique_lock lock(exit_->mutex);
  if (exit_->thread == std::this_thread::get_id()) return;
  wait_until(exit_->gone, lock, Deadline::after(kSpreadNs),
             [this] { return exit_->told || exit_->done; });
  exit_->told = true;
}

void ProcessMesh::wake() {
  const std::uint64_t one = 1;
  // A full pipe means that the thread is awake already.
  while (::write(wake_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

std::vector<std::int32_t> ProcessMesh::stopped() const {
  std::vector<std::int32_t> ranks;
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    const int process = processes_[static_cast<unsigned>(rank)].load(std::memory_order_relaxed);
    if (process > 0 && process_stands_still(process)) ranks.push_back(rank);
  }
  return ranks;
}

bool ProcessMesh::complete() const {
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    if (!joined(rank)) return false;
  }
  return true;
}

// Maps the segment. Reading a file that could still shrink, or is too small, would raise SIGBUS
// later.
Status ProcessMesh::attach(int descriptor) {
  struct stat file {};
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(descriptor, &file) != 0 ||
      static_cast<std::uint64_t>(file.st_size) < layout_.total_bytes) {
    return blame(TRIREME_ERROR_CORRUPT, "rank 0 passed something that is no control segment", 0);
  }
  void* const base = system_table().map(descriptor, layout_.total_bytes);
  if (base == nullptr) return Status::system(errno, "mapping the control segment");
  const std::uint64_t bytes = layout_.total_bytes;
  std::shared_ptr<void> owner(base,
                              [bytes](void* address) { system_table().unmap(address, bytes); });
  group_.attach(Segment(base, layout_), std::move(owner));
  group_.presence().mark_joined();
  joined_[static_cast<unsigned>(group_.rank())].store(true, std::memory_order_release);
  group_.bells().ring(group_.bells().private_bell());
  return Status::success();
}

void ProcessMesh::loop() {
  {
    const std::lock_guard lock(exit_->mutex);
    exit_->thread = std::this_thread::get_id();
  }
  for (int rank = 0; rank < group_.rank(); ++rank) link(rank).backoff_ns = kFirstBackoff;
  DeathWord life;  // the peers look at it while they wait
  while (true) {
    const Segment* const shared = group_.segment();
    if (!life.held() && shared != nullptr) life.hold(&shared->member(group_.rank()).life);
    const bool stops = take_requests();
    // A failure of this point has no effect; it is for sleep.
    static_cast<void>(failpoint("join", "after_requests").ok());
    reap();
    if (stops) break;
    connect_peers();
    for (int rank = 0; rank < group_.world_size(); ++rank) flush(rank);
    if (exit_->telling) {
      const std::lock_guard lock(exit_->mutex);
      if (!exit_->told) exit_->gone.notify_all();
      exit_->told = true;
    }
    wait_for_events();
  }
  // Best effort: the mark in the segment tells the same.
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    report(link(rank), greetings_.packet(Packet::leave));
    flush(rank);
  }
}

// Returns whether this rank leaves. The peers get all requests from before that.
bool ProcessMesh::take_requests() {
  std::vector<Packet> requests;
  bool stops = false;
  {
    const std::lock_guard lock(mutex_);
    requests.swap(requests_);
    stops = stopping_;
  }
  for (Packet& request : requests) {
    if (request.type == Packet::buffer) announced_.insert(request.id);
    if (request.type == Packet::drop) announced_.erase(request.id);
    if (request.type == Packet::failure) {
      // A failure of this point has no effect; it is for sleep.
      static_cast<void>(failpoint("join", "before_spread").ok());
      request.record = group_.failure().own_record();
      exit_->telling = true;
    }
    for (Link& each : links_) report(each, request);
  }
  return stops;
}

// A dead peer's last packets are handled before its end.
void ProcessMesh::reap() {
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    std::atomic<bool>& died = died_[static_cast<unsigned>(rank)];
    if (!died.load(std::memory_order_acquire)) continue;
    if (link(rank).socket >= 0)
      receive_from_peer(rank);  // its answer to a greeting may lie there, too
    if (link(rank).state == State::established) closed(rank);
    if (link(rank).state == State::closed) died.store(false, std::memory_order_relaxed);
  }
}

void ProcessMesh::tell_failure(Link& peer) {
  Packet news = greetings_.packet(Packet::failure);
  news.record = group_.failure().own_record();
  if (news.record.code != 0) report(peer, news);
}

// A peer that has not answered yet may already count this rank as joined. It must learn of a
// failure and of leaving, or it would take the end of the socket for a death. It learns of buffers
// when it has answered.
void ProcessMesh::report(Link& peer, const Packet& news) {
  if (peer.state == State::established) {
    peer.outbox.push_back({news, -1});
  } else if (peer.state == State::greeting &&
             (news.type == Packet::failure || news.type == Packet::leave)) {
    static_cast<void>(send_packet(peer.socket, &news, sizeof news, -1));
  }
}

void ProcessMesh::wait_for_events() {
  std::vector<pollfd> watched;
  watched.push_back({wake_, POLLIN, 0});
  const bool accepts = accept_again_at_ <= now_ns();
  watched.push_back({accepts ? listener_ : -1, POLLIN, 0});
  for (const Unauthenticated& newcomer : unauthenticated_)
    watched.push_back({newcomer.socket, POLLIN, 0});
  std::uint64_t next = accepts ? UINT64_MAX : accept_again_at_;  // when something is due
  for (const Unauthenticated& newcomer : unauthenticated_)
    next = std::min(next, newcomer.expires_at);
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    Link& each = link(rank);
    watched.push_back({each.socket, POLLIN, 0});  // negative ones are skipped
    watched.push_back({each.process, POLLIN, 0});
    if (each.state == State::absent && rank < group_.rank()) next = std::min(next, each.retry_at);
    // POLLOUT would not help: the limit may concern descriptors in flight, not this socket.
    if (each.blocked) next = std::min(next, now_ns() + kMillisecond);
  }
  int timeout = -1;
  if (next != UINT64_MAX) {
    const std::uint64_t now = now_ns();
    timeout = next <= now ? 0
                          : static_cast<int>(std::min<std::uint64_t>(
                                (next - now + kMillisecond - 1) / kMillisecond, 60'000));
  }
  if (::poll(watched.data(), watched.size(), timeout) < 0) return;

  std::uint64_t count = 0;
  if (watched[0].revents != 0) static_cast<void>(!::read(wake_, &count, sizeof count));
  const std::size_t first_link = 2 + unauthenticated_.size();
  // A peer that ends without a word may have seen a failure which another peer reports, so it is
  // handled last. All ends are read before any link closes: the number of a closed socket may soon
  // be a descriptor of another thread.
  std::vector<bool> silent(links_.size());
  for (std::size_t rank = 0; rank < links_.size(); ++rank) {
    const pollfd& socket = watched[first_link + rank * 2];
    const pollfd& process = watched[first_link + rank * 2 + 1];
    const bool ends = (socket.revents & POLLHUP) != 0 || process.revents != 0;
    silent[rank] = ends && !says_more(socket.fd);
  }
  for (const bool last : {false, true}) {
    for (int rank = 0; rank < group_.world_size(); ++rank) {
      if (silent[static_cast<std::size_t>(rank)] != last) continue;
      const std::size_t at = first_link + static_cast<std::size_t>(rank) * 2;
      if (watched[at].revents != 0) receive_from_peer(rank);
      if (watched[at + 1].revents != 0 && link(rank).state == State::established) {
        receive_from_peer(rank);  // its last packets are handled before its end
        if (link(rank).state == State::established) closed(rank);
      }
    }
  }
  std::vector<Unauthenticated> stay;
  const std::uint64_t now = now_ns();
  for (std::size_t i = 0; i < unauthenticated_.size(); ++i) {
    const bool spoke = watched[2 + i].revents != 0;
    if (spoke ? receive_unauthenticated(unauthenticated_[i])
              : unauthenticated_[i].expires_at > now) {
      stay.push_back(unauthenticated_[i]);
    } else {
      close_descriptor(&unauthenticated_[i].socket);
    }
  }
  unauthenticated_ = std::move(stay);
  if (watched[1].revents != 0) accept_unauthenticated();
}

void ProcessMesh::accept_unauthenticated() {
  int unwelcome = 0;
  for (int turn = 0; turn < kMostCallers; ++turn) {
    const int socket =
        system_table().accept(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      note_refusal(errno == EAGAIN ? 0 : errno);  // 0: the queue is empty
      if (errno != EAGAIN) {
        // Without a free descriptor callers wait in the queue, and must not keep this thread busy.
        accept_again_at_ = now_ns() + kNoDescriptorsTime;
      }
      break;
    }
    note_refusal(0);
    PeerCredentials credentials;
    const bool welcome = peer_credentials(socket, &credentials) && credentials.uid == geteuid() &&
                         unauthenticated_.size() < kMostUnauthenticated;
    if (welcome) {
      unauthenticated_.push_back({socket, now_ns() + kStrangerTime});
    } else {
      system_table().close(socket);
      ++unwelcome;
    }
  }
  // The name is open to all users of the host. A stream of callers takes only a part of this
  // thread's time, and peers are served in between.
  if (unwelcome > 0) accept_again_at_ = now_ns() + kForeignPause;
}

// The group goes on to wait for a rank that knows the token.
void ProcessMesh::refuse_token(const Unauthenticated& newcomer, const Packet& theirs) {
  if (falls_apart()) return;  // it may be of the next run
  Packet answer = greetings_.packet(Packet::other_token);
  answer.nonce = theirs.nonce;
  static_cast<void>(send_packet(newcomer.socket, &answer, sizeof answer, -1));
  const bool is_rank = theirs.rank >= 0 && theirs.rank < group_.world_size();
  if (!is_rank || joined(theirs.rank)) return;
  if (foreign_[static_cast<unsigned>(theirs.rank)].exchange(true)) return;
  if (!log_wanted(TRIREME_LOG_WARNING)) return;
  log_line(TRIREME_LOG_WARNING, rank_text(group_.rank()) + " of \"" + group_.name() +
                                    "\": a process that says it is " + rank_text(theirs.rank) +
                                    " has another token and was sent away");
}

bool ProcessMesh::receive_unauthenticated(Unauthenticated& newcomer) {
  Packet theirs;
  std::size_t bytes = 0;
  int descriptor = -1;
  const SocketResult result =
      receive_packet(newcomer.socket, &theirs, sizeof theirs, &bytes, &descriptor);
  close_descriptor(&descriptor);  // a hello brings none
  if (result == SocketResult::again) return true;
  if (result != SocketResult::done || bytes != sizeof theirs || theirs.magic != Packet::kMagic ||
      theirs.type != Packet::hello) {
    return false;
  }
  if (!greetings_.same_token(theirs, false)) {
    refuse_token(newcomer, theirs);
  } else if (!complete()) {
    greet_back(newcomer, theirs);
  } else if (!falls_apart()) {
    refuse(newcomer, theirs);
  }
  return false;
}

// Whether an unauthenticated peer may belong to the next run of the same name. That run begins as
// soon as one rank of this run has gone: it tries again.
bool ProcessMesh::falls_apart() const {
  if (group_.failure().happened()) return true;
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    if (group_.presence().left(rank) || group_.presence().lost(rank)) return true;
  }
  return false;
}

// A caller that never fits into this group is told why. The group itself is whole and goes on.
void ProcessMesh::refuse(const Unauthenticated& newcomer, const Packet& theirs) const {
  if (greetings_.check_same(theirs).ok()) return;
  const Packet answer = greetings_.answer(theirs.nonce);
  static_cast<void>(send_packet(newcomer.socket, &answer, sizeof answer, -1));
}

void ProcessMesh::greet_back(Unauthenticated& newcomer, const Packet& theirs) {
  const Status same = greetings_.check_same(theirs);
  const bool placed = theirs.rank > group_.rank() && theirs.rank < group_.world_size() &&
                      link(theirs.rank).state == State::absent;
  if (same.ok() && !placed) return;
  Status status = failpoint("join", "before_hello");
  if (!status.ok()) return group_.failure().tell(status);
  const Packet answer = greetings_.answer(theirs.nonce);
  if (!same.ok()) {  // so that the other side can name both values, too
    static_cast<void>(send_packet(newcomer.socket, &answer, sizeof answer, -1));
    return group_.failure().tell(same);
  }
  const int socket = newcomer.socket;
  newcomer.socket = -1;
  link(theirs.rank).outbox.push_back({answer, segment_file_});
  establish(theirs.rank, socket);
  status = failpoint("join", "after_hello");
  if (!status.ok()) group_.failure().tell(status);
}

void ProcessMesh::connect_peers() {
  const std::uint64_t now = now_ns();
  for (int rank = 0; rank < group_.rank(); ++rank) {
    Link& each = link(rank);
    if (each.state != State::absent || each.retry_at > now) continue;
    each.socket = connect_abstract(greetings_.address(rank));
    if (each.socket < 0) {
      if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) {
        retry(rank);
        continue;
      }
      const Status status = own_failure(errno, "connecting to " + rank_text(rank));
      each.state = State::closed;
      group_.failure().tell(status);
      continue;
    }
    PeerCredentials credentials;
    if (!peer_credentials(each.socket, &credentials) || credentials.uid != geteuid()) {
      close_descriptor(&each.socket);
      each.state = State::closed;
      group_.failure().tell(held_by(credentials, rank));
      continue;
    }
    Status status = failpoint("join", "before_hello");
    if (!status.ok()) group_.failure().tell(status);
    if (!system_table().random_bytes(&each.nonce, sizeof each.nonce)) each.nonce = random_++;
    const Packet greeting = greetings_.hello(each.nonce);
    if (send_packet(each.socket, &greeting, sizeof greeting, -1) != SocketResult::done) {
      retry(rank);
      continue;
    }
    each.state = State::greeting;
    tell_failure(each);  // if there was one before this peer was met
    status = failpoint("join", "after_hello");
    if (!status.ok()) group_.failure().tell(status);
  }
}

void ProcessMesh::retry(int rank) {
  Link& each = link(rank);
  close_descriptor(&each.socket);
  each.state = State::absent;
  // Jitter, so that many ranks do not call at one moment.
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  each.retry_at = now_ns() + each.backoff_ns / 2 + (random_ >> 33) % each.backoff_ns;
  each.backoff_ns = std::min(each.backoff_ns * 2, kLongestBackoff);
}

void ProcessMesh::establish(int rank, int socket) {
  Link& each = link(rank);
  each.socket = socket;
  each.state = State::established;
  PeerCredentials credentials;
  if (peer_credentials(socket, &credentials)) {
    each.process = open_process(credentials.pid);
    processes_[static_cast<unsigned>(rank)].store(credentials.pid, std::memory_order_relaxed);
  }
  for (const std::uint64_t id : announced_) {
    Packet known = greetings_.packet(Packet::buffer);
    known.id = id;
    each.outbox.push_back({known, -1});
  }
  tell_failure(each);
  flush(rank);
  joined_[static_cast<unsigned>(rank)].store(true, std::memory_order_release);
  group_.bells().ring(group_.bells().private_bell());
}

void ProcessMesh::receive_from_peer(int rank) {
  Link& each = link(rank);
  while (each.socket >= 0) {
    Packet packet;
    std::size_t bytes = 0;
    int descriptor = -1;
    switch (receive_packet(each.socket, &packet, sizeof packet, &bytes, &descriptor)) {
      case SocketResult::again: return;
      case SocketResult::done: break;
      case SocketResult::refused:
        // The packet is gone, and the peer is not at fault.
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
          return group_.failure().tell(own_failure(errno, "taking a buffer of " + rank_text(rank)));
        }
        [[fallthrough]];
      default: return closed(rank);
    }
    const bool sound = bytes == sizeof packet && packet.magic == Packet::kMagic;
    if (!sound) {
      close_descriptor(&descriptor);
      if (each.state == State::greeting) return retry(rank);
      group_.failure().tell(blame(TRIREME_ERROR_CORRUPT,
                                  rank_text(rank) + " sent something else than a packet", rank));
      return closed(rank);
    }
    if (each.state == State::greeting) {
      receive_answer(rank, packet, descriptor);
    } else {
      handle(rank, packet, descriptor);
    }
  }
}

// Rank 0 has the job's token, so a rank with another token is wrong. Between two other ranks it is
// unknown which one is wrong, so this one waits for the other to be replaced. Rank 0 may belong to
// a run that ends, so this rank asks it again for a while.
void ProcessMesh::hear_other_token(int rank) {
  Link& each = link(rank);
  foreign_[static_cast<unsigned>(rank)].store(true, std::memory_order_release);
  if (rank > 0) return retry(rank);
  const std::uint64_t now = now_ns();
  if (each.refused_at == 0) each.refused_at = now;
  if (now - each.refused_at < kRefusedTime) return retry(rank);
  close_descriptor(&each.socket);
  each.state = State::closed;
  group_.failure().tell(blame(TRIREME_ERROR_AUTHENTICATION,
                              rank_text(group_.rank()) + " has another token than " +
                                  rank_text(rank) + " of host://" + greetings_.group_name() +
                                  ", or one of the two has none: give both the job's token",
                              rank));
}

void ProcessMesh::receive_answer(int rank, const Packet& packet, int descriptor) {
  Link& each = link(rank);
  const bool mine = packet.nonce == each.nonce && packet.rank == rank;
  const bool greets = mine && packet.type == Packet::hello;
  if ((mine && packet.type == Packet::other_token) ||
      (greets && !greetings_.same_token(packet, true))) {
    close_descriptor(&descriptor);
    return hear_other_token(rank);
  }
  Status status =
      greets ? greetings_.check_same(packet)
             : blame(TRIREME_ERROR_CORRUPT, rank_text(rank) + " sent a wrong answer", rank);
  if (status.ok() && rank == 0) status = attach(descriptor);
  close_descriptor(&descriptor);
  if (!status.ok()) {
    close_descriptor(&each.socket);
    each.state = State::closed;
    return group_.failure().tell(status);
  }
  establish(rank, each.socket);
}

void ProcessMesh::handle(int rank, const Packet& packet, int descriptor) {
  switch (packet.type) {
    case Packet::buffer:
      if (descriptor >= 0) {
        const Status status = buffers_->add_peer_buffer(rank, packet.id, packet.bytes, descriptor);
        if (!status.ok()) group_.failure().tell(status);
        return;
      }
      break;
    case Packet::drop: buffers_->drop_peer_buffer(rank, packet.id); break;
    case Packet::failure: group_.failure().tell(packet.record); break;
    case Packet::leave: group_.presence().mark_left(rank); break;
    default:  // nothing this version sends
      break;
  }
  close_descriptor(&descriptor);
}

// The failure when the system refuses a resource to this rank.
Status ProcessMesh::own_failure(int error_number, const std::string& what) const {
  Status status = Status::system(error_number, rank_text(group_.rank()) + ", " + what);
  FailureDetails details = *status.details();
  details.blamed = {group_.rank()};
  return std::move(status).with_details(std::move(details));
}

// The other end of a socket is gone, or is about to go.
void ProcessMesh::closed(int rank) {
  Link& each = link(rank);
  if (each.state == State::greeting) return retry(rank);  // it left, or was of another run
  close_descriptor(&each.socket);
  close_descriptor(&each.process);
  each.outbox.clear();
  each.blocked = false;
  each.state = State::closed;
  group_.presence().mark_lost(rank);
  if (group_.presence().left(rank)) return;
  group_.presence().give_up(rank);
  group_.failure().tell(blame(TRIREME_ERROR_PEER_LOST, rank_text(rank) + " was lost", rank));
}

void ProcessMesh::flush(int rank) {
  Link& each = link(rank);
  if (each.state != State::established) return;
  each.blocked = false;
  while (!each.outbox.empty()) {
    Outgoing& next = each.outbox.front();
    int descriptor = next.descriptor;
    std::shared_ptr<OwnBuffer> buffer;
    if (next.packet.type == Packet::buffer) {
      buffer = buffers_->find(next.packet.id);
      if (buffer == nullptr) {  // freed before the peer was told
        each.outbox.pop_front();
        continue;
      }
      next.packet.bytes = buffer->mapped_bytes();
      descriptor = buffer->descriptor();
    }
    switch (send_packet(each.socket, &next.packet, sizeof next.packet, descriptor)) {
      case SocketResult::done: each.outbox.pop_front(); continue;
      case SocketResult::again: each.blocked = true; return;
      case SocketResult::closed:  // its end is read from the socket, after its last packets
        each.outbox.clear();
        return;
      case SocketResult::refused:
        group_.failure().tell(Status::system(errno, "sending to " + rank_text(rank)));
        each.outbox.clear();
        return;
    }
  }
}

void ProcessMesh::close_all() {
  close_descriptor(&listener_);
  close_descriptor(&segment_file_);
  for (Unauthenticated& newcomer : unauthenticated_) close_descriptor(&newcomer.socket);
  unauthenticated_.clear();
  for (Link& each : links_) {
    close_descriptor(&each.socket);
    close_descriptor(&each.process);
    each.state = State::closed;
  }
}

}  // namespace trireme::local
