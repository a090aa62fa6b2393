// The common parts of all operations of the ABI: the checks of its arguments, its options, and its
// two forms, blocking and started.
#pragma once

#include <trireme/collectives.h>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "collectives/communicator.hpp"
#include "collectives/device_moves.hpp"
#include "devices/cuda/device.hpp"
#include "platform/deadline_text.hpp"
#include "platform/names.hpp"

namespace trireme::api {

// --- checks ----------------------------------------------------------------------------------

// The checks take most of a small operation's time. So the usual case is checked inline, and only a
// failure costs a call.
namespace detail {
Status refuse_dtype(trireme_dtype dtype);
Status refuse_memory(const char* what, std::uint64_t count);
Status refuse_bytes(const char* what, std::uint64_t count, std::uint64_t blocks,
                    trireme_dtype dtype);
Status refuse_overlap(const char* rule);
// No processor of today can address a larger object.
constexpr std::uint64_t kMaxBytes = 1ull << 56;
}  // namespace detail

inline Status check_dtype(trireme_dtype dtype) {
  if (dtype_size(dtype) != 0) [[likely]]
    return Status::success();
  return detail::refuse_dtype(dtype);
}
Status check_reduction(trireme_dtype dtype, trireme_reduction reduction);
Status check_rank(const Communicator& communicator, const char* what, std::int32_t rank);
inline Status check_memory(const void* memory, const char* what, std::uint64_t count) {
  if (memory != nullptr || count == 0) [[likely]]
    return Status::success();
  return detail::refuse_memory(what, count);
}
// count elements in each of `blocks` blocks.
inline Status total_bytes(const char* what, std::uint64_t count, std::uint64_t blocks,
                          trireme_dtype dtype, std::uint64_t* out) {
  std::uint64_t elements = 0;
  if (!__builtin_mul_overflow(count, blocks, &elements) &&
      !__builtin_mul_overflow(elements, dtype_size(dtype), out) && *out <= detail::kMaxBytes)
      [[likely]] {
    return Status::success();
  }
  return detail::refuse_bytes(what, count, blocks, dtype);
}
// World size counts, and their sum.
Status check_counts(const char* what, const std::uint64_t* counts, int world_size,
                    trireme_dtype dtype, std::uint64_t* out_total);
// `small` may lie exactly at `place` inside `large`, and nowhere else in it.
inline Status check_overlap(const void* small, std::uint64_t small_bytes, const void* large,
                            std::uint64_t large_bytes, std::uint64_t place, const char* rule) {
  const auto small_at = reinterpret_cast<std::uintptr_t>(small);
  const auto large_at = reinterpret_cast<std::uintptr_t>(large);
  if (small_bytes == 0 || large_bytes == 0 || small_at == large_at + place ||
      small_at + small_bytes <= large_at || large_at + large_bytes <= small_at) [[likely]] {
    return Status::success();
  }
  return detail::refuse_overlap(rule);
}
// The two have no byte in common.
Status check_apart(const void* a, std::uint64_t a_bytes, const void* b, std::uint64_t b_bytes);

// --- builders: check the arguments of an operation and fill it in ----------------------------

Status make_all_reduce(const void* send, void* receive, std::uint64_t count, trireme_dtype dtype,
                       trireme_reduction reduction, PlainOperation* out);
Status make_reduce_scatter(const Communicator& communicator, const void* send, void* receive,
                           std::uint64_t receive_count, trireme_dtype dtype,
                           trireme_reduction reduction, PlainOperation* out);
Status make_all_gather(const Communicator& communicator, const void* send, void* receive,
                       std::uint64_t send_count, trireme_dtype dtype, PlainOperation* out);
Status make_broadcast(const Communicator& communicator, void* data, std::uint64_t count,
                      trireme_dtype dtype, std::int32_t root, PlainOperation* out);

// --- batches: see trireme_batch_begin() ----------------------------------------------

bool in_batch();                                      // of this thread
void add_to_batch(std::shared_ptr<Request> request);  // for the wait at its end
Status refuse_in_batch();                             // INVALID_STATE inside one

// --- the two forms of each -------------------------------------------------------------------

constexpr std::uint32_t kCollectiveFlags = TRIREME_OPERATION_FLAG_REPRODUCIBLE;

// A communicator and the options of one call to it.
struct Call {
  std::shared_ptr<Communicator> communicator;
  trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;

  // Null if the operands are memory of the host.
  std::shared_ptr<DeviceMoves> moves;

