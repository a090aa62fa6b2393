#include "strategies/optimizer.hpp"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "kernels/reduce.hpp"
#include "optimizers/clipping.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "strategies/agreement.hpp"
#include "strategies/team_gather.hpp"

namespace trireme::strategies {

using optimizers::GradientNorm;
using optimizers::Piece;
using sharding::Bucket;
using sharding::Group;
using sharding::Parameter;
using sharding::Segment;
using Event = StepEvent::Kind;

Status Optimizer::create(const std::shared_ptr<Model>& model,
                         const trireme_optimizer_options& options,
                         const std::shared_ptr<Communicator>& norm_ranks,
                         std::shared_ptr<Optimizer>* out) {
  TRIREME_RETURN_IF_ERROR(model->check_sealed());
  optimizers::Settings settings;
  TRIREME_RETURN_IF_ERROR(optimizers::read_settings(options, &settings));
  if (model->has_optimizer_) return invalid_state("the model has an optimizer");
  if (model->reducer_->step_under_way()) return invalid_state("a step is under way");

  std::shared_ptr<Optimizer> optimizer(new Optimizer(model, settings));
  if (settings.one_sweep) TRIREME_RETURN_IF_ERROR(optimizer->check_one_sweep());
  const std::size_t groups = optimizer->group_count();
  if (norm_ranks != nullptr && settings.max_norm == 0 && groups == 0) {
    return invalid_argument(
        "options.norm_ranks means nothing without options.max_norm or group_max_norms");
  }
  if (norm_ranks != nullptr && model->attendance_.is_open()) {
    return unsupported("options.norm_ranks with TRIREME_MODEL_UNEVEN: all models step together");
  }
  model->has_optimizer_ = true;  // taken back by the destructor
  const std::uint64_t bytes =
      plan_state_bytes(*model->layout_, settings.states, model->link_.rank());
  if (model->options_.unused == TRIREME_UNUSED_SKIP) {
    optimizer->steps_of_.assign(model->registry_.parameters().size(), 0);
    optimizer->skipped_.assign(model->registry_.parameters().size(), false);
  }
  std::vector<sharding::Fact> facts;
  for (auto& [name, value] : optimizers::describe(settings)) {
    facts.push_back({std::move(name), std::move(value)});
  }
  // Before anything else: with this known, all ranks of the model come to norm_ranks or none does.
  Status ready = agree(model->link_, {{"norm_ranks", norm_ranks != nullptr ? "set" : "not set"}},
                       Status::success());
  if (ready.code() == TRIREME_ERROR_MISMATCH) return ready;
  const std::uint64_t group_bytes = norm_ranks == nullptr ? optimizer->group_bytes() : 0;
  // What comes out the same on all ranks of one model, if not on all norm_ranks.
  const auto prepare = [&]() -> Status {
    if (model->options_.memory_limit_bytes > 0 || settings.groups > 0) {
      // Ranks that want other rules are told so, and not that one of them is too large or has a
      // group too few.
      TRIREME_RETURN_IF_ERROR(agree(model->link_, facts, Status::success()));
      TRIREME_RETURN_IF_ERROR(optimizer->check_groups());
      MemoryLimit limit = model->memory_limit();
      limit.added_working = group_bytes;
      TRIREME_RETURN_IF_ERROR(
          check_memory_limit(limit, model->registry_, *model->layout_, settings.states));
    }
    Status allocated = optimizer->state_.allocate(
        *model->link_.communicator, model->storage_->allocated, MemoryKind::optimizer_state, bytes);
    if (allocated.ok() && group_bytes > 0) {
      allocated = optimizer->group_words_.allocate(
          *model->link_.communicator, model->storage_->allocated, MemoryKind::working, group_bytes);
    }
    return agree(model->link_, facts, allocated);
  };
  if (ready.ok()) ready = prepare();
  // The other models wait there for this one, also to hear that it cannot. Where its own group has failed
  // otherwise, not all of its ranks would come.
  const bool all_come = ready.ok() || ready.code() == TRIREME_ERROR_OUT_OF_MEMORY ||
                        ready.code() == TRIREME_ERROR_SYSTEM ||
                        model->link_.communicator->failure().ok();
  if (norm_ranks != nullptr && all_come) {
    ready = optimizer->open_norm_ranks(*norm_ranks, facts, ready);
  }
  TRIREME_RETURN_IF_ERROR(ready);
  if (norm_ranks == nullptr) optimizer->group_sums_.resize(groups);
  optimizer->group_norms_.resize(groups);
  optimizer->last_group_norms_.resize(groups);
  model->planned_state_ = bytes;
  model->planned_norm_ += group_bytes;
  model->reducer_->keep_until_step(settings.one_sweep);
  optimizer->place_pieces();
  optimizer->place_ranges();
  *out = std::move(optimizer);
  return Status::success();
}

Status Optimizer::open_norm_ranks(Communicator& ranks, const std::vector<sharding::Fact>& facts,
                                  const Status& ready) {
  Model& model = *model_;
  norm_ranks_ = std::make_unique<NormRanks>();
  const Status opened =
      norm_ranks_->open(ranks, model.link_.timeout_ns, model.registry_, facts,
                        std::max<std::size_t>(group_count(), 1), ready, model.storage_->allocated);
  // All ranks of the model must be in one group, or each would clip by another norm.
  TRIREME_RETURN_IF_ERROR(agree(
      model.link_, {{"the group of norm_ranks", std::to_string(norm_ranks_->identity())}}, opened));
  model.planned_norm_ = norm_ranks_->bytes();
  model.norm_group_ = norm_ranks_->communicator();
  return Status::success();
}

Optimizer::~Optimizer() {
  model_->planned_norm_ = 0;
  model_->norm_group_.reset();
  model_->reducer_->keep_until_step(false);
  model_->has_optimizer_ = false;
  model_->planned_state_ = 0;
}

// The pieces that this rank updates: with data_parallel all of them, else those of its blocks.
// State of a bucket lies vector by vector where an arena of one vector would have the bucket.
void Optimizer::place_pieces() {
  const Model& model = *model_;
  const sharding::Layout& layout = *model.layout_;
  const bool whole = layout.spread.whole_state();
  for (const Bucket& bucket : layout.buckets) {
    const std::uint64_t size = dtype_size(bucket.dtype);
    const std::uint64_t begin = whole ? 0 : bucket.block_first[layout.spread.rank];
    const std::uint64_t elements = whole ? bucket.elements : bucket.counts[layout.spread.rank];
    const std::uint64_t offset = whole ? bucket.whole_offset : bucket.shard_offset;
    char* const states = state_.data() + settings_.states * offset;
    char* const gradients =
        whole ? model.reducer_->reduced(bucket) : model.reducer_->reduced_block(bucket);
    for (const Segment& segment : bucket.segments) {
      if (!whole && segment.owner != layout.spread.rank) continue;
      const Parameter& parameter = model.registry_.parameters()[segment.parameter];
      const Group& group = layout.group_of_parameter(parameter);
      const std::uint64_t element = layout.first_in_group(parameter) + segment.first;
      const std::uint64_t in_arena =
          group.offset + (element - group.kept.first) * dtype_size(parameter.dtype);
      const std::uint64_t position = segment.position - begin;
      Piece piece;
      piece.dtype = parameter.dtype;
      piece.parameter = segment.parameter;
      piece.group = parameter.norm_group;
      piece.first = segment.first;
      piece.count = segment.count;
      piece.parameters = model.storage_->parameters.data() + in_arena;
      piece.gradients = gradients + position * size;
      for (std::uint32_t i = 0; i < settings_.states; ++i) {
        piece.states[i] = states + (i * elements + position) * size;
      }
      pieces_.push_back(piece);
    }
  }
}

Status Optimizer::check_step() const {
  const Model& model = *model_;
  TRIREME_RETURN_IF_ERROR(model.check_sealed());
  TRIREME_RETURN_IF_ERROR(model.reducer_->check_complete());
  return model.check_released("the step");
}

Status Optimizer::step() {
  TRIREME_RETURN_IF_ERROR(check_step());
  TRIREME_RETURN_IF_ERROR(model_->keep(model_->attendance_.enter(model_->link_, model_->storage_)));
  bool nobody = false;
  return run_step(false, &nobody);
}

Status Optimizer::run_step(bool shadowed, bool* nobody) {
  Model& model = *model_;
  const auto run = [&]() -> Status {
    // A gather ends on this rank when no peer reads its shard any more, and a later one begins to
    // read it only when this rank has come to it. So with no gather under way here, the update
    // below is alone with the shard.
    if (model.pool_ != nullptr) TRIREME_RETURN_IF_ERROR(model.pool_->drop_unused());
    TRIREME_FAILPOINT("step", "before_reductions");
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
    clip_values();
    TRIREME_RETURN_IF_ERROR(begin_update(&norm));
    TRIREME_RETURN_IF_ERROR(update(norm));
    return end_step(shadowed, norm);
  };
  Status status = run();
  // Whatever broke a step has left parameters that are neither the old nor the new ones.
  if (!status.ok()) model.give_up(status);
  return status;
}

void Optimizer::fail_groups(trireme_status code, std::string_view why) const noexcept {
  model_->fail_groups(code, why);
}

// What is updated goes where it is needed, and the next step may begin.
Status Optimizer::end_step(bool shadowed, double norm) {
  Model& model = *model_;
  TRIREME_FAILPOINT("step", "after_update");
  TRIREME_RETURN_IF_ERROR(give_parameters());
  TRIREME_FAILPOINT("step", "after_give");
  // Nobody reads what others still write. begin_update() was the other end of this.
  if (model.layout_->spread.shared) TRIREME_RETURN_IF_ERROR(model.link_.meet());
  TRIREME_RETURN_IF_ERROR(model.reducer_->learn_order());
  model.reducer_->clear();
  TRIREME_RETURN_IF_ERROR(model.attendance_.leave(model.link_, !shadowed));
  model.last_step_bytes_ = std::exchange(model.link_.given_bytes, 0);
  TRIREME_FAILPOINT("step", "before_return");
  norm_ = settings_.max_norm > 0 ? norm : kNoNorm;
  std::swap(group_norms_, last_group_norms_);
  has_group_norms_ = true;
  ++steps_;
  ++model.steps_;
  if (settings_.check_every == 0 || steps_ % settings_.check_every != 0) return Status::success();
  return model.check_replicas();
}

// Uneven inputs: by how many the sum is divided, and with which learning rate it goes on. A rank
// without data takes the others' rate.
Status Optimizer::agree_on_contributors(bool shadowed, std::uint32_t* out, bool* nobody) {
  Model& model = *model_;
  auto* const facts = reinterpret_cast<std::int64_t*>(model.storage_->working.data());
  std::int64_t* const own = facts + 2 * std::size_t{model.link_.rank()};
  constexpr std::int64_t kNoRate = -1;  // the bits of no rate: those of a negative one
  own[0] = model.reducer_->contributed();
  own[1] = shadowed ? kNoRate : std::bit_cast<std::int64_t>(settings_.learning_rate);
  Operation operation;
  operation.channel = model.link_.reductions;
  operation.kind = OperationKind::all_gather;
  operation.dtype = TRIREME_DTYPE_I64;
  operation.send = own;
  operation.receive = facts;
  operation.count = 2;
  operation.owner = model.storage_->hold();
  TRIREME_FAILPOINT("step", "before_contributors");
  TRIREME_RETURN_IF_ERROR(model.link_.run(std::move(operation)));
  std::int64_t contributors = 0;
  *nobody = true;
  for (std::uint32_t rank = 0; rank < model.link_.world_size(); ++rank) {
    contributors += facts[2 * std::size_t{rank}];
    const std::int64_t rate = facts[2 * std::size_t{rank} + 1];
    if (rate == kNoRate) continue;
    if (shadowed && *nobody) settings_.learning_rate = std::bit_cast<double>(rate);
    *nobody = false;
  }
  // Nobody brought anything: gradients are zero, whatever they are divided by.
  *out = contributors > 0 ? static_cast<std::uint32_t>(contributors) : 1;
  return Status::success();
}

// ---- one sweep ----

namespace {

// Reduces a stretch of this rank's block in pieces that stay in the nearest cache, and updates each
// while it is there.
struct SweepFold {
  // Where a piece of the shard begins in the block.
  struct Placed {
    std::uint64_t position = 0;
    const Piece* piece = nullptr;
  };
  const optimizers::Settings* settings;
  trireme_dtype dtype;
  trireme_reduction reduction;
  std::uint64_t step;
  std::vector<Placed> pieces;  // ascending

