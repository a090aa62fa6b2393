// Optimizer: one step, from the gradients that are handed in to parameters that all ranks have.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>

#include "kernels/finite.hpp"
#include "kernels/hash.hpp"
#include "kernels/reduce.hpp"
#include "model/units/team_gather.hpp"
#include "optimizer/optimizer.hpp"
#include "optimizer/rules/clipping.hpp"
#include "optimizer/rules/lamb_lars.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using optimizers::GradientNorm;
using optimizers::Piece;
using sharding::Bucket;
using sharding::Group;
using sharding::Parameter;
using sharding::Segment;

Status Optimizer::check_step() const {
  const Model& model = *model_;
  TRIREME_RETURN_IF_ERROR(model.check_sealed());
  TRIREME_RETURN_IF_ERROR(model.reducer_->check_complete());
  return model.check_released("the step");
}

Status Optimizer::step() {
  TRIREME_RETURN_IF_ERROR(check_step());
  // Before anything of the step: a schedule of the caller may fail.
  if (!model_->updates_in_backward()) {
    TRIREME_RETURN_IF_ERROR(next_rate(&settings_.step_rate));
  } else if (!model_->reducer_->has_rate()) {  // no pass of this rank was there to ask
    double rate = 0;
    TRIREME_RETURN_IF_ERROR(next_rate(&rate));
    take_rate(rate);
  }
  TRIREME_RETURN_IF_ERROR(model_->keep(model_->attendance_.enter(model_->link_, model_->storage_)));
  bool nobody = false;
  TRIREME_RETURN_IF_ERROR(run_step(false, &nobody));
  return overflow_.at_floor ? floor_failure() : Status::success();
}

Status Optimizer::run_step(bool shadowed, bool* nobody) {
  Model& model = *model_;
  const auto run = [&]() -> Status {
    // A gather ends on this rank when no peer reads its shard any more, and a later one begins to
    // read it only when this rank has come to it. So with no gather under way here, the update
    // below is alone with the shard.
    if (model.pool_ != nullptr) TRIREME_RETURN_IF_ERROR(model.pool_->drop_unused());
    TRIREME_FAILPOINT("step", "before_reductions");
    if (model.updates_in_backward()) {
      TRIREME_RETURN_IF_ERROR(finish_updates());
      return end_step(shadowed, 0);
    }
    if (offload_ != nullptr) offload_->read_ahead();
    TRIREME_RETURN_IF_ERROR(model.tell_disk(expect_parameters()));
    TRIREME_RETURN_IF_ERROR(model.reducer_->wait_reductions());
    TRIREME_FAILPOINT("step", "after_reductions");
    std::uint32_t contributors = 0;
    if (model.attendance_.is_open()) {
      TRIREME_RETURN_IF_ERROR(agree_on_contributors(shadowed, &contributors, nobody));
      if (*nobody) {
        model.reducer_->clear();
        return model.attendance_.leave(model.link_, false);
      }
    }
    overflow_ = {};
    double norm = 0;
    if (settings_.one_sweep) {
      TRIREME_RETURN_IF_ERROR(begin_update(&norm));
      TRIREME_RETURN_IF_ERROR(sweep());
      return end_step(shadowed, norm);
    }
    TRIREME_RETURN_IF_ERROR(model.reducer_->finish(contributors));
    if (model.options_.bucket_hook != nullptr) {
      model.reducer_->run_hook_after();
      const HookAnswer& hook = model.reducer_->hook_answer();
      TRIREME_RETURN_IF_ERROR(compare_answers(hook.answer, hook.bucket, "bucket hook", "bucket"));
    }
    look_for_overflow();
    clip_values();
    TRIREME_RETURN_IF_ERROR(begin_update(&norm));
    if (overflow_.found) return skip_step(shadowed);
    TRIREME_RETURN_IF_ERROR(update(norm));
    return end_step(shadowed, norm);
  };
  Status status = run();
  // Whatever broke a step has left parameters that are neither the old nor the new ones.
  if (status.ok()) return status;
  model.give_up(status);
  return Status(model.failed_);
}

