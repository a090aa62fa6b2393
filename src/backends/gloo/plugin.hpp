// The interface between the library and its plugin for Gloo: two tables of functions. The library
// includes no header of Gloo, which depends on further libraries. The plugin has no socket, and
// uses only the library's. No function throws.
#pragma once

#include <cstdint>

#include "backends/backend.hpp"
#include "platform/plugin.hpp"

namespace trireme::gloo {

// Raised whenever the meaning of this interface changes.
constexpr std::uint32_t kPluginVersion = 3;
constexpr char kPluginSymbol[] = "trireme_gloo_plugin";
constexpr std::uint64_t kErrorBytes = 512;

struct Group;     // the plugin's part of one engine
struct Run;       // the library's part of one collective under way
struct Transfer;  // the library's part of one piece of it

// The library's services for the plugin. Members are counted from 0; false or null means that the
// collective is over, and the library knows why.
struct Services {
  Transfer* (*send)(Run* run, int member, std::uint64_t slot, const void* data,
                    std::uint64_t bytes) noexcept;
  Transfer* (*receive)(Run* run, int member, std::uint64_t slot, void* data,
                       std::uint64_t bytes) noexcept;
  bool (*wait)(Run* run, Transfer* transfer) noexcept;
  // Called once for each transfer, waited for or not, before its memory goes.
  void (*drop)(Run* run, Transfer* transfer) noexcept;
  // out[i] = one[i] op other[i]; out may be one of them.
  void (*combine)(const Run* run, void* out, const void* one, const void* other,
                  std::uint64_t count) noexcept;
};

struct Call {
  OperationKind kind;
  std::uint32_t channel;
  std::int32_t root;
  std::uint32_t element_bytes;
  std::uint64_t count;  // as in PlainOperation
  const void* send;     // null: it lies in `receive`
  void* receive;        // all-reduce and reduce: of all elements, on all members
};

enum class State : std::int32_t { done, stopped, failed, no_memory };  // stopped: a service said no

struct Plugin {
  PluginHead head;  // of kPluginVersion
  // Returns null if there is no memory. `services` must stay valid.
  Group* (*open)(int member, int size, const Services* services) noexcept;
  // One call at a time on each channel. `error` gets Gloo's text of a failure.
  State (*run)(Group* group, const Call& call, Run* run, char* error) noexcept;
  void (*close)(Group* group) noexcept;
};

}  // namespace trireme::gloo
