#include "devices/cuda/plugin/open_device.hpp"

#include <memory>
#include <string>

#include "devices/cuda/plugin/find.hpp"
#include "devices/cuda/plugin/kernels.hpp"

namespace trireme::cuda {
namespace {

Address address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }
StreamHandle* stream_of(StreamWord word) { return static_cast<StreamHandle*>(word); }
EventHandle* event_of(EventWord word) { return static_cast<EventHandle*>(word); }

}  // namespace

// ---- the device itself ----

Status OpenDevice::open(std::int32_t index, OpenDevice** out) {
  const Driver* driver = nullptr;
  Device device = 0;
  TRIREME_RETURN_IF_ERROR(find_device(index, &driver, &device));
  std::unique_ptr<OpenDevice> opened(new OpenDevice(*driver, device));
  TRIREME_RETURN_IF_ERROR(driver->check("cuDevicePrimaryCtxRetain",
                                        driver->DevicePrimaryCtxRetain(&opened->context_, device)));
  Status status = opened->find_granularity();
  if (status.ok()) status = opened->load_kernels();
  if (!status.ok()) {
    static_cast<void>(driver->DevicePrimaryCtxRelease(device));  // the first failure is the reason
    return status;
  }
  *out = opened.release();
  return Status::success();
}

Status OpenDevice::close() {
  return driver_.check("cuDevicePrimaryCtxRelease", driver_.DevicePrimaryCtxRelease(device_));
}

Status OpenDevice::find_granularity() {
  int maps = 0;
  TRIREME_RETURN_IF_ERROR(driver_.check("cuDeviceGetAttribute",
                                        driver_.DeviceGetAttribute(&maps, kMapsMemory, device_)));
  if (maps == 0) return Status::success();
  return inside([&] {
    std::size_t bytes = 0;
    const MemoryProperties wanted = properties();
    const Status status = driver_.check("cuMemGetAllocationGranularity",
                                        driver_.MemGetAllocationGranularity(&bytes, &wanted, 0));
    granularity_ = bytes;
    return status;
  });
}

// A library of kernels serves all contexts. It stays loaded, as another thread may be launching.
Status OpenDevice::load_kernels() {
  const KernelImage image = kernel_image();
  if (image.data == nullptr) return Status::success();
  return inside([&]() -> Status {
    static LibraryHandle* library = nullptr;  // two threads at once load it twice, which is no harm
    LibraryHandle* loaded = __atomic_load_n(&library, __ATOMIC_ACQUIRE);
    if (loaded == nullptr) {
      TRIREME_RETURN_IF_ERROR(driver_.check(
          "cuLibraryLoadData",
          driver_.LibraryLoadData(&loaded, image.data, nullptr, nullptr, 0, nullptr, nullptr, 0)));
      __atomic_store_n(&library, loaded, __ATOMIC_RELEASE);
    }
    for (std::uint32_t i = 0; i < kernels::device::kKernelCount; ++i) {
      const std::string name = std::string("trireme_") + kernels::device::kKernels[i].name;
      TRIREME_RETURN_IF_ERROR(
          driver_.check(("cuLibraryGetKernel of " + name).c_str(),
                        driver_.LibraryGetKernel(&kernels_[i], loaded, name.c_str())));
    }
    has_kernels_ = true;
    return Status::success();
  });
}

// ---- memory ----

MemoryProperties OpenDevice::properties() const {
  MemoryProperties wanted{};
  wanted.type = kPinnedAllocation;
  wanted.location_type = kOnDevice;
  wanted.location = device_;
  return wanted;
}

// Whatever fails, what was made before is given back.
Status OpenDevice::map(DeviceMemory* memory) {
  const MemoryProperties wanted = properties();
  const MemoryAccess access{kOnDevice, device_, kReadWrite};
  Address first = 0;
  Allocation allocation = 0;
  TRIREME_RETURN_IF_ERROR(driver_.check("cuMemAddressReserve",
                                        driver_.MemAddressReserve(&first, memory->bytes, 0, 0, 0)));
  Status status =
      driver_.check("cuMemCreate", driver_.MemCreate(&allocation, memory->bytes, &wanted, 0));
  if (status.ok()) {
    status = driver_.check("cuMemMap", driver_.MemMap(first, memory->bytes, 0, allocation, 0));
    if (status.ok()) {
      status =
          driver_.check("cuMemSetAccess", driver_.MemSetAccess(first, memory->bytes, &access, 1));
      if (!status.ok()) static_cast<void>(driver_.MemUnmap(first, memory->bytes));
    }
    if (!status.ok()) static_cast<void>(driver_.MemRelease(allocation));
  }
  if (!status.ok()) {
    static_cast<void>(driver_.MemAddressFree(first, memory->bytes));
    return status;
  }
  memory->first = reinterpret_cast<void*>(first);
  memory->allocation = allocation;
  return Status::success();
}

Status OpenDevice::allocate(std::uint64_t bytes, DeviceMemory* out) {
  if (granularity_ == 0) {
    return unsupported("the device cannot map memory: its driver has no virtual memory management");
  }
  if (bytes == 0 || bytes > ~std::uint64_t{0} - granularity_) {
    return invalid_argument("bytes is " + std::to_string(bytes));
  }
  DeviceMemory memory{};
  memory.bytes = (bytes + granularity_ - 1) / granularity_ * granularity_;
  TRIREME_RETURN_IF_ERROR(inside([&] { return map(&memory); }));
  *out = memory;
  return Status::success();
}

