// tensor.h.
#include <trireme/tensor.h>

#include <cstring>
#include <memory>
#include <string>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/tensor.hpp"
#include "parallel/tensor/region.hpp"
#include "parallel/tensor/tensor.hpp"
#include "platform/utf8.hpp"

using namespace trireme;
using parallel::Direction;
using parallel::Region;
using parallel::Tensor;

namespace {

static_assert(sharding::kMostBlocks == TRIREME_TENSOR_MAX_BLOCKS);

// A call that reads one property.
template <class Body>
trireme_status ask(const char* function, const trireme_tensor* handle, Body body) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<Tensor> tensor;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &tensor));
    return body(*tensor);
  });
}

Status write_range(const sharding::Range& range, uint64_t* out_first, uint64_t* out_count) {
  *out_first = range.first;
  *out_count = range.count;
  return Status::success();
}

Status require_both(const uint64_t* out_first, const uint64_t* out_count) {
  TRIREME_RETURN_IF_ERROR(api::require(out_first, "out_first"));
  return api::require(out_count, "out_count");
}

// By number.
constexpr const char* kGemmNames[] = {"", "caller", "loaded", "builtin"};

Status read_gemm(const trireme_gemm_options* caller, const std::string& what,
                 parallel::GemmOptions* out) {
  trireme_gemm_options options = TRIREME_GEMM_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(api::read_struct(caller, what.c_str(), &options));
  TRIREME_RETURN_IF_ERROR(api::check_zero(what + ".reserved", options.reserved));
  if (options.kind < TRIREME_GEMM_KIND_CALLER || options.kind > TRIREME_GEMM_KIND_BUILTIN) {
    return invalid_argument(what + ".kind is " + std::to_string(options.kind) +
                            ", not one of TRIREME_GEMM_KIND_*");
  }
  const bool loaded = options.kind == TRIREME_GEMM_KIND_LOADED;
  if (!loaded && options.library != nullptr) {
    return invalid_argument(what + ".library is for LOADED alone");
  }
  if (!loaded && options.threads != 0) {
    return invalid_argument(what + ".threads is for LOADED alone");
  }
  if (options.threads > INT32_MAX) {
    return invalid_argument(what + ".threads is " + std::to_string(options.threads));
  }
  out->provider = kGemmNames[options.kind];
  if (options.library != nullptr) out->library = options.library;
  if (loaded && options.threads != 0) out->threads = static_cast<int>(options.threads);
  out->callback = options.callback;
  out->user_data = options.user_data;
  return Status::success();
}

template <std::size_t kSize>
void write_words(const std::string& text, char (&to)[kSize]) {
  const std::size_t length = whole_characters(text, kSize - 1);
  std::memcpy(to, text.data(), length);
  to[length] = 0;
}

trireme_status run_pass(const char* function, Direction direction, trireme_region* handle,
                        const void* const* parts, uint32_t part_count, void* out,
                        const trireme_pass_options* caller) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<Region> region;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &region));
    api::Pass pass;
    TRIREME_RETURN_IF_ERROR(api::Pass::read(caller, 0, region->tensor(), &pass));
    return tell_deadline(region->pass(direction, parts, part_count, out, pass.timeout_ns),
                         pass.timeout_ns, pass.option);
  });
}

}  // namespace

Status api::read_tensor_options(const trireme_tensor_options& options, const std::string& what,
                                parallel::TensorOptions* out) {
  TRIREME_RETURN_IF_ERROR(
      check_flags((what + ".flags").c_str(), options.flags,
                  TRIREME_TENSOR_FLAG_SEQUENCE | TRIREME_TENSOR_FLAG_KEEP_GATHERED));
  out->blocks = options.blocks;
  out->row_tile = options.row_tile;
  out->sequence = (options.flags & TRIREME_TENSOR_FLAG_SEQUENCE) != 0;
  out->keep_gathered = (options.flags & TRIREME_TENSOR_FLAG_KEEP_GATHERED) != 0;
  out->timeout_ns = options.timeout_ns;
  if (options.gemm == nullptr) return Status::success();
  return read_gemm(options.gemm, what + ".gemm", &out->gemm.emplace());
}

trireme_status trireme_tensor_create(trireme_communicator* communicator,
                                     const trireme_tensor_options* caller,
                                     trireme_tensor** out_tensor) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Communicator> ranks;
    TRIREME_RETURN_IF_ERROR(api::find_on_host(communicator, &ranks));
    trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_optional(caller, "options", &options));
    TRIREME_RETURN_IF_ERROR(api::require(out_tensor, "out_tensor"));
    parallel::TensorOptions wanted;
    TRIREME_RETURN_IF_ERROR(api::read_tensor_options(options, "options", &wanted));
    std::shared_ptr<Tensor> tensor;
    TRIREME_RETURN_IF_ERROR(Tensor::create(std::move(ranks), wanted, &tensor));
    *out_tensor = api::insert<trireme_tensor>(std::move(tensor));
    return Status::success();
  });
}

void trireme_tensor_destroy(trireme_tensor* tensor) { api::destroy(tensor); }

trireme_status trireme_tensor_get_info(const trireme_tensor* tensor, trireme_tensor_info* info) {
  return ask(__func__, tensor, [&](const Tensor& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::check_info(info, "info"));
    const sharding::Range own = found.own_blocks();
    trireme_tensor_info now = TRIREME_TENSOR_INFO_INIT;
    now.rank = static_cast<std::int32_t>(found.rank());
    now.world_size = static_cast<std::int32_t>(found.world_size());
    now.blocks = found.blocks();
    now.first_block = static_cast<std::uint32_t>(own.first);
    now.block_count = static_cast<std::uint32_t>(own.count);
    now.region_count = found.regions();
    api::write_info(now, info);
    return Status::success();
  });
}

