"""Work on a device: order, memory, and what is told when the driver refuses."""

OPEN = "src/devices/cuda/plugin/open_device.cpp"
INSIDE = "src/devices/cuda/plugin/open_device.hpp"
SEAM = "src/devices/cuda/device.cpp"
TEST = "unit_test_device_work"

DEFECTS = [
    ("device work: a stream does not wait for an event", OPEN,
     "driver_.StreamWaitEvent(stream_of(stream), event_of(event), 0)", "0", TEST),
    ("device work: copies go by the default stream", OPEN,
     "bytes, stream_of(stream)));\n  });\n}\n\nStatus OpenDevice::fill",
     "bytes, nullptr));\n  });\n}\n\nStatus OpenDevice::fill", TEST),
    ("device work: an event is done before the device is there", OPEN,
     "*out_done = result == 0;", "*out_done = true;", TEST),
    ("device work: memory is given back while the device uses it", SEAM,
     "    *out = std::make_unique<DeviceBlock>(session_, memory);\n",
     "    *out = std::make_unique<DeviceBlock>(session_, memory);\n"
     "    ignore(session_->call(&Plugin::release, &memory));\n", TEST),
    ("device work: memory that could not be mapped is lost", OPEN,
     "if (!status.ok()) static_cast<void>(driver_.MemRelease(allocation));", "", TEST),
    ("device work: a range that could not be filled is lost", OPEN,
     "    static_cast<void>(driver_.MemAddressFree(first, memory->bytes));\n", "", TEST),
    ("device work: the caller's context is lost", INSIDE,
     "driver_.check(\"cuCtxPopCurrent\", driver_.CtxPopCurrent(&ours));", "Status::success();",
     TEST),
    ("device work: a device that does not open keeps its context", OPEN,
     "    static_cast<void>(driver->DevicePrimaryCtxRelease(device));"
     "  // the first failure is the reason\n", "", TEST),
    ("device work: a stream in a capture is taken", OPEN,
     "if (capturing != 0) {", "if (false) {", TEST),
    ("device work: a graph that others record is lost", INSIDE,
     "driver_.ThreadExchangeStreamCaptureMode(&mode) == 0", "false", "api_test_device_collectives"),
    ("device work: a stream of another context is taken", OPEN,
     "if (context == context_) return Status::success();", "return Status::success();", TEST),
    ("device work: a caller's stream is destroyed", SEAM,
     "if (owned_) ignore(", "ignore(", TEST),
    ("device work: memory that has run out is a failure of the device",
     "src/devices/cuda/plugin/driver.cpp",
     "if (result == kOutOfMemory) return TRIREME_ERROR_OUT_OF_MEMORY;", "", TEST),
    ("device work: a kernel gets one state", SEAM,
     "i < states; ++i) args.states", "i < states - 1; ++i) args.states", TEST),
    ("device work: an average on a device is a sum", SEAM,
     "call.reduction == TRIREME_REDUCTION_SCALED_SUM ? call.scale : call.divisor}",
     "call.reduction == TRIREME_REDUCTION_SCALED_SUM ? call.scale : 1.0}", TEST),
    ("device work: a wait for a device has no end", "src/devices/device.cpp",
     "if (deadline.passed()) {", "if (false) {", TEST),
    ("device work: arguments of another kernel are launched", OPEN,
     "if (kernel >= kernels::device::kKernelCount || "
     "bytes != kernels::device::kKernels[kernel].bytes) {",
     "if (kernel >= kernels::device::kKernelCount) {", TEST),
]
