// The interface between the library and its plugin for CUDA: one table of functions. The library
// includes no header of CUDA and links with none of its libraries. No function throws, and all may
// be called by any thread at once.
#pragma once

#include <trireme/device.h>

#include <cstdint>

#include "platform/plugin.hpp"

namespace trireme::cuda {

// Raised whenever the meaning of this interface changes.
constexpr std::uint32_t kPluginVersion = 1;
constexpr char kPluginSymbol[] = "trireme_cuda_plugin";
constexpr std::uint64_t kTextBytes = 4096;  // of a text that a function writes, with its 0

// A library that was found: its file, and its version as it counts it.
struct Found {
  std::int32_t version;
  char file[1024];
};

// The kernels in a plugin, as cuLibraryLoadData() takes them.
struct Kernels {
  const void* image;  // null if the build had no nvcc
  std::uint64_t bytes;
  const char* targets;   // "compute_75 sm_80", or ""
  std::int32_t toolkit;  // the CUDA that compiled them, as 1000 * major + 10 * minor, or 0
};

struct Plugin {
  PluginHead head;  // of kPluginVersion
  Kernels (*kernels)() noexcept;
  // Each returns a status. Unless it is TRIREME_OK, `text` gets the reason, and *out stays as it
  // is.
  std::int32_t (*find_driver)(Found* out, char* text) noexcept;
  std::int32_t (*find_nccl)(Found* out, char* text) noexcept;
  std::int32_t (*count)(std::int32_t* out, char* text) noexcept;
  // Sets all fields but struct_size.
  std::int32_t (*describe)(std::int32_t index, trireme_device_info* out, char* text) noexcept;
  std::int32_t (*memory)(std::int32_t index, std::uint64_t* out_free, std::uint64_t* out_total,
                         char* text) noexcept;
  // Sets all fields but struct_size.
  std::int32_t (*whose)(const void* address, trireme_memory_info* out, char* text) noexcept;
};

}  // namespace trireme::cuda
