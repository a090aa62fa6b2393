#include "model/gradients/encoding.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

namespace {

// ---- f32 as numbers of 16 bits ----

void encode_narrow(trireme_dtype dtype, const sharding::Bucket& bucket, const char* contribution,
                   char* to, OverflowWatch& overflow) {
  kernels::narrow(dtype, to, reinterpret_cast<const float*>(contribution), bucket.elements);
  for (const sharding::Segment& segment : bucket.segments) {
    overflow.look(segment.parameter, dtype, to + segment.position * dtype_size(dtype),
                  segment.count);
  }
}

// The same fold, of as many elements at a time as stay in the first cache as f32.
struct WideningFold {
  static constexpr std::uint64_t kStretch = 512;
  trireme_dtype dtype;
  Fold fold;

  void operator()(std::uint64_t first, std::uint64_t count, const void* const* sources,
                  std::uint32_t source_count) const {
    // It exists only during the fold, because many may be in flight.
    const auto memory = std::make_unique_for_overwrite<float[]>(source_count * kStretch);
    std::vector<const void*> wide(source_count);
    for (std::uint64_t done = 0; done < count; done += kStretch) {
      const std::uint64_t here = std::min(kStretch, count - done);
      for (std::uint32_t i = 0; i < source_count; ++i) {
        if (sources[i] == nullptr) continue;
        float* const to = memory.get() + i * kStretch;
        kernels::widen(dtype, to, static_cast<const char*>(sources[i]) + done * dtype_size(dtype),
                       here);
        wide[i] = to;
      }
      fold(first + done, here, wide.data(), source_count);
    }
  }
};

Fold decoding_narrow(trireme_dtype dtype, Fold fold) {
  return WideningFold{dtype, std::move(fold)};
}

constexpr Encoding kEncodings[] = {
    {TRIREME_DTYPE_F16, encode_narrow, decoding_narrow},
    {TRIREME_DTYPE_BF16, encode_narrow, decoding_narrow},
};

}  // namespace

const Encoding* encoding_of(const sharding::Spread& spread) {
  const auto* const found =
      std::find_if(std::begin(kEncodings), std::end(kEncodings),
                   [&](const Encoding& row) { return row.dtype == spread.reduce_dtype; });
  return found == std::end(kEncodings) ? nullptr : found;
}

}  // namespace trireme::strategies
