#include "model/gradients/intake.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::Bucket;
using sharding::kNone;
using sharding::Parameter;
using sharding::Segment;

namespace {

// Copies elements of the same or a narrower dtype into gradients; from null: zeros.
void take(trireme_dtype dtype, char* to, trireme_dtype from_dtype, const void* from,
          std::uint64_t count, bool add) {
  const std::uint64_t size = dtype_size(dtype);
  if (count == 0) return;
  if (from == nullptr) {
    if (!add) std::memset(to, 0, count * size);
  } else if (from_dtype != dtype && add) {
    kernels::add_widened(from_dtype, reinterpret_cast<float*>(to), from, count);
  } else if (from_dtype != dtype) {
    kernels::widen(from_dtype, reinterpret_cast<float*>(to), from, count);
  } else if (add) {
    kernels::add(dtype, to, from, count);
  } else {
    kernels::copy(to, from, count * size);
  }
}

}  // namespace

GradientIntake::GradientIntake(const sharding::Registry& registry, const sharding::Layout& layout,
                               const sharding::MemoryPlan& plan,
                               const std::shared_ptr<Storage>& storage)
    : registry_(registry),
      layout_(layout),
      storage_(storage),
      held_(storage->working.data() + plan.held_at()),
      used_(registry.parameters().size()),
      handed_(registry.parameters().size()),
      viewed_(registry.parameters().size()),
      merged_(registry.parameters().size()),
      missing_(layout.buckets.size()) {}

void GradientIntake::begin_pass(const std::vector<bool>& held_back) {
  handed_.assign(handed_.size(), false);
  viewed_.assign(viewed_.size(), false);
  merged_.assign(merged_.size(), 0);
  for (std::size_t i = 0; i < missing_.size(); ++i) missing_[i] = layout_.buckets[i].names;
  if (held_back.empty()) return;
  for (std::size_t i = 0; i < handed_.size(); ++i) handed_[i] = is_held_back(i, held_back);
  for (std::size_t i = 0; i < missing_.size(); ++i) missing_[i] *= held_back[i] ? 0 : 1;
}

void GradientIntake::begin_held_back(const std::vector<bool>& held_back) {
  for (std::size_t i = 0; i < handed_.size(); ++i) handed_[i] = !is_held_back(i, held_back);
  merged_.assign(merged_.size(), 0);
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    missing_[i] = held_back[i] ? layout_.buckets[i].names : 0;
  }
}

bool GradientIntake::is_held_back(std::uint64_t parameter,
                                  const std::vector<bool>& held_back) const {
  const std::uint64_t bucket = bucket_of(parameter);
  return bucket != kNone && !registry_.parameters()[parameter].frozen && held_back[bucket];
}

// ---- missing gradients ----

Status GradientIntake::check_awaited(std::uint64_t parameter) const {
  const Parameter& named = registry_.parameters()[parameter];
  if (named.frozen) {
    return invalid_argument("parameter " + std::to_string(parameter) + " (" +
                            sharding::quoted(named.name) + ") is frozen");
  }
  if (handed_[parameter]) {
    return invalid_state("the gradient of parameter " + std::to_string(parameter) + " (" +
                         sharding::quoted(named.name) + ") was handed in before");
  }
  return Status::success();
}

Status GradientIntake::check_all_in() const {
  constexpr std::uint64_t kMostNamed = 10;
  std::uint64_t missing = 0, wanted = 0;
  std::string names;
  for (std::uint64_t i = 0; i < handed_.size(); ++i) {
    const Parameter& parameter = registry_.parameters()[i];
    if (!parameter.frozen) ++wanted;
    if (!awaits(i)) continue;
    if (missing++ < kMostNamed) {
      names += (missing > 1 ? ", parameter " : " parameter ") + std::to_string(i) + " (" +
               sharding::quoted(parameter.name) + ")";
    }
  }
  if (missing == 0) return Status::success();
  if (missing > kMostNamed) names += " and " + std::to_string(missing - kMostNamed) + " more";
  return invalid_state("gradients of " + std::to_string(missing) + " of " + std::to_string(wanted) +
                       " parameters are missing:" + names +
                       "; hand in each, or create the model with TRIREME_UNUSED_ZERO or "
                       "TRIREME_UNUSED_SKIP");
}

bool GradientIntake::is_in(std::uint64_t target) const {
  const std::vector<std::uint64_t>& aliases = registry_.parameters()[target].aliases;
  return handed_[target] && std::all_of(aliases.begin(), aliases.end(),
                                        [this](std::uint64_t alias) { return handed_[alias]; });
}

std::uint64_t GradientIntake::bucket_of(std::uint64_t parameter) const {
  const std::uint64_t target = registry_.parameters()[parameter].target;
  return layout_.group_of_parameter(registry_.parameters()[target]).bucket;
}

