#include "optimizer/step_norms.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>

#include "exchange/agreement.hpp"
#include "kernels/finite.hpp"
#include "kernels/hash.hpp"
#include "kernels/reduce.hpp"
#include "optimizer/rates.hpp"
#include "platform/clock.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using optimizers::GradientNorm;
using sharding::Bucket;
using sharding::Parameter;
using sharding::Segment;

namespace {

constexpr char kPartners[] = "learning rate or optimizers that step together";

// Every rank adds its own block, parameter by parameter.
template <class Add>
void add_own_gradients(const ShardView& shard, const Add& add) {
  for (const Bucket& bucket : shard.layout().buckets) {
    const std::uint32_t rank = shard.link().rank();
    const std::uint64_t begin = bucket.block_first[rank];
    const char* const block = shard.gradients().buckets().reduced_block(bucket);
    for (const Segment& segment : bucket.segments) {
      // The intersection is by position: with data_parallel every rank counts as the owner.
      const sharding::Range part =
          sharding::intersect({begin, bucket.counts[rank]}, {segment.position, segment.count});
      if (part.count == 0) continue;
      add(segment.parameter, bucket, block + (part.first - begin) * dtype_size(bucket.dtype),
          part.count);
    }
  }
}

// Each parameter has 16 bits, the sum of the ranks that used it; a world has fewer than 2^16 ranks.
void count_skipped(const std::int64_t* words, ParameterSteps* steps) {
  std::vector<bool>& skipped = steps->skipped;
  for (std::size_t i = 0; i < skipped.size(); ++i) {
    skipped[i] = (static_cast<std::uint64_t>(words[i / 4]) >> i % 4 * 16 & 0xffff) == 0;
    if (!skipped[i]) ++steps->steps_of[i];
  }
}

}  // namespace

// Bytes of the ranks' sums, if there are groups or a loss scale. They hold the sums of the norms
// (unless several models share those), the skips, and two words of each rank about its overflows.
// 0: the model has room already.
std::uint64_t StepNorms::plan(bool own_norm) const {
  const std::uint64_t groups = own_norm ? group_count() : 0;
  if (groups == 0 && !loss_scale_.on()) return 0;
  const std::uint64_t norms = groups + (own_norm && settings_.max_norm > 0 ? 1 : 0);
  const std::uint64_t skips = shard_.skips() ? sharding::skip_words(shard_.registry()) : 0;
  const std::uint64_t overflows = loss_scale_.on() ? 2 * shard_.link().world_size() : 0;
  return (norms * GradientNorm::kWords + skips + overflows) * sizeof(std::int64_t);
}

Status StepNorms::allocate(std::uint64_t bytes) {
  return bytes > 0 ? strategies::allocate(shard_, &words_, MemoryKind::working, bytes)
                   : Status::success();
}

Status StepNorms::make_room() {
  if (norm_ranks_ == nullptr) group_sums_.resize(group_count());
  group_norms_.resize(group_count());
  last_group_norms_.resize(group_count());
  squares_.resize(norm_count());
  if (norm_ranks_ != nullptr || !decides_together()) {
    identity_ = group_identity();
    return Status::success();
  }
  std::int64_t* const word = sum_words();
  const std::uint64_t unique[] = {now_ns(), reinterpret_cast<std::uintptr_t>(this)};
  const std::uint64_t own = kernels::hash(unique, sizeof unique, 0);
  *word = shard_.link().rank() == 0 ? static_cast<std::int64_t>(own) : 0;
  TRIREME_RETURN_IF_ERROR(
      shard_.link().run(in_place(shard_.link(), shard_.link().gathers, OperationKind::all_reduce,
                                 TRIREME_DTYPE_I64, word, 1, sum_memory())));
  identity_ = static_cast<std::uint64_t>(*word);
  return Status::success();
}

std::int64_t* StepNorms::sum_words() const {
  return words_ ? reinterpret_cast<std::int64_t*>(words_.data()) : shard_.sum_words();
}

std::shared_ptr<const void> StepNorms::sum_memory() const {
  return words_ ? words_.memory() : shard_.storage()->hold();
}

