// Reductions of buckets: how they are added up, started and waited for.
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/finite.hpp"
#include "kernels/reduce.hpp"
#include "model/gradients/reducer.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "sharding/leaf_tree.hpp"

namespace trireme::strategies {

using sharding::Bucket;
using sharding::kNone;

namespace {

constexpr std::uint32_t kMaxLevels = 17;  // leaves are at most 65,536
using Levels = std::array<char*, kMaxLevels>;

// From here on an all-reduce moves fewer bytes than its two halves: small ones are read whole by every rank.
constexpr std::uint64_t kAtOnceBytes = 64u << 10;

// What all leaves add up to, from the partial sums that remain of them. `sum` may lie in one of those.
void combine(trireme_dtype dtype, std::uint32_t leaves, const Levels& levels, std::uint64_t offset,
             std::uint64_t count, char* sum, trireme_reduction reduction, std::uint32_t divisor) {
  std::array<const void*, kMaxLevels> parts;
  std::uint32_t part_count = 0;
  for (std::uint32_t i = 0; i < sharding::tree_levels(leaves); ++i) {
    if (sharding::level_remains(leaves, i)) parts[part_count++] = levels[i] + offset;
  }
  kernels::reduce(dtype, reduction, sum + offset, parts.data(), part_count, count, divisor, 0);
}

// Adds the leaves that the ranks bring in one round to the partial sums, in the order of leaves.
struct LeafFold {
  trireme_dtype dtype;
  std::uint64_t size;
  std::uint32_t first_leaf;
  Levels levels;
  // In the last round, where all that follows is in flight, too; null otherwise.
  char* sum = nullptr;
  std::uint32_t leaves = 0;
  trireme_reduction reduction = TRIREME_REDUCTION_SUM;

  void operator()(std::uint64_t first, std::uint64_t count, const void* const* sources,
                  std::uint32_t source_count) const {
    std::uint32_t rank = 0;
    while (rank < source_count && sources[rank] != nullptr) {
      std::uint32_t leaf = first_leaf + rank;
      std::array<const void*, kMaxLevels + 1> parts;
      std::uint32_t part_count = 0;
      std::uint32_t lowest = 0;
      parts[part_count++] = sources[rank++];
      // Two leaves side by side need no level between them.
      if (leaf % 2 == 0 && rank < source_count && sources[rank] != nullptr) {
        parts[part_count++] = sources[rank++];
        ++leaf;
        lowest = 1;
      }
      const std::uint32_t target = sharding::level_completed_by(leaf);
      for (std::uint32_t at = lowest; at < target; ++at) {
        parts[part_count++] = levels[at] + first * size;
      }
      kernels::reduce(dtype, TRIREME_REDUCTION_SUM, levels[target] + first * size, parts.data(), part_count,
                      count, 1, 0);
    }
    if (sum != nullptr) {
      combine(dtype, leaves, levels, first * size, count, sum, reduction, leaves);
    }
  }
};

// Of contributions that come in a narrower dtype: the same fold, of as many elements at a time as stay in
// the first cache as f32.
struct WideningFold {
  static constexpr std::uint64_t kStretch = 512;
  trireme_dtype dtype;
  Fold fold;

  void operator()(std::uint64_t first, std::uint64_t count, const void* const* sources,
                  std::uint32_t source_count) const {
    // Only while it is folded: many may be in flight.
    const auto memory = std::make_unique_for_overwrite<float[]>(source_count * kStretch);
    std::vector<const void*> wide(source_count);
    for (std::uint64_t done = 0; done < count; done += kStretch) {
      const std::uint64_t here = std::min(kStretch, count - done);
      for (std::uint32_t i = 0; i < source_count; ++i) {
        if (sources[i] == nullptr) continue;
        float* const to = memory.get() + i * kStretch;
        kernels::widen(dtype, to, static_cast<const char*>(sources[i]) + done * dtype_size(dtype),
                       here);
        wide[i] = to;
      }
      fold(first + done, here, wide.data(), source_count);
    }
  }
};

// Reduces in the order of ranks; `block` is this rank's and lies in what it sent, so nobody else
// reads it.
struct RankFold {
  trireme_dtype dtype;
  std::uint64_t size;
  trireme_reduction reduction;
  char* block;
  char* sum;  // null, or where the reduced elements go
  bool add;   // to what is in sum

