#include "collectives/composite.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "backends/parts.hpp"
#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme {
namespace {

// Counts from peers are sizes of memory here: an impossible count must be refused.
Status not_sent(const std::string& what) { return Status::failure(TRIREME_ERROR_CORRUPT, what); }

// Checks that the total that rank `rank` gives fits into memory.
Status check_total(const std::uint64_t* counts, std::size_t n, std::size_t rank,
                   trireme_dtype dtype) {
  std::uint64_t total = 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (!__builtin_add_overflow(total, counts[i], &total) &&
        !__builtin_mul_overflow(total, dtype_size(dtype), &bytes) && bytes <= INT64_MAX) {
      continue;
    }
    return not_sent("rank " + std::to_string(rank) + " gives more than memory can hold");
  }
  return Status::success();
}

// This rank's own counts must come back unchanged, or a peer has written to the memory of the
// exchange.
Status check_own(const std::uint64_t* told, const std::uint64_t* own, std::size_t n, int rank) {
  if (std::equal(told, told + n, own)) return Status::success();
  return not_sent("the counts of rank " + std::to_string(rank) + ", this one, came back as others");
}

// Row r of the table holds the counts that rank r sends to each rank, then the counts that it
// expects of each. Every rank sees the whole table, so each finds the same disagreement by itself.
Status compare_expectations(const std::vector<std::uint64_t>& table, std::size_t n) {
  for (std::size_t source = 0; source < n; ++source) {
    for (std::size_t destination = 0; destination < n; ++destination) {
      const std::uint64_t sent = table[source * 2 * n + destination];
      const std::uint64_t expected = table[destination * 2 * n + n + source];
      if (sent == expected) continue;
      FailureDetails details;
      details.blamed = {static_cast<std::int32_t>(std::min(source, destination))};
      if (source != destination) {
        details.blamed.push_back(static_cast<std::int32_t>(std::max(source, destination)));
      }
      return Status::failure(TRIREME_ERROR_MISMATCH,
                             "rank " + std::to_string(source) + " sends " + std::to_string(sent) +
                                 " elements to rank " + std::to_string(destination) +
                                 ", which expects " + std::to_string(expected))
          .with_details(std::move(details));
    }
  }
  return Status::success();
}

}  // namespace

Operation step_of(const Operation& called) {
  Operation step;
  step.channel = called.channel;
  step.kind = called.kind;
  step.dtype = called.dtype;
  step.reduction = called.reduction;
  step.root = called.root;
  step.scale = called.scale;
  step.agreement = called.agreement;
  step.agreement_name = called.agreement_name;
  step.called = &called;
  return step;
}

void make_all_to_all_v(Operation* operation, int rank, int world_size) {
  operation->count = 0;  // ranks have different counts
  const auto called = std::make_shared<const Operation>(*operation);
  operation->counts.clear();
  operation->program = [called, rank,
                        n = static_cast<std::size_t>(world_size)](Steps& steps) -> Status {
    std::vector<std::uint64_t> table(2 * n * n);
    Operation exchange = step_of(*called);
    exchange.kind = OperationKind::all_gather;
    exchange.dtype = TRIREME_DTYPE_U64;
    exchange.count = 2 * n;
    exchange.send = called->counts.data();
    exchange.receive = table.data();
    TRIREME_RETURN_IF_ERROR(steps.run(exchange));
    const std::uint64_t* const mine = table.data() + 2 * n * static_cast<std::size_t>(rank);
    TRIREME_RETURN_IF_ERROR(check_own(mine, called->counts.data(), 2 * n, rank));
    TRIREME_RETURN_IF_ERROR(compare_expectations(table, n));
    for (std::size_t row = 0; row < n; ++row) {
      TRIREME_RETURN_IF_ERROR(check_total(table.data() + 2 * n * row, n, row, called->dtype));
    }
    Operation move = step_of(*called);
    move.send = called->send;
    move.receive = called->receive;
    for (std::size_t source = 0; source < n; ++source) {
      const auto row = table.begin() + static_cast<std::ptrdiff_t>(2 * n * source);
      move.counts.insert(move.counts.end(), row, row + static_cast<std::ptrdiff_t>(n));
    }
    return steps.run(move);
  };
}

