#include "backends/local/liaison.hpp"

#include <fcntl.h>
#include <poll.h>
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

constexpr std::uint64_t kFirstBackoff = 1 * kMillisecond;
constexpr std::uint64_t kLongestBackoff = 20 * kMillisecond;
constexpr std::uint64_t kLongestDeath = 1'000 * kMillisecond;
constexpr std::uint64_t kStrangerTime = 5'000 * kMillisecond;
constexpr std::uint64_t kRefusedTime = 500 * kMillisecond;
constexpr std::uint64_t kNoDescriptorsTime = 50 * kMillisecond;
constexpr std::uint64_t kForeignPause = 1 * kMillisecond;
constexpr int kMostCallers = 32;  // taken in before peers are heard again
constexpr std::size_t kMostStrangers = 64;  // descriptors are the host program's; the rest comes again
constexpr std::size_t kLongestName = 64;  // of a group in an address as it is; longer ones are hashed

void close_descriptor(int* descriptor) {
  if (*descriptor >= 0) system_table().close(*descriptor);
  *descriptor = -1;
}

std::uint64_t hash_text(const std::string& text, std::uint64_t hash) {
  for (const char character : text) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3u;
  }
  return hash;
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

Status blame(trireme_status code, std::string text, int rank) {
  FailureDetails details;
  details.blamed = {rank};
  return Status::failure(code, std::move(text)).with_details(std::move(details));
}

Status held_by(const PeerCredentials& holder, int rank) {
  return blame(TRIREME_ERROR_AUTHENTICATION,
               "the place of " + rank_text(rank) + " is held by user " + std::to_string(holder.uid) +
                   " (process " + std::to_string(holder.pid) + "), not " + std::to_string(geteuid()),
               rank);
}

// Who listens under the name; false if nobody does, or too many call there.
bool peer_at(const std::string& name, PeerCredentials* out) {
  int socket = connect_abstract(name);
  const bool known = socket >= 0 && peer_credentials(socket, out);
  close_descriptor(&socket);
  return known;
}

}  // namespace

Liaison::Liaison(const std::string& group_name, std::shared_ptr<const Token> token, Group& group,
                 std::shared_ptr<Buffers> buffers)
    : group_name_(group_name),
      token_(std::move(token)),
      group_(group),
      buffers_(std::move(buffers)),
      layout_(group.world_size(), group.world_size() > 1),
      links_(static_cast<std::size_t>(group.world_size())) {}

