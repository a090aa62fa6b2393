// Optimizer: a training whose state was written range by range goes on. Copies of what the owners of
// the ranges have written are the same then on all ranks, and so is what the optimizer counts.
#include <algorithm>
#include <utility>

#include "kernels/hash.hpp"
#include "exchange/agreement.hpp"
#include "model/replicas.hpp"
#include "optimizer/optimizer.hpp"

namespace trireme::strategies {

using optimizers::Piece;
using sharding::Range;

Counters Optimizer::counted() const {
  Counters counters = {steps_, settings_.learning_rate, loss_scale_.state(), steps_of_,
                       settings_.group_rate_factors};
  counters.rate_factors.resize(settings_.groups, 1);
  return counters;
}

// All ranks have the same pieces where all of them keep all state, and visit them alike.
Status Optimizer::read_copies(OptimizerCopies* out) const {
  out->counters = describe(counted(), model_->registry_);
  if (!model_->layout_->spread.whole_state()) return Status::success();
  out->hashes.assign(model_->registry_.parameters().size(), 0);
  const auto add = [&](const Piece& piece, const OwnedRange& range) {
    std::uint64_t& hash = out->hashes[piece.parameter];
    hash = kernels::hash(range.data, range.count * dtype_size(gradient_dtype(piece.dtype)), hash + 1);
  };
  if (offload_ != nullptr) {
    return offload_->sweep(Offload::Access::read, [&](Offload::Visited* visited) {
      const Piece& piece = visited->piece;
      for (std::uint32_t vector = 0; vector < settings_.states; ++vector) {
        OwnedRange range;
        range.data = piece.states[vector];
        range.count = piece.count;
        add(piece, range);
      }
      return true;
    });
  }
  for (std::uint64_t number = 0; number < pieces_.size(); ++number) {
    for (std::uint32_t vector = 0; vector < all_vectors(); ++vector) {
      if (!keeps(number, vector)) continue;
      add(pieces_[number], stretch_of(number, vector, {0, pieces_[number].count}));
    }
  }
  return Status::success();
}

Status Optimizer::counters(trireme_optimizer_counters* out) const {
  return write_counters(counted(), model_->registry_, loss_scale_.on(), out);
}

Status Optimizer::restore(const trireme_optimizer_counters* given, Status read) {
  Model& model = *model_;
  TRIREME_RETURN_IF_ERROR(model.check_sealed());
  if (model.reducer_->step_under_way()) return invalid_state("a step is under way");
  TRIREME_RETURN_IF_ERROR(model.check_released("a training is restored"));
  if (model.pool_ != nullptr) TRIREME_RETURN_IF_ERROR(model.keep(model.pool_->drop_unused()));
  Counters counters;
  if (read.ok()) {
    read = read_counters(*given, counted(), model.registry_, settings_, &counters);
  }
  const Status agreed = agree(model.link_, describe(counters, model.registry_), read);
  if (!agreed.ok()) {
    return model.link_.communicator->failure().ok() ? Status(agreed) : model.keep(Status(agreed));
  }
  const std::uint64_t given_bytes = model.link_.given_bytes;  // those of steps are told
  Status status = give_written();
  model.link_.given_bytes = given_bytes;
  // Some copies are new by now, others not.
  if (!status.ok()) {
    model.give_up(status);
    return status;
  }
  steps_ = counters.steps;
  steps_of_ = std::move(counters.steps_of);
  settings_.learning_rate = counters.learning_rate;
  if (!counters.rate_factors.empty()) {
    settings_.group_rate_factors = std::move(counters.rate_factors);
  }
  if (loss_scale_.on()) loss_scale_.restore(counters.loss_scale);
  overflow_ = {};
  norm_ = kNoNorm;
  has_group_norms_ = false;
  return model.layout_->spread.shared ? model.keep(model.link_.meet()) : Status::success();
}

Status Optimizer::give_written() {
  TRIREME_RETURN_IF_ERROR(give_parameters(Given::written));
  return model_->layout_->spread.whole_state() ? give_state() : Status::success();
}

// Vectors of all pieces, part by part, by way of memory that peers can read wherever the state lies.
Status Optimizer::give_state() {
  const Model& model = *model_;
  const sharding::Layout& layout = *model.layout_;
  constexpr std::uint64_t kPart = std::uint64_t{1} << 18;  // elements
  std::uint64_t largest = 0;
  for (const Piece& piece : pieces_) largest = std::max(largest, piece.count);
  std::shared_ptr<Memory> memory;
  TRIREME_RETURN_IF_ERROR(
      agree(model.link_, {},
            model.link_.communicator->allocate(std::min(largest, kPart) * sizeof(double), &memory)));
  char* const data = static_cast<char*>(memory->data());
  for (std::uint64_t number = 0; number < pieces_.size(); ++number) {
    for (std::uint32_t vector = 0; vector < all_vectors(); ++vector) {
      if (!keeps(number, vector)) continue;
      const Piece& piece = pieces_[number];
      const trireme_dtype dtype = gradient_dtype(piece.dtype);
      const sharding::Parameter& parameter = model.registry_.parameters()[piece.parameter];
      const sharding::Group& group = layout.group_of_parameter(parameter);
      const std::uint64_t begin = layout.first_in_group(parameter) + piece.first;
      for (std::uint64_t first = 0; first < piece.count; first += kPart) {
        const Range part = {begin + first, std::min(kPart, piece.count - first)};
        Operation operation;
        operation.channel = model.link_.gathers;
        operation.kind = OperationKind::all_gather_v;
        operation.dtype = dtype;
        operation.send = operation.receive = data;
        operation.count = part.count;
        operation.owner = memory;
        for (std::uint32_t rank = 0; rank < layout.spread.world_size; ++rank) {
          operation.counts.push_back(intersect(layout.owned_by(group, rank), part).count);
        }
        const Range own = intersect(group.owned, part);
        if (own.count > 0) {
          char* const mine = data + (own.first - part.first) * dtype_size(dtype);
          operation.send = mine;
          TRIREME_RETURN_IF_ERROR(model.tell_disk(copy_range(
              stretch_of(number, vector, {own.first - begin, own.count}), mine, nullptr)));
        }
        TRIREME_RETURN_IF_ERROR(model.link_.run(std::move(operation)));
        TRIREME_RETURN_IF_ERROR(model.tell_disk(
            copy_range(stretch_of(number, vector, {first, part.count}), nullptr, data)));
      }
    }
  }
  count_offload();
  return Status::success();
}

}  // namespace trireme::strategies
