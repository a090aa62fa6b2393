#include "model/gradients/axis_sums.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/reduce.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "sharding/leaf_tree.hpp"
#include "sharding/plan.hpp"

namespace trireme::strategies {

using sharding::Segment;
using sharding::SharedAxis;
using sharding::SharedGradient;

namespace {

// Adds up the ranks' summands along the tree of leaf_tree.hpp.
struct RankTreeFold {
  static constexpr std::uint64_t kStretch = 512;
  trireme_dtype dtype;
  char* block;  // of this rank, in its own summand: no peer reads it

  void operator()(std::uint64_t first, std::uint64_t count, const void* const* sources,
                  std::uint32_t ranks) const {
    const std::uint64_t size = dtype_size(dtype);
    const std::uint32_t levels = sharding::tree_levels(ranks);
    const auto memory = std::make_unique_for_overwrite<char[]>(levels * kStretch * size);
    const auto level = [&](std::uint32_t number) {
      return memory.get() + number * kStretch * size;
    };
    std::vector<const void*> parts;
    for (std::uint64_t done = 0; done < count; done += kStretch) {
      const std::uint64_t here = std::min(kStretch, count - done);
      const auto add = [&](void* to) {
        kernels::reduce_few(dtype, TRIREME_REDUCTION_SUM, to, parts.data(),
                            static_cast<std::uint32_t>(parts.size()), here, 1, 0);
      };
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const std::uint32_t target = sharding::level_completed_by(rank);
        parts.assign(1, static_cast<const char*>(sources[rank]) + done * size);
        for (std::uint32_t i = 0; i < target; ++i) parts.push_back(level(i));
        add(level(target));
      }
      parts.clear();
      for (std::uint32_t i = 0; i < levels; ++i) {
        if (sharding::level_remains(ranks, i)) parts.push_back(level(i));
      }
      add(block + (first + done) * size);
    }
  }
};

void write_flag(trireme_dtype dtype, char* to, bool value) {
  if (dtype == TRIREME_DTYPE_F64) {
    const double number = value ? 1 : 0;
    std::memcpy(to, &number, sizeof number);
  } else {
    const float number = value ? 1 : 0;
    std::memcpy(to, &number, sizeof number);
  }
}

bool read_flag(trireme_dtype dtype, const char* from) {
  if (dtype == TRIREME_DTYPE_F64) {
    double number = 0;
    std::memcpy(&number, from, sizeof number);
    return number > 0;
  }
  float number = 0;
  std::memcpy(&number, from, sizeof number);
  return number > 0;
}

}  // namespace

Status along_axis(const std::string& axis, const Status& status) {
  if (status.ok()) return Status::success();
  Status told =
      Status::failure(status.code(), "along axis " + sharding::quoted(axis) +
                                         " of the mesh: " + std::string(status.message()));
  return status.details() != nullptr ? std::move(told).with_details(*status.details())
                                     : std::move(told);
}

AxisSums::AxisSums(const sharding::Registry& registry, const sharding::Layout& layout, bool skips,
                   bool after_hook, GradientIntake& intake, const BucketMemory& memory, Link& link)
    : registry_(registry),
      layout_(layout),
      skips_(skips),
      after_hook_(after_hook),
      intake_(intake),
      memory_(memory),
      link_(link),
      axes_(sharding::shared_axes(registry, layout, skips)),
      at_once_(std::all_of(axes_.begin(), axes_.end(),
                           [](const SharedAxis& each) { return each.axis == "tensor"; })),
      lines_(axes_.size()),
      prepared_(layout.buckets.size()) {}

// ---- when the model is sealed ----

std::vector<bool> AxisSums::cuts_of(std::size_t number) const {
  const std::vector<SharedGradient>& gradients = axes_[number].gradients;
  std::vector<bool> cuts(gradients.size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    cuts[i] = i == 0 || gradients[i].bucket != gradients[i - 1].bucket;
  }
  return cuts;
}

Status AxisSums::allocate(std::size_t number, std::shared_ptr<Communicator> ranks,
                          const std::shared_ptr<AllocatedBytes>& counter) {
  lines_[number].ranks = std::move(ranks);
  return lines_[number].memory.allocate(*lines_[number].ranks, counter, MemoryKind::working,
                                        axes_[number].bytes);
}

void AxisSums::open(std::size_t number, const std::vector<bool>& cuts) {
  const std::vector<SharedGradient>& gradients = axes_[number].gradients;
  Line& line = lines_[number];
  const auto ranks = static_cast<std::uint32_t>(line.ranks->world_size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (cuts[i] || line.sets.empty()) {
      Set set;
      set.first = i;
      set.bucket = gradients[i].bucket;
      set.dtype = layout_.buckets[set.bucket].dtype;
      set.place = gradients[i].place;
      line.sets.push_back(std::move(set));
    }
    Set& set = line.sets.back();
    set.end = i + 1;
    set.elements += gradients[i].bytes / dtype_size(set.dtype);
  }
  for (Set& set : line.sets) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      set.counts.push_back(sharding::shard_range(set.elements, ranks, rank).count);
    }
  }
}

std::uint64_t AxisSums::given_bytes(const Line& line, const Set& set) const {
  const auto rank = static_cast<std::uint32_t>(line.ranks->rank());
  const std::uint64_t size = dtype_size(set.dtype);
  return sharding::reduce_bytes(set.counts, rank, size) +
         sharding::gather_bytes(set.counts, rank, size);
}

