#include "model/gradients/reducer.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/finite.hpp"
#include "kernels/reduce.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "sharding/leaf_tree.hpp"

namespace trireme::strategies {

using sharding::Bucket;
using sharding::kNone;
using sharding::Parameter;
using sharding::Segment;

namespace {

// Into elements of gradients, from ones of the same dtype or of a narrow one; from null: zeros.
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

Reducer::Reducer(const sharding::Registry& registry, const sharding::Layout& layout,
                 const sharding::MemoryPlan& plan, const ReducerSettings& settings, Link& link,
                 const std::shared_ptr<Storage>& storage, char* slots, char* levels, char* held,
                 char* rounded)
    : registry_(registry),
      layout_(layout),
      plan_(plan),
      settings_(settings),
      link_(link),
      storage_(storage),
      levels_(levels),
      held_(held),
      rounded_(rounded),
      rounds_(sharding::rounds(layout.spread.leaves, layout.spread.world_size)),
      own_leaves_(sharding::leaves_of_rank(layout.spread.leaves, layout.spread.world_size,
                                           layout.spread.rank)),
      used_(registry.parameters().size()),
      handed_(registry.parameters().size()),
      viewed_(registry.parameters().size()),
      merged_(registry.parameters().size()),
      missing_(layout.buckets.size()),
      contributions_(layout.buckets.size()) {
  for (std::uint64_t i = 0; i < plan.slot_count; ++i) {
    const std::uint64_t offset =
        plan.slot_per_bucket ? layout.buckets[i].whole_offset : i * plan.slot_stride;
    slots_.push_back({slots + offset, false});
  }
  launch_order_.resize(layout.buckets.size());
  std::iota(launch_order_.begin(), launch_order_.end(), 0);
  for (std::uint64_t number = registry.parameters().size(); number-- > 0;) {
    const Parameter& parameter = registry.parameters()[number];
    if (!parameter.frozen && parameter.target == number) target_order_.push_back(number);
  }
}

// ---- one backward pass ----

Status Reducer::begin(bool no_sync, bool absent) {
  if (in_backward_) return invalid_state("a backward pass is under way");
  if (absent && !settings_.uneven) {
    return unsupported("TRIREME_BACKWARD_FLAG_ABSENT on a model without TRIREME_MODEL_FLAG_UNEVEN");
  }
  if (no_sync && updates()) {
    return unsupported(
        "TRIREME_BACKWARD_FLAG_NO_SYNC on a model with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD, which has no "
        "place "
        "for sums of gradients");
  }
  if (reproducible()) {
    if (no_sync) {
      return unsupported(
          "TRIREME_BACKWARD_FLAG_NO_SYNC on a reproducible model, "
          "which reduces every "
          "leaf on its own");
    }
    if (own_leaves_ == 0) {
      return invalid_state("this rank has no leaf: options.leaves " +
                           std::to_string(layout_.spread.leaves) + " are fewer than the " +
                           std::to_string(layout_.spread.world_size) + " ranks");
    }
    if (passes_ == own_leaves_) {
      return invalid_state("this rank has had all its " + std::to_string(own_leaves_) +
                           " leaves of this step");
    }
  } else if (passes_ > 0 && !no_sync_) {
    return invalid_state("the last pass of this step was made; those before it are NO_SYNC");
  }
  in_backward_ = true;
  no_sync_ = no_sync;
  absent_ = absent;
  next_launch_ = 0;
  handed_.assign(handed_.size(), false);
  viewed_.assign(viewed_.size(), false);
  merged_.assign(merged_.size(), 0);
  for (std::size_t i = 0; i < missing_.size(); ++i) missing_[i] = layout_.buckets[i].names;
  return Status::success();
}

// Others who wait for a bucket cannot come to the gathers in which this rank may wait for them: what it has
// nothing for goes out before.
Status Reducer::shadow() {
  return absent_ && !layout_.spread.whole_gradients() ? launch_ready(true) : Status::success();
}

Status Reducer::check_awaited(std::uint64_t parameter) const {
  if (!in_backward_) return invalid_state("no backward pass is under way");
  if (absent_) return invalid_state("this backward pass is TRIREME_BACKWARD_FLAG_ABSENT");
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

// 0 for a target, i + 1 for its alias i.
std::uint64_t Reducer::place_among_names(std::uint64_t parameter) const {
  const std::uint64_t number = registry_.parameters()[parameter].target;
  if (number == parameter) return 0;
  const std::vector<std::uint64_t>& aliases = registry_.parameters()[number].aliases;
  return static_cast<std::uint64_t>(std::find(aliases.begin(), aliases.end(), parameter) -
                                    aliases.begin()) +
         1;
}

// ---- gradients that are written where they are exchanged ----

// Null where a gradient is in pieces, or in memory that it does not keep.
char* Reducer::view_of(std::uint64_t target) const {
  if (!layout_.spread.whole_gradients() || !layout_.is_one_stretch(target)) return nullptr;
  const Bucket& bucket =
      layout_.buckets[layout_.group_of_parameter(registry_.parameters()[target]).bucket];
  return storage_->gradients.data() + bucket.whole_offset +
         layout_.segments[target].front().position * dtype_size(bucket.dtype);
}

Status Reducer::view(std::uint64_t parameter, GradientView* out) {
  TRIREME_RETURN_IF_ERROR(check_awaited(parameter));
  const std::uint64_t target = registry_.parameters()[parameter].target;
  const std::uint64_t place = place_among_names(parameter);
  char* const data = view_of(target);
  *out = {};
  // Names of one parameter are added one after the other, so only the next one has the place.
  if (data == nullptr || place != merged_[target]) return Status::success();
  char* bucket = nullptr;  // waits until no peer reads it
  TRIREME_RETURN_IF_ERROR(
      contribution(layout_.group_of_parameter(registry_.parameters()[target]).bucket, &bucket));
  viewed_[parameter] = true;
  *out = {data, place > 0 || accumulates()};
  return Status::success();
}

bool Reducer::is_outside(const void* memory, std::uint64_t bytes) const {
  const auto first = reinterpret_cast<std::uintptr_t>(memory);
  const auto arena = reinterpret_cast<std::uintptr_t>(storage_->gradients.data());
  return bytes == 0 || memory == nullptr || first + bytes <= arena ||
         first >= arena + storage_->gradients.bytes();
}

Status Reducer::check_memory(std::uint64_t parameter, Handed gradient) const {
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

// ---- what is handed in ----

Status Reducer::ready(std::uint64_t parameter, Handed gradient, bool with_aliases) {
  TRIREME_RETURN_IF_ERROR(check_awaited(parameter));
  TRIREME_RETURN_IF_ERROR(check_memory(parameter, gradient));
  const Parameter& named = registry_.parameters()[parameter];
  const Parameter& target = registry_.parameters()[named.target];
  const std::uint64_t bucket = layout_.group_of_parameter(target).bucket;
  // Once it is reduced nobody can tell whose it was.
  if (watched_ && gradient.data != nullptr && named.target < first_overflow_ &&
      !kernels::all_finite(gradient.dtype, gradient.data, named.elements)) {
    first_overflow_ = named.target;
  }
  if (bucket != kNone) {
    char* data = nullptr;
    TRIREME_RETURN_IF_ERROR(contribution(bucket, &data));
    TRIREME_RETURN_IF_ERROR(merge(named.target, place_among_names(parameter), gradient, data));
  }
  handed_[parameter] = true;
  if (gradient.data != nullptr || target.elements == 0) used_[named.target] = true;
  std::uint64_t names = 1;
  if (with_aliases) {
    for (const std::uint64_t alias : target.aliases) handed_[alias] = true;
    names += target.aliases.size();
  }
  if (bucket == kNone) return Status::success();
  missing_[bucket] -= names;
  if (missing_[bucket] == 0 && present_passes_ == 0) completed_.push_back(bucket);
  TRIREME_RETURN_IF_ERROR(launch_ready(false));
  return update_done();
}

Status Reducer::launch_ready(bool all) {
  // Where gradients stay until the last pass, an absent one gives what those before it brought.
  const bool brings = layout_.spread.whole_gradients() && !reproducible() && present_passes_ > 0;
  while (exchanges() && next_launch_ < missing_.size()) {
    const std::uint64_t bucket = launch_order_[next_launch_];
    if (missing_[bucket] > 0 && !all) break;
    const bool present = missing_[bucket] == 0 && !absent_;
    // What this rank has no gradients for needs a place, too, but where others' become a shard at once.
    const bool shard_only = !layout_.spread.whole_gradients() && !reproducible() && passes_ == 0;
    char* data = contributions_[bucket].data;
    if (!present && !shard_only) TRIREME_RETURN_IF_ERROR(contribution(bucket, &data));
    // A leaf has its place in the tree.
    if (!present && reproducible()) {
      std::memset(data, 0,
                  layout_.buckets[bucket].elements * dtype_size(layout_.buckets[bucket].dtype));
    }
    char* const send = present || brings || reproducible() ? data : nullptr;
    if (present || brings) run_hook(TRIREME_HOOK_BEFORE, bucket, data, passes_);
    TRIREME_RETURN_IF_ERROR(launch(bucket, send, passes_));
    ++next_launch_;
  }
  return Status::success();
}

// Gradients of tied parameters are added in the order of registration, however they come: one that
// comes too early is held until those before it are in.
Status Reducer::merge(std::uint64_t target, std::uint64_t place, Handed gradient, char* bucket) {
  const Parameter& parameter = registry_.parameters()[target];
  const trireme_dtype dtype = gradient_dtype(parameter.dtype);
  if (place > merged_[target]) {
    char* const held = held_ + layout_.held_offset[parameter.aliases[place - 1]];
    take(dtype, held, gradient.dtype, gradient.data, parameter.elements, false);
    return Status::success();
  }
  // A view holds the sum already.
  if (gradient.data == nullptr || gradient.data != view_of(target)) {
    put(target, bucket, gradient, place > 0 || accumulates());
  }
  ++merged_[target];
  while (merged_[target] <= parameter.aliases.size()) {
    const std::uint64_t alias = parameter.aliases[merged_[target] - 1];
    if (!handed_[alias]) break;
    put(target, bucket, {held_ + layout_.held_offset[alias], dtype}, true);
    ++merged_[target];
  }
  return Status::success();
}

void Reducer::put(std::uint64_t parameter, char* bucket, Handed gradient, bool add) {
  const trireme_dtype dtype = gradient_dtype(registry_.parameters()[parameter].dtype);
  for (const Segment& segment : layout_.segments[parameter]) {
    const char* from = static_cast<const char*>(gradient.data);
    if (from != nullptr) from += segment.first * dtype_size(gradient.dtype);
    take(dtype, bucket + segment.position * dtype_size(dtype), gradient.dtype, from, segment.count,
         add);
  }
}

Status Reducer::end() {
  if (!in_backward_) return invalid_state("no backward pass is under way");
  if (!absent_) TRIREME_RETURN_IF_ERROR(fill_missing());
  TRIREME_RETURN_IF_ERROR(launch_ready(true));
  in_backward_ = false;
  ++passes_;
  if (!absent_) ++present_passes_;
  if (reproducible()) {
    ++launched_rounds_;
    if (passes_ == own_leaves_) {
      leaves_over_ = true;
      Status status = launch_absent();
      leaves_over_ = false;
      TRIREME_RETURN_IF_ERROR(std::move(status));
    }
  }
  return update_done();
}

Status Reducer::fill_missing() {
  constexpr std::uint64_t kMostNamed = 10;
  const bool fails = settings_.unused == TRIREME_UNUSED_ERROR;
  std::uint64_t missing = 0, wanted = 0;
  std::string names;
  for (std::uint64_t at = 0; at < handed_.size(); ++at) {
    // Zeros are handed in as backward would, from the last.
    const std::uint64_t i = fails ? at : handed_.size() - 1 - at;
    const Parameter& parameter = registry_.parameters()[i];
    if (parameter.frozen) continue;
    ++wanted;
    if (handed_[i]) continue;
    if (!fails) {
      TRIREME_RETURN_IF_ERROR(ready(i, {}, false));
    } else if (missing++ < kMostNamed) {
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

// ---- memory of contributions ----

Status Reducer::contribution(std::uint64_t bucket, char** out) {
  Contribution& mine = contributions_[bucket];
  if (layout_.spread.whole_gradients()) {
    // Peers may still read what this rank brought for the leaf before.
    while (mine.flying > 0) TRIREME_RETURN_IF_ERROR(wait_oldest());
    mine.data = storage_->gradients.data() + layout_.buckets[bucket].whole_offset;
  } else if (mine.data == nullptr || mine.flying > 0) {
    while (mine.flying > 0) TRIREME_RETURN_IF_ERROR(wait_oldest());
    TRIREME_RETURN_IF_ERROR(find_slot(bucket));
  }
  *out = mine.data;
  return Status::success();
}

// Others may first need this rank in a gather, if it is absent, or if they lack a gradient of a bucket that
// it has launched, which they know at the end of their pass only: it does not wait for them.
bool Reducer::may_be_needed() const {
  return absent_ || leaves_over_ ||
         (settings_.unused != TRIREME_UNUSED_ERROR && !layout_.spread.whole_parameters());
}

Status Reducer::find_slot(std::uint64_t bucket) {
  Contribution& mine = contributions_[bucket];
  for (;;) {
    for (std::uint64_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].taken || (plan_.slot_per_bucket && i != bucket)) continue;
      slots_[i].taken = true;
      mine.slot = i;
      mine.data = slots_[i].data;
      return Status::success();
    }
    if (!reduced_.empty()) {
      const std::size_t before = reduced_.size();
      TRIREME_RETURN_IF_ERROR(update_reduced(false));
      if (reduced_.size() < before) continue;
    }
    if (in_flight_.empty() || (may_be_needed() && !in_flight_.front().request->done())) break;
    TRIREME_RETURN_IF_ERROR(wait_oldest());
  }
  // Gradients come in another order than buckets are launched, so nothing that could be waited for
  // frees a slot; or nothing may be waited for.
  const Bucket& layout = layout_.buckets[bucket];
  const std::uint64_t copy =
      layout_.spread.reduce_dtype != 0 ? layout.elements * dtype_size(layout.dtype) / 2 : 0;
  TRIREME_RETURN_IF_ERROR(mine.extra.allocate(*link_.communicator, storage_->allocated,
                                              MemoryKind::working, place_bytes(layout) + copy));
  mine.data = mine.extra.data();
  extra_bytes_ += mine.extra.bytes();
  ++extra_buckets_;
  return Status::success();
}

// ---- the end of the step ----

Status Reducer::check_complete() const {
  if (in_backward_) return invalid_state("a backward pass is under way");
  if (reproducible()) {
    if (passes_ < own_leaves_) {
      return invalid_state("this rank has made " + std::to_string(passes_) + " of its " +
                           std::to_string(own_leaves_) + " backward passes of this step");
    }
    return Status::success();
  }
  if (passes_ == 0) return invalid_state("no backward pass was made since the last step");
  if (no_sync_) return invalid_state("the last backward pass was TRIREME_BACKWARD_FLAG_NO_SYNC");
  return Status::success();
}

Status Reducer::wait_reductions() {
  if (reproducible()) TRIREME_RETURN_IF_ERROR(launch_absent());
  return wait_all();
}

std::uint32_t Reducer::contributed() const {
  return reproducible() ? present_passes_ : std::min(present_passes_, 1U);
}

Status Reducer::finish(std::uint32_t contributors) {
  if (!reproducible()) {
    if (settings_.uneven && settings_.average) divide(contributors);
    return Status::success();
  }
  combine_levels(settings_.uneven ? contributors : layout_.spread.leaves);
  if (!layout_.spread.whole_state()) return Status::success();
  for (std::uint64_t number = 0; number < layout_.buckets.size(); ++number) {
    InFlight entry;
    entry.bucket = number;
    TRIREME_RETURN_IF_ERROR(launch_gather(layout_.buckets[number], &entry.request));
    in_flight_.push_back(std::move(entry));
    ++contributions_[number].flying;
  }
  return wait_all();
}

Status Reducer::reduce_all(const std::function<Fold(std::uint64_t bucket)>& fold_of) {
  for (std::uint64_t number = 0; number < layout_.buckets.size(); ++number) {
    const Bucket& bucket = layout_.buckets[number];
    Operation operation;
    operation.channel = link_.reductions;
    operation.kind = OperationKind::fold;
    operation.dtype = bucket.dtype;
    operation.send = storage_->gradients.data() + bucket.whole_offset;
    operation.count = bucket.elements;
    operation.counts = bucket.counts;
    operation.fold = fold_of(number);
    operation.agreement = number;
    operation.agreement_name = "bucket";
    operation.owner = storage_->hold();
    link_.given_bytes +=
        sharding::reduce_bytes(bucket.counts, link_.rank(), dtype_size(bucket.dtype));
    TRIREME_FAILPOINT("bucket", "before_sweep");
    TRIREME_RETURN_IF_ERROR(link_.run(std::move(operation)));
    ++reductions_;
  }
  return Status::success();
}

// What was only added up while it was not known by how many.
void Reducer::divide(std::uint32_t contributors) {
  const bool whole = layout_.spread.whole_state();
  for (const Bucket& bucket : layout_.buckets) {
    char* const data = whole ? reduced(bucket) : reduced_block(bucket);
    const void* const source = data;
    kernels::reduce(bucket.dtype, TRIREME_REDUCTION_AVERAGE, data, &source, 1,
                    whole ? bucket.elements : bucket.counts[layout_.spread.rank], contributors, 0);
  }
}

// ---- hooks ----

void Reducer::run_hook(std::int32_t phase, std::uint64_t number, char* data, std::uint32_t pass) {
  if (settings_.hook == nullptr) return;
  const Bucket& bucket = layout_.buckets[number];
  const bool block = phase == TRIREME_HOOK_AFTER && !layout_.spread.whole_state();
  const std::uint64_t begin = block ? bucket.block_first[layout_.spread.rank] : 0;
  std::vector<trireme_bucket_part> parts;
  for (const Segment& segment : bucket.segments) {
    if (block && segment.owner != layout_.spread.rank) continue;
    parts.push_back({segment.parameter, segment.first, segment.count, segment.position - begin});
  }
  trireme_bucket shown = {};
  shown.struct_size = sizeof shown;
  shown.phase = phase;
  shown.bucket = number;
  shown.elements = block ? bucket.counts[layout_.spread.rank] : bucket.elements;
  shown.data = data;
  shown.parts = parts.data();
  shown.part_count = parts.size();
  shown.dtype = bucket.dtype;
  shown.pass = pass;
  if (shown.elements == 0) return;
  std::int32_t answer = INT32_MIN;
  const CallbackScope scope(link_);
  try {
    answer = settings_.hook(&shown, settings_.hook_data);
  } catch (...) {  // of a caller in C++: the peers must hear of it
  }
  if (answer == 0) return;
  if (hook_answer_.answer == 0) hook_answer_ = {answer, number};
  refuse_updates();
}

void Reducer::run_hook_after() {
  for (std::uint64_t number = 0; number < layout_.buckets.size(); ++number) {
    const Bucket& bucket = layout_.buckets[number];
    run_hook_after(number, layout_.spread.whole_state() ? reduced(bucket) : reduced_block(bucket));
  }
}

void Reducer::run_hook_after(std::uint64_t bucket, char* reduced) {
  run_hook(TRIREME_HOOK_AFTER, bucket, reduced, 0);
}

// ---- the order of buckets ----

Status Reducer::learn_order() {
  const std::uint64_t count = launch_order_.size();
  if (order_learnt_ || settings_.fixed_order || kept_until_step_ || count < 2) {
    return Status::success();
  }
  // Chunk by chunk through the words of the exchange, behind one that tells whether there is an
  // order: a pass that was absent on rank 0 has shown none.
  constexpr std::uint64_t kChunk = 127;
  auto* const words = reinterpret_cast<std::uint64_t*>(storage_->working.data() + plan_.words);
  std::vector<std::uint64_t> order = completed_;
  order.resize(count);
  for (std::uint64_t first = 0; first < count; first += kChunk) {
    const std::uint64_t here = std::min(kChunk, count - first);
    words[0] = completed_.size() == count ? 1 : 0;
    std::copy_n(order.data() + first, here, words + 1);
    Operation operation;
    operation.channel = link_.reductions;
    operation.kind = OperationKind::broadcast;
    operation.dtype = TRIREME_DTYPE_U64;
    operation.root = 0;
    operation.receive = words;
    operation.count = 1 + here;
    operation.owner = storage_->hold();
    TRIREME_RETURN_IF_ERROR(link_.run(std::move(operation)));
    if (words[0] == 0) return Status::success();
    std::copy_n(words + 1, here, order.data() + first);
  }
  launch_order_ = std::move(order);
  order_learnt_ = true;
  std::vector<std::uint64_t> place(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    place[launch_order_[i]] = i;
    if (launch_order_[i] != i) ++moved_buckets_;
  }
  const auto place_of = [&](std::uint64_t target) {
    const std::uint64_t bucket = layout_.group_of_parameter(registry_.parameters()[target]).bucket;
    return bucket == kNone ? count : place[bucket];
  };
  std::stable_sort(target_order_.begin(), target_order_.end(),
                   [&](std::uint64_t a, std::uint64_t b) { return place_of(a) < place_of(b); });
  return Status::success();
}

// ---- the step anew ----

Status Reducer::discard(bool* too_late, HookAnswer* hook) {
  Status status = Status::success();
  discards_ = true;
  refuse_updates();
  if (in_backward_) {
    absent_ = true;  // what is not launched yet goes without this rank
    status = launch_ready(true);
    in_backward_ = false;
    ++launched_rounds_;
  }
  if (status.ok()) status = wait_reductions();
  if (status.ok() && asked_ != nullptr) status = look_at_answers();
  *too_late = answer_ == Answer::yes;
  *hook = hook_answer_;
  clear();
  return status;
}

void Reducer::clear() {
  passes_ = 0;
  present_passes_ = 0;
  launched_rounds_ = 0;
  no_sync_ = false;
  used_.assign(used_.size(), false);
  first_overflow_ = kNone;
  completed_.clear();
  hook_answer_ = {};
  for (const std::uint64_t bucket : reduced_) free_slot(bucket);
  reduced_.clear();
  has_rate_ = refuses_ = discards_ = false;
  asked_.reset();
  answer_ = Answer::unknown;
  verdict_ = Status::success();
}

char* Reducer::reduced(const Bucket& bucket) const {
  if (updates()) return contributions_[number_of(bucket)].data;
  const bool whole = layout_.spread.whole_gradients();
  return storage_->gradients.data() + (whole ? bucket.whole_offset : bucket.shard_offset);
}

char* Reducer::reduced_block(const Bucket& bucket) const {
  if (updates() && !reduced_in_slot()) return level(bucket, plan_.level_count - 1);
  if (updates()) return reduced(bucket) + layout_.block_offset(bucket);
  const bool whole = layout_.spread.whole_gradients();
  return reduced(bucket) + (whole ? layout_.block_offset(bucket) : 0);
}

}  // namespace trireme::strategies
