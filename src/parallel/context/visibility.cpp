#include "parallel/context/visibility.hpp"

#include <algorithm>
#include <utility>

namespace trireme::parallel {

Visibility::Visibility(std::uint64_t positions, bool causal, std::vector<std::uint64_t> starts)
    : causal_(causal), starts_(std::move(starts)) {
  if (starts_.empty() || starts_.front() != 0) starts_.insert(starts_.begin(), 0);
  starts_.push_back(positions);
}

sharding::Range Visibility::sequence_of(std::uint64_t position) const {
  const auto end = std::upper_bound(starts_.begin(), starts_.end() - 1, position);
  return {*(end - 1), *end - *(end - 1)};
}

sharding::Range Visibility::of(std::uint64_t position) const {
  const sharding::Range sequence = sequence_of(position);
  return {sequence.first, (causal_ ? position + 1 : sequence.end()) - sequence.first};
}

// Neither end of the range goes back from one position to the next, and each position sees itself.
// So positions in a row see one range together.
sharding::Range Visibility::seen_by(const sharding::Range& queries) const {
  if (queries.count == 0) return {};
  const std::uint64_t first = of(queries.first).first;
  return {first, of(queries.end() - 1).end() - first};
}

sharding::Range Visibility::seers_of(const sharding::Range& keys) const {
  if (keys.count == 0) return {};
  const std::uint64_t first = causal_ ? keys.first : sequence_of(keys.first).first;
  return {first, sequence_of(keys.end() - 1).end() - first};
}

trireme_attention_mask Visibility::mask(const sharding::Range& queries,
                                        const sharding::Range& keys) const {
  const bool begins_before = of(queries.end() - 1).first <= keys.first;
  if (begins_before && keys.end() <= of(queries.first).end()) return TRIREME_ATTENTION_MASK_FULL;
  const bool diagonal = causal_ && queries.first == keys.first && begins_before;
  return diagonal ? TRIREME_ATTENTION_MASK_DIAGONAL : TRIREME_ATTENTION_MASK_RANGES;
}

}  // namespace trireme::parallel
