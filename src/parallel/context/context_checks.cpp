#include "parallel/context/context_checks.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "platform/names.hpp"
#include "platform/object_name.hpp"

namespace trireme::parallel {
namespace {

constexpr std::uint64_t kMaxArrayBytes = 1ull << 56;  // no processor of today can address more

std::string said(const char* field, std::uint64_t value) {
  return std::string("options.") + field + " is " + std::to_string(value);
}

Status check_choice(const char* field, const char* prefix, std::int32_t value) {
  if (value == 1 || value == 2) return Status::success();
  return invalid_argument(std::string("options.") + field + " is " + std::to_string(value) +
                          ", not one of " + prefix + "*");
}

Status check_choices(const ContextOptions& options) {
  TRIREME_RETURN_IF_ERROR(check_choice("layout", "TRIREME_CONTEXT_LAYOUT_", options.layout));
  TRIREME_RETURN_IF_ERROR(check_choice("method", "TRIREME_CONTEXT_METHOD_", options.shape.method));
  TRIREME_RETURN_IF_ERROR(
      check_choice("provider", "TRIREME_ATTENTION_PROVIDER_", options.shape.provider));
  const trireme_dtype dtype = options.shape.dtype;
  if (dtype_size(dtype) == 0) {
    return invalid_argument("options.dtype is " + std::to_string(dtype) +
                            ", not one of TRIREME_DTYPE_*");
  }
  if (dtype != TRIREME_DTYPE_F32 && dtype != TRIREME_DTYPE_F16 && dtype != TRIREME_DTYPE_BF16) {
    return unsupported(std::string("options.dtype is ") + dtype_name(dtype) +
                       ", but attention is computed in f32, of f32, f16 or bf16");
  }
  const bool calls = options.shape.provider == TRIREME_ATTENTION_PROVIDER_CALLER;
  if (calls != options.has_callbacks) {
    return invalid_argument(calls ? "options.callbacks is NULL, but options.provider is CALLER"
                                  : "options.callbacks is not NULL, but options.provider is "
                                    "BUILTIN");
  }
  if (calls && options.forward == nullptr) {
    return invalid_argument("options.callbacks.forward is NULL");
  }
  if (calls && options.backward == nullptr) {
    return invalid_argument("options.callbacks.backward is NULL");
  }
  return Status::success();
}

Status check_chunks(const ContextOptions& options, std::uint32_t world_size) {
  const bool zigzag = options.layout == TRIREME_CONTEXT_LAYOUT_ZIGZAG;
  const std::uint64_t least = std::uint64_t{world_size} * (zigzag ? 2 : 1);
  if (options.chunks < least) {
    return invalid_argument(said("chunks", options.chunks) + ", below " + std::to_string(least) +
                            (zigzag ? ": each rank needs two chunks" : ": each rank needs one"));
  }
  if (options.chunks > TRIREME_CONTEXT_MAX_CHUNKS) {
    return invalid_argument(said("chunks", options.chunks) + ", above " +
                            std::to_string(TRIREME_CONTEXT_MAX_CHUNKS));
  }
  return Status::success();
}

Status check_heads(const ContextOptions& options) {
  const AttentionShape& shape = options.shape;
  if (shape.heads == 0) return invalid_argument("options.heads is 0, but attention has a head");
  if (shape.width == 0) return invalid_argument("options.width is 0, but a head has an element");
  if (shape.heads % shape.kv_heads != 0) {
    return invalid_argument(said("kv_heads", shape.kv_heads) + ", which does not divide the " +
                            std::to_string(shape.heads) + " heads");
  }
  if (!std::isfinite(options.scale)) {
    return invalid_argument("options.scale is no finite number");
  }
  // Slots of pairs hold two numbers more than a head has, of f32, and gradients of keys and values.
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(shape.heads, shape.width, &bytes) ||
      __builtin_mul_overflow(bytes, std::max<std::uint64_t>(options.positions, 1), &bytes) ||
      __builtin_mul_overflow(bytes, std::uint64_t{16}, &bytes) || bytes > kMaxArrayBytes ||
      shape.width > kMaxArrayBytes || options.positions > kMaxArrayBytes) {
    return invalid_argument("options.positions, options.heads and options.width are " +
                            std::to_string(options.positions) + ", " + std::to_string(shape.heads) +
                            " and " + std::to_string(shape.width) +
                            ": such arrays have more bytes than memory can hold");
  }
  return Status::success();
}

}  // namespace

Status check_context_options(const ContextOptions& options, std::uint32_t world_size) {
  TRIREME_RETURN_IF_ERROR(check_object_name(options.name));
  TRIREME_RETURN_IF_ERROR(check_choices(options));
  TRIREME_RETURN_IF_ERROR(check_chunks(options, world_size));
  return check_heads(options);
}

}  // namespace trireme::parallel
