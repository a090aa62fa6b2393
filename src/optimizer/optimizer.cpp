#include "optimizer/optimizer.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "exchange/agreement.hpp"
#include "kernels/reduce.hpp"
#include "optimizer/counted_rule.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using optimizers::GradientNorm;
using optimizers::Piece;
using sharding::Bucket;
using sharding::Group;
using sharding::Parameter;
using sharding::Segment;

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
  if (model->updates_in_backward()) {
    TRIREME_RETURN_IF_ERROR(optimizer->check_update_in_backward());
  }
  const std::size_t groups = optimizer->group_count();
  if (norm_ranks != nullptr && settings.max_norm == 0 && groups == 0) {
    return invalid_argument(
        "options.norm_ranks means nothing without options.max_norm or group_max_norms");
  }
  if (norm_ranks != nullptr && model->attendance_.is_open()) {
    return unsupported("options.norm_ranks with TRIREME_MODEL_FLAG_UNEVEN: all models step together");
  }
  model->has_optimizer_ = true;  // taken back by the destructor
  optimizer->state_bytes_ =
      plan_state_bytes(*model->layout_, settings.states_of_all(), model->link_.rank());
  std::uint64_t matrix_bytes = 0;
  const std::uint64_t master_bytes =
      settings.master_weights
          ? plan_master_bytes(model->registry_, *model->layout_, model->link_.rank())
          : 0;
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
  const std::uint64_t word_bytes = optimizer->step_word_bytes(norm_ranks == nullptr);
  const std::uint64_t trust_bytes = Optimizer::trust_bytes(settings, model->registry_);
  const bool factored = optimizers::is_factored(settings);
  const std::uint64_t factored_bytes = factored ? Factored::plan_working(model->registry_) : 0;
  // What comes out the same on all ranks of one model, if not on all norm_ranks.
  const auto prepare = [&]() -> Status {
    if (settings.has_matrices()) {
      // Ranks with other groups would plan otherwise.
      TRIREME_RETURN_IF_ERROR(agree(model->link_, facts, Status::success()));
      TRIREME_RETURN_IF_ERROR(optimizer->check_groups());
      optimizer->matrices_ =
          std::make_unique<MatrixPlan>(model->registry_, *model->layout_, settings);
      const MatrixPlan::Bytes& planned = optimizer->matrices_->bytes[model->link_.rank()];
      optimizer->state_bytes_ = planned.state;
      matrix_bytes = planned.working();
    }
    if (model->options_.memory_limit_bytes > 0 || settings.groups > 0 || settings.master_weights ||
        settings.stochastic_rounding) {
      // Ranks that want other rules are told so, and not that one of them is too large or has a
      // group too few.
      TRIREME_RETURN_IF_ERROR(agree(model->link_, facts, Status::success()));
      TRIREME_RETURN_IF_ERROR(optimizer->check_groups());
      TRIREME_RETURN_IF_ERROR(optimizer->check_narrow());
      MemoryLimit limit = model->memory_limit();
      count_rule(settings, model->registry_, &limit);
      limit.added_working += word_bytes;
      TRIREME_RETURN_IF_ERROR(check_memory_limit(limit, model->registry_, *model->layout_));
    }
    Status allocated = Status::success();
    if (master_bytes > 0) {
      allocated =
          optimizer->masters_.allocate(*model->link_.communicator, model->storage_->allocated,
                                       MemoryKind::optimizer_state, master_bytes);
    }
    if (allocated.ok()) allocated = optimizer->allocate_state();
    if (allocated.ok()) allocated = optimizer->refresh_masters();
    if (allocated.ok() && factored) {
      optimizer->factored_ = std::make_unique<Factored>();
      allocated =
          optimizer->factored_->allocate(model->link_, model->storage_->allocated, model->registry_,
                                         *model->layout_, &optimizer->pieces_);
    }
    if (allocated.ok() && word_bytes > 0) {
      allocated = optimizer->step_words_.allocate(
          *model->link_.communicator, model->storage_->allocated, MemoryKind::working, word_bytes);
    }
    if (allocated.ok() && trust_bytes > 0) {
      allocated = optimizer->trust_words_.allocate(
          *model->link_.communicator, model->storage_->allocated, MemoryKind::working, trust_bytes);
    }
    if (allocated.ok() && matrix_bytes > 0) {
      allocated =
          optimizer->matrix_memory_.allocate(*model->link_.communicator, model->storage_->allocated,
                                             MemoryKind::working, matrix_bytes);
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
  model->planned_state_ = optimizer->state_bytes_;
  optimizer->count_offload();
  model->planned_state_ += master_bytes;
  if (factored) {
    model->planned_state_ +=
        Factored::plan_state(model->registry_, *model->layout_, model->link_.rank());
  }
  model->planned_norm_ += word_bytes + trust_bytes + factored_bytes + matrix_bytes;
  model->reducer_->keep_until_step(settings.one_sweep);
  model->reducer_->watch_overflow(optimizer->loss_scale_.on());
  if (optimizer->matrices_ != nullptr) {
    model->planned_directions_ = optimizer->matrices_->bytes[model->link_.rank()].given;
  }
  optimizer->place_norms();
  optimizer->place_matrices();
  optimizer->place_ranges();
  if (settings.master_weights) {
    model->parameters_set_ = [self = optimizer.get()] { return self->refresh_masters(); };
  }
  model->read_copies_ = [self = optimizer.get()](OptimizerCopies* copies) {
    return self->read_copies(copies);
  };
  if (model->updates_in_backward()) model->optimizer_ = optimizer;
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
  model_->parameters_set_ = nullptr;
  model_->read_copies_ = nullptr;
  model_->planned_norm_ = 0;
  model_->planned_offload_ = 0;
  model_->planned_directions_ = 0;
  model_->norm_group_.reset();
  model_->reducer_->keep_until_step(false);
  model_->reducer_->watch_overflow(false);
  model_->has_optimizer_ = false;
  model_->planned_state_ = 0;
}

Status Optimizer::allocate_state() {
  const Model& model = *model_;
  const bool offloaded = !settings_.offload_path.empty();
  if (!offloaded) {
    TRIREME_RETURN_IF_ERROR(state_.allocate(*model.link_.communicator, model.storage_->allocated,
                                            MemoryKind::optimizer_state, state_bytes_));
  }
  place_pieces();
  if (!offloaded) return Status::success();
  return Offload::open(model.link_, model.storage_->allocated, pieces_,
                       piece_sizes(*model.layout_, model.link_.rank()), settings_, &offload_);
}

// A block that could not be written stays in memory.
void Optimizer::count_offload() {
  if (offload_ == nullptr) return;
  model_->planned_state_ = offload_->resident_bytes();
  model_->planned_offload_ = offload_->buffer_bytes();
}

Status Optimizer::offload_info(trireme_offload_info* out) const {
  if (offload_ == nullptr) {
    return invalid_state("the optimizer was created without offload_path");
  }
  offload_->info(out);
  return Status::success();
}

// The pieces that this rank updates: with data_parallel all of them, else those of its blocks.
// State of a bucket lies vector by vector where an arena of one vector would have the bucket; so it
// is saved, too, where it lies in a file.
void Optimizer::place_pieces() {
  const Model& model = *model_;
  const sharding::Layout& layout = *model.layout_;
  const bool whole = layout.spread.whole_state();
  char* master = masters_.data();
  for (const Bucket& bucket : layout.buckets) {
    const std::uint64_t size = dtype_size(bucket.dtype);
    const std::uint64_t begin = whole ? 0 : bucket.block_first[layout.spread.rank];
    const std::uint64_t elements = whole ? bucket.elements : bucket.counts[layout.spread.rank];
    const std::uint64_t offset = whole ? bucket.whole_offset : bucket.shard_offset;
    const std::uint64_t states = settings_.states_of_all() * offset;
    char* gradients = nullptr;
    if (model.updates_in_backward()) {
      first_pieces_.push_back(pieces_.size());
    } else {
      gradients = whole ? model.reducer_->reduced(bucket) : model.reducer_->reduced_block(bucket);
    }
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
      piece.matrix = settings_.is_matrix(parameter.shape, parameter.norm_group);
      if (!group.in_file) piece.parameters = model.storage_->parameters.data() + in_arena;
      if (gradients != nullptr) {
        piece.gradients = gradients + position * size;
      } else {
        gradient_places_.push_back(position * size);
      }
      for (std::uint32_t i = 0; i < settings_.states_of_all(); ++i) {
        if (!state_ || settings_.has_matrices()) break;
        piece.states[i] = state_.data() + states + (i * elements + position) * size;
      }
      saved_places_.push_back({states + position * size, elements * size});
      const sharding::Range own = sharding::intersect(
          {bucket.block_first[layout.spread.rank], bucket.counts[layout.spread.rank]},
          {segment.position, segment.count});
      own_parts_.push_back({own.count > 0 ? own.first - segment.position : 0, own.count});
      if (settings_.master_weights && parameter.dtype != bucket.dtype) {
        piece.rounded = std::exchange(piece.parameters, master);
        piece.rounded_dtype = std::exchange(piece.dtype, bucket.dtype);
        master += piece.count * size;
      }
      pieces_.push_back(piece);
    }
  }
  if (settings_.has_matrices()) place_matrix_states();
  if (!first_pieces_.empty()) first_pieces_.push_back(pieces_.size());
}

