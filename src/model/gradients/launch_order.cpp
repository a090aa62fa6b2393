#include "model/gradients/launch_order.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace trireme::strategies {

LaunchOrder::LaunchOrder(const sharding::Registry& registry, const sharding::Layout& layout,
                         bool fixed)
    : registry_(registry),
      layout_(layout),
      settled_(fixed || layout.buckets.size() < 2),
      buckets_(layout.buckets.size()) {
  std::iota(buckets_.begin(), buckets_.end(), 0);
  for (std::uint64_t number = registry.parameters().size(); number-- > 0;) {
    const sharding::Parameter& parameter = registry.parameters()[number];
    if (!parameter.frozen && parameter.target == number) targets_.push_back(number);
  }
}

Status LaunchOrder::learn(Link& link, const Storage& storage, std::uint64_t* words) {
  if (settled_) return Status::success();
  const std::uint64_t count = buckets_.size();
  // Goes chunk by chunk through the words of the exchange. The first word tells whether there is an
  // order: an absent pass of rank 0 has shown none.
  constexpr std::uint64_t kChunk = 127;
  std::vector<std::uint64_t> order = completed_;
  order.resize(count);
  for (std::uint64_t first = 0; first < count; first += kChunk) {
    const std::uint64_t here = std::min(kChunk, count - first);
    words[0] = completed_.size() == count ? 1 : 0;
    std::copy_n(order.data() + first, here, words + 1);
    Operation operation = in_place(link, link.reductions, OperationKind::broadcast,
                                   TRIREME_DTYPE_U64, words, 1 + here, storage.hold());
    TRIREME_RETURN_IF_ERROR(link.run(std::move(operation)));
    if (words[0] == 0) return Status::success();
    std::copy_n(words + 1, here, order.data() + first);
  }
  buckets_ = std::move(order);
  settled_ = true;
  sort_targets();
  return Status::success();
}

void LaunchOrder::sort_targets() {
  const std::uint64_t count = buckets_.size();
  std::vector<std::uint64_t> place(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    place[buckets_[i]] = i;
    if (buckets_[i] != i) ++moved_;
  }
  const auto place_of = [&](std::uint64_t target) {
    const std::uint64_t bucket = layout_.group_of_parameter(registry_.parameters()[target]).bucket;
    return bucket == sharding::kNone ? count : place[bucket];
  };
  std::stable_sort(targets_.begin(), targets_.end(),
                   [&](std::uint64_t a, std::uint64_t b) { return place_of(a) < place_of(b); });
}

}  // namespace trireme::strategies
