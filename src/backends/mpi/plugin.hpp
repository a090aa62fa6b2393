// What the library and its plugin for one MPI say to each other: a table of functions. The library
// has never seen an mpi.h; the plugin is compiled once with each. Both come from one build, and the
// library takes no other plugin.
#pragma once

#include <trireme/version.h>

#include <cstdint>

#include "backends/backend.hpp"

namespace trireme::mpi {

// Raised whenever anything here changes its meaning.
constexpr std::uint32_t kPluginVersion = 4;
constexpr char kPluginSymbol[] = "trireme_mpi_plugin";
constexpr std::uint64_t kErrorBytes = 512;
// As carriers take them where a transport does not say.
constexpr std::uint64_t kFrameBytes = 65'536;

// Channels that have a communicator of MPI of their own, from 0 on: the caller's, and those of the
// first three models. MPI makes one communicator after the other, so that each is waited for.
constexpr std::uint32_t kOwnChannels = 8;
static_assert(kOwnChannels <= kChannels);

struct Group;    // the plugin's part of one group
struct Request;  // one collective or message under way

// What a collective moves; memory that stays until the request is over.
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

// One message between two ranks, on the channel's own communicator; memory that stays until it is
// over. Messages of one tag from one rank to another arrive in order.
struct Letter {
  std::uint32_t channel;
  std::int32_t peer;
  std::int32_t tag;  // 0 to kTags - 1, but not kSlotTag
  std::int32_t bytes;
  void* data;
  bool sends;  // else it is received
};
// MPI promises tags up to this.
constexpr std::int32_t kTags = 32'768;
constexpr std::int32_t kSlotTag = kTags - 1;

// The longest message that publish() takes.
constexpr std::uint64_t kSlotBytes = 1024;
using Take = void (*)(void* context, std::int32_t from, const void* data, std::uint64_t bytes);

enum class State : std::int32_t { pending, done, failed };

// Every function but begin() only asks MPI for what it does without waiting.
struct Plugin {
  std::uint32_t version;  // kPluginVersion
  std::uint32_t library;  // TRIREME_VERSION
  std::uint32_t bytes;    // of this table
  const char* name;       // "Open MPI"

  // Initialises MPI unless the program has, and finalises it then when the process exits. Tells
  // this process' place among those of mpirun. A trireme_status; `error` gets why, a text.
  std::int32_t (*begin)(std::int32_t* rank, std::int32_t* world_size, char* error);
  // Begins a group of all ranks; they must do so in the same order. Null: `error` says why.
  Group* (*join)(char* error);
  // Frames, as trireme_transport has them; `group` is a Group.
  std::int32_t (*send)(void* group, std::int32_t to, const void* data, std::uint64_t bytes,
                       std::uint64_t timeout_ns);
  std::int32_t (*receive)(void* group, std::int32_t* from, void* data, std::uint64_t capacity,
                          std::uint64_t* bytes, std::uint64_t timeout_ns);
  void (*leave)(void* group);

  // Sends a short message to every peer, and keeps a copy: on the channel's communicator, or as soon
  // as that is there. A peer has taken all but the last one before. `pending` is no answer of it.
  State (*publish)(Group* group, std::uint32_t channel, const void* data, std::uint64_t bytes,
                   char* error);
  // Gives `take` what peers have published in the channel since, each one's in order; one thread at a
  // time is in it. `done`: something was there.
  State (*fetch)(Group* group, std::uint32_t channel, Take take, void* context, char* error);

  // Starts one collective. `pending`: not yet, as not all ranks are there; try again. `done`: it is
  // under way. The calls of one channel have one order on all ranks.
  State (*start)(Group* group, const Call& call, Request** out, char* error);
  // Starts to send or to receive one message; answers as start() does.
  State (*post)(Group* group, const Letter& letter, Request** out, char* error);
  // After `done` or `failed` the request is gone.
  State (*test)(Group* group, Request* request, char* error);
  // Nobody asks for the request any more; its memory must stay for good.
  void (*abandon)(Group* group, Request* request);
};

using GetPlugin = const Plugin* (*)();

}  // namespace trireme::mpi
