#include "backends/wire/ring.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::hierarchical {
namespace {

// The bytes that go along a chain at a time.
constexpr std::uint64_t kLinkBytes = 256u << 10;
constexpr std::uint64_t kLine = 64;

}  // namespace

struct Ring::Call {
  const Operation& op;
  std::uint64_t ticket;
  Deadline deadline;
  Lane& lane;
  std::uint64_t size;
};

bool Ring::offers(const Operation& operation) const {
  switch (operation.kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce:
    case OperationKind::reduce_scatter:
    case OperationKind::reduce_scatter_v:
      return !kernels::is_narrow(operation.dtype) &&
             operation.reduction != TRIREME_REDUCTION_AVERAGE &&
             operation.reduction != TRIREME_REDUCTION_SCALED_SUM;
    case OperationKind::all_gather:
    case OperationKind::all_gather_v:
    case OperationKind::broadcast: return true;
    default: return false;
  }
}

std::byte* Ring::spare(Lane& lane, std::uint64_t bytes) {
  if (lane.bytes < bytes) {
    lane.bytes = 0;
    lane.memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
    lane.bytes = bytes;
  }
  return lane.memory.get();
}

Status Ring::step(Call& call, const std::byte* out, std::uint64_t out_bytes, std::byte* in,
                  std::uint64_t in_bytes) {
  // With counts of their own, all blocks but one may be empty: then the ring is a chain, too.
  const bool chain = call.op.kind == OperationKind::broadcast ||
                     call.op.kind == OperationKind::reduce || !call.op.counts.empty();
  return neighbours_->step(call.op.channel, call.ticket, out, out_bytes, in, in_bytes, chain,
                           call.deadline);
}

Status Ring::run(const Operation& operation, std::uint64_t ticket, Deadline deadline) {
  Call call{operation, ticket, deadline, lanes_[operation.channel], dtype_size(operation.dtype)};
  switch (operation.kind) {
    case OperationKind::all_reduce: return all_reduce(call);
    case OperationKind::reduce_scatter:
    case OperationKind::reduce_scatter_v: return reduce_scatter(call);
    case OperationKind::all_gather:
    case OperationKind::all_gather_v: return all_gather(call);
    case OperationKind::broadcast: return broadcast(call);
    case OperationKind::reduce: return reduce(call);
    default: return unsupported("the ring has no such collective");
  }
}

// Step by step the sum of a block goes round, from the member after its owner to the owner.
Status Ring::all_reduce(Call& call) {
  const Operation& op = call.op;
  auto* const data = static_cast<std::byte*>(op.receive);
  if (op.send != op.receive && op.count > 0) {
    std::memcpy(data, op.send, op.count * call.size);
  }
  std::vector<Block> blocks(static_cast<std::size_t>(n_));
  const std::uint64_t line = kLine / call.size;
  const auto n = static_cast<std::uint64_t>(n_);
  const std::uint64_t length = ((op.count + n - 1) / n + line - 1) / line * line;
  for (std::uint64_t i = 0; i < n; ++i) {
    const std::uint64_t first = std::min(op.count, length * i);
    blocks[i] = {first, std::min(length, op.count - first)};
  }
  std::byte* const come = spare(call.lane, length * call.size);
  for (int turn = 0; turn + 1 < n_; ++turn) {
    const Block& out = blocks[static_cast<std::size_t>(at(me_ - turn - 1))];
    const Block& in = blocks[static_cast<std::size_t>(at(me_ - turn - 2))];
    TRIREME_RETURN_IF_ERROR(step(call, data + out.first * call.size, out.count * call.size, come,
                                 in.count * call.size));
    std::byte* const mine = data + in.first * call.size;
    const void* const both[] = {come, mine};
    if (in.count > 0) {
      kernels::reduce_few(op.dtype, op.reduction, mine, both, 2, in.count, 1, 1);
    }
  }
  return gather_blocks(call, data, blocks);
}

std::vector<Ring::Block> Ring::blocks_of(const Operation& operation) const {
  std::vector<Block> blocks;
  std::uint64_t first = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n_); ++i) {
    const std::uint64_t count = operation.counts.empty() ? operation.count : operation.counts[i];
    blocks.push_back({first, count});
    first += count;
  }
  return blocks;
}

Status Ring::gather_blocks(Call& call, std::byte* data, const std::vector<Block>& blocks) {
  for (int turn = 0; turn + 1 < n_; ++turn) {
    const Block& out = blocks[static_cast<std::size_t>(at(me_ - turn))];
    const Block& in = blocks[static_cast<std::size_t>(at(me_ - turn - 1))];
    TRIREME_RETURN_IF_ERROR(step(call, data + out.first * call.size, out.count * call.size,
                                 data + in.first * call.size, in.count * call.size));
  }
  return Status::success();
}

