#include "api/operation_call.hpp"

#include <cmath>

#include "collectives/composite.hpp"
#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::api {
namespace {

std::string text_of(std::uint64_t number) { return std::to_string(number); }

Status refuse_on_device(const DeviceMoves& moves) {
  return unsupported("the communicator works on " + moves.text() +
                     ", where this operation does not work yet: docs/gpus.md tells which do");
}

// --- checks ----------------------------------------------------------------------------------

Status check_stream(const trireme_stream& stream, bool on_device) {
  const bool none = stream.kind == 0 && stream.native == nullptr;
  if (stream.reserved == 0 && (none || (on_device && stream.kind == TRIREME_DEVICE_CUDA))) {
    return Status::success();
  }
  return invalid_argument(on_device ? "options.stream is not all zero and no stream of CUDA"
                                    : "options.stream is set, but host memory has no streams");
}

Status read_options(const trireme_operation_options* caller, trireme_reduction reduction,
                    std::uint32_t known_flags, bool on_device, trireme_operation_options* out) {
  if (caller != nullptr) {
    TRIREME_RETURN_IF_ERROR(read_struct(caller, "options", out));
  }
  if ((out->flags & ~known_flags) != 0) {
    return invalid_argument("options.flags is " + text_of(out->flags) +
                            ", but this operation knows " +
                            (known_flags == 0 ? "none" : "only " + text_of(known_flags)));
  }
  TRIREME_RETURN_IF_ERROR(check_stream(out->stream, on_device));
  if (out->priority < TRIREME_PRIORITY_NORMAL || out->priority > TRIREME_PRIORITY_HIGH) {
    return invalid_argument("options.priority is " + std::to_string(out->priority) +
                            ", not one of TRIREME_PRIORITY_*");
  }
  if (out->algorithm < TRIREME_ALGORITHM_AUTOMATIC || out->algorithm > TRIREME_ALGORITHM_NATIVE) {
    return invalid_argument("options.algorithm is " + std::to_string(out->algorithm) +
                            ", not one of TRIREME_ALGORITHM_*");
  }
  if (out->reserved != 0) {
    return invalid_argument("options.reserved is " + text_of(out->reserved) + ", but must be 0");
  }
  if (reduction == TRIREME_REDUCTION_SCALED_SUM) {
    if (!std::isfinite(out->scale) || out->scale == 0) {
      return invalid_argument("options.scale is " + std::to_string(out->scale) +
                              ", but scaled_sum needs a factor that is finite and not 0");
    }
  } else if (out->scale != 0) {
    return invalid_argument("options.scale is " + std::to_string(out->scale) +
                            ", but only scaled_sum takes a factor");
  }
  return Status::success();
}

}  // namespace

namespace detail {

Status refuse_dtype(trireme_dtype dtype) {
  return invalid_argument("dtype is " + std::to_string(dtype) + ", not one of TRIREME_DTYPE_*");
}

Status refuse_memory(const char* what, std::uint64_t count) {
  return invalid_argument(std::string(what) + " is NULL but holds " + text_of(count) + " elements");
}

Status refuse_bytes(const char* what, std::uint64_t count, std::uint64_t blocks,
                    trireme_dtype dtype) {
  return invalid_argument(std::string(what) + " is " + text_of(count) + ": " +
                          (blocks == 1 ? "" : text_of(blocks) + " such blocks of ") +
                          dtype_name(dtype) + " are more bytes than memory can hold");
}

Status refuse_overlap(const char* rule) {
  return invalid_argument(std::string("send and receive overlap; ") + rule);
}

}  // namespace detail

Status check_reduction(trireme_dtype dtype, trireme_reduction reduction) {
  if (reduction < TRIREME_REDUCTION_SUM || reduction > TRIREME_REDUCTION_SCALED_SUM) {
    return invalid_argument("reduction is " + std::to_string(reduction) +
                            ", not one of TRIREME_REDUCTION_SUM and so on");
  }
  if (!kernels::reduction_supported(dtype, reduction)) {
    return unsupported(std::string(reduction_name(reduction)) + " of " + dtype_name(dtype) +
                       " has no meaning");
  }
  return Status::success();
}

Status check_rank(const Communicator& communicator, const char* what, std::int32_t rank) {
  if (rank >= 0 && rank < communicator.world_size()) return Status::success();
  return invalid_argument(std::string(what) + " is " + std::to_string(rank) +
                          ", but the ranks are 0 to " +
                          std::to_string(communicator.world_size() - 1));
}

Status check_counts(const char* what, const std::uint64_t* counts, int world_size,
                    trireme_dtype dtype, std::uint64_t* out_total) {
  TRIREME_RETURN_IF_ERROR(require(counts, what));
  std::uint64_t total = 0;
  for (int i = 0; i < world_size; ++i) {
    std::uint64_t bytes = 0;
    if (__builtin_add_overflow(total, counts[i], &total) ||
        __builtin_mul_overflow(total, dtype_size(dtype), &bytes) || bytes > detail::kMaxBytes) {
      return invalid_argument(std::string(what) + "[" + std::to_string(i) + "] is " +
                              text_of(counts[i]) + ": the sum up to it is more bytes of " +
                              dtype_name(dtype) + " than memory can hold");
    }
  }
  *out_total = total;
  return Status::success();
}

