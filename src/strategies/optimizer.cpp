#include "strategies/optimizer.hpp"

#include <bit>
#include <string>
#include <utility>

#include "optimizers/clipping.hpp"
#include "platform/names.hpp"
#include "strategies/agreement.hpp"

namespace trireme::strategies {

using optimizers::GradientNorm;
using optimizers::Piece;
using sharding::Bucket;
using sharding::Parameter;
using sharding::Segment;
using sharding::UnitPlace;

Status Optimizer::create(const std::shared_ptr<Model>& model,
                         const trireme_optimizer_options& options,
                         std::shared_ptr<Optimizer>* out) {
  TRIREME_RETURN_IF_ERROR(model->check_sealed());
  optimizers::Settings settings;
  TRIREME_RETURN_IF_ERROR(optimizers::read_settings(options, &settings));
  if (model->has_optimizer_) return invalid_state("the model has an optimizer");
  if (model->reducer_->step_under_way()) return invalid_state("a step is under way");

  std::shared_ptr<Optimizer> optimizer(new Optimizer(model, settings));
  model->has_optimizer_ = true;  // taken back by the destructor
  const std::uint64_t bytes = plan_state_bytes(*model->layout_, settings.states);
  const Status allocated = optimizer->state_.allocate(
      *model->link_.communicator, model->storage_->allocated, MemoryKind::optimizer_state, bytes);
  std::vector<sharding::Fact> facts;
  for (auto& [name, value] : optimizers::describe(settings)) {
    facts.push_back({std::move(name), std::move(value)});
  }
  const Status agreed = agree(model->link_, facts, allocated);
  if (!agreed.ok()) return agreed;
  model->planned_state_ = bytes;
  optimizer->place_pieces();
  *out = std::move(optimizer);
  return Status::success();
}

Optimizer::~Optimizer() {
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
      const UnitPlace& place = layout.units[parameter.unit];
      const std::uint64_t element = parameter.first + segment.first;
      const std::uint64_t in_arena =
          layout.spread.whole_parameters()
              ? place.whole_offset + element * size
              : place.shard_offset + (element - place.shard.first) * size;
      const std::uint64_t position = segment.position - begin;
      Piece piece;
      piece.dtype = bucket.dtype;
      piece.parameter = segment.parameter;
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

Status Optimizer::step() {
  Model& model = *model_;
  TRIREME_RETURN_IF_ERROR(model.check_sealed());
  TRIREME_RETURN_IF_ERROR(model.reducer_->check_complete());
  TRIREME_RETURN_IF_ERROR(model.check_released("the step"));
  Status status = run_step();
  // Whatever broke a step has left parameters that are neither the old nor the new ones.
  if (!status.ok()) model.failed_ = status;
  return status;
}

Status Optimizer::run_step() {
  Model& model = *model_;
  // A gather ends on this rank when no peer reads its shard any more, and a later one begins to
  // read it only when this rank has come to it. So with no gather under way here, the update below
  // is alone with the shard.
  if (model.pool_ != nullptr) TRIREME_RETURN_IF_ERROR(model.pool_->drop_prefetched());
  TRIREME_RETURN_IF_ERROR(model.reducer_->finish());
  double norm = 0;
  TRIREME_RETURN_IF_ERROR(begin_update(&norm));
  TRIREME_RETURN_IF_ERROR(update(optimizers::clip_factor(norm, settings_.max_norm)));
  TRIREME_RETURN_IF_ERROR(give_parameters());
  model.reducer_->clear();
  model.last_step_bytes_ = std::exchange(model.link_.given_bytes, 0);
  norm_ = norm;
  ++steps_;
  return Status::success();
}

// All ranks compare the learning rate before anything changes, and add up the norm.
Status Optimizer::begin_update(double* out_norm) {
  Model& model = *model_;
  auto* const words = reinterpret_cast<std::int64_t*>(model.storage_->working.data());
  const bool clips = settings_.max_norm > 0;
  if (clips) {
    GradientNorm norm;
    // Every rank counts its own block, so data_parallel counts nothing twice.
    for (const Bucket& bucket : model.layout_->buckets) {
      norm.add(bucket.dtype, model.reducer_->reduced_block(bucket),
               bucket.counts[model.link_.rank()]);
    }
    norm.write(words);
  }
  Operation operation;
  operation.channel = model.link_.reductions;
  operation.kind = OperationKind::all_reduce;
  operation.dtype = TRIREME_DTYPE_I64;
  operation.reduction = TRIREME_SUM;
  operation.send = words;
  operation.receive = words;
  operation.count = clips ? GradientNorm::kWords : 0;
  operation.agreement = std::bit_cast<std::uint64_t>(settings_.learning_rate);
  operation.agreement_name = "learning rate";
  operation.owner = model.storage_->hold();
  TRIREME_RETURN_IF_ERROR(
      model.link_.communicator->run(std::move(operation), model.link_.deadline()));
  if (clips) *out_norm = GradientNorm::norm(words);
  return Status::success();
}

Status Optimizer::update(double gradient_scale) {
  std::int32_t answer = 0;
  std::uint64_t parameter = 0;
  for (const Piece& piece : pieces_) {
    answer = optimizers::update_piece(settings_, piece, steps_ + 1, gradient_scale);
    parameter = piece.parameter;
    if (answer != 0) break;
  }
  return settings_.update == nullptr ? Status::success() : compare_answers(answer, parameter);
}

// Whether the caller's rule did well on all ranks.
Status Optimizer::compare_answers(std::int32_t answer, std::uint64_t parameter) {
  Model& model = *model_;
  auto* const answers = reinterpret_cast<std::int64_t*>(model.storage_->working.data() + 1024);
  std::int64_t* const own = answers + 2 * std::size_t{model.link_.rank()};
  own[0] = answer;
  own[1] = static_cast<std::int64_t>(parameter);
  Operation operation;
  operation.channel = model.link_.reductions;
  operation.kind = OperationKind::all_gather;
  operation.dtype = TRIREME_DTYPE_I64;
  operation.send = own;
  operation.receive = answers;
  operation.count = 2;
  operation.owner = model.storage_->hold();
  TRIREME_RETURN_IF_ERROR(
      model.link_.communicator->run(std::move(operation), model.link_.deadline()));
  for (std::uint32_t rank = 0; rank < model.link_.world_size(); ++rank) {
    const std::int64_t other = answers[2 * std::size_t{rank}];
    if (other == 0) continue;
    const auto at = static_cast<std::uint64_t>(answers[2 * std::size_t{rank} + 1]);
    FailureDetails details;
    details.communicator = model.link_.communicator->name();
    details.blamed = {static_cast<std::int32_t>(rank)};
    return Status::failure(TRIREME_ERROR_CALLBACK,
                           "the update rule of rank " + std::to_string(rank) + " answered " +
                               std::to_string(other) + " for parameter " + std::to_string(at))
        .with_details(std::move(details));
  }
  return Status::success();
}

// zero1 and zero2: everybody gets the elements that their owners updated.
Status Optimizer::give_parameters() {
  Model& model = *model_;
  const sharding::Layout& layout = *model.layout_;
  if (layout.spread.whole_state() || !layout.spread.whole_parameters()) return Status::success();
  for (std::size_t unit = 0; unit < layout.units.size(); ++unit) {
    const UnitPlace& place = layout.units[unit];
    if (place.bucket == sharding::kNone) continue;
    const std::uint64_t size = dtype_size(model.registry_.units()[unit].dtype);
    char* const data = model.storage_->parameters.data() + place.whole_offset;
    Operation operation;
    operation.channel = model.link_.gathers;
    operation.kind = OperationKind::all_gather_v;
    operation.dtype = model.registry_.units()[unit].dtype;
    operation.send = data + place.shard.first * size;
    operation.receive = data;
    operation.count = model.registry_.units()[unit].elements;
    operation.counts = place.counts;
    operation.agreement = unit;
    operation.agreement_name = "unit";
    operation.owner = model.storage_->hold();
    model.link_.given_bytes += sharding::gather_bytes(place.counts, model.link_.rank(), size);
    TRIREME_RETURN_IF_ERROR(
        model.link_.communicator->run(std::move(operation), model.link_.deadline()));
  }
  return Status::success();
}

Status Optimizer::set_learning_rate(double learning_rate) {
  TRIREME_RETURN_IF_ERROR(optimizers::check_learning_rate(learning_rate));
  settings_.learning_rate = learning_rate;
  return Status::success();
}

Status Optimizer::gradient_norm(double* out) const {
  if (settings_.max_norm == 0) {
    return invalid_state("max_norm is 0, so no norm is computed");
  }
  if (steps_ == 0) return invalid_state("no step was made");
  *out = norm_;
  return Status::success();
}

}  // namespace trireme::strategies
