// The plugin's own declarations of the CUDA driver are those of cuda.h: otherwise this does not
// compile. It compares widths of results and parameters, since opaque types have other names.
#include <cuda.h>

#include <array>
#include <cstddef>
#include <type_traits>

#include "devices/cuda/plugin/driver.hpp"

namespace trireme::cuda {
namespace {

template <class Function>
struct Widths;
template <class Answer, class... Parameters>
struct Widths<Answer (*)(Parameters...)> {
  static constexpr std::array<std::size_t, sizeof...(Parameters) + 1> kAll{sizeof(Answer),
                                                                           sizeof(Parameters)...};
};

#define TRIREME_COMPARE(name, parameters) \
  static_assert(Widths<decltype(&cu##name)>::kAll == Widths<decltype(Driver::name)>::kAll);
TRIREME_CUDA_FUNCTIONS(TRIREME_COMPARE)
#undef TRIREME_COMPARE

static_assert(std::is_same_v<CUdevice, Device> && std::is_same_v<CUdeviceptr, Address>);
static_assert(sizeof(CUuuid) == sizeof(Uuid));
static_assert(CUDA_ERROR_NO_DEVICE == kNoDevice && CUDA_ERROR_INVALID_VALUE == kInvalidValue);
static_assert(CUDA_ERROR_INVALID_CONTEXT == kInvalidContext && CUDA_ERROR_NOT_READY == kNotReady);
static_assert(CUDA_ERROR_OUT_OF_MEMORY == kOutOfMemory);
static_assert(CU_STREAM_CAPTURE_MODE_RELAXED == kRelaxedCapture);
static_assert(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED == kFirstOfCapture);
static_assert(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD == kLastOfCapture);
static_assert(sizeof(CUmemAllocationProp) == sizeof(MemoryProperties));
static_assert(offsetof(CUmemAllocationProp, location) == offsetof(MemoryProperties, location_type));
static_assert(offsetof(CUmemAllocationProp, allocFlags) == offsetof(MemoryProperties, compression));
static_assert(sizeof(CUmemAccessDesc) == sizeof(MemoryAccess));
static_assert(offsetof(CUmemAccessDesc, flags) == offsetof(MemoryAccess, flags));
static_assert(CU_MEM_ALLOCATION_TYPE_PINNED == kPinnedAllocation);
static_assert(CU_MEM_LOCATION_TYPE_DEVICE == kOnDevice);
static_assert(CU_MEM_ACCESS_FLAGS_PROT_READWRITE == kReadWrite);
static_assert(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED == 1);
static_assert(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED == kMapsMemory);
static_assert(CU_MEMHOSTALLOC_PORTABLE == kPortable && CU_STREAM_NON_BLOCKING == kNonBlocking);
static_assert(CU_EVENT_DISABLE_TIMING == kWithoutTiming);
static_assert(CU_STREAM_CAPTURE_STATUS_NONE == 0);
static_assert(CUDA_ERROR_NOT_INITIALIZED == kNotInitialized);
static_assert(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT == kMultiprocessors);
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == kCapabilityMajor);
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == kCapabilityMinor);
static_assert(CU_POINTER_ATTRIBUTE_MEMORY_TYPE == kMemoryType);
static_assert(CU_POINTER_ATTRIBUTE_IS_MANAGED == kIsManaged);
static_assert(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL == kOrdinal);
static_assert(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR == kRangeFirst);
static_assert(CU_POINTER_ATTRIBUTE_RANGE_SIZE == kRangeBytes);
static_assert(CU_MEMORYTYPE_HOST == kHostMemory && CU_MEMORYTYPE_DEVICE == kDeviceMemory);
static_assert(CU_GET_PROC_ADDRESS_SUCCESS == 0);

}  // namespace
}  // namespace trireme::cuda
