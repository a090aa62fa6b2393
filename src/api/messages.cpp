// messages.h: check every argument, call down, hand over.
#include <trireme/messages.h>

#include "api/message_info.hpp"
#include "api/operation_call.hpp"
#include "platform/names.hpp"

using namespace trireme;
using namespace trireme::api;

namespace trireme::api {

Status check_message_info(const trireme_message_info* out_info) {
  return check_info(out_info, "out_info");
}

void write_message_info(const MetMessage& met, trireme_message_info* out_info) {
  trireme_message_info info = TRIREME_MESSAGE_INFO_INIT;
  info.source = met.source;
  info.tag = met.tag;
  info.count = met.count;
  info.dtype = met.dtype;
  write_info(info, out_info);
}

}  // namespace trireme::api

namespace {

// Memory of a device is looked at when the message runs.
Status check_message_place(const Call& call, const void* data, std::uint64_t count) {
  return call.moves == nullptr ? check_place("data", data, count) : Status::success();
}

Status make_send(const Call& call, const void* data, std::uint64_t count, trireme_dtype dtype,
                 std::int32_t to, std::uint64_t tag, MessageArguments* out) {
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(total_bytes("count", count, 1, dtype, &bytes));
  TRIREME_RETURN_IF_ERROR(check_memory(data, "data", count));
  TRIREME_RETURN_IF_ERROR(check_message_place(call, data, count));
  TRIREME_RETURN_IF_ERROR(check_rank(*call.communicator, "to", to));
  out->kind = OperationKind::send;
  out->data = const_cast<void*>(data);  // only read
  out->count = count;
  out->dtype = dtype;
  out->peer = to;
  out->tag = tag;
  return Status::success();
}

// The common arguments of receives and probes.
Status make_match(const Call& call, std::int32_t from, std::uint64_t tag, MessageArguments* out) {
  out->any_tag = (call.options.flags & TRIREME_OPERATION_FLAG_ANY_TAG) != 0;
  if (out->any_tag && tag != 0) {
    return invalid_argument("tag is " + std::to_string(tag) +
                            ", but must be 0 with TRIREME_OPERATION_FLAG_ANY_TAG");
  }
  if (from != TRIREME_ANY_SOURCE) {
    TRIREME_RETURN_IF_ERROR(check_rank(*call.communicator, "from", from));
  }
  out->peer = from;
  out->tag = tag;
  return Status::success();
}

Status make_receive(const Call& call, void* data, std::uint64_t count, const char* count_name,
                    trireme_dtype dtype, std::int32_t from, std::uint64_t tag, Message::Fit fit,
                    MessageArguments* out) {
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(total_bytes(count_name, count, 1, dtype, &bytes));
  TRIREME_RETURN_IF_ERROR(check_memory(data, "data", count));
  TRIREME_RETURN_IF_ERROR(check_message_place(call, data, count));
  out->kind = OperationKind::receive;
  out->data = data;
  out->count = count;
  out->dtype = dtype;
  out->fit = fit;
  return make_match(call, from, tag, out);
}

constexpr std::uint32_t kSendFlags = TRIREME_OPERATION_FLAG_BUFFERED;
constexpr std::uint32_t kReceiveFlags = TRIREME_OPERATION_FLAG_ANY_TAG;

Status run_one(const Call& call, const MessageArguments& message, bool buffered, MetMessage* met) {
  if (call.moves != nullptr) {
    return call.of_deadline(call.moves->run_message(
        *call.communicator, message, buffered, call.options.stream.native, call.timeout_ns(), met));
  }
  if (buffered) {
    return call.of_deadline(call.communicator->send_buffered(message, call.deadline()));
  }
  return call.of_deadline(call.communicator->run_message(message, call.timeout_ns(), met));
}

// Opens the call and lets `make` fill in the message.
template <class Make>
Status prepare(Call* call, trireme_communicator* handle, const trireme_operation_options* options,
               std::uint32_t flags, MessageArguments* message, Make make, bool on_devices = true) {
  TRIREME_RETURN_IF_ERROR(call->open(handle, options, 0, flags, on_devices));
  const trireme_operation_options& set = call->options;
  if (set.priority != 0 || set.algorithm != 0 || set.wire_dtype != 0) {
    return invalid_argument(
        "options.priority, algorithm and wire_dtype are for collectives, not for messages");
  }
  return make(*call, message);
}

Status start_call(const Call& call, const MessageArguments& message,
                  std::shared_ptr<Request>* out) {
  if (call.moves == nullptr) {
    TRIREME_RETURN_IF_ERROR(call.communicator->start_message(message, call.deadline(), out));
  } else {
    TRIREME_RETURN_IF_ERROR(call.of_deadline(call.moves->start_message(
        *call.communicator, message, call.options.stream.native, call.timeout_ns(), out)));
  }
  call.tell_deadline_of(**out);
  return Status::success();
}

template <class Make>
trireme_status run_message(const char* function, trireme_communicator* handle,
                           const trireme_operation_options* options, std::uint32_t flags,
                           Make make) noexcept {
  return guard(function, [&]() -> Status {
    Call call;
    MessageArguments message;
    TRIREME_RETURN_IF_ERROR(prepare(&call, handle, options, flags, &message, make));
    const bool buffered = (call.options.flags & TRIREME_OPERATION_FLAG_BUFFERED) != 0;
    if (buffered || !in_batch()) return run_one(call, message, buffered, nullptr);
    std::shared_ptr<Request> request;
    TRIREME_RETURN_IF_ERROR(start_call(call, message, &request));
    add_to_batch(std::move(request));
    return Status::success();
  });
}

template <class Make>
trireme_status start_message(const char* function, trireme_communicator* handle,
                             const trireme_operation_options* options, std::uint32_t flags,
                             trireme_request** out_request, Make make) noexcept {
  return guard(function, [&]() -> Status {
    Call call;
    MessageArguments message;
    TRIREME_RETURN_IF_ERROR(prepare(&call, handle, options, flags, &message, make));
    TRIREME_RETURN_IF_ERROR(require(out_request, "out_request"));
    std::shared_ptr<Request> request;
    TRIREME_RETURN_IF_ERROR(start_call(call, message, &request));
    hand_over(std::move(request), out_request);
    return Status::success();
  });
}

// A receive or probe that returns the message's description, and so cannot wait for the end of a
// batch.
template <class Make>
trireme_status run_and_tell(const char* function, trireme_communicator* handle,
                            const trireme_operation_options* options,
                            trireme_message_info* out_info, Make make) noexcept {
  return guard(function, [&]() -> Status {
    Call call;
    MessageArguments message;
    MetMessage met;
    TRIREME_RETURN_IF_ERROR(refuse_in_batch());
    TRIREME_RETURN_IF_ERROR(check_message_info(out_info));
    TRIREME_RETURN_IF_ERROR(prepare(&call, handle, options, kReceiveFlags, &message, make));
    TRIREME_RETURN_IF_ERROR(run_one(call, message, false, &met));
    write_message_info(met, out_info);
    return Status::success();
  });
}

Status make_probe(const Call& call, std::int32_t from, std::uint64_t tag, MessageArguments* out) {
  out->kind = OperationKind::probe;
  out->dtype = TRIREME_DTYPE_BYTES;
  return make_match(call, from, tag, out);
}

}  // namespace