Status StepNorms::open_norm_ranks(Communicator& ranks, const ChildOptions& child, const char* call,
                                  const std::vector<sharding::Fact>& facts, const Status& ready) {
  norm_ranks_ = std::make_unique<NormRanks>();
  const Status opened = norm_ranks_->open(ranks, child, shard_.registry(), facts, norm_count(),
                                          ready, shard_.storage()->allocated);
  // All ranks of the model must be in one group, or each would clip by another norm.
  TRIREME_RETURN_IF_ERROR(
      agree(shard_.link(), call,
            {{"the group of norm_ranks", std::to_string(norm_ranks_->identity())}}, opened));
  shard_.planned().working = norm_ranks_->bytes();
  shard_.set_norm_group(norm_ranks_->communicator());
  return Status::success();
}

void StepNorms::begin_step(std::uint64_t partners) {
  overflow_ = {};
  partners_ = partners;
}

std::uint64_t StepNorms::mixed_with_partners(std::uint64_t agreement) const {
  return partners_ == 0 ? agreement : kernels::hash(&partners_, sizeof partners_, agreement);
}

// It looks before values are clipped, which would hide an inf.
void StepNorms::look_for_overflow() {
  own_overflow_ = sharding::kNone;
  if (!loss_scale_.on()) return;
  add_own_gradients(shard_, [this](std::uint64_t number, const Bucket& bucket, const void* data,
                                   std::uint64_t elements) {
    if (number >= own_overflow_) return;
    if (!kernels::all_finite(bucket.dtype, data, elements)) own_overflow_ = number;
  });
}

void StepNorms::clip_values() {
  if (settings_.max_value == 0) return;
  for (const Bucket& bucket : shard_.layout().buckets) {
    clip_values(bucket, shard_.gradients().buckets().kept(bucket));
  }
}

void StepNorms::clip_values(const Bucket& bucket, char* reduced) {
  if (settings_.max_value == 0) return;
  // f32 has no larger number to clip.
  const double limit = settings_.max_value * loss_scale_.scale();
  const double most = std::numeric_limits<float>::max();
  kernels::clamp(
      bucket.dtype, reduced, bucket.dtype == TRIREME_DTYPE_F32 ? std::min(limit, most) : limit,
      shard_.layout().spread.whole_state() ? bucket.elements : bucket.counts[shard_.link().rank()]);
}

// Compares the learning rates of all ranks before any change, and adds up the norm.
Status StepNorms::add_up(ParameterSteps* steps) {
  norm_ = 0;
  const bool own_groups = norm_ranks_ == nullptr && group_count() > 0;
  std::int64_t* const words = sum_words();
  std::uint64_t count = 0;
  const bool own_norm = settings_.max_norm > 0 && norm_ranks_ == nullptr;
  if (own_norm) {
    GradientNorm norm;
    // Every rank adds its own block, so data_parallel adds no element twice.
    for (const Bucket& bucket : shard_.layout().buckets) {
      norm.add(bucket.dtype, shard_.gradients().buckets().reduced_block(bucket),
               bucket.counts[shard_.link().rank()]);
    }
    norm.write(words);
    count = GradientNorm::kWords;
  }
  if (own_groups) {
    std::fill(group_sums_.begin(), group_sums_.end(), GradientNorm());
    add_own_gradients(shard_, [&](std::uint64_t number, const Bucket& bucket, const void* data,
                                  std::uint64_t elements) {
      const std::uint32_t group = shard_.registry().parameters()[number].parameter_group;
      group_sums_[group].add(bucket.dtype, data, elements);
    });
    for (GradientNorm& sum : group_sums_) {
      sum.write(words + count);
      count += GradientNorm::kWords;
    }
  }
  std::int64_t* const skip_words = words + count;
  skip_words_ = skip_words;
  if (!steps->skipped.empty()) {
    const std::uint64_t added = sharding::skip_words(shard_.registry());
    std::fill_n(skip_words, added, 0);
    for (std::size_t i = 0; i < steps->skipped.size(); ++i) {
      if (shard_.gradients().intake().used()[i]) skip_words[i / 4] += std::int64_t{1} << i % 4 * 16;
    }
    count += added;
  }
  std::int64_t* const overflow_words = words + count;
  if (loss_scale_.on()) {
    const std::uint64_t added = 2 * shard_.link().world_size();
    std::fill_n(overflow_words, added, 0);
    std::int64_t* const own = overflow_words + 2 * std::size_t{shard_.link().rank()};
    own[0] = static_cast<std::int64_t>(own_overflow_ + 1);
    own[1] = static_cast<std::int64_t>(shard_.gradients().overflow().first() + 1);
    count += added;
  }
  Operation operation = in_place(shard_.link(), shard_.link().reductions, OperationKind::all_reduce,
                                 TRIREME_DTYPE_I64, words, count, sum_memory());
  operation.agreement = mixed_with_partners(rates_to_compare(settings_, settings_.step_rate));
  operation.agreement_name = partners_ == 0 ? "learning rate" : kPartners;
  TRIREME_FAILPOINT("step", "before_agree");
  TRIREME_RETURN_IF_ERROR(shard_.link().run(std::move(operation)));
  for (std::size_t i = 0; norm_ranks_ == nullptr && i < norm_count(); ++i) {
    squares_[i] = GradientNorm::read(words + i * GradientNorm::kWords);
  }
  if (loss_scale_.on()) find_overflow(overflow_words);
  return norm_ranks_ != nullptr ? squares_over_models() : Status::success();
}

