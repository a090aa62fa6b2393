// Plugins: which files are one of this build, and what the others are told.
#include <string>

#include "platform/dynamic_library.hpp"
#include "platform/plugin.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;

constexpr char kSymbol[] = "the_plugin_of_tests";
constexpr PluginHead kOwn{3, TRIREME_VERSION, sizeof(PluginHead)};

std::string refusal(const std::string& path, const char* symbol, const PluginHead& expected) {
  const PluginHead* head = nullptr;
  const Status status = open_plugin("Thing", path, symbol, expected, &head);
  assert_int_equal(status.code(), TRIREME_ERROR_UNSUPPORTED);
  assert_null(head);
  return status.message();
}

void a_plugin_of_this_build_is_taken(void**) {
  const PluginHead* head = nullptr;
  assert_true(open_plugin("Thing", TEST_PLUGIN, kSymbol, 3, &head).ok());
  assert_non_null(head);
  assert_int_equal(head->version, 3);
}

void a_plugin_of_another_build_is_refused(void**) {
  const std::string is = std::string("no Thing: ") + TEST_PLUGIN + " is of version " +
                         std::to_string(TRIREME_VERSION) + ".3, but this library is of ";
  PluginHead other = kOwn;
  other.version = 4;
  assert_string_equal(refusal(TEST_PLUGIN, kSymbol, other).c_str(),
                      (is + std::to_string(TRIREME_VERSION) + ".4").c_str());
  other = kOwn;
  ++other.library;
  assert_string_equal(refusal(TEST_PLUGIN, kSymbol, other).c_str(),
                      (is + std::to_string(TRIREME_VERSION + 1) + ".3").c_str());
  other = kOwn;
  other.bytes += 8;
  refusal(TEST_PLUGIN, kSymbol, other);
}

void a_file_that_is_none_is_named(void**) {
  const std::string missing = refusal("/nowhere/libplugin.so", kSymbol, kOwn);
  assert_int_equal(missing.find("no Thing: tried /nowhere/libplugin.so: "), 0);
  assert_string_equal(
      refusal(TEST_PLUGIN, "another_symbol", kOwn).c_str(),
      (std::string("no Thing: ") + TEST_PLUGIN + " is not a plugin of Trireme").c_str());
}

void a_plugin_lies_beside_the_library(void**) {
  assert_string_equal(plugin_path("libplugin.so").c_str(),
                      (own_folder() + "/libplugin.so").c_str());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_plugin_of_this_build_is_taken),
      cmocka_unit_test(a_plugin_of_another_build_is_refused),
      cmocka_unit_test(a_file_that_is_none_is_named),
      cmocka_unit_test(a_plugin_lies_beside_the_library),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