// --- narrow dtypes on the wire ---------------------------------------------------------------

void make_wire(Operation* operation, trireme_dtype wire, int rank, int world_size) {
  operation->agreement = static_cast<std::uint64_t>(wire);
  operation->agreement_name = "wire dtypes";
  const auto called = std::make_shared<const Operation>(*operation);
  operation->program = [called, wire, rank, world_size](Steps& steps) -> Status {
    const bool broadcast = called->kind == OperationKind::broadcast;
    const bool gives = !broadcast || rank == called->root;
    const std::uint64_t sent = contribution(*called, world_size, rank);
    std::uint64_t received = 0;
    for (int source = 0; source < world_size; ++source) {
      const Part part = trireme::part(*called, world_size, source, rank);
      received = std::max(received, part.count == 0 ? 0 : part.to + part.count);
    }
    // The sent and then the received elements; broadcast has only one of them.
    const std::uint64_t size = dtype_size(wire);
    std::byte* memory = nullptr;
    TRIREME_RETURN_IF_ERROR(steps.scratch((sent + received) * size, &memory));
    std::byte* const results = broadcast ? memory : memory + sent * size;
    const void* const from = broadcast ? called->receive : called->send;
    if (gives && sent > 0) {
      kernels::narrow(wire, memory, static_cast<const float*>(from), sent);
    }
    Operation step = step_of(*called);
    step.dtype = wire;
    step.count = called->count;
    step.counts = called->counts;
    step.send = memory;
    step.receive = results;
    TRIREME_RETURN_IF_ERROR(steps.run(step));
    if (received > 0 && !(broadcast && gives)) {
      kernels::widen(wire, static_cast<float*>(called->receive), results, received);
    }
    return Status::success();
  };
}

// --- lists -----------------------------------------------------------------------------------

