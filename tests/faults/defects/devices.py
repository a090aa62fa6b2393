"""CUDA devices: the search for the driver, its functions, and what callers hear."""

PLUGIN = "src/devices/cuda/plugin/plugin.cpp"
DRIVER = "src/devices/cuda/plugin/driver.cpp"
TEST = "api_test_device"

DEFECTS = [
    ("devices: too old a driver is taken", DRIVER,
     "if (driver->version < least) {", "if (driver->version < 0) {", TEST),
    ("devices: a missing function of the driver goes unnoticed", DRIVER,
     "if (result != 0 || found != 0 || address == nullptr) {", "if (result != 0) {", TEST),
    ("devices: the try of a driver is forgotten", DRIVER,
     "place + \": \" + why;", "why;", TEST),
    ("devices: a forked child uses the parent's driver", DRIVER,
     "if (there->process != getpid()) {", "if (false) {", TEST),
    ("devices: a forked child does not know what is wrong", DRIVER,
     "if (result == kNotInitialized) {", "if (false) {", TEST),
    ("devices: a report loads NCCL", "src/platform/dynamic_library.cpp",
     "library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);",
     "library.handle_ = dlopen(name.c_str(), RTLD_NOW);", TEST),
    ("devices: NCCL of a wheel is not found", "src/devices/cuda/plugin/search.cpp",
     "folder + \"/../nvidia/nccl/lib/\"", "folder + \"/../../nvidia/nccl/lib/\"",
     "unit_test_cuda_search"),
    ("devices: the caller's context is lost", PLUGIN,
     "driver.check(\"cuCtxPopCurrent\", driver.CtxPopCurrent(&context));",
     "Status::success();", TEST),
    ("devices: a failure keeps the primary context", PLUGIN,
     "  const Status released =\n"
     "      driver.check(\"cuDevicePrimaryCtxRelease\", "
     "driver.DevicePrimaryCtxRelease(device));",
     "  if (!status.ok()) return status;\n"
     "  const Status released =\n"
     "      driver.check(\"cuDevicePrimaryCtxRelease\", "
     "driver.DevicePrimaryCtxRelease(device));", TEST),
    ("devices: one number too many", "src/devices/cuda/plugin/find.cpp",
     "index < 0 || index >= count",
     "index < 0 || index > count", TEST),
    ("devices: locked memory is a device's", PLUGIN,
     "owner.type == kDeviceMemory ? TRIREME_MEMORY_KIND_DEVICE",
     "owner.type != 0 ? TRIREME_MEMORY_KIND_DEVICE", TEST),
    ("devices: an error about an address makes it the host's", PLUGIN,
     "if (!answered) return driver.check(\"cuPointerGetAttributes\", result);", "", TEST),
    ("devices: only the first context is asked about an address", PLUGIN,
     "i < count && !out->known(); ++i", "i < 1 && !out->known(); ++i", TEST),
    ("devices: another NCCL hides that the named one is missing",
     "src/devices/cuda/plugin/search.cpp",
     "const std::string named = value_of(environment, \"TRIREME_NCCL_LIBRARY\");\n"
     "  if (!named.empty()) return {named};", "", "unit_test_cuda_search"),
    ("devices: the digits of a norm are not cleared", "src/kernels/elements/kernels.inc",
     "shared.sum[i] = 0;", "shared.sum[i] += 0;", "unit_test_device_kernels"),
    ("devices: a kernel forgets an element", "src/kernels/elements/kernels.inc",
     "return std::uint64_t{blocks} * threads;", "return std::uint64_t{blocks} * threads + 1;",
     "unit_test_device_kernels"),
    ("devices: draws of a kernel begin anew", "src/kernels/elements/kernels.inc",
     "store_parameter(args.parameters, args.storage, i, p, args.key, args.first + i);",
     "store_parameter(args.parameters, args.storage, i, p, args.key, i);",
     "unit_test_device_kernels"),
]
