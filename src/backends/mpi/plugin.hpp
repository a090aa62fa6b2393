// The interface between the library and its plugin for one MPI: a table of functions. The library
// includes no mpi.h; the plugin is compiled once with each MPI's.
#pragma once

#include <cstdint>

#include "backends/backend.hpp"
#include "platform/plugin.hpp"

namespace trireme::mpi {

// Raised whenever the meaning of this interface changes.
constexpr std::uint32_t kPluginVersion = 5;
constexpr char kPluginSymbol[] = "trireme_mpi_plugin";
constexpr std::uint64_t kErrorBytes = 512;
// The frame size that frame links choose where a transport names none.
constexpr std::uint64_t kFrameBytes = 65'536;

// Channels that have a communicator of MPI of their own, from 0 on: the caller's, and those of the
// first three models. MPI makes one communicator after the other, and each is waited for.
constexpr std::uint32_t kOwnChannels = 8;
static_assert(kOwnChannels <= kChannels);

struct Group;    // the plugin's part of one group
struct Request;  // one collective or message under way

// The arguments of a collective; its memory stays until the request is over.
struct Call {
  OperationKind kind;
  trireme_dtype dtype;
  trireme_reduction reduction;
  std::int32_t root;
  std::uint32_t channel;
  std::int32_t count;  // as in PlainOperation
  const void* send;
  void* receive;
};

// One message between two ranks, on the channel's own communicator; its memory stays until it is
// over. Messages of one tag from one rank to another arrive in order.
struct PeerMessage {
  std::uint32_t channel;
  std::int32_t peer;
  std::int32_t tag;  // 0 to kTags - 1, but not kSlotTag
  std::int32_t bytes;
  void* data;
  bool sends;      // else it is received
  bool announced;  // if it is sent, it is not over before its receiver has asked for it
};
// MPI guarantees tags up to this.
constexpr std::int32_t kTags = 32'768;
constexpr std::int32_t kSlotTag = kTags - 1;

// The longest message that publish() takes.
constexpr std::uint64_t kSlotBytes = 1024;
using Take = void (*)(void* context, std::int32_t from, const void* data, std::uint64_t bytes);

enum class State : std::int32_t { pending, done, failed };

// Every function but begin() makes only calls of MPI that do not wait.
struct Plugin {
  PluginHead head;   // of kPluginVersion
  const char* name;  // "Open MPI"

  // Initialises MPI unless the program has; in that case finalises it when the process exits.
  // Returns this process' place among the processes of mpirun. The result is a trireme_status;
  // `error` gets the reason, a text.
  std::int32_t (*begin)(std::int32_t* rank, std::int32_t* world_size, char* error);
  // Begins a group of all ranks; all ranks must call it in the same order. Null: `error` has the
  // reason.
  Group* (*join)(char* error);
  // The same on all ranks; other groups of the process have others.
  std::uint64_t (*number)(const Group* group);
  // Frames, as trireme_transport defines them; `group` is a Group.
  std::int32_t (*send)(void* group, std::int32_t to, const void* data, std::uint64_t bytes,
                       std::uint64_t timeout_ns);
  std::int32_t (*receive)(void* group, std::int32_t* from, void* data, std::uint64_t capacity,
                          std::uint64_t* bytes, std::uint64_t timeout_ns);
  void (*leave)(void* group);

  // Sends a short message to every peer, and keeps a copy: it goes on the channel's communicator,
  // as soon as that is there. Every peer has taken all earlier messages but the last one. It never
  // returns `pending`.
  State (*publish)(Group* group, std::uint32_t channel, const void* data, std::uint64_t bytes,
                   char* error);
  // Passes the peers' new messages of the channel to `take`, each peer's in order; only one thread
  // at a time may call it. `done`: there was a message.
  State (*fetch)(Group* group, std::uint32_t channel, Take take, void* context, char* error);

  // Starts one collective. `pending`: not all ranks are there; try again. `done`: it is under way.
  // The calls of one channel have one order on all ranks.
  State (*start)(Group* group, const Call& call, Request** out, char* error);
  // Starts to send or to receive one message; returns the same as start().
  State (*post)(Group* group, const PeerMessage& message, Request** out, char* error);
  // After `done` or `failed` the request is gone.
  State (*test)(Group* group, Request* request, char* error);
  // The request's result is not wanted any more; its memory must stay for good.
  void (*abandon)(Group* group, Request* request);
};

}  // namespace trireme::mpi