Status check_apart(const void* a, std::uint64_t a_bytes, const void* b, std::uint64_t b_bytes) {
  const auto a_at = reinterpret_cast<std::uintptr_t>(a);
  const auto b_at = reinterpret_cast<std::uintptr_t>(b);
  if (a_bytes == 0 || b_bytes == 0 || a_at + a_bytes <= b_at || b_at + b_bytes <= a_at) {
    return Status::success();
  }
  return invalid_argument("send and receive overlap; this operation does not work in place");
}

Status find_on_host(const trireme_communicator* handle, std::shared_ptr<Communicator>* out) {
  TRIREME_RETURN_IF_ERROR(find(handle, out));
  const std::shared_ptr<DeviceMoves> moves = moves_of(*out);
  return moves == nullptr ? Status::success() : refuse_on_device(*moves);
}

Status Call::open(const trireme_communicator* handle,
                  const trireme_operation_options* caller_options, trireme_reduction reduction,
                  std::uint32_t known_flags, bool on_devices) {
  TRIREME_RETURN_IF_ERROR(find(handle, &communicator));
  moves = moves_of(communicator);
  if (moves != nullptr && !on_devices) [[unlikely]]
    return refuse_on_device(*moves);
  if (caller_options == nullptr && reduction != TRIREME_REDUCTION_SCALED_SUM)
    return Status::success();
  return read_options(caller_options, reduction, known_flags, moves != nullptr, &options);
}

Status Call::make_device_call(const Operation& operation, std::vector<Entry>* entries,
                              DeviceCall* out) const {
  out->operation = operation;
  out->stream = options.stream.native;
  out->timeout_ns = timeout_ns();
  out->is_list = entries != nullptr;
  if (entries != nullptr) out->entries = std::move(*entries);
  if (options.wire_dtype != 0)
    TRIREME_RETURN_IF_ERROR(check_wire_dtype(operation, !out->is_plain()));
  out->wire_dtype = options.wire_dtype;
  return Status::success();
}

Status Call::run_on_device(const Operation& operation, std::vector<Entry>* entries) const {
  const NoCancellation whole;
  if (in_batch()) {
    std::shared_ptr<Request> request;
    TRIREME_RETURN_IF_ERROR(start_on_device(operation, entries, &request));
    tell_deadline_of(*request);
    add_to_batch(std::move(request));
    return Status::success();
  }
  DeviceCall call;
  TRIREME_RETURN_IF_ERROR(make_device_call(operation, entries, &call));
  return of_deadline(moves->run(*communicator, std::move(call)));
}

Status Call::start_on_device(const Operation& operation, std::vector<Entry>* entries,
                             std::shared_ptr<Request>* out) const {
  DeviceCall call;
  TRIREME_RETURN_IF_ERROR(make_device_call(operation, entries, &call));
  return of_deadline(moves->start(*communicator, std::move(call), out));
}

void hand_over(std::shared_ptr<Request> request, trireme_request** out_request) {
  try {
    *out_request = insert<trireme_request>(request);
  } catch (...) {
    if (!request->cancel().ok()) request->wait(Deadline::at(UINT64_MAX)).ok();
    throw;
  }
}

Status start_and_hand_over(const Call& call, Operation operation, std::vector<Entry>* entries,
                           trireme_request** out_request) {
  std::shared_ptr<Request> request;
  if (call.moves != nullptr) {
    TRIREME_RETURN_IF_ERROR(call.start_on_device(operation, entries, &request));
  } else {
    TRIREME_RETURN_IF_ERROR(
        call.communicator->start(std::move(operation), call.deadline(), &request));
  }
  call.tell_deadline_of(*request);
  hand_over(std::move(request), out_request);
  return Status::success();
}

Status Call::complete(Operation* operation) const {
  TRIREME_RETURN_IF_ERROR(check_place(*operation));
  if (operation->kind == OperationKind::all_to_all_v) {
    trireme::make_all_to_all_v(operation, communicator->rank(), communicator->world_size());
  }
  return apply_wire_dtype(operation);
}

Status Call::check_wire_dtype(const Operation& operation, bool is_composite) const {
  const bool narrow = kernels::is_narrow(options.wire_dtype);
  if (!narrow || operation.dtype != TRIREME_DTYPE_F32) {
    return invalid_argument(std::string("options.wire_dtype is ") + dtype_name(options.wire_dtype) +
                            ", but only f32 can travel as f16, bf16, f8e4m3 or f8e5m2");
  }
  if (!is_composite) return Status::success();
  return unsupported(std::string("options.wire_dtype is set, but ") +
                     operation_name(operation.kind) + " of this form travels as it is");
}

Status Call::wrap_in_wire_dtype(Operation* operation) const {
  TRIREME_RETURN_IF_ERROR(check_wire_dtype(*operation, operation->program != nullptr));
  make_wire(operation, options.wire_dtype, communicator->rank(), communicator->world_size());
  return Status::success();
}

}  // namespace trireme::api
