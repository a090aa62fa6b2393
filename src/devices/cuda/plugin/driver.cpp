#include "devices/cuda/plugin/driver.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "devices/cuda/plugin/search.hpp"
#include "platform/dynamic_library.hpp"

namespace trireme::cuda {
namespace {

constexpr int kFirstVersion = 12000;  // the first with cuGetProcAddress_v2

using GetVersion = Result (*)(int* version);
using GetAddress = Result (*)(const char* name, void** out, int version, std::uint64_t flags,
                              int* found);

std::string text_of(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

template <class Function>
std::string resolve(GetAddress get, const char* name, Function* out) {
  void* address = nullptr;
  int found = 0;
  const Result result = get(name, &address, kFirstVersion, 0, &found);
  if (result != 0 || found != 0 || address == nullptr) {
    return std::string("it has no ") + name;
  }
  *out = reinterpret_cast<Function>(address);
  return "";
}

// Fills the table from an open library; the reason if it does not serve.
std::string fill(const DynamicLibrary& library, int least, Driver* driver) {
  const auto version = reinterpret_cast<GetVersion>(library.symbol("cuDriverGetVersion"));
  if (version == nullptr) return "it is no CUDA driver: it has no cuDriverGetVersion";
  const Result result = version(&driver->version);
  if (result != 0) return "cuDriverGetVersion answers " + std::to_string(result);
  if (driver->version < least) {
    return "it runs CUDA up to " + text_of(driver->version) + ", but this plugin needs " +
           text_of(least) + " or newer: install a newer driver";
  }
  const auto get = reinterpret_cast<GetAddress>(library.symbol("cuGetProcAddress_v2"));
  if (get == nullptr) return "it has no cuGetProcAddress_v2";
#define TRIREME_CUDA_RESOLVE(name, parameters)                                   \
  if (std::string why = resolve(get, "cu" #name, &driver->name); !why.empty()) { \
    return why;                                                                  \
  }
  TRIREME_CUDA_FUNCTIONS(TRIREME_CUDA_RESOLVE)
#undef TRIREME_CUDA_RESOLVE
  return "";
}

Status find(int least, std::unique_ptr<Driver>* out) {
  std::string tries;
  for (const std::string& place :
       driver_places([](const char* name) -> const char* { return std::getenv(name); })) {
    auto driver = std::make_unique<Driver>();
    std::string why;
    const DynamicLibrary library = DynamicLibrary::open(place, &why);
    if (why.empty()) why = fill(library, least, driver.get());
    if (why.empty()) {
      driver->file = place;
      driver->process = getpid();
      *out = std::move(driver);
      return Status::success();
    }
    tries += (tries.empty() ? "tried " : "; tried ") + place + ": " + why;
  }
  return unsupported("no CUDA driver: " + tries);
}

}  // namespace

namespace {

trireme_status status_of(Result result) {
  if (result == kOutOfMemory) return TRIREME_ERROR_OUT_OF_MEMORY;
  const bool records = result >= kFirstOfCapture && result <= kLastOfCapture;
  return records ? TRIREME_ERROR_INVALID_STATE : TRIREME_ERROR_DEVICE;
}

}  // namespace

Status Driver::check(const char* function, Result result) const {
  if (result == 0) return Status::success();
  const char* name = nullptr;
  if (GetErrorName(result, &name) != 0 || name == nullptr) name = "an unknown error";
  last_failure() = result;
  return Status::failure(status_of(result), std::string(function) + " answers " + name + " (" +
                                                std::to_string(result) + ")");
}

Result& last_failure() {
  thread_local Result result = 0;
  return result;
}

int least_driver(int toolkit) {
  // A driver runs machine code that any CUDA of its major version has made. A device for which the
  // image has PTX alone needs a driver of that very CUDA or newer, which is not looked at here.
  const int major = toolkit / 1000 * 1000;
  return major > kFirstVersion ? major : kFirstVersion;
}

// No lock: a child of a process whose other thread held it would wait for ever. Of two threads that
// open the driver at once one table stays; the driver itself is there but once.
Status open_driver(int least, const Driver** out) {
  static constinit std::atomic<const Driver*> opened{nullptr};
  const Driver* there = opened.load(std::memory_order_acquire);
  if (there == nullptr) {
    std::unique_ptr<Driver> found;
    TRIREME_RETURN_IF_ERROR(find(least, &found));
    const Result result = found->Init(0);
    if (result == kNotInitialized) {  // another library of the parent, such as PyTorch, used it
      return invalid_state("cuInit answers " + std::to_string(result) + ": process " +
                           std::to_string(getpid()) +
                           " was forked from one that had used the CUDA driver, which does not "
                           "work in such a child");
    }
    found->has_devices = result != kNoDevice;
    if (found->has_devices) TRIREME_RETURN_IF_ERROR(found->check("cuInit", result));
    if (opened.compare_exchange_strong(there, found.get(), std::memory_order_acq_rel)) {
      there = found.release();
    }
  }
  if (there->process != getpid()) {
    return invalid_state("process " + std::to_string(getpid()) + " was forked after process " +
                         std::to_string(there->process) +
                         " had opened the CUDA driver, which does not work in such a child");
  }
  *out = there;
  return Status::success();
}

}  // namespace trireme::cuda
