#include "collectives/block_memory.hpp"

#include <cstring>
#include <utility>

namespace trireme {
namespace {

// A collective runs in sections, so that the memory between its messages stays small: the sections
// that are under way side by side share so much. Small sections also keep the messages of one
// channel within the room that a backend has for early messages.
constexpr std::uint64_t kSectionBytes = 32u << 20;

// Most blocks that one message of such a schedule holds.
std::uint64_t blocks_of_message(Pattern pattern, Algorithm algorithm, std::uint64_t ranks) {
  switch (algorithm) {
    case Algorithm::halving_doubling:
    case Algorithm::bruck:
    case Algorithm::binomial:
      return pattern == Pattern::broadcast || pattern == Pattern::reduce ? 1 : ranks;
    default: return 1;
  }
}

template <class Visit>
void visit_step(const Step& step, Visit& visit) {
  visit(step.destination);
  for (const Slot& slot : step.sources) visit(slot);
}

template <class Visit>
void for_each_slot(const Schedule& schedule, Visit visit) {
  for (const Step& step : schedule.first) visit_step(step, visit);
  for (const Round& round : schedule.rounds) {
    for (const Transfer& send : round.sends) {
      for (const Slot& slot : send.slots) visit(slot);
    }
    for (const Transfer& receive : round.receives) {
      for (const Slot& slot : receive.slots) visit(slot);
    }
    for (const Step& step : round.then) visit_step(step, visit);
  }
}

}  // namespace

BlockMemory::Extent BlockMemory::extent(std::uint32_t block, std::uint32_t blocks) const {
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
  const std::uint64_t line = kLine / size_;
  const std::uint64_t share = op_.count / blocks + (op_.count % blocks != 0);
  const std::uint64_t length = (share + line - 1) / line * line;
  const std::uint64_t begin = std::min(op_.count, length * block);
  const bool has_output = pattern_ != Pattern::reduce || me_ == op_.root;
  return {begin, begin, std::min(op_.count - begin, length), has_output};
}

std::uint64_t BlockMemory::longest_block() const {
  std::uint64_t longest = 0;
  for (const Extent& each : extents_) longest = std::max(longest, each.count);
  return longest;
}

// The same on all ranks: it depends on what they agree on alone.
void BlockMemory::choose_section(Algorithm algorithm, std::uint64_t message_bytes,
                                 std::uint64_t side_by_side) {
  const auto ranks = static_cast<std::uint64_t>(n_);
  const std::uint64_t element = std::max(size_, partial_size(op_.dtype));
  const std::uint64_t message =
      message_bytes / element / blocks_of_message(pattern_, algorithm, ranks);
  // Each rank needs at most two spares, and there are as many partial blocks as blocks.
  const std::uint64_t partials = pattern_ == Pattern::all_to_all ? 0 : extents_.size();
  const std::uint64_t memory = kSectionBytes / side_by_side / element / (2 * ranks + 2 + partials);
  section_ = std::max<std::uint64_t>(std::min(message, memory), kLine);
}

// Every spare gets room for the longest block that passes through it. Each message of several
// places gets room to be packed in.
std::uint64_t BlockMemory::plan(const Schedule& schedule, Algorithm algorithm,
                                std::uint64_t message_bytes, std::uint64_t side_by_side) {
  extents_.resize(schedule.blocks);
  for (std::uint32_t b = 0; b < schedule.blocks; ++b) extents_[b] = extent(b, schedule.blocks);
  choose_section(algorithm, message_bytes, side_by_side);
  for_each_slot(schedule, [&](const Slot& slot) {
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
  for (const Round& round : schedule.rounds) {
    std::uint64_t bytes = 0;
    for (const Transfer& send : round.sends) bytes += packed_bytes(send);
    for (const Transfer& receive : round.receives) bytes += packed_bytes(receive);
    most = std::max(most, bytes);
  }
  return end + most;
}

std::uint64_t BlockMemory::packed_bytes(const Transfer& transfer) const {
  if (transfer.slots.size() < 2) return 0;
  std::uint64_t bytes = kLine;
  for (const Slot& slot : transfer.slots) {
    bytes += std::min(section_, extents_[slot.block].count) * element_bytes(slot);
  }
  return bytes;
}

void BlockMemory::pack(const Transfer& transfer, std::byte* to) {
  for (const Slot& slot : transfer.slots) {
    const std::uint64_t bytes = count(slot.block) * element_bytes(slot);
    if (bytes > 0) std::memcpy(to, locate(slot), bytes);
    to += bytes;
  }
}

void BlockMemory::unpack(const Transfer& transfer, const std::byte* from) {
  for (const Slot& slot : transfer.slots) {
    const std::uint64_t bytes = count(slot.block) * element_bytes(slot);
    if (bytes > 0) std::memcpy(locate(slot), from, bytes);
    from += bytes;
  }
}

}  // namespace trireme
