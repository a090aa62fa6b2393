#include "backends/wire/ring.hpp"

#include <algorithm>
#include <climits>
#include <cstring>
#include <deque>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::wire {
namespace {

// The bytes that go along a chain at a time, or of a block that is reduced: small enough that
// arrived bytes are still in the caches when they are combined.
constexpr std::uint64_t kLinkBytes = 256u << 10;
// A wire that copies gets long blocks in segments, so many at a time: a copy stays in the caches
// until it is used, and one segment moves while another is copied.
constexpr std::uint64_t kSegmentBytes = 128u << 10;
constexpr std::size_t kSegments = 2;
// The same of lent blocks: few, but none longer than a message may be.
constexpr std::uint64_t kLentBytes = 16u << 20;
// Of bytes that go one way. Their sender only waits, and a wire may look for the end of a long wait
// less often.
constexpr std::uint64_t kLentOneWayBytes = 1u << 20;
// A block of an all-reduce of two members over such a wire. With more of them the order of a sum
// depends on its block, so there all have the same.
constexpr std::uint64_t kCopiedLinkBytes = 128u << 10;
constexpr std::uint64_t kLentLinkBytes = 1u << 20;
// Two ranks exchange up to so many bytes directly: they add all of it twice, but wait for each
// other once. A wire that copies has much to do for each message.
constexpr std::uint64_t kDirectBytes = 64u << 10;
constexpr std::uint64_t kCopiedDirectBytes = 128u << 10;
// The pieces of an all-reduce that are under way.
constexpr std::uint64_t kSideBySide = 4;
constexpr std::uint64_t kCopiedSideBySide = 2;
// The receives that a reduce-scatter has posted ahead.
constexpr std::size_t kAhead = 2;
constexpr std::uint64_t kLine = 64;

std::uint64_t lines(std::uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

struct Ring::Call {
  const Operation& op;
  std::uint64_t ticket;
  Deadline deadline;
  Lane& lane;
  std::uint64_t size;
  bool lent = false;    // the operation's memory
  bool copied = false;  // the wire copies it
};

// Whatever ends the call, none of its pieces is left on the wire.
class Ring::Posted {
 public:
  Posted() = default;
  Posted(const Posted&) = delete;
  Posted& operator=(const Posted&) = delete;
  ~Posted() {
    if (wire_ != nullptr) wire_->drop(transfer_);
  }

  // Nothing, if there are no bytes.
  Status send(Ring& ring, const Call& call, const std::byte* data, std::uint64_t bytes) {
    if (bytes == 0) return Status::success();
    prepare(ring, call, ring.me_ + 1, const_cast<std::byte*>(data), bytes);
    return begun(ring.wire_, ring.wire_.send(transfer_));
  }
  Status receive(Ring& ring, const Call& call, std::byte* data, std::uint64_t bytes) {
    if (bytes == 0) return Status::success();
    prepare(ring, call, ring.me_ - 1, data, bytes);
    return begun(ring.wire_, ring.wire_.receive(transfer_));
  }
  // At once if there is none.
  Status wait(Deadline deadline) {
    if (wire_ == nullptr) return Status::success();
    TRIREME_RETURN_IF_ERROR(wire_->wait(transfer_, deadline));
    std::exchange(wire_, nullptr)->drop(transfer_);
    return Status::success();
  }

 private:
  void prepare(const Ring& ring, const Call& call, int member, std::byte* data,
               std::uint64_t bytes) {
    const std::byte* const spare = call.lane.memory.get();
    const bool is_spare = data >= spare && data < spare + call.lane.bytes;
    transfer_.peer = ring.members_.ranks[static_cast<std::size_t>(ring.at(member))];
    transfer_.ticket = call.ticket;
    transfer_.channel = call.op.channel;
    transfer_.keeper = is_spare ? &call.lane.memory : nullptr;
    transfer_.lent = call.lent && !is_spare;
    transfer_.data = data;
    transfer_.bytes = bytes;
    // Along a chain a member may be any number of steps ahead of the next one, as it waits for
    // none. With counts of their own, all blocks but one may be empty: then the ring is a chain.
    transfer_.announced = call.op.kind == OperationKind::broadcast ||
                          call.op.kind == OperationKind::reduce || !call.op.counts.empty();
    transfer_.done.store(false, std::memory_order_relaxed);
  }
  Status begun(Wire& wire, Status status) {
    if (status.ok()) wire_ = &wire;
    return status;
  }

  Wire* wire_ = nullptr;  // null: it is not under way
  Wire::Transfer transfer_;
};

std::vector<int> Ring::neighbours(const Members& members) {
  const int n = static_cast<int>(members.ranks.size());
  if (n < 2) return {};
  const int next = members.ranks[static_cast<std::size_t>((members.own + 1) % n)];
  const int previous = members.ranks[static_cast<std::size_t>((members.own + n - 1) % n)];
  return n == 2 ? std::vector<int>{next} : std::vector<int>{next, previous};
}

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
    lane.memory = std::make_shared_for_overwrite<std::byte[]>(bytes);
    lane.bytes = bytes;
  }
  return lane.memory.get();
}