// What is updated goes where it is needed, and the next step may begin.
Status Optimizer::end_step(bool shadowed, double norm) {
  Model& model = *model_;
  TRIREME_FAILPOINT("step", "after_update");
  TRIREME_RETURN_IF_ERROR(give_parameters(Given::updated));
  TRIREME_FAILPOINT("step", "after_give");
  // Nobody reads what others still write. begin_update() was the other end of this.
  if (model.layout_->spread.shared) TRIREME_RETURN_IF_ERROR(model.link_.meet());
  TRIREME_RETURN_IF_ERROR(leave_step(shadowed));
  TRIREME_FAILPOINT("step", "before_return");
  norm_ = settings_.max_norm > 0 ? norm : kNoNorm;
  std::swap(group_norms_, last_group_norms_);
  has_group_norms_ = true;
  loss_scale_.step_made();
  ++steps_;
  ++model.steps_;
  model.link_.step = steps_;
  if (settings_.check_every == 0 || steps_ % settings_.check_every != 0) return Status::success();
  return model.check_replicas();
}

Status Optimizer::leave_step(bool shadowed) {
  Model& model = *model_;
  TRIREME_RETURN_IF_ERROR(model.reducer_->learn_order());
  model.reducer_->clear();
  TRIREME_RETURN_IF_ERROR(model.attendance_.leave(model.link_, !shadowed));
  model.last_step_bytes_ = std::exchange(model.link_.given_bytes, 0);
  return Status::success();
}

// The gradients go, all else stays as it was.
Status Optimizer::skip_step(bool shadowed) {
  TRIREME_RETURN_IF_ERROR(leave_step(shadowed));
  overflow_.at_floor = !loss_scale_.step_overflowed();
  return Status::success();
}

Status Optimizer::floor_failure() const {
  char scale[40];
  std::snprintf(scale, sizeof scale, "%.17g", loss_scale_.scale());
  std::string text = std::string("the loss scale is at its floor, ") + scale +
                     ", and gradients overflow: the step was skipped; ";
  if (overflow_.parameter == sharding::kNone) {
    return invalid_state(text + "the inf or NaN is in another model of norm_ranks");
  }
  const Parameter& parameter = model_->registry_.parameters()[overflow_.parameter];
  text += "the first inf or NaN is in parameter " + std::to_string(overflow_.parameter) + " (" +
          sharding::quoted(parameter.name) + "), ";
  if (overflow_.rank < 0) return invalid_state(text + "but in no rank's own gradient of it");
  FailureDetails details;
  details.communicator = model_->link_.communicator->name();
  details.blamed = {overflow_.rank};
  return invalid_state(text + "as rank " + std::to_string(overflow_.rank) + " handed it in")
      .with_details(std::move(details));
}

// Uneven inputs: by how many the sum is divided, and with which learning rate it goes on. A rank
// without data takes the others' rate, and that of this step, whatever its own schedule says.
Status Optimizer::agree_on_contributors(bool shadowed, std::uint32_t* out, bool* nobody) {
  Model& model = *model_;
  auto* const facts = reinterpret_cast<std::int64_t*>(model.storage_->working.data());
  constexpr std::size_t kFacts = 3;
  std::int64_t* const own = facts + kFacts * model.link_.rank();
  constexpr std::int64_t kNoRate = -1;  // the bits of no rate: those of a negative one
  own[0] = model.reducer_->contributed();
  own[1] = shadowed ? kNoRate : std::bit_cast<std::int64_t>(settings_.learning_rate);
  own[2] = shadowed ? kNoRate : std::bit_cast<std::int64_t>(settings_.step_rate);
  Operation operation;
  operation.channel = model.link_.reductions;
  operation.kind = OperationKind::all_gather;
  operation.dtype = TRIREME_DTYPE_I64;
  operation.send = own;
  operation.receive = facts;
  operation.count = kFacts;
  operation.owner = model.storage_->hold();
  TRIREME_FAILPOINT("step", "before_contributors");
  TRIREME_RETURN_IF_ERROR(model.link_.run(std::move(operation)));
  std::int64_t contributors = 0;
  *nobody = true;
  for (std::uint32_t rank = 0; rank < model.link_.world_size(); ++rank) {
    const std::int64_t* const theirs = facts + kFacts * rank;
    contributors += theirs[0];
    if (theirs[1] == kNoRate) continue;
    if (shadowed && *nobody) {
      settings_.learning_rate = std::bit_cast<double>(theirs[1]);
      settings_.step_rate = std::bit_cast<double>(theirs[2]);
    }
    *nobody = false;
  }
  // Nobody brought anything: gradients are zero, whatever they are divided by.
  *out = contributors > 0 ? static_cast<std::uint32_t>(contributors) : 1;
  return Status::success();
}