trireme_status trireme_send(trireme_communicator* communicator, const void* data, uint64_t count,
                            trireme_dtype dtype, int32_t to, uint64_t tag,
                            const trireme_operation_options* options) {
  return run_message(__func__, communicator, options, kSendFlags,
                     [&](const Call& call, MessageArguments* out) {
                       return make_send(call, data, count, dtype, to, tag, out);
                     });
}

trireme_status trireme_send_start(trireme_communicator* communicator, const void* data,
                                  uint64_t count, trireme_dtype dtype, int32_t to, uint64_t tag,
                                  const trireme_operation_options* options,
                                  trireme_request** out_request) {
  return start_message(__func__, communicator, options, 0, out_request,
                       [&](const Call& call, MessageArguments* out) {
                         return make_send(call, data, count, dtype, to, tag, out);
                       });
}

trireme_status trireme_receive(trireme_communicator* communicator, void* data, uint64_t count,
                               trireme_dtype dtype, int32_t from, uint64_t tag,
                               const trireme_operation_options* options) {
  return run_message(
      __func__, communicator, options, kReceiveFlags, [&](const Call& call, MessageArguments* out) {
        return make_receive(call, data, count, "count", dtype, from, tag, Message::Fit::exact, out);
      });
}

trireme_status trireme_receive_start(trireme_communicator* communicator, void* data, uint64_t count,
                                     trireme_dtype dtype, int32_t from, uint64_t tag,
                                     const trireme_operation_options* options,
                                     trireme_request** out_request) {
  return start_message(__func__, communicator, options, kReceiveFlags, out_request,
                       [&](const Call& call, MessageArguments* out) {
                         return make_receive(call, data, count, "count", dtype, from, tag,
                                             Message::Fit::exact, out);
                       });
}

