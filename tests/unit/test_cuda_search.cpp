// Where the plugin for CUDA looks for the driver and NCCL.
#include "devices/cuda/plugin/search.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "devices/cuda/plugin/driver.hpp"
#include "platform/dynamic_library.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;

std::map<std::string, std::string>& variables() {
  static std::map<std::string, std::string> all;
  return all;
}

const char* look_up(const char* name) {
  const auto found = variables().find(name);
  return found == variables().end() ? nullptr : found->second.c_str();
}

void assert_places(const std::vector<std::string>& found, const std::vector<std::string>& wanted) {
  assert_int_equal(found.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    assert_string_equal(found[i].c_str(), wanted[i].c_str());
  }
}

void places_of_the_driver(void**) {
  variables().clear();
  const std::vector<std::string> usual{"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};
  assert_places(cuda::driver_places(look_up), usual);
  variables()["TRIREME_CUDA_DRIVER"] = "";
  assert_places(cuda::driver_places(look_up), usual);
  variables()["TRIREME_CUDA_DRIVER"] = "/here/libcuda.so";
  assert_places(cuda::driver_places(look_up), {"/here/libcuda.so"});
}

void places_of_nccl(void**) {
  variables().clear();
  assert_places(cuda::nccl_places(look_up, ""), {"libnccl.so.2"});
  variables()["CONDA_PREFIX"] = "/conda";
  variables()["CUDA_HOME"] = "/cuda";
  assert_places(cuda::nccl_places(look_up, "/site/trireme"),
                {"libnccl.so.2", "/site/trireme/libnccl.so.2",
                 "/site/trireme/../nvidia/nccl/lib/libnccl.so.2", "/conda/lib/libnccl.so.2",
                 "/cuda/lib64/libnccl.so.2"});
  variables()["TRIREME_NCCL_LIBRARY"] = "/here/libnccl.so";
  assert_places(cuda::nccl_places(look_up, "/site/trireme"), {"/here/libnccl.so"});
}

// A folder as pip fills it: our package, and NVIDIA's of NCCL beside it.
void nccl_of_a_wheel_is_found(void**) {
  namespace fs = std::filesystem;
  char pattern[] = "/tmp/trireme-search-XXXXXX";
  assert_non_null(mkdtemp(pattern));
  const fs::path site = fs::path(pattern) / "site-packages";
  const fs::path nccl = site / "nvidia/nccl/lib/libnccl.so.2";
  fs::create_directories(site / "trireme");
  fs::create_directories(nccl.parent_path());
  std::ofstream(nccl) << "NCCL";
  variables().clear();
  int found = 0;
  for (const std::string& place : cuda::nccl_places(look_up, (site / "trireme").string())) {
    if (place.find('/') != std::string::npos && fs::exists(place)) {
      assert_true(fs::equivalent(place, nccl));
      ++found;
    }
  }
  fs::remove_all(pattern);
  assert_int_equal(found, 1);
}

// The C library lies in one of the loader's folders.
void folders_of_the_loader(void**) {
  namespace fs = std::filesystem;
  int found = 0;
  for (const std::string& folder : loader_folders()) found += fs::exists(folder + "/libc.so.6");
  assert_true(found > 0);
}

void a_driver_is_as_new_as_the_kernels_need(void**) {
  assert_int_equal(cuda::least_driver(0), 12000);
  assert_int_equal(cuda::least_driver(12000), 12000);
  assert_int_equal(cuda::least_driver(12090), 12000);
  assert_int_equal(cuda::least_driver(13000), 13000);
  assert_int_equal(cuda::least_driver(13010), 13000);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(places_of_the_driver),
      cmocka_unit_test(places_of_nccl),
      cmocka_unit_test(nccl_of_a_wheel_is_found),
      cmocka_unit_test(folders_of_the_loader),
      cmocka_unit_test(a_driver_is_as_new_as_the_kernels_need),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
