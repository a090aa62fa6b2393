// buffer.h.
#include <trireme/buffer.h>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "collectives/communicator.hpp"

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

trireme_status trireme_buffer_alloc(trireme_communicator* communicator, uint64_t bytes,
                                    trireme_buffer** out_buffer) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Communicator> object;
    TRIREME_RETURN_IF_ERROR(api::find_on_host(communicator, &object));
    TRIREME_RETURN_IF_ERROR(api::require(out_buffer, "out_buffer"));
    std::shared_ptr<Memory> memory;
    TRIREME_RETURN_IF_ERROR(object->allocate(bytes, &memory));
    *out_buffer = api::insert_buffer(std::move(object), std::move(memory));
    return Status::success();
  });
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