Liaison::~Liaison() {
  buffers_->set_sink({});
  group_.on_failure(nullptr);
  group_.on_death(nullptr);
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

std::string Liaison::address(int rank) const {
  std::string name = group_name_;
  if (name.size() > kLongestName) {
    char text[40];
    std::snprintf(text, sizeof text, "%016llx%016llx",
                  static_cast<unsigned long long>(hash_text(name, 0xcbf29ce484222325u)),
                  static_cast<unsigned long long>(hash_text(name, 0x9e3779b97f4a7c15u)));
    name = text;
  }
  return "trireme/" + std::to_string(geteuid()) + "/" + name + "/" + std::to_string(rank);
}

Status Liaison::claim() {
  // A dying process has its name for as long as it gives back its memory.
  const Deadline patience = Deadline::after(kLongestDeath);
  for (;;) {
    listener_ = listen_abstract(address(group_.rank()));
    if (listener_ >= 0) return Status::success();
    if (errno != EADDRINUSE) break;
    PeerCredentials holder;
    if (peer_at(address(group_.rank()), &holder) && holder.uid != geteuid()) {
      return held_by(holder, group_.rank());
    }
    if (patience.passed()) {
      errno = EADDRINUSE;
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const std::string place = rank_text(group_.rank()) + " of host://" + group_name_;
  if (errno == EADDRINUSE) return invalid_argument(place + " is taken");
  return Status::system(errno, "the socket of " + place);
}

Status Liaison::start() {
  if (!system_table().random_bytes(&random_, sizeof random_)) {
    return Status::system(errno, "random numbers");
  }
  random_ |= 1;
  if (group_.rank() == 0) {
    segment_file_ = system_table().memory_file("trireme-control", layout_.total_bytes);
    if (segment_file_ < 0) {
      return Status::system(errno, "the control segment of " + std::to_string(layout_.total_bytes) +
                                       " bytes of host://" + group_name_);
    }
    TRIREME_RETURN_IF_ERROR(attach(segment_file_));
  }
  if (group_.world_size() == 1) return Status::success();
  wake_ = system_table().event_fd();
  if (wake_ < 0) return Status::system(errno, "an eventfd");
  const auto request = [this](Packet::Type type, std::uint64_t id) {
    Packet wanted = packet(type);
    wanted.id = id;
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(wanted);
    }
    wake();
  };
  buffers_->set_sink({[request](std::uint64_t id) { request(Packet::buffer, id); },
                      [request](std::uint64_t id) { request(Packet::drop, id); }});
  group_.on_failure([request] { request(Packet::failure, 0); });
  group_.on_death([this](int rank) {
    died_[static_cast<unsigned>(rank)].store(true);
    wake();
  });
  const std::shared_ptr<Exit> exit = exit_;
  TRIREME_RETURN_IF_ERROR(start_thread([this, exit]() noexcept {
    try {
      loop();
    } catch (...) {  // out of memory; the words of the record need none
      FailureRecord record{};
      record.code = TRIREME_ERROR_OUT_OF_MEMORY;
      std::snprintf(record.text, sizeof record.text, "rank %d has no memory left to hear its peers",
                    group_.rank());
      record.blamed[group_.rank() / 64] |= 1ull << (group_.rank() % 64);
      group_.fail(record);
    }
    close_all();
    const std::lock_guard lock(exit->mutex);
    exit->done = true;
    exit->gone.notify_all();
  }));
  started_ = true;
  return Status::success();
}

void Liaison::wake() {
  const std::uint64_t one = 1;
  // Full means it is awake already.
  while (::write(wake_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

std::vector<std::int32_t> Liaison::stopped() const {
  std::vector<std::int32_t> ranks;
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    const int process = processes_[static_cast<unsigned>(rank)].load(std::memory_order_relaxed);
    if (process > 0 && process_stands_still(process)) ranks.push_back(rank);
  }
  return ranks;
}

Packet Liaison::packet(Packet::Type type) const {
  Packet made;
  made.type = type;
  made.world_size = group_.world_size();
  made.rank = group_.rank();
  return made;
}

bool Liaison::complete() const {
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    if (!joined(rank)) return false;
  }
  return true;
}

// Maps the segment. A file that could still shrink, or is too small, would be a SIGBUS later.
Status Liaison::attach(int descriptor) {
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
  group_.mark_joined();
  joined_[static_cast<unsigned>(group_.rank())].store(true, std::memory_order_release);
  group_.ring(group_.private_bell());
  return Status::success();
}

void Liaison::loop() {
  for (int rank = 0; rank < group_.rank(); ++rank) link(rank).backoff_ns = kFirstBackoff;
  DeathWord life;  // the peers look at it while they wait
  while (true) {
    const Segment* const shared = group_.segment();
    if (!life.held() && shared != nullptr) life.hold(&shared->member(group_.rank()).life);
    take_requests();
    bury();
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    connect_peers();
    for (int rank = 0; rank < group_.world_size(); ++rank) flush(rank);
    wait_for_events();
  }
  // Best effort: the mark in the segment says the same.
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    tell(link(rank), packet(Packet::leave));
    flush(rank);
  }
}

void Liaison::take_requests() {
  std::vector<Packet> requests;
  {
    const std::lock_guard lock(mutex_);
    requests.swap(requests_);
  }
  for (Packet& request : requests) {
    if (request.type == Packet::buffer) announced_.insert(request.id);
    if (request.type == Packet::drop) announced_.erase(request.id);
    if (request.type == Packet::failure) request.record = group_.own_record();
    for (Link& each : links_) tell(each, request);
  }
}

// What a dead peer said last comes before its end.
void Liaison::bury() {
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    std::atomic<bool>& died = died_[static_cast<unsigned>(rank)];
    if (!died.load(std::memory_order_acquire)) continue;
    if (link(rank).socket >= 0) hear_peer(rank);  // its answer to a greeting may lie there, too
    if (link(rank).state == State::established) closed(rank);
    if (link(rank).state == State::closed) died.store(false, std::memory_order_relaxed);
  }
}

void Liaison::tell_failure(Link& peer) {
  Packet news = packet(Packet::failure);
  news.record = group_.own_record();
  if (news.record.code != 0) tell(peer, news);
}

// A peer that has not answered yet may already count this rank as joined: it must hear of a failure and of
// leaving, or it would take the end of the socket for a death. Of buffers it hears when it has answered.
void Liaison::tell(Link& peer, const Packet& news) {
  if (peer.state == State::established) {
    peer.outbox.push_back({news, -1});
  } else if (peer.state == State::greeting &&
             (news.type == Packet::failure || news.type == Packet::leave)) {
    static_cast<void>(send_packet(peer.socket, &news, sizeof news, -1));
  }
}

void Liaison::wait_for_events() {
  std::vector<pollfd> watched;
  watched.push_back({wake_, POLLIN, 0});
  const bool accepts = accept_again_at_ <= now_ns();
  watched.push_back({accepts ? listener_ : -1, POLLIN, 0});
  for (const Stranger& stranger : strangers_) watched.push_back({stranger.socket, POLLIN, 0});
  std::uint64_t next = accepts ? UINT64_MAX : accept_again_at_;  // when something is due
  for (const Stranger& stranger : strangers_) next = std::min(next, stranger.expires_at);
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    Link& each = link(rank);
    watched.push_back({each.socket, POLLIN, 0});  // negative ones are skipped
    watched.push_back({each.process, POLLIN, 0});
    if (each.state == State::absent && rank < group_.rank()) next = std::min(next, each.retry_at);
    // POLLOUT would not do: the limit may be on descriptors in flight, which is not the socket's.
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
  const std::size_t first_link = 2 + strangers_.size();
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    const std::size_t at = first_link + static_cast<std::size_t>(rank) * 2;
    if (watched[at].revents != 0) hear_peer(rank);
    if (watched[at + 1].revents != 0 && link(rank).state == State::established) {
      hear_peer(rank);  // what it said last comes before its end
      if (link(rank).state == State::established) closed(rank);
    }
  }
  std::vector<Stranger> stay;
  const std::uint64_t now = now_ns();
  for (std::size_t i = 0; i < strangers_.size(); ++i) {
    const bool spoke = watched[2 + i].revents != 0;
    if (spoke ? hear_stranger(strangers_[i]) : strangers_[i].expires_at > now) {
      stay.push_back(strangers_[i]);
    } else {
      close_descriptor(&strangers_[i].socket);
    }
  }
  strangers_ = std::move(stay);
  if (watched[1].revents != 0) accept_strangers();
}

