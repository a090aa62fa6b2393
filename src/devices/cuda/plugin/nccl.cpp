#include "devices/cuda/plugin/nccl.hpp"

#include <cstdlib>

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

}  // namespace

Status find_nccl(Nccl* out) {
  std::string tries;
  const auto environment = [](const char* name) -> const char* { return std::getenv(name); };
  for (const std::string& place : nccl_places(environment, own_folder())) {
    std::string why;
    const DynamicLibrary library = DynamicLibrary::open(place, &why);
    Nccl found{place};
    if (why.empty()) why = look(library, &found);
    if (why.empty()) {
      *out = found;
      return Status::success();
    }
    tries += (tries.empty() ? "tried " : "; tried ") + place + ": " + why;
  }
  return unsupported("no NCCL: " + tries);
}

}  // namespace trireme::cuda