  void operator()(std::uint64_t first, std::uint64_t count, const void* const* sources,
                  std::uint32_t ranks) const {
    constexpr std::uint64_t kTile = 2048;
    alignas(64) double sums[kTile];
    std::vector<const void*> shifted(ranks);
    const std::uint64_t size = dtype_size(dtype);
    for (std::uint64_t done = 0; done < count; done += kTile) {
      const std::uint64_t here = std::min(kTile, count - done);
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        shifted[rank] = static_cast<const char*>(sources[rank]) + done * size;
      }
      kernels::reduce(dtype, reduction, sums, shifted.data(), ranks, here, ranks, 0);
      update({first + done, here}, reinterpret_cast<char*>(sums));
    }
  }

  void update(sharding::Range range, char* sums) const {
    const std::uint64_t size = dtype_size(dtype);
    auto at = std::upper_bound(
        pieces.begin(), pieces.end(), range.first,
        [](std::uint64_t position, const Placed& placed) { return position < placed.position; });
    if (at != pieces.begin()) --at;
    for (; at != pieces.end() && at->position < range.end(); ++at) {
      const sharding::Range part = intersect(range, {at->position, at->piece->count});
      if (part.count == 0) continue;
      Piece piece = *at->piece;
      const std::uint64_t skipped = part.first - at->position;
      piece.count = part.count;
      piece.parameters = static_cast<char*>(piece.parameters) + skipped * dtype_size(piece.dtype);
      piece.gradients = sums + (part.first - range.first) * size;
      for (std::uint32_t i = 0; i < settings->states; ++i) {
        piece.states[i] = static_cast<char*>(piece.states[i]) + skipped * size;
      }
      optimizers::update_piece(*settings, piece, step, 1);
    }
  }
};

}  // namespace