trireme_status trireme_tensor_get_gemm_info(const trireme_tensor* tensor, trireme_gemm_info* info) {
  return ask(__func__, tensor, [&](const Tensor& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::check_info(info, "info"));
    trireme_gemm_info now = TRIREME_GEMM_INFO_INIT;
    if (found.gemm() != nullptr) {
      const parallel::GemmInfo& gemm = found.gemm()->info();
      while (gemm.provider != kGemmNames[now.kind]) ++now.kind;
      now.threads = static_cast<std::uint32_t>(gemm.threads);
      now.repeatable = gemm.repeatable ? 1 : 0;
      write_words(gemm.library, now.library);
      write_words(gemm.version, now.version);
      write_words(gemm.difference, now.difference);
    }
    api::write_info(now, info);
    return Status::success();
  });
}

trireme_status trireme_tensor_range(const trireme_tensor* tensor, uint64_t extent, int32_t rank,
                                    uint64_t* out_first, uint64_t* out_count) {
  return ask(__func__, tensor, [&](const Tensor& found) -> Status {
    TRIREME_RETURN_IF_ERROR(require_both(out_first, out_count));
    TRIREME_RETURN_IF_ERROR(found.check_rank(rank));
    return write_range(found.range(extent, static_cast<std::uint32_t>(rank)), out_first, out_count);
  });
}

trireme_status trireme_tensor_block(const trireme_tensor* tensor, uint64_t extent, uint32_t block,
                                    uint64_t* out_first, uint64_t* out_count) {
  return ask(__func__, tensor, [&](const Tensor& found) -> Status {
    TRIREME_RETURN_IF_ERROR(require_both(out_first, out_count));
    TRIREME_RETURN_IF_ERROR(found.check_block(block));
    return write_range(sharding::block_range(extent, found.blocks(), block), out_first, out_count);
  });
}

trireme_status trireme_tensor_heads(const trireme_tensor* tensor, uint64_t heads, uint64_t kv_heads,
                                    int32_t rank, trireme_head_info* info) {
  return ask(__func__, tensor, [&](const Tensor& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::check_info(info, "info"));
    sharding::HeadRanges ranges;
    TRIREME_RETURN_IF_ERROR(found.find_heads(heads, kv_heads, rank, &ranges));
    trireme_head_info now = TRIREME_HEAD_INFO_INIT;
    now.kv_shared = ranges.kv_shared ? 1 : 0;
    now.first_head = ranges.heads.first;
    now.head_count = ranges.heads.count;
    now.first_kv_head = ranges.kv_heads.first;
    now.kv_head_count = ranges.kv_heads.count;
    api::write_info(now, info);
    return Status::success();
  });
}

trireme_status trireme_region_create(trireme_tensor* tensor, const trireme_region_options* caller,
                                     trireme_region** out_region) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Tensor> found;
    TRIREME_RETURN_IF_ERROR(api::find(tensor, &found));
    trireme_region_options options = TRIREME_REGION_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", &options));
    TRIREME_RETURN_IF_ERROR(api::check_zero("options.flags", options.flags));
    TRIREME_RETURN_IF_ERROR(api::require(options.name, "options.name"));
    TRIREME_RETURN_IF_ERROR(api::require(out_region, "out_region"));
    std::shared_ptr<Region> region;
    TRIREME_RETURN_IF_ERROR(Region::create(
        std::move(found),
        {options.name, options.kind, options.dimension, options.rows, options.columns,
         options.dtype, options.parts, options.row_unit, options.column_unit},
        &region));
    *out_region = api::insert<trireme_region>(std::move(region));
    return Status::success();
  });
}

// A pass in another thread may keep the region alive, but not its name.
void trireme_region_destroy(trireme_region* region) {
  const NoCancellation whole_call;
  if (const std::shared_ptr<Region> found = api::remove(region)) found->drop_name();
}

trireme_status trireme_region_get_info(const trireme_region* region, trireme_region_info* info) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Region> found;
    TRIREME_RETURN_IF_ERROR(api::find(region, &found));
    TRIREME_RETURN_IF_ERROR(api::check_info(info, "info"));
    const Region::PassPlan forward = found->plan(Direction::forward);
    const Region::PassPlan backward = found->plan(Direction::backward);
    trireme_region_info now = TRIREME_REGION_INFO_INIT;
    now.forward_passes = found->passes(Direction::forward);
    now.backward_passes = found->passes(Direction::backward);
    now.input_count = forward.from;
    now.output_count = forward.to;
    now.forward_parts = forward.parts;
    now.backward_parts = backward.parts;
    now.forward_bytes = forward.bytes;
    now.backward_bytes = backward.bytes;
    api::write_info(now, info);
    return Status::success();
  });
}

trireme_status trireme_region_forward(trireme_region* region, const void* const* parts,
                                      uint32_t part_count, void* out,
                                      const trireme_pass_options* options) {
  return run_pass(__func__, Direction::forward, region, parts, part_count, out, options);
}

trireme_status trireme_region_backward(trireme_region* region, const void* const* parts,
                                       uint32_t part_count, void* out,
                                       const trireme_pass_options* options) {
  return run_pass(__func__, Direction::backward, region, parts, part_count, out, options);
}