void Liaison::accept_strangers() {
  int unwelcome = 0;
  for (int turn = 0; turn < kMostCallers; ++turn) {
    const int socket =
        system_table().accept(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      note_refusal(errno == EAGAIN ? 0 : errno);  // 0: nobody waits
      if (errno != EAGAIN) {
        // Without a descriptor left they wait in the queue, and must not keep this thread busy.
        accept_again_at_ = now_ns() + kNoDescriptorsTime;
      }
      break;
    }
    note_refusal(0);
    PeerCredentials credentials;
    const bool welcome = peer_credentials(socket, &credentials) && credentials.uid == geteuid() &&
                         strangers_.size() < kMostStrangers;
    if (welcome) {
      strangers_.push_back({socket, now_ns() + kStrangerTime});
    } else {
      system_table().close(socket);
      ++unwelcome;
    }
  }
  // The name is open to all users of the host. Whoever calls without end costs a part of this thread's
  // time, and peers are heard in between.
  if (unwelcome > 0) accept_again_at_ = now_ns() + kForeignPause;
}

// The same version and world size, or neither side may go on.
Status Liaison::check_same(const Packet& theirs) const {
  const auto both = [&](const char* what, std::int64_t other, std::int64_t own) {
    const std::string text = rank_text(theirs.rank) + " has " + what + " " + std::to_string(other) +
                             ", " + rank_text(group_.rank()) + " has " + std::to_string(own);
    FailureDetails details;
    if (theirs.rank >= 0 && theirs.rank < group_.world_size()) details.blamed = {theirs.rank};
    return Status::failure(TRIREME_ERROR_MISMATCH, text).with_details(std::move(details));
  };
  if (theirs.version != kLayoutVersion) {
    return both("version", theirs.version, kLayoutVersion);
  }
  if (theirs.world_size != group_.world_size()) {
    return both("world size", theirs.world_size, group_.world_size());
  }
  return Status::success();
}