Status Optimizer::check_one_sweep() const {
  const Model& model = *model_;
  const char* why = nullptr;
  if (model.options_.strategy != TRIREME_STRATEGY_ZERO1) {
    why = "a strategy other than zero1";
  } else if (model.options_.leaves > 0) {
    why = "a reproducible model";
  } else if (model.uneven()) {
    why = "TRIREME_MODEL_UNEVEN";
  } else if (model.options_.unused == TRIREME_UNUSED_SKIP) {
    why = "TRIREME_UNUSED_SKIP";
  } else if (model.options_.bucket_hook != nullptr) {
    why = "a bucket hook";
  } else if (settings_.max_norm > 0 || settings_.max_value > 0 || group_count() > 0) {
    why = "clipping";
  } else if (settings_.update != nullptr) {
    why = "a rule of the caller";
  }
  if (why == nullptr) return Status::success();
  return unsupported(std::string("TRIREME_OPTIMIZER_ONE_SWEEP with ") + why);
}

Status Optimizer::sweep() {
  const Model& model = *model_;
  return model.reducer_->reduce_all([&](std::uint64_t number) -> Fold {
    const Bucket& bucket = model.layout_->buckets[number];
    SweepFold fold{&settings_,
                   bucket.dtype,
                   model.reducer_->averages() ? TRIREME_AVERAGE : TRIREME_SUM,
                   steps_ + 1,
                   {}};
    const char* const block = model.reducer_->reduced_block(bucket);
    const std::uint64_t size = dtype_size(bucket.dtype);
    const char* const end = block + bucket.counts[model.link_.rank()] * size;
    for (const Piece& piece : pieces_) {
      const char* const gradients = static_cast<const char*>(piece.gradients);
      if (gradients < block || gradients >= end) continue;
      fold.pieces.push_back({static_cast<std::uint64_t>(gradients - block) / size, &piece});
    }
    return fold;
  });
}

