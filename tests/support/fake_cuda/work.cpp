// Functions of the fake driver with which devices work. Its script has these words besides:
// - mode=eager|lazy|seeded:N. When operations run: at once; as late as a wait of the host allows;
//   some at each call, by chance.
// - stall=1. Nothing runs, and no event is done.
// - oom=N. The allocation after N of them fails, and all later ones.
// - sticky=N:CODE. After N operations in streams, the caller's too, every call answers CODE.
// - stuck=1. A stream stands still from its first copy on.
// - vmm=0. Devices cannot map memory.
// - quiet=1. A complaint is not written to stderr.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fake_cuda/fake_cuda.h"
#include "fake_cuda/inside.h"
#include "fake_cuda/world.hpp"

namespace fake {
namespace {

enum {
  kOk = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kCaptureUnsupported = 900
};
constexpr std::size_t kGranularity = 1 << 16;

using Address = unsigned long long;

struct Properties {  // CUmemAllocationProp
  int type, handle_types, location_type, location;
  void* security;
  unsigned char flags[8];
};
struct Access3 {  // CUmemAccessDesc
  int location_type, location, flags;
};
struct Physical {
  int file, device;
  std::size_t bytes;
  bool mapped;
};

int allocations = 0;
Address last_handle = 0;
std::unordered_map<Address, Physical> handles;
std::unordered_map<Address, std::size_t> reservations;
std::unordered_map<Address, Address> mapped;  // first byte -> handle

bool runs_out() { return allocations++ >= scripted("oom=", 1 << 30); }

// A graph that is recorded keeps all threads from some calls, but those that ask for it.
constexpr int kRelaxed = 2;
int captures = 0;
thread_local int capture_mode = 0;
bool is_unsafe() { return captures > 0 && capture_mode != kRelaxed; }

int cuThreadExchangeStreamCaptureMode(int* mode) {
  if (*mode < 0 || *mode > kRelaxed) return kInvalidValue;
  std::swap(*mode, capture_mode);
  return kOk;
}

World& world() { return World::get(); }

#define ENTER()                                                   \
  const std::lock_guard lock(world().mutex);                      \
  if (const int code = refusal(__func__); code != 0) return code; \
  if (current_device() < 0) return kInvalidContext

// A stream of the current context; others are refused.
#define ENTER_STREAM(handle)                                                                  \
  ENTER();                                                                                    \
  Stream* const stream = world().stream_of(handle, current_device(), fake_current_context()); \
  if (stream == nullptr || stream->device != current_device()) return kInvalidHandle;         \
  if (stream->capturing) return kCaptureUnsupported

// ---- memory ----

int cuMemGetAllocationGranularity(std::size_t* bytes, const Properties* properties, int) {
  ENTER();
  if (properties->type != 1 || properties->location_type != 1) return kInvalidValue;
  *bytes = kGranularity;
  return kOk;
}

int cuMemAddressReserve(Address* first, std::size_t bytes, std::size_t, Address,
                        unsigned long long flags) {
  ENTER();
  if (bytes == 0 || bytes % kGranularity != 0 || flags != 0) return kInvalidValue;
  void* const at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED || runs_out()) return kOutOfMemory;
  *first = reinterpret_cast<Address>(at);
  reservations[*first] = bytes;
  ++world().live_reservations;
  return kOk;
}

// The place stays reserved in the process: nothing else comes where freed memory was.
int cuMemAddressFree(Address first, std::size_t bytes) {
  ENTER();
  const auto found = reservations.find(first);
  if (found == reservations.end() || found->second != bytes || mapped.count(first) != 0) {
    return kInvalidValue;
  }
  reservations.erase(found);
  --world().live_reservations;
  return kOk;
}

int cuMemCreate(Address* handle, std::size_t bytes, const Properties* properties,
                unsigned long long flags) {
  ENTER();
  if (bytes == 0 || bytes % kGranularity != 0 || flags != 0) return kInvalidValue;
  if (properties->type != 1 || properties->location_type != 1) return kInvalidValue;
  if (runs_out()) return kOutOfMemory;
  const int file = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
  *handle = ++last_handle;
  handles[*handle] = {file, properties->location, bytes, false};
  ++world().live_handles;
  return kOk;
}

int cuMemRelease(Address handle) {
  ENTER();
  const auto found = handles.find(handle);
  if (found == handles.end()) return kInvalidValue;
  close(found->second.file);
  handles.erase(found);
  --world().live_handles;
  return kOk;
}

int cuMemMap(Address first, std::size_t bytes, std::size_t offset, Address handle,
             unsigned long long flags) {
  ENTER();
  const auto found = handles.find(handle);
  const auto place = reservations.find(first);
  if (found == handles.end() || place == reservations.end() || place->second != bytes ||
      found->second.bytes != bytes || offset != 0 || flags != 0) {
    return kInvalidValue;
  }
  if (runs_out()) return kOutOfMemory;
  void* const alias =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, found->second.file, 0);
  if (alias == MAP_FAILED) return kOutOfMemory;
  // As beside a real device, the host dies if it follows the address.
  mmap(reinterpret_cast<void*>(first), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, found->second.file,
       0);
  world().add_area(first, bytes, static_cast<char*>(alias), found->second.device, false);
  mapped[first] = handle;
  add_area(reinterpret_cast<void*>(first), bytes, 2, found->second.device);
  return kOk;
}

