// The CUDA driver: its functions as pointers, found at run time. They are declared here and not by
// cuda.h, so that the plugin builds on a machine without CUDA. The driver keeps their types for
// ever; tests/unit/cuda_headers.cpp compares them with cuda.h where that is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "platform/status.hpp"

namespace trireme::cuda {

using Result = int;                     // CUresult
using Device = int;                     // CUdevice
using Address = unsigned long long;     // CUdeviceptr
using Allocation = unsigned long long;  // CUmemGenericAllocationHandle
struct ContextHandle;                   // CUctx_st
struct StreamHandle;                    // CUstream_st
struct EventHandle;                     // CUevent_st
struct LibraryHandle;                   // CUlib_st
struct KernelHandle;                    // CUkern_st

struct Uuid {
  char bytes[16];
};

// CUmemAllocationProp, and CUmemAccessDesc with what is at its place.
struct MemoryProperties {
  int type, handle_types, location_type, location;
  void* security;
  unsigned char compression, direct, usage[2], reserved[4];
};
struct MemoryAccess {
  int location_type, location, flags;
};

constexpr Result kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kNoDevice = 100;
constexpr Result kInvalidContext = 201, kInvalidHandle = 400, kNotReady = 600;
constexpr Result kContextIsDestroyed = 709;
// The driver's answers about streams that are recorded into a graph.
constexpr Result kFirstOfCapture = 900, kLastOfCapture = 908;
constexpr int kMultiprocessors = 16, kCapabilityMajor = 75, kCapabilityMinor = 76,
              kMapsMemory = 102;
// Attributes of an address, and what its memory is.
constexpr int kMemoryType = 2, kIsManaged = 8, kOrdinal = 9, kRangeFirst = 11, kRangeBytes = 12;
constexpr unsigned kHostMemory = 1, kDeviceMemory = 2;
constexpr int kPinnedAllocation = 1, kOnDevice = 1, kReadWrite = 3;  // of memory that is mapped
constexpr unsigned kPortable = 1, kNonBlocking = 1, kWithoutTiming = 2;
constexpr int kRelaxedCapture = 2;

// X(name without "cu", its parameters)
#define TRIREME_CUDA_FUNCTIONS(X)                                                                  \
  X(Init, (unsigned flags))                                                                        \
  X(DeviceGetCount, (int* count))                                                                  \
  X(DeviceGet, (Device * device, int ordinal))                                                     \
  X(DeviceGetName, (char* name, int bytes, Device device))                                         \
  X(DeviceGetUuid, (Uuid * uuid, Device device))                                                   \
  X(DeviceTotalMem, (std::size_t * bytes, Device device))                                          \
  X(DeviceGetAttribute, (int* value, int attribute, Device device))                                \
  X(DeviceGetPCIBusId, (char* text, int bytes, Device device))                                     \
  X(DevicePrimaryCtxRetain, (ContextHandle * *context, Device device))                             \
  X(DevicePrimaryCtxRelease, (Device device))                                                      \
  X(DevicePrimaryCtxGetState, (Device device, unsigned* flags, int* active))                       \
  X(CtxPushCurrent, (ContextHandle * context))                                                     \
  X(CtxPopCurrent, (ContextHandle * *context))                                                     \
  X(MemGetInfo, (std::size_t * free, std::size_t * total))                                         \
  X(PointerGetAttributes, (unsigned count, int* attributes, void** data, Address address))         \
  X(MemGetAllocationGranularity,                                                                   \
    (std::size_t * bytes, const MemoryProperties* properties, int option))                         \
  X(MemAddressReserve, (Address * first, std::size_t bytes, std::size_t alignment, Address wanted, \
                        unsigned long long flags))                                                 \
  X(MemAddressFree, (Address first, std::size_t bytes))                                            \
  X(MemCreate, (Allocation * memory, std::size_t bytes, const MemoryProperties* properties,        \
                unsigned long long flags))                                                         \
  X(MemRelease, (Allocation memory))                                                               \
  X(MemMap, (Address first, std::size_t bytes, std::size_t offset, Allocation memory,              \
             unsigned long long flags))                                                            \
  X(MemUnmap, (Address first, std::size_t bytes))                                                  \
  X(MemSetAccess,                                                                                  \
    (Address first, std::size_t bytes, const MemoryAccess* access, std::size_t count))             \
  X(MemHostAlloc, (void** first, std::size_t bytes, unsigned flags))                               \
  X(MemFreeHost, (void* first))                                                                    \
  X(StreamCreateWithPriority, (StreamHandle * *stream, unsigned flags, int priority))              \
  X(StreamDestroy, (StreamHandle * stream))                                                        \
  X(StreamGetCtx, (StreamHandle * stream, ContextHandle * *context))                               \
  X(StreamIsCapturing, (StreamHandle * stream, int* status))                                       \
  X(StreamWaitEvent, (StreamHandle * stream, EventHandle * event, unsigned flags))                 \
  X(EventCreate, (EventHandle * *event, unsigned flags))                                           \
  X(EventDestroy, (EventHandle * event))                                                           \
  X(EventRecord, (EventHandle * event, StreamHandle * stream))                                     \
  X(EventQuery, (EventHandle * event))                                                             \
  X(ThreadExchangeStreamCaptureMode, (int* mode))                                                  \
  X(MemcpyAsync, (Address to, Address from, std::size_t bytes, StreamHandle * stream))             \
  X(MemsetD8Async, (Address to, unsigned char value, std::size_t count, StreamHandle* stream))     \
  X(LibraryLoadData,                                                                               \
    (LibraryHandle * *library, const void* image, void* compiler_options, void* compiler_values,   \
     unsigned compiler_count, void* options, void* values, unsigned count))                        \
  X(LibraryGetKernel, (KernelHandle * *kernel, LibraryHandle * library, const char* name))         \
  X(LaunchKernel, (KernelHandle * kernel, unsigned blocks, unsigned blocks_y, unsigned blocks_z,   \
                   unsigned threads, unsigned threads_y, unsigned threads_z,                       \
                   unsigned shared_bytes, StreamHandle* stream, void** parameters, void** extra))  \
  X(GetErrorName, (Result result, const char** name))

struct Driver {
#define TRIREME_CUDA_POINTER(name, parameters) Result(*name) parameters = nullptr;
  TRIREME_CUDA_FUNCTIONS(TRIREME_CUDA_POINTER)
#undef TRIREME_CUDA_POINTER

  std::string file;
  int version = 0;          // 1000 * major + 10 * minor of the newest CUDA that it runs
  int process = 0;          // that opened it: a driver does not work in forked children
  bool has_devices = true;  // without any all calls of a driver fail

  // OK, or a failure with the function's name and the driver's for the result: DEVICE, but
  // OUT_OF_MEMORY if that is it, and INVALID_STATE while a stream is recorded into a graph.
  Status check(const char* function, Result result) const;
};

// The last result that made check() fail on this thread.
Result& last_failure();

// The least version of a driver: that of the CUDA which compiled the kernels, or else the first
// that has all of these functions.
int least_driver(int toolkit);

// Opens the first driver that serves, once for the process. UNSUPPORTED has every try.
Status open_driver(int least, const Driver** out);

}  // namespace trireme::cuda
