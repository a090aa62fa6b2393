#include "collectives/algorithm_run.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/last_calls.hpp"
#include "collectives/block_memory.hpp"
#include "collectives/combine.hpp"
#include "kernels/reduce.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "platform/stall.hpp"
#include "schedules/schedule.hpp"

namespace trireme {
namespace {

// Every message of an algorithm has this tag: between two ranks the messages match in order.
constexpr std::uint64_t kDataTag = 1;
// Most bytes of a message, on a wire or not. On a wire sections are under way side by side: one is
// computed, still in the caches, while others move. Else a message needs room at the backend.
constexpr std::uint64_t kWireBytes = 256u << 10;
constexpr std::uint64_t kMessageBytes = 4u << 20;
constexpr std::size_t kSections = 4;
static_assert(kSections <= Wire::kSlots);

std::uint64_t bytes_of(std::uint64_t elements, trireme_dtype dtype) {
  std::uint64_t bytes = 0;
  return __builtin_mul_overflow(elements, dtype_size(dtype), &bytes) ? UINT64_MAX : bytes;
}

}  // namespace

std::optional<Pattern> pattern_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::all_reduce: return Pattern::all_reduce;
    case OperationKind::reduce_scatter:
    case OperationKind::reduce_scatter_v:
    case OperationKind::fold: return Pattern::reduce_scatter;
    case OperationKind::all_gather:
    case OperationKind::all_gather_v: return Pattern::all_gather;
    case OperationKind::broadcast: return Pattern::broadcast;
    case OperationKind::reduce: return Pattern::reduce;
    case OperationKind::gather:
    case OperationKind::gather_v: return Pattern::gather;
    case OperationKind::scatter:
    case OperationKind::scatter_v: return Pattern::scatter;
    case OperationKind::all_to_all:
    case OperationKind::all_to_all_v: return Pattern::all_to_all;
    case OperationKind::barrier: return Pattern::barrier;
    default: return std::nullopt;
  }
}

std::uint64_t whole_bytes(const PlainOperation& operation, Pattern pattern,
                          int world_size) noexcept {
  const bool is_whole =
      pattern == Pattern::all_reduce || pattern == Pattern::reduce || pattern == Pattern::broadcast;
  // Else it has blocks; a rank's memory holds all of them together.
  const std::uint64_t elements =
      operation.count * (is_whole ? 1 : static_cast<std::uint64_t>(world_size));
  return bytes_of(elements, operation.dtype);
}

std::uint64_t whole_bytes(const Operation& operation, Pattern pattern, int world_size) {
  if (operation.counts.empty()) {
    return whole_bytes(static_cast<const PlainOperation&>(operation), pattern, world_size);
  }
  std::uint64_t elements =
      std::accumulate(operation.counts.begin(), operation.counts.end(), std::uint64_t{0});
  if (pattern == Pattern::all_to_all) elements /= static_cast<std::uint64_t>(world_size);
  return bytes_of(elements, operation.dtype);
}

namespace {

Algorithm forced(const Operation& operation) { return static_cast<Algorithm>(operation.algorithm); }

}  // namespace

