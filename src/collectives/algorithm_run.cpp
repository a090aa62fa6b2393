#include "collectives/algorithm_run.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/parts.hpp"
#include "collectives/combine.hpp"
#include "kernels/reduce.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "schedules/schedule.hpp"

namespace trireme {
namespace {

constexpr std::uint64_t kLine = 64;
// A collective is run in sections, so that what lies between its messages stays small, and so that
// the messages of one channel never fill what a backend keeps for those that are not asked for yet.
constexpr std::uint64_t kSectionBytes = 32u << 20;
constexpr std::uint64_t kMessageBytes = 4u << 20;

// Every tag of an algorithm's context is this one: between two ranks the messages match in order.
constexpr std::uint64_t kDataTag = 1;

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

Algorithm forced(const Operation& operation) {
  return static_cast<Algorithm>(operation.algorithm);
}

// Bytes of all that one rank gives or gets, whichever is the whole.
std::uint64_t whole_bytes(const Operation& operation, Pattern pattern, int world_size) {
  const std::uint64_t size = dtype_size(operation.dtype);
  const auto n = static_cast<std::uint64_t>(world_size);
  std::uint64_t elements = operation.count;
  if (!operation.counts.empty()) {
    elements = std::accumulate(operation.counts.begin(), operation.counts.end(), std::uint64_t{0});
    if (pattern == Pattern::all_to_all) elements /= n;
  } else if (pattern != Pattern::all_reduce && pattern != Pattern::reduce &&
             pattern != Pattern::broadcast) {
    elements *= n;  // of blocks; all of them together are memory of somebody
  }
  std::uint64_t bytes = 0;
  return __builtin_mul_overflow(elements, size, &bytes) ? UINT64_MAX : bytes;
}

// Most blocks that one message of such a schedule holds.
std::uint64_t blocks_of_message(Pattern pattern, Algorithm algorithm, std::uint64_t ranks) {
  switch (algorithm) {
    case Algorithm::halving_doubling:
    case Algorithm::bruck:
    case Algorithm::binomial:
      return pattern == Pattern::broadcast || pattern == Pattern::reduce ? 1 : ranks;
    default:
      return 1;
  }
}

}  // namespace

std::byte* Scratch::get(std::uint64_t bytes) {
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
  // Of a group that has failed nobody may know what it had. The operation says why it failed.
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
        how_{operation.dtype, operation.reduction, operation.scale,
             static_cast<std::uint32_t>(n_)} {
    sums_in_output_ = !reduces(op_.kind) || partial_size(op_.dtype) == size_;
  }

  Status execute() {
    TRIREME_RETURN_IF_ERROR(
        backend_.agree(op_, sequence_, deadline_, &gives_));
    TRIREME_RETURN_IF_ERROR(failpoint(point_, "before_move"));
    plan();
    const std::uint64_t longest = longest_block();
    if (pattern_ == Pattern::barrier) {
      if (forced(op_) != Algorithm::automatic) TRIREME_RETURN_IF_ERROR(run_section());
    }
    for (std::uint64_t first = 0; first < longest; first += section_) {
      section_begin_ = first;
      TRIREME_RETURN_IF_ERROR(run_section());
    }
    TRIREME_RETURN_IF_ERROR(visit_middle());
    TRIREME_RETURN_IF_ERROR(failpoint(point_, "after_move"));
    return failpoint(point_, "before_leave");
  }

 private:
  // Where a block lies, in elements.
  struct Extent {
    std::uint64_t input = 0;
    std::uint64_t output = 0;
    std::uint64_t count = 0;
    bool has_output = false;  // on this rank
  };

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
    extents_.resize(schedule_.blocks);
    for (std::uint32_t b = 0; b < schedule_.blocks; ++b) extents_[b] = extent(b);
    choose_section(request.algorithm);
    place_spares();
  }

  Extent extent(std::uint32_t block) const {
    const auto number = static_cast<int>(block);
    const auto made = [](const Part& part, bool has_output) {
      return Extent{part.from, part.to, part.count, has_output};
    };
    switch (pattern_) {
      case Pattern::reduce_scatter: return made(part(op_, n_, me_, number), number == me_);
      case Pattern::all_gather: return made(part(op_, n_, number, me_), true);
      case Pattern::gather: return made(part(op_, n_, number, op_.root), me_ == op_.root);
      case Pattern::scatter: return made(part(op_, n_, op_.root, number), number == me_);
      case Pattern::all_to_all:
        return made(part(op_, n_, number / n_, number % n_), number % n_ == me_);
      default: break;
    }
    // A buffer cut into equal blocks of whole cache lines.
    const std::uint64_t blocks = schedule_.blocks;
    const std::uint64_t line = kLine / size_;
    const std::uint64_t share = op_.count / blocks + (op_.count % blocks != 0);
    const std::uint64_t length = (share + line - 1) / line * line;
    const std::uint64_t begin = std::min(op_.count, length * block);
    const bool has_output = pattern_ != Pattern::reduce || me_ == op_.root;
    return {begin, begin, std::min(op_.count - begin, length), has_output};
  }