void Optimizer::clip_values() {
  if (settings_.max_value == 0) return;
  const Model& model = *model_;
  const bool whole = model.layout_->spread.whole_state();
  for (const Bucket& bucket : model.layout_->buckets) {
    kernels::clamp(bucket.dtype,
                   whole ? model.reducer_->reduced(bucket) : model.reducer_->reduced_block(bucket),
                   settings_.max_value,
                   whole ? bucket.elements : bucket.counts[model.link_.rank()]);
  }
}

// All ranks compare the learning rate before anything changes, and add up the norm.
Status Optimizer::begin_update(double* out_norm) {
  Model& model = *model_;
  const bool own_groups = group_words_.bytes() > 0;
  auto* const words = reinterpret_cast<std::int64_t*>(
      own_groups ? group_words_.data() : model.storage_->working.data() + model.plan_.words);
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
    add_own_gradients([this](const Parameter& parameter, const Bucket& bucket, const void* data,
                             std::uint64_t elements) {
      group_sums_[parameter.norm_group].add(bucket.dtype, data, elements);
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
  Operation operation;
  operation.channel = model.link_.reductions;
  operation.kind = OperationKind::all_reduce;
  operation.dtype = TRIREME_DTYPE_I64;
  operation.reduction = TRIREME_SUM;
  operation.send = words;
  operation.receive = words;
  operation.count = count;
  TRIREME_FAILPOINT("step", "before_agree");
  operation.agreement = std::bit_cast<std::uint64_t>(settings_.learning_rate);
  operation.agreement_name = "learning rate";
  operation.owner = own_groups ? group_words_.memory() : model.storage_->hold();
  TRIREME_RETURN_IF_ERROR(model.link_.run(std::move(operation)));
  if (own_norm) *out_norm = GradientNorm::norm(words);
  for (std::size_t group = 0; own_groups && group < group_count(); ++group) {
    group_norms_[group] = GradientNorm::norm(words + group * GradientNorm::kWords);
  }
  if (!skipped_.empty()) count_skipped(skip_words);
  if (norm_ranks_ == nullptr) return Status::success();
  return norm_over_models(group_count() > 0 ? group_norms_.data() : out_norm);
}

// The same on all ranks of the model.
Status Optimizer::check_groups() const {
  if (settings_.groups == 0) return Status::success();
  for (const Parameter& parameter : model_->registry_.parameters()) {
    if (parameter.norm_group < settings_.groups) continue;
    return invalid_argument("norm_group " + std::to_string(parameter.norm_group) +
                            " of parameter " + sharding::quoted(parameter.name) +
                            ", but options.group_count is " + std::to_string(settings_.groups));
  }
  return Status::success();
}

// What ranks add up if there are groups: their sums and, behind them, what is skipped.
std::uint64_t Optimizer::group_bytes() const {
  if (group_count() == 0) return 0;
  const std::uint64_t skips = model_->skips() ? sharding::skip_words(model_->registry_) : 0;
  return (group_count() * GradientNorm::kWords + skips) * sizeof(std::int64_t);
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
      add(model.registry_.parameters()[segment.parameter], bucket,
          block + (part.first - begin) * dtype_size(bucket.dtype), part.count);
    }
  }
}