void Optimizer::fail_groups(trireme_status code, std::string_view why) const noexcept {
  model_->fail_groups(code, why);
}

// The parameters are what the caller set, and their masters, too.
Status Optimizer::refresh_masters() {
  if (!settings_.master_weights) return Status::success();
  TRIREME_RETURN_IF_ERROR(expect_parameters());
  for (const Piece& piece : pieces_) {
    if (piece.rounded_dtype == 0) continue;
    TRIREME_RETURN_IF_ERROR(
        with_parameters(piece, ParameterFile::Access::read, [](const Piece& part) {
          kernels::widen(part.rounded_dtype, static_cast<float*>(part.parameters), part.rounded,
                         part.count);
          return Status::success();
        }));
  }
  return Status::success();
}

// The same on all ranks of the model.
Status Optimizer::check_narrow() const {
  if (!settings_.master_weights && !settings_.stochastic_rounding) return Status::success();
  bool found = false;
  for (const Parameter& parameter : model_->registry_.parameters()) {
    if (parameter.frozen || gradient_dtype(parameter.dtype) == parameter.dtype) continue;
    found = true;
    if (settings_.stochastic_rounding && parameter.dtype == TRIREME_DTYPE_F16) {
      return unsupported("TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING, but parameter " +
                         sharding::quoted(parameter.name) + " is of f16, and not of bf16");
    }
  }
  if (found) return Status::success();
  return invalid_argument(
      settings_.master_weights
          ? "TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS, but no parameter to be trained is of f16 or bf16"
          : "TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING, but no parameter to be trained is of bf16");
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

// What ranks add up if there are groups or a loss scale: sums of the norms, unless those are of more
// models, what is skipped, and two words of each rank about its overflows. 0: the model has room.
std::uint64_t Optimizer::step_word_bytes(bool own_norm) const {
  const std::uint64_t groups = own_norm ? group_count() : 0;
  if (groups == 0 && !loss_scale_.on()) return 0;
  const std::uint64_t norms = groups + (own_norm && settings_.max_norm > 0 ? 1 : 0);
  const std::uint64_t skips = model_->skips() ? sharding::skip_words(model_->registry_) : 0;
  const std::uint64_t overflows = loss_scale_.on() ? 2 * model_->link_.world_size() : 0;
  return (norms * GradientNorm::kWords + skips + overflows) * sizeof(std::int64_t);
}

Status Optimizer::gradient_norm(double* out) const {
  if (settings_.max_norm == 0) {
    return invalid_state("max_norm is 0, so no norm is computed");
  }
  if (norm_ == kNoNorm)
    return invalid_state("no step was made, or one that was loaded without max_norm");
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

Status Optimizer::loss_scale_info(trireme_loss_scale_info* out) const {
  if (!loss_scale_.on()) return invalid_state("the optimizer was created without loss_scale");
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
