// TreeOrder: merges values of chunks along the tree over chunk numbers, in whatever order they
// arrive. A chunk that brings no value is passed over, and its partner moves up alone. So a result
// does not depend on the order of arrival. Pure.
#pragma once

#include <cstdint>
#include <map>

#include "parallel/context/chunks.hpp"
#include "sharding/blocks.hpp"

namespace trireme::parallel {

class TreeOrder {
 public:
  // Chunks [first, end) that hold a position bring a value. `chunks` must live as long as this.
  TreeOrder(const Chunks& chunks, std::uint32_t first, std::uint32_t end)
      : chunks_(chunks), first_(first), end_(end) {}

  // The value of a node lies in `slot`. merge(left, right) adds slot `right` to slot `left`; slot
  // `right` is free afterwards.
  template <class Merge>
  void arrive(sharding::TreeNode node, std::uint32_t slot, Merge&& merge) {
    while (node.width() < chunks_.count()) {
      sharding::TreeNode parent;
      const sharding::TreeNode partner = partner_of(node, &parent);
      if (brings_value(partner)) {
        const auto found = waiting_.find(partner.first);
        if (found == waiting_.end() || !(found->second.node == partner)) break;
        const std::uint32_t other = found->second.slot;
        waiting_.erase(found);
        const bool is_left = node.first < partner.first;
        merge(is_left ? slot : other, is_left ? other : slot);
        if (!is_left) slot = other;
      }
      node = parent;
    }
    waiting_[node.first] = {node, slot};
  }

  struct Waiting {
    sharding::TreeNode node;
    std::uint32_t slot = 0;
  };
  // Values that wait for their partner, by their first chunk. At the end, it is the result alone.
  const std::map<std::uint32_t, Waiting>& waiting() const { return waiting_; }
  bool brings_value(const sharding::TreeNode& node) const;

 private:
  sharding::TreeNode partner_of(const sharding::TreeNode& node, sharding::TreeNode* parent) const;

  const Chunks& chunks_;
  const std::uint32_t first_;
  const std::uint32_t end_;
  std::map<std::uint32_t, Waiting> waiting_;
};

}  // namespace trireme::parallel
