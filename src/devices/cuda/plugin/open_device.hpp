// One device that the library works on: its primary context, and the kernels in it.
#pragma once

#include <cstdint>

#include "devices/cuda/plugin.hpp"
#include "devices/cuda/plugin/driver.hpp"
#include "kernels/calls.hpp"
#include "platform/status.hpp"

namespace trireme::cuda {

// Each method makes the context current and the caller's one again. Any thread, also concurrently.
class OpenDevice {
 public:
  static Status open(std::int32_t index, OpenDevice** out);
  Status close();

  Status allocate(std::uint64_t bytes, DeviceMemory* out);
  Status release(const DeviceMemory& memory);
  Status pin(std::uint64_t bytes, void** out);
  Status unpin(void* first);

  Status create_stream(StreamWord* out);
  Status destroy_stream(StreamWord stream);
  Status adopt_stream(StreamWord stream);
  Status create_event(EventWord* out);
  Status destroy_event(EventWord event);
  Status record(EventWord event, StreamWord stream);
  Status wait(StreamWord stream, EventWord event);
  Status query(EventWord event, bool* out_done);

  Status copy(void* to, const void* from, std::uint64_t bytes, StreamWord stream);
  Status fill(void* to, unsigned char value, std::uint64_t bytes, StreamWord stream);
  Status launch(std::uint32_t kernel, const void* args, std::uint64_t bytes, Grid grid,
                StreamWord stream);

  // Runs a body in the context, which returns a Status.
  template <class Body>
  Status inside(Body&& body);

 private:
  OpenDevice(const Driver& driver, Device device) : driver_(driver), device_(device) {}
  Status find_granularity();
  Status load_kernels();
  Status map(DeviceMemory* memory);
  MemoryProperties properties() const;

  const Driver& driver_;
  const Device device_;
  ContextHandle* context_ = nullptr;
  std::uint64_t granularity_ = 0;  // 0: the device cannot map memory
  bool has_kernels_ = false;
  KernelHandle* kernels_[kernels::device::kKernelCount] = {};
};

template <class Body>
Status OpenDevice::inside(Body&& body) {
  TRIREME_RETURN_IF_ERROR(driver_.check("cuCtxPushCurrent", driver_.CtxPushCurrent(context_)));
  // While another thread records a graph, the driver refuses some calls of all threads, and the
  // graph is lost. Those of this thread have to do with no graph.
  int mode = kRelaxedCapture;
  const bool is_relaxed = driver_.ThreadExchangeStreamCaptureMode(&mode) == 0;
  const Status status = body();
  if (is_relaxed) static_cast<void>(driver_.ThreadExchangeStreamCaptureMode(&mode));
  ContextHandle* ours = nullptr;
  const Status popped = driver_.check("cuCtxPopCurrent", driver_.CtxPopCurrent(&ours));
  return status.ok() ? popped : status;
}

// The functions of the table that work on a device.
void add_work(Plugin* plugin);

}  // namespace trireme::cuda
