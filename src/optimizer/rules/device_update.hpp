// Parts of a step over pieces whose parameters and states lie on a device. Gradients come there
// from the host, chunk by chunk. Work is queued in the stream of the device, unless a comment says
// more.
#pragma once

#include <cstdint>
#include <vector>

#include "exchange/model_device.hpp"
#include "optimizer/rules/settings.hpp"
#include "optimizer/rules/shard_update.hpp"
#include "platform/status.hpp"

namespace trireme::optimizers {

// As update_piece(), without a rule of the caller.
Status update_on_device(strategies::ModelDevice& device, const Settings& settings,
                        const Piece& piece, std::uint64_t step, double gradient_scale,
                        double trust = 1);

// As adopt_written().
Status adopt_on_device(strategies::ModelDevice& device, const Piece& piece);

// LAMB: as find_direction(). The directions are on the host when it returns.
Status find_direction_on_device(strategies::ModelDevice& device, const Settings& settings,
                                const Piece& piece, std::uint64_t step, double gradient_scale);

// Exact sums of squares of vectors on a device. They lie in its scratch memory, which nothing else
// may use meanwhile.
class DeviceSums {
 public:
  explicit DeviceSums(strategies::ModelDevice& device) : device_(device) {}
  // Adds the sum to GradientNorm::kWords words, at finish() at the latest.
  Status add(trireme_dtype dtype, const void* values, std::uint64_t count, std::int64_t* to);
  Status finish();

 private:
  strategies::ModelDevice& device_;
  std::vector<std::int64_t*> to_;  // of the sums in scratch memory
};

}  // namespace trireme::optimizers
