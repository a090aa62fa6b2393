// The interface between the library and its plugin for CUDA: one table of functions. The library
// includes no header of CUDA and links with none of its libraries. No function throws, and all may
// be called by any thread at once.
#pragma once

#include <trireme/device.h>

#include <cstdint>

#include "platform/plugin.hpp"

namespace trireme::cuda {

// Raised whenever the meaning of this interface changes.
constexpr std::uint32_t kPluginVersion = 3;
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

// The reason of a failure, from a function that works on a device.
struct Answer {
  std::int32_t driver_error;  // the driver's number, or 0
  char text[kTextBytes];
};

// Memory of a device, which its driver maps.
struct DeviceMemory {
  void* first;
  std::uint64_t bytes;  // not below those asked for
  std::uint64_t allocation;
};

// The shape of a launch.
struct Grid {
  std::uint32_t blocks, threads;
};

// ---- NCCL ----

// Ranks of a group tell it each other, so that NCCL makes one communicator of them.
struct NcclId {
  char bytes[128];
};

enum class NcclKind : std::int32_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  send,
  receive
};

// NCCL's numbers of types and reductions, which it keeps for ever.
enum class NcclType : std::int32_t {
  i8 = 0,
  u8 = 1,
  i32 = 2,
  u32 = 3,
  i64 = 4,
  u64 = 5,
  f16 = 6,
  f32 = 7,
  f64 = 8,
  bf16 = 9
};
enum class NcclReduction : std::int32_t { sum = 0, product = 1, max = 2, min = 3 };

struct NcclCall {
  NcclKind kind;
  NcclType type;
  NcclReduction reduction;  // all_reduce, reduce_scatter
  std::int32_t peer;        // send and receive: the other rank; broadcast: the root
  const void* send;
  void* receive;
  std::uint64_t count;  // as NCCL's
};

// Whether a communicator of NCCL has queued all it was given.
enum class NcclState : std::int32_t { ready, busy };

class OpenDevice;          // of the plugin
class NcclMember;          // of the plugin
using StreamWord = void*;  // CUstream, also a caller's
using EventWord = void*;   // CUevent

// Functions that answer as those of Plugin, which has them.
struct NcclFunctions {
  // Loads nothing: tells the copy that the process has loaded, or the first file that is there.
  std::int32_t (*find)(Found* out, char* text) noexcept;
  // Loads the first NCCL that serves, and tells it. It stays for the life of the process.
  std::int32_t (*load)(Found* out, char* text) noexcept;
  std::int32_t (*make_id)(NcclId* out, Answer* answer) noexcept;
  // This rank's communicator of NCCL begins to meet its peers. *out is there until it is aborted or
  // destroyed. Should not wait for a peer, but NCCL looks at the host's networks here.
  std::int32_t (*join)(OpenDevice* device, const NcclId* id, std::int32_t rank,
                       std::int32_t world_size, NcclMember** out, Answer* answer) noexcept;
  // Whether it has met its peers, and queued what it was given. A failure is that of any call
  // before, or of a peer.
  std::int32_t (*look)(NcclMember* member, NcclState* out, Answer* answer) noexcept;
  // Queues the calls as one. The next use of the stream must wait until look() answers
  // `ready`. One thread at a time.
  std::int32_t (*run)(NcclMember* member, const NcclCall* calls, std::uint32_t count,
                      StreamWord stream, Answer* answer) noexcept;
  // Begins to end a communicator whose work is done; look() tells when it is ready.
  std::int32_t (*finalize)(NcclMember* member, Answer* answer) noexcept;
  // These two may wait for ever, as NCCL does. They free the member, whatever they answer. Abort
  // also ends its work on the device.
  std::int32_t (*destroy)(NcclMember* member, Answer* answer) noexcept;
  std::int32_t (*abort)(NcclMember* member, Answer* answer) noexcept;
};

struct Plugin {
  PluginHead head;  // of kPluginVersion
  Kernels (*kernels)() noexcept;
  // Each returns a status. Unless it is TRIREME_OK, `text` gets the reason, and *out stays as it
  // is.
  std::int32_t (*find_driver)(Found* out, char* text) noexcept;
  std::int32_t (*count)(std::int32_t* out, char* text) noexcept;
  // Sets all fields but struct_size.
  std::int32_t (*describe)(std::int32_t index, trireme_device_info* out, char* text) noexcept;
  std::int32_t (*memory)(std::int32_t index, std::uint64_t* out_free, std::uint64_t* out_total,
                         char* text) noexcept;
  // Sets all fields but struct_size.
  std::int32_t (*whose)(const void* address, trireme_memory_info* out, char* text) noexcept;

  // ---- work on one device, in its primary context; the caller's context stays current ----
  // All answer as above. None waits for the device.

  // Retains the primary context until close().
  std::int32_t (*open)(std::int32_t index, OpenDevice** out, Answer* answer) noexcept;
  // Gives the context back. All memory, streams and events of the device are gone before.
  std::int32_t (*close)(OpenDevice* device, Answer* answer) noexcept;
  // The contents are undefined. OUT_OF_MEMORY leaves the device as it was.
  std::int32_t (*allocate)(OpenDevice* device, std::uint64_t bytes, DeviceMemory* out,
                           Answer* answer) noexcept;
  // The device must be done with the memory: it is unmapped at once.
  std::int32_t (*release)(OpenDevice* device, const DeviceMemory* memory, Answer* answer) noexcept;
  // Memory of the host that all devices reach at the same address.
  std::int32_t (*pin)(OpenDevice* device, std::uint64_t bytes, void** out, Answer* answer) noexcept;
  std::int32_t (*unpin)(OpenDevice* device, void* first, Answer* answer) noexcept;
  std::int32_t (*create_stream)(OpenDevice* device, StreamWord* out, Answer* answer) noexcept;
  std::int32_t (*destroy_stream)(OpenDevice* device, StreamWord stream, Answer* answer) noexcept;
  // Checks a caller's stream: INVALID_STATE while it is recorded into a graph, INVALID_ARGUMENT if
  // it is of another context, or the driver knows no such stream.
  std::int32_t (*adopt_stream)(OpenDevice* device, StreamWord stream, Answer* answer) noexcept;
  std::int32_t (*create_event)(OpenDevice* device, EventWord* out, Answer* answer) noexcept;
  std::int32_t (*destroy_event)(OpenDevice* device, EventWord event, Answer* answer) noexcept;
  std::int32_t (*record)(OpenDevice* device, EventWord event, StreamWord stream,
                         Answer* answer) noexcept;
  // The stream, not the host, waits for the event.
  std::int32_t (*wait)(OpenDevice* device, StreamWord stream, EventWord event,
                       Answer* answer) noexcept;
  std::int32_t (*query)(OpenDevice* device, EventWord event, bool* out_done,
                        Answer* answer) noexcept;
  // Memory of the host must be pinned: the driver would wait otherwise.
  std::int32_t (*copy)(OpenDevice* device, void* to, const void* from, std::uint64_t bytes,
                       StreamWord stream, Answer* answer) noexcept;
  std::int32_t (*fill)(OpenDevice* device, void* to, unsigned char value, std::uint64_t bytes,
                       StreamWord stream, Answer* answer) noexcept;
  // `kernel`: a number of kernels/calls.hpp; `args`: its arguments, which are copied. UNSUPPORTED
  // if the plugin was built without kernels.
  std::int32_t (*launch)(OpenDevice* device, std::uint32_t kernel, const void* args,
                         std::uint64_t bytes, Grid grid, StreamWord stream,
                         Answer* answer) noexcept;

  NcclFunctions nccl;
};

}  // namespace trireme::cuda