Status Ring::step(Call& call, const std::byte* out, std::uint64_t out_bytes, std::byte* in,
                  std::uint64_t in_bytes) {
  const std::uint64_t most = std::max(out_bytes, in_bytes);
  const bool one_way = out_bytes == 0 || in_bytes == 0;
  const std::uint64_t longest = call.copied            ? kSegmentBytes
                                : call.lent && one_way ? kLentOneWayBytes
                                : call.lent            ? kLentBytes
                                                       : most;
  if (most > longest) {
    Posted takes[kSegments], gives[kSegments];
    const auto segments = static_cast<std::size_t>((most + longest - 1) / longest);
    const auto length = [longest](std::uint64_t bytes, std::uint64_t first) {
      return std::min(longest, bytes - first);
    };
    for (std::size_t i = 0; i < segments + kSegments; ++i) {
      Posted& take = takes[i % kSegments];
      Posted& give = gives[i % kSegments];
      TRIREME_RETURN_IF_ERROR(give.wait(call.deadline));
      TRIREME_RETURN_IF_ERROR(take.wait(call.deadline));
      if (i >= segments) continue;
      const std::uint64_t first = i * longest;
      if (first < in_bytes) {
        TRIREME_RETURN_IF_ERROR(take.receive(*this, call, in + first, length(in_bytes, first)));
      }
      if (first < out_bytes) {
        TRIREME_RETURN_IF_ERROR(give.send(*this, call, out + first, length(out_bytes, first)));
      }
    }
    return Status::success();
  }
  Posted takes, gives;
  TRIREME_RETURN_IF_ERROR(takes.receive(*this, call, in, in_bytes));
  TRIREME_RETURN_IF_ERROR(gives.send(*this, call, out, out_bytes));
  TRIREME_RETURN_IF_ERROR(gives.wait(call.deadline));
  return takes.wait(call.deadline);
}

Status Ring::run(const Operation& operation, std::uint64_t ticket, Deadline deadline) {
  Call call{operation, ticket, deadline, lanes_[operation.channel], dtype_size(operation.dtype)};
  call.copied = wire_.copies();
  return run_call(call);
}

Status Ring::run_lent(const Operation& operation, std::uint64_t ticket, Deadline deadline) {
  Call call{operation, ticket, deadline, lanes_[operation.channel], dtype_size(operation.dtype)};
  call.lent = true;
  return run_call(call);
}