  void operator()(std::uint64_t first, std::uint64_t count, const void* const* sources,
                  std::uint32_t source_count) const {
    char* const destination = (sum == nullptr || add ? block : sum) + first * size;
    const std::uint32_t ranks = source_count;
    std::vector<const void*> present;
    if (std::find(sources, sources + source_count, nullptr) != sources + source_count) {
      std::copy_if(sources, sources + source_count, std::back_inserter(present),
                   [](const void* source) { return source != nullptr; });
      sources = present.data();
      source_count = static_cast<std::uint32_t>(present.size());
    }
    if (source_count == 0) {
      if (!add) std::memset(destination, 0, count * size);
      return;
    }
    kernels::reduce(dtype, reduction, destination, sources, source_count, count, ranks, 0);
    if (add) kernels::add(dtype, sum + first * size, destination, count);
  }
};

}  // namespace

// ---- reductions ----

char* Reducer::level(const Bucket& bucket, std::uint32_t number) const {
  if (number == plan_.level_count) return reduced_block(bucket);  // the top one of zero2 and zero3
  const std::uint64_t size = dtype_size(bucket.dtype);
  const std::uint64_t bytes = bucket.counts[layout_.spread.rank] * size;
  if (plan_.levels_in_slots) {
    return reduced(bucket) + sharding::piece(bucket.elements * size) + number * bytes;
  }
  return levels_ + plan_.level_count * bucket.shard_offset + number * bytes;
}

// Of a contribution, with its partial sums if they lie there.
std::uint64_t Reducer::place_bytes(const Bucket& bucket) const {
  const std::uint64_t size = dtype_size(bucket.dtype);
  const std::uint64_t bytes = bucket.elements * size;
  if (!plan_.levels_in_slots) return bytes;
  return sharding::piece(bytes) +
         plan_.level_count * bucket.counts[layout_.spread.rank] * size;
}

// What a rank gives to the others, as reduce_dtype.
const char* Reducer::round_off(std::uint64_t number, const char* contribution) {
  const Bucket& bucket = layout_.buckets[number];
  const Contribution& mine = contributions_[number];
  char* to = rounded_;
  if (mine.extra.bytes() > 0) {
    to = mine.extra.data() + place_bytes(bucket);
  } else {
    to += plan_.rounded_stride > 0 ? mine.slot * plan_.rounded_stride : bucket.whole_offset / 2;
  }
  kernels::narrow(layout_.spread.reduce_dtype, to, reinterpret_cast<const float*>(contribution),
                  bucket.elements);
  // What became inf on its way is this rank's, as if it had been handed in so.
  for (const sharding::Segment& segment : bucket.segments) {
    const trireme_dtype dtype = layout_.spread.reduce_dtype;
    if (!watched_ || segment.parameter >= first_overflow_) continue;
    if (!kernels::all_finite(dtype, to + segment.position * dtype_size(dtype), segment.count)) {
      first_overflow_ = segment.parameter;
    }
  }
  return to;
}

Fold Reducer::fold(const Bucket& bucket, char* own, std::uint32_t round) const {
  const std::uint64_t size = dtype_size(bucket.dtype);
  if (reproducible()) {
    LeafFold fold{bucket.dtype, size, round * layout_.spread.world_size, {}};
    const std::uint32_t count = sharding::tree_levels(layout_.spread.leaves);
    for (std::uint32_t i = 0; i < count; ++i) fold.levels[i] = level(bucket, i);
    if (updates() && is_last(round)) {
      fold.sum = reduced_block(bucket);
      fold.leaves = layout_.spread.leaves;
      fold.reduction = settings_.average ? TRIREME_REDUCTION_AVERAGE : TRIREME_REDUCTION_SUM;
    }
    return fold;
  }
  const bool whole = layout_.spread.whole_gradients() || updates();  // the sum stays in place
  return RankFold{bucket.dtype,
                  size,
                  settings_.average && !settings_.uneven ? TRIREME_REDUCTION_AVERAGE : TRIREME_REDUCTION_SUM,
                  own == nullptr ? nullptr : own + layout_.block_offset(bucket),
                  whole ? nullptr : reduced_block(bucket),
                  !whole && round > 0};
}

// data_parallel where peers write the sums into this rank's memory: fewer bytes and one barrier less than a
// reduction to blocks and their gather. Both add in the order of ranks; an all-reduce over a transport
// may not, and none knows ranks that bring nothing.
bool Reducer::reduces_at_once(const Bucket& bucket) const {
  return layout_.spread.whole_state() && !reproducible() && !settings_.uneven &&
         layout_.spread.reduce_dtype == 0 &&
         bucket.elements * dtype_size(bucket.dtype) >= kAtOnceBytes &&
         link_.communicator->shares_memory();
}

// A group of one, whose gradients lie where their sum would: a pass over them would only give NaN other
// bits.
bool Reducer::is_reduced_as_handed_in() const {
  return link_.world_size() == 1 && layout_.spread.whole_gradients() && !reproducible() &&
         !settings_.uneven && layout_.spread.reduce_dtype == 0;
}

// `send` is null where this rank has no leaf.
Status Reducer::launch(std::uint64_t number, const char* send, std::uint32_t round) {
  if (is_reduced_as_handed_in()) {
    ++reductions_;
    return Status::success();
  }
  const Bucket& bucket = layout_.buckets[number];
  Contribution& mine = contributions_[number];
  const bool updated_next = updates() && is_last(round);
  if (updated_next) {
    TRIREME_RETURN_IF_ERROR(ask_to_update());
    // A place for what comes out, also where this rank brings nothing.
    char* place = mine.data;
    if (reduced_in_slot() && place == nullptr)
      TRIREME_RETURN_IF_ERROR(contribution(number, &place));
  }
  Operation operation;
  operation.channel = link_.reductions;
  operation.dtype = bucket.dtype;
  operation.send = send;
  operation.count = bucket.elements;
  const bool at_once = reduces_at_once(bucket);
  if (at_once) {
    operation.kind = OperationKind::all_reduce;
    operation.reduction = settings_.average ? TRIREME_REDUCTION_AVERAGE : TRIREME_REDUCTION_SUM;
    operation.receive = mine.data;
    // A step that is discarded: nobody takes it for made, whatever comes out.
    if (send == nullptr) operation.send = mine.data;
  } else {
    operation.kind = OperationKind::fold;
    operation.counts = bucket.counts;
    operation.fold = fold(bucket, mine.data, round);
  }
  const trireme_dtype narrow = layout_.spread.reduce_dtype;
  if (narrow != 0) {
    operation.dtype = narrow;
    if (send != nullptr) operation.send = round_off(number, send);
    operation.fold = WideningFold{narrow, std::move(operation.fold)};
  }
  operation.agreement = std::uint64_t{round} << 32 | number;
  operation.agreement_name = "micro-batch and bucket";
  using Both = std::pair<std::shared_ptr<const void>, std::shared_ptr<Memory>>;
  operation.owner = std::make_shared<Both>(storage_->hold(), mine.extra.memory());
  if (send != nullptr || at_once) {
    link_.given_bytes +=
        sharding::reduce_bytes(bucket.counts, link_.rank(), sharding::given_size(layout_, bucket));
  }
  if (at_once) {
    link_.given_bytes +=
        sharding::gather_bytes(bucket.counts, link_.rank(), dtype_size(bucket.dtype));
  }
  InFlight entry;
  entry.bucket = number;
  entry.last = is_last(round);
  TRIREME_FAILPOINT("bucket", "before_launch");
  TRIREME_RETURN_IF_ERROR(
      link_.communicator->start(std::move(operation), link_.deadline(), &entry.request));
  if (layout_.spread.whole_state() && (!reproducible() || updated_next) && !at_once) {
    TRIREME_RETURN_IF_ERROR(launch_gather(bucket, &entry.request));
  }
  in_flight_.push_back(std::move(entry));
  ++mine.flying;
  ++reductions_;
  TRIREME_FAILPOINT("bucket", "after_launch");
  return Status::success();
}

// data_parallel, where it does not reduce at once: every rank gets every block.
Status Reducer::launch_gather(const Bucket& bucket, std::shared_ptr<Request>* out) {
  Operation operation;
  operation.channel = link_.reductions;
  operation.kind = OperationKind::all_gather_v;
  operation.dtype = bucket.dtype;
  operation.send = reduced_block(bucket);
  operation.receive = reduced(bucket);
  operation.count = bucket.elements;
  operation.counts = bucket.counts;
  using Both = std::pair<std::shared_ptr<const void>, std::shared_ptr<Memory>>;
  operation.owner =
      std::make_shared<Both>(storage_->hold(), contributions_[number_of(bucket)].extra.memory());
  link_.given_bytes +=
      sharding::gather_bytes(bucket.counts, link_.rank(), dtype_size(bucket.dtype));
  return link_.communicator->start(std::move(operation), link_.deadline(), out);
}

// What is left of the step, without a contribution of this rank. A rank whose leaves are done
// starts it at once, so that nobody waits for it.
Status Reducer::launch_absent() {
  for (; launched_rounds_ < rounds_; ++launched_rounds_) {
    for (const std::uint64_t bucket : launch_order_) {
      TRIREME_RETURN_IF_ERROR(launch(bucket, nullptr, launched_rounds_));
    }
  }
  return Status::success();
}

void Reducer::combine_levels(std::uint32_t divisor) {
  for (const Bucket& bucket : layout_.buckets) {
    const std::uint64_t count = bucket.counts[layout_.spread.rank];
    if (count == 0) continue;
    Levels levels;
    for (std::uint32_t i = 0; i < sharding::tree_levels(layout_.spread.leaves); ++i) {
      levels[i] = level(bucket, i);
    }
    combine(bucket.dtype, layout_.spread.leaves, levels, 0, count, reduced_block(bucket),
            settings_.average ? TRIREME_REDUCTION_AVERAGE : TRIREME_REDUCTION_SUM, divisor);
  }
}

Status Reducer::wait_oldest() {
  const InFlight oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  Contribution& mine = contributions_[oldest.bucket];
  --mine.flying;
  Status status = link_.wait(*oldest.request);
  if (status.ok()) status = failpoint("bucket", "after_wait");
  const bool to_update = updates() && oldest.last;
  if (to_update && status.ok()) reduced_.push_back(oldest.bucket);
  if (mine.flying == 0 && !layout_.spread.whole_gradients() && !(to_update && reduced_in_slot())) {
    free_slot(oldest.bucket);
  }
  return status;
}

void Reducer::free_slot(std::uint64_t bucket) {
  Contribution& mine = contributions_[bucket];
  if (mine.slot != kNone) slots_[mine.slot].taken = false;
  extra_bytes_ -= mine.extra.bytes();
  mine = Contribution();
}

Status Reducer::wait_all() {
  Status first = Status::success();
  while (!in_flight_.empty()) {
    Status status = wait_oldest();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace trireme::strategies
