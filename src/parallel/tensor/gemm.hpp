// Gemm: products of matrices, by the provider that the caller names.
#pragma once

#include <trireme/tensor.h>
#include <trireme/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "platform/status.hpp"

namespace trireme::parallel {

// result = left * right, or result + left * right. Elements of a row lie side by side; a step is
// the distance from row to row in elements, as the matrix lies in memory. A transposed matrix lies
// there as its transpose: `left` is rows by depth, or depth by rows if transposed.
struct GemmCall {
  trireme_dtype dtype = TRIREME_DTYPE_F32;  // of left and right; for the result see result_dtype()
  bool left_transposed = false, right_transposed = false;
  bool add = false;
  std::uint64_t rows = 0, columns = 0, depth = 0;
  const void* left = nullptr;
  std::uint64_t left_step = 0;
  const void* right = nullptr;
  std::uint64_t right_step = 0;
  void* result = nullptr;  // must not overlap left or right
  std::uint64_t result_step = 0;
};

// Products of f16 and bf16 are f32.
inline trireme_dtype result_dtype(trireme_dtype dtype) {
  return dtype == TRIREME_DTYPE_F64 ? TRIREME_DTYPE_F64 : TRIREME_DTYPE_F32;
}

struct GemmInfo {
  std::string provider{};  // "builtin", "loaded" or "caller"
  std::string library{};   // the name under which it was opened; "" of none
  std::string version{};   // as the library tells it; "" if it does not
  int threads = 1;         // that a product runs on; 0: not known
  // Whether equal calls gave equal bits, with other threads busy and at other addresses.
  bool repeatable = true;
  std::string difference{};  // the calls that gave other bits
};

// One call at a time.
class Gemm {
 public:
  virtual ~Gemm() = default;
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // Without rows or columns nothing happens. Without depth the product is 0.
  Status multiply(const GemmCall& call);
  const GemmInfo& info() const { return info_; }
  // Whether multiply() takes the dtype: f32 or f64, and perhaps f16 and bf16.
  Status check_dtype(trireme_dtype dtype) const;

 protected:
  explicit Gemm(GemmInfo info) : info_(std::move(info)) {}

  virtual bool takes(trireme_dtype dtype) const = 0;
  // All extents are above 0, and the matrices fit into memory.
  virtual Status run(const GemmCall& call) = 0;

  GemmInfo info_;
};

struct GemmOptions {
  std::string provider{};  // "builtin", "loaded" or "caller"
  // loaded: its file, or several with commas between; "" tries those of kBlasNames
  std::string library{};
  int threads = 1;                              // loaded
  trireme_product_callback callback = nullptr;  // caller
  void* user_data = nullptr;                    // caller
};

// The builtin sums in f64, one product after the other, and rounds once: the same bits on every
// machine, at every vector level, and for every cut of rows and columns of the result.
Status make_gemm(const GemmOptions& options, std::unique_ptr<Gemm>* out);

}  // namespace trireme::parallel
