#include "backends/frames/carrier.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "net/sha256.hpp"
#include "platform/failpoint.hpp"
#include "platform/system.hpp"
#include "platform/thread.hpp"

namespace trireme::host {
namespace {

using local::FailureRecord;
using local::Ring;

constexpr std::uint64_t kDefaultFrameBytes = 65'536;
// How long the transport may wait at a time: the sender for one peer, while others wait behind it;
// the receiver until it looks whether the group is over.
constexpr std::uint64_t kSendWaitNs = 2 * kMillisecond;
constexpr std::uint64_t kReceiveWaitNs = 20 * kMillisecond;
// A rank that leaves: how long it goes on to offer what it has sent to peers that do not take it. Its
// own thread waits for that, because the process may end then, but not as long while nothing moves.
constexpr std::uint64_t kLingerNs = 5'000 * kMillisecond;
constexpr std::uint64_t kStuckNs = 300 * kMillisecond;
// How long a failed call waits until the peers have been told.
constexpr std::uint64_t kSpreadNs = 100 * kMillisecond;
// A peer that leaves takes its end of the transport with it; its last words may be on their way.
constexpr std::uint64_t kGraceNs = 300 * kMillisecond;

std::uint64_t frame_limit(const trireme_transport& transport) {
  return transport.maximum_frame_bytes == 0
             ? kDefaultFrameBytes
             : std::min<std::uint64_t>(transport.maximum_frame_bytes, 1u << 20);
}

}  // namespace

static_assert(sizeof(FrameHeader) + sizeof(FailureRecord) <= TRIREME_TRANSPORT_FRAME_BYTES_MIN);
static_assert(sizeof(FrameHeader) + sizeof(ConsensusMessage) <= TRIREME_TRANSPORT_FRAME_BYTES_MIN);

Carrier::Carrier(int rank, int world_size, std::string group, std::string name,
                 const trireme_transport& transport, std::shared_ptr<Engine> engine,
                 std::function<Status(int)> loss, std::uint64_t stall_ns)
    : me_(rank),
      n_(world_size),
      transport_(transport),
      engine_(std::move(engine)),
      carries_slots_(engine_ != nullptr && engine_->carries_slots()),
      loss_(std::move(loss)),
      frame_bytes_(frame_limit(transport)),
      group_hash_(sha256(group)),
      group_(rank, world_size, std::move(name), false, stall_ns),
      decisions_(group_, [this] { poke(); }),
      links_(static_cast<std::size_t>(world_size)) {}

Carrier::~Carrier() {
  engine_.reset();
  if (segment_ != nullptr) {
    system_table().unmap(segment_->base(), segment_->layout().total_bytes);
  }
  if (started_ && transport_.released != nullptr) {
    try {
      transport_.released(transport_.user_data);
    } catch (...) {  // nobody is left to tell
    }
  }
}

Status Carrier::start() {
  const local::Layout layout(n_, false);
  void* const base = system_table().map(-1, layout.total_bytes);
  if (base == nullptr) return Status::system(errno, "memory for the messages of the transport");
  try {
    segment_ = std::make_unique<local::Segment>(base, layout);
  } catch (...) {
    system_table().unmap(base, layout.total_bytes);
    throw;
  }
  segment_->member(me_).joined.store(1, std::memory_order_release);
  group_.hide_calls_of_peers();
  group_.attach(*segment_, nullptr);
  group_.on_failure([this] {
    if (engine_ != nullptr) engine_->abort();
    decisions_.note_failure(false);
    poke();
  });
  group_.use(this);
  const auto self = shared_from_this();
  Status made = Status::success();
  for (const auto body : {&Carrier::send_frames, &Carrier::receive_frames}) {
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

void Carrier::leave() noexcept {
  std::unique_lock lock(mutex_);
  leaving_ = true;
  ++pokes_;
  changed_.notify_all();
  if (!started_) return;
  bool moves = true;
  while (moves && !tried_all_) {
    const std::uint64_t seen = moved_;
    moves = wait_until(changed_, lock, Deadline::after(kStuckNs),
                       [&] { return tried_all_ || moved_ != seen; });
  }
}

void Carrier::spread_failure() noexcept {
  std::unique_lock lock(mutex_);
  if (spread_ || !started_) return;
  wait_until(changed_, lock, Deadline::after(kSpreadNs), [&] {
    if (spread_ || stopped_) return true;
    for (int rank = 0; rank < n_; ++rank) {
      const Link& peer = link(rank);
      const bool told = peer.said_failure && peer.frame.empty();
      if (rank != me_ && !told && !is_done_with(rank)) return false;
    }
    return true;
  });
  spread_ = true;
}

bool Carrier::joined(int rank) const {
  return segment_->member(rank).joined.load(std::memory_order_acquire) != 0;
}

void Carrier::poke() noexcept {
  const std::lock_guard lock(mutex_);
  ++pokes_;
  changed_.notify_all();
}

void Carrier::fail(trireme_status code, const std::string& text,
                   std::vector<std::int32_t> blamed) noexcept {
  try {
    FailureDetails details;
    details.communicator = group_.name();
    std::sort(blamed.begin(), blamed.end());
    details.blamed = std::move(blamed);
    group_.fail(Status::failure(code, text).with_details(std::move(details)));
  } catch (...) {
    group_.fail(Status::failure(code, "out of memory"));
  }
}

// Blames this rank where nobody is.
void Carrier::fail(const Status& status) noexcept {
  const FailureDetails* const details = status.details();
  try {
    fail(status.code(), status.message(),
         details == nullptr ? std::vector<std::int32_t>{me_} : details->blamed);
  } catch (...) {
    group_.fail(status);
  }
}

// As the transport explains it. A rank that has left closed its end for that; to this one, if it leaves,
// others need not say that they do.
void Carrier::lose(int rank) noexcept {
  if (rank < 0 || rank >= n_) {
    decisions_.withdraw();
  } else {
    decisions_.lose(rank);
    if (group_.left(rank)) return;
    const std::lock_guard lock(mutex_);
    if (leaving_) return;
  }
  try {
    fail(loss_(rank));
  } catch (...) {
    fail(TRIREME_ERROR_PEER_LOST, "", {rank < 0 ? me_ : rank});
  }
}

// --- sending -----------------------------------------------------------------------------------

// What the transport answers, or CALLBACK if it throws.
std::int32_t Carrier::hand_over(int rank, const std::vector<std::byte>& frame) noexcept {
  try {
    return transport_.send(transport_.user_data, rank, frame.data(), frame.size(), kSendWaitNs);
  } catch (...) {
    return TRIREME_ERROR_CALLBACK;
  }
}

bool Carrier::is_done_with(int rank) {
  Link& peer = link(rank);
  // To a peer that could not be reached once, a failure is still told.
  const bool lost = peer.broken_ns != 0 && !group_.failed();
  return (peer.said_leave && peer.frame.empty()) || lost || peer.dead || group_.left(rank);
}

void Carrier::send_frames() noexcept {
  std::unique_lock lock(mutex_);
  std::uint64_t linger_ns = UINT64_MAX;
  int next = 0;
  while (true) {
    const std::uint64_t seen = pokes_;
    if (leaving_ && linger_ns == UINT64_MAX) linger_ns = now_ns() + kLingerNs;
    bool moved = false;
    bool refused = false;
    bool all_done = true;
    bool waited_for = false;  // by a peer that is there and well
    for (int step = 0; step < n_; ++step) {
      const int rank = (next + step) % n_;
      Link& peer = link(rank);
      if (rank == me_ || is_done_with(rank)) continue;
      try {
        if (peer.frame.empty()) build(rank);
      } catch (...) {  // memory may come back; what has failed tells nobody anything more
        lock.unlock();
        fail(TRIREME_ERROR_OUT_OF_MEMORY, "no memory for a frame", {me_});
        lock.lock();
        peer.frame.clear();
        peer.said_leave = true;
        continue;
      }
      if (!peer.frame.empty()) {
        lock.unlock();
        const std::int32_t answer = hand_over(rank, peer.frame);
        lock.lock();
        if (answer == TRIREME_OK) {
          peer.frame.clear();
          moved = true;
          ++moved_;
          if (peer.said_failure || leaving_) changed_.notify_all();
        } else if (answer == TRIREME_ERROR_TIMEOUT) {
          refused = true;
        } else {
          peer.frame.clear();
          peer.dead = peer.broken_ns != 0;
          peer.broken_ns = now_ns();
          peer.answer = answer;
        }
      }
      const bool done = is_done_with(rank);
      all_done = all_done && done;
      waited_for = waited_for || (!done && joined(rank));
    }
    next = (next + 1) % n_;
    if (leaving_ && !moved && !tried_all_ && (!waited_for || group_.failed())) {
      tried_all_ = true;
      changed_.notify_all();
    }
    if (leaving_ && (all_done || now_ns() >= linger_ns)) break;
    std::uint64_t wake_ns = linger_ns;
    lock.unlock();
    check_broken(&wake_ns);
    lock.lock();
    if (moved || pokes_ != seen) continue;
    // A transport that refuses at once must not make this thread spin.
    if (refused) wake_ns = std::min(wake_ns, now_ns() + kMillisecond);
    wait_until(changed_, lock, Deadline::at(wake_ns), [&] { return pokes_ != seen; });
  }
  stopped_ = tried_all_ = true;
  changed_.notify_all();
}

// A peer to which nothing can be sent has left, or is lost to this rank.
void Carrier::check_broken(std::uint64_t* wake_ns) {
  for (int rank = 0; rank < n_; ++rank) {
    std::uint64_t since = 0;
    std::int32_t answer = 0;
    {
      const std::lock_guard lock(mutex_);
      since = link(rank).broken_ns;
      answer = link(rank).answer;
      if (leaving_) return;
    }
    if (since == 0 || group_.left(rank) || group_.failed()) continue;
    if (now_ns() < since + kGraceNs) {
      *wake_ns = std::min(*wake_ns, since + kGraceNs);
      continue;
    }
    if (loss_ != nullptr) {
      lose(rank);
      continue;
    }
    fail(TRIREME_ERROR_CALLBACK,
         "rank " + std::to_string(me_) + ": its transport answered " + std::to_string(answer) +
             " to a frame for rank " + std::to_string(rank),
         {me_, rank});
  }
}

std::byte* Carrier::begin_frame(Link& link, FrameKind kind, int set, std::uint64_t position,
                                std::uint64_t bytes) {
  const FrameHeader header{kMagic, kind, static_cast<std::uint32_t>(set),
                           static_cast<std::uint32_t>(bytes), position};
  link.frame.resize(sizeof header + bytes);
  std::memcpy(link.frame.data(), &header, sizeof header);
  return link.frame.data() + sizeof header;
}

// The next frame for a rank, if there is one.
void Carrier::build(int rank) {
  Link& peer = link(rank);
  if (!peer.said_hello && peer.broken_ns == 0) {
    Hello hello{kVersion, n_, me_, rank, frame_bytes_, {}};
    std::copy(group_hash_.begin(), group_hash_.end(), hello.group);
    std::memcpy(begin_frame(peer, FrameKind::hello, 0, 0, sizeof hello), &hello, sizeof hello);
    peer.said_hello = true;
    return;
  }
  const bool failed = group_.failed();
  if (failed && !peer.said_failure) {
    const FailureRecord record = group_.own_record();
    std::memcpy(begin_frame(peer, FrameKind::failure, 0, 0, sizeof record), &record, sizeof record);
    peer.said_failure = true;
    return;
  }
  if (build_decision(rank, peer)) return;
  if (!failed && joined(rank)) {  // not if broken: see is_done_with()
    build_slot(peer);
    if (peer.frame.empty()) build_data(rank, peer);
  }
  if (!peer.frame.empty() || !leaving_) return;
  for (int set = 0; set < kSets && !failed && joined(rank); ++set) {
    const Ring& ring = ring_to(rank, set);
    if (ring.written.load(std::memory_order_acquire) != peer.sent[static_cast<std::size_t>(set)]) {
      return;  // the peer has no room yet
    }
  }
  static_cast<void>(failpoint("leave", "before_goodbye"));  // there is no other way to leave
  const LastSlots last = carries_slots_ ? last_slots() : LastSlots{};
  const std::uint64_t bytes = carried_channels() * sizeof last[0];
  std::memcpy(begin_frame(peer, FrameKind::leave, 0, 0, bytes), &last, bytes);
  peer.said_leave = true;
}

bool Carrier::build_decision(int rank, Link& peer) {
  ConsensusMessage message;
  if (!decisions_.next(rank, &message)) return false;
  std::memcpy(begin_frame(peer, FrameKind::decision, 0, 0, sizeof message), &message,
              sizeof message);
  return true;
}

// What follows the header.
void Carrier::write_slot(const local::Slot& slot, std::byte* to) {
  const Call call{slot.print_hash, slot.flags, slot.carried, slot.fingerprint};
  std::memcpy(to, &call, sizeof call);
  const bool tiny = (slot.flags & local::kTiny) != 0;
  std::memcpy(to + sizeof call, tiny ? slot.tiny : slot.payload, slot.carried);
}

// A slot is filled anew only after the peer has published what follows it, and so had it.
void Carrier::build_slot(Link& peer) {
  const std::uint32_t used = group_.channels_of(me_);
  for (std::uint32_t channel = carried_channels(); channel < used; ++channel) {
    const local::Lane& lane = segment_->lane(channel, me_);
    std::uint64_t& called = peer.called[channel];
    if (lane.position.load(std::memory_order_acquire) == called) continue;
    const local::Slot& slot = lane.slots[called & 1];
    ++called;
    write_slot(slot, begin_frame(peer, FrameKind::slot, static_cast<int>(channel), called,
                                 sizeof(Call) + slot.carried));
    return;
  }
}

// --- slots that the engine carries -------------------------------------------------------------

void Carrier::publish(std::uint32_t channel) noexcept {
  if (channel >= carried_channels()) return poke();
  const local::Lane& lane = segment_->lane(channel, me_);
  const std::uint64_t position = lane.position.load(std::memory_order_relaxed);
  const local::Slot& slot = lane.slots[(position - 1) & 1];
  const auto more = static_cast<std::uint32_t>(sizeof(Call) + slot.carried);
  const FrameHeader header{kMagic, FrameKind::slot, channel, more, position};
  std::byte frame[sizeof header + sizeof(Call) + kCarriedBytes];
  std::memcpy(frame, &header, sizeof header);
  write_slot(slot, frame + sizeof header);
  const Status sent = engine_->publish(channel, frame, sizeof header + more);
  if (!sent.ok()) fail(sent);
}

bool Carrier::fetch(std::uint32_t channel) noexcept {
  bool any = false;
  if (channel >= carried_channels()) return any;
  try {
    const Status status = engine_->fetch(
        channel,
        [this](int from, const std::byte* frame, std::uint64_t bytes) {
          return take(from, frame, bytes);
        },
        &any);
    if (!status.ok()) fail(status);
  } catch (...) {
    fail(TRIREME_ERROR_OUT_OF_MEMORY, "no memory for a call", {me_});
  }
  return any;
}

Carrier::LastSlots Carrier::last_slots() const {
  LastSlots last{};
  const std::uint32_t used = std::min(group_.channels_of(me_), carried_channels());
  for (std::uint32_t channel = 0; channel < used; ++channel) {
    last[channel] = segment_->lane(channel, me_).position.load(std::memory_order_acquire);
  }
  return last;
}

void Carrier::build_data(int rank, Link& peer) {
  for (int set = 0; set < kSets; ++set) {
    const auto at = static_cast<std::size_t>(set);
    const std::uint64_t read = ring_from(rank, set).read.load(std::memory_order_acquire);
    // Often enough that the peer, who has the rest of the ring, is never out of room for good.
    if (read - peer.credited[at] < capacity() / 2) continue;
    begin_frame(peer, FrameKind::credit, set, read, 0);
    peer.credited[at] = read;
    return;
  }
  for (int set = kSets - 1; set >= 0; --set) {  // algorithms first: many ranks wait for them
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
    group_.ring_member(me_);  // there is room again
    return;
  }
}

// --- receiving ---------------------------------------------------------------------------------

void Carrier::receive_frames() noexcept {
  receive_until_over();
  decisions_.withdraw();
}

void Carrier::receive_until_over() noexcept {
  std::vector<std::byte> frame;
  try {
    frame.resize(frame_bytes_);
  } catch (...) {
    return fail(TRIREME_ERROR_OUT_OF_MEMORY, "no memory for a frame", {me_});
  }
  std::uint64_t next_look_ns = 0;
  while (true) {
    std::uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return;
      seen = pokes_;
    }
    std::int32_t from = -1;
    std::uint64_t bytes = 0;
    std::int32_t answer = TRIREME_ERROR_CALLBACK;
    const std::uint64_t before = now_ns();
    if (engine_ != nullptr && before >= next_look_ns) {
      group_.tell_of_latecomers();
      next_look_ns = before + kReceiveWaitNs;
    }
    try {
      answer = transport_.receive(transport_.user_data, &from, frame.data(), frame.size(), &bytes,
                                  kReceiveWaitNs);
    } catch (...) {  // is a failure
    }
    if (answer == TRIREME_ERROR_TIMEOUT) {
      if (now_ns() - before >= kMillisecond) continue;
      // It does not wait by itself.
      std::unique_lock lock(mutex_);
      wait_until(changed_, lock, Deadline::after(kMillisecond),
                 [&] { return stopped_ || pokes_ != seen; });
      continue;
    }
    if (answer == TRIREME_ERROR_PEER_LOST && loss_ != nullptr) {
      if (from < 0 || from >= n_ || joined(from)) {
        lose(from);
        continue;
      }
      decisions_.lose(from);
      // Who goes before it has said anything may have heard of another loss, and had no way to tell.
      const std::lock_guard lock(mutex_);
      if (link(from).broken_ns == 0) link(from).broken_ns = now_ns();
      ++pokes_;
      changed_.notify_all();
      continue;
    }
    const std::string who = "rank " + std::to_string(me_) + ": its transport";
    if (answer != TRIREME_OK) {
      return fail(TRIREME_ERROR_CALLBACK,
                  who + " answered " + std::to_string(answer) + " when asked for a frame", {me_});
    }
    if (from < 0 || from >= n_ || from == me_ || bytes > frame.size()) {
      return fail(
          TRIREME_ERROR_CORRUPT,
          who + " delivered " + std::to_string(bytes) + " bytes of rank " + std::to_string(from),
          {me_});
    }
    Status status = Status::success();
    try {
      status = take(from, frame.data(), bytes);
    } catch (...) {
      status = Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "no memory for a frame");
    }
    if (!status.ok()) return fail(status);
  }
}

Status Carrier::corrupt(int from, const std::string& what) const {
  FailureDetails details;
  details.blamed = {from};
  return Status::failure(TRIREME_ERROR_CORRUPT, "rank " + std::to_string(me_) + " got " + what +
                                                    " from rank " + std::to_string(from))
      .with_details(std::move(details));
}

Status Carrier::take(int from, const std::byte* frame, std::uint64_t bytes) {
  FrameHeader header;
  if (bytes < sizeof header) return corrupt(from, "a frame that is too short");
  std::memcpy(&header, frame, sizeof header);
  const std::uint32_t sets = header.kind == FrameKind::slot ? kChannels : kSets;
  if (header.magic != kMagic || header.set >= sets) {
    return corrupt(from, "a frame that is none of Trireme's");
  }
  if (header.bytes != bytes - sizeof header) {
    return corrupt(from, "a frame with " + std::to_string(bytes - sizeof header) + " bytes where " +
                             std::to_string(header.bytes) + " were sent");
  }
  if (group_.left(from)) return corrupt(from, "a frame after it had left");
  const std::byte* const rest = frame + sizeof header;
  const std::uint64_t more = bytes - sizeof header;
  switch (header.kind) {
    case FrameKind::hello: {
      Hello hello;
      if (more != sizeof hello) return corrupt(from, "a greeting of a wrong length");
      std::memcpy(&hello, rest, sizeof hello);
      return take_hello(from, hello);
    }
    case FrameKind::data: return take_data(from, header, rest, more);
    case FrameKind::credit:
      if (more != 0) return corrupt(from, "a credit of a wrong length");
      return take_credit(from, header);
    case FrameKind::failure: {
      FailureRecord record;
      if (more != sizeof record) return corrupt(from, "a failure of a wrong length");
      std::memcpy(&record, rest, sizeof record);
      if (!group_.failed()) decisions_.note_failure(true);
      group_.fail(record);
      return Status::success();
    }
    case FrameKind::leave: return take_leave(from, rest, more);
    case FrameKind::slot: return take_slot(from, header, rest, more);
    case FrameKind::decision: {
      ConsensusMessage message;
      if (more != sizeof message) return corrupt(from, "a word of a decision of a wrong length");
      std::memcpy(&message, rest, sizeof message);
      if (decisions_.take(from, message)) return Status::success();
      return corrupt(from, "a word of a decision that makes no sense");
    }
  }
  return corrupt(from, "a frame of an unknown kind");
}

Status Carrier::take_hello(int from, const Hello& hello) {
  if (joined(from)) return corrupt(from, "a second greeting");
  if (hello.rank != from || hello.to != me_) return corrupt(from, "a greeting for somebody else");
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
    return corrupt(from, "a greeting that allows no frames");
  }
  {
    const std::lock_guard lock(mutex_);
    link(from).frame_bytes = hello.frame_bytes;
    segment_->member(from).joined.store(1, std::memory_order_release);
  }
  group_.ring(bell());
  group_.ring_member(me_);
  poke();
  return Status::success();
}