namespace {

// A larger entry gains nothing from company, and a pack stays inside the second-level cache.
constexpr std::uint64_t kSmallBytes = 128u << 10;
constexpr std::uint64_t kPackBytes = 512u << 10;

std::uint64_t agreement_of(const std::vector<Entry>& entries) {
  std::uint64_t hash = 0x9ae16a3b2f90404fu;
  for (const Entry& entry : entries) {
    hash = (hash ^ entry.count) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash | 1;  // never 0, which the plain operation has
}

// Copies entries into and out of one buffer. A pack has one block, or one for each rank.
class Pack {
 public:
  Pack(const Operation& called, int rank, int world_size, const Entry* first, const Entry* last)
      : called_(called),
        first_(first),
        last_(last),
        rank_(static_cast<std::uint64_t>(rank)),
        size_(dtype_size(called.dtype)) {
    for (const Entry* entry = first; entry != last; ++entry) block_ += entry->count * size_;
    const bool one =
        called.kind == OperationKind::all_reduce || called.kind == OperationKind::broadcast;
    blocks_ = one ? 1 : static_cast<std::uint64_t>(world_size);
  }

  Status run(Steps& steps) {
    std::byte* memory = nullptr;
    TRIREME_RETURN_IF_ERROR(steps.scratch(block_ * blocks_, &memory));
    const std::uint64_t own = blocks_ == 1 ? 0 : rank_ * block_;
    Operation step = step_of(called_);
    step.count = block_ / size_;
    step.send = step.receive = memory;  // in place
    if (called_.kind == OperationKind::reduce_scatter) step.receive = memory + own;
    if (called_.kind == OperationKind::all_gather) step.send = memory + own;
    const bool root = called_.kind != OperationKind::broadcast ||
                      static_cast<std::uint64_t>(called_.root) == rank_;
    if (root) fill(memory, own);
    TRIREME_RETURN_IF_ERROR(steps.run(step));
    if (called_.kind != OperationKind::broadcast || !root) empty(memory, own);
    return Status::success();
  }

 private:
  // Calls copy(entry, offset of the entry within a block, its bytes).
  template <class Copy>
  void each(Copy copy) const {
    std::uint64_t offset = 0;
    for (const Entry* entry = first_; entry != last_; ++entry) {
      const std::uint64_t bytes = entry->count * size_;
      if (bytes > 0) copy(*entry, offset, bytes);
      offset += bytes;
    }
  }

  void fill(std::byte* memory, std::uint64_t own) const {
    each([&](const Entry& entry, std::uint64_t offset, std::uint64_t bytes) {
      const auto* const from = static_cast<const std::byte*>(
          called_.kind == OperationKind::broadcast ? entry.receive : entry.send);
      const bool scatters = called_.kind == OperationKind::reduce_scatter;
      if (!scatters) std::memcpy(memory + own + offset, from, bytes);
      for (std::uint64_t block = 0; scatters && block < blocks_; ++block) {
        std::memcpy(memory + block * block_ + offset, from + block * bytes, bytes);
      }
    });
  }

  void empty(const std::byte* memory, std::uint64_t own) const {
    each([&](const Entry& entry, std::uint64_t offset, std::uint64_t bytes) {
      auto* const to = static_cast<std::byte*>(entry.receive);
      const bool gathers = called_.kind == OperationKind::all_gather;
      if (!gathers) std::memcpy(to, memory + own + offset, bytes);
      for (std::uint64_t block = 0; gathers && block < blocks_; ++block) {
        std::memcpy(to + block * bytes, memory + block * block_ + offset, bytes);
      }
    });
  }

  const Operation& called_;
  const Entry* const first_;
  const Entry* const last_;
  const std::uint64_t rank_;
  const std::uint64_t size_;
  std::uint64_t block_ = 0;  // bytes
  std::uint64_t blocks_ = 1;
};

Status run_alone(Steps& steps, const Operation& called, const Entry& entry) {
  Operation step = step_of(called);
  step.send = entry.send;
  step.receive = entry.receive;
  step.count = entry.count;
  return steps.run(step);
}

}  // namespace

void make_list(Operation* operation, std::vector<Entry> entries, int rank, int world_size) {
  operation->agreement = agreement_of(entries);
  operation->agreement_name = "lists of counts";
  for (const Entry& entry : entries) {
    operation->count += entry.count;
    operation->also_uses.push_back(entry.send);
    operation->also_uses.push_back(entry.receive);
  }
  const auto called = std::make_shared<const Operation>(*operation);
  operation->program = [called, entries = std::move(entries), rank,
                        world_size](Steps& steps) -> Status {
    // An empty list is still a meeting of all ranks.
    if (entries.empty()) return run_alone(steps, *called, {});
    const std::uint64_t size = dtype_size(called->dtype);
    const Entry* const end = entries.data() + entries.size();
    for (const Entry* first = entries.data(); first != end;) {
      const Entry* last = first;
      std::uint64_t bytes = 0;
      while (last != end && last->count * size < kSmallBytes &&
             bytes + last->count * size <= kPackBytes) {
        bytes += last->count * size;
        ++last;
      }
      if (last - first < 2) {
        TRIREME_RETURN_IF_ERROR(run_alone(steps, *called, *first));
        last = first + 1;
      } else {
        TRIREME_RETURN_IF_ERROR(Pack(*called, rank, world_size, first, last).run(steps));
      }
      first = last;
    }
    return Status::success();
  };
}

// --- calls that find out how much comes --------------------------------------------------------

namespace {

Status allocate(Steps& steps, std::uint64_t elements, trireme_dtype dtype,
                std::shared_ptr<Memory>* out) {
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements, dtype_size(dtype), &bytes)) {
    return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "the blocks are larger than memory");
  }
  return steps.allocate(bytes, out);
}