Status Ring::run_call(Call& call) {
  switch (call.op.kind) {
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

// Each block goes round twice, step by step: first each member adds its own part, then the sum goes
// to all members. Two members may give each other the whole instead.
class Ring::Piece {
 public:
  // `memory` has room for two blocks; no block is longer than `longest`, in elements.
  Piece(Ring& ring, Call& call, bool direct, std::byte* memory, std::uint64_t longest)
      : ring_(ring),
        call_(call),
        direct_(direct),
        longest_(longest),
        in_(memory),
        out_(memory + longest * call.size) {}

  bool is_under_way() const { return step_ < steps(); }

  // Begins with elements [first, first + count).
  Status begin(std::uint64_t first, std::uint64_t count) {
    first_ = first;
    count_ = count;
    step_ = 0;
    const Block own = block(ring_.me_);
    const std::byte* const from = send_memory(own);
    // A wire that copies gets memory that it need not copy.
    if (copies() && own.count > 0) std::memcpy(out_, from, own.count * call_.size);
    return post(copies() ? out_ : from);
  }

  // Ends a step, and begins the next one.
  Status advance() {
    TRIREME_RETURN_IF_ERROR(takes_.wait(call_.deadline));
    TRIREME_RETURN_IF_ERROR(gives_.wait(call_.deadline));
    const Operation& op = call_.op;
    const Block got = block(ring_.me_ - step_ - 1);
    const bool last = step_ == ring_.n_ - 2;
    if (got.count > 0 && step_ <= ring_.n_ - 2) {
      const void* sources[] = {in_, send_memory(got)};
      if (direct_ && ring_.me_ == 0) std::swap(sources[0], sources[1]);  // the same bits on both
      // The last sum is both a result and the block to pass on.
      void* const both[] = {last ? result(got) : in_, in_};
      kernels::reduce_into(op.dtype, last ? op.reduction : kernels::unfinished(op.reduction), both,
                           last && !direct_ && copies() ? 2 : 1, sources, 2, got.count,
                           static_cast<std::uint32_t>(ring_.n_), op.scale, false);
    } else if (got.count > 0 && copies()) {
      std::memcpy(result(got), in_, got.count * call_.size);
    }
    std::swap(in_, out_);
    ++step_;
    if (!is_under_way()) return Status::success();
    return post(copies() || step_ <= ring_.n_ - 2 ? out_ : result(got));
  }

 private:
  int steps() const { return direct_ ? 1 : 2 * (ring_.n_ - 1); }
  bool copies() const { return call_.copied; }
  Block block(int number) const {
    if (direct_) return {first_, count_};
    const std::uint64_t begin =
        std::min(count_, longest_ * static_cast<std::uint64_t>(ring_.at(number)));
    return {first_ + begin, std::min(longest_, count_ - begin)};
  }
  const std::byte* send_memory(const Block& block) const {
    return static_cast<const std::byte*>(call_.op.send) + block.first * call_.size;
  }
  std::byte* result(const Block& block) const {
    return static_cast<std::byte*>(call_.op.receive) + block.first * call_.size;
  }
  Status post(const std::byte* out) {
    const Block to = block(ring_.me_ - step_);
    const Block from = block(ring_.me_ - step_ - 1);
    std::byte* const in = copies() || step_ <= ring_.n_ - 2 ? in_ : result(from);
    TRIREME_RETURN_IF_ERROR(takes_.receive(ring_, call_, in, from.count * call_.size));
    return gives_.send(ring_, call_, out, to.count * call_.size);
  }

  Ring& ring_;
  Call& call_;
  const bool direct_;
  const std::uint64_t longest_;
  std::byte* in_;
  std::byte* out_;
  std::uint64_t first_ = 0;
  std::uint64_t count_ = 0;
  int step_ = INT_MAX;
  Posted takes_;
  Posted gives_;
};

// While one piece is added, others move. All members post their messages in the same order.
Status Ring::all_reduce(Call& call) {
  const Operation& op = call.op;
  if (op.count == 0) return Status::success();
  if (n_ == 1) {
    kernels::reduce(op.dtype, op.reduction, op.receive, &op.send, 1, op.count, 1, op.scale);
    return Status::success();
  }
  const std::uint64_t most_direct = call.copied ? kCopiedDirectBytes : kDirectBytes;
  const std::uint64_t link = n_ > 2        ? kLinkBytes
                             : call.lent   ? kLentLinkBytes
                             : call.copied ? kCopiedLinkBytes
                                           : kLinkBytes;
  const bool direct = n_ == 2 && op.count <= most_direct / call.size;
  const std::uint64_t blocks = direct ? 1 : static_cast<std::uint64_t>(n_);
  const std::uint64_t most = direct ? op.count : link / call.size * blocks;
  const std::uint64_t each = (std::min(most, op.count) + blocks - 1) / blocks;
  const std::uint64_t longest = lines(each * call.size) / call.size;
  const std::uint64_t count = (op.count + most - 1) / most;
  const std::uint64_t side_by_side = std::min(call.copied ? kCopiedSideBySide : kSideBySide, count);
  std::byte* memory = spare(call.lane, 2 * side_by_side * longest * call.size);
  std::deque<Piece> pieces;
  for (std::uint64_t i = 0; i < side_by_side; ++i, memory += 2 * longest * call.size) {
    pieces.emplace_back(*this, call, direct, memory, longest);
  }
  std::uint64_t begun = 0;
  for (std::uint64_t turn = 0, idle = 0; idle < side_by_side; ++turn) {
    Piece& piece = pieces[turn % side_by_side];
    if (piece.is_under_way()) TRIREME_RETURN_IF_ERROR(piece.advance());
    idle = piece.is_under_way() ? 0 : idle + 1;
    if (piece.is_under_way() || begun == count) continue;
    TRIREME_RETURN_IF_ERROR(piece.begin(begun * most, std::min(most, op.count - begun * most)));
    ++begun;
    idle = 0;
  }
  return Status::success();
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
    const Block& out = block_of(blocks, me_ - turn);
    const Block& in = block_of(blocks, me_ - turn - 1);
    TRIREME_RETURN_IF_ERROR(step(call, data + out.first * call.size, out.count * call.size,
                                 data + in.first * call.size, in.count * call.size));
  }
  return Status::success();
}

// Step by step the sum of a block goes round, from the member after its owner to the owner, piece
// by piece: while one piece is added, others move. A piece of a block has the place of the same
// piece of the block before, once that has gone.
Status Ring::reduce_scatter(Call& call) {
  const Operation& op = call.op;
  const auto* const data = static_cast<const std::byte*>(op.send);
  auto* const result = static_cast<std::byte*>(op.receive);
  const std::vector<Block> blocks = blocks_of(op);
  const Block& own = block_of(blocks, me_);
  if (n_ == 1 && own.count > 0) std::memmove(result, data, own.count * call.size);
  std::uint64_t longest = 0;
  for (const Block& each : blocks) longest = std::max(longest, each.count);
  if (n_ == 1 || longest == 0) return Status::success();

  struct Part {
    std::uint64_t number;  // in its block
    std::uint64_t first;   // of all elements
    std::uint64_t count;
    bool last;  // the sum is complete
  };
  const std::uint64_t most = std::min(longest, kLinkBytes / call.size);
  std::vector<Part> parts;
  const auto cut = [&](const Block& block, bool last) {
    for (std::uint64_t done = 0; done < block.count; done += most) {
      parts.push_back({done / most, block.first + done, std::min(most, block.count - done), last});
    }
  };
  cut(block_of(blocks, me_ - 1), false);
  const std::size_t begun = parts.size();
  for (int turn = 0; turn + 1 < n_; ++turn) {
    cut(block_of(blocks, me_ - turn - 2), turn + 2 == n_);
  }

  // Sums lie in the place of the result, unless that is too short or members still need it.
  const bool fits = own.count == longest && result != data + own.first * call.size;
  const std::uint64_t room = lines(most * call.size);
  std::byte* const arrived =
      spare(call.lane, kAhead * room + (fits || n_ == 2 ? 0 : longest * call.size));
  std::byte* const sums = fits ? result : arrived + kAhead * room;
  Posted receives[kAhead];
  std::vector<Posted> sends((longest + most - 1) / most);
  const auto receive = [&](std::size_t i) {
    if (i >= parts.size()) return Status::success();
    return receives[i % kAhead].receive(*this, call, arrived + i % kAhead * room,
                                        parts[i].count * call.size);
  };
  for (std::size_t i = begun; i < begun + kAhead; ++i) TRIREME_RETURN_IF_ERROR(receive(i));
  // A wire that copies gets the first block of two members as the other one takes it.
  std::size_t given = 0;
  const auto give_to = [&](std::size_t end) {
    for (; given < std::min(end, begun); ++given) {
      const Part& part = parts[given];
      TRIREME_RETURN_IF_ERROR(sends[part.number].send(*this, call, data + part.first * call.size,
                                                      part.count * call.size));
    }
    return Status::success();
  };
  const bool waits = call.copied && n_ == 2;
  if (!waits) TRIREME_RETURN_IF_ERROR(give_to(begun));
  for (std::size_t i = begun; i < parts.size(); ++i) {
    const Part& part = parts[i];
    if (waits) TRIREME_RETURN_IF_ERROR(give_to(i - begun + kAhead));
    TRIREME_RETURN_IF_ERROR(receives[i % kAhead].wait(call.deadline));
    TRIREME_RETURN_IF_ERROR(sends[part.number].wait(call.deadline));
    std::byte* const sum = (part.last ? result : sums) + part.number * most * call.size;
    const void* const both[] = {arrived + i % kAhead * room, data + part.first * call.size};
    kernels::reduce_few(op.dtype, part.last ? op.reduction : kernels::unfinished(op.reduction), sum,
                        both, 2, part.count, static_cast<std::uint32_t>(n_), op.scale);
    TRIREME_RETURN_IF_ERROR(receive(i + kAhead));
    if (part.last) continue;
    TRIREME_RETURN_IF_ERROR(sends[part.number].send(*this, call, sum, part.count * call.size));
  }
  TRIREME_RETURN_IF_ERROR(give_to(begun));
  for (Posted& send : sends) TRIREME_RETURN_IF_ERROR(send.wait(call.deadline));
  return Status::success();
}

Status Ring::all_gather(Call& call) {
  const Operation& op = call.op;
  auto* const data = static_cast<std::byte*>(op.receive);
  const std::vector<Block> blocks = blocks_of(op);
  const Block& own = block_of(blocks, me_);
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
  if (n_ == 2 && wire_.copies()) {
    return step(call, data, passes ? bytes : 0, data, takes ? bytes : 0);
  }
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

}  // namespace trireme::wire
