#include "kernels/finite.hpp"

#include "kernels/vector.hpp"

namespace trireme::kernels {

bool all_finite(trireme_dtype dtype, const void* values, std::uint64_t count) {
  return loops().finite[dtype](values, count);
}

}  // namespace trireme::kernels