// The first step: gives all ranks `values` of the root, or one value of each rank.
Operation tell_counts(const Operation& called, OperationKind kind, const std::uint64_t* send,
                      std::uint64_t* receive, std::uint64_t values) {
  Operation step = step_of(called);
  step.kind = kind;
  step.dtype = TRIREME_DTYPE_U64;
  step.reduction = 0;
  step.count = values;
  step.send = send;
  step.receive = receive;
  return step;
}

// Ranks whose counts differ do not agree on `count`.
std::shared_ptr<const Operation> begin_discovery(Operation* operation) {
  operation->agreement = 1;
  operation->agreement_name = "forms (one finds out the counts)";
  operation->count = 0;
  operation->counts.clear();
  return std::make_shared<const Operation>(*operation);
}

}  // namespace

void make_broadcast_to_memory(Operation* operation, int rank, bool wants_memory, Discovered* out) {
  const std::uint64_t count = operation->count;
  const auto called = begin_discovery(operation);
  operation->program = [called, rank, count, wants_memory, out](Steps& steps) -> Status {
    std::uint64_t told = count;
    TRIREME_RETURN_IF_ERROR(
        steps.run(tell_counts(*called, OperationKind::broadcast, nullptr, &told, 1)));
    TRIREME_RETURN_IF_ERROR(
        check_total(&told, 1, static_cast<std::size_t>(called->root), called->dtype));
    if (wants_memory) TRIREME_RETURN_IF_ERROR(allocate(steps, told, called->dtype, &out->memory));
    Operation step = step_of(*called);
    step.count = told;
    step.receive = rank == called->root ? called->receive : out->memory->data();
    TRIREME_RETURN_IF_ERROR(steps.run(step));
    if (rank == called->root && wants_memory) {
      kernels::copy(out->memory->data(), called->receive, told * dtype_size(called->dtype));
    }
    return Status::success();
  };
}

void make_scatter_to_memory(Operation* operation, int rank, int world_size, Discovered* out) {
  std::vector<std::uint64_t> counts = operation->counts;
  counts.resize(static_cast<std::size_t>(world_size));
  const auto called = begin_discovery(operation);
  operation->program = [called, rank, counts, out](Steps& steps) -> Status {
    Operation step = step_of(*called);
    step.counts = counts;
    TRIREME_RETURN_IF_ERROR(steps.run(tell_counts(*called, OperationKind::broadcast, nullptr,
                                                  step.counts.data(), step.counts.size())));
    TRIREME_RETURN_IF_ERROR(check_total(step.counts.data(), step.counts.size(),
                                        static_cast<std::size_t>(called->root), called->dtype));
    TRIREME_RETURN_IF_ERROR(
        allocate(steps, step.counts[static_cast<std::size_t>(rank)], called->dtype, &out->memory));
    step.count = std::accumulate(step.counts.begin(), step.counts.end(), std::uint64_t{0});
    step.send = called->send;
    step.receive = out->memory->data();
    return steps.run(step);
  };
}

void make_all_gather_to_memory(Operation* operation, int rank, int world_size, Discovered* out) {
  const std::uint64_t count = operation->count;
  const auto called = begin_discovery(operation);
  operation->program = [called, count, rank, world_size, out](Steps& steps) -> Status {
    Operation step = step_of(*called);
    step.counts.resize(static_cast<std::size_t>(world_size));
    TRIREME_RETURN_IF_ERROR(
        steps.run(tell_counts(*called, OperationKind::all_gather, &count, step.counts.data(), 1)));
    TRIREME_RETURN_IF_ERROR(
        check_own(&step.counts[static_cast<std::size_t>(rank)], &count, 1, rank));
    for (const std::uint64_t each : step.counts) {
      if (__builtin_add_overflow(step.count, each, &step.count)) step.count = UINT64_MAX;
    }
    TRIREME_RETURN_IF_ERROR(allocate(steps, step.count, called->dtype, &out->memory));
    step.send = called->send;
    step.receive = out->memory->data();
    TRIREME_RETURN_IF_ERROR(steps.run(step));
    out->counts = step.counts;
    return Status::success();
  };
}

}  // namespace trireme
