#include "parallel/tensor/gemm.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/matrix.hpp"
#include "parallel/tensor/loaded_gemm.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {
namespace {

// A matrix as it lies in memory.
struct MatrixLines {
  const char* name;
  const void* data;
  std::uint64_t lines, width, step, size;
};

Status check_lines(const MatrixLines& matrix) {
  if (matrix.lines == 0 || matrix.width == 0) return Status::success();
  if (matrix.data == nullptr) return invalid_argument(std::string(matrix.name) + " is NULL");
  if (matrix.step < matrix.width) {
    return invalid_argument(std::string(matrix.name) + "_step is " + std::to_string(matrix.step) +
                            ", below " + std::to_string(matrix.width) + ", the length of a row");
  }
  std::uint64_t end = 0;
  if (__builtin_mul_overflow(matrix.lines - 1, matrix.step, &end) ||
      __builtin_add_overflow(end, matrix.width, &end) ||
      __builtin_mul_overflow(end, matrix.size, &end) || end > UINT64_MAX / 2) {
    return invalid_argument(std::string(matrix.name) + ": " + std::to_string(matrix.lines) +
                            " rows, " + std::to_string(matrix.step) +
                            " elements apart, do not fit into memory");
  }
  return Status::success();
}

// "a, b" is a and b.
std::vector<std::string> names_of_list(const std::string& list) {
  std::vector<std::string> names;
  for (std::size_t first = 0; first <= list.size();) {
    const std::size_t end = std::min(list.find(',', first), list.size());
    std::string name = list.substr(first, end - first);
    name.erase(0, std::min(name.find_first_not_of(' '), name.size()));
    while (!name.empty() && name.back() == ' ') name.pop_back();
    if (!name.empty()) names.push_back(std::move(name));
    first = end + 1;
  }
  return names;
}

class BuiltinGemm final : public Gemm {
 public:
  BuiltinGemm() : Gemm({.provider = "builtin"}) {}

 private:
  bool takes(trireme_dtype) const override { return true; }
  Status run(const GemmCall& call) override {
    kernels::MatrixProduct product = {};
    product.left = call.left;
    product.left_row = call.left_transposed ? 1 : call.left_step;
    product.left_k = call.left_transposed ? call.left_step : 1;
    product.right = call.right;
    product.right_k = call.right_transposed ? 1 : call.right_step;
    product.right_column = call.right_transposed ? call.right_step : 1;
    product.result = call.result;
    product.result_step = call.result_step;
    product.added = call.add ? call.result : nullptr;
    product.added_step = call.result_step;
    product.added_factor = product.factor = 1;
    product.rows = call.rows;
    product.columns = call.columns;
    product.depth = call.depth;
    const std::uint64_t needed = kernels::product_memory(call.rows, call.columns, call.depth);
    if (memory_.size() < needed) memory_.resize(needed);
    kernels::multiply(call.dtype, product, memory_.data());
    return Status::success();
  }

  std::vector<double> memory_;
};

class CallerGemm final : public Gemm {
 public:
  CallerGemm(trireme_product_callback callback, void* user_data)
      : Gemm({.provider = "caller", .threads = 0}), callback_(callback), user_data_(user_data) {}

 private:
  bool takes(trireme_dtype) const override { return true; }
  Status run(const GemmCall& call) override {
    const trireme_product product = {.struct_size = sizeof(trireme_product),
                                     .dtype = call.dtype,
                                     .left_transposed = call.left_transposed,
                                     .right_transposed = call.right_transposed,
                                     .add = call.add,
                                     .reserved = 0,
                                     .rows = call.rows,
                                     .columns = call.columns,
                                     .depth = call.depth,
                                     .left = call.left,
                                     .left_step = call.left_step,
                                     .right = call.right,
                                     .right_step = call.right_step,
                                     .result = call.result,
                                     .result_step = call.result_step};
    const auto failed = [&](const std::string& how) {
      return Status::failure(TRIREME_ERROR_CALLBACK, "the caller's product of " +
                                                         std::to_string(call.rows) + " by " +
                                                         std::to_string(call.depth) + " by " +
                                                         std::to_string(call.columns) + " " + how);
    };
    std::int32_t answer = 0;
    try {
      answer = callback_(&product, user_data_);
    } catch (...) {  // of a caller in C++
      return failed("threw an exception");
    }
    return answer == 0 ? Status::success() : failed("answered " + std::to_string(answer));
  }

  const trireme_product_callback callback_;
  void* const user_data_;
};

}  // namespace

Status Gemm::check_dtype(trireme_dtype dtype) const {
  switch (dtype) {
    case TRIREME_DTYPE_F32:
    case TRIREME_DTYPE_F64:
    case TRIREME_DTYPE_F16:
    case TRIREME_DTYPE_BF16:
      if (takes(dtype)) return Status::success();
      [[fallthrough]];
    default:
      return unsupported(std::string("products of ") + dtype_name(dtype) + " (" +
                         std::to_string(dtype) + ") by the provider " + info_.provider);
  }
}

Status Gemm::multiply(const GemmCall& call) {
  TRIREME_RETURN_IF_ERROR(check_dtype(call.dtype));
  if (call.rows == 0 || call.columns == 0) return Status::success();
  const std::uint64_t size = dtype_size(call.dtype), wide = dtype_size(result_dtype(call.dtype));
  const auto lines_of = [&](const char* name, const void* data, std::uint64_t step, bool transposed,
                            std::uint64_t rows, std::uint64_t columns) -> MatrixLines {
    return {name, data, transposed ? columns : rows, transposed ? rows : columns, step, size};
  };
  TRIREME_RETURN_IF_ERROR(check_lines(
      lines_of("left", call.left, call.left_step, call.left_transposed, call.rows, call.depth)));
  TRIREME_RETURN_IF_ERROR(check_lines(lines_of("right", call.right, call.right_step,
                                               call.right_transposed, call.depth, call.columns)));
  TRIREME_RETURN_IF_ERROR(
      check_lines({"result", call.result, call.rows, call.columns, call.result_step, wide}));
  if (call.depth > 0) return run(call);
  for (std::uint64_t row = 0; row < call.rows && !call.add; ++row) {
    std::memset(static_cast<char*>(call.result) + row * call.result_step * wide, 0,
                call.columns * wide);
  }
  return Status::success();
}

Status make_gemm(const GemmOptions& options, std::unique_ptr<Gemm>* out) {
  const bool builtin = options.provider == "builtin", loaded = options.provider == "loaded",
             caller = options.provider == "caller";
  if (!builtin && !loaded && !caller) {
    return invalid_argument("gemm '" + options.provider + "' is none of builtin, loaded, caller");
  }
  const auto means_nothing = [&](const char* what) {
    return invalid_argument(std::string(what) + " means nothing with gemm " + options.provider);
  };
  if (!loaded && !options.library.empty()) return means_nothing("a library");
  if (!loaded && options.threads != 1) return means_nothing("a number of threads");
  if (!caller && (options.callback != nullptr || options.user_data != nullptr)) {
    return means_nothing("a callback");
  }
  if (loaded) {
    LoadedOptions blas = {.threads = options.threads};
    if (!options.library.empty()) blas.names = names_of_list(options.library);
    return LoadedGemm::open(blas, out);
  }
  if (builtin) {
    *out = std::make_unique<BuiltinGemm>();
    return Status::success();
  }
  if (options.callback == nullptr) return invalid_argument("gemm caller needs a callback");
  *out = std::make_unique<CallerGemm>(options.callback, options.user_data);
  return Status::success();
}

}  // namespace trireme::parallel
