// tensor.h.
#include <trireme/tensor.h>

#include <memory>
#include <string>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/operation_call.hpp"
#include "parallel/tensor/region.hpp"
#include "parallel/tensor/tensor.hpp"

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

trireme_status run_pass(const char* function, Direction direction, trireme_region* handle,
                        const void* const* parts, uint32_t part_count, void* out,
                        const trireme_pass_options* caller) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<Region> region;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &region));
    trireme_pass_options options = TRIREME_PASS_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_optional(caller, "options", &options));
    TRIREME_RETURN_IF_ERROR(api::check_zero("options.flags", options.flags));
    TRIREME_RETURN_IF_ERROR(api::refuse_in_batch());
    const Tensor& tensor = region->tensor();
    const char* option = "timeout_ns of the pass's options";
    std::uint64_t timeout_ns = options.timeout_ns;
    if (timeout_ns == 0) {
      option = "timeout_ns of the tensor's options";
      timeout_ns = tensor.timeout_ns();
    }
    if (timeout_ns == 0) {
      option = "timeout_ns of the communicator's options";
      timeout_ns = tensor.communicator().timeout_ns();
    }
    return tell_deadline(region->pass(direction, parts, part_count, out, timeout_ns), timeout_ns,
                         option);
  });
}

}  // namespace

trireme_status trireme_tensor_create(trireme_communicator* communicator,
                                     const trireme_tensor_options* caller,
                                     trireme_tensor** out_tensor) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Communicator> ranks;
    TRIREME_RETURN_IF_ERROR(api::find(communicator, &ranks));
    trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_optional(caller, "options", &options));
    TRIREME_RETURN_IF_ERROR(api::check_zero("options.flags", options.flags));
    TRIREME_RETURN_IF_ERROR(api::check_zero("options.reserved", options.reserved));
    TRIREME_RETURN_IF_ERROR(api::require(out_tensor, "out_tensor"));
    std::shared_ptr<Tensor> tensor;
    TRIREME_RETURN_IF_ERROR(
        Tensor::create(std::move(ranks), options.blocks, options.timeout_ns, &tensor));
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
