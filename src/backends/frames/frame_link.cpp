#include "backends/frames/frame_link.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "backends/frames/goodbyes.hpp"
#include "net/sha256.hpp"
#include "platform/failpoint.hpp"
#include "platform/system.hpp"
#include "platform/thread.hpp"
#include "schedules/overlay.hpp"

namespace trireme::host {
namespace {

using local::FailureRecord;
using local::Ring;

// How long the transport may wait at a time: the sender for one peer, while others wait behind it;
// the receiver until it checks whether the group is over.
constexpr std::uint64_t kSendWaitNs = 2 * kMillisecond;
constexpr std::uint64_t kReceiveWaitNs = 20 * kMillisecond;
constexpr std::uint64_t kLongestReceiveWaitNs = 100 * kMillisecond;  // in a large group
// A rank that leaves: how long it goes on to offer sent bytes to peers that do not take them. Its
// calling thread waits for that, because the process may end afterwards, but for less time while no
// bytes move.
constexpr std::uint64_t kLingerNs = 5'000 * kMillisecond;
constexpr std::uint64_t kStuckNs = 300 * kMillisecond;
// In a large group many ranks have news of a decision at the same time. A rank sends them to a near
// rank at most so often, times the ranks of the group: all that come meanwhile go together.
constexpr std::uint64_t kUrgentNs = kMillisecond / 50;
// A decision that takes longer may end at a deadline, which names the ranks that have not voted.
constexpr std::uint64_t kNewsNs = 250 * kMillisecond;
// How long a failed call waits until the peers know the failure.
constexpr std::uint64_t kSpreadNs = 100 * kMillisecond;
// A peer without a connection is looked at so often, unless the transport tells before.
constexpr std::uint64_t kConnectNs = 50 * kMillisecond;

// Peers may still need what a rank gave before it left.
void flush_while_bytes_go(Engine& engine) noexcept {
  std::uint64_t flushed = 0;
  std::uint64_t before = 0;
  for (Deadline end = Deadline::after(kStuckNs); !engine.flush(&flushed) && !end.passed();) {
    if (flushed != before) end = Deadline::after(kStuckNs);
    before = flushed;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Calls of a rank that are here, of its first channels.
std::uint64_t calls_of(int rank, const local::Segment& segment, std::uint32_t channels) {
  std::uint64_t calls = 0;
  for (std::uint32_t channel = 0; channel < channels; ++channel) {
    calls += segment.lane(channel, rank).position.load(std::memory_order_acquire);
  }
  return calls;
}

}  // namespace

static_assert(sizeof(FrameHeader) + sizeof(FailureRecord) <= TRIREME_TRANSPORT_FRAME_BYTES_MIN);
static_assert(sizeof(FrameHeader) + sizeof(ConsensusMessage) <= TRIREME_TRANSPORT_FRAME_BYTES_MIN);

FrameLink::FrameLink(int rank, int world_size, std::string group, std::string name,
                     const trireme_transport& transport, std::shared_ptr<Engine> engine,
                     std::function<Status(int)> loss, std::function<void(int)> left,
                     bool few_connections, std::uint64_t stall_ns)
    : me_(rank),
      n_(world_size),
      transport_(transport),
      engine_(std::move(engine)),
      loss_(std::move(loss)),
      left_(std::move(left)),
      frame_bytes_(transport_.frame_bytes()),
      group_hash_(sha256(group)),
      group_(rank, world_size, std::move(name), false, stall_ns),
      decisions_(
          group_, [this] { poke(me_); }, few_connections),
      slots_(
          group_, engine_.get(), [this](int to) { poke(to); },
          [this](const Status& status) { fail(status); }),
      links_(rank, world_size, few_connections) {}

FrameLink::~FrameLink() {
  engine_.reset();
  if (segment_ != nullptr) {
    system_table().unmap(segment_->base(), segment_->layout().total_bytes);
  }
  if (started_) transport_.release();
}

Status FrameLink::start() {
  const local::Layout layout(n_, false, me_, slots_.sends_cells());
  void* const base = system_table().map(-1, layout.total_bytes);
  if (base == nullptr) return Status::system(errno, "memory for the messages of the transport");
  try {
    segment_ = std::make_unique<local::Segment>(base, layout);
    slots_.use(*segment_);
  } catch (...) {
    system_table().unmap(base, layout.total_bytes);
    throw;
  }
  segment_->member(me_).joined.store(1, std::memory_order_release);
  group_.hide_calls_of_peers();
  group_.attach(*segment_, nullptr);
  group_.failure().on_record([this] {
    if (engine_ != nullptr) engine_->abort();
    decisions_.note_failure(false);
    poke(me_);
  });
  slots_.start();
  group_.bells().use(&slots_);
  const auto self = shared_from_this();
  Status made = Status::success();
  for (const auto body : {&FrameLink::send_frames, &FrameLink::receive_frames}) {
    if (!made.ok()) break;
    made = start_thread([self, body] {
      {
        std::unique_lock lock(self->mutex_);
        self->changed_.wait(lock, [&] { return self->started_ || self->abandoned_; });
        if (self->abandoned_) return;
      }
      ((*self).*body)();
    });
  }
  const std::lock_guard lock(mutex_);
  started_ = made.ok();
  abandoned_ = !made.ok();
  changed_.notify_all();
  return made;
}

void FrameLink::leave() noexcept {
  slots_.pass_on();
  if (engine_ != nullptr) {
    engine_->say_goodbye();
    flush_while_bytes_go(*engine_);
  }
  std::unique_lock lock(mutex_);
  leaving_ = true;
  ++pokes_;
  changed_.notify_all();
  if (!started_) return;
  bool moves = true;
  while (moves && !tried_all_) {
    const std::uint64_t seen = sent_frames();
    const std::uint64_t patience_ns = awaits_connection() ? kLingerNs : kStuckNs;
    moves = wait_until(changed_, lock, Deadline::after(patience_ns),
                       [&] { return tried_all_ || sent_frames() != seen; });
  }
}

void FrameLink::spread_failure() noexcept {
  std::unique_lock lock(mutex_);
  if (spread_ || !started_) return;
  wait_until(changed_, lock, Deadline::after(kSpreadNs), [&] {
    if (spread_ || stopped_) return true;
    for (int rank = 0; rank < n_; ++rank) {
      const Link& peer = links_[rank];
      const bool is_there = links_.is_open(rank) && (peer.greeted || links_.is_near(rank));
      const bool told = !is_there || (peer.said_failure && peer.frame.empty());
      if (rank != me_ && !told && !is_done_with(rank)) return false;
    }
    return true;
  });
  spread_ = true;
}

bool FrameLink::all_joined() {
  if (all_joined_.load(std::memory_order_relaxed)) return true;
  for (int rank = 0; rank < n_; ++rank) {
    if (rank != me_ && !joined(rank)) return false;
  }
  all_joined_.store(true, std::memory_order_relaxed);
  return true;
}

// Whether bytes of messages wait for this peer. Call it under the mutex.
bool FrameLink::has_unsent(int rank) {
  for (int set = 0; set < kSets; ++set) {
    const std::uint64_t sent = links_[rank].sent[static_cast<std::size_t>(set)];
    if (ring_to(rank, set).written.load(std::memory_order_acquire) != sent) return true;
  }
  return false;
}

// Whether bytes wait for a connection that is being made. Call it under the mutex.
bool FrameLink::awaits_connection() {
  if (!links_.are_few() || group_.failure().happened()) return false;
  for (int rank = 0; rank < n_; ++rank) {
    const Link& peer = links_[rank];
    const bool is_made = links_.is_open(rank) && !peer.greeted && !peer.unreached;
    if (is_made && has_unsent(rank)) return true;
  }
  return false;
}

bool FrameLink::joined(int rank) const {
  return segment_->member(rank).joined.load(std::memory_order_acquire) != 0;
}

bool FrameLink::is(bool Link::*that, int rank) {
  const std::lock_guard lock(mutex_);
  return links_[rank].*that;
}

// There is something for this rank, or for some if it is the own one. The connection to a rank that
// is not near comes with its first frame.
void FrameLink::poke(int rank) noexcept {
  std::unique_lock lock(mutex_);
  if (rank != me_ && !group_.failure().happened()) {
    links_.open(rank);
    if (links_[rank].unreached && has_unsent(rank)) {
      lock.unlock();
      return lose(rank);
    }
  }
  if (rank == me_ && links_.are_few()) {
    const RankSet others = decisions_.addressees();
    for (int each = others.lowest(); each >= 0; each = others.next(each)) links_.open(each);
  }
  ++pokes_;
  changed_.notify_all();
}

void FrameLink::fail(trireme_status code, const std::string& text,
                     std::vector<std::int32_t> blamed) noexcept {
  try {
    FailureDetails details;
    details.communicator = group_.name();
    std::sort(blamed.begin(), blamed.end());
    details.blamed = std::move(blamed);
    group_.failure().tell(Status::failure(code, text).with_details(std::move(details)));
  } catch (...) {
    group_.failure().tell(Status::failure(code, "out of memory"));
  }
}

// Blames this rank if the failure blames no rank.
void FrameLink::fail(const Status& status) noexcept {
  const FailureDetails* const details = status.details();
  try {
    fail(status.code(), status.message(),
         details == nullptr ? std::vector<std::int32_t>{me_} : details->blamed);
  } catch (...) {
    group_.failure().tell(status);
  }
}

// Reports the loss in the words of the transport. A rank that has left has closed its end on
// purpose. If this rank leaves, others need not announce that they leave.
void FrameLink::lose(int rank) noexcept {
  if (rank < 0 || rank >= n_) {
    decisions_.withdraw();
  } else {
    decisions_.lose(rank);
    if (group_.presence().left(rank)) return;
    const std::lock_guard lock(mutex_);
    if (leaving_ || links_[rank].goodbye) return;
    // A rank that is not near may have left in order: this rank hears it only here.
    if (!links_.is_near(rank) && !links_[rank].greeted) {
      links_[rank].unreached = true;
      changed_.notify_all();
      if (!has_unsent(rank)) return;
    }
  }
  try {
    fail(loss_(rank));
  } catch (...) {
    fail(TRIREME_ERROR_PEER_LOST, "", {rank < 0 ? me_ : rank});
  }
}

// --- sending -----------------------------------------------------------------------------------

bool FrameLink::is_done_with(int rank) {
  Link& peer = links_[rank];
  // A failure is still sent to a peer that could not be reached once.
  const bool lost = peer.broken_ns != 0 && !group_.failure().happened();
  return (peer.said_leave && peer.frame.empty()) || lost || peer.dead || peer.unreached ||
         peer.goodbye;
}

void FrameLink::send_frames() noexcept {
  std::unique_lock lock(mutex_);
  std::uint64_t linger_ns = UINT64_MAX;
  int next = 0;
  while (true) {
    const std::uint64_t seen = pokes_;
    if (leaving_ && linger_ns == UINT64_MAX) linger_ns = now_ns() + kLingerNs;
    bool moved = false;
    bool refused = false;
    bool connects = false;  // some peer has no connection yet
    bool all_done = true;
    bool waited_for = false;  // by a peer that is there and well
    Pass pass{group_.blame().own_waits()};
    const RankSet open = links_.open_ranks();
    const int first = links_.next_open(next);
    for (int left = open.count(), rank = first; left > 0; --left, rank = open.next(rank)) {
      if (rank < 0) rank = open.lowest();
      Link& peer = links_[rank];
      if (is_done_with(rank)) continue;
      try {
        if (peer.frame.empty()) build(rank, &pass);
      } catch (...) {  // memory may come back; after a failure there is no news to send
        lock.unlock();
        fail(without_memory());
        lock.lock();
        peer.frame.clear();
        peer.said_leave = true;
        continue;
      }
      if (!peer.frame.empty()) {
        lock.unlock();
        const std::int32_t answer = transport_.send(rank, peer.frame, kSendWaitNs);
        lock.lock();
        if (answer == TRIREME_OK) {
          peer.frame.clear();
          moved = true;
          sent_frames_.fetch_add(1, std::memory_order_relaxed);
          if (peer.said_failure || leaving_) changed_.notify_all();
        } else if (answer == TRIREME_ERROR_TIMEOUT) {
          const bool tells = loss_ != nullptr && !peer.greeted;  // see receive_until_over()
          (tells ? connects : refused) = true;
        } else {
          peer.frame.clear();
          peer.dead = peer.broken_ns != 0;
          links_.note_broken(rank, now_ns(), answer);
        }
      }
      const bool done = is_done_with(rank);
      all_done = all_done && done;
      waited_for = waited_for || (!done && joined(rank));
    }
    next = (first + 1) % n_;
    if (leaving_ && !moved && !tried_all_ && (!waited_for || group_.failure().happened())) {
      tried_all_ = true;
      changed_.notify_all();
    }
    if (leaving_ && (all_done || now_ns() >= linger_ns)) break;
    std::uint64_t wake_ns = std::min(linger_ns, pass.next_news_ns);
    lock.unlock();
    check_broken(&wake_ns);
    lock.lock();
    if (moved || pokes_ != seen) continue;
    // A transport that refuses at once must not make this thread spin.
    if (refused) wake_ns = std::min(wake_ns, now_ns() + kMillisecond);
    if (connects) wake_ns = std::min(wake_ns, now_ns() + kConnectNs);
    wait_until(changed_, lock, Deadline::at(wake_ns), [&] { return pokes_ != seen; });
  }
  stopped_ = tried_all_ = true;
  changed_.notify_all();
}

// A peer to which sending fails has left, or is lost to this rank. If there are several, the first
// one counts: the others may have gone because of it.
void FrameLink::check_broken(std::uint64_t* wake_ns) {
  int first = -1;
  std::uint64_t since = 0;
  std::int32_t answer = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!leaving_) first = links_.first_broken();
    if (first < 0) return;
    since = links_[first].broken_ns;
    answer = links_[first].answer;
  }
  if (group_.failure().happened()) return;
  if (now_ns() < since + kGraceNs) {
    *wake_ns = std::min(*wake_ns, since + kGraceNs);
    return;
  }
  if (loss_ != nullptr) return lose(first);
  fail(TRIREME_ERROR_CALLBACK,
       "rank " + std::to_string(me_) + ": its transport answered " + std::to_string(answer) +
           " to a frame for rank " + std::to_string(first),
       {me_, first});
}

std::byte* FrameLink::begin_frame(Link& link, FrameKind kind, int set, std::uint64_t position,
                                  std::uint64_t bytes) {
  const FrameHeader header{kMagic, kind, static_cast<std::uint32_t>(set),
                           static_cast<std::uint32_t>(bytes), position};
  link.frame.resize(sizeof header + bytes);
  std::memcpy(link.frame.data(), &header, sizeof header);
  return link.frame.data() + sizeof header;
}

// Builds the next frame for a rank, if there is one.
void FrameLink::build(int rank, Pass* pass) {
  Link& peer = links_[rank];
  if (!peer.said_hello && peer.broken_ns == 0) {
    Hello hello{kVersion, n_, me_, rank, frame_bytes_, {}};
    std::copy(group_hash_.begin(), group_hash_.end(), hello.group);
    std::memcpy(begin_frame(peer, FrameKind::hello, 0, 0, sizeof hello), &hello, sizeof hello);
    peer.said_hello = true;
    return;
  }
  const bool failed = group_.failure().happened();
  if (failed && !peer.said_failure) {
    const FailureRecord record = group_.failure().own_record();
    std::memcpy(begin_frame(peer, FrameKind::failure, 0, 0, sizeof record), &record, sizeof record);
    peer.said_failure = true;
    return;
  }
  if (build_decision(rank, peer, pass)) return;
  if (!failed && peer.greeted) {  // not if broken: see is_done_with()
    build_slot(peer);
    if (peer.frame.empty() && pass->waits != peer.waits) {
      peer.waits = pass->waits;
      std::memcpy(begin_frame(peer, FrameKind::waits, 0, 0, sizeof peer.waits), &peer.waits,
                  sizeof peer.waits);
    }
    if (peer.frame.empty()) build_data(rank, peer);
  }
  if (!peer.frame.empty() || !leaving_) return;
  if (!failed && has_unsent(rank)) return;  // the peer has no room yet, or has not greeted
  static_cast<void>(failpoint("leave", "before_goodbye"));  // its failure has no effect
  const SlotFrames::LastSlots last = slots_.last(rank);
  const std::uint64_t bytes = SlotFrames::LastSlots::bytes(slots_.carried_channels());
  std::memcpy(begin_frame(peer, FrameKind::leave, 0, 0, bytes), &last, bytes);
  peer.said_leave = true;
}

bool FrameLink::build_decision(int rank, Link& peer, Pass* pass) {
  ConsensusMessage message;
  using News = Consensus::News;
  const std::uint64_t now = links_.are_few() ? now_ns() : 0;
  const News allowed = leaving_ || now >= peer.news_ns ? News::all
                       : now >= peer.urgent_ns         ? News::urgent
                                                       : News::none;
  if (!decisions_.next(rank, allowed, &message)) {
    const bool urgent = decisions_.has_news(rank, News::urgent);
    if (urgent || decisions_.has_news(rank, News::all)) {
      pass->next_news_ns = std::min(pass->next_news_ns, urgent ? peer.urgent_ns : peer.news_ns);
    }
    return false;
  }
  if (message.step == ConsensusMessage::Step::news) {
    peer.urgent_ns = now + kUrgentNs * static_cast<std::uint64_t>(n_);
    peer.news_ns = now + period_of(kNewsNs, n_);
  }
  std::memcpy(begin_frame(peer, FrameKind::decision, 0, 0, sizeof message), &message,
              sizeof message);
  return true;
}

// A slot is reused only after the peer has published the next operation, and so had this one.
void FrameLink::build_slot(Link& peer) {
  const std::uint32_t used = group_.channels_of(me_);
  const std::uint32_t first = slots_.carried_channels();
  if (used > first && peer.called.size() < used - first) peer.called.resize(used - first);
  for (std::uint32_t channel = first; channel < used; ++channel) {
    const local::Lane& lane = segment_->lane(channel, me_);
    std::uint64_t& called = peer.called[channel - first];
    if (lane.position.load(std::memory_order_acquire) == called) continue;
    const local::Slot& slot = lane.slots[called & 1];
    ++called;
    SlotFrames::write(slot, begin_frame(peer, FrameKind::slot, static_cast<int>(channel), called,
                                        SlotFrames::bytes_of(slot)));
    return;
  }
}

void FrameLink::build_data(int rank, Link& peer) {
  for (int set = 0; set < kSets; ++set) {
    const auto at = static_cast<std::size_t>(set);
    const std::uint64_t read = ring_from(rank, set).read.load(std::memory_order_acquire);
    // Credits go out often enough that the peer, which has the rest of the ring, always gets room
    // again.
    if (read - peer.credited[at] < capacity() / 2) continue;
    begin_frame(peer, FrameKind::credit, set, read, 0);
    peer.credited[at] = read;
    return;
  }
  for (int set = kSets - 1; set >= 0; --set) {  // algorithms first: more ranks wait for them
    const auto at = static_cast<std::size_t>(set);
    Ring& ring = ring_to(rank, set);
    const std::uint64_t waiting = ring.written.load(std::memory_order_acquire) - peer.sent[at];
    const std::uint64_t room = capacity() - (peer.sent[at] - peer.consumed[at]);
    const std::uint64_t most = std::min(frame_bytes_, peer.frame_bytes) - sizeof(FrameHeader);
    const std::uint64_t bytes = std::min({waiting, room, most});
    if (bytes == 0) continue;
    std::byte* const to = begin_frame(peer, FrameKind::data, set, peer.sent[at], bytes);
    local::copy_out(to, ring.data, capacity(), peer.sent[at], bytes);
    peer.sent[at] += bytes;
    ring.read.store(peer.sent[at], std::memory_order_release);
    group_.bells().ring_member(me_);  // there is room again
    return;
  }
}

// --- receiving ---------------------------------------------------------------------------------

void FrameLink::receive_frames() noexcept {
  receive_until_over();
  decisions_.withdraw();
}

void FrameLink::receive_until_over() noexcept {
  std::vector<std::byte> frame;
  try {
    frame.resize(frame_bytes_);
  } catch (...) {
    return fail(without_memory());
  }
  const std::uint64_t longest_wait_ns = period_of(kReceiveWaitNs, n_, kLongestReceiveWaitNs);
  std::uint64_t next_look_ns = 0;
  std::uint64_t flushed = 0;
  while (true) {
    std::uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return;
      seen = pokes_;
    }
    std::int32_t from = -1;
    std::uint64_t bytes = 0;
    const std::uint64_t before = now_ns();
    if (engine_ != nullptr && before >= next_look_ns) {
      group_.latecomers().report();
      static_cast<void>(engine_->flush(&flushed));  // the rank's own threads may be elsewhere
      // So a rank that leaves gets rid of its calls though this one computes for long.
      const bool takes = slots_.in_rounds() || slots_.sends_cells();
      if (takes && all_joined()) slots_.fetch_all();  // and passes on what it takes
      next_look_ns = before + longest_wait_ns;
    }
    const std::uint64_t next_ns = std::max(next_look_ns, before + kMillisecond) - before;
    const std::uint64_t wait_ns = !leavers_.empty()    ? kMillisecond
                                  : engine_ != nullptr ? next_ns
                                                       : longest_wait_ns;
    const std::int32_t answer = transport_.receive(&from, &frame, &bytes, wait_ns);
    if (!leavers_.empty()) {
      slots_.fetch_all();
      finish_leaves();
    }
    if (answer == TRIREME_ERROR_TIMEOUT) {
      // Early: a connection has come.
      if (loss_ != nullptr && now_ns() - before < wait_ns) poke(me_);
      const bool leaves = [this] {
        const std::lock_guard lock(mutex_);
        return leaving_;
      }();
      if (engine_ != nullptr && !leaves) {
        slots_.look([this](int rank) { return is(&Link::goodbye, rank); });
      }
      if (now_ns() - before >= kMillisecond) continue;
      // The transport does not wait by itself.
      std::unique_lock lock(mutex_);
      wait_until(changed_, lock, Deadline::after(kMillisecond),
                 [&] { return stopped_ || pokes_ != seen; });
      continue;
    }
    if (answer == TRIREME_ERROR_PEER_LOST && loss_ != nullptr) {
      if (from < 0 || from >= n_ || !links_.is_near(from) || all_joined()) {
        lose(from);
        continue;
      }
      decisions_.lose(from);
      // A peer that goes while the ranks join may have seen another loss, without a way to tell.
      const std::lock_guard lock(mutex_);
      if (links_[from].broken_ns == 0) links_.note_broken(from, now_ns(), answer);
      ++pokes_;
      changed_.notify_all();
      continue;
    }
    Status status = Status::success();
    try {
      const auto who = [this] { return "rank " + std::to_string(me_) + ": its transport"; };
      if (answer != TRIREME_OK) {
        return fail(TRIREME_ERROR_CALLBACK,
                    who() + " answered " + std::to_string(answer) + " when asked for a frame",
                    {me_});
      }
      if (from < 0 || from >= n_ || from == me_ || bytes > frame.size()) {
        return fail(TRIREME_ERROR_CORRUPT,
                    who() + " delivered " + std::to_string(bytes) + " bytes of rank " +
                        std::to_string(from),
                    {me_});
      }
      status = slots_.carries(frame.data(), bytes)
                   ? corrupt_frame(me_, from, "a call that the engine carries")
                   : take(from, frame.data(), bytes);
    } catch (...) {
      status = without_memory();
    }
    if (!status.ok()) return fail(status);
  }
}

