// The CUDA driver: its functions as pointers, found at run time. They are declared here and not by
// cuda.h, so that the plugin builds on a machine without CUDA. The driver keeps their types for
// ever; tests/unit/cuda_headers.cpp compares them with cuda.h where that is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "platform/status.hpp"

namespace trireme::cuda {

using Result = int;                  // CUresult
using Device = int;                  // CUdevice
using Address = unsigned long long;  // CUdeviceptr
struct ContextHandle;                // CUctx_st

struct Uuid {
  char bytes[16];
};

constexpr Result kInvalidValue = 1, kNotInitialized = 3, kNoDevice = 100, kInvalidContext = 201;
constexpr int kMultiprocessors = 16, kCapabilityMajor = 75, kCapabilityMinor = 76;
// Attributes of an address, and what its memory is.
constexpr int kMemoryType = 2, kIsManaged = 8, kOrdinal = 9, kRangeFirst = 11, kRangeBytes = 12;
constexpr unsigned kHostMemory = 1, kDeviceMemory = 2;

// X(name without "cu", its parameters)
#define TRIREME_CUDA_FUNCTIONS(X)                                                          \
  X(Init, (unsigned flags))                                                                \
  X(DeviceGetCount, (int* count))                                                          \
  X(DeviceGet, (Device * device, int ordinal))                                             \
  X(DeviceGetName, (char* name, int bytes, Device device))                                 \
  X(DeviceGetUuid, (Uuid * uuid, Device device))                                           \
  X(DeviceTotalMem, (std::size_t * bytes, Device device))                                  \
  X(DeviceGetAttribute, (int* value, int attribute, Device device))                        \
  X(DeviceGetPCIBusId, (char* text, int bytes, Device device))                             \
  X(DevicePrimaryCtxRetain, (ContextHandle * *context, Device device))                     \
  X(DevicePrimaryCtxRelease, (Device device))                                              \
  X(DevicePrimaryCtxGetState, (Device device, unsigned* flags, int* active))               \
  X(CtxPushCurrent, (ContextHandle * context))                                             \
  X(CtxPopCurrent, (ContextHandle * *context))                                             \
  X(MemGetInfo, (std::size_t * free, std::size_t * total))                                 \
  X(PointerGetAttributes, (unsigned count, int* attributes, void** data, Address address)) \
  X(GetErrorName, (Result result, const char** name))

struct Driver {
#define TRIREME_CUDA_POINTER(name, parameters) Result(*name) parameters = nullptr;
  TRIREME_CUDA_FUNCTIONS(TRIREME_CUDA_POINTER)
#undef TRIREME_CUDA_POINTER

  std::string file;
  int version = 0;          // 1000 * major + 10 * minor of the newest CUDA that it runs
  int process = 0;          // that opened it: a driver does not work in forked children
  bool has_devices = true;  // without any all calls of a driver fail

  // OK, or DEVICE with the function's name and the driver's for the result.
  Status check(const char* function, Result result) const;
};

// The least version of a driver: that of the CUDA which compiled the kernels, or else the first
// that has all of these functions.
int least_driver(int toolkit);

// Opens the first driver that serves, once for the process. UNSUPPORTED has every try.
Status open_driver(int least, const Driver** out);

}  // namespace trireme::cuda
