// NCCL by the plugin: the library that was found, and one rank's communicator of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "devices/cuda/plugin.hpp"
#include "devices/device.hpp"
#include "platform/status.hpp"

namespace trireme::cuda {

class Session;

// Loads NCCL, once for the process. UNSUPPORTED has every try.
Status load_nccl(Found* out);
std::string text_of_nccl(std::int32_t version);  // "2.28.9"
// Whether the plugin holds kernels, which sum in rank order.
bool has_kernels();
// The device's own number of the driver, which no other device has: "GPU-..." without the prefix.
Status identify(const devices::Device& device, std::string* out_uuid, std::string* out_bus_id);

class NcclRank {
 public:
  // `device` is CUDA's, and lives as long.
  explicit NcclRank(const devices::Device& device);
  NcclRank(const NcclRank&) = delete;
  // Frees nothing of NCCL: see destroy() and abort().
  ~NcclRank() = default;

  Status make_id(NcclId* out) const;
  // These are the functions of the same names in Plugin.
  Status join(const NcclId& id, std::int32_t rank, std::int32_t world_size);
  Status look(bool* out_ready) const;
  Status run(const NcclCall* calls, std::uint32_t count, devices::Stream& stream) const;
  Status finalize() const;
  // At most one of the two, once.
  Status destroy();
  Status abort();
  bool is_there() const { return member_ != nullptr; }

 private:
  const std::shared_ptr<const Session> session_;
  NcclMember* member_ = nullptr;
};

}  // namespace trireme::cuda