Status FrameLink::take(int from, const std::byte* frame, std::uint64_t bytes) {
  FrameHeader header;
  if (bytes < sizeof header) return corrupt_frame(me_, from, "a frame that is too short");
  std::memcpy(&header, frame, sizeof header);
  const std::uint32_t sets = header.kind == FrameKind::slot ? kChannels : kSets;
  if (header.magic != kMagic || header.set >= sets) {
    return corrupt_frame(me_, from, "a frame that is none of Trireme's");
  }
  if (header.bytes != bytes - sizeof header) {
    return corrupt_frame(me_, from,
                         "a frame with " + std::to_string(bytes - sizeof header) + " bytes where " +
                             std::to_string(header.bytes) + " were sent");
  }
  if (is(&Link::goodbye, from)) return corrupt_frame(me_, from, "a frame after it had left");
  const std::byte* const rest = frame + sizeof header;
  const std::uint64_t more = bytes - sizeof header;
  switch (header.kind) {
    case FrameKind::hello: {
      Hello hello;
      if (more != sizeof hello) return corrupt_frame(me_, from, "a greeting of a wrong length");
      std::memcpy(&hello, rest, sizeof hello);
      return take_hello(from, hello);
    }
    case FrameKind::data: return take_data(from, header, rest, more);
    case FrameKind::credit:
      if (more != 0) return corrupt_frame(me_, from, "a credit of a wrong length");
      return take_credit(from, header);
    case FrameKind::failure: {
      FailureRecord record;
      if (more != sizeof record) return corrupt_frame(me_, from, "a failure of a wrong length");
      std::memcpy(&record, rest, sizeof record);
      if (!group_.failure().happened()) decisions_.note_failure(true);
      group_.failure().tell(record);
      return Status::success();
    }
    case FrameKind::leave: return take_leave(from, rest, more);
    case FrameKind::waits: {
      local::WaitsBelow waits;
      if (more != sizeof waits) return corrupt_frame(me_, from, "its waits, of a wrong length");
      if (!is(&Link::greeted, from)) return corrupt_frame(me_, from, "its waits before a greeting");
      std::memcpy(&waits, rest, sizeof waits);
      group_.blame().take_waits(from, waits);
      return Status::success();
    }
    case FrameKind::slot: return slots_.take(from, header, rest, more);
    case FrameKind::slots:
    case FrameKind::cell:
    case FrameKind::steps:
    case FrameKind::passed:
    case FrameKind::came: break;  // only an engine brings them
    case FrameKind::decision: {
      ConsensusMessage message;
      if (more != sizeof message)
        return corrupt_frame(me_, from, "a word of a decision of a wrong length");
      std::memcpy(&message, rest, sizeof message);
      if (decisions_.take(from, message)) return Status::success();
      return corrupt_frame(me_, from, "a word of a decision that makes no sense");
    }
  }
  return corrupt_frame(me_, from, "a frame of an unknown kind");
}

