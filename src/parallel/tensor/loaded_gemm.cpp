#include "parallel/tensor/loaded_gemm.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "parallel/tensor/gemm_trial.hpp"

namespace trireme::parallel {
namespace {

// Of cblas.h, which all these libraries share.
enum : int { kRowMajor = 101, kPlain = 111, kTransposed = 112 };
template <class Number, class T>
using Cblas = void (*)(int order, int left, int right, Number rows, Number columns, Number depth,
                       T factor, const T* a, Number a_step, const T* b, Number b_step, T kept, T* c,
                       Number c_step);

template <class Function>
Function find_function(const DynamicLibrary& library, const char* name) {
  return reinterpret_cast<Function>(library.symbol(name));
}

std::string trimmed(const char* text) {
  std::string all = text == nullptr ? "" : text;
  while (!all.empty() && (all.back() == ' ' || all.back() == '\n')) all.pop_back();
  return all;
}

std::string version_of(const DynamicLibrary& library) {
  using Tell = const char* (*)();
  for (const char* const name :
       {"openblas_get_config", "openblas_get_config64_", "bli_info_get_version_str"}) {
    if (const auto tell = find_function<Tell>(library, name)) return trimmed(tell());
  }
  using Write = void (*)(char*, int);
  for (const char* const name : {"mkl_get_version_string", "MKL_Get_Version_String"}) {
    if (const auto write = find_function<Write>(library, name)) {
      char text[256] = {};
      write(text, sizeof text - 1);
      return trimmed(text);
    }
  }
  return "";
}

template <class Number>
bool find_threads(const DynamicLibrary& library, const char* set_name, const char* get_name,
                  std::function<void(int)>* set, std::function<int()>* get, const void** sets) {
  const auto setter = find_function<void (*)(Number)>(library, set_name);
  const auto getter = find_function<Number (*)()>(library, get_name);
  if (setter == nullptr || getter == nullptr) return false;
  *sets = library.symbol(set_name);
  *set = [setter](int threads) { setter(threads); };
  *get = [getter] { return static_cast<int>(getter()); };
  return true;
}

// An environment variable gives MKL's functions 64-bit numbers under the same names.
bool mkl_is_wide() {
  const char* const layer = std::getenv("MKL_INTERFACE_LAYER");
  return layer != nullptr && std::strstr(layer, "ILP64") != nullptr;
}

// BLIS tells the bits of the numbers that cblas takes. The answer's type has 32 or 64 bits by the
// build; an int takes the lower ones of both.
bool blis_is_wide(const DynamicLibrary& library) {
  const auto bits = find_function<int (*)()>(library, "bli_info_get_blas_int_type_size");
  return bits != nullptr && bits() != 32;
}

struct SharedThreads {
  int threads = 0;
  int before = 0;  // the library's number when the first user came
  int users = 0;
};

// The libraries in use, by the function of each that sets its number of threads.
class ThreadTable {
 public:
  // Never destroyed: a Gemm may outlive static objects.
  static ThreadTable& whole() {
    static ThreadTable* const table = new ThreadTable;
    return *table;
  }