Status Optimizer::norm_over_models(double* out_norms) {
  const bool grouped = group_count() > 0;
  add_own_gradients([&](const Parameter& parameter, const Bucket& bucket, const void* data,
                        std::uint64_t elements) {
    norm_ranks_->add(grouped ? parameter.norm_group : 0, parameter.replicas, bucket.dtype, data,
                     elements);
  });
  return norm_ranks_->finish(model_->link_, std::bit_cast<std::uint64_t>(settings_.learning_rate),
                             "learning rate", out_norms);
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
  if (group_count() == 0) return optimizers::clip_factor(norm, settings_.max_norm);
  const std::uint32_t group = model_->registry_.parameters()[parameter].norm_group;
  return optimizers::clip_factor(group_norms_[group], settings_.group_max_norms[group]);
}

Status Optimizer::update(double norm) {
  std::int32_t answer = 0;
  std::uint64_t parameter = 0;
  TRIREME_FAILPOINT("step", "before_update");
  for (const Piece& piece : pieces_) {
    TRIREME_FAILPOINT("step", "mid_update");
    if (!skipped_.empty() && skipped_[piece.parameter]) continue;
    const std::uint64_t step = steps_of_.empty() ? steps_ + 1 : steps_of_[piece.parameter];
    const CallbackScope scope(model_->link_);
    answer = optimizers::update_piece(settings_, piece, step, scale_of(piece.parameter, norm));
    parameter = piece.parameter;
    if (answer != 0) break;
  }
  if (settings_.update == nullptr) return Status::success();
  return compare_answers(answer, parameter, "update rule", "parameter");
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
    return Status::failure(TRIREME_ERROR_CALLBACK, std::string("the ") + who + " of rank " +
                                                       std::to_string(rank) + " answered " +
                                                       std::to_string(other) + " for " + what +
                                                       " " + std::to_string(at))
        .with_details(std::move(details));
  }
  return Status::success();
}

