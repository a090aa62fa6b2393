#include "devices/cuda/plugin/nccl.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <vector>

#include "devices/cuda/plugin/search.hpp"
#include "platform/dynamic_library.hpp"

namespace trireme::cuda {
namespace {

constexpr int kLeast = 21800;

// Without these a group cannot be made, ended at a deadline, or used.
#define TRIREME_NCCL_NAME(name, parameters) "nccl" #name,
constexpr const char* kFunctions[] = {
    TRIREME_NCCL_FUNCTIONS(TRIREME_NCCL_NAME) "ncclGetErrorString", "ncclGetLastError"};
#undef TRIREME_NCCL_NAME

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

Status NcclLibrary::check(const char* function, NcclResult result) const {
  if (result == kNcclDone || result == kNcclBusy) return Status::success();
  const char* const words = GetErrorString(result);
  const char* const last = GetLastError(nullptr);
  std::string text = std::string(function) + " answers " + std::to_string(result) + " (" +
                     (words == nullptr ? "" : words) + ")";
  if (last != nullptr && *last != 0) text += ": " + std::string(last);
  return Status::failure(TRIREME_ERROR_DEVICE, text);
}

namespace {

void bind(const DynamicLibrary& library, NcclLibrary* out) {
#define TRIREME_NCCL_BIND(name, parameters) \
  out->name = reinterpret_cast<decltype(out->name)>(library.symbol("nccl" #name));
  TRIREME_NCCL_FUNCTIONS(TRIREME_NCCL_BIND)
#undef TRIREME_NCCL_BIND
  out->GetErrorString =
      reinterpret_cast<decltype(out->GetErrorString)>(library.symbol("ncclGetErrorString"));
  out->GetLastError =
      reinterpret_cast<decltype(out->GetLastError)>(library.symbol("ncclGetLastError"));
}

// The loader gives a copy that the process has loaded already. A place that does not serve is a
// try, and the next one may.
Status load_first(std::unique_ptr<NcclLibrary>* out) {
  const auto environment = [](const char* name) -> const char* { return std::getenv(name); };
  std::string tries;
  for (const std::string& place : nccl_places(environment, own_folder())) {
    std::string why;
    const DynamicLibrary library = DynamicLibrary::open(place, &why);
    Nccl found{place};
    if (why.empty()) why = look(library, &found);
    if (!why.empty()) {
      tries += (tries.empty() ? "tried " : "; tried ") + place + ": " + why;
      continue;
    }
    auto opened = std::make_unique<NcclLibrary>();
    bind(library, opened.get());
    opened->file = place;
    opened->version = found.version;
    *out = std::move(opened);
    return Status::success();
  }
  return unsupported("no NCCL: " + tries);
}

}  // namespace

// No lock, as for the plugin itself: a forked child would wait for it. Of two threads at once the
// second one's table is freed; both stand for the same library.
Status open_nccl(const NcclLibrary** out) {
  static constinit std::atomic<const NcclLibrary*> loaded{nullptr};
  *out = loaded.load(std::memory_order_acquire);
  if (*out != nullptr) return Status::success();
  std::unique_ptr<NcclLibrary> opened;
  TRIREME_RETURN_IF_ERROR(load_first(&opened));
  if (loaded.compare_exchange_strong(*out, opened.get(), std::memory_order_acq_rel)) {
    *out = opened.release();
  }
  return Status::success();
}

}  // namespace trireme::cuda