  std::uint64_t longest_block() const {
    std::uint64_t longest = 0;
    for (const Extent& each : extents_) longest = std::max(longest, each.count);
    return longest;
  }

  // The same on all ranks: it depends on what they agree on alone.
  void choose_section(Algorithm algorithm) {
    const auto ranks = static_cast<std::uint64_t>(n_);
    const std::uint64_t element = std::max(size_, partial_size(op_.dtype));
    const std::uint64_t message =
        kMessageBytes / element / blocks_of_message(pattern_, algorithm, ranks);
    // Spares are at most two for each rank, and partial blocks as many as there are.
    const std::uint64_t partials = pattern_ == Pattern::all_to_all ? 0 : schedule_.blocks;
    const std::uint64_t memory = kSectionBytes / element / (2 * ranks + 2 + partials);
    section_ = std::max<std::uint64_t>(std::min(message, memory), kLine);
  }

  std::uint64_t count(std::uint32_t block) const {
    const std::uint64_t all = extents_[block].count;
    return all <= section_begin_ ? 0 : std::min(section_, all - section_begin_);
  }

  // --- memory ---

  bool needs_spare(const Slot& slot) const {
    if (slot.place == Place::partial) {
      return !sums_in_output_ || !extents_[slot.block].has_output;
    }
    return slot.place == Place::spare || slot.place == Place::spare_partial;
  }
  std::uint64_t element_bytes(const Slot& slot) const {
    return slot.is_partial() ? partial_size(op_.dtype) : size_;
  }
  std::vector<std::uint64_t>& spares_of(const Slot& slot) {
    return spares_[slot.place == Place::spare ? 0 : slot.place == Place::spare_partial ? 1 : 2];
  }
  static std::size_t number_of(const Slot& slot) {
    return slot.place == Place::partial ? slot.block : slot.index;
  }

  template <class Visit>
  void for_each_slot(Visit visit) {
    for (const Step& step : schedule_.first) visit_step(step, visit);
    for (const Round& round : schedule_.rounds) {
      for (const Transfer& send : round.sends) {
        for (const Slot& slot : send.slots) visit(slot);
      }
      for (const Transfer& receive : round.receives) {
        for (const Slot& slot : receive.slots) visit(slot);
      }
      for (const Step& step : round.then) visit_step(step, visit);
    }
  }
  template <class Visit>
  static void visit_step(const Step& step, Visit& visit) {
    visit(step.destination);
    for (const Slot& slot : step.sources) visit(slot);
  }

  // Every spare gets room for the longest block that it will hold, and each message that is made of
  // several places a room to be packed in.
  void place_spares() {
    for_each_slot([&](const Slot& slot) {
      if (!needs_spare(slot)) return;
      std::vector<std::uint64_t>& spares = spares_of(slot);
      if (spares.size() <= number_of(slot)) spares.resize(number_of(slot) + 1, 0);
      const std::uint64_t bytes =
          std::min(section_, extents_[slot.block].count) * element_bytes(slot);
      spares[number_of(slot)] = std::max(spares[number_of(slot)], bytes);
    });
    std::uint64_t end = 0;
    const auto take = [&](std::uint64_t bytes) {
      return std::exchange(end, end + (bytes + kLine - 1) / kLine * kLine);
    };
    for (std::vector<std::uint64_t>& spares : spares_) {
      for (std::uint64_t& spare : spares) spare = take(spare);
    }
    packing_ = end;
    std::uint64_t most = 0;
    for (const Round& round : schedule_.rounds) {
      std::uint64_t bytes = 0;
      for (const Transfer& send : round.sends) bytes += packed_bytes(send);
      for (const Transfer& receive : round.receives) bytes += packed_bytes(receive);
      most = std::max(most, bytes);
    }
    memory_ = scratch_.get(end + most);
  }

  std::uint64_t packed_bytes(const Transfer& transfer) const {
    if (transfer.slots.size() < 2) return 0;
    std::uint64_t bytes = kLine;
    for (const Slot& slot : transfer.slots) {
      bytes += std::min(section_, extents_[slot.block].count) * element_bytes(slot);
    }
    return bytes;
  }