Status OpenDevice::release(const DeviceMemory& memory) {
  return inside([&] {
    const Address first = address_of(memory.first);
    Status status = driver_.check("cuMemUnmap", driver_.MemUnmap(first, memory.bytes));
    const Status released = driver_.check("cuMemRelease", driver_.MemRelease(memory.allocation));
    if (status.ok()) status = released;
    const Status freed =
        driver_.check("cuMemAddressFree", driver_.MemAddressFree(first, memory.bytes));
    return status.ok() ? freed : status;
  });
}

Status OpenDevice::pin(std::uint64_t bytes, void** out) {
  if (bytes == 0) return invalid_argument("bytes is 0");
  return inside(
      [&] { return driver_.check("cuMemHostAlloc", driver_.MemHostAlloc(out, bytes, kPortable)); });
}

Status OpenDevice::unpin(void* first) {
  return inside([&] { return driver_.check("cuMemFreeHost", driver_.MemFreeHost(first)); });
}

// ---- streams and events ----

Status OpenDevice::create_stream(StreamWord* out) {
  return inside([&] {
    StreamHandle* stream = nullptr;
    const Status status = driver_.check("cuStreamCreateWithPriority",
                                        driver_.StreamCreateWithPriority(&stream, kNonBlocking, 0));
    if (status.ok()) *out = stream;
    return status;
  });
}

Status OpenDevice::destroy_stream(StreamWord stream) {
  return inside(
      [&] { return driver_.check("cuStreamDestroy", driver_.StreamDestroy(stream_of(stream))); });
}

Status OpenDevice::adopt_stream(StreamWord word) {
  return inside([&]() -> Status {
    StreamHandle* const stream = stream_of(word);
    int capturing = 0;
    const Result asked = driver_.StreamIsCapturing(stream, &capturing);
    if (asked == kInvalidHandle || asked == kContextIsDestroyed || asked == kInvalidContext) {
      return invalid_argument("the stream does not exist: " +
                              driver_.check("cuStreamIsCapturing", asked).message());
    }
    TRIREME_RETURN_IF_ERROR(driver_.check("cuStreamIsCapturing", asked));
    if (capturing != 0) {
      return invalid_state("the stream is recorded into a graph, where no peer can be waited for");
    }
    ContextHandle* context = nullptr;
    TRIREME_RETURN_IF_ERROR(
        driver_.check("cuStreamGetCtx", driver_.StreamGetCtx(stream, &context)));
    if (context == context_) return Status::success();
    return invalid_argument("the stream is not of the device's primary context");
  });
}

Status OpenDevice::create_event(EventWord* out) {
  return inside([&] {
    EventHandle* event = nullptr;
    const Status status =
        driver_.check("cuEventCreate", driver_.EventCreate(&event, kWithoutTiming));
    if (status.ok()) *out = event;
    return status;
  });
}

Status OpenDevice::destroy_event(EventWord event) {
  return inside(
      [&] { return driver_.check("cuEventDestroy", driver_.EventDestroy(event_of(event))); });
}

Status OpenDevice::record(EventWord event, StreamWord stream) {
  return inside([&] {
    return driver_.check("cuEventRecord", driver_.EventRecord(event_of(event), stream_of(stream)));
  });
}

Status OpenDevice::wait(StreamWord stream, EventWord event) {
  return inside([&] {
    return driver_.check("cuStreamWaitEvent",
                         driver_.StreamWaitEvent(stream_of(stream), event_of(event), 0));
  });
}

Status OpenDevice::query(EventWord event, bool* out_done) {
  return inside([&] {
    const Result result = driver_.EventQuery(event_of(event));
    *out_done = result == 0;
    return driver_.check("cuEventQuery", result == kNotReady ? 0 : result);
  });
}

// ---- work ----

Status OpenDevice::copy(void* to, const void* from, std::uint64_t bytes, StreamWord stream) {
  return inside([&] {
    return driver_.check("cuMemcpyAsync", driver_.MemcpyAsync(address_of(to), address_of(from),
                                                              bytes, stream_of(stream)));
  });
}

Status OpenDevice::fill(void* to, unsigned char value, std::uint64_t bytes, StreamWord stream) {
  return inside([&] {
    return driver_.check("cuMemsetD8Async",
                         driver_.MemsetD8Async(address_of(to), value, bytes, stream_of(stream)));
  });
}

Status OpenDevice::launch(std::uint32_t kernel, const void* args, std::uint64_t bytes, Grid grid,
                          StreamWord stream) {
  if (!has_kernels_) return unsupported("the plugin has no kernels: its build had no nvcc");
  if (kernel >= kernels::device::kKernelCount || bytes != kernels::device::kKernels[kernel].bytes) {
    return Status::failure(TRIREME_ERROR_INTERNAL, "kernel " + std::to_string(kernel) +
                                                       " has no arguments of " +
                                                       std::to_string(bytes) + " bytes");
  }
  return inside([&] {
    void* parameters[] = {const_cast<void*>(args)};  // the driver copies them, and only reads
    return driver_.check(
        ("cuLaunchKernel of " + std::string(kernels::device::kKernels[kernel].name)).c_str(),
        driver_.LaunchKernel(kernels_[kernel], grid.blocks, 1, 1, grid.threads, 1, 1, 0,
                             stream_of(stream), parameters, nullptr));
  });
}

}  // namespace trireme::cuda
