// Forward of a stage's layers, the first time and again.
#include "parallel/executor/pipeline_trainer.hpp"

namespace trireme::parallel {

Status PipelineTrainer::forward_layers(const Cell& here, std::uint64_t first, std::uint64_t end,
                                       std::int32_t phase) {
  for (std::uint64_t place = first; place < end; ++place) {
    const std::uint64_t layer = here.shape->first_layer + place;
    TRIREME_RETURN_IF_ERROR(gather(layer));
    TRIREME_RETURN_IF_ERROR(
        shard_.report_disk(places_.before_call(layer, phase, stopped_, &failure_)));
    if (computes(here)) {
      fill_call(here, place, true, false, nullptr);
      // Also again: a callback writes it wherever it computes the output.
      const bool last = here.shape->ends && place + 1 == here.shape->layer_count;
      if (last) calls_[layer].loss = &losses_[here.micro_batch];
      call(layers_[layer].described.forward, phase, layer, here.micro_batch);
      if (computes(here)) failure_ = extents_.take(calls_[layer]);
      if (computes(here) && phase != TRIREME_PHASE_RECOMPUTE) {
        TRIREME_RETURN_IF_ERROR(
            places_.skips().keep(calls_[layer], extents_.of_layer(calls_[layer])));
      }
    }
    places_.after_call(stopped_, failure_);
    TRIREME_RETURN_IF_ERROR(release(layer));
  }
  return Status::success();
}

// Ranks without this micro-batch gather the parameters, too.
Status PipelineTrainer::recompute(const pipeline::Action& action) {
  const Cell here = places_.cell(action.stage, action.micro_batch);
  TRIREME_RETURN_IF_ERROR(places_.claim_again(here));
  return forward_layers(here, 0, here.layout->recomputed, TRIREME_PHASE_RECOMPUTE);
}

}  // namespace trireme::parallel
