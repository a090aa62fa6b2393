#include "devices/cuda/plugin/nccl.hpp"

#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "devices/cuda/plugin/search.hpp"
#include "platform/dynamic_library.hpp"

namespace trireme::cuda {
namespace {

constexpr int kLeast = 21800;

// Without these a group cannot be made, ended at a deadline, or used.
constexpr const char* kFunctions[] = {"ncclAllGather",
                                      "ncclAllReduce",
                                      "ncclBroadcast",
                                      "ncclCommAbort",
                                      "ncclCommDestroy",
                                      "ncclCommFinalize",
                                      "ncclCommGetAsyncError",
                                      "ncclCommInitRankConfig",
                                      "ncclGetErrorString",
                                      "ncclGetLastError",
                                      "ncclGetUniqueId",
                                      "ncclGroupEnd",
                                      "ncclGroupStart",
                                      "ncclRecv",
                                      "ncclReduce",
                                      "ncclReduceScatter",
                                      "ncclSend"};

std::string text_of(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
         std::to_string(version % 100);
}

// The reason if it does not serve.
std::string look(const DynamicLibrary& library, Nccl* out) {
  using GetVersion = int (*)(int* version);
  const auto get = reinterpret_cast<GetVersion>(library.symbol("ncclGetVersion"));
  if (get == nullptr) return "it is no NCCL: it has no ncclGetVersion";
  const int result = get(&out->version);
  if (result != 0) return "ncclGetVersion answers " + std::to_string(result);
  if (out->version < kLeast) {
    return "it is NCCL " + text_of(out->version) + ", but at least " + text_of(kLeast) +
           " is needed";
  }
  for (const char* const name : kFunctions) {
    if (library.symbol(name) == nullptr) return std::string("it has no ") + name;
  }
  return "";
}

// A name stands for a file in each of the loader's folders.
std::vector<std::string> files_of(const std::string& place) {
  if (place.find('/') != std::string::npos) return {place};
  std::vector<std::string> files;
  for (const std::string& folder : loader_folders()) files.push_back(folder + "/" + place);
  return files;
}

}  // namespace

// It loads no file. A loaded NCCL serves all libraries of a process, and PyTorch may need a newer
// one than this search finds.
Status find_nccl(Nccl* out) {
  const auto environment = [](const char* name) -> const char* { return std::getenv(name); };
  const std::vector<std::string> places = nccl_places(environment, own_folder());
  for (const std::string& place : places) {
    const DynamicLibrary library = DynamicLibrary::loaded(place);
    if (!library.is_open()) continue;
    Nccl found{place};
    const std::string why = look(library, &found);
    if (!why.empty()) return unsupported("no NCCL: the process has loaded " + place + ": " + why);
    *out = found;
    return Status::success();
  }
  std::string tries;
  for (const std::string& place : places) {
    for (const std::string& file : files_of(place)) {
      if (access(file.c_str(), R_OK) == 0) {
        *out = {file};
        return Status::success();
      }
    }
    tries += (tries.empty() ? "tried " : "; tried ") + place + ": there is no such file";
  }
  return unsupported("no NCCL: " + tries);
}

}  // namespace trireme::cuda