void StepNorms::unite(const std::vector<StepNorms*>& all) {
  StepNorms& first = *all.front();
  for (StepNorms* const each : all) {
    if (each == &first) continue;
    for (std::size_t i = 0; i < first.norm_count(); ++i) first.squares_[i].add(each->squares_[i]);
    first.overflow_.found |= each->overflow_.found;
  }
  for (StepNorms* const each : all) {
    std::copy(first.squares_.begin(), first.squares_.end(), each->squares_.begin());
    each->overflow_.found = first.overflow_.found;
  }
}

void StepNorms::finish(ParameterSteps* steps) {
  double* const norms = group_count() > 0 ? group_norms_.data() : &norm_;
  // The norm is that of the unscaled gradients.
  for (std::size_t i = 0; i < norm_count(); ++i) {
    norms[i] = std::sqrt(squares_[i].value()) / loss_scale_.scale();
  }
  if (!steps->skipped.empty() && !overflow_.found) count_skipped(skip_words_, steps);
}

// Each rank sends two parameters, from 1; 0 is none. The first has an overflow in the rank's part
// of its reduced gradient. The second has one in the rank's own gradient. If the sum is finite
// nevertheless, as a bucket hook may make it, no step is skipped.
void StepNorms::find_overflow(const std::int64_t* words) {
  const std::uint32_t ranks = shard_.link().world_size();
  const auto parameter_at = [&](std::uint32_t rank, int which) {
    return static_cast<std::uint64_t>(words[2 * std::size_t{rank} + which]) - 1;
  };
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    overflow_.parameter = std::min(overflow_.parameter, parameter_at(rank, 0));
  }
  if (overflow_.parameter == sharding::kNone) return;
  overflow_.found = true;
  for (std::uint32_t rank = ranks; rank-- > 0;) {
    if (parameter_at(rank, 1) == overflow_.parameter) {
      overflow_.rank = static_cast<std::int32_t>(rank);
    }
  }
}

Status StepNorms::squares_over_models() {
  const bool grouped = group_count() > 0;
  if (norm_count() > 0) {
    add_own_gradients(shard_, [&](std::uint64_t number, const Bucket& bucket, const void* data,
                                  std::uint64_t elements) {
      const Parameter& parameter = shard_.registry().parameters()[number];
      norm_ranks_->add(grouped ? parameter.parameter_group : 0, parameter.replicas, bucket.dtype,
                       data, elements);
    });
  }
  // The other models' sums have the same scale, and all skip a step or none does.
  const double scale = loss_scale_.scale();
  const std::uint64_t rates = rates_to_compare(settings_, settings_.step_rate);
  const std::uint64_t both = loss_scale_.on() ? kernels::hash(&scale, sizeof scale, rates) : rates;
  const char* const alone = loss_scale_.on() ? "learning rate and loss scale" : "learning rate";
  return norm_ranks_->finish(shard_.link(), mixed_with_partners(both),
                             partners_ == 0 ? alone : kPartners, squares_.data(), &overflow_.found);
}

