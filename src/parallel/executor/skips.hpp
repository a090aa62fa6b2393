// Skips: outputs that layers read beside their input. Each goes from the layer that makes it past
// others, on one rank or between two, and its gradients come back the same way.
#pragma once

#include <trireme/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "exchange/storage.hpp"
#include "parallel/pipeline/schedule.hpp"
#include "trainer/layer_table.hpp"

namespace trireme::parallel {

// An output that later layers read. Layers have their numbers in the whole model.
struct Skip {
  struct Reader {
    std::uint64_t layer = 0;
    std::uint32_t stage = 0, rank = 0;
    std::uint32_t lane = 0;  // of its gradient
  };
  // A rank with readers but without the layer. The value comes before F of its first reading stage.
  struct Taker {
    std::uint32_t rank = 0, stage = 0;
    std::uint64_t layer = 0;  // the first one there that reads
    std::uint32_t lane = 0;
  };

  std::uint64_t layer = 0;
  std::uint32_t stage = 0, rank = 0;
  std::uint64_t bytes = 0;
  trireme_dtype dtype = 0;
  std::vector<Reader> readers{};  // the last layer first: in the order of backward
  std::vector<Taker> takers{};
};

// Collective: each rank tells its layers. `cuts`: of all stages.
Status find_skips(const strategies::Link& link, const strategies::LayerTable& layers,
                  const pipeline::Schedule& schedule, const std::vector<std::uint64_t>& cuts,
                  std::vector<Skip>* out);

}  // namespace trireme::parallel
