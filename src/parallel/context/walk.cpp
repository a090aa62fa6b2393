#include "parallel/context/walk.hpp"

namespace trireme::parallel {
namespace {

TreeOrder order_of(const Chunks& chunks, const sharding::Range& positions) {
  if (positions.count == 0) return {chunks, 0, 0};
  return {chunks, chunks.at(positions.first), chunks.at(positions.end() - 1) + 1};
}

}  // namespace

std::uint32_t SlotNumbers::take() {
  if (free_.empty()) return most_++;
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

TreeOrder order_of_queries(const Chunks& chunks, const Visibility& visibility,
                           std::uint32_t chunk) {
  return order_of(chunks, visibility.seen_by(chunks.range(chunk)));
}

TreeOrder order_of_keys(const Chunks& chunks, const Visibility& visibility, std::uint32_t chunk) {
  return order_of(chunks, visibility.seers_of(chunks.range(chunk)));
}

std::vector<sharding::TreeNode> gradient_nodes(const Chunks& chunks, const Visibility& visibility,
                                               std::uint32_t from, std::uint32_t kv_chunk) {
  TreeOrder order = order_of_keys(chunks, visibility, kv_chunk);
  for (const std::uint32_t q : chunks.of_rank(from)) {
    if (!visibility.any(chunks.range(q), chunks.range(kv_chunk))) continue;
    order.arrive({q, q + 1}, 0, [](std::uint32_t, std::uint32_t) {});
  }
  std::vector<sharding::TreeNode> nodes;
  for (const auto& [first, sum] : order.waiting()) nodes.push_back(sum.node);
  return nodes;
}

std::vector<std::uint64_t> gradient_rows(const Chunks& chunks, const Visibility& visibility) {
  std::vector<std::uint64_t> table(std::size_t{chunks.ranks()} * chunks.ranks());
  for (std::uint32_t from = 0; from < chunks.ranks(); ++from) {
    for (std::uint32_t to = 0; to < chunks.ranks(); ++to) {
      if (from == to) continue;
      for (const std::uint32_t kv : chunks.of_rank(to)) {
        table[std::size_t{from} * chunks.ranks() + to] +=
            gradient_nodes(chunks, visibility, from, kv).size() * chunks.range(kv).count;
      }
    }
  }
  return table;
}

}  // namespace trireme::parallel
