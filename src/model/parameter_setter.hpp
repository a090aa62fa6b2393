// ParameterSetter: gives the values of parameters that one rank sets to all.
#pragma once

#include <trireme/types.h>

#include <cstdint>
#include <memory>

#include "exchange/storage.hpp"
#include "model/device_shard.hpp"
#include "model/peers.hpp"
#include "model/units/unit_pool.hpp"
#include "offload/parameter_file.hpp"
#include "platform/status.hpp"
#include "sharding/layout.hpp"

namespace trireme::strategies {

class ParameterSetter {
 public:
  // `pool`, `file` and `device` are null where the model has none. The values are memory of the
  // device.
  ParameterSetter(const Peers& peers, const sharding::Layout& layout,
                  const std::shared_ptr<Storage>& storage, UnitPool* pool, ParameterFile* file,
                  DeviceShard* device)
      : peers_(peers),
        layout_(layout),
        storage_(storage),
        pool_(pool),
        file_(file),
        device_(device) {}

  // Collective: the root's values, in the order added. `common` is the dtype of all units, or 0.
  Status set(const void* values, std::int32_t root, trireme_dtype common) const;

 private:
  Status give_out(const void* values, std::int32_t root, trireme_dtype common) const;
  Status set_shared(const void* values, std::int32_t root) const;
  Status broadcast(void* memory, std::uint64_t count, trireme_dtype dtype, std::int32_t root,
                   std::shared_ptr<const void> owner) const;
  std::uint64_t all_elements() const;

  const Peers& peers_;
  const sharding::Layout& layout_;
  const std::shared_ptr<Storage>& storage_;
  UnitPool* const pool_;
  ParameterFile* const file_;
  DeviceShard* const device_;
};

}  // namespace trireme::strategies
