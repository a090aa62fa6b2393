// Names and sizes behind the numbers of the ABI, for the boundary and for messages of every room.
#pragma once

#include <trireme/status.h>
#include <trireme/types.h>

#include <cstdint>

namespace trireme {

std::uint64_t dtype_size(trireme_dtype dtype) noexcept;            // 0 for no dtype
const char* dtype_name(trireme_dtype dtype) noexcept;              // or "unknown"
const char* reduction_name(trireme_reduction reduction) noexcept;  // or "unknown"
const char* status_name(trireme_status status) noexcept;           // or "UNKNOWN"

}  // namespace trireme