Status Carrier::take_data(int from, const FrameHeader& header, const std::byte* data,
                          std::uint64_t bytes) {
  if (!joined(from)) return corrupt(from, "data before a greeting");
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) return Status::success();  // nobody reads it any more
  }
  Ring& ring = ring_from(from, static_cast<int>(header.set));
  const std::uint64_t written = ring.written.load(std::memory_order_relaxed);
  if (header.position != written) {
    return corrupt(from, "byte " + std::to_string(header.position) + " of a stream where byte " +
                             std::to_string(written) + " was next");
  }
  const std::uint64_t room = capacity() - (written - ring.read.load(std::memory_order_acquire));
  if (bytes == 0 || bytes > room) return corrupt(from, "more of a stream than it was allowed");
  local::copy_in(ring.data, capacity(), written, data, bytes);
  ring.written.store(written + bytes, std::memory_order_release);
  group_.ring_member(me_);
  return Status::success();
}

Status Carrier::take_slot(int from, const FrameHeader& header, const std::byte* rest,
                          std::uint64_t bytes) {
  if (!joined(from)) return corrupt(from, "a call before a greeting");
  Call call;
  if (bytes < sizeof call) return corrupt(from, "a call of a wrong length");
  std::memcpy(&call, rest, sizeof call);
  const bool tiny = (call.flags & local::kTiny) != 0;
  if (call.carried > (tiny ? local::kTinyBytes : kCarriedBytes) ||
      bytes != sizeof call + call.carried ||
      (call.flags & ~(local::kContributes | local::kTiny)) != 0) {
    return corrupt(from, "a call that makes no sense");
  }
  const std::uint64_t own =
      segment_->lane(header.set, me_).position.load(std::memory_order_acquire);
  local::Lane& lane = segment_->lane(header.set, from);
  const std::uint64_t last = lane.position.load(std::memory_order_relaxed);
  if (header.position != last + 1 || last > own) {
    return corrupt(from, "call " + std::to_string(header.position) + " where call " +
                             std::to_string(last + 1) + " was next, after " + std::to_string(own) +
                             " of its own");
  }
  local::Slot& slot = lane.slots[last & 1];
  slot.print_hash = call.print_hash;
  slot.flags = call.flags;
  slot.fingerprint = call.fingerprint;
  std::memcpy(tiny ? slot.tiny : slot.payload, rest + sizeof call, call.carried);
  slot.stamp.store(header.position, std::memory_order_release);
  lane.position.store(header.position, std::memory_order_release);
  group_.ring(lane.bell);
  end_hopeless(from);
  return Status::success();
}