Status Ring::reduce_scatter(Call& call) {
  const Operation& op = call.op;
  const auto* const data = static_cast<const std::byte*>(op.send);
  const std::vector<Block> blocks = blocks_of(op);
  std::uint64_t longest = 0;
  for (const Block& each : blocks) longest = std::max(longest, each.count);
  const std::uint64_t stride = (longest * call.size + kLine - 1) / kLine * kLine;
  std::byte* const spares = spare(call.lane, 2 * stride);
  const Block& own = blocks[static_cast<std::size_t>(me_)];
  const std::byte* sum = data + blocks[static_cast<std::size_t>(at(me_ - 1))].first * call.size;
  for (int turn = 0; turn + 1 < n_; ++turn) {
    const Block& out = blocks[static_cast<std::size_t>(at(me_ - turn - 1))];
    const Block& in = blocks[static_cast<std::size_t>(at(me_ - turn - 2))];
    std::byte* const come = spares + stride * static_cast<std::uint64_t>(turn % 2);
    TRIREME_RETURN_IF_ERROR(step(call, sum, out.count * call.size, come, in.count * call.size));
    const bool last = turn + 2 == n_;
    const void* const both[] = {come, data + in.first * call.size};
    void* const to = last ? op.receive : come;
    if (in.count > 0) {
      kernels::reduce_few(op.dtype, op.reduction, to, both, 2, in.count, 1, 1);
    }
    sum = come;
  }
  if (n_ == 1 && own.count > 0) std::memmove(op.receive, data, own.count * call.size);
  return Status::success();
}

Status Ring::all_gather(Call& call) {
  const Operation& op = call.op;
  auto* const data = static_cast<std::byte*>(op.receive);
  const std::vector<Block> blocks = blocks_of(op);
  const Block& own = blocks[static_cast<std::size_t>(me_)];
  std::byte* const mine = data + own.first * call.size;
  if (op.send != mine && own.count > 0) std::memcpy(mine, op.send, own.count * call.size);
  return gather_blocks(call, data, blocks);
}

// Along the chain that begins with the root: a member passes on bytes while more arrive.
Status Ring::broadcast(Call& call) {
  const Operation& op = call.op;
  auto* const data = static_cast<std::byte*>(op.receive);
  const int distance = at(me_ - op.root);
  const bool takes = distance > 0;
  const bool passes = distance + 1 < n_;
  const std::uint64_t bytes = op.count * call.size;
  const std::uint64_t links = (bytes + kLinkBytes - 1) / kLinkBytes;
  const auto length = [&](std::uint64_t link) {
    return std::min(kLinkBytes, bytes - link * kLinkBytes);
  };
  if (n_ == 1) return Status::success();
  // In turn `link` the previous member passes on that link, and this member the one before.
  for (std::uint64_t link = 0; link <= links; ++link) {
    const bool out = passes && link > 0;
    const bool in = takes && link < links;
    TRIREME_RETURN_IF_ERROR(step(call, out ? data + (link - 1) * kLinkBytes : nullptr,
                                 out ? length(link - 1) : 0,
                                 in ? data + link * kLinkBytes : nullptr, in ? length(link) : 0));
  }
  return Status::success();
}

// Along the chain that ends with the root: a member adds its own data to the bytes that come, and
// passes the sums on while more arrive.
Status Ring::reduce(Call& call) {
  const Operation& op = call.op;
  auto* const data = static_cast<std::byte*>(op.receive);
  const std::uint64_t bytes = op.count * call.size;
  if (op.send != op.receive && bytes > 0) std::memcpy(data, op.send, bytes);
  if (n_ == 1) return Status::success();
  const int distance = at(me_ - op.root - 1);
  const bool takes = distance > 0;
  const bool passes = distance + 1 < n_;
  const std::uint64_t links = (bytes + kLinkBytes - 1) / kLinkBytes;
  const auto length = [&](std::uint64_t link) {
    return std::min(kLinkBytes, bytes - link * kLinkBytes);
  };
  std::byte* const come = spare(call.lane, std::min(kLinkBytes, bytes));
  // In turn `link` the previous member passes on that link, and this member the one before.
  for (std::uint64_t link = 0; link <= links; ++link) {
    const bool out = passes && link > 0;
    const bool in = takes && link < links;
    TRIREME_RETURN_IF_ERROR(step(call, out ? data + (link - 1) * kLinkBytes : nullptr,
                                 out ? length(link - 1) : 0, come, in ? length(link) : 0));
    if (!in) continue;
    std::byte* const mine = data + link * kLinkBytes;
    const void* const both[] = {come, mine};
    kernels::reduce_few(op.dtype, op.reduction, mine, both, 2, length(link) / call.size, 1, 1);
  }
  return Status::success();
}

}  // namespace trireme::hierarchical
