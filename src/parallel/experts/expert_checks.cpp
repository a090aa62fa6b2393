#include "parallel/experts/expert_checks.hpp"

#include <algorithm>

#include "platform/names.hpp"
#include "platform/object_name.hpp"

namespace trireme::parallel {
namespace {

std::string experts_option(const char* field, std::uint64_t value) {
  return std::string("options.") + field + " is " + std::to_string(value);
}

Status check_range(const char* field, std::uint64_t value, std::uint64_t least, std::uint64_t most,
                   const char* why) {
  if (value >= least && value <= most) return Status::success();
  return invalid_argument(experts_option(field, value) + ", not in " + std::to_string(least) +
                          " to " + std::to_string(most) + why);
}

Status check_router(const RouterOptions& router) {
  TRIREME_RETURN_IF_ERROR(check_range("experts", router.experts, 1, TRIREME_EXPERTS_MAX, ""));
  TRIREME_RETURN_IF_ERROR(
      check_range("top_k", router.top_k, 1, router.experts, ", the number of experts"));
  if (router.scores != TRIREME_EXPERTS_SCORES_LOGITS &&
      router.scores != TRIREME_EXPERTS_SCORES_PROBABILITIES) {
    return invalid_argument("options.scores is " + std::to_string(router.scores) +
                            ", not one of TRIREME_EXPERTS_SCORES_*");
  }
  if (router.drop < TRIREME_EXPERTS_DROP_NONE || router.drop > TRIREME_EXPERTS_DROP_LOWEST_WEIGHT) {
    return invalid_argument("options.drop is " + std::to_string(router.drop) +
                            ", not one of TRIREME_EXPERTS_DROP_*");
  }
  const bool drops = router.drop != TRIREME_EXPERTS_DROP_NONE;
  if (drops == (router.capacity > 0)) return Status::success();
  return invalid_argument(
      experts_option("capacity", router.capacity) +
      (drops ? ", but options.drop says that rows are dropped" : ", but options.drop is NONE"));
}

// All arrays of a pass, over all ranks, have addresses.
Status check_experts_sizes(const ExpertsOptions& options, std::uint32_t world_size) {
  constexpr std::uint64_t kMostBytes = 1ull << 56;  // no processor of today addresses more
  const std::uint64_t slot_bytes =
      std::max<std::uint64_t>({options.width > kMostBytes ? kMostBytes : options.width * 8, 16});
  std::uint64_t bytes = 0;
  if (!__builtin_mul_overflow(options.rows, std::uint64_t{options.router.top_k}, &bytes) &&
      !__builtin_mul_overflow(bytes, std::uint64_t{world_size}, &bytes) &&
      !__builtin_mul_overflow(bytes, slot_bytes, &bytes) && bytes <= kMostBytes &&
      options.rows <= kMostBytes / 8 / options.router.experts && options.width <= kMostBytes / 8) {
    return Status::success();
  }
  return invalid_argument(experts_option("rows", options.rows) + ", options.top_k is " +
                          std::to_string(options.router.top_k) + " and options.width is " +
                          std::to_string(options.width) +
                          ": such arrays have more bytes than memory can hold");
}

}  // namespace

Status check_experts_options(const ExpertsOptions& options, std::uint32_t world_size) {
  TRIREME_RETURN_IF_ERROR(check_object_name(options.name));
  TRIREME_RETURN_IF_ERROR(check_router(options.router));
  if (dtype_size(options.dtype) == 0) {
    return invalid_argument("options.dtype is " + std::to_string(options.dtype) +
                            ", not one of TRIREME_DTYPE_*");
  }
  if (options.dtype != TRIREME_DTYPE_F32 && options.dtype != TRIREME_DTYPE_F64 &&
      options.dtype != TRIREME_DTYPE_F16 && options.dtype != TRIREME_DTYPE_BF16) {
    return unsupported(std::string("options.dtype is ") + dtype_name(options.dtype) +
                       ", but rows of experts are of f32, f64, f16 or bf16");
  }
  if (options.leaves != 0) {
    TRIREME_RETURN_IF_ERROR(check_range("leaves", options.leaves, world_size,
                                        TRIREME_EXPERTS_MAX_LEAVES,
                                        ": each rank has one at least"));
  }
  return check_experts_sizes(options, world_size);
}

}  // namespace trireme::parallel