// A rank that is in the engine meanwhile compares nothing, and may wait there for who never comes. It
// finds the reason by itself: see Run::explain().
void Carrier::end_hopeless(int from) noexcept {
  if (engine_ == nullptr) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::uint32_t used = group_.channels_of(me_);
  for (std::uint32_t channel = 0; channel < used; ++channel) {
    const local::Lane& own = segment_->lane(channel, me_);
    const local::Lane& theirs = segment_->lane(channel, from);
    const std::uint64_t position = theirs.position.load(std::memory_order_acquire);
    if (group_.left(from) && position < own.position.load(std::memory_order_acquire)) {
      return engine_->abort();
    }
    if (position == 0) continue;
    const local::Slot& mine = own.slots[(position - 1) & 1];
    if (mine.stamp.load(std::memory_order_acquire) == position &&
        mine.print_hash != theirs.slots[(position - 1) & 1].print_hash) {
      return engine_->abort();
    }
  }
}

// What the engine carries may come later than this, though it was sent before.
Status Carrier::take_leave(int from, const std::byte* rest, std::uint64_t bytes) {
  LastSlots last{};
  if (bytes != carried_channels() * sizeof last[0]) {
    return corrupt(from, "a goodbye of a wrong length");
  }
  std::memcpy(&last, rest, bytes);
  const Deadline patience = Deadline::after(kGraceNs);
  for (std::uint32_t channel = 0; channel < carried_channels(); ++channel) {
    const local::Lane& lane = segment_->lane(channel, from);
    while (lane.position.load(std::memory_order_acquire) < last[channel] && !group_.failed() &&
           !patience.passed()) {
      if (!fetch(channel)) std::this_thread::yield();
    }
  }
  group_.mark_left(from);
  decisions_.lose(from);
  end_hopeless(from);
  poke();
  return Status::success();
}

Status Carrier::take_credit(int from, const FrameHeader& header) {
  bool wrong = false;
  {
    const std::lock_guard lock(mutex_);
    Link& peer = link(from);
    std::uint64_t& consumed = peer.consumed[header.set];
    wrong = header.position <= consumed || header.position > peer.sent[header.set];
    if (!wrong) consumed = header.position;
  }
  if (wrong) return corrupt(from, "a credit for what was not sent or had one");
  poke();
  return Status::success();
}

}  // namespace trireme::host