// Ranks that hold the same elements get those that the others of them updated.
Status Optimizer::give_parameters() {
  Model& model = *model_;
  const sharding::Layout& layout = *model.layout_;
  if (layout.spread.whole_state()) return Status::success();
  for (std::size_t number = 0; number < layout.groups.size(); ++number) {
    const Group& group = layout.groups[number];
    if (group.bucket == sharding::kNone || group.owned_counts.size() == 1) continue;
    const std::uint64_t size = dtype_size(group.dtype);
    // Of a whole group all ranks hold the same elements, of a shard the replicas.
    const bool among_all = group.shard_ranks == 1;
    const bool in_teams = !among_all && model.link_.replicas == nullptr;
    Communicator& holders =
        among_all || in_teams ? *model.link_.communicator : *model.link_.replicas;
    char* const data = model.storage_->parameters.data() + group.offset +
                       (group.held.first - group.kept.first) * size;
    Operation operation;
    operation.channel = among_all || in_teams ? model.link_.gathers : 0;
    operation.kind = OperationKind::all_gather_v;
    operation.dtype = group.dtype;
    operation.send = data + (group.owned.first - group.held.first) * size;
    operation.receive = data;
    operation.count = group.held.count;
    operation.counts = group.owned_counts;
    operation.agreement = number;
    operation.agreement_name = "group of units";
    operation.owner = model.storage_->hold();
    if (in_teams) {
      std::vector<TeamPlace> places;
      for (std::uint32_t rank = 0; rank < layout.spread.world_size; ++rank) {
        places.push_back({layout.part_of(group, rank), layout.owned_by(group, rank).count});
      }
      make_team_gather(&operation, std::move(places), layout.spread.rank);
    }
    TRIREME_FAILPOINT("step", "mid_give");
    model.link_.given_bytes += sharding::gather_bytes(
        group.owned_counts, layout.replica_of(group, layout.spread.rank), size);
    TRIREME_RETURN_IF_ERROR(model.link_.run(holders, std::move(operation)));
  }
  return Status::success();
}

// ---- uneven inputs ----

