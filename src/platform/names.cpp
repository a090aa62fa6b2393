#include "platform/names.hpp"

#include <cstdio>
#include <iterator>

namespace trireme {
namespace {

// By number; 0 is none.
constexpr const char* kDtypes[] = {"unknown", "i8",     "u8",     "i16",  "u16",  "i32",
                                   "u32",     "i64",    "u64",    "f16",  "bf16", "f32",
                                   "f64",     "f8e4m3", "f8e5m2", "bool", "bytes"};
static_assert(std::size(kDtypes) == TRIREME_DTYPE_BYTES + 1);

constexpr const char* kReductions[] = {"unknown", "sum",  "average", "product", "min",
                                       "max",     "band", "bor",     "bxor",    "scaled_sum"};
static_assert(std::size(kReductions) == TRIREME_REDUCTION_SCALED_SUM + 1);

}  // namespace

const char* dtype_name(trireme_dtype dtype) noexcept {
  const bool known = dtype >= TRIREME_DTYPE_I8 && dtype <= TRIREME_DTYPE_BYTES;
  return kDtypes[known ? dtype : 0];
}

const char* reduction_name(trireme_reduction reduction) noexcept {
  const bool known =
      reduction >= TRIREME_REDUCTION_SUM && reduction <= TRIREME_REDUCTION_SCALED_SUM;
  return kReductions[known ? reduction : 0];
}

const char* status_name(trireme_status status) noexcept {
  switch (status) {
    case TRIREME_OK: return "OK";
    case TRIREME_ERROR_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case TRIREME_ERROR_INVALID_HANDLE: return "INVALID_HANDLE";
    case TRIREME_ERROR_INVALID_STATE: return "INVALID_STATE";
    case TRIREME_ERROR_UNSUPPORTED: return "UNSUPPORTED";
    case TRIREME_ERROR_OUT_OF_MEMORY: return "OUT_OF_MEMORY";
    case TRIREME_ERROR_TIMEOUT: return "TIMEOUT";
    case TRIREME_ERROR_ABORTED: return "ABORTED";
    case TRIREME_ERROR_PEER_LOST: return "PEER_LOST";
    case TRIREME_ERROR_MISMATCH: return "MISMATCH";
    case TRIREME_ERROR_CORRUPT: return "CORRUPT";
    case TRIREME_ERROR_AUTHENTICATION: return "AUTHENTICATION";
    case TRIREME_ERROR_SYSTEM: return "SYSTEM";
    case TRIREME_ERROR_CALLBACK: return "CALLBACK";
    case TRIREME_ERROR_CANCELLED: return "CANCELLED";
    case TRIREME_ERROR_INTERNAL: return "INTERNAL";
    case TRIREME_ERROR_DEVICE: return "DEVICE";
    default: return "UNKNOWN";
  }
}

std::string text_of(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

}  // namespace trireme
