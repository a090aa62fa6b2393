#include "platform/names.hpp"

#include <iterator>

namespace trireme {
namespace {

struct DtypeEntry {
  const char* name;
  std::uint64_t size;
};
// By number; 0 is none.
constexpr DtypeEntry kDtypes[] = {
    {"unknown", 0}, {"i8", 1},     {"u8", 1},     {"i16", 2},  {"u16", 2},   {"i32", 4},
    {"u32", 4},     {"i64", 8},    {"u64", 8},    {"f16", 2},  {"bf16", 2},  {"f32", 4},
    {"f64", 8},     {"f8e4m3", 1}, {"f8e5m2", 1}, {"bool", 1}, {"bytes", 1},
};
static_assert(std::size(kDtypes) == TRIREME_DTYPE_BYTES + 1);

constexpr const char* kReductions[] = {"unknown", "sum",  "average", "product", "min",
                                       "max",     "band", "bor",     "bxor",    "scaled_sum"};
static_assert(std::size(kReductions) == TRIREME_SCALED_SUM + 1);

const DtypeEntry& dtype_entry(trireme_dtype dtype) {
  const bool known = dtype >= TRIREME_DTYPE_I8 && dtype <= TRIREME_DTYPE_BYTES;
  return kDtypes[known ? dtype : 0];
}

}  // namespace

std::uint64_t dtype_size(trireme_dtype dtype) noexcept { return dtype_entry(dtype).size; }

const char* dtype_name(trireme_dtype dtype) noexcept { return dtype_entry(dtype).name; }

const char* reduction_name(trireme_reduction reduction) noexcept {
  const bool known = reduction >= TRIREME_SUM && reduction <= TRIREME_SCALED_SUM;
  return kReductions[known ? reduction : 0];
}

const char* status_name(trireme_status status) noexcept {
  switch (status) {
    case TRIREME_OK:
      return "OK";
    case TRIREME_ERROR_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case TRIREME_ERROR_INVALID_HANDLE:
      return "INVALID_HANDLE";
    case TRIREME_ERROR_INVALID_STATE:
      return "INVALID_STATE";
    case TRIREME_ERROR_UNSUPPORTED:
      return "UNSUPPORTED";
    case TRIREME_ERROR_OUT_OF_MEMORY:
      return "OUT_OF_MEMORY";
    case TRIREME_ERROR_TIMEOUT:
      return "TIMEOUT";
    case TRIREME_ERROR_ABORTED:
      return "ABORTED";
    case TRIREME_ERROR_PEER_LOST:
      return "PEER_LOST";
    case TRIREME_ERROR_MISMATCH:
      return "MISMATCH";
    case TRIREME_ERROR_CORRUPT:
      return "CORRUPT";
    case TRIREME_ERROR_AUTHENTICATION:
      return "AUTHENTICATION";
    case TRIREME_ERROR_SYSTEM:
      return "SYSTEM";
    case TRIREME_ERROR_CALLBACK:
      return "CALLBACK";
    case TRIREME_ERROR_CANCELLED:
      return "CANCELLED";
    case TRIREME_ERROR_INTERNAL:
      return "INTERNAL";
    default:
      return "UNKNOWN";
  }
}

}  // namespace trireme
