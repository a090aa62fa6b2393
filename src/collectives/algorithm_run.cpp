#include "collectives/algorithm_run.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/block_memory.hpp"
#include "collectives/combine.hpp"
#include "kernels/reduce.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "schedules/schedule.hpp"

namespace trireme {
namespace {

// Every message of an algorithm has this tag: between two ranks the messages match in order.
constexpr std::uint64_t kDataTag = 1;
// The piece of a message on a wire: the next ones are on their way while one is used, and it is
// still in the caches then.
constexpr std::uint64_t kPieceBytes = 256u << 10;

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

Algorithm forced(const Operation& operation) { return static_cast<Algorithm>(operation.algorithm); }

// Bytes that one rank gives or gets, whichever side is the whole.
std::uint64_t whole_bytes(const Operation& operation, Pattern pattern, int world_size) {
  const std::uint64_t size = dtype_size(operation.dtype);
  const auto n = static_cast<std::uint64_t>(world_size);
  std::uint64_t elements = operation.count;
  if (!operation.counts.empty()) {
    elements = std::accumulate(operation.counts.begin(), operation.counts.end(), std::uint64_t{0});
    if (pattern == Pattern::all_to_all) elements /= n;
  } else if (pattern != Pattern::all_reduce && pattern != Pattern::reduce &&
             pattern != Pattern::broadcast) {
    elements *= n;  // of blocks; a rank's memory holds all of them together
  }
  std::uint64_t bytes = 0;
  return __builtin_mul_overflow(elements, size, &bytes) ? UINT64_MAX : bytes;
}

}  // namespace

std::byte* Scratch::get(std::uint64_t bytes) {
  constexpr std::uint64_t kLine = BlockMemory::kLine;
  if (bytes_ < bytes + kLine) {
    memory_.reset();
    bytes_ = 0;
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes + kLine);
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
        how_{operation.dtype, operation.reduction, operation.scale, static_cast<std::uint32_t>(n_)},
        blocks_(op_, pattern_, me_, n_) {}

  Status execute() {
    if (backend_.has_wire(op_)) {
      // The backend visits the failpoints.
      visited_middle_ = true;
      return backend_.run_over_wire(op_, sequence_, deadline_,
                                    [this](Wire& wire, std::uint64_t ticket) {
                                      wire_ = &wire;
                                      ticket_ = ticket;
                                      return move();
                                    });
    }
    TRIREME_RETURN_IF_ERROR(backend_.agree(op_, sequence_, deadline_, &gives_));
    TRIREME_RETURN_IF_ERROR(failpoint(point_, "before_move"));
    TRIREME_RETURN_IF_ERROR(move());
    TRIREME_RETURN_IF_ERROR(failpoint(point_, "after_move"));
    return failpoint(point_, "before_leave");
  }

 private:
  Status move() {
    plan();
    const std::uint64_t longest = blocks_.longest_block();
    if (pattern_ == Pattern::barrier) {
      if (forced(op_) != Algorithm::automatic) TRIREME_RETURN_IF_ERROR(run_section());
    }
    for (std::uint64_t first = 0; first < longest; first += blocks_.section()) {
      blocks_.begin_section(first);
      TRIREME_RETURN_IF_ERROR(run_section());
    }
    return visit_middle();
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
    blocks_.use(scratch_.get(blocks_.plan(schedule_, request.algorithm)));
  }

  // --- one section ---

  Status run_section() {
    for (const Step& step : schedule_.first) run_step(step);
    for (const Round& round : schedule_.rounds) {
      TRIREME_RETURN_IF_ERROR(exchange(round));
      TRIREME_RETURN_IF_ERROR(visit_middle());
      for (const Step& step : round.then) run_step(step);
    }
    return Status::success();
  }

  void run_step(const Step& step) {
    const std::uint64_t elements = blocks_.count(step.destination.block);
    if (elements == 0) return;
    if (op_.kind == OperationKind::fold) return fold(step, elements);
    if (!reduces(op_.kind)) {
      return kernels::copy(blocks_.locate(step.destination), blocks_.locate(step.sources[0]),
                           elements * size_);
    }
    operands_.clear();
    for (const Slot& source : step.sources) {
      operands_.push_back({blocks_.locate(source), source.is_partial()});
    }
    combine(how_, blocks_.locate(step.destination), step.destination.is_partial(), operands_,
            elements);
  }

  // The schedule is the direct one: the sources are the ranks' blocks, in the order of ranks.
  void fold(const Step& step, std::uint64_t elements) {
    std::vector<const void*> sources(static_cast<std::size_t>(n_), nullptr);
    for (std::size_t rank = 0; rank < sources.size(); ++rank) {
      if (gives_[rank]) sources[rank] = blocks_.locate(step.sources[rank]);
    }
    op_.fold(blocks_.section_begin(), elements, sources.data(), static_cast<std::uint32_t>(n_));
  }

  // A message under way, and its packing buffer if its bytes lie in several places.
  struct Moving {
    Message message;
    const Transfer* unpack = nullptr;
  };

  Status exchange(const Round& round) {
    const std::size_t most = round.sends.size() + round.receives.size();
    if (moving_size_ < most) {
      moving_ = std::make_unique<Moving[]>(most);
      moving_size_ = most;
    }
    batch_.clear();
    std::byte* packed = blocks_.packing();
    // Receives first: so that incoming bytes find their place.
    for (const Transfer& receive : round.receives) {
      add(OperationKind::receive, receive, receive.peer, &packed);
    }
    for (const Transfer& send : round.sends) add(OperationKind::send, send, me_, &packed);
    if (batch_.empty()) return Status::success();
    TRIREME_RETURN_IF_ERROR(
        wire_ != nullptr
            ? exchange_by_wire()
            : messages_.exchange(backend_, batch_, op_.as_called().kind, sequence_, deadline_));
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      const Moving& moved = moving_[i];
      if (moved.unpack == nullptr) continue;
      blocks_.unpack(*moved.unpack, static_cast<const std::byte*>(moved.message.data));
    }
    return Status::success();
  }