// 0 for a target, i + 1 for its alias i.
std::uint64_t GradientIntake::place_among_names(std::uint64_t parameter) const {
  const std::uint64_t number = registry_.parameters()[parameter].target;
  if (number == parameter) return 0;
  const std::vector<std::uint64_t>& aliases = registry_.parameters()[number].aliases;
  return static_cast<std::uint64_t>(std::find(aliases.begin(), aliases.end(), parameter) -
                                    aliases.begin()) +
         1;
}

// ---- gradients that are written where they are exchanged ----

// Null where a gradient is in pieces, or its memory changes.
char* GradientIntake::view_of(std::uint64_t target) const {
  if (!layout_.spread.whole_gradients() || !layout_.is_one_stretch(target)) return nullptr;
  const Bucket& bucket =
      layout_.buckets[layout_.group_of_parameter(registry_.parameters()[target]).bucket];
  return storage_->gradients.data() + bucket.whole_offset +
         layout_.segments[target].front().position * dtype_size(bucket.dtype);
}

GradientView GradientIntake::view(std::uint64_t parameter, bool adds) const {
  const std::uint64_t target = registry_.parameters()[parameter].target;
  const std::uint64_t place = place_among_names(parameter);
  char* const data = view_of(target);
  // The names of one parameter are added one after the other, so only the next one has the place.
  if (data == nullptr || place != merged_[target]) return {};
  return {data, place > 0 || adds};
}

bool GradientIntake::is_outside(const void* memory, std::uint64_t bytes) const {
  const auto first = reinterpret_cast<std::uintptr_t>(memory);
  const auto arena = reinterpret_cast<std::uintptr_t>(storage_->gradients.data());
  return bytes == 0 || memory == nullptr || first + bytes <= arena ||
         first >= arena + storage_->gradients.bytes();
}

Status GradientIntake::check_memory(std::uint64_t parameter, HandedGradient gradient) const {
  const Parameter& named = registry_.parameters()[parameter];
  if (is_outside(gradient.data, named.elements * dtype_size(gradient.dtype))) {
    return Status::success();
  }
  const std::string which =
      "parameter " + std::to_string(parameter) + " (" + sharding::quoted(named.name) + ")";
  if (gradient.data != view_of(named.target) || gradient.dtype != gradient_dtype(named.dtype)) {
    return invalid_argument("gradient lies in the gradients of the model, but is not the view of " +
                            which);
  }
  if (viewed_[parameter]) return Status::success();
  return invalid_state("the view of " + which + " was not asked for in this backward pass");
}

// ---- into the bucket ----

// Gradients of tied parameters are added in the order of registration, in whatever order they come:
// an early one is held until those before it are in.
void GradientIntake::put(std::uint64_t parameter, HandedGradient gradient, char* bucket,
                         bool adds) {
  const std::uint64_t number = registry_.parameters()[parameter].target;
  const std::uint64_t place = place_among_names(parameter);
  const Parameter& target = registry_.parameters()[number];
  const trireme_dtype dtype = gradient_dtype(target.dtype);
  if (place > merged_[number]) {
    char* const held = held_ + layout_.held_offset[target.aliases[place - 1]];
    take(dtype, held, gradient.dtype, gradient.data, target.elements, false);
    return;
  }
  // A view holds the sum already.
  if (gradient.data == nullptr || gradient.data != view_of(number)) {
    put_segments(number, gradient, bucket, place > 0 || adds);
  }
  ++merged_[number];
  while (merged_[number] <= target.aliases.size()) {
    const std::uint64_t alias = target.aliases[merged_[number] - 1];
    if (!handed_[alias]) break;
    put_segments(number, {held_ + layout_.held_offset[alias], dtype}, bucket, true);
    ++merged_[number];
  }
}

void GradientIntake::put_segments(std::uint64_t target, HandedGradient gradient, char* bucket,
                                  bool add) const {
  const trireme_dtype dtype = gradient_dtype(registry_.parameters()[target].dtype);
  for (const Segment& segment : layout_.segments[target]) {
    const char* from = static_cast<const char*>(gradient.data);
    if (from != nullptr) from += segment.first * dtype_size(gradient.dtype);
    take(dtype, bucket + segment.position * dtype_size(dtype), gradient.dtype, from, segment.count,
         add);
  }
}

void GradientIntake::note(std::uint64_t parameter, HandedGradient gradient, bool with_aliases) {
  const std::uint64_t number = registry_.parameters()[parameter].target;
  const Parameter& target = registry_.parameters()[number];
  handed_[parameter] = true;
  if (gradient.data != nullptr || target.elements == 0) used_[number] = true;
  std::uint64_t names = 1;
  if (with_aliases) {
    for (const std::uint64_t alias : target.aliases) handed_[alias] = true;
    names += target.aliases.size();
  }
  const std::uint64_t bucket = bucket_of(parameter);
  if (bucket != kNone) missing_[bucket] -= names;
}

}  // namespace trireme::strategies
