#include "devices/cuda/devices.hpp"

#include <atomic>
#include <cstdlib>
#include <vector>

#include "devices/cuda/nccl.hpp"
#include "devices/cuda/plugin.hpp"
#include "platform/dynamic_library.hpp"

namespace trireme::cuda {
namespace {

constexpr char kFile[] = "libtrireme_cuda.so";

// A path that the user gives is the only one: another plugin would hide that it does not load.
std::vector<std::string> plugin_places() {
  const char* const named = std::getenv("TRIREME_CUDA_PLUGIN");
  if (named != nullptr && *named != 0) return {named};
  return {plugin_path(kFile), kFile};
}

// Calls a function of the plugin, and makes a status of its answer.
template <class... Parameters, class... Arguments>
Status call(std::int32_t (*Plugin::*function)(Parameters...) noexcept, Arguments... arguments) {
  const Plugin* plugin = nullptr;
  TRIREME_RETURN_IF_ERROR(load_plugin(&plugin));
  char text[kTextBytes] = "";
  const std::int32_t status = (plugin->*function)(arguments..., text);
  return status == TRIREME_OK ? Status::success() : Status::failure(status, text);
}

std::string text_of_version(std::int32_t version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string line(const std::string& what, const std::string& text) {
  return what + ": " + text + "\n";
}

std::string describe_plugin(const Plugin& plugin) {
  const Kernels kernels = plugin.kernels();
  if (kernels.image == nullptr) return "here, without kernels: its build had no nvcc";
  return "here, with kernels for " + std::string(kernels.targets) + " by CUDA " +
         text_of_version(kernels.toolkit);
}

std::string describe_device(std::int32_t index) {
  trireme_device_info info = TRIREME_DEVICE_INFO_INIT;
  const Status status = describe(index, &info);
  if (!status.ok()) return status.message();
  return std::string(info.name) + ", compute capability " + std::to_string(info.capability_major) +
         "." + std::to_string(info.capability_minor) + ", " + std::to_string(info.multiprocessors) +
         " multiprocessors, " + std::to_string(info.memory_bytes >> 20) + " MiB, " + info.uuid +
         ", " + info.bus_id;
}

std::string describe_nccl(const Found& found) {
  return std::string(found.file) + ", " +
         (found.version == 0 ? "which the process has not loaded" : text_of_nccl(found.version));
}

}  // namespace

std::string text_of_nccl(std::int32_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
         std::to_string(version % 100);
}

// The first success stays. No lock: a child of a process whose other thread held it would wait for
// ever. Two threads at once find the same table.
Status load_plugin(const Plugin** out) {
  static constinit std::atomic<const Plugin*> loaded{nullptr};
  *out = loaded.load(std::memory_order_acquire);
  if (*out != nullptr) return Status::success();
  std::string tries;
  for (const std::string& place : plugin_places()) {
    const Status status = open_plugin("CUDA", place, kPluginSymbol, kPluginVersion, out);
    if (status.ok()) {
      loaded.store(*out, std::memory_order_release);
      return status;
    }
    const std::string prefix = "no CUDA: ";
    tries += (tries.empty() ? "" : "; ") + status.message().substr(prefix.size());
  }
  *out = nullptr;
  return unsupported("no plugin for CUDA: " + tries);
}

Status count(std::int32_t* out) { return call(&Plugin::count, out); }

Status describe(std::int32_t index, trireme_device_info* out) {
  return call(&Plugin::describe, index, out);
}

Status memory(std::int32_t index, std::uint64_t* out_free, std::uint64_t* out_total) {
  return call(&Plugin::memory, index, out_free, out_total);
}

Status whose(const void* address, trireme_memory_info* out) {
  const Status status = call(&Plugin::whose, address, out);
  if (status.code() != TRIREME_ERROR_UNSUPPORTED || DynamicLibrary::is_loaded("libcuda.so.1")) {
    return status;
  }
  out->kind = TRIREME_MEMORY_KIND_HOST;
  out->device = {TRIREME_DEVICE_HOST, 0};
  return Status::success();
}

std::string report() {
  const Plugin* plugin = nullptr;
  const Status status = load_plugin(&plugin);
  if (!status.ok()) return line("plugin", status.message());
  std::string text = line("plugin", describe_plugin(*plugin));
  Found found{};
  const Status driver = call(&Plugin::find_driver, &found);
  text += line("driver", driver.ok()
                             ? std::string(found.file) + ", CUDA " + text_of_version(found.version)
                             : driver.message());
  if (driver.ok()) {
    std::int32_t devices = 0;
    const Status counted = count(&devices);
    text += line("devices", counted.ok() ? std::to_string(devices) : counted.message());
    for (std::int32_t i = 0; i < devices; ++i) {
      text += line("device " + std::to_string(i), describe_device(i));
    }
  }
  char why[kTextBytes] = "";
  const std::int32_t status_of_nccl = plugin->nccl.find(&found, why);
  text += line("NCCL", status_of_nccl == TRIREME_OK ? describe_nccl(found) : why);
  return text;
}

}  // namespace trireme::cuda
