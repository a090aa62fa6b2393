#include "kernels/gaps.hpp"

#include <cstddef>
#include <cstring>

#include "kernels/vector.hpp"

namespace trireme::kernels {
namespace {

static_assert(static_cast<std::uint16_t>(Gap::in_activations) == kGapMark);
static_assert(static_cast<std::uint16_t>(Gap::in_gradients) == (kGapMark | kGapMarks));

// The mark of activations, read as f16, bf16 and f32 and converted to f32; below, those converted
// to f64.
constexpr std::uint32_t kNarrow[] = {0x7fff8000, 0x7ffc0000, 0x7ffc7ffc};
constexpr std::uint64_t widened(std::uint32_t bits) {
  return std::uint64_t{0x7ff} << 52 | std::uint64_t{bits & 0x7fffff} << 29;
}

template <class Bits>
struct [[gnu::packed, gnu::may_alias]] Cell {
  Bits value;
};

template <class Bits, std::size_t kCount>
bool has_one_of(const void* values, std::uint64_t count, const Bits (&wanted)[kCount]) {
  const auto* const cells = static_cast<const Cell<Bits>*>(values);
  Bits found = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const Bits magnitude = cells[i].value & (static_cast<Bits>(-1) >> 1);
    for (const Bits one : wanted) found |= magnitude == one ? 1 : 0;
  }
  return found != 0;
}

template <class T>
bool has_nan_of(const void* values, std::uint64_t count) {
  const auto* const cells = static_cast<const Cell<T>*>(values);
  bool found = false;
  for (std::uint64_t i = 0; i < count; ++i) found |= cells[i].value != cells[i].value;
  return found;
}

}  // namespace

bool has_nan(trireme_dtype dtype, const void* values, std::uint64_t count) {
  return dtype == TRIREME_DTYPE_F64 ? has_nan_of<double>(values, count)
                                    : has_nan_of<float>(values, count);
}

bool has_trace(trireme_dtype dtype, const void* values, std::uint64_t count) {
  if (dtype != TRIREME_DTYPE_F64) return has_one_of(values, count, kNarrow);
  constexpr std::uint64_t kWide[] = {widened(kNarrow[0]), widened(kNarrow[1]), widened(kNarrow[2]),
                                     0x7ffc7ffc7ffc7ffc};
  return has_one_of(values, count, kWide);
}

void mark_gap(void* memory, std::uint64_t bytes, Gap gap) {
  loops().mark(memory, bytes, static_cast<std::uint16_t>(gap));
}

std::uint64_t find_gap(trireme_dtype dtype, const void* values, std::uint64_t first,
                       std::uint64_t count, Gap gap) {
  const bool wide = dtype == TRIREME_DTYPE_F64;
  const std::uint64_t size = wide ? 8 : 4;
  const auto* const bytes = static_cast<const char*>(values);
  // One look finds both marks; the element tells its mark.
  while (first < count) {
    first += loops().first_marked[wide ? 1 : 0](bytes + first * size, count - first);
    if (first == count) break;
    std::uint16_t half = 0;
    std::memcpy(&half, bytes + first * size, sizeof half);
    if (half == static_cast<std::uint16_t>(gap)) break;
    ++first;
  }
  return first;
}

}  // namespace trireme::kernels
