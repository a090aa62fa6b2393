// The CUDA devices of this process, by the plugin.
#pragma once

#include <trireme/device.h>

#include <cstdint>
#include <string>

#include "platform/status.hpp"

namespace trireme::cuda {

struct Plugin;

// UNSUPPORTED has every try. The table stays for the life of the process.
Status load_plugin(const Plugin** out);

// UNSUPPORTED without plugin or driver, or with too old a driver; the message has every try. DEVICE
// if the driver fails. INVALID_STATE in a process that was forked after its parent had opened the
// driver.
Status count(std::int32_t* out);

// These two also answer INVALID_ARGUMENT for an index that no device has.
Status describe(std::int32_t index, trireme_device_info* out);
Status memory(std::int32_t index, std::uint64_t* out_free, std::uint64_t* out_total);

// Memory of the host also where this process has no driver, and so no other memory.
Status whose(const void* address, trireme_memory_info* out);

// A line each for plugin, driver, devices and NCCL, "what: text", with every try.
std::string report();

}  // namespace trireme::cuda
