#include "trainer/local_reads.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"
#include "sharding/activation_plan.hpp"

namespace trireme::strategies {

namespace {

// `infinity`: its bits without the sign.
template <typename Bits>
void keep_nans(void* sum, const void* source, std::uint64_t count, Bits infinity) {
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  for (std::uint64_t i = 0; i < count; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, static_cast<const char*>(source) + i * sizeof bits, sizeof bits);
    if ((bits & kMagnitude) <= infinity) continue;
    std::memcpy(static_cast<char*>(sum) + i * sizeof bits, &bits, sizeof bits);
  }
}

// A sum makes all NaNs alike. This puts those of the next layer back, which tell a gap.
void keep_gaps(trireme_dtype dtype, void* sum, const void* source, std::uint64_t count) {
  switch (dtype) {
    case TRIREME_DTYPE_F16: return keep_nans<std::uint16_t>(sum, source, count, 0x7c00);
    case TRIREME_DTYPE_BF16: return keep_nans<std::uint16_t>(sum, source, count, 0x7f80);
    case TRIREME_DTYPE_F32: return keep_nans<std::uint32_t>(sum, source, count, 0x7f800000);
    default: return keep_nans<std::uint64_t>(sum, source, count, 0x7ff0000000000000);
  }
}

}  // namespace

void sum_gradients(const trireme_layer_call& call, trireme_dtype dtype, const GapSearch& gaps,
                   std::vector<const void*>* sources, void* sum) {
  sources->push_back(call.output_gradient);
  // Bytes behind the last whole element are no number.
  const std::uint64_t count = *call.output_used / dtype_size(dtype);
  kernels::reduce(dtype, TRIREME_REDUCTION_SUM, sum, sources->data(),
                  static_cast<std::uint32_t>(sources->size()), count, 1, 1);
  if (gaps.has_gap()) keep_gaps(dtype, sum, call.output_gradient, count);
}

Status add_read_places(std::uint64_t layer, std::uint64_t bytes, std::uint64_t places,
                       std::uint64_t* sum) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
  // A header in front, and the gap to the next place.
  constexpr std::uint64_t kMore = 4096;
  if (places > 0 && (bytes > kMost || bytes + kMore > (kMost - *sum) / places)) {
    return invalid_argument(
        "layer " + std::to_string(layer) + ", which others read, has output_bytes " +
        std::to_string(bytes) + " in " + std::to_string(places) +
        " places; all outputs that are read may have " + std::to_string(kMost) + " bytes");
  }
  *sum += (bytes + kMore) * places;
  return Status::success();
}

Status LocalReads::place() {
  outputs_.resize(layers_.size());
  reads_.resize(layers_.size());
  std::size_t most = 0;
  std::uint64_t sum = 0;
  for (std::uint64_t layer = 0; layer < layers_.size(); ++layer) {
    for (const std::uint64_t read : layers_[layer].reads) {
      // One for the gradient, and at most one for the value.
      TRIREME_RETURN_IF_ERROR(add_read_places(read, layers_[read].described.output_bytes, 2, &sum));
    }
  }
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

void LocalReads::add_gradients(trireme_layer_call* call, const GapSearch& gaps) const {
  const Output& output = outputs_[call->layer];
  if (!output.is_read || call->output_gradient == nullptr) return;
  std::vector<const void*> sources;
  for (const std::uint64_t place : output.gradients) sources.push_back(memory_ + place);
  void* const sum = memory_ + output.gradients[0];
  sum_gradients(*call, layers_.output_dtype(call->layer), gaps, &sources, sum);
  call->output_gradient = sum;
}

}  // namespace trireme::strategies
