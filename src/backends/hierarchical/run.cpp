#include "backends/hierarchical/run.hpp"

#include <cstring>
#include <memory>
#include <vector>

#include "backends/parts.hpp"
#include "kernels/reduce.hpp"

namespace trireme::hierarchical {
namespace {

constexpr std::uint64_t kCacheLine = 64;
constexpr std::uint64_t kBlock = 2048;  // elements; two blocks of floats stay in the first cache

void put(void* to, const void* from, std::uint64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

std::byte* bytes_of(void* data) { return static_cast<std::byte*>(data); }
const std::byte* bytes_of(const void* data) { return static_cast<const std::byte*>(data); }

}  // namespace

Status HierarchicalEngine::Run::execute() {
  switch (op_.kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce: return all_reduce();
    case OperationKind::reduce_scatter:
    case OperationKind::reduce_scatter_v: return reduce_scatter();
    case OperationKind::all_gather:
    case OperationKind::all_gather_v: return all_gather();
    case OperationKind::broadcast: return broadcast();
    default: return unsupported("no such collective over several hosts");
  }
}

// Shards are whole cache lines, so no two ranks write to one line.
HierarchicalEngine::Run::Cut HierarchicalEngine::Run::shard(int place, std::uint64_t count) const {
  if (place >= hosts_.shards) return {};
  const auto shards = static_cast<std::uint64_t>(hosts_.shards);
  const std::uint64_t line = kCacheLine / size_;
  const std::uint64_t length = ((count + shards - 1) / shards + line - 1) / line * line;
  const std::uint64_t first = std::min(count, length * static_cast<std::uint64_t>(place));
  return {first, std::min(length, count - first)};
}

std::uint64_t HierarchicalEngine::Run::block_begin(int rank) const {
  if (op_.counts.empty()) return op_.count * static_cast<std::uint64_t>(rank);
  std::uint64_t begin = 0;
  for (int before = 0; before < rank; ++before) begin += op_.counts[at(before)];
  return begin;
}

std::uint64_t HierarchicalEngine::Run::longest_block() const {
  return op_.counts.empty() ? op_.count : *std::max_element(op_.counts.begin(), op_.counts.end());
}

bool HierarchicalEngine::Run::is_narrow() const { return kernels::is_narrow(op_.dtype); }

std::byte* HierarchicalEngine::Run::sums(std::uint64_t bytes) {
  if (shelf_.sums_bytes < bytes) {
    shelf_.sums_bytes = 0;
    shelf_.sums = std::make_unique_for_overwrite<std::byte[]>(bytes);
    shelf_.sums_bytes = bytes;
  }
  return shelf_.sums.get();
}

void HierarchicalEngine::Run::combine_here(std::uint64_t from, std::uint64_t count,
                                           std::byte* partial) const {
  if (count == 0) return;
  const trireme_reduction plain = kernels::unfinished(op_.reduction);
  if (!is_narrow()) {
    std::vector<const void*> sources;
    for (int place = 0; place < here_; ++place) sources.push_back(laid(place) + from * size_);
    kernels::reduce_few(op_.dtype, plain, partial, sources.data(),
                        static_cast<std::uint32_t>(here_), count, 1, 1);
    return;
  }
  alignas(kCacheLine) float next[kBlock];
  for (std::uint64_t first = 0; first < count; first += kBlock) {
    const std::uint64_t length = std::min(kBlock, count - first);
    auto* const sum = reinterpret_cast<float*>(partial) + first;
    const void* const both[] = {sum, next};
    const std::uint64_t skip = (from + first) * size_;
    kernels::widen(op_.dtype, sum, laid(0) + skip, length);
    for (int place = 1; place < here_; ++place) {
      kernels::widen(op_.dtype, next, laid(place) + skip, length);
      kernels::reduce_few(TRIREME_DTYPE_F32, plain, sum, both, 2, length, 1, 1);
    }
  }
}

void HierarchicalEngine::Run::finish(const std::byte* partial, std::uint64_t count,
                                     std::byte* out) const {
  if (count == 0) return;
  const auto ranks = static_cast<std::uint32_t>(engine_.options_.world_size);
  if (!is_narrow()) {
    // If no last step is left, the partial results are the results.
    if (kernels::unfinished(op_.reduction) == op_.reduction)
      return put(out, partial, count * size_);
    const void* const source = partial;
    return kernels::reduce_few(op_.dtype, op_.reduction, out, &source, 1, count, ranks, op_.scale);
  }
  alignas(kCacheLine) float block[kBlock];
  for (std::uint64_t first = 0; first < count; first += kBlock) {
    const std::uint64_t length = std::min(kBlock, count - first);
    const void* const source = reinterpret_cast<const float*>(partial) + first;
    kernels::reduce_few(TRIREME_DTYPE_F32, op_.reduction, block, &source, 1, length, ranks,
                        op_.scale);
    kernels::narrow(op_.dtype, out + first * size_, block, length);
  }
}

Status HierarchicalEngine::Run::all_reduce() {
  const std::uint64_t most = kPieceBytes / size_;
  const bool to_all = op_.kind == OperationKind::all_reduce;
  const bool takes = to_all || me_ == op_.root;
  const bool at_root = to_all || host_ == hosts_.host[at(op_.root)];
  for (std::uint64_t first = 0; first < op_.count; first += most) {
    const std::uint64_t count = std::min(most, op_.count - first);
    begin_piece();
    put(laid(place_), bytes_of(op_.send) + first * size_, count * size_);
    TRIREME_RETURN_IF_ERROR(meet());
    if (carries()) {
      const Cut mine = shard(place_, count);
      std::byte* const out = made(place_);
      std::byte* const partial = is_narrow() ? sums(mine.count * sizeof(float)) : out;
      combine_here(mine.first, mine.count, partial);
      Operation step = column_step();
      step.count = mine.count;
      step.send = step.receive = partial;
      if (!to_all) step.root = hosts_.host[at(op_.root)];
      TRIREME_RETURN_IF_ERROR(column(step));
      if (at_root) finish(partial, mine.count, out);
    }
    if (!at_root) continue;  // the next piece has room of its own
    TRIREME_RETURN_IF_ERROR(meet());
    for (int place = 0; takes && place < hosts_.shards; ++place) {
      const Cut part = shard(place, count);
      put(bytes_of(op_.receive) + (first + part.first) * size_, made(place), part.count * size_);
    }
  }
  return Status::success();
}

// Handles a piece of every rank's block at a time; the ranks of this place, on all hosts, get
// theirs from this column.
Status HierarchicalEngine::Run::reduce_scatter() {
  const int n = engine_.options_.world_size;
  const std::uint64_t most = kPieceBytes / size_ / static_cast<std::uint64_t>(n);
  const std::uint64_t longest = longest_block();
  const std::vector<int> mates = hosts_.column(place_);
  for (std::uint64_t first = 0; first < longest; first += most) {
    begin_piece();
    for (int rank = 0; rank < n; ++rank) {
      put(laid(place_) + most * static_cast<std::uint64_t>(rank) * size_,
          bytes_of(op_.send) + (block_begin(rank) + first) * size_,
          block_piece(rank, first, most) * size_);
    }
    TRIREME_RETURN_IF_ERROR(meet());
    Operation step = column_step();
    const std::uint64_t element = dtype_size(step.dtype);
    const std::uint64_t count = block_piece(me_, first, most);
    std::byte* const partial = sums((mates.size() + 1) * most * element);
    std::byte* const mine = partial + mates.size() * most * element;
    std::uint64_t all = 0;
    for (const int mate : mates) {
      const std::uint64_t length = block_piece(mate, first, most);
      combine_here(most * static_cast<std::uint64_t>(mate), length, partial + all * element);
      if (!op_.counts.empty()) step.counts.push_back(length);
      all += length;
    }
    step.count = op_.counts.empty() ? count : all;
    step.send = partial;
    step.receive = mine;
    TRIREME_RETURN_IF_ERROR(column(step));
    if (count > 0) finish(mine, count, bytes_of(op_.receive) + first * size_);
  }
  return Status::success();
}

// The blocks of this column meet on this rank's shelf; its host reads them there.
Status HierarchicalEngine::Run::all_gather() {
  const std::uint64_t most = kPieceBytes / size_ / static_cast<std::uint64_t>(hosts_.count());
  const std::uint64_t longest = longest_block();
  const std::vector<int> mates = hosts_.column(place_);
  for (std::uint64_t first = 0; first < longest; first += most) {
    begin_piece();
    Operation step = column_step();
    std::uint64_t all = 0;
    for (const int mate : mates) {
      const std::uint64_t length = block_piece(mate, first, most);
      if (!op_.counts.empty()) step.counts.push_back(length);
      all += length;
    }
    step.count = op_.counts.empty() ? block_piece(me_, first, most) : all;
    // A rank that contributes nothing may have null memory.
    const bool gives = block_piece(me_, first, most) > 0;
    step.send = gives ? bytes_of(op_.send) + first * size_ : nullptr;
    step.receive = laid(place_);
    TRIREME_RETURN_IF_ERROR(column(step));
    TRIREME_RETURN_IF_ERROR(meet());
    for (int place = 0; place < here_; ++place) {
      const std::byte* from = laid(place);
      for (int host = 0; host < hosts_.count(); ++host) {
        const int rank = hosts_.ranks[at(host)][at(place)];
        const std::uint64_t bytes = block_piece(rank, first, most) * size_;
        std::byte* const to = bytes_of(op_.receive) + (block_begin(rank) + first) * size_;
        // In place, the own block is there already.
        if (rank != me_ || to != step.send) put(to, from, bytes);
        from += bytes;
      }
    }
  }
  return Status::success();
}

// The root's host reads the bytes from the root; each of its ranks sends its shard along its
// column.
Status HierarchicalEngine::Run::broadcast() {
  const std::uint64_t most = kPieceBytes / size_;
  const int root_host = hosts_.host[at(op_.root)];
  const int root_place = hosts_.place[at(op_.root)];
  const bool at_root = host_ == root_host;
  for (std::uint64_t first = 0; first < op_.count; first += most) {
    const std::uint64_t count = std::min(most, op_.count - first);
    std::byte* const data = bytes_of(op_.receive) + first * size_;
    begin_piece();
    if (me_ == op_.root) put(laid(place_), data, count * size_);
    if (at_root) TRIREME_RETURN_IF_ERROR(meet());
    if (carries()) {
      const Cut mine = shard(place_, count);
      Operation step = column_step();
      step.count = mine.count;
      step.root = root_host;
      step.receive = at_root ? laid(root_place) + mine.first * size_ : made(place_);
      TRIREME_RETURN_IF_ERROR(column(step));
    }
    if (!at_root) TRIREME_RETURN_IF_ERROR(meet());
    if (me_ == op_.root) continue;
    if (at_root) {
      put(data, laid(root_place), count * size_);
      continue;
    }
    for (int place = 0; place < hosts_.shards; ++place) {
      const Cut part = shard(place, count);
      put(data + part.first * size_, made(place), part.count * size_);
    }
  }
  return Status::success();
}

}  // namespace trireme::hierarchical
