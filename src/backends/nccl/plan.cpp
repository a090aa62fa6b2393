#include "backends/nccl/plan.hpp"

#include <algorithm>
#include <string>

#include "backends/parts.hpp"
#include "platform/names.hpp"

namespace trireme::nccl {
namespace {

// Sums and products wrap, so any order gives the same bits. NCCL has no integers of 16 bits.
bool is_integer_of_nccl(trireme_dtype dtype) {
  switch (dtype) {
    case TRIREME_DTYPE_I8:
    case TRIREME_DTYPE_U8:
    case TRIREME_DTYPE_I32:
    case TRIREME_DTYPE_U32:
    case TRIREME_DTYPE_I64:
    case TRIREME_DTYPE_U64: return true;
    default: return false;
  }
}

bool is_float_of_nccl(trireme_dtype dtype) {
  return dtype == TRIREME_DTYPE_F16 || dtype == TRIREME_DTYPE_BF16 || dtype == TRIREME_DTYPE_F32 ||
         dtype == TRIREME_DTYPE_F64;
}

bool is_exact(trireme_dtype dtype, trireme_reduction reduction) {
  if (!is_integer_of_nccl(dtype)) return false;
  switch (reduction) {
    case TRIREME_REDUCTION_SUM:
    case TRIREME_REDUCTION_PRODUCT:
    case TRIREME_REDUCTION_MIN:
    case TRIREME_REDUCTION_MAX: return true;
    default: return false;
  }
}

}  // namespace

How how(const PlainOperation& operation, bool own_sums) {
  if (!reduces(operation.kind)) return How::moves;
  if (is_exact(operation.dtype, operation.reduction)) return How::sums;
  return own_sums && !operation.reproducible ? How::sums : How::exchanges;
}

Status check_own_sums(const PlainOperation& operation) {
  if (how(operation, true) != How::sums || is_exact(operation.dtype, operation.reduction)) {
    return Status::success();
  }
  const std::string what =
      std::string(reduction_name(operation.reduction)) + " of " + dtype_name(operation.dtype);
  switch (operation.reduction) {
    case TRIREME_REDUCTION_SUM:
    case TRIREME_REDUCTION_PRODUCT:
    case TRIREME_REDUCTION_AVERAGE:
    case TRIREME_REDUCTION_SCALED_SUM:
      if (is_float_of_nccl(operation.dtype)) return Status::success();
      return unsupported("options.algorithm is native, but NCCL has no " + what);
    default:
      return unsupported("options.algorithm is native, but NCCL has no " + what +
                         " that keeps NaN");
  }
}

cuda::NcclType type_of(trireme_dtype dtype) {
  switch (dtype) {
    case TRIREME_DTYPE_I8: return cuda::NcclType::i8;
    case TRIREME_DTYPE_I32: return cuda::NcclType::i32;
    case TRIREME_DTYPE_U32: return cuda::NcclType::u32;
    case TRIREME_DTYPE_I64: return cuda::NcclType::i64;
    case TRIREME_DTYPE_U64: return cuda::NcclType::u64;
    case TRIREME_DTYPE_F16: return cuda::NcclType::f16;
    case TRIREME_DTYPE_BF16: return cuda::NcclType::bf16;
    case TRIREME_DTYPE_F32: return cuda::NcclType::f32;
    case TRIREME_DTYPE_F64: return cuda::NcclType::f64;
    default: return cuda::NcclType::u8;
  }
}

cuda::NcclReduction reduction_of(trireme_reduction reduction) {
  switch (reduction) {
    case TRIREME_REDUCTION_PRODUCT: return cuda::NcclReduction::product;
    case TRIREME_REDUCTION_MIN: return cuda::NcclReduction::min;
    case TRIREME_REDUCTION_MAX: return cuda::NcclReduction::max;
    default: return cuda::NcclReduction::sum;
  }
}

bool is_finished_by_kernel(trireme_reduction reduction) {
  return reduction == TRIREME_REDUCTION_AVERAGE || reduction == TRIREME_REDUCTION_SCALED_SUM;
}

std::vector<Share> shares_of(const PlainOperation& operation, int world_size) {
  const auto n = static_cast<std::uint64_t>(world_size);
  const bool scatters = operation.kind == OperationKind::reduce_scatter;
  const std::uint64_t all = scatters ? operation.count * n : operation.count;
  const std::uint64_t each =
      scatters ? operation.count : operation.count / n + (operation.count % n != 0);
  std::vector<Share> shares(n);
  for (std::uint64_t rank = 0; rank < n; ++rank) {
    const std::uint64_t first = std::min(all, rank * each);
    shares[rank] = {first, std::min(all - first, each)};
  }
  return shares;
}

Share window_of(const Share& share, std::uint64_t at, std::uint64_t most) {
  const std::uint64_t before = std::min(at, share.count);
  return {share.first + before, std::min(share.count - before, most)};
}

}  // namespace trireme::nccl
