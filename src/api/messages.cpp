// Messages between two ranks, of messages.h.
#include <trireme/collectives.h>

#include "api/operation_call.hpp"

using namespace trireme;
using namespace trireme::api;

namespace {

Status make_message(const Communicator& communicator, OperationKind kind, void* data,
                    std::uint64_t count, trireme_dtype dtype, std::int32_t peer, std::uint64_t tag,
                    MessageArguments* out) {
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(total_bytes("count", count, 1, dtype, &bytes));
  TRIREME_RETURN_IF_ERROR(check_memory(data, "data", count));
  TRIREME_RETURN_IF_ERROR(
      check_rank(communicator, kind == OperationKind::send ? "to" : "from", peer));
  *out = {kind, data, count, dtype, peer, tag, nullptr};
  return Status::success();
}

Status run_message(trireme_communicator* handle, const trireme_operation_options* options,
                   OperationKind kind, void* data, std::uint64_t count, trireme_dtype dtype,
                   std::int32_t peer, std::uint64_t tag) {
  Call call;
  MessageArguments message;
  TRIREME_RETURN_IF_ERROR(call.open(handle, options, 0));
  TRIREME_RETURN_IF_ERROR(
      make_message(*call.communicator, kind, data, count, dtype, peer, tag, &message));
  if (!in_group()) return call.communicator->run_message(message, call.deadline());
  std::shared_ptr<Request> request;
  TRIREME_RETURN_IF_ERROR(call.communicator->start_message(message, call.deadline(), &request));
  add_to_group(std::move(request));
  return Status::success();
}

Status start_message(trireme_communicator* handle, const trireme_operation_options* options,
                     OperationKind kind, void* data, std::uint64_t count, trireme_dtype dtype,
                     std::int32_t peer, std::uint64_t tag, trireme_request** out_request) {
  Call call;
  MessageArguments message;
  TRIREME_RETURN_IF_ERROR(call.open(handle, options, 0));
  TRIREME_RETURN_IF_ERROR(api::require(out_request, "out_request"));
  TRIREME_RETURN_IF_ERROR(
      make_message(*call.communicator, kind, data, count, dtype, peer, tag, &message));
  std::shared_ptr<Request> request;
  TRIREME_RETURN_IF_ERROR(call.communicator->start_message(message, call.deadline(), &request));
  hand_over(std::move(request), out_request);
  return Status::success();
}

}  // namespace

trireme_status trireme_send(trireme_communicator* communicator, const void* data, uint64_t count,
                            trireme_dtype dtype, int32_t to, uint64_t tag,
                            const trireme_operation_options* options) {
  return api::guard(__func__, [&] {
    return run_message(communicator, options, OperationKind::send, const_cast<void*>(data), count,
                       dtype, to, tag);
  });
}

trireme_status trireme_send_start(trireme_communicator* communicator, const void* data,
                                  uint64_t count, trireme_dtype dtype, int32_t to, uint64_t tag,
                                  const trireme_operation_options* options,
                                  trireme_request** out_request) {
  return api::guard(__func__, [&] {
    return start_message(communicator, options, OperationKind::send, const_cast<void*>(data), count,
                         dtype, to, tag, out_request);
  });
}

trireme_status trireme_receive(trireme_communicator* communicator, void* data, uint64_t count,
                               trireme_dtype dtype, int32_t from, uint64_t tag,
                               const trireme_operation_options* options) {
  return api::guard(__func__, [&] {
    return run_message(communicator, options, OperationKind::receive, data, count, dtype, from,
                       tag);
  });
}

trireme_status trireme_receive_start(trireme_communicator* communicator, void* data, uint64_t count,
                                     trireme_dtype dtype, int32_t from, uint64_t tag,
                                     const trireme_operation_options* options,
                                     trireme_request** out_request) {
  return api::guard(__func__, [&] {
    return start_message(communicator, options, OperationKind::receive, data, count, dtype, from,
                         tag, out_request);
  });
}