// Both sides know the name, the ranks and the number that one of them has just drawn.
Digest Liaison::proof(const Packet& hello, bool answers) const {
  if (token_ == nullptr || token_->empty()) return {};
  std::string text = answers ? "trireme host answer" : "trireme host hello";
  for (const std::string& part :
       {group_name_, std::to_string(hello.rank), std::to_string(hello.nonce)}) {
    text.append("\n").append(part);
  }
  return hmac_sha256(token_->secret(), text);
}

bool Liaison::same_token(const Packet& theirs, bool answers) const {
  return same_digest(theirs.proof, proof(theirs, answers));
}

// The group waits on for a rank that knows the token.
void Liaison::refuse_token(const Stranger& stranger, const Packet& theirs) {
  if (falls_apart()) return;  // it may be of the next run
  Packet answer = packet(Packet::other_token);
  answer.nonce = theirs.nonce;
  static_cast<void>(send_packet(stranger.socket, &answer, sizeof answer, -1));
  const bool is_rank = theirs.rank >= 0 && theirs.rank < group_.world_size();
  if (!is_rank || joined(theirs.rank)) return;
  if (foreign_[static_cast<unsigned>(theirs.rank)].exchange(true)) return;
  if (!log_wanted(TRIREME_LOG_WARNING)) return;
  log_line(TRIREME_LOG_WARNING, rank_text(group_.rank()) + " of \"" + group_.name() +
                                    "\": a process that says it is " + rank_text(theirs.rank) +
                                    " has another token and was sent away");
}

bool Liaison::hear_stranger(Stranger& stranger) {
  Packet theirs;
  std::size_t bytes = 0;
  int descriptor = -1;
  const SocketResult result =
      receive_packet(stranger.socket, &theirs, sizeof theirs, &bytes, &descriptor);
  close_descriptor(&descriptor);  // a hello brings none
  if (result == SocketResult::again) return true;
  if (result != SocketResult::done || bytes != sizeof theirs || theirs.magic != Packet::kMagic ||
      theirs.type != Packet::hello) {
    return false;
  }
  if (!same_token(theirs, false)) {
    refuse_token(stranger, theirs);
  } else if (!complete()) {
    greet_back(stranger, theirs);
  } else if (!falls_apart()) {
    refuse(stranger, theirs);
  }
  return false;
}

// Whether a stranger may be of the next run of the same name, which begins as soon as one of this run
// has gone: it tries again.
bool Liaison::falls_apart() const {
  if (group_.failed()) return true;
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    if (group_.left(rank) || group_.lost(rank)) return true;
  }
  return false;
}

// Who never fits into this group hears why. The group, in which all have met, does not care.
void Liaison::refuse(const Stranger& stranger, const Packet& theirs) const {
  if (check_same(theirs).ok()) return;
  Packet answer = packet(Packet::hello);
  answer.nonce = theirs.nonce;
  answer.proof = proof(answer, true);
  static_cast<void>(send_packet(stranger.socket, &answer, sizeof answer, -1));
}

void Liaison::greet_back(Stranger& stranger, const Packet& theirs) {
  const Status same = check_same(theirs);
  const bool placed = theirs.rank > group_.rank() && theirs.rank < group_.world_size() &&
                      link(theirs.rank).state == State::absent;
  if (same.ok() && !placed) return;
  Status status = failpoint("join", "before_hello");
  if (!status.ok()) return group_.fail(status);
  Packet answer = packet(Packet::hello);
  answer.nonce = theirs.nonce;
  answer.proof = proof(answer, true);
  if (!same.ok()) {  // so that the other side can name both values, too
    static_cast<void>(send_packet(stranger.socket, &answer, sizeof answer, -1));
    return group_.fail(same);
  }
  const int socket = stranger.socket;
  stranger.socket = -1;
  link(theirs.rank).outbox.push_back({answer, segment_file_});
  establish(theirs.rank, socket);
  status = failpoint("join", "after_hello");
  if (!status.ok()) group_.fail(status);
}