  // Of the section at hand.
  std::byte* locate(const Slot& slot) {
    if (needs_spare(slot)) return memory_ + spares_of(slot)[number_of(slot)];
    const Extent& block = extents_[slot.block];
    if (slot.place == Place::input) {
      auto* const all = const_cast<std::byte*>(static_cast<const std::byte*>(op_.send));
      return all == nullptr ? nullptr : all + (block.input + section_begin_) * size_;
    }
    auto* const all = static_cast<std::byte*>(op_.receive);
    return all == nullptr ? nullptr : all + (block.output + section_begin_) * size_;
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
    const std::uint64_t elements = count(step.destination.block);
    if (elements == 0) return;
    if (op_.kind == OperationKind::fold) return fold(step, elements);
    if (!reduces(op_.kind)) {
      return kernels::copy(locate(step.destination), locate(step.sources[0]), elements * size_);
    }
    operands_.clear();
    for (const Slot& source : step.sources) {
      operands_.push_back({locate(source), source.is_partial()});
    }
    combine(how_, locate(step.destination), step.destination.is_partial(), operands_, elements);
  }

  // The schedule is the direct one: the sources are those of all ranks, in their order.
  void fold(const Step& step, std::uint64_t elements) {
    std::vector<const void*> sources(static_cast<std::size_t>(n_), nullptr);
    for (std::size_t rank = 0; rank < sources.size(); ++rank) {
      if (gives_[rank]) sources[rank] = locate(step.sources[rank]);
    }
    op_.fold(section_begin_, elements, sources.data(), static_cast<std::uint32_t>(n_));
  }

  // A message on its way, and where its bytes come from or go to if not from one place.
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
    std::uint64_t packed = packing_;
    // Receives first: what arrives finds its place.
    for (const Transfer& receive : round.receives) {
      add(OperationKind::receive, receive, receive.peer, &packed);
    }
    for (const Transfer& send : round.sends) add(OperationKind::send, send, me_, &packed);
    if (batch_.empty()) return Status::success();
    TRIREME_RETURN_IF_ERROR(messages_.exchange(backend_, batch_, op_.as_called().kind, sequence_,
                                               deadline_));
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      if (moving_[i].unpack != nullptr) unpack(moving_[i]);
    }
    return Status::success();
  }

  // `giver` is whose contribution it would be in a fold, where it may be absent.
  void add(OperationKind kind, const Transfer& transfer, int giver, std::uint64_t* packed) {
    if (op_.kind == OperationKind::fold && !gives_[static_cast<std::size_t>(giver)]) return;
    std::uint64_t bytes = 0;
    std::byte* data = nullptr;
    bool in_one_place = true;
    for (const Slot& slot : transfer.slots) {
      const std::uint64_t here = count(slot.block) * element_bytes(slot);
      if (here == 0) continue;
      std::byte* const place = locate(slot);
      if (data == nullptr) data = place;
      in_one_place = in_one_place && place == data + bytes;
      bytes += here;
    }
    if (bytes == 0 && !transfer.slots.empty()) return;  // the peer knows, too
    Moving& moving = moving_[batch_.size()];
    moving.unpack = nullptr;
    if (!in_one_place) {
      data = memory_ + *packed;
      *packed += (bytes + kLine - 1) / kLine * kLine;
      if (kind == OperationKind::send) pack(transfer, data);
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

  void pack(const Transfer& transfer, std::byte* to) {
    for (const Slot& slot : transfer.slots) {
      const std::uint64_t bytes = count(slot.block) * element_bytes(slot);
      if (bytes > 0) std::memcpy(to, locate(slot), bytes);
      to += bytes;
    }
  }

  void unpack(const Moving& moving) {
    const auto* from = static_cast<const std::byte*>(moving.message.data);
    for (const Slot& slot : moving.unpack->slots) {
      const std::uint64_t bytes = count(slot.block) * element_bytes(slot);
      if (bytes > 0) std::memcpy(locate(slot), from, bytes);
      from += bytes;
    }
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
  bool sums_in_output_ = false;  // partial blocks lie where the finished ones will

  std::vector<bool> gives_;  // by rank: whether it contributes to a fold
  Schedule schedule_;
  std::vector<Extent> extents_;     // by block
  std::uint64_t section_ = 1;       // elements of every block that go together
  std::uint64_t section_begin_ = 0;
  // Spare values, spare partials, and partials without an output: bytes, then offsets in memory_.
  std::vector<std::uint64_t> spares_[3];
  std::uint64_t packing_ = 0;  // offset of what is left for packing
  std::byte* memory_ = nullptr;
  std::vector<Operand> operands_;
  std::unique_ptr<Moving[]> moving_;
  std::size_t moving_size_ = 0;
  std::vector<Message*> batch_;  // moving_[0], moving_[1], ...
  bool visited_middle_ = false;
};

}  // namespace

Status run_algorithm(Backend& backend, MessageQueue& messages, const Records& records,
                     Scratch& scratch, const Operation& operation, std::uint64_t sequence,
                     Deadline deadline) {
  // What went on before this one ended it for all.
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
    // What this rank saw itself is true whatever came first.
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