trireme_status trireme_receive_message(trireme_communicator* communicator, void* data,
                                       uint64_t capacity, trireme_dtype dtype, int32_t from,
                                       uint64_t tag, const trireme_operation_options* options,
                                       trireme_message_info* out_info) {
  return run_and_tell(__func__, communicator, options, out_info,
                      [&](const Call& call, MessageArguments* out) {
                        return make_receive(call, data, capacity, "capacity", dtype, from, tag,
                                            Message::Fit::up_to, out);
                      });
}

trireme_status trireme_receive_message_start(trireme_communicator* communicator, void* data,
                                             uint64_t capacity, trireme_dtype dtype, int32_t from,
                                             uint64_t tag, const trireme_operation_options* options,
                                             trireme_request** out_request) {
  return start_message(__func__, communicator, options, kReceiveFlags, out_request,
                       [&](const Call& call, MessageArguments* out) {
                         return make_receive(call, data, capacity, "capacity", dtype, from, tag,
                                             Message::Fit::up_to, out);
                       });
}

trireme_status trireme_receive_to_buffer(trireme_communicator* communicator, trireme_dtype dtype,
                                         int32_t from, uint64_t tag,
                                         const trireme_operation_options* options,
                                         trireme_message_info* out_info,
                                         trireme_buffer** out_buffer) {
  return guard(__func__, [&]() -> Status {
    Call call;
    MessageArguments message;
    MetMessage met;
    TRIREME_RETURN_IF_ERROR(refuse_in_batch());
    if (out_info != nullptr) TRIREME_RETURN_IF_ERROR(check_message_info(out_info));
    TRIREME_RETURN_IF_ERROR(require(out_buffer, "out_buffer"));
    TRIREME_RETURN_IF_ERROR(prepare(
        &call, communicator, options, kReceiveFlags, &message,
        [&](const Call& opened, MessageArguments* out) {
          return make_receive(opened, nullptr, 0, "count", dtype, from, tag, Message::Fit::allocate,
                              out);
        },
        false));
    TRIREME_RETURN_IF_ERROR(
        call.of_deadline(call.communicator->run_message(message, call.timeout_ns(), &met)));
    hand_out(*call.communicator, [&] {
      call.communicator->adopt(met.memory);
      *out_buffer = insert_buffer(call.communicator, met.memory);
    });
    if (out_info != nullptr) write_message_info(met, out_info);
    return Status::success();
  });
}

trireme_status trireme_probe(trireme_communicator* communicator, int32_t from, uint64_t tag,
                             const trireme_operation_options* options,
                             trireme_message_info* out_info) {
  return run_and_tell(
      __func__, communicator, options, out_info,
      [&](const Call& call, MessageArguments* out) { return make_probe(call, from, tag, out); });
}

trireme_status trireme_probe_start(trireme_communicator* communicator, int32_t from, uint64_t tag,
                                   const trireme_operation_options* options,
                                   trireme_request** out_request) {
  return start_message(
      __func__, communicator, options, kReceiveFlags, out_request,
      [&](const Call& call, MessageArguments* out) { return make_probe(call, from, tag, out); });
}

trireme_status trireme_send_receive(trireme_communicator* communicator, const void* send,
                                    uint64_t send_count, int32_t to, uint64_t send_tag,
                                    void* receive, uint64_t receive_count, int32_t from,
                                    uint64_t receive_tag, trireme_dtype dtype,
                                    const trireme_operation_options* options) {
  return guard(__func__, [&]() -> Status {
    Call call;
    MessageArguments sent;
    MessageArguments received;
    TRIREME_RETURN_IF_ERROR(prepare(&call, communicator, options, kReceiveFlags, &received,
                                    [&](const Call& opened, MessageArguments* out) {
                                      return make_receive(opened, receive, receive_count,
                                                          "receive_count", dtype, from, receive_tag,
                                                          Message::Fit::exact, out);
                                    }));
    TRIREME_RETURN_IF_ERROR(make_send(call, send, send_count, dtype, to, send_tag, &sent));
    const std::uint64_t size = dtype_size(dtype);
    TRIREME_RETURN_IF_ERROR(check_apart(send, send_count * size, receive, receive_count * size));
    if (!in_batch() && call.moves != nullptr) {
      return call.of_deadline(call.moves->run_messages(
          *call.communicator, sent, received, call.options.stream.native, call.timeout_ns()));
    }
    if (!in_batch()) {
      return call.of_deadline(call.communicator->run_messages(sent, received, call.timeout_ns()));
    }
    for (const MessageArguments* const each : {&sent, &received}) {
      std::shared_ptr<Request> request;
      TRIREME_RETURN_IF_ERROR(start_call(call, *each, &request));
      add_to_batch(std::move(request));
    }
    return Status::success();
  });
}
