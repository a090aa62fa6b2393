// What every operation of the ABI shares: the checks of its arguments, its options, and its two
// forms, blocking and started.
#pragma once

#include <trireme/collectives.h>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "collectives/communicator.hpp"

namespace trireme::api {

// --- checks ----------------------------------------------------------------------------------

Status check_dtype(trireme_dtype dtype);
Status check_reduction(trireme_dtype dtype, trireme_reduction reduction);
Status check_rank(const Communicator& communicator, const char* what, std::int32_t rank);
Status check_memory(const void* memory, const char* what, std::uint64_t count);
// count elements in each of `blocks` blocks.
Status total_bytes(const char* what, std::uint64_t count, std::uint64_t blocks, trireme_dtype dtype,
                   std::uint64_t* out);
// World size counts, and their sum.
Status check_counts(const char* what, const std::uint64_t* counts, int world_size,
                    trireme_dtype dtype, std::uint64_t* out_total);
// `small` may lie exactly at `place` inside `large`, and nowhere else in it.
Status check_overlap(const void* small, std::uint64_t small_bytes, const void* large,
                     std::uint64_t large_bytes, std::uint64_t place, const char* rule);
// No byte in common.
Status check_apart(const void* a, std::uint64_t a_bytes, const void* b, std::uint64_t b_bytes);

// --- builders: check the arguments of an operation and fill it in ----------------------------

Status make_all_reduce(const void* send, void* receive, std::uint64_t count, trireme_dtype dtype,
                       trireme_reduction reduction, Operation* out);
Status make_reduce_scatter(const Communicator& communicator, const void* send, void* receive,
                           std::uint64_t receive_count, trireme_dtype dtype,
                           trireme_reduction reduction, Operation* out);
Status make_all_gather(const Communicator& communicator, const void* send, void* receive,
                       std::uint64_t send_count, trireme_dtype dtype, Operation* out);
Status make_broadcast(const Communicator& communicator, void* data, std::uint64_t count,
                      trireme_dtype dtype, std::int32_t root, Operation* out);

// --- groups of calls: see trireme_group_start() ----------------------------------------------

bool in_group();                                      // of this thread
void add_to_group(std::shared_ptr<Request> request);  // to wait for at its end
Status refuse_in_group();                             // INVALID_STATE inside one

// --- the two forms of each -------------------------------------------------------------------

constexpr std::uint32_t kCollectiveFlags = TRIREME_CALL_REPRODUCIBLE;

// A communicator and the options of one call to it.
struct Call {
  std::shared_ptr<Communicator> communicator;
  trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;

  Status open(const trireme_communicator* handle, const trireme_operation_options* caller_options,
              trireme_reduction reduction, std::uint32_t known_flags = 0);
  Deadline deadline() const {
    return Deadline::after(options.timeout_ns != 0 ? options.timeout_ns
                                                   : communicator->timeout_ns());
  }
  // Before the operation is filled in: composites copy it.
  void apply_options(Operation* operation) const;
  // After it.
  Status apply_wire_dtype(Operation* operation) const;
};

// A request that has no handle cannot be followed: it ends before the caller hears of it.
void hand_over(std::shared_ptr<Request> request, trireme_request** out_request);

template <class Make>
trireme_status run(const char* function, trireme_communicator* handle,
                   const trireme_operation_options* options, trireme_reduction reduction,
                   Make make) noexcept {
  return guard(function, [&]() -> Status {
    Call call;
    Operation operation;
    TRIREME_RETURN_IF_ERROR(call.open(handle, options, reduction, kCollectiveFlags));
    call.apply_options(&operation);
    TRIREME_RETURN_IF_ERROR(make(*call.communicator, &operation));
    TRIREME_RETURN_IF_ERROR(call.apply_wire_dtype(&operation));
    if (!in_group()) return call.communicator->run(std::move(operation), call.deadline());
    std::shared_ptr<Request> request;
    TRIREME_RETURN_IF_ERROR(
        call.communicator->start(std::move(operation), call.deadline(), &request));
    add_to_group(std::move(request));
    return Status::success();
  });
}

template <class Make>
trireme_status start(const char* function, trireme_communicator* handle,
                     const trireme_operation_options* options, trireme_reduction reduction,
                     trireme_request** out_request, Make make) noexcept {
  return guard(function, [&]() -> Status {
    Call call;
    Operation operation;
    TRIREME_RETURN_IF_ERROR(call.open(handle, options, reduction, kCollectiveFlags));
    TRIREME_RETURN_IF_ERROR(require(out_request, "out_request"));
    call.apply_options(&operation);
    TRIREME_RETURN_IF_ERROR(make(*call.communicator, &operation));
    TRIREME_RETURN_IF_ERROR(call.apply_wire_dtype(&operation));
    std::shared_ptr<Request> request;
    TRIREME_RETURN_IF_ERROR(
        call.communicator->start(std::move(operation), call.deadline(), &request));
    hand_over(std::move(request), out_request);
    return Status::success();
  });
}

}  // namespace trireme::api