void Liaison::connect_peers() {
  const std::uint64_t now = now_ns();
  for (int rank = 0; rank < group_.rank(); ++rank) {
    Link& each = link(rank);
    if (each.state != State::absent || each.retry_at > now) continue;
    each.socket = connect_abstract(address(rank));
    if (each.socket < 0) {
      if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) {
        retry(rank);
        continue;
      }
      const Status status = own_failure(errno, "connecting to " + rank_text(rank));
      each.state = State::closed;
      group_.fail(status);
      continue;
    }
    PeerCredentials credentials;
    if (!peer_credentials(each.socket, &credentials) || credentials.uid != geteuid()) {
      close_descriptor(&each.socket);
      each.state = State::closed;
      group_.fail(held_by(credentials, rank));
      continue;
    }
    Status status = failpoint("join", "before_hello");
    if (!status.ok()) group_.fail(status);
    Packet greeting = packet(Packet::hello);
    if (!system_table().random_bytes(&each.nonce, sizeof each.nonce)) each.nonce = random_++;
    greeting.nonce = each.nonce;
    greeting.proof = proof(greeting, false);
    if (send_packet(each.socket, &greeting, sizeof greeting, -1) != SocketResult::done) {
      retry(rank);
      continue;
    }
    each.state = State::greeting;
    tell_failure(each);  // if there has been one before this peer was met
    status = failpoint("join", "after_hello");
    if (!status.ok()) group_.fail(status);
  }
}

void Liaison::retry(int rank) {
  Link& each = link(rank);
  close_descriptor(&each.socket);
  each.state = State::absent;
  // Jitter, so that many ranks do not come at one moment.
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  each.retry_at = now_ns() + each.backoff_ns / 2 + (random_ >> 33) % each.backoff_ns;
  each.backoff_ns = std::min(each.backoff_ns * 2, kLongestBackoff);
}

void Liaison::establish(int rank, int socket) {
  Link& each = link(rank);
  each.socket = socket;
  each.state = State::established;
  PeerCredentials credentials;
  if (peer_credentials(socket, &credentials)) {
    each.process = open_process(credentials.pid);
    processes_[static_cast<unsigned>(rank)].store(credentials.pid, std::memory_order_relaxed);
  }
  for (const std::uint64_t id : announced_) {
    Packet known = packet(Packet::buffer);
    known.id = id;
    each.outbox.push_back({known, -1});
  }
  tell_failure(each);
  flush(rank);
  joined_[static_cast<unsigned>(rank)].store(true, std::memory_order_release);
  group_.ring(group_.private_bell());
}

void Liaison::hear_peer(int rank) {
  Link& each = link(rank);
  while (each.socket >= 0) {
    Packet packet;
    std::size_t bytes = 0;
    int descriptor = -1;
    switch (receive_packet(each.socket, &packet, sizeof packet, &bytes, &descriptor)) {
      case SocketResult::again:
        return;
      case SocketResult::done:
        break;
      case SocketResult::refused:
        // What was sent is gone, by no fault of the peer.
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
          return group_.fail(own_failure(errno, "taking what " + rank_text(rank) + " hands over"));
        }
        [[fallthrough]];
      default:
        return closed(rank);
    }
    const bool sound = bytes == sizeof packet && packet.magic == Packet::kMagic;
    if (!sound) {
      close_descriptor(&descriptor);
      if (each.state == State::greeting) return retry(rank);
      group_.fail(blame(TRIREME_ERROR_CORRUPT, rank_text(rank) + " sent something else than a packet", rank));
      return closed(rank);
    }
    if (each.state == State::greeting) {
      hear_answer(rank, packet, descriptor);
    } else {
      handle(rank, packet, descriptor);
    }
  }
}

// Rank 0 has the job's token, and who has another is wrong. Of two others it is not known which one,
// so the one waits for the other to be replaced. Rank 0 may be of a run that ends: it is asked again
// for a while.
void Liaison::hear_other_token(int rank) {
  Link& each = link(rank);
  foreign_[static_cast<unsigned>(rank)].store(true, std::memory_order_release);
  if (rank > 0) return retry(rank);
  const std::uint64_t now = now_ns();
  if (each.refused_at == 0) each.refused_at = now;
  if (now - each.refused_at < kRefusedTime) return retry(rank);
  close_descriptor(&each.socket);
  each.state = State::closed;
  group_.fail(blame(TRIREME_ERROR_AUTHENTICATION,
                    rank_text(group_.rank()) + " has another token than " + rank_text(rank) +
                        " of host://" + group_name_ +
                        ", or one of the two has none: give both the job's token",
                    rank));
}