Status Optimizer::join(std::uint64_t* out_steps) {
  Model& model = *model_;
  TRIREME_RETURN_IF_ERROR(model.check_sealed());
  if (!model.attendance_.is_open()) {
    return invalid_state("the model was created without TRIREME_MODEL_UNEVEN");
  }
  if (model.reducer_->step_under_way()) return invalid_state("a step is under way");
  TRIREME_RETURN_IF_ERROR(model.check_released("joining"));
  std::uint64_t steps = 0;
  for (;;) {
    // What is gathered stays: who trains on has it, too, and does not gather it again.
    // Who has gathered since the last step, such as to evaluate, is counted among those with data, as
    // all others are: then the step itself shows whether somebody has some.
    if (!model.attendance_.entered()) {
      std::int64_t active = 0;
      TRIREME_RETURN_IF_ERROR(
          model.keep(model.attendance_.look(model.link_, model.storage_, &active)));
      if (active == 0) break;
    }
    bool nobody = false;
    Status status = failpoint("follow", "before_step");
    if (status.ok()) status = shadow_step(&nobody);
    if (status.ok()) status = failpoint("follow", "after_step");
    if (!status.ok()) {
      // The others have begun a step that this rank does not end.
      model.failed_ = status;
      model.link_.communicator->abort("it cannot follow a step: " + status.message());
      return status;
    }
    if (nobody) break;
    ++steps;
  }
  if (model.pool_ != nullptr) TRIREME_RETURN_IF_ERROR(model.keep(model.pool_->drop_unused()));
  TRIREME_RETURN_IF_ERROR(model.attendance_.leave(model.link_, false));
  *out_steps = steps;
  return Status::success();
}

// What this rank did in its last own step; before the first: gathers up and down, and its passes.
std::vector<StepEvent> Optimizer::step_to_follow() const {
  const Model& model = *model_;
  if (model.attendance_.has_last_step()) return model.attendance_.last_step();
  const std::uint64_t units = model.registry_.units().size();
  std::vector<StepEvent> events;
  for (std::uint32_t pass = 0; pass < model.reducer_->step_passes(); ++pass) {
    const bool has_part = pass < model.reducer_->own_passes();
    for (std::uint64_t i = 0; i < 2 * units; ++i) {
      const std::uint64_t unit = i < units ? i : 2 * units - 1 - i;
      if (i == units && has_part) events.push_back({Event::begin_backward, 0});
      events.push_back({Event::gather_unit, unit});
      events.push_back({Event::release_unit, unit});
    }
    if (has_part) events.push_back({Event::end_backward, 0});
  }
  return events;
}

Status Optimizer::shadow_step(bool* nobody) {
  Model& model = *model_;
  for (const StepEvent& event : step_to_follow()) {
    switch (event.kind) {
      case Event::gather_unit: TRIREME_RETURN_IF_ERROR(model.gather_unit(event.value)); break;
      case Event::release_unit: TRIREME_RETURN_IF_ERROR(model.release_unit(event.value)); break;
      case Event::get_parameters:
        TRIREME_RETURN_IF_ERROR(model.keep(model.gather_all(nullptr)));
        break;
      case Event::begin_backward:
        TRIREME_RETURN_IF_ERROR(model.begin_backward(static_cast<std::uint32_t>(event.value) |
                                                     TRIREME_BACKWARD_ABSENT));
        break;
      case Event::end_backward: TRIREME_RETURN_IF_ERROR(model.end_backward()); break;
    }
  }
  TRIREME_RETURN_IF_ERROR(check_step());
  return run_step(true, nobody);
}

Status Optimizer::set_learning_rate(double learning_rate) {
  TRIREME_RETURN_IF_ERROR(
      optimizers::check_learning_rate(learning_rate, settings_.group_rate_factors));
  settings_.learning_rate = learning_rate;
  return Status::success();
}

Status Optimizer::gradient_norm(double* out) const {
  if (settings_.max_norm == 0) {
    return invalid_state("max_norm is 0, so no norm is computed");
  }
  if (norm_ == kNoNorm) return invalid_state("no step was made, or one that was loaded without max_norm");
  *out = norm_;
  return Status::success();
}

Status Optimizer::group_norm(std::uint64_t group, double* out) const {
  if (group_count() == 0) {
    return invalid_state("the optimizer was created without group_max_norms");
  }
  if (group >= group_count()) {
    return invalid_argument("group " + std::to_string(group) + " is not below group_count " +
                            std::to_string(group_count()));
  }
  if (!has_group_norms_) return invalid_state("no step was made since it was created or loaded");
  *out = last_group_norms_[group];
  return Status::success();
}

}  // namespace trireme::strategies