Status FrameLink::take_hello(int from, const Hello& hello) {
  if (is(&Link::greeted, from)) return corrupt_frame(me_, from, "a second greeting");
  if (hello.rank != from || hello.to != me_)
    return corrupt_frame(me_, from, "a greeting for another rank");
  std::string differs;
  if (hello.version != kVersion) {
    differs = "speaks version " + std::to_string(hello.version) + " of the frames, not " +
              std::to_string(kVersion);
  } else if (hello.world_size != n_) {
    differs =
        "names world size " + std::to_string(hello.world_size) + ", not " + std::to_string(n_);
  } else if (std::memcmp(hello.group, group_hash_.data(), group_hash_.size()) != 0) {
    differs = "is of a group of another name";
  }
  if (!differs.empty()) {
    FailureDetails details;
    details.blamed = {std::min(me_, from), std::max(me_, from)};
    return Status::failure(TRIREME_ERROR_MISMATCH, "rank " + std::to_string(from) + " " + differs +
                                                       " as rank " + std::to_string(me_))
        .with_details(std::move(details));
  }
  if (hello.frame_bytes < TRIREME_TRANSPORT_FRAME_BYTES_MIN) {
    return corrupt_frame(me_, from, "a greeting that allows no frames");
  }
  {
    const std::lock_guard lock(mutex_);
    links_[from].frame_bytes = hello.frame_bytes;
    links_[from].greeted = true;
    links_.open(from);
    segment_->member(from).joined.store(1, std::memory_order_release);
    // The others are there, too: they have come to the meeting.
    const bool all = links_.are_few() && links_.near_have_greeted();
    for (int rank = 0; all && rank < n_; ++rank) {
      segment_->member(rank).joined.store(1, std::memory_order_release);
    }
  }
  group_.bells().ring(bell());
  group_.bells().ring_member(me_);
  poke(me_);
  return Status::success();
}