std::uint64_t AxisSums::given_bytes() const {
  std::uint64_t bytes = 0;
  for (const Line& line : lines_) {
    for (const Set& set : line.sets) bytes += given_bytes(line, set);
  }
  return bytes;
}

// ---- a backward pass ----

void AxisSums::begin_pass() {
  prepared_.assign(prepared_.size(), false);
  for (Line& line : lines_) line.next = line.done = 0;
}

bool AxisSums::is_ready(const SharedAxis& axis, const Set& set) const {
  if (after_hook_) return prepared_[set.bucket];
  for (std::size_t i = set.first; i < set.end; ++i) {
    if (!intake_.is_in(axis.gradients[i].parameter)) return false;
  }
  return true;
}

Status AxisSums::start(bool all) {
  for (std::size_t number = 0; number < lines_.size(); ++number) {
    Line& line = lines_[number];
    while (line.next < line.sets.size()) {
      Set& set = line.sets[line.next];
      const bool ready = is_ready(axes_[number], set);
      if (!ready && (!all || after_hook_)) break;
      fill(axes_[number], set, line.memory.data());
      ++line.next;
      TRIREME_RETURN_IF_ERROR(along_axis(axes_[number].axis, start_set(number, set)));
    }
  }
  return Status::success();
}

// A gradient that is not in counts as zero.
void AxisSums::fill(const SharedAxis& axis, const Set& set, char* memory) const {
  const std::uint64_t size = dtype_size(set.dtype);
  const char* const bucket = memory_.contribution(set.bucket);
  for (std::size_t i = set.first; i < set.end; ++i) {
    const SharedGradient& gradient = axis.gradients[i];
    char* const to = memory + gradient.place;
    const std::uint64_t bytes = gradient.elements * size;
    if (bucket == nullptr || !intake_.is_in(gradient.parameter)) {
      std::memset(to, 0, bytes);
    } else {
      for (const Segment& segment : layout_.segments[gradient.parameter]) {
        kernels::copy(to + segment.first * size, bucket + segment.position * size,
                      segment.count * size);
      }
    }
    std::memset(to + bytes, 0, gradient.bytes - bytes);
    if (skips_) write_flag(set.dtype, to + bytes, intake_.used()[gradient.parameter]);
  }
}

void AxisSums::bring(const SharedAxis& axis, const Set& set, const char* memory) {
  const std::uint64_t size = dtype_size(set.dtype);
  char* const bucket = memory_.contribution(set.bucket);
  for (std::size_t i = set.first; i < set.end; ++i) {
    const SharedGradient& gradient = axis.gradients[i];
    const char* const from = memory + gradient.place;
    for (const Segment& segment : layout_.segments[gradient.parameter]) {
      if (bucket == nullptr) break;
      kernels::copy(bucket + segment.position * size, from + segment.first * size,
                    segment.count * size);
    }
    if (skips_ && read_flag(set.dtype, from + gradient.elements * size)) {
      intake_.note_used(gradient.parameter);
    }
  }
}

// Each rank adds its block of the set, and then all get all blocks.
Status AxisSums::start_set(std::size_t number, Set& set) {
  Line& line = lines_[number];
  char* const data = line.memory.data() + set.place;
  const std::uint64_t size = dtype_size(set.dtype);
  const std::uint32_t rank = static_cast<std::uint32_t>(line.ranks->rank());
  const std::uint64_t before =
      sharding::shard_range(set.elements, static_cast<std::uint32_t>(set.counts.size()), rank)
          .first;
  Operation operation;
  operation.kind = OperationKind::fold;
  operation.dtype = set.dtype;
  operation.send = data;
  operation.count = set.elements;
  operation.counts = set.counts;
  operation.fold = RankTreeFold{set.dtype, data + before * size};
  operation.agreement = set.first;
  operation.agreement_name = "shared parameter";
  operation.owner = line.memory.memory();
  TRIREME_FAILPOINT("axis_sum", "before_launch");
  TRIREME_RETURN_IF_ERROR(line.ranks->start(std::move(operation), link_.deadline(), &set.request));
  Operation gather;
  gather.kind = OperationKind::all_gather_v;
  gather.dtype = set.dtype;
  gather.send = data + before * size;
  gather.receive = data;
  gather.count = set.elements;
  gather.counts = set.counts;
  gather.owner = line.memory.memory();
  TRIREME_RETURN_IF_ERROR(line.ranks->start(std::move(gather), link_.deadline(), &set.request));
  TRIREME_FAILPOINT("axis_sum", "after_launch");
  link_.given_bytes += given_bytes(line, set);
  return Status::success();
}

Status AxisSums::finish(std::uint64_t bucket, bool waits, bool* done) {
  *done = false;
  for (std::size_t number = 0; number < lines_.size(); ++number) {
    Line& line = lines_[number];
    while (line.done < line.sets.size() && line.sets[line.done].bucket <= bucket) {
      Set& set = line.sets[line.done];
      // A set is started before its bucket comes here, but for one behind a hook that waits.
      if (line.done == line.next || (!waits && !set.request->done())) return Status::success();
      const std::shared_ptr<Request> request = std::exchange(set.request, nullptr);
      ++line.done;
      TRIREME_RETURN_IF_ERROR(along_axis(axes_[number].axis, link_.wait(*request)));
      TRIREME_FAILPOINT("axis_sum", "after_wait");
      bring(axes_[number], set, line.memory.data());
    }
  }
  *done = true;
  return Status::success();
}

}  // namespace trireme::strategies
