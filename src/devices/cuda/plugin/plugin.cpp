// The plugin's table.
#include "devices/cuda/plugin.hpp"

#include <string>

#include "devices/cuda/plugin/answer.hpp"
#include "devices/cuda/plugin/driver.hpp"
#include "devices/cuda/plugin/find.hpp"
#include "devices/cuda/plugin/kernels.hpp"
#include "devices/cuda/plugin/nccl_member.hpp"
#include "devices/cuda/plugin/open_device.hpp"

namespace trireme::cuda {
namespace {

// Without the prefix of nvidia-smi: "GPU-" is that of a whole device, "MIG-" that of a part.
void write_uuid(const Uuid& uuid, char* to) {
  static const char kHex[] = "0123456789abcdef";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *to++ = '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    *to++ = kHex[byte >> 4];
    *to++ = kHex[byte & 15];
  }
  *to = 0;
}

Status describe(std::int32_t index, trireme_device_info* out) {
  const Driver* driver = nullptr;
  Device device = 0;
  TRIREME_RETURN_IF_ERROR(find_device(index, &driver, &device));
  trireme_device_info info{};
  info.struct_size = out->struct_size;
  info.driver_version = driver->version;
  Uuid uuid{};
  std::size_t bytes = 0;
  int processors = 0;
  const auto attribute = [&](int number, int* value) {
    return driver->check("cuDeviceGetAttribute", driver->DeviceGetAttribute(value, number, device));
  };
  TRIREME_RETURN_IF_ERROR(driver->check(
      "cuDeviceGetName", driver->DeviceGetName(info.name, sizeof info.name - 1, device)));
  TRIREME_RETURN_IF_ERROR(driver->check("cuDeviceGetUuid", driver->DeviceGetUuid(&uuid, device)));
  TRIREME_RETURN_IF_ERROR(
      driver->check("cuDeviceTotalMem", driver->DeviceTotalMem(&bytes, device)));
  TRIREME_RETURN_IF_ERROR(
      driver->check("cuDeviceGetPCIBusId",
                    driver->DeviceGetPCIBusId(info.bus_id, sizeof info.bus_id - 1, device)));
  TRIREME_RETURN_IF_ERROR(attribute(kMultiprocessors, &processors));
  TRIREME_RETURN_IF_ERROR(attribute(kCapabilityMajor, &info.capability_major));
  TRIREME_RETURN_IF_ERROR(attribute(kCapabilityMinor, &info.capability_minor));
  info.multiprocessors = static_cast<std::uint32_t>(processors);
  info.memory_bytes = bytes;
  write_uuid(uuid, info.uuid);
  *out = info;
  return Status::success();
}

// Runs a body under the device's primary context, which is made if nothing uses it yet. The
// caller's context is current again after it, whatever happens.
template <class Body>
Status in_primary_context(const Driver& driver, Device device, Body&& body) {
  ContextHandle* context = nullptr;
  TRIREME_RETURN_IF_ERROR(
      driver.check("cuDevicePrimaryCtxRetain", driver.DevicePrimaryCtxRetain(&context, device)));
  Status status = driver.check("cuCtxPushCurrent", driver.CtxPushCurrent(context));
  if (status.ok()) {
    status = body();
    const Status popped = driver.check("cuCtxPopCurrent", driver.CtxPopCurrent(&context));
    if (status.ok()) status = popped;
  }
  const Status released =
      driver.check("cuDevicePrimaryCtxRelease", driver.DevicePrimaryCtxRelease(device));
  return status.ok() ? released : status;
}

// The driver tells free memory of the current context alone.
Status read_memory(std::int32_t index, std::uint64_t* out_free, std::uint64_t* out_total) {
  const Driver* driver = nullptr;
  Device device = 0;
  TRIREME_RETURN_IF_ERROR(find_device(index, &driver, &device));
  std::size_t free = 0, total = 0;
  TRIREME_RETURN_IF_ERROR(in_primary_context(*driver, device, [&] {
    return driver->check("cuMemGetInfo", driver->MemGetInfo(&free, &total));
  }));
  *out_free = free;
  *out_total = total;
  return Status::success();
}

struct Owner {
  unsigned type = 0, managed = 0;
  int ordinal = -1;
  Address first = 0;
  std::size_t bytes = 0;