// Before values are clipped, which would hide an inf.
void Optimizer::look_for_overflow() {
  own_overflow_ = sharding::kNone;
  if (!loss_scale_.on()) return;
  add_own_gradients(
      [this](std::uint64_t number, const Bucket& bucket, const void* data, std::uint64_t elements) {
        if (number >= own_overflow_) return;
        if (!kernels::all_finite(bucket.dtype, data, elements)) own_overflow_ = number;
      });
}

// Of each rank: the first parameter whose reduced gradient overflows in its part, then the first of
// which its own gradient does; from 1, 0 is none. Where the sum is finite nevertheless, as a bucket
// hook may make it, there is nothing to skip.
void Optimizer::find_overflow(const std::int64_t* words) {
  const std::uint32_t ranks = model_->link_.world_size();
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

void Optimizer::clip_values() {
  if (settings_.max_value == 0) return;
  const Model& model = *model_;
  const bool whole = model.layout_->spread.whole_state();
  for (const Bucket& bucket : model.layout_->buckets) {
    clip_values(bucket,
                whole ? model.reducer_->reduced(bucket) : model.reducer_->reduced_block(bucket));
  }
}

void Optimizer::clip_values(const Bucket& bucket, char* reduced) {
  if (settings_.max_value == 0) return;
  // f32 has no larger number to clip.
  const double limit = settings_.max_value * loss_scale_.scale();
  const double most = std::numeric_limits<float>::max();
  kernels::clamp(bucket.dtype, reduced,
                 bucket.dtype == TRIREME_DTYPE_F32 ? std::min(limit, most) : limit,
                 model_->layout_->spread.whole_state() ? bucket.elements
                                                       : bucket.counts[model_->link_.rank()]);
}

// All ranks compare the learning rate before anything changes, and add up the norm.
Status Optimizer::begin_update(double* out_norm) {
  Model& model = *model_;
  const bool own_groups = norm_ranks_ == nullptr && group_count() > 0;
  const bool own_words = step_words_.bytes() > 0;
  auto* const words = reinterpret_cast<std::int64_t*>(
      own_words ? step_words_.data() : model.storage_->working.data() + model.plan_.words);
  std::uint64_t count = 0;
  const bool own_norm = settings_.max_norm > 0 && norm_ranks_ == nullptr;
  if (own_norm) {
    GradientNorm norm;
    // Every rank counts its own block, so data_parallel counts nothing twice.
    for (const Bucket& bucket : model.layout_->buckets) {
      norm.add(bucket.dtype, model.reducer_->reduced_block(bucket),
               bucket.counts[model.link_.rank()]);
    }
    norm.write(words);
    count = GradientNorm::kWords;
  }
  if (own_groups) {
    std::fill(group_sums_.begin(), group_sums_.end(), GradientNorm());
    add_own_gradients(
        [&](std::uint64_t number, const Bucket& bucket, const void* data, std::uint64_t elements) {
          const std::uint32_t group = model.registry_.parameters()[number].norm_group;
          group_sums_[group].add(bucket.dtype, data, elements);
        });
    for (GradientNorm& sum : group_sums_) {
      sum.write(words + count);
      count += GradientNorm::kWords;
    }
  }
  std::int64_t* const skip_words = words + count;
  if (!skipped_.empty()) {
    const std::uint64_t added = sharding::skip_words(model.registry_);
    std::fill_n(skip_words, added, 0);
    for (std::size_t i = 0; i < skipped_.size(); ++i) {
      if (model.reducer_->used()[i]) skip_words[i / 4] += std::int64_t{1} << i % 4 * 16;
    }
    count += added;
  }
  std::int64_t* const overflow_words = words + count;
  if (loss_scale_.on()) {
    const std::uint64_t added = 2 * model.link_.world_size();
    std::fill_n(overflow_words, added, 0);
    std::int64_t* const own = overflow_words + 2 * std::size_t{model.link_.rank()};
    own[0] = static_cast<std::int64_t>(own_overflow_ + 1);
    own[1] = static_cast<std::int64_t>(model.reducer_->first_overflow() + 1);
    count += added;
  }
  Operation operation;
  operation.channel = model.link_.reductions;
  operation.kind = OperationKind::all_reduce;
  operation.dtype = TRIREME_DTYPE_I64;
  operation.reduction = TRIREME_REDUCTION_SUM;
  operation.send = words;
  operation.receive = words;
  operation.count = count;
  TRIREME_FAILPOINT("step", "before_agree");
  operation.agreement = rates_to_compare();
  operation.agreement_name = "learning rate";
  operation.owner = own_words ? step_words_.memory() : model.storage_->hold();
  TRIREME_RETURN_IF_ERROR(model.link_.run(std::move(operation)));
  // A norm is that of gradients without their scale.
  if (own_norm) *out_norm = GradientNorm::norm(words) / loss_scale_.scale();
  for (std::size_t group = 0; own_groups && group < group_count(); ++group) {
    group_norms_[group] =
        GradientNorm::norm(words + group * GradientNorm::kWords) / loss_scale_.scale();
  }
  if (loss_scale_.on()) find_overflow(overflow_words);
  if (norm_ranks_ != nullptr) {
    TRIREME_RETURN_IF_ERROR(norm_over_models(group_count() > 0 ? group_norms_.data() : out_norm));
  }
  if (!skipped_.empty() && !overflow_.found) count_skipped(skip_words);
  return Status::success();
}

// Every rank counts its own block, parameter by parameter.
template <class Add>
void Optimizer::add_own_gradients(const Add& add) const {
  const Model& model = *model_;
  for (const Bucket& bucket : model.layout_->buckets) {
    const std::uint32_t rank = model.link_.rank();
    const std::uint64_t begin = bucket.block_first[rank];
    const char* const block = model.reducer_->reduced_block(bucket);
    for (const Segment& segment : bucket.segments) {
      // By position: with data_parallel every rank takes itself for the owner.
      const sharding::Range part =
          sharding::intersect({begin, bucket.counts[rank]}, {segment.position, segment.count});
      if (part.count == 0) continue;
      add(segment.parameter, bucket, block + (part.first - begin) * dtype_size(bucket.dtype),
          part.count);
    }
  }
}

Status Optimizer::norm_over_models(double* out_norms) {
  const bool grouped = group_count() > 0;
  add_own_gradients(
      [&](std::uint64_t number, const Bucket& bucket, const void* data, std::uint64_t elements) {
        const Parameter& parameter = model_->registry_.parameters()[number];
        norm_ranks_->add(grouped ? parameter.norm_group : 0, parameter.replicas, bucket.dtype, data,
                         elements);
      });
  // What the other models add up is scaled by the same, and all skip a step or none does.
  const double scale = loss_scale_.scale();
  const std::uint64_t rates = rates_to_compare();
  const std::uint64_t both = loss_scale_.on() ? kernels::hash(&scale, sizeof scale, rates) : rates;
  TRIREME_RETURN_IF_ERROR(norm_ranks_->finish(
      model_->link_, both, loss_scale_.on() ? "learning rate and loss scale" : "learning rate",
      out_norms, &overflow_.found));
  const std::size_t norms = grouped ? group_count() : 1;
  for (std::size_t i = 0; i < norms; ++i) out_norms[i] /= scale;
  return Status::success();
}

// Each parameter has 16 bits in which the ranks that used it were added up; a world has fewer than
// 2^16 ranks.
void Optimizer::count_skipped(const std::int64_t* words) {
  for (std::size_t i = 0; i < skipped_.size(); ++i) {
    skipped_[i] = (static_cast<std::uint64_t>(words[i / 4]) >> i % 4 * 16 & 0xffff) == 0;
    if (!skipped_[i]) ++steps_of_[i];
  }
}

double Optimizer::scale_of(std::uint64_t parameter, double norm) const {
  const double scale = loss_scale_.scale();
  if (group_count() == 0) return optimizers::clip_factor(norm, settings_.max_norm) / scale;
  const std::uint32_t group = model_->registry_.parameters()[parameter].norm_group;
  return optimizers::clip_factor(group_norms_[group], settings_.group_max_norms[group]) / scale;
}

Status Optimizer::update(double norm) {
  if (factored_ != nullptr) return update_factored(norm);
  if (optimizers::needs_norms(settings_)) return update_by_norms(norm);
  if (settings_.has_matrices()) return update_matrices(norm);
  std::int32_t answer = 0;
  std::uint64_t parameter = 0;
  TRIREME_FAILPOINT("step", "before_update");
  const auto update_piece = [&](const Piece& piece) -> Status {
    TRIREME_FAILPOINT("step", "mid_update");
    if (is_skipped(piece)) return Status::success();
    parameter = piece.parameter;
    return model_->tell_disk(
        with_parameters(piece, ParameterFile::Access::update, [&](const Piece& part) {
          if (answer != 0) return Status::success();
          const CallbackScope scope(model_->link_);
          answer = optimizers::update_piece(settings_, part, step_of(part),
                                            scale_of(part.parameter, norm));
          return Status::success();
        }));
  };
  if (offload_ != nullptr) {
    TRIREME_RETURN_IF_ERROR(update_offloaded(0, pieces_.size(), update_piece, &answer));
  } else {
    for (const Piece& piece : pieces_) {
      TRIREME_RETURN_IF_ERROR(update_piece(piece));
      if (answer != 0) break;
    }
  }
  if (settings_.update == nullptr) return Status::success();
  return compare_answers(answer, parameter, "update rule", "parameter");
}

// Piece by piece as their state comes from the file. The peers, who may have no trouble with theirs,
// hear of a failure here.
Status Optimizer::update_offloaded(std::uint64_t first, std::uint64_t end,
                                   const std::function<Status(const Piece&)>& update_piece,
                                   const std::int32_t* answer) {
  Status updated = Status::success();
  const Offload::Visit visit = [&](Offload::Visited* visited) {
    updated = update_piece(visited->piece);
    visited->changed = updated.ok() && !is_skipped(visited->piece);
    return updated.ok() && *answer == 0;
  };
  Status streamed = first == 0 && end == pieces_.size()
                        ? offload_->sweep(Offload::Access::update, visit)
                        : offload_->sweep_pieces(Offload::Access::update, first, end, visit);
  count_offload();
  TRIREME_RETURN_IF_ERROR(updated);
  if (!streamed.ok()) model_->fail_groups(streamed.code(), streamed.message());
  return streamed;
}

// Whether a callback of the caller did well on all ranks.
Status Optimizer::compare_answers(std::int32_t answer, std::uint64_t number, const char* who,
                                  const char* what) {
  Model& model = *model_;
  auto* const answers = reinterpret_cast<std::int64_t*>(model.storage_->working.data());
  std::int64_t* const own = answers + 2 * std::size_t{model.link_.rank()};
  own[0] = answer;
  own[1] = static_cast<std::int64_t>(number);
  Operation operation;
  operation.channel = model.link_.reductions;
  operation.kind = OperationKind::all_gather;
  operation.dtype = TRIREME_DTYPE_I64;
  operation.send = own;
  operation.receive = answers;
  operation.count = 2;
  operation.owner = model.storage_->hold();
  TRIREME_FAILPOINT("step", "before_answers");
  TRIREME_RETURN_IF_ERROR(model.link_.run(std::move(operation)));
  for (std::uint32_t rank = 0; rank < model.link_.world_size(); ++rank) {
    const std::int64_t other = answers[2 * std::size_t{rank}];
    if (other == 0) continue;
    const auto at = static_cast<std::uint64_t>(answers[2 * std::size_t{rank} + 1]);
    FailureDetails details;
    details.communicator = model.link_.communicator->name();
    details.blamed = {static_cast<std::int32_t>(rank)};
    if (at == sharding::kNone) {
      return Status::failure(TRIREME_ERROR_MISMATCH, "rank " + std::to_string(rank) +
                                                         " has discarded the step, and others have "
                                                         "made it")
          .with_details(std::move(details));
    }
    return Status::failure(TRIREME_ERROR_CALLBACK, std::string("the ") + who + " of rank " +
                                                       std::to_string(rank) + " answered " +
                                                       std::to_string(other) + " for " + what +
                                                       " " + std::to_string(at))
        .with_details(std::move(details));
  }
  return Status::success();
}

}  // namespace trireme::strategies