  // The pieces of a round on the wire. Whatever ends the round, none is under way afterwards.
  class Pieces {
   public:
    Pieces(Wire& wire, std::size_t most)
        : wire_(wire), transfers_(std::make_unique<Wire::Transfer[]>(most)) {}
    ~Pieces() {
      for (std::size_t i = 0; i < posted_; ++i) wire_.drop(transfers_[i]);
    }
    Pieces(const Pieces&) = delete;
    Pieces& operator=(const Pieces&) = delete;
    Status post(const Message& message, std::uint64_t from, std::uint64_t ticket) {
      Wire::Transfer& next = transfers_[posted_];
      next.peer = message.peer;
      next.ticket = ticket;
      next.data = static_cast<std::byte*>(message.data) + from;
      next.bytes = std::min(kPieceBytes, message.count - from);
      const bool sends = message.kind == OperationKind::send;
      TRIREME_RETURN_IF_ERROR(sends ? wire_.send(next) : wire_.receive(next));
      ++posted_;
      return Status::success();
    }
    Status wait(Deadline deadline) {
      for (std::size_t i = 0; i < posted_; ++i) {
        TRIREME_RETURN_IF_ERROR(wire_.wait(transfers_[i], deadline));
      }
      return Status::success();
    }

   private:
    Wire& wire_;
    std::unique_ptr<Wire::Transfer[]> transfers_;
    std::size_t posted_ = 0;
  };

  static std::size_t pieces_of(const Message& message) {
    return std::max<std::size_t>(1, (message.count + kPieceBytes - 1) / kPieceBytes);
  }

  // All pieces of a round between two ranks have the slot 0: they arrive in order.
  Status exchange_by_wire() {
    std::size_t most = 0;
    for (const Message* const message : batch_) most += pieces_of(*message);
    Pieces pieces(*wire_, most);
    for (const Message* const message : batch_) {
      for (std::size_t i = 0; i < pieces_of(*message); ++i) {
        TRIREME_RETURN_IF_ERROR(pieces.post(*message, i * kPieceBytes, ticket_));
      }
    }
    return pieces.wait(deadline_);
  }

  // `giver` is the rank whose block it would be in a fold, where that rank may be absent.
  void add(OperationKind kind, const Transfer& transfer, int giver, std::byte** packed) {
    if (op_.kind == OperationKind::fold && !gives_[static_cast<std::size_t>(giver)]) return;
    std::uint64_t bytes = 0;
    std::byte* data = nullptr;
    bool in_one_place = true;
    for (const Slot& slot : transfer.slots) {
      const std::uint64_t here = blocks_.count(slot.block) * blocks_.element_bytes(slot);
      if (here == 0) continue;
      std::byte* const place = blocks_.locate(slot);
      if (data == nullptr) data = place;
      in_one_place = in_one_place && place == data + bytes;
      bytes += here;
    }
    if (bytes == 0 && !transfer.slots.empty()) return;  // the peer knows, too
    Moving& moving = moving_[batch_.size()];
    moving.unpack = nullptr;
    if (!in_one_place) {
      constexpr std::uint64_t kLine = BlockMemory::kLine;
      data = *packed;
      *packed += (bytes + kLine - 1) / kLine * kLine;
      if (kind == OperationKind::send) blocks_.pack(transfer, data);
      if (kind == OperationKind::receive) moving.unpack = &transfer;
    }
    Message& message = moving.message;
    message.status = Status::success();
    message.done.store(false, std::memory_order_relaxed);
    message.matched = false;
    message.moved_bytes = 0;
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
    batch_.push_back(&message);
  }

  Status visit_middle() {
    if (visited_middle_) return Status::success();
    visited_middle_ = true;
    return failpoint(point_, "mid_move");
  }

  Backend& backend_;
  MessageQueue& messages_;
  const std::string& group_;
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
  BlockMemory blocks_;
  std::vector<Operand> operands_;
  std::unique_ptr<Moving[]> moving_;
  std::size_t moving_size_ = 0;
  std::vector<Message*> batch_;  // moving_[0], moving_[1], ...
  bool visited_middle_ = false;
  Wire* wire_ = nullptr;      // null: messages make the collective
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
