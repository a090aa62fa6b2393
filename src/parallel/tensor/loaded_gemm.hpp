// LoadedGemm: products by a BLAS that is opened at run time. Nothing links one.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "parallel/tensor/gemm.hpp"
#include "platform/dynamic_library.hpp"

namespace trireme::parallel {

// Tried in this order where the caller names no library.
inline constexpr const char* kBlasNames[] = {"libopenblas.so.0", "libopenblas.so", "libblis.so.4",
                                             "libblis.so",       "libmkl_rt.so.2", "libmkl_rt.so",
                                             "libcblas.so.3",    "libblas.so.3"};

struct LoadedOptions {
  std::string library{};  // "": the first of `names` that can be used
  std::vector<std::string> names{std::begin(kBlasNames), std::end(kBlasNames)};
  int threads = 1;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();  // extent in one call; for tests
};

// Its functions are cblas_sgemm and cblas_dgemm. Those of libraries with 64-bit numbers end in
// "64_". Without that ending they are refused where the library tells the width, because a call
// with 32 bits would pass garbage. OpenBLAS and BLIS tell it. MKL has it from an environment
// variable; 64 bits that a program has chosen by a call of MKL go unnoticed, and so do those of any
// other library.
class LoadedGemm final : public Gemm {
 public:
  // Makes equal products twice, and compares them with a plain loop. A library whose products are
  // wrong is refused. One whose bits differ is not: info() says so. A refused library keeps the
  // number of threads that it had.
  //
  // A library has one number of threads for the whole process, which decides the bits. So another
  // number is refused with TRIREME_ERROR_INVALID_STATE while a LoadedGemm of that library lives.
  static Status open(const LoadedOptions& options, std::unique_ptr<Gemm>* out);
  ~LoadedGemm() override;

 private:
  struct Functions {
    void* f32 = nullptr;
    void* f64 = nullptr;
    bool wide = false;  // numbers of 64 bits
    std::function<void(int)> set_threads;
    std::function<int()> threads;
    const void* sets = nullptr;  // the address of the library's function: tells who has the number
  };

  LoadedGemm(GemmInfo info, Functions functions, std::int64_t most)
      : Gemm(std::move(info)), functions_(std::move(functions)), most_(most) {}

  static Status open_one(const std::string& name, const LoadedOptions& options,
                         std::unique_ptr<Gemm>* out);
  static Status find(const DynamicLibrary& library, const std::string& name, Functions* functions,
                     GemmInfo* info);
  // Takes part in the library's number of threads, and the destructor ends that.
  Status share_threads(int threads);
  Status try_out();

  bool takes(trireme_dtype dtype) const override;
  Status run(const GemmCall& call) override;
  template <class Number, class T>
  void call_blas(void* function, const GemmCall& call) const;

  const Functions functions_;
  const std::int64_t most_;
  bool shares_threads_ = false;
  bool opened_ = false;
};

}  // namespace trireme::parallel
