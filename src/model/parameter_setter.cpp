#include "model/parameter_setter.hpp"

#include <algorithm>
#include <utility>

#include "exchange/agreement.hpp"
#include "kernels/reduce.hpp"
#include "platform/failpoint.hpp"

namespace trireme::strategies {

using sharding::Group;

std::uint64_t ParameterSetter::all_elements() const {
  std::uint64_t all = 0;
  for (const Group& group : layout_.groups) all += group.elements;
  return all;
}

Status ParameterSetter::set(const void* values, std::int32_t root, trireme_dtype common) const {
  return layout_.spread.shared ? set_shared(values, root) : give_out(values, root, common);
}

// Into copies that each rank has for itself.
Status ParameterSetter::give_out(const void* values, std::int32_t root,
                                 trireme_dtype common) const {
  const bool is_root = root == peers_.link().communicator->rank();

  // Sends the elements that lie `at` bytes after the first of `values` to `memory` of every rank.
  const auto publish = [&](char* memory, std::uint64_t at, std::uint64_t elements,
                           trireme_dtype dtype) -> Status {
    const char* const from = static_cast<const char*>(values) + at;
    if (is_root && elements > 0 && device_ != nullptr) {
      TRIREME_RETURN_IF_ERROR(
          device_->report(device_->device().read(memory, from, elements * dtype_size(dtype))));
    } else if (is_root && elements > 0) {
      kernels::copy(memory, from, elements * dtype_size(dtype));
    }
    return broadcast(memory, elements, dtype, root, storage_->hold());
  };
  // With one dtype the arena has the order of the flat vector.
  if (pool_ == nullptr && common != 0) {
    return publish(storage_->parameters.data(), 0, all_elements(), common);
  }
  if (pool_ != nullptr) TRIREME_RETURN_IF_ERROR(pool_->drop_unused());
  std::uint64_t at = 0;
  for (std::size_t number = 0; number < layout_.groups.size(); ++number) {
    const Group& group = layout_.groups[number];
    const std::uint64_t size = dtype_size(group.dtype);
    char* const kept = storage_->parameters.data() + group.offset;
    char* const memory = group.gathered ? pool_->scratch() : kept;
    TRIREME_RETURN_IF_ERROR(publish(memory, at, group.elements, group.dtype));
    at += group.bytes;
    if (!group.gathered || group.held.count == 0) continue;
    if (group.in_file) {
      const char* const part = memory + group.held.first * size;
      TRIREME_RETURN_IF_ERROR(peers_.report_disk(file_->write_part(number, part)));
    } else {
      kernels::copy(kept, memory + group.held.first * size, group.held.count * size);
    }
  }
  return Status::success();
}

Status ParameterSetter::broadcast(void* memory, std::uint64_t count, trireme_dtype dtype,
                                  std::int32_t root, std::shared_ptr<const void> owner) const {
  Operation operation = in_place(peers_.link(), peers_.link().gathers, OperationKind::broadcast,
                                 dtype, memory, count, std::move(owner));
  operation.root = root;
  TRIREME_FAILPOINT("set", "before_broadcast");
  TRIREME_RETURN_IF_ERROR(peers_.link().run(std::move(operation)));
  return failpoint("set", "after_broadcast");
}

// Into copies that ranks share.
Status ParameterSetter::set_shared(const void* values, std::int32_t root) const {
  const bool is_root = root == peers_.link().communicator->rank();
  std::uint64_t at = 0;  // the next group's place among the values
  if (peers_.link().shard ==
      nullptr) {  // one copy: the root writes it when no rank reads it any more
    TRIREME_RETURN_IF_ERROR(peers_.link().meet(static_cast<std::uint64_t>(root), "root"));
    for (const Group& group : layout_.groups) {
      if (!is_root || group.bytes == 0) continue;
      TRIREME_FAILPOINT("set", "mid_write");
      kernels::copy(storage_->parameters.data() + group.offset,
                    static_cast<const char*>(values) + at, group.bytes);
      at += group.bytes;
    }
    return peers_.link().meet();
  }
  // Several copies: every rank writes its part of the root's values, group by group.
  std::shared_ptr<Memory> memory;
  std::uint64_t largest = 0;
  for (const Group& group : layout_.groups) largest = std::max(largest, group.bytes);
  // All ranks are here and have the memory: no rank reads parameters any more, and none is left
  // alone.
  TRIREME_RETURN_IF_ERROR(agree(peers_.link(), "broadcast_parameters", {},
                                peers_.link().communicator->allocate(largest, &memory)));
  for (const Group& group : layout_.groups) {
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
  return peers_.link().meet();
}

}  // namespace trireme::strategies