  std::mutex mutex;  // guards `libraries` and the number of threads while it is set
  std::map<const void*, SharedThreads> libraries;
};

}  // namespace

Status LoadedGemm::find(const DynamicLibrary& library, const std::string& name,
                        Functions* functions, GemmInfo* info) {
  info->library = name;
  info->version = version_of(library);
  functions->f32 = library.symbol("cblas_sgemm");
  functions->f64 = library.symbol("cblas_dgemm");
  const bool plain = functions->f32 != nullptr && functions->f64 != nullptr;
  if (!plain) {
    functions->f32 = library.symbol("cblas_sgemm64_");
    functions->f64 = library.symbol("cblas_dgemm64_");
    functions->wide = true;
    if (functions->f32 == nullptr || functions->f64 == nullptr) {
      return unsupported("it has no cblas_sgemm and cblas_dgemm, nor these names with 64_");
    }
  } else if (info->version.find("USE64BITINT") != std::string::npos) {
    return unsupported("its cblas_sgemm has 64-bit numbers; build it with the symbol suffix 64_");
  } else if (library.symbol("MKL_Set_Num_Threads") != nullptr && mkl_is_wide()) {
    return unsupported("MKL_INTERFACE_LAYER gives it 64-bit numbers; set it to LP64");
  } else if (blis_is_wide(library)) {
    return unsupported("its cblas_sgemm has 64-bit numbers; build it with a BLAS integer of 32");
  }
  auto* const set = &functions->set_threads;
  auto* const get = &functions->threads;
  auto* const sets = &functions->sets;
  find_threads<int>(library, "openblas_set_num_threads", "openblas_get_num_threads", set, get,
                    sets) ||
      find_threads<int>(library, "openblas_set_num_threads64_", "openblas_get_num_threads64_", set,
                        get, sets) ||
      find_threads<int>(library, "MKL_Set_Num_Threads", "MKL_Get_Max_Threads", set, get, sets) ||
      find_threads<std::int64_t>(library, "bli_thread_set_num_threads",
                                 "bli_thread_get_num_threads", set, get, sets);
  return Status::success();
}

Status LoadedGemm::share_threads(int threads) {
  const std::string asked = "threads is " + std::to_string(threads);
  info_.threads = 0;
  if (!functions_.set_threads) {
    if (threads == 1) return Status::success();
    return unsupported(asked + ", but " + info_.library + " has no function that sets it");
  }
  ThreadTable& table = ThreadTable::whole();
  const std::lock_guard lock(table.mutex);
  SharedThreads& shared = table.libraries[functions_.sets];
  if (shared.users == 0) {
    shared.threads = threads;
    shared.before = functions_.threads();
  } else if (shared.threads != threads) {
    return invalid_state(asked + ", but " + info_.library + " computes with " +
                         std::to_string(shared.threads) +
                         " in this process, and has one number for all");
  }
  ++shared.users;
  shares_threads_ = true;
  functions_.set_threads(threads);
  info_.threads = functions_.threads();
  if (info_.threads == threads) return Status::success();
  return unsupported(asked + ", but " + info_.library + " takes " + std::to_string(info_.threads));
}

LoadedGemm::~LoadedGemm() {
  if (!shares_threads_) return;
  ThreadTable& table = ThreadTable::whole();
  const std::lock_guard lock(table.mutex);
  const auto at = table.libraries.find(functions_.sets);
  if (--at->second.users > 0) return;
  if (!opened_) functions_.set_threads(at->second.before);
  table.libraries.erase(at);
}

Status LoadedGemm::open_one(const std::string& name, const LoadedOptions& options,
                            std::unique_ptr<Gemm>* out) {
  std::string why;
  const DynamicLibrary library = DynamicLibrary::open(name, &why);
  if (!why.empty()) return unsupported(why);
  Functions functions;
  GemmInfo info;
  info.provider = "loaded";
  TRIREME_RETURN_IF_ERROR(find(library, name, &functions, &info));
  const std::int64_t limit = functions.wide ? std::numeric_limits<std::int64_t>::max()
                                            : std::numeric_limits<std::int32_t>::max();
  std::unique_ptr<LoadedGemm> made(
      new LoadedGemm(std::move(info), std::move(functions), std::min(options.most, limit)));
  TRIREME_RETURN_IF_ERROR(made->share_threads(options.threads));
  TRIREME_RETURN_IF_ERROR(made->try_out());
  made->opened_ = true;
  *out = std::move(made);
  return Status::success();
}

Status LoadedGemm::open(const LoadedOptions& options, std::unique_ptr<Gemm>* out) {
  if (options.threads < 1) {
    return invalid_argument("threads is " + std::to_string(options.threads) +
                            ", must be 1 or more");
  }
  std::vector<std::string> names = options.names;
  if (!options.library.empty()) names = {options.library};
  std::string tried;
  for (const std::string& name : names) {
    const Status opened = open_one(name, options, out);
    if (opened.code() != TRIREME_ERROR_UNSUPPORTED) return opened;
    tried += "; tried " + name + ": " + opened.message();
  }
  return unsupported("no BLAS for gemm loaded" + tried);
}

Status LoadedGemm::try_out() {
  GemmTrial trial;
  TRIREME_RETURN_IF_ERROR(try_gemm(*this, &trial));
  if (!trial.wrong.empty()) {
    return unsupported(info_.library + " computes wrong products: " + trial.wrong);
  }
  info_.repeatable = trial.difference.empty();
  info_.difference = trial.difference;
  return Status::success();
}

bool LoadedGemm::takes(trireme_dtype dtype) const {
  return dtype == TRIREME_DTYPE_F32 || dtype == TRIREME_DTYPE_F64;
}

template <class Number, class T>
void LoadedGemm::call_blas(void* at, const GemmCall& call) const {
  const auto blas = reinterpret_cast<Cblas<Number, T>>(at);
  const auto* const left = static_cast<const T*>(call.left);
  const auto* const right = static_cast<const T*>(call.right);
  auto* const result = static_cast<T*>(call.result);
  const auto number = [](std::uint64_t value) { return static_cast<Number>(value); };
  const auto most = static_cast<std::uint64_t>(most_);
  // Both loops make one pass, but for extents above `most`.
  for (std::uint64_t row = 0, rows = 0; row < call.rows; row += rows) {
    rows = std::min(most, call.rows - row);
    for (std::uint64_t k = 0, depth = 0; k < call.depth; k += depth) {
      depth = std::min(most, call.depth - k);
      blas(kRowMajor, call.left_transposed ? kTransposed : kPlain,
           call.right_transposed ? kTransposed : kPlain, number(rows), number(call.columns),
           number(depth), 1,
           left + (call.left_transposed ? k * call.left_step + row : row * call.left_step + k),
           number(call.left_step), right + (call.right_transposed ? k : k * call.right_step),
           number(call.right_step), call.add || k > 0 ? T(1) : T(0),
           result + row * call.result_step, number(call.result_step));
    }
  }
}

Status LoadedGemm::run(const GemmCall& call) {
  const auto most = static_cast<std::uint64_t>(most_);
  const struct {
    const char* name;
    std::uint64_t value;
  } numbers[] = {{"left_step", call.left_step},
                 {"right_step", call.right_step},
                 {"result_step", call.result_step}};
  for (const auto& [name, value] : numbers) {
    if (value <= most) continue;
    return unsupported(std::string(name) + " is " + std::to_string(value) + ", above " +
                       std::to_string(most_) + ", the largest that " + info_.library + " takes");
  }
  // Others in this process set the number, too. Another one gives other bits.
  {
    const std::lock_guard lock(ThreadTable::whole().mutex);
    if (functions_.threads && functions_.threads() != info_.threads) {
      functions_.set_threads(info_.threads);
    }
  }
  const bool f64 = call.dtype == TRIREME_DTYPE_F64;
  if (functions_.wide) {
    f64 ? call_blas<std::int64_t, double>(functions_.f64, call)
        : call_blas<std::int64_t, float>(functions_.f32, call);
  } else {
    f64 ? call_blas<std::int32_t, double>(functions_.f64, call)
        : call_blas<std::int32_t, float>(functions_.f32, call);
  }
  return Status::success();
}

}  // namespace trireme::parallel