int cuMemSetAccess(Address first, std::size_t bytes, const Access3* access, std::size_t count) {
  ENTER();
  Area* const area = world().area_of(first);
  if (area == nullptr || area->first != first || area->bytes != bytes || count != 1 ||
      access->location_type != 1 || access->location != area->device || access->flags != 3) {
    return kInvalidValue;
  }
  area->accessible = true;
  return kOk;
}

int cuMemUnmap(Address first, std::size_t bytes) {
  ENTER();
  Area* const area = world().area_of(first);
  if (area == nullptr || area->first != first || area->bytes != bytes || !area->live) {
    return kInvalidValue;
  }
  world().free_area(area, "cuMemUnmap");
  mapped.erase(first);
  remove_area(reinterpret_cast<void*>(first));
  return kOk;
}

int cuMemHostAlloc(void** first, std::size_t bytes, unsigned flags) {
  ENTER();
  if (is_unsafe()) return kCaptureUnsupported;
  if (bytes == 0 || flags != 1) return kInvalidValue;
  if (runs_out()) return kOutOfMemory;
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return kOutOfMemory;
  world().add_area(reinterpret_cast<std::uintptr_t>(at), bytes, static_cast<char*>(at),
                   current_device(), true);
  add_area(at, bytes, 1, current_device());
  ++world().live_pinned;
  *first = at;
  return kOk;
}

int cuMemFreeHost(void* first) {
  ENTER();
  Area* const area = world().area_of(reinterpret_cast<std::uintptr_t>(first));
  if (area == nullptr || !area->pinned || !area->live ||
      area->first != reinterpret_cast<std::uintptr_t>(first)) {
    return kInvalidValue;
  }
  world().free_area(area, "cuMemFreeHost");
  remove_area(first);
  --world().live_pinned;
  return kOk;
}

// ---- streams and events ----

int cuStreamCreateWithPriority(void** out, unsigned flags, int) {
  ENTER();
  if (flags > 1) return kInvalidValue;
  *out = world().add_stream(current_device(), fake_current_context());
  return kOk;
}

int cuStreamDestroy(void* handle) {
  ENTER_STREAM(handle);
  if (stream->id < 0) return kInvalidHandle;
  world().destroy(stream);
  return kOk;
}

int cuStreamGetCtx(void* handle, void** context) {
  ENTER();
  Stream* const stream = world().stream_of(handle, current_device(), fake_current_context());
  if (stream == nullptr) return kInvalidHandle;
  *context = stream->context;
  return kOk;
}

int cuStreamIsCapturing(void* handle, int* status) {
  ENTER();
  Stream* const stream = world().stream_of(handle, current_device(), fake_current_context());
  if (stream == nullptr) return kInvalidHandle;
  *status = stream->capturing ? 1 : 0;
  return kOk;
}

int cuEventCreate(void** out, unsigned flags) {
  ENTER();
  if (flags != 2) return kInvalidValue;  // CU_EVENT_DISABLE_TIMING
  *out = world().add_event(current_device());
  return kOk;
}

int cuEventDestroy(void* handle) {
  ENTER();
  Event* const event = world().event_of(handle);
  if (event == nullptr) return kInvalidHandle;
  world().destroy(event);
  return kOk;
}

int cuEventRecord(void* handle, void* stream_handle) {
  ENTER_STREAM(stream_handle);
  Event* const event = world().event_of(handle);
  if (event == nullptr || event->device != stream->device) return kInvalidHandle;
  world().record(event, stream);
  return kOk;
}

int cuStreamWaitEvent(void* stream_handle, void* handle, unsigned flags) {
  ENTER_STREAM(stream_handle);
  Event* const event = world().event_of(handle);
  if (event == nullptr || flags != 0) return kInvalidHandle;
  world().wait(stream, event);
  return kOk;
}