StepFactors StepNorms::factors(std::uint64_t step, const ParameterSteps& steps) const {
  const double scale = loss_scale_.scale();
  StepFactors factors = {step, steps.steps_of, steps.skipped,
                         optimizers::clip_factor(norm_, settings_.max_norm) / scale};
  for (std::size_t group = 0; group < group_count(); ++group) {
    factors.group_scales.push_back(
        optimizers::clip_factor(group_norms_[group], settings_.group_max_norms[group]) / scale);
  }
  return factors;
}

void StepNorms::step_made() {
  last_norm_ = settings_.max_norm > 0 ? norm_ : kNoNorm;
  std::swap(group_norms_, last_group_norms_);
  has_group_norms_ = true;
  loss_scale_.step_made();
}

void StepNorms::step_skipped() { overflow_.at_floor = !loss_scale_.step_overflowed(); }

void StepNorms::restore(const optimizers::LossScale::State& scale, double norm) {
  if (loss_scale_.on()) loss_scale_.restore(scale);
  overflow_ = {};
  last_norm_ = norm;
  has_group_norms_ = false;
}

Status StepNorms::floor_failure() const {
  char scale[40];
  std::snprintf(scale, sizeof scale, "%.17g", loss_scale_.scale());
  std::string text = std::string("the loss scale is at its floor, ") + scale +
                     ", and gradients overflow: the step was skipped; ";
  if (overflow_.parameter == sharding::kNone) {
    return invalid_state(text + "the inf or NaN is in another model of " +
                         (partners_ == 0 ? "norm_ranks" : "this step"));
  }
  const Parameter& parameter = shard_.registry().parameters()[overflow_.parameter];
  text += "the first inf or NaN is in parameter " + std::to_string(overflow_.parameter) + " (" +
          sharding::quoted(parameter.name) + "), ";
  if (overflow_.rank < 0) return invalid_state(text + "but in no rank's own gradient of it");
  FailureDetails details;
  details.communicator = shard_.link().communicator->name();
  details.blamed = {overflow_.rank};
  return invalid_state(text + "as rank " + std::to_string(overflow_.rank) + " handed it in")
      .with_details(std::move(details));
}

Status StepNorms::gradient_norm(double* out) const {
  if (settings_.max_norm == 0) {
    return invalid_state("options.clipping.max_norm is 0, so no norm is computed");
  }
  if (last_norm_ == kNoNorm)
    return invalid_state("no step was made, or one that was loaded without clipping.max_norm");
  *out = last_norm_;
  return Status::success();
}

Status StepNorms::group_norm(std::uint64_t group, double* out) const {
  if (group_count() == 0) {
    return invalid_state("the optimizer was created without a max_norm in options.groups");
  }
  if (group >= group_count()) {
    return invalid_argument("group " + std::to_string(group) + " is not below group_count " +
                            std::to_string(group_count()));
  }
  if (!has_group_norms_) return invalid_state("no step was made since it was created or loaded");
  *out = last_group_norms_[group];
  return Status::success();
}

Status StepNorms::loss_scale_info(trireme_loss_scale_info* out) const {
  if (!loss_scale_.on())
    return invalid_state("the optimizer was created without options.loss_scale");
  out->scale = loss_scale_.scale();
  out->clean_steps = loss_scale_.state().clean_steps;
  out->overflows = loss_scale_.state().overflows;
  out->skipped_steps = loss_scale_.state().skipped_steps;
  out->skipped = overflow_.found ? 1 : 0;
  out->at_floor = overflow_.at_floor ? 1 : 0;
  out->parameter = overflow_.parameter;
  out->rank = overflow_.rank;
  return Status::success();
}

}  // namespace trireme::strategies
