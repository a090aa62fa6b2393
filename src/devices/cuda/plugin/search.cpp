#include "devices/cuda/plugin/search.hpp"

namespace trireme::cuda {
namespace {

std::string value_of(Environment environment, const char* name) {
  const char* const value = environment(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::vector<std::string> driver_places(Environment environment) {
  const std::string named = value_of(environment, "TRIREME_CUDA_DRIVER");
  if (!named.empty()) return {named};
  // The second one is where Windows' Subsystem for Linux puts it, which the loader may not search.
  return {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};
}

std::vector<std::string> nccl_places(Environment environment, const std::string& folder) {
  const std::string named = value_of(environment, "TRIREME_NCCL_LIBRARY");
  if (!named.empty()) return {named};
  const std::string file = "libnccl.so.2";
  // By name the loader finds a copy that the process has loaded already, such as PyTorch's.
  std::vector<std::string> places{file};
  if (!folder.empty()) {
    places.push_back(folder + "/" + file);
    // The wheels nvidia-nccl-cu12 and nvidia-nccl-cu13, from the folder of a Python package.
    places.push_back(folder + "/../nvidia/nccl/lib/" + file);
  }
  const std::string conda = value_of(environment, "CONDA_PREFIX");
  if (!conda.empty()) places.push_back(conda + "/lib/" + file);
  const std::string cuda = value_of(environment, "CUDA_HOME");
  if (!cuda.empty()) places.push_back(cuda + "/lib64/" + file);
  return places;
}

}  // namespace trireme::cuda