  bool known() const { return type == kHostMemory || type == kDeviceMemory; }
};

Result ask_owner(const Driver& driver, const void* address, Owner* out) {
  int attributes[] = {kMemoryType, kIsManaged, kOrdinal, kRangeFirst, kRangeBytes};
  void* data[] = {&out->type, &out->managed, &out->ordinal, &out->first, &out->bytes};
  return driver.PointerGetAttributes(5, attributes, data,
                                     reinterpret_cast<std::uintptr_t>(address));
}

// Some drivers answer so about memory of a device if another device's context is current, or none.
bool lacks_context(Result result) { return result == kInvalidValue || result == kInvalidContext; }

// Asks under each primary context that is in use until one knows the address. None is made, unless
// its last user ends it between two calls here. *answered: one of them answered without an error.
Status ask_primary_contexts(const Driver& driver, const void* address, Owner* out, bool* answered) {
  int count = 0;
  TRIREME_RETURN_IF_ERROR(count_devices(driver, &count));
  for (int i = 0; i < count && !out->known(); ++i) {
    Device device = 0;
    unsigned flags = 0;
    int active = 0;
    TRIREME_RETURN_IF_ERROR(driver.check("cuDeviceGet", driver.DeviceGet(&device, i)));
    TRIREME_RETURN_IF_ERROR(driver.check("cuDevicePrimaryCtxGetState",
                                         driver.DevicePrimaryCtxGetState(device, &flags, &active)));
    if (active == 0) continue;
    Result result = 0;
    Owner owner;
    TRIREME_RETURN_IF_ERROR(in_primary_context(driver, device, [&] {
      result = ask_owner(driver, address, &owner);
      return Status::success();
    }));
    if (lacks_context(result)) continue;
    TRIREME_RETURN_IF_ERROR(driver.check("cuPointerGetAttributes", result));
    *answered = true;
    *out = owner;
  }
  return Status::success();
}

// An error of the driver never becomes the host's memory: a caller would read a device's address.
Status find_owner(const Driver& driver, const void* address, Owner* out) {
  if (!driver.has_devices) return Status::success();  // all memory is the host's
  Owner owner;
  const Result result = ask_owner(driver, address, &owner);
  if (lacks_context(result)) {
    owner = {};
    bool answered = false;
    TRIREME_RETURN_IF_ERROR(ask_primary_contexts(driver, address, &owner, &answered));
    if (!answered) return driver.check("cuPointerGetAttributes", result);
  } else {
    TRIREME_RETURN_IF_ERROR(driver.check("cuPointerGetAttributes", result));
  }
  *out = owner;
  return Status::success();
}

Status whose(const void* address, trireme_memory_info* out) {
  const Driver* driver = nullptr;
  TRIREME_RETURN_IF_ERROR(open(&driver));
  Owner owner;
  TRIREME_RETURN_IF_ERROR(find_owner(*driver, address, &owner));
  trireme_memory_info info{};
  info.struct_size = out->struct_size;
  info.kind = !owner.known()                ? TRIREME_MEMORY_KIND_HOST
              : owner.managed != 0          ? TRIREME_MEMORY_KIND_MANAGED
              : owner.type == kDeviceMemory ? TRIREME_MEMORY_KIND_DEVICE
                                            : TRIREME_MEMORY_KIND_PINNED;
  info.device = {TRIREME_DEVICE_HOST, 0};
  if (owner.known()) {
    if (owner.ordinal >= 0) info.device = {TRIREME_DEVICE_CUDA, owner.ordinal};
    info.first = reinterpret_cast<void*>(owner.first);
    info.bytes = owner.bytes;
  }
  *out = info;
  return Status::success();
}

Plugin make_table() {
  Plugin plugin{};
  plugin.head = {kPluginVersion, TRIREME_VERSION, sizeof(Plugin)};
  plugin.kernels = []() noexcept -> Kernels {
    const KernelImage image = kernel_image();
    return {image.data, image.bytes, image.targets, image.toolkit};
  };
  plugin.find_driver = [](Found* out, char* text) noexcept {
    return guard(text, [&]() -> Status {
      const Driver* driver = nullptr;
      TRIREME_RETURN_IF_ERROR(open(&driver));
      out->version = driver->version;
      write(driver->file.c_str(), out->file, sizeof out->file);
      return Status::success();
    });
  };
  plugin.count = [](std::int32_t* out, char* text) noexcept {
    return guard(text, [&]() -> Status {
      const Driver* driver = nullptr;
      TRIREME_RETURN_IF_ERROR(open(&driver));
      return count_devices(*driver, out);
    });
  };
  plugin.describe = [](std::int32_t index, trireme_device_info* out, char* text) noexcept {
    return guard(text, [&] { return describe(index, out); });
  };
  plugin.memory = [](std::int32_t index, std::uint64_t* out_free, std::uint64_t* out_total,
                     char* text) noexcept {
    return guard(text, [&] { return read_memory(index, out_free, out_total); });
  };
  plugin.whose = [](const void* address, trireme_memory_info* out, char* text) noexcept {
    return guard(text, [&] { return whose(address, out); });
  };
  add_work(&plugin);
  add_nccl(&plugin.nccl);
  return plugin;
}

}  // namespace
}  // namespace trireme::cuda

extern "C" __attribute__((visibility("default"))) const trireme::PluginHead* trireme_cuda_plugin() {
  static const trireme::cuda::Plugin plugin = trireme::cuda::make_table();
  return &plugin.head;
}
