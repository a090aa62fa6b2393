// buffer.h.
#include <trireme/buffer.h>

#include <cstring>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/operation_call.hpp"
#include "collectives/communicator.hpp"
#include "collectives/device_moves.hpp"

using namespace trireme;

namespace trireme::api {

trireme_buffer* insert_buffer(std::shared_ptr<Communicator> communicator,
                              std::shared_ptr<Memory> memory) {
  // The handle's memory keeps the communicator alive, too.
  struct Held {
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<Memory> memory;
  };
  auto held = std::make_shared<Held>(Held{std::move(communicator), std::move(memory)});
  Memory* const bare = held->memory.get();
  return insert<trireme_buffer>(std::shared_ptr<Memory>(std::move(held), bare));
}

}  // namespace trireme::api

namespace {

// Default is DEVICE for a communicator that works on one, and HOST for others.
Status check_kind(trireme_memory_kind kind, const DeviceMoves* moves) {
  switch (kind) {
    case TRIREME_MEMORY_KIND_DEFAULT: return Status::success();
    case TRIREME_MEMORY_KIND_HOST:
      if (moves == nullptr) return Status::success();
      return invalid_argument("kind is HOST, but the communicator works on " + moves->text() +
                              ", which takes PINNED memory of the host");
    case TRIREME_MEMORY_KIND_PINNED:
    case TRIREME_MEMORY_KIND_DEVICE:
      if (moves != nullptr) return Status::success();
      return invalid_argument(std::string("kind is ") +
                              (kind == TRIREME_MEMORY_KIND_PINNED ? "PINNED" : "DEVICE") +
                              ", but the communicator works on memory of the host");
    case TRIREME_MEMORY_KIND_MANAGED:
      return unsupported("kind is MANAGED, which no collective takes");
    default:
      return invalid_argument("kind is " + std::to_string(kind) +
                              ", not one of TRIREME_MEMORY_KIND_*");
  }
}

Status allocate_kind(trireme_communicator* communicator, trireme_memory_kind kind,
                     std::uint64_t bytes, trireme_buffer** out_buffer) {
  std::shared_ptr<Communicator> object;
  TRIREME_RETURN_IF_ERROR(api::find(communicator, &object));
  TRIREME_RETURN_IF_ERROR(api::require(out_buffer, "out_buffer"));
  const std::shared_ptr<DeviceMoves> moves = moves_of(object);
  TRIREME_RETURN_IF_ERROR(check_kind(kind, moves.get()));
  std::shared_ptr<Memory> memory;
  if (moves == nullptr) {
    TRIREME_RETURN_IF_ERROR(object->allocate(bytes, &memory));
  } else {
    if (kind == TRIREME_MEMORY_KIND_DEFAULT) kind = TRIREME_MEMORY_KIND_DEVICE;
    TRIREME_RETURN_IF_ERROR(moves->allocate(kind, bytes, object->timeout_ns(), &memory));
  }
  *out_buffer = api::insert_buffer(std::move(object), std::move(memory));
  return Status::success();
}

}  // namespace

trireme_status trireme_buffer_alloc(trireme_communicator* communicator, uint64_t bytes,
                                    trireme_buffer** out_buffer) {
  return api::guard(__func__, [&]() -> Status {
    return allocate_kind(communicator, TRIREME_MEMORY_KIND_DEFAULT, bytes, out_buffer);
  });
}

trireme_status trireme_buffer_alloc_kind(trireme_communicator* communicator,
                                         trireme_memory_kind kind, uint64_t bytes,
                                         trireme_buffer** out_buffer) {
  return api::guard(
      __func__, [&]() -> Status { return allocate_kind(communicator, kind, bytes, out_buffer); });
}

void trireme_buffer_destroy(trireme_buffer* buffer) { api::destroy(buffer); }

trireme_status trireme_buffer_get_data(const trireme_buffer* buffer, void** out_data) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Memory> memory;
    TRIREME_RETURN_IF_ERROR(api::find(buffer, &memory));
    TRIREME_RETURN_IF_ERROR(api::require(out_data, "out_data"));
    *out_data = memory->data();
    return Status::success();
  });
}

trireme_status trireme_buffer_get_bytes(const trireme_buffer* buffer, uint64_t* out_bytes) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Memory> memory;
    TRIREME_RETURN_IF_ERROR(api::find(buffer, &memory));
    TRIREME_RETURN_IF_ERROR(api::require(out_bytes, "out_bytes"));
    *out_bytes = memory->bytes();
    return Status::success();
  });
}

trireme_status trireme_memory_copy(trireme_communicator* communicator, void* to, const void* from,
                                   uint64_t bytes, void* stream) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Communicator> object;
    std::uint64_t total = 0;
    TRIREME_RETURN_IF_ERROR(api::find(communicator, &object));
    TRIREME_RETURN_IF_ERROR(api::total_bytes("bytes", bytes, 1, TRIREME_DTYPE_BYTES, &total));
    TRIREME_RETURN_IF_ERROR(api::check_memory(to, "to", bytes));
    TRIREME_RETURN_IF_ERROR(api::check_memory(from, "from", bytes));
    if (!api::check_apart(to, bytes, from, bytes).ok()) {
      return invalid_argument("to and from have bytes in common");
    }
    const std::shared_ptr<DeviceMoves> moves = moves_of(object);
    if (moves != nullptr) return moves->copy(to, from, bytes, stream, object->timeout_ns());
    if (stream != nullptr) {
      return invalid_argument("stream is set, but the communicator works on memory of the host");
    }
    TRIREME_RETURN_IF_ERROR(api::check_place("to", to, bytes));
    TRIREME_RETURN_IF_ERROR(api::check_place("from", from, bytes));
    if (bytes > 0) std::memcpy(to, from, bytes);
    return Status::success();
  });
}
