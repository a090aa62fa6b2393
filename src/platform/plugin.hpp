// A plugin: a dynamic library of this project that stands between the library and one that it does
// not need, such as an MPI. Both come from one build, and the library takes no other plugin.
#pragma once

#include <trireme/version.h>

#include <cstdint>
#include <string>

#include "platform/status.hpp"

namespace trireme {

// The first member of a plugin's table of functions.
struct PluginHead {
  std::uint32_t version;  // raised whenever the meaning of the table changes
  std::uint32_t library;  // TRIREME_VERSION
  std::uint32_t bytes;    // of the table
};
using GetPlugin = const PluginHead* (*)();

// The path of a plugin that lies beside the library.
std::string plugin_path(const std::string& file);

// Loads the plugin for the library `of`, and gets the head that its function `symbol` returns.
// UNSUPPORTED if it cannot be loaded, is none, or is not of this build; the message says why.
Status open_plugin(const std::string& of, const std::string& path, const char* symbol,
                   const PluginHead& expected, const PluginHead** out);

// As above, for a table that begins with its head.
template <class Table>
Status open_plugin(const std::string& of, const std::string& path, const char* symbol,
                   std::uint32_t version, const Table** out) {
  const PluginHead* head = nullptr;
  TRIREME_RETURN_IF_ERROR(
      open_plugin(of, path, symbol, {version, TRIREME_VERSION, sizeof(Table)}, &head));
  *out = reinterpret_cast<const Table*>(head);
  return Status::success();
}

}  // namespace trireme
