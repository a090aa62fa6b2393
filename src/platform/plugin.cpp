#include "platform/plugin.hpp"

#include "platform/dynamic_library.hpp"

namespace trireme {
namespace {

std::string text_of(const PluginHead& head) {
  return std::to_string(head.library) + "." + std::to_string(head.version);
}

}  // namespace

std::string plugin_path(const std::string& file) {
  const std::string folder = own_folder();
  return (folder.empty() ? "" : folder + "/") + file;
}

Status open_plugin(const std::string& of, const std::string& path, const char* symbol,
                   const PluginHead& expected, const PluginHead** out) {
  std::string why;
  const DynamicLibrary library = DynamicLibrary::open(path, &why);
  if (!why.empty()) return unsupported("no " + of + ": tried " + path + ": " + why);
  const auto get = reinterpret_cast<GetPlugin>(library.symbol(symbol));
  if (get == nullptr) return unsupported("no " + of + ": " + path + " is not a plugin of Trireme");
  const PluginHead* const head = get();
  if (head->version != expected.version || head->library != expected.library ||
      head->bytes != expected.bytes) {
    return unsupported("no " + of + ": " + path + " is of version " + text_of(*head) +
                       ", but this library is of " + text_of(expected));
  }
  *out = head;
  return Status::success();
}

}  // namespace trireme
