#include "devices/cuda/nccl.hpp"

#include <utility>

#include "devices/cuda/devices.hpp"
#include "devices/cuda/session.hpp"

namespace trireme::cuda {

Status load_nccl(Found* out) {
  const Plugin* plugin = nullptr;
  TRIREME_RETURN_IF_ERROR(load_plugin(&plugin));
  char text[kTextBytes] = "";
  const std::int32_t status = plugin->nccl.load(out, text);
  return status == TRIREME_OK ? Status::success() : Status::failure(status, text);
}

bool has_kernels() {
  const Plugin* plugin = nullptr;
  return load_plugin(&plugin).ok() && plugin->kernels().image != nullptr;
}

Status identify(const devices::Device& device, std::string* out_uuid, std::string* out_bus_id) {
  trireme_device_info info = TRIREME_DEVICE_INFO_INIT;
  TRIREME_RETURN_IF_ERROR(describe(device.place().index, &info));
  *out_uuid = info.uuid;
  *out_bus_id = info.bus_id;
  return Status::success();
}

NcclRank::NcclRank(const devices::Device& device) : session_(session_of(device)) {}

Status NcclRank::make_id(NcclId* out) const { return session_->call(&NcclFunctions::make_id, out); }

Status NcclRank::join(const NcclId& id, std::int32_t rank, std::int32_t world_size) {
  const NcclId* const told = &id;
  return session_->call(&NcclFunctions::join, session_->device(), told, rank, world_size, &member_);
}

Status NcclRank::look(bool* out_ready) const {
  NcclState state = NcclState::busy;
  TRIREME_RETURN_IF_ERROR(session_->call(&NcclFunctions::look, member_, &state));
  *out_ready = state == NcclState::ready;
  return Status::success();
}

Status NcclRank::run(const NcclCall* calls, std::uint32_t count, devices::Stream& stream) const {
  return session_->call(&NcclFunctions::run, member_, calls, count, stream_word_of(stream));
}

Status NcclRank::finalize() const { return session_->call(&NcclFunctions::finalize, member_); }

Status NcclRank::destroy() {
  return session_->call(&NcclFunctions::destroy, std::exchange(member_, nullptr));
}

Status NcclRank::abort() {
  return session_->call(&NcclFunctions::abort, std::exchange(member_, nullptr));
}

}  // namespace trireme::cuda
