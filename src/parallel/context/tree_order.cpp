#include "parallel/context/tree_order.hpp"

#include <algorithm>

namespace trireme::parallel {

bool TreeOrder::brings_value(const sharding::TreeNode& node) const {
  const std::uint32_t first = std::max(node.first, first_);
  const std::uint32_t end = std::min(node.end, end_);
  return first < end && chunks_.filled_before(first) < chunks_.filled_before(end);
}

sharding::TreeNode TreeOrder::partner_of(const sharding::TreeNode& node,
                                         sharding::TreeNode* parent) const {
  *parent = {0, chunks_.count()};
  for (;;) {
    const std::uint32_t middle = sharding::middle_of(*parent);
    const sharding::TreeNode left{parent->first, middle};
    const sharding::TreeNode right{middle, parent->end};
    if (node == left) return right;
    if (node == right) return left;
    *parent = node.first < middle ? left : right;
  }
}

}  // namespace trireme::parallel