void Liaison::hear_answer(int rank, const Packet& packet, int descriptor) {
  Link& each = link(rank);
  const bool mine = packet.nonce == each.nonce && packet.rank == rank;
  const bool greets = mine && packet.type == Packet::hello;
  if ((mine && packet.type == Packet::other_token) || (greets && !same_token(packet, true))) {
    close_descriptor(&descriptor);
    return hear_other_token(rank);
  }
  Status status = greets ? check_same(packet)
                        : blame(TRIREME_ERROR_CORRUPT, rank_text(rank) + " sent a wrong answer", rank);
  if (status.ok() && rank == 0) status = attach(descriptor);
  close_descriptor(&descriptor);
  if (!status.ok()) {
    close_descriptor(&each.socket);
    each.state = State::closed;
    return group_.fail(status);
  }
  establish(rank, each.socket);
}

void Liaison::handle(int rank, const Packet& packet, int descriptor) {
  switch (packet.type) {
    case Packet::buffer:
      if (descriptor >= 0) {
        const Status status = buffers_->add_peer_buffer(rank, packet.id, packet.bytes, descriptor);
        if (!status.ok()) group_.fail(status);
        return;
      }
      break;
    case Packet::drop:
      buffers_->drop_peer_buffer(rank, packet.id);
      break;
    case Packet::failure:
      group_.fail(packet.record);
      break;
    case Packet::leave:
      group_.mark_left(rank);
      break;
    default:  // nothing this version sends
      break;
  }
  close_descriptor(&descriptor);
}

// The system refuses this rank something.
Status Liaison::own_failure(int error_number, const std::string& what) const {
  Status status = Status::system(error_number, rank_text(group_.rank()) + ", " + what);
  FailureDetails details = *status.details();
  details.blamed = {group_.rank()};
  return std::move(status).with_details(std::move(details));
}

// The other end of a socket is gone, or will be in a moment.
void Liaison::closed(int rank) {
  Link& each = link(rank);
  if (each.state == State::greeting) return retry(rank);  // it left, or was of another run
  close_descriptor(&each.socket);
  close_descriptor(&each.process);
  each.outbox.clear();
  each.blocked = false;
  each.state = State::closed;
  group_.mark_lost(rank);
  if (group_.left(rank)) return;
  group_.give_up(rank);
  group_.fail(blame(TRIREME_ERROR_PEER_LOST, rank_text(rank) + " was lost", rank));
}

void Liaison::flush(int rank) {
  Link& each = link(rank);
  if (each.state != State::established) return;
  each.blocked = false;
  while (!each.outbox.empty()) {
    Outgoing& next = each.outbox.front();
    int descriptor = next.descriptor;
    std::shared_ptr<OwnBuffer> buffer;
    if (next.packet.type == Packet::buffer) {
      buffer = buffers_->find(next.packet.id);
      if (buffer == nullptr) {  // freed before it was told
        each.outbox.pop_front();
        continue;
      }
      next.packet.bytes = buffer->mapped_bytes();
      descriptor = buffer->descriptor();
    }
    switch (send_packet(each.socket, &next.packet, sizeof next.packet, descriptor)) {
      case SocketResult::done:
        each.outbox.pop_front();
        continue;
      case SocketResult::again:
        each.blocked = true;
        return;
      case SocketResult::closed:  // its end is read from the socket, after what it sent before
        each.outbox.clear();
        return;
      case SocketResult::refused:
        group_.fail(Status::system(errno, "sending to " + rank_text(rank)));
        each.outbox.clear();
        return;
    }
  }
}

void Liaison::close_all() {
  close_descriptor(&listener_);
  close_descriptor(&segment_file_);
  for (Stranger& stranger : strangers_) close_descriptor(&stranger.socket);
  strangers_.clear();
  for (Link& each : links_) {
    close_descriptor(&each.socket);
    close_descriptor(&each.process);
    each.state = State::closed;
  }
}

}  // namespace trireme::local
