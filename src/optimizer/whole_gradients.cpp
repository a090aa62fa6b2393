#include "optimizer/whole_gradients.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {
namespace {

using sharding::Bucket;
using sharding::Parameter;
using sharding::Range;
using sharding::Segment;

bool is_whole(const Parameter& parameter, std::uint64_t number) {
  return is_trained(parameter, number) &&
         std::any_of(parameter.placements.begin(), parameter.placements.end(),
                     [](const sharding::AxisPlacement& each) {
                       return each.kind == TRIREME_PLACEMENT_WHOLE && each.ranks > 1;
                     });
}

// Every NaN counts as the same: a step that is skipped because of one has no other fault.
std::uint64_t comparable(std::uint64_t bits, std::uint64_t size) {
  constexpr std::uint64_t kInf64 = 0x7ff0000000000000, kSign64 = 0x8000000000000000;
  constexpr std::uint64_t kInf32 = 0x7f800000, kSign32 = 0x80000000;
  const bool wide = size == sizeof(double);
  return (bits & ~(wide ? kSign64 : kSign32)) > (wide ? kInf64 : kInf32) ? UINT64_MAX : bits;
}

// Of each whole parameter, a sum over the elements in this rank's block.
void add_own(const ShardView& shard, std::uint64_t* sums) {
  const std::uint32_t rank = shard.layout().spread.rank;
  for (const Bucket& bucket : shard.layout().buckets) {
    const std::uint64_t begin = bucket.block_first[rank], size = dtype_size(bucket.dtype);
    const char* const block = shard.gradients().buckets().reduced_block(bucket);
    for (const Segment& segment : bucket.segments) {
      if (!is_whole(shard.registry().parameters()[segment.parameter], segment.parameter)) continue;
      const Range part =
          sharding::intersect({begin, bucket.counts[rank]}, {segment.position, segment.count});
      for (std::uint64_t i = 0; i < part.count; ++i) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, block + (part.first - begin + i) * size, size);
        sums[segment.parameter] += mixed_element(segment.first + part.first - segment.position + i,
                                                 comparable(bits, size));
      }
    }
  }
}

}  // namespace

bool has_whole_gradients(const ShardView& shard) {
  const std::vector<Parameter>& parameters = shard.registry().parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (is_whole(parameters[i], i)) return true;
  }
  return false;
}

Status compare_whole_gradients(const ShardView& shard, bool* differs) {
  *differs = false;
  ModelAxes::Compared compared;
  compared.differs = differs;
  compared.call = "step";
  compared.what = "the gradient of ";
  compared.own_group = true;
  compared.is_on = [](const Parameter& parameter, std::uint64_t number, const std::string& axis) {
    const sharding::AxisPlacement* const placement = placement_on(parameter, axis);
    return is_trained(parameter, number) && placement != nullptr &&
           placement->kind == TRIREME_PLACEMENT_WHOLE;
  };
  compared.sums = [&shard](std::uint64_t* sums) {
    add_own(shard, sums);
    return Status::success();
  };
  TRIREME_FAILPOINT("step", "before_whole");
  return shard.axes().compare(shard.link(), shard.registry(), compared, Status::success());
}

}  // namespace trireme::strategies