Status FrameLink::take_data(int from, const FrameHeader& header, const std::byte* data,
                            std::uint64_t bytes) {
  if (!is(&Link::greeted, from)) return corrupt_frame(me_, from, "data before a greeting");
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) return Status::success();  // its messages are not read any more
  }
  Ring& ring = ring_from(from, static_cast<int>(header.set));
  const std::uint64_t written = ring.written.load(std::memory_order_relaxed);
  if (header.position != written) {
    return corrupt_frame(me_, from,
                         "byte " + std::to_string(header.position) + " of a stream where byte " +
                             std::to_string(written) + " was next");
  }
  const std::uint64_t room = capacity() - (written - ring.read.load(std::memory_order_acquire));
  if (bytes == 0 || bytes > room)
    return corrupt_frame(me_, from, "more of a stream than it was allowed");
  local::copy_in(ring.data, capacity(), written, data, bytes);
  ring.written.store(written + bytes, std::memory_order_release);
  group_.bells().ring_member(me_);
  return Status::success();
}

// Slots that the engine carries may arrive after this frame, though they were sent before.
Status FrameLink::take_leave(int from, const std::byte* rest, std::uint64_t bytes) {
  SlotFrames::LastSlots last{};
  if (bytes != SlotFrames::LastSlots::bytes(slots_.carried_channels())) {
    return corrupt_frame(me_, from, "a goodbye of a wrong length");
  }
  std::memcpy(&last, rest, bytes);
  if (!makes_sense(group_, from, last)) {
    return corrupt_frame(me_, from, "a goodbye that makes no sense");
  }
  TRIREME_RETURN_IF_ERROR(failpoint("leave", "before_taken"));
  if (left_ != nullptr) left_(from);
  decisions_.lose(from);  // its words there came before this frame
  {
    const std::lock_guard lock(mutex_);
    links_[from].goodbye = true;
  }
  leavers_.push_back({from, last, calls_of(from, *segment_, slots_.carried_channels()),
                      Deadline::after(kGraceNs)});
  const Deadline backoff = leavers_.back().grace;
  finish_leaves();
  // Calls that take their time, or come over other ranks: the loop that receives looks for them.
  const bool over_others = slots_.in_rounds() || slots_.spreads_cells();
  while (!leavers_.empty() && !over_others && !backoff.passed()) {
    slots_.fetch_all();
    std::this_thread::yield();
    finish_leaves();
  }
  poke(me_);
  return Status::success();
}

