// random.h: check, call down.
#include "kernels/random.hpp"

#include <trireme/random.h>

#include <cmath>
#include <cstdio>

#include "api/boundary.hpp"
#include "platform/names.hpp"

using trireme::Status;
namespace api = trireme::api;
namespace kernels = trireme::kernels;

namespace {

constexpr const char* kDtypes = "random numbers are of f32, f64, f16 or bf16";

// Checks all but the pointers. *bytes: of the part.
Status read_part(const trireme_random_options* caller, trireme_dtype dtype,
                 kernels::RandomPart* part, std::uint64_t* bytes) {
  trireme_random_options options = {};
  TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", &options));
  const auto text = [](std::uint64_t value) { return std::to_string(value); };
  if (options.flags != 0) {
    return trireme::invalid_argument("options.flags is " + text(options.flags) + ", must be 0");
  }
  if (dtype != TRIREME_DTYPE_F32 && dtype != TRIREME_DTYPE_F64 && dtype != TRIREME_DTYPE_F16 &&
      dtype != TRIREME_DTYPE_BF16) {
    return trireme::unsupported("dtype " + text(static_cast<std::uint32_t>(dtype)) + " (" +
                                trireme::dtype_name(dtype) + "): " + kDtypes);
  }
  if (options.first_column > options.all_columns ||
      options.columns > options.all_columns - options.first_column) {
    return trireme::invalid_argument("options: " + text(options.columns) + " columns from column " +
                                     text(options.first_column) + " on reach beyond all_columns, " +
                                     text(options.all_columns));
  }
  *part = {options.seed,         options.draw,    options.first_row,  options.rows,
           options.first_column, options.columns, options.all_columns};
  *bytes = 0;
  if (options.rows == 0 || options.columns == 0) return Status::success();
  std::uint64_t end_row = 0, before = 0, last = 0;
  if (__builtin_add_overflow(options.first_row, options.rows, &end_row) ||
      __builtin_mul_overflow(end_row - 1, options.all_columns, &before) ||
      __builtin_add_overflow(before, options.first_column + options.columns - 1, &last)) {
    return trireme::invalid_argument(
        "options: " + text(options.rows) + " rows from row " + text(options.first_row) +
        " on, of " + text(options.all_columns) +
        " columns: the number of the last element does not fit into 64 bits");
  }
  if (__builtin_mul_overflow(options.rows, options.columns, bytes) ||
      __builtin_mul_overflow(*bytes, trireme::dtype_size(dtype), bytes) ||
      *bytes > UINT64_MAX / 2) {
    return trireme::invalid_argument("options: " + text(options.rows) + " rows of " +
                                     text(options.columns) + " columns do not fit into memory");
  }
  return Status::success();
}

Status refuse_overlap(const void* source, const void* destination, std::uint64_t bytes) {
  const auto from = reinterpret_cast<std::uintptr_t>(source),
             to = reinterpret_cast<std::uintptr_t>(destination);
  if (from == to || (from < to ? to - from : from - to) >= bytes) return Status::success();
  return trireme::invalid_argument(
      "source and destination overlap in part; in place, destination is source");
}

}  // namespace

trireme_status trireme_random_uniform(const trireme_random_options* options, void* data,
                                      trireme_dtype dtype) {
  return api::guard(__func__, [&]() -> Status {
    kernels::RandomPart part;
    std::uint64_t bytes = 0;
    TRIREME_RETURN_IF_ERROR(read_part(options, dtype, &part, &bytes));
    if (bytes == 0) return Status::success();
    TRIREME_RETURN_IF_ERROR(api::require(data, "data"));
    kernels::random_uniform(dtype, part, data);
    return Status::success();
  });
}

trireme_status trireme_random_dropout(const trireme_random_options* options, double rate,
                                      const void* source, void* destination, trireme_dtype dtype) {
  return api::guard(__func__, [&]() -> Status {
    kernels::RandomPart part;
    std::uint64_t bytes = 0;
    TRIREME_RETURN_IF_ERROR(read_part(options, dtype, &part, &bytes));
    if (!(rate >= 0 && rate < 1)) {
      char text[32];
      std::snprintf(text, sizeof text, "%.17g", rate);
      return trireme::invalid_argument(std::string("rate is ") + text +
                                       ", must be 0 or more and below 1");
    }
    if (bytes == 0) return Status::success();
    TRIREME_RETURN_IF_ERROR(api::require(source, "source"));
    TRIREME_RETURN_IF_ERROR(api::require(destination, "destination"));
    TRIREME_RETURN_IF_ERROR(refuse_overlap(source, destination, bytes));
    kernels::random_dropout(dtype, part, rate, source, destination);
    return Status::success();
  });
}
