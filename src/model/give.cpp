// Model: values of parameters that one rank sets go to all.
#include <algorithm>
#include <utility>

#include "exchange/agreement.hpp"
#include "kernels/reduce.hpp"
#include "model/model.hpp"
#include "platform/failpoint.hpp"

namespace trireme::strategies {

using sharding::Group;

// Into copies of each rank's own.
Status Model::give_out(const void* values, std::int32_t root) {
  const bool is_root = root == link_.communicator->rank();

  // Elements that lie `at` bytes after the first of `values`, to `memory` of every rank.
  const auto give = [&](char* memory, std::uint64_t at, std::uint64_t elements,
                        trireme_dtype dtype) {
    if (is_root && elements > 0) {
      kernels::copy(memory, static_cast<const char*>(values) + at, elements * dtype_size(dtype));
    }
    return keep(broadcast(memory, elements, dtype, root, storage_->hold()));
  };
  // With one dtype the arena has the order of the flat vector.
  const trireme_dtype common = registry_.common_dtype();
  if (pool_ == nullptr && common != 0) {
    return give(storage_->parameters.data(), 0, registry_.elements(), common);
  }
  if (pool_ != nullptr) TRIREME_RETURN_IF_ERROR(keep(pool_->drop_unused()));
  std::uint64_t at = 0;
  for (std::size_t number = 0; number < layout_->groups.size(); ++number) {
    const Group& group = layout_->groups[number];
    const std::uint64_t size = dtype_size(group.dtype);
    char* const kept = storage_->parameters.data() + group.offset;
    char* const memory = group.gathered ? pool_->scratch() : kept;
    TRIREME_RETURN_IF_ERROR(give(memory, at, group.elements, group.dtype));
    at += group.bytes;
    if (!group.gathered || group.held.count == 0) continue;
    if (group.in_file) {
      const char* const part = memory + group.held.first * size;
      TRIREME_RETURN_IF_ERROR(keep(tell_disk(parameter_file_->write_part(number, part))));
    } else {
      kernels::copy(kept, memory + group.held.first * size, group.held.count * size);
    }
  }
  return Status::success();
}

Status Model::broadcast(void* memory, std::uint64_t count, trireme_dtype dtype, std::int32_t root,
                        std::shared_ptr<const void> owner) {
  Operation operation;
  operation.channel = link_.gathers;
  operation.kind = OperationKind::broadcast;
  operation.dtype = dtype;
  operation.root = root;
  operation.receive = memory;
  operation.count = count;
  operation.owner = std::move(owner);
  TRIREME_FAILPOINT("set", "before_broadcast");
  TRIREME_RETURN_IF_ERROR(link_.run(std::move(operation)));
  return failpoint("set", "after_broadcast");
}

// Into copies that ranks share.
Status Model::set_shared(const void* values, std::int32_t root) {
  const bool is_root = root == link_.communicator->rank();
  std::uint64_t at = 0;  // of the next group among the values
  if (link_.shard == nullptr) {  // one copy: the root writes it when nobody reads any more
    TRIREME_RETURN_IF_ERROR(link_.meet(static_cast<std::uint64_t>(root), "root"));
    for (const Group& group : layout_->groups) {
      if (!is_root || group.bytes == 0) continue;
      TRIREME_FAILPOINT("set", "mid_write");
      kernels::copy(storage_->parameters.data() + group.offset,
                    static_cast<const char*>(values) + at, group.bytes);
      at += group.bytes;
    }
    return link_.meet();
  }
  // Several: every rank writes its part of what the root gives out group by group.
  std::shared_ptr<Memory> memory;
  std::uint64_t largest = 0;
  for (const Group& group : layout_->groups) largest = std::max(largest, group.bytes);
  // All ranks have come here and have the memory: nobody reads any more, and nobody is left alone.
  TRIREME_RETURN_IF_ERROR(agree(link_, {}, link_.communicator->allocate(largest, &memory)));
  for (const Group& group : layout_->groups) {
    const std::uint64_t size = dtype_size(group.dtype);
    if (is_root && group.bytes > 0) {
      kernels::copy(memory->data(), static_cast<const char*>(values) + at, group.bytes);
    }
    at += group.bytes;
    TRIREME_RETURN_IF_ERROR(broadcast(memory->data(), group.elements, group.dtype, root, memory));
    if (group.held.count == 0) continue;
    kernels::copy(storage_->parameters.data() + group.offset + group.held.first * size,
                  static_cast<const char*>(memory->data()) + group.held.first * size,
                  group.held.count * size);
  }
  return link_.meet();
}

}  // namespace trireme::strategies