int cuEventQuery(void* handle) {
  ENTER();
  Event* const event = world().event_of(handle);
  if (event == nullptr) return kInvalidHandle;
  if (is_unsafe()) return kCaptureUnsupported;
  const bool done = world().query(event);
  if (world().sticky() != 0) return world().sticky();
  return done ? kOk : kNotReady;
}

// ---- work ----

// Memory that the driver would have to copy by itself first, and wait for.
bool is_pageable(Address address) { return world().area_of(address) == nullptr; }

int submit(Stream* stream, const std::string& name, bool is_kernel,
           std::function<void(Access&)> body) {
  world().count_submission();
  if (world().sticky() != 0) return world().sticky();
  world().submit(stream, name, is_kernel, std::move(body));
  return world().sticky();
}

int cuMemcpyAsync(Address to, Address from, std::size_t bytes, void* handle) {
  ENTER_STREAM(handle);
  if (bytes == 0) return kOk;
  if (is_pageable(to) || is_pageable(from)) {
    world().complain("cuMemcpyAsync gets memory of the host that is not pinned, and would wait");
    return kInvalidValue;
  }
  if (scripted("stuck=", 0) != 0) world().hold(stream, true);
  return submit(stream, "copy", false, [=](Access& access) {
    const void* const source = access.read(reinterpret_cast<void*>(from), bytes);
    void* const destination = access.write(reinterpret_cast<void*>(to), bytes);
    if (source != nullptr && destination != nullptr) std::memmove(destination, source, bytes);
  });
}

int cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes, void* handle) {
  ENTER_STREAM(handle);
  if (bytes == 0) return kOk;
  return submit(stream, "fill", false, [=](Access& access) {
    void* const destination = access.write(reinterpret_cast<void*>(to), bytes);
    if (destination != nullptr) std::memset(destination, value, bytes);
  });
}

int cuLibraryLoadData(void** library, const void* image, void*, void*, unsigned, void*, void*,
                      unsigned) {
  ENTER();
  if (image == nullptr) return kInvalidValue;
  static char loaded;
  *library = &loaded;
  return kOk;
}

char kernel_handles[256];

int cuLibraryGetKernel(void** kernel, void*, const char* name) {
  ENTER();
  const int number = find_kernel(name);
  if (number < 0) return kNotFound;
  *kernel = kernel_handles + number;
  return kOk;
}

int cuLaunchKernel(void* kernel, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
                   unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared,
                   void* handle, void** parameters, void** extra) {
  ENTER_STREAM(handle);
  if (blocks == 0 || threads == 0 || threads > 256 || blocks_y != 1 || blocks_z != 1 ||
      threads_y != 1 || threads_z != 1 || shared != 0 || extra != nullptr) {
    return kInvalidValue;
  }
  const int number = static_cast<int>(static_cast<char*>(kernel) - kernel_handles);
  const auto* const first = static_cast<const std::byte*>(parameters[0]);
  const std::vector<std::byte> args(first, first + kernel_args(number));
  return submit(stream, kernel_name(number), true,
                [=](Access& access) { run_kernel(number, args, blocks, threads, access); });
}

struct Row {
  const char* name;
  void* function;
};
#define ROW(name) \
  { #name, reinterpret_cast < void*>(&(name)) }
const Row kRows[] = {
    ROW(cuMemGetAllocationGranularity),
    ROW(cuMemAddressReserve),
    ROW(cuMemAddressFree),
    ROW(cuMemCreate),
    ROW(cuMemRelease),
    ROW(cuMemMap),
    ROW(cuMemSetAccess),
    ROW(cuMemUnmap),
    ROW(cuMemHostAlloc),
    ROW(cuMemFreeHost),
    ROW(cuStreamCreateWithPriority),
    ROW(cuStreamDestroy),
    ROW(cuStreamGetCtx),
    ROW(cuStreamIsCapturing),
    ROW(cuStreamWaitEvent),
    ROW(cuEventCreate),
    ROW(cuEventDestroy),
    ROW(cuEventRecord),
    ROW(cuEventQuery),
    ROW(cuThreadExchangeStreamCaptureMode),
    ROW(cuMemcpyAsync),
    ROW(cuMemsetD8Async),
    ROW(cuLibraryLoadData),
    ROW(cuLibraryGetKernel),
    ROW(cuLaunchKernel),
};

}  // namespace
}  // namespace fake