std::byte* Scratch::get(std::uint64_t bytes) {
  constexpr std::uint64_t kLine = BlockMemory::kLine;
  if (bytes_ < bytes + kLine) {
    memory_.reset();
    bytes_ = 0;
    memory_ = std::make_shared_for_overwrite<std::byte[]>(bytes + kLine);
    bytes_ = bytes + kLine;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
  return memory_.get() + (kLine - address % kLine) % kLine;
}

Status check_algorithm(const Backend& backend, const Operation& operation) {
  const Algorithm algorithm = forced(operation);
  if (algorithm == Algorithm::automatic) return Status::success();
  const std::optional<Pattern> pattern = pattern_of(operation.kind);
  const std::string name = operation_name(operation.kind);
  if (!pattern.has_value() || operation.kind == OperationKind::fold) {
    return unsupported(name + " has no algorithm to choose");
  }
  if (supports(algorithm, *pattern)) return Status::success();
  const bool native = backend.has_native(operation);
  if (algorithm == Algorithm::native && native) return Status::success();
  // After a failure of the group its native algorithms may be unknown. So the operation itself
  // reports the failure.
  if (algorithm == Algorithm::native && !backend.failure().ok()) return Status::success();
  return unsupported(name + " has no algorithm " + algorithm_name(algorithm) + " on backend \"" +
                     backend.description() + "\"; it has " + supported_algorithms(*pattern) +
                     (native ? ", and native" : ""));
}

bool runs_natively(const Backend& backend, const Operation& operation) {
  const Algorithm algorithm = forced(operation);
  if (algorithm == Algorithm::automatic) return backend.prefers_native(operation);
  return algorithm == Algorithm::native;
}

namespace {

class Run {
 public:
  Run(Backend& backend, MessageQueue& messages, const Records& records, Scratch& scratch,
      const Operation& operation, std::uint64_t sequence, Deadline deadline)
      : backend_(backend),
        messages_(messages),
        group_(records.name),
        // All ranks have called a fold before it moves. Of the others the backend tells which ranks
        // have not called, while those that have wait for each other.
        stall_ns_(operation.kind == OperationKind::fold ? records.stall_ns : kNeverStalls),
        scratch_(scratch),
        op_(operation),
        sequence_(sequence),
        deadline_(deadline),
        name_(operation_name(operation.as_called().kind)),
        point_(failpoint_name(operation.as_called().kind)),
        me_(backend.rank()),
        n_(backend.world_size()),
        size_(dtype_size(operation.dtype)),
        pattern_(*pattern_of(operation.kind)),
        how_{operation.dtype, operation.reduction, operation.scale,
             static_cast<std::uint32_t>(n_)} {}

  Status execute() {
    const auto over = [this](Wire& wire, std::uint64_t ticket) {
      wire_ = &wire;
      ticket_ = ticket;
      return move();
    };
    const std::optional<Status> moved =
        backend_.run_over_wire(op_, sequence_, deadline_, &gives_, over);
    if (moved.has_value()) return *moved;
    TRIREME_RETURN_IF_ERROR(backend_.agree(op_, sequence_, deadline_, &gives_));
    TRIREME_RETURN_IF_ERROR(failpoint(point_, "before_move"));
    TRIREME_RETURN_IF_ERROR(move());
    TRIREME_RETURN_IF_ERROR(failpoint(point_, "after_move"));
    return failpoint(point_, "before_leave");
  }

 private:
  // A message under way, and its packing buffer if its bytes lie in several places.
  struct Moving {
    Message message;
    Wire::Transfer transfer;
    const Transfer* unpack = nullptr;
  };

  // The messages of a round in one direction.
  struct Half {
    std::unique_ptr<Moving[]> moving;
    std::size_t room = 0;
    std::size_t count = 0;   // messages
    std::size_t posted = 0;  // of them, on the wire

    void clear(std::size_t most) {
      count = 0;
      if (room >= most) return;
      moving = std::make_unique<Moving[]>(most);
      room = most;
    }
    void drop(Wire& wire) noexcept {
      for (; posted > 0; --posted) wire.drop(moving[posted - 1].transfer);
    }
  };

  // A section under way. Whatever ends the run, none of its messages is left on the wire.
  struct Section {
    Section(const BlockMemory& planned, Wire* over) : blocks(planned), wire(over) {}
    Section(Section&& other) noexcept = default;  // before its first message
    ~Section() {
      if (wire == nullptr) return;
      for (Half* const half : {&receives[0], &receives[1], &sends}) half->drop(*wire);
    }
    Half& incoming() { return receives[round % 2]; }

    BlockMemory blocks;
    Half receives[2];  // by round
    Half sends;
    Wire* const wire;
    std::size_t round = 0;
    bool announced = false;  // the receives of the next round to post are on the wire
    bool under_way = false;
  };

  Status move() {
    plan();
    const std::uint64_t longest = sections_[0].blocks.longest_block();
    if (pattern_ == Pattern::barrier && forced(op_) != Algorithm::automatic) {
      TRIREME_RETURN_IF_ERROR(begin(sections_[0], 0));
    }
    std::uint64_t first = 0;
    for (std::size_t turn = 0;; turn = (turn + 1) % sections_.size()) {
      Section& section = sections_[turn];
      if (section.under_way) {
        TRIREME_RETURN_IF_ERROR(advance(section));
        if (section.under_way) continue;
      }
      if (first < longest) {
        TRIREME_RETURN_IF_ERROR(begin(section, first));
        first += section.blocks.section();
      } else if (none_is_under_way()) {
        if (wire_ != nullptr) wire_->go();  // the call, if no byte has gone
        return visit_middle();
      }
    }
  }

  bool none_is_under_way() const {
    return std::none_of(sections_.begin(), sections_.end(),
                        [](const Section& each) { return each.under_way; });
  }

  void plan() {
    ScheduleRequest request;
    request.pattern = pattern_;
    request.rank = me_;
    request.world_size = n_;
    request.root = has_root(op_.kind) ? op_.root : 0;
    request.rank_order = op_.reproducible;
    const std::uint64_t bytes = whole_bytes(op_, pattern_, n_);
    request.algorithm = op_.kind == OperationKind::fold ? Algorithm::direct : forced(op_);
    if (request.algorithm == Algorithm::automatic) {
      request.algorithm = choose_algorithm(pattern_, bytes, n_, op_.reproducible);
    }
    request.pieces = pipeline_pieces(pattern_, request.algorithm, bytes, n_);
    schedule_ = make_schedule(request);
    BlockMemory planned(op_, pattern_, me_, n_);
    constexpr std::uint64_t kLine = BlockMemory::kLine;
    const std::uint64_t planned_bytes =
        wire_ == nullptr ? planned.plan(schedule_, request.algorithm, kMessageBytes, 1)
                         : planned.plan(schedule_, request.algorithm, kWireBytes, kSections);
    const std::uint64_t room = (planned_bytes + kLine - 1) / kLine * kLine;
    const std::uint64_t sections =
        (planned.longest_block() + planned.section() - 1) / planned.section();
    announced_ = sections > kSections;
    const std::size_t side_by_side =
        wire_ == nullptr ? 1 : std::clamp<std::size_t>(sections, 1, kSections);
    std::byte* memory = scratch_.get(room * side_by_side);
    sections_.reserve(side_by_side);
    for (std::size_t i = 0; i < side_by_side; ++i, memory += room) {
      sections_.emplace_back(planned, wire_).blocks.use(memory);
    }
  }

  // --- one section ---

  Status begin(Section& section, std::uint64_t first) {
    section.blocks.begin_section(first);
    section.round = 0;
    section.announced = false;
    section.under_way = true;
    for (const Step& step : schedule_.first) run_step(section.blocks, step);
    return post(section);
  }

  // Ends the round that is under way, and posts the next one.
  Status advance(Section& section) {
    if (section.round < schedule_.rounds.size()) {
      TRIREME_RETURN_IF_ERROR(finish(section));
      for (const Step& step : schedule_.rounds[section.round].then) run_step(section.blocks, step);
      ++section.round;
    }
    section.under_way = section.round < schedule_.rounds.size();
    return section.under_way ? post(section) : Status::success();
  }

  void run_step(BlockMemory& blocks, const Step& step) {
    const std::uint64_t elements = blocks.count(step.destination.block);
    if (elements == 0) return;
    if (op_.kind == OperationKind::fold) return fold(blocks, step, elements);
    if (!reduces(op_.kind)) {
      return kernels::copy(blocks.locate(step.destination), blocks.locate(step.sources[0]),
                           elements * size_);
    }
    operands_.clear();
    for (const Slot& source : step.sources) {
      operands_.push_back({blocks.locate(source), source.is_partial()});
    }
    combine(how_, blocks.locate(step.destination), step.destination.is_partial(), operands_,
            elements);
  }

  // The schedule is the direct one: the sources are the ranks' blocks, in the order of ranks.
  void fold(BlockMemory& blocks, const Step& step, std::uint64_t elements) {
    std::vector<const void*> sources(static_cast<std::size_t>(n_), nullptr);
    for (std::size_t rank = 0; rank < sources.size(); ++rank) {
      if (gives_[rank]) sources[rank] = blocks.locate(step.sources[rank]);
    }
    op_.fold(blocks.section_begin(), elements, sources.data(), static_cast<std::uint32_t>(n_));
  }

  Status post(Section& section) {
    if (section.round == schedule_.rounds.size()) return Status::success();
    const Round& round = schedule_.rounds[section.round];
    std::byte* packed = section.blocks.packing();
    // Receives first: so that incoming bytes find their place.
    if (!std::exchange(section.announced, false)) {
      TRIREME_RETURN_IF_ERROR(post_receives(section, section.round, &packed));
    }
    // A rank that dies there has sent nothing, so no other rank can end the collective without it.
    TRIREME_RETURN_IF_ERROR(visit_middle());
    section.sends.clear(round.sends.size());
    for (const Transfer& send : round.sends) {
      add(section, &section.sends, OperationKind::send, send, me_, &packed);
    }
    if (wire_ == nullptr) return Status::success();
    TRIREME_RETURN_IF_ERROR(post_on_wire(section, &section.sends));
    TRIREME_RETURN_IF_ERROR(announce(section));
    wire_->go();
    return Status::success();
  }

  Status post_receives(Section& section, std::size_t round, std::byte** packed) {
    Half& half = section.receives[round % 2];
    const std::vector<Transfer>& receives = schedule_.rounds[round].receives;
    half.clear(receives.size());
    for (const Transfer& receive : receives) {
      add(section, &half, OperationKind::receive, receive, receive.peer, packed);
    }
    return wire_ == nullptr ? Status::success() : post_on_wire(section, &half);
  }

  // The receives of the next round are announced during this one, where that round's bytes may come
  // now: so its senders need not wait for the announcement.
  Status announce(Section& section) {
    const std::size_t next = section.round + 1;
    if (next >= schedule_.rounds.size() || !may_come_early(section, next)) return Status::success();
    section.announced = true;
    return post_receives(section, next, nullptr);
  }

  struct Range {
    const std::byte* begin;
    const std::byte* end;
  };

  Range range_of(BlockMemory& blocks, const Slot& slot) {
    const std::uint64_t bytes = blocks.count(slot.block) * blocks.element_bytes(slot);
    if (bytes == 0) return {nullptr, nullptr};
    const std::byte* const begin = blocks.locate(slot);
    return {begin, begin + bytes};
  }

  // Whether the round before touches no memory of that round's receives, and no receive is packed.
  bool may_come_early(Section& section, std::size_t next) {
    const Round& now = schedule_.rounds[next - 1];
    touched_.clear();
    const auto touch = [&](const Slot& slot) {
      const Range range = range_of(section.blocks, slot);
      if (range.begin != range.end) touched_.push_back(range);
    };
    for (const std::vector<Transfer>* const transfers : {&now.sends, &now.receives}) {
      for (const Transfer& transfer : *transfers) {
        for (const Slot& slot : transfer.slots) touch(slot);
      }
    }
    for (const Step& step : now.then) {
      touch(step.destination);
      for (const Slot& source : step.sources) touch(source);
    }
    for (const Transfer& receive : schedule_.rounds[next].receives) {
      if (receive.slots.size() > 1) return false;
      for (const Slot& slot : receive.slots) {
        const Range range = range_of(section.blocks, slot);
        const auto overlaps = [&](const Range& each) {
          return range.begin < each.end && each.begin < range.end;
        };
        if (std::any_of(touched_.begin(), touched_.end(), overlaps)) return false;
      }
    }
    return true;
  }

  // Messages of a section between two ranks arrive in order: they have the same slot. The section
  // whose slot it was before is over on this rank.
  Status post_on_wire(const Section& section, Half* half) {
    for (; half->posted < half->count; ++half->posted) {
      const Message& message = half->moving[half->posted].message;
      Wire::Transfer& next = half->moving[half->posted].transfer;
      next.peer = message.peer;
      next.ticket = ticket_;
      next.channel = op_.channel;
      next.slot = section.blocks.section_begin() / section.blocks.section() % kSections;
      next.data = static_cast<std::byte*>(message.data);
      next.bytes = message.count;
      next.keeper = scratch_.keeper_of(next.data);
      next.announced = announced_;
      next.later = true;
      next.done.store(false, std::memory_order_relaxed);
      const bool sends = message.kind == OperationKind::send;
      TRIREME_RETURN_IF_ERROR(sends ? wire_->send(next) : wire_->receive(next));
    }
    return Status::success();
  }

  // Waits for a transfer of the oldest section, and warns through the log while that takes long.
  Status wait(Section& section, Wire::Transfer& transfer, Stall* stall) {
    const bool waits = !transfer.done.load(std::memory_order_acquire);
    if (waits && stall->due(now_ns())) warn(section, stall->waited_ns());
    for (;;) {
      const Deadline next = stall->before(deadline_);
      const Status waited = wire_->wait(transfer, next);
      if (waited.code() != TRIREME_ERROR_TIMEOUT || !next.passed()) return waited;
      if (deadline_.passed()) return late(section, waited);
      if (stall->due(now_ns())) warn(section, stall->waited_ns());
    }
  }

  // The peers that have not taken, or not given, their part.
  static std::vector<std::int32_t> peers_of_unfinished(Section& section) {
    std::vector<std::int32_t> ranks;
    for (const Half* const half : {&section.incoming(), &section.sends}) {
      for (std::size_t i = 0; i < half->posted; ++i) {
        const Wire::Transfer& each = half->moving[i].transfer;
        if (!each.done.load(std::memory_order_acquire)) ranks.push_back(each.peer);
      }
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

  // `waited`: the wire's own failure, which knows one of them.
  static Status late(Section& section, const Status& waited) {
    FailureDetails details;
    details.blamed = peers_of_unfinished(section);
    if (details.blamed.empty()) return waited;  // done meanwhile
    const std::string text = list_ranks(details.blamed) + " did not arrive before the deadline";
    return Status::failure(TRIREME_ERROR_TIMEOUT, text).with_details(std::move(details));
  }

  void warn(Section& section, std::uint64_t waited_ns) const noexcept {
    try {
      const std::vector<std::int32_t> ranks = peers_of_unfinished(section);
      if (ranks.empty()) return;  // done meanwhile
      warn_slow(group_, me_, backend_.last_calls(), ranks,
                std::string("not done its part of ") + name_ + ", sequence " +
                    std::to_string(sequence_) + ",",
                waited_ns);
    } catch (...) {  // no memory for a line, so there is none
    }
  }

  Status finish(Section& section) {
    Half& incoming = section.incoming();
    if (wire_ != nullptr) {
      Stall stall(stall_ns_);
      for (Half* const half : {&incoming, &section.sends}) {
        for (std::size_t i = 0; i < half->posted; ++i) {
          TRIREME_RETURN_IF_ERROR(wait(section, half->moving[i].transfer, &stall));
        }
      }
      for (Half* const half : {&incoming, &section.sends}) half->drop(*wire_);
    } else {
      batch_.clear();
      for (const Half* const half : {&incoming, &section.sends}) {
        for (std::size_t i = 0; i < half->count; ++i) batch_.push_back(&half->moving[i].message);
      }
      if (batch_.empty()) return Status::success();
      TRIREME_RETURN_IF_ERROR(
          messages_.exchange(backend_, batch_, op_.as_called().kind, sequence_, deadline_));
    }
    for (std::size_t i = 0; i < incoming.count; ++i) {
      const Moving& moved = incoming.moving[i];
      if (moved.unpack == nullptr) continue;
      section.blocks.unpack(*moved.unpack, static_cast<const std::byte*>(moved.message.data));
    }
    return Status::success();
  }

  // `giver` is the rank whose block it would be in a fold, where that rank may be absent.
  void add(Section& section, Half* half, OperationKind kind, const Transfer& transfer, int giver,
           std::byte** packed) {
    if (op_.kind == OperationKind::fold && !gives_[static_cast<std::size_t>(giver)]) return;
    BlockMemory& blocks = section.blocks;
    std::uint64_t bytes = 0;
    std::byte* data = nullptr;
    bool in_one_place = true;
    for (const Slot& slot : transfer.slots) {
      const std::uint64_t here = blocks.count(slot.block) * blocks.element_bytes(slot);
      if (here == 0) continue;
      std::byte* const place = blocks.locate(slot);
      if (data == nullptr) data = place;
      in_one_place = in_one_place && place == data + bytes;
      bytes += here;
    }
    if (bytes == 0 && !transfer.slots.empty()) return;  // the peer knows, too
    Moving& moving = half->moving[half->count];
    moving.unpack = nullptr;
    if (!in_one_place) {
      constexpr std::uint64_t kLine = BlockMemory::kLine;
      data = *packed;
      *packed += (bytes + kLine - 1) / kLine * kLine;
      if (kind == OperationKind::send) blocks.pack(transfer, data);
      if (kind == OperationKind::receive) moving.unpack = &transfer;
    }
    Message& message = moving.message;
    message.status = Status::success();
    message.done.store(false, std::memory_order_relaxed);
    message.matched = false;
    message.moved_bytes = 0;
    message.lent_until = 0;
    message.kind = kind;
    message.data = data;
    message.count = bytes;
    message.dtype = TRIREME_DTYPE_BYTES;
    message.peer = transfer.peer;
    message.tag = kDataTag;
    message.context = 1 + op_.channel;
    message.part_of = name_;
    message.sequence = sequence_;
    message.deadline = deadline_;
    ++half->count;
  }

  Status visit_middle() {
    if (visited_middle_) return Status::success();
    visited_middle_ = true;
    return failpoint(point_, "mid_move");
  }

  Backend& backend_;
  MessageQueue& messages_;
  const std::string& group_;
  const std::uint64_t stall_ns_;  // of the waits on a wire
  Scratch& scratch_;
  const Operation& op_;
  const std::uint64_t sequence_;
  const Deadline deadline_;
  const char* const name_;
  const char* const point_;  // of failpoints
  const int me_;
  const int n_;
  const std::uint64_t size_;  // of one element
  const Pattern pattern_;
  const Reduction how_;

  std::vector<bool> gives_;  // by rank: whether it contributes to a fold
  Schedule schedule_;
  std::vector<Section> sections_;  // under way side by side
  std::vector<Operand> operands_;
  std::vector<Range> touched_;
  std::vector<Message*> batch_;  // the messages of a round
  bool visited_middle_ = false;
  Wire* wire_ = nullptr;      // null: messages make the collective
  bool announced_ = false;    // pieces on the wire wait for their receivers
  std::uint64_t ticket_ = 0;  // on the wire
};

}  // namespace

Status run_algorithm(Backend& backend, MessageQueue& messages, const Records& records,
                     Scratch& scratch, const Operation& operation, std::uint64_t sequence,
                     Deadline deadline) {
  // An earlier operation may have ended this one for all ranks.
  Status status = backend.failure();
  if (status.ok()) {
    Run run(backend, messages, records, scratch, operation, sequence, deadline);
    status = run.execute();
    if (status.ok()) return status;
    if (backend.failure().ok()) {
      const FailureDetails* const known = status.details();
      const bool blames = known != nullptr && !known->blamed.empty();
      const std::string rank = "rank " + std::to_string(records.rank) + ": ";
      backend.fail(make_failure(records, operation.as_called().kind, sequence, status.code(),
                                ((blames ? "" : rank) + status.message()).c_str(),
                                blames ? known->blamed : std::vector{records.rank}));
    }
    // A mismatch that this rank saw is true, whatever failed first.
    const Status first = backend.failure();
    if (status.code() != TRIREME_ERROR_MISMATCH || first.code() == TRIREME_ERROR_MISMATCH) {
      status = first;
    }
  }
  const FailureDetails* const details = status.details();
  if (details != nullptr && !details->operation.empty()) return status;
  return with_operation(records, operation.as_called().kind, sequence, status);
}

}  // namespace trireme
