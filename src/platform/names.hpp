// Names and sizes for the numbers of the ABI, for the boundary and for messages of every room.
#pragma once

#include <trireme/status.h>
#include <trireme/types.h>

#include <cstdint>
#include <string>

namespace trireme {

// 0 for no dtype.
inline std::uint64_t dtype_size(trireme_dtype dtype) noexcept {
  // by number; static, or each call would copy it first
  static constexpr std::uint8_t kSizes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 1, 1};
  static_assert(sizeof kSizes == TRIREME_DTYPE_BYTES + 1);
  const bool known = dtype >= TRIREME_DTYPE_I8 && dtype <= TRIREME_DTYPE_BYTES;
  return kSizes[known ? dtype : 0];
}

// The type of a parameter's gradients, their sums and its optimizer state: wide enough that sums
// never round to 16 bits.
inline trireme_dtype gradient_dtype(trireme_dtype dtype) noexcept {
  return dtype == TRIREME_DTYPE_F16 || dtype == TRIREME_DTYPE_BF16 ? TRIREME_DTYPE_F32 : dtype;
}

const char* dtype_name(trireme_dtype dtype) noexcept;              // or "unknown"
const char* reduction_name(trireme_reduction reduction) noexcept;  // or "unknown"
const char* status_name(trireme_status status) noexcept;           // or "UNKNOWN"

// The shortest text from which the same number is read back, bit for bit.
std::string text_of(double value);

}  // namespace trireme
