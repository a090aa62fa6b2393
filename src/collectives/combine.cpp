#include "collectives/combine.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme {
namespace {

constexpr std::uint64_t kBlock = 2048;  // elements; two blocks of floats stay in the first cache

void combine_alike(const Reduction& how, void* destination, bool partial,
                   const std::vector<Operand>& sources, std::uint64_t count) {
  const trireme_reduction plain = kernels::unfinished(how.reduction);
  const bool is_there = sources.size() == 1 && sources[0].partial && sources[0].data == destination;
  if (is_there && (partial || plain == how.reduction)) return;
  std::vector<const void*> all;
  all.reserve(sources.size());
  for (const Operand& source : sources) all.push_back(source.data);
  kernels::reduce(how.dtype, partial ? plain : how.reduction, destination, all.data(),
                  static_cast<std::uint32_t>(all.size()), count, how.ranks, how.scale);
}

// Loads a block of a source as f32, from element `first` on.
void load(const Reduction& how, const Operand& source, std::uint64_t first, std::uint64_t count,
          float* to) {
  if (source.partial) {
    std::memcpy(to, static_cast<const float*>(source.data) + first, count * sizeof(float));
  } else {
    kernels::widen(how.dtype, to,
                   static_cast<const std::byte*>(source.data) + first * dtype_size(how.dtype),
                   count);
  }
}

void combine_narrow(const Reduction& how, void* destination, bool partial,
                    const std::vector<Operand>& sources, std::uint64_t count) {
  alignas(64) float sum[kBlock];
  alignas(64) float next[kBlock];
  const void* const both[] = {sum, next};
  for (std::uint64_t first = 0; first < count; first += kBlock) {
    const std::uint64_t here = std::min(kBlock, count - first);
    load(how, sources[0], first, here, sum);
    for (std::size_t k = 1; k < sources.size(); ++k) {
      load(how, sources[k], first, here, next);
      kernels::reduce(TRIREME_DTYPE_F32, kernels::unfinished(how.reduction), sum, both, 2, here, 1,
                      1);
    }
    if (partial) {
      std::memcpy(static_cast<float*>(destination) + first, sum, here * sizeof(float));
      continue;
    }
    kernels::reduce(TRIREME_DTYPE_F32, how.reduction, sum, both, 1, here, how.ranks, how.scale);
    kernels::narrow(how.dtype, static_cast<std::byte*>(destination) + first * dtype_size(how.dtype),
                    sum, here);
  }
}

}  // namespace

std::uint64_t partial_size(trireme_dtype dtype) {
  return kernels::is_narrow(dtype) ? sizeof(float) : dtype_size(dtype);
}

void combine(const Reduction& how, void* destination, bool partial,
             const std::vector<Operand>& sources, std::uint64_t count) {
  if (count == 0) return;
  const bool mixed = partial || std::any_of(sources.begin(), sources.end(),
                                            [](const Operand& each) { return each.partial; });
  if (mixed && kernels::is_narrow(how.dtype)) {
    combine_narrow(how, destination, partial, sources, count);
  } else {
    combine_alike(how, destination, partial, sources, count);
  }
}

}  // namespace trireme
