#include "trainer/local_reads.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"
#include "sharding/activation_plan.hpp"

namespace trireme::strategies {

std::optional<LayerFailure> sum_gradients(const trireme_layer_call& call, trireme_dtype dtype,
                                          const GapSearch& gaps, std::vector<const void*>* sources,
                                          void* sum) {
  const std::uint64_t used = *call.output_used;
  auto gap =
      gaps.look_before_sum(call.layer, {static_cast<const char*>(call.output_gradient), used});
  if (gap) {
    gap->leaf = call.leaf;
    return gap;
  }
  sources->push_back(call.output_gradient);
  // Bytes behind the last whole element are no number.
  kernels::reduce(dtype, TRIREME_REDUCTION_SUM, sum, sources->data(),
                  static_cast<std::uint32_t>(sources->size()), used / dtype_size(dtype), 1, 1);
  return std::nullopt;
}

Status LocalReads::place() {
  outputs_.resize(layers_.size());
  reads_.resize(layers_.size());
  std::size_t most = 0;
  const auto take = [this](std::uint64_t layer) {
    const std::uint64_t place = bytes_;
    bytes_ += activation_piece(layers_[layer].described.output_bytes);
    return place;
  };
  for (std::uint64_t layer = layers_.size(); layer-- > 0;) {
    for (const std::uint64_t read : layers_[layer].reads) {
      Output& output = outputs_[read];
      if (!output.is_read) {
        TRIREME_RETURN_IF_ERROR(check_read_bytes(read, layers_[read].described.output_bytes,
                                                 layers_.output_dtype(read)));
        output.is_read = true;
        output.value = take(read);
      }
      reads_[layer].push_back({read, output.gradients.size()});
      output.gradients.push_back(take(read));
    }
    most = std::max(most, reads_[layer].size());
  }
  told_.allocate(most);
  return Status::success();
}

void LocalReads::keep(const trireme_layer_call& call, const Extent& extent) {
  Output& output = outputs_[call.layer];
  if (!output.is_read) return;
  output.extent = extent;
  if (extent.used > 0) std::memcpy(memory_ + output.value, call.output, extent.used);
}

void LocalReads::tell(trireme_layer_call* call, bool for_input) {
  told_.begin(call);
  for (const Read& read : reads_[call->layer]) {
    const Output& output = outputs_[read.layer];
    told_.add({memory_ + output.value, layers_[read.layer].described.output_bytes, &output.extent,
               for_input ? memory_ + output.gradients[read.gradient] : nullptr});
  }
}

std::optional<LayerFailure> LocalReads::add_gradients(trireme_layer_call* call,
                                                      const GapSearch& gaps) const {
  const Output& output = outputs_[call->layer];
  if (!output.is_read || call->output_gradient == nullptr) return std::nullopt;
  std::vector<const void*> sources;
  for (const std::uint64_t place : output.gradients) sources.push_back(memory_ + place);
  void* const sum = memory_ + output.gradients[0];
  auto gap = sum_gradients(*call, layers_.output_dtype(call->layer), gaps, &sources, sum);
  if (!gap) call->output_gradient = sum;
  return gap;
}

}  // namespace trireme::strategies