extern "C" {

int sticky_code(void) {
  const std::lock_guard lock(fake::World::get().mutex);
  return fake::World::get().sticky();
}

void* find_work(const char* name) {
  for (const fake::Row& row : fake::kRows) {
    if (std::strcmp(row.name, name) == 0) return row.function;
  }
  return nullptr;
}

// ---- for tests: see fake_cuda.h ----

#define EXPORTED __attribute__((visibility("default")))

EXPORTED const char* fake_finish(void) {
  fake::World& world = fake::World::get();
  const std::lock_guard lock(world.mutex);
  world.release_all();
  fake::finish_nccl(true);
  world.synchronize(nullptr);
  fake::finish_nccl(false);
  return world.complaint().c_str();
}

EXPORTED int fake_live_count(void) {
  fake::World& world = fake::World::get();
  const std::lock_guard lock(world.mutex);
  return world.live_streams + world.live_events + world.live_handles + world.live_reservations +
         world.live_pinned;
}

EXPORTED void* fake_foreign_stream(int device) {
  fake::World& world = fake::World::get();
  const std::lock_guard lock(world.mutex);
  static char other;
  return world.add_stream(device, &other);
}

EXPORTED void fake_capture(void* stream, int on) {
  fake::World& world = fake::World::get();
  const std::lock_guard lock(world.mutex);
  fake::Stream* const recorded = world.stream_of(stream, 0, primary_context(0));
  fake::captures += static_cast<int>(on != 0) - static_cast<int>(recorded->capturing);
  recorded->capturing = on != 0;
}

EXPORTED int fake_capture_mode(void) { return fake::capture_mode; }

EXPORTED void fake_hold(void* stream, int on) {
  fake::World& world = fake::World::get();
  const std::lock_guard lock(world.mutex);
  world.hold(world.stream_of(stream, 0, primary_context(0)), on != 0);
}

EXPORTED void* fake_user_stream(int device) {
  fake::World& world = fake::World::get();
  const std::lock_guard lock(world.mutex);
  return world.add_stream(device, primary_context(device));
}

EXPORTED void* fake_device_memory(int device, size_t bytes) {
  fake::World& world = fake::World::get();
  const std::lock_guard lock(world.mutex);
  void* const first = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* const alias =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (first == MAP_FAILED || alias == MAP_FAILED) return nullptr;
  world
      .add_area(reinterpret_cast<std::uintptr_t>(first), bytes, static_cast<char*>(alias), device,
                false)
      ->accessible = true;
  add_area(first, bytes, 2, device);
  return first;
}

EXPORTED void fake_queue_write(int device, void* handle, void* to, const void* from, size_t bytes) {
  fake::World& world = fake::World::get();
  const std::lock_guard lock(world.mutex);
  fake::Stream* const stream = world.stream_of(handle, device, primary_context(device));
  const auto* const first = static_cast<const std::byte*>(from);
  const std::vector<std::byte> kept(first, first + bytes);
  world.count_submission();
  world.submit(stream, "the caller's write", true, [=](fake::Access& access) {
    void* const at = access.write(to, bytes);
    if (at != nullptr && bytes != 0) std::memcpy(at, kept.data(), bytes);
  });
}

EXPORTED void fake_queue_read(int device, void* handle, void* to, const void* from, size_t bytes) {
  fake::World& world = fake::World::get();
  const std::lock_guard lock(world.mutex);
  fake::Stream* const stream = world.stream_of(handle, device, primary_context(device));
  world.submit(stream, "the caller's read", true, [=](fake::Access& access) {
    const void* const at = access.read(from, bytes);
    if (at != nullptr && bytes != 0) std::memcpy(to, at, bytes);
  });
}

EXPORTED void fake_queue_work(int device, void* handle, const char* name, const fake_area* areas,
                              size_t count, fake_body body, void* data) {
  fake::World& world = fake::World::get();
  const std::lock_guard lock(world.mutex);
  fake::Stream* const stream = world.stream_of(handle, device, primary_context(device));
  const std::vector<fake_area> kept(areas, areas + count);
  world.count_submission();
  world.submit(stream, name, true, [=](fake::Access& access) {
    std::vector<void*> memory;
    for (const fake_area& area : kept) {
      void* const at = area.first == nullptr ? nullptr
                       : area.writes != 0    ? access.write(area.first, area.bytes)
                                             : access.read(area.first, area.bytes);
      if (at == nullptr && area.first != nullptr) return;
      memory.push_back(at);
    }
    body(memory.data(), data);
  });
}

EXPORTED void fake_end_stream(void* handle) {
  fake::World& world = fake::World::get();
  const std::lock_guard lock(world.mutex);
  world.end(handle);
}

EXPORTED void fake_synchronize(int device, void* handle) {
  fake::World& world = fake::World::get();
  const std::lock_guard lock(world.mutex);
  world.synchronize(world.stream_of(handle, device, primary_context(device)));
}
}
