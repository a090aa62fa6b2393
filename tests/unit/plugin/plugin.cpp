// A plugin for the tests of those who load one.
#include "platform/plugin.hpp"

namespace {

constexpr trireme::PluginHead kHead{3, TRIREME_VERSION, sizeof(trireme::PluginHead)};

}  // namespace

extern "C" __attribute__((visibility("default"))) const trireme::PluginHead* the_plugin_of_tests() {
  return &kHead;
}
