#include "optimizer/rules/device_update.hpp"

#include <algorithm>

#include "optimizer/rules/clipping.hpp"
#include "platform/names.hpp"

namespace trireme::optimizers {
namespace {

using strategies::ModelDevice;

// Calls act(part, its gradients on the host) for each chunk, whose gradients come to the device.
template <class Act>
Status for_each_chunk(ModelDevice& device, const Piece& piece, const Act& act) {
  const std::uint64_t size = dtype_size(gradient_dtype(piece.dtype));
  const std::uint64_t chunk = device.stage_bytes() / size;
  for (std::uint64_t first = 0; first < piece.count; first += chunk) {
    Piece part = part_of(piece, first, std::min(chunk, piece.count - first));
    void* const on_host = part.gradients;
    TRIREME_RETURN_IF_ERROR(device.stage(on_host, part.count * size, &part.gradients));
    TRIREME_RETURN_IF_ERROR(act(part, on_host));
  }
  return Status::success();
}

constexpr std::uint64_t kSumBytes = GradientNorm::kWords * sizeof(std::int64_t);

}  // namespace

Status update_on_device(ModelDevice& device, const Settings& settings, const Piece& piece,
                        std::uint64_t step, double gradient_scale, double trust) {
  return for_each_chunk(device, piece, [&](const Piece& part, void*) {
    return device.told(
        update_piece_on(device.stream(), settings, part, step, gradient_scale, trust));
  });
}

Status adopt_on_device(ModelDevice& device, const Piece& piece) {
  if (piece.rounded == nullptr) return Status::success();
  return device.told(device.stream().cast(devices::Cast::adopt, piece.rounded_dtype,
                                          piece.parameters, piece.rounded, piece.count));
}

Status find_direction_on_device(ModelDevice& device, const Settings& settings, const Piece& piece,
                                std::uint64_t step, double gradient_scale) {
  const std::uint64_t size = dtype_size(gradient_dtype(piece.dtype));
  kernels::UpdateRule rule = settings.rule;
  rule.weight_decay = weight_decay_of(settings, piece);
  return for_each_chunk(device, piece, [&](const Piece& part, void* on_host) {
    TRIREME_RETURN_IF_ERROR(device.told(
        device.stream().lamb_direction({rule, part.dtype, part.parameters, part.gradients,
                                        part.states, part.count, step, gradient_scale})));
    return device.read(on_host, part.gradients, part.count * size);
  });
}

Status DeviceSums::add(trireme_dtype dtype, const void* values, std::uint64_t count,
                       std::int64_t* to) {
  const std::uint64_t room = device_.stage_bytes() / kSumBytes;
  const std::uint64_t size = dtype_size(dtype);
  // A digit has room for so many elements.
  constexpr std::uint64_t kMost = devices::kMostMeasured;
  for (std::uint64_t first = 0; first < count; first += kMost) {
    if (to_.size() == room) TRIREME_RETURN_IF_ERROR(finish());
    char* const sum = device_.scratch() + to_.size() * kSumBytes;
    TRIREME_RETURN_IF_ERROR(device_.told(device_.stream().fill(sum, 0, kSumBytes)));
    TRIREME_RETURN_IF_ERROR(device_.told(device_.stream().measure(
        dtype, static_cast<const char*>(values) + first * size, std::min(kMost, count - first),
        reinterpret_cast<std::int64_t*>(sum))));
    to_.push_back(to);
  }
  return Status::success();
}

Status DeviceSums::finish() {
  std::vector<std::int64_t> words(to_.size() * GradientNorm::kWords);
  TRIREME_RETURN_IF_ERROR(device_.read(words.data(), device_.scratch(), to_.size() * kSumBytes));
  const std::int64_t* next = words.data();
  for (std::int64_t* const to : to_) {
    kernels::ExactSum sum = GradientNorm::read(next);
    std::int64_t normal[GradientNorm::kWords];
    GradientNorm::write(&sum, normal);
    for (std::uint64_t i = 0; i < GradientNorm::kWords; ++i) to[i] += normal[i];
    next += GradientNorm::kWords;
  }
  to_.clear();
  return Status::success();
}

}  // namespace trireme::optimizers