  // `on_devices`: whether the operation also takes memory of a device; else that is UNSUPPORTED.
  Status open(const trireme_communicator* handle, const trireme_operation_options* caller_options,
              trireme_reduction reduction, std::uint32_t known_flags = 0, bool on_devices = false);
  std::uint64_t timeout_ns() const {
    return options.timeout_ns != 0 ? options.timeout_ns : communicator->timeout_ns();
  }
  // Adds the deadline to a failure that is late.
  [[gnu::always_inline]] Status of_deadline(Status&& status) const {
    if (status.ok()) [[likely]]
      return std::move(status);
    return tell_deadline(std::move(status), timeout_ns(), deadline_option());
  }
  // The same for a started operation, whenever it ends.
  void tell_deadline_of(Request& request) const {
    request.set_deadline_text(timeout_ns(), deadline_option());
  }
  const char* deadline_option() const {
    return options.timeout_ns != 0 ? "timeout_ns of the call's options"
                                   : "timeout_ns of the communicator's options";
  }
  Deadline deadline() const { return Deadline::after(timeout_ns()); }
  // Call it before the operation is filled in, because composites copy it.
  void apply_options(PlainOperation* operation) const {
    operation->scale = options.scale;
    operation->algorithm = options.algorithm;
    operation->reproducible = (options.flags & TRIREME_OPERATION_FLAG_REPRODUCIBLE) != 0;
    if (options.priority == TRIREME_PRIORITY_HIGH) operation->channel = kUrgentChannel;
  }
  // Runs or starts it on the device. `entries`: of a list, else null.
  Status run_on_device(const Operation& operation, std::vector<Entry>* entries = nullptr) const;
  Status start_on_device(const Operation& operation, std::vector<Entry>* entries,
                         std::shared_ptr<Request>* out) const;
  // The rest of an operation of host memory: its place, its program, its wire dtype.
  Status complete(Operation* operation) const;
  // Call it after the operation is filled in.
  Status apply_wire_dtype(Operation* operation) const {
    return options.wire_dtype == 0 ? Status::success() : wrap_in_wire_dtype(operation);
  }

 private:
  Status check_wire_dtype(const Operation& operation, bool is_composite) const;
  Status wrap_in_wire_dtype(Operation* operation) const;
  Status make_device_call(const Operation& operation, std::vector<Entry>* entries,
                          DeviceCall* out) const;
};

// A request without a handle cannot be followed: it ends before the call returns.
void hand_over(std::shared_ptr<Request> request, trireme_request** out_request);

// Starts it. On a device `entries` are those of a list; on the host it has its program.
Status start_and_hand_over(const Call& call, Operation operation, std::vector<Entry>* entries,
                           trireme_request** out_request);

// Inside a batch it is only started.
inline Status run_or_add(const Call& call, Operation operation) {
  if (!in_batch()) {
    return call.of_deadline(call.communicator->run(std::move(operation), call.deadline()));
  }
  std::shared_ptr<Request> request;
  TRIREME_RETURN_IF_ERROR(
      call.communicator->start(std::move(operation), call.deadline(), &request));
  call.tell_deadline_of(*request);
  add_to_batch(std::move(request));
  return Status::success();
}

// A process that works on no device pays one load.
inline Status check_place(const PlainOperation& operation) {
  if (!cuda::is_in_use()) [[likely]]
    return Status::success();
  return check_on_host(operation);
}
inline Status check_place(const char* what, const void* data, std::uint64_t count) {
  if (!cuda::is_in_use()) [[likely]]
    return Status::success();
  return check_on_host(what, data, count);
}

// run() for a PlainOperation, unless its options make it a larger one.
template <class Make>
trireme_status run_plain(const char* function, trireme_communicator* handle,
                         const trireme_operation_options* options, trireme_reduction reduction,
                         Make make) noexcept {
  return guard_brief(function, [&]() -> Status {
    Call call;
    PlainOperation plain;
    TRIREME_RETURN_IF_ERROR(call.open(handle, options, reduction, kCollectiveFlags, true));
    call.apply_options(&plain);
    TRIREME_RETURN_IF_ERROR(make(*call.communicator, &plain));
    if (call.moves != nullptr) [[unlikely]]
      return call.run_on_device(Operation(plain));
    if (call.options.wire_dtype == 0 && !in_batch()) {
      TRIREME_RETURN_IF_ERROR(check_place(plain));
      return call.of_deadline(call.communicator->run_plain(plain, call.timeout_ns()));
    }
    const NoCancellation rest;
    Operation operation(plain);
    TRIREME_RETURN_IF_ERROR(call.complete(&operation));
    return run_or_add(call, std::move(operation));
  });
}

template <class Make>
trireme_status run(const char* function, trireme_communicator* handle,
                   const trireme_operation_options* options, trireme_reduction reduction,
                   Make make) noexcept {
  return guard(function, [&]() -> Status {
    Call call;
    Operation operation;
    TRIREME_RETURN_IF_ERROR(call.open(handle, options, reduction, kCollectiveFlags, true));
    call.apply_options(&operation);
    TRIREME_RETURN_IF_ERROR(make(*call.communicator, &operation));
    if (call.moves != nullptr) return call.run_on_device(operation);
    TRIREME_RETURN_IF_ERROR(call.complete(&operation));
    return run_or_add(call, std::move(operation));
  });
}

template <class Make>
trireme_status start(const char* function, trireme_communicator* handle,
                     const trireme_operation_options* options, trireme_reduction reduction,
                     trireme_request** out_request, Make make) noexcept {
  return guard(function, [&]() -> Status {
    Call call;
    Operation operation;
    TRIREME_RETURN_IF_ERROR(call.open(handle, options, reduction, kCollectiveFlags, true));
    TRIREME_RETURN_IF_ERROR(require(out_request, "out_request"));
    call.apply_options(&operation);
    TRIREME_RETURN_IF_ERROR(make(*call.communicator, &operation));
    if (call.moves == nullptr) TRIREME_RETURN_IF_ERROR(call.complete(&operation));
    return start_and_hand_over(call, std::move(operation), nullptr, out_request);
  });
}

}  // namespace trireme::api
