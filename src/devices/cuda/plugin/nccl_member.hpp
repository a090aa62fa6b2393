// One rank's communicator of NCCL, on a device.
#pragma once

#include <cstdint>

#include "devices/cuda/plugin/nccl.hpp"
#include "devices/cuda/plugin/open_device.hpp"
#include "platform/status.hpp"

namespace trireme::cuda {

// One thread at a time, but abort() may come while another one is inside NCCL.
class NcclMember {
 public:
  static Status join(OpenDevice& device, const NcclId& id, std::int32_t rank,
                     std::int32_t world_size, NcclMember** out);
  Status look(NcclState* out);
  Status run(const NcclCall* calls, std::uint32_t count, StreamWord stream);
  Status finalize();
  Status destroy();
  Status abort();

 private:
  NcclMember(const NcclLibrary& library, OpenDevice& device) : library_(library), device_(device) {}
  NcclResult queue(const NcclCall& call, StreamHandle* stream);

  const NcclLibrary& library_;
  OpenDevice& device_;
  NcclCommunicator* communicator_ = nullptr;
};

// The functions of the table that are NCCL's.
void add_nccl(NcclFunctions* nccl);

}  // namespace trireme::cuda
