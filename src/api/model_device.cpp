// model_device.h: check, call down.
#include <trireme/model_device.h>

#include <memory>
#include <string>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "model/model.hpp"

using trireme::Status;
using trireme::strategies::Model;
using trireme::strategies::ShardView;
namespace api = trireme::api;

namespace {

Status check_stream(const trireme_stream& stream) {
  const bool none = stream.kind == 0 && stream.native == nullptr;
  if (stream.reserved == 0 && (none || stream.kind == TRIREME_DEVICE_CUDA)) {
    return Status::success();
  }
  return trireme::invalid_argument("stream has kind " + std::to_string(stream.kind) +
                                   " and reserved " + std::to_string(stream.reserved) +
                                   "; it must be all zero, or a stream of CUDA");
}

Status name_stream(ShardView& shard, const trireme_stream& stream) {
  TRIREME_RETURN_IF_ERROR(check_stream(stream));
  if (shard.on_device() == nullptr) {
    return trireme::invalid_state("the model works on the host, which has no streams");
  }
  TRIREME_RETURN_IF_ERROR(Status(shard.failure()));
  return shard.keep(shard.on_device()->set_stream(stream.native));
}

}  // namespace

trireme_status trireme_model_set_stream(trireme_model* model, const trireme_stream* stream) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Model> found;
    TRIREME_RETURN_IF_ERROR(api::find(model, &found));
    TRIREME_RETURN_IF_ERROR(found->check_call());
    return name_stream(found->shard(), stream != nullptr ? *stream : trireme_stream{});
  });
}