// A rank has left when its calls are here: else its peers would miss it where it has been. They may
// take as long as they come. Those that come over other ranks have no limit: a stopped rank may
// hold them. But a rank that would pass them on may have left before it had them.
void FrameLink::finish_leaves() {
  std::erase_if(leavers_, [this](Leaver& leaver) {
    const std::uint64_t calls = calls_of(leaver.rank, *segment_, slots_.carried_channels());
    if (calls != leaver.calls) leaver.grace = Deadline::after(kGraceNs);
    leaver.calls = calls;
    const bool over_others = slots_.in_rounds() || slots_.spreads_cells();
    const bool has_all = slots_.has_all(leaver.rank, leaver.last);
    const bool gives_up = !has_all && leaver.grace.passed() &&
                          (!over_others || (slots_.spreads_cells() &&
                                            may_miss_for_ever(group_, leaver.rank, leaver.last)));
    if (!has_all && !gives_up && !group_.failure().happened()) return false;
    // Ranks that await cells which it passes on see whether it has made their call.
    for (std::uint32_t channel = 0; has_all && channel < local::kCellChannels; ++channel) {
      local::advance_to(segment_->lane(channel, leaver.rank).position, leaver.last.steps[channel]);
    }
    group_.presence().mark_left(leaver.rank);
    slots_.end_hopeless(leaver.rank);
    return true;
  });
}

Status FrameLink::take_credit(int from, const FrameHeader& header) {
  bool wrong = false;
  {
    const std::lock_guard lock(mutex_);
    Link& peer = links_[from];
    std::uint64_t& consumed = peer.consumed[header.set];
    wrong = header.position <= consumed || header.position > peer.sent[header.set];
    if (!wrong) consumed = header.position;
  }
  if (wrong)
    return corrupt_frame(me_, from,
                         "a credit for bytes that were not sent, or were credited before");
  poke(me_);
  return Status::success();
}

}  // namespace trireme::host
