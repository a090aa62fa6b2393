// collectives.h: check every argument, call down, hand over.
#include <trireme/collectives.h>

#include <numeric>

#include "api/operation_call.hpp"
#include "collectives/composite.hpp"
#include "platform/names.hpp"
#include "schedules/algorithm.hpp"

using namespace trireme;
using namespace trireme::api;

namespace trireme::api {

Status make_all_reduce(const void* send, void* receive, std::uint64_t count, trireme_dtype dtype,
                       trireme_reduction reduction, PlainOperation* out) {
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(check_reduction(dtype, reduction));
  TRIREME_RETURN_IF_ERROR(total_bytes("count", count, 1, dtype, &bytes));
  TRIREME_RETURN_IF_ERROR(check_memory(send, "send", count));
  TRIREME_RETURN_IF_ERROR(check_memory(receive, "receive", count));
  TRIREME_RETURN_IF_ERROR(
      check_overlap(receive, bytes, send, bytes, 0, "in place, receive is send"));
  out->kind = OperationKind::all_reduce;
  out->dtype = dtype;
  out->reduction = reduction;
  out->send = send;
  out->receive = receive;
  out->count = count;
  return Status::success();
}

Status make_reduce_scatter(const Communicator& communicator, const void* send, void* receive,
                           std::uint64_t receive_count, trireme_dtype dtype,
                           trireme_reduction reduction, PlainOperation* out) {
  const auto world_size = static_cast<std::uint64_t>(communicator.world_size());
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(check_reduction(dtype, reduction));
  TRIREME_RETURN_IF_ERROR(total_bytes("receive_count", receive_count, world_size, dtype, &bytes));
  TRIREME_RETURN_IF_ERROR(check_memory(send, "send", receive_count));
  TRIREME_RETURN_IF_ERROR(check_memory(receive, "receive", receive_count));
  const std::uint64_t block = bytes / world_size;
  const auto rank = static_cast<std::uint64_t>(communicator.rank());
  TRIREME_RETURN_IF_ERROR(check_overlap(receive, block, send, bytes, rank * block,
                                        "in place, receive is this rank's block of send"));
  out->kind = OperationKind::reduce_scatter;
  out->dtype = dtype;
  out->reduction = reduction;
  out->send = send;
  out->receive = receive;
  out->count = receive_count;
  return Status::success();
}

Status make_all_gather(const Communicator& communicator, const void* send, void* receive,
                       std::uint64_t send_count, trireme_dtype dtype, PlainOperation* out) {
  const auto world_size = static_cast<std::uint64_t>(communicator.world_size());
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(total_bytes("send_count", send_count, world_size, dtype, &bytes));
  TRIREME_RETURN_IF_ERROR(check_memory(send, "send", send_count));
  TRIREME_RETURN_IF_ERROR(check_memory(receive, "receive", send_count));
  const std::uint64_t block = bytes / world_size;
  const auto rank = static_cast<std::uint64_t>(communicator.rank());
  TRIREME_RETURN_IF_ERROR(check_overlap(send, block, receive, bytes, rank * block,
                                        "in place, send is this rank's block of receive"));
  out->kind = OperationKind::all_gather;
  out->dtype = dtype;
  out->send = send;
  out->receive = receive;
  out->count = send_count;
  return Status::success();
}

Status make_broadcast(const Communicator& communicator, void* data, std::uint64_t count,
                      trireme_dtype dtype, std::int32_t root, PlainOperation* out) {
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(total_bytes("count", count, 1, dtype, &bytes));
  TRIREME_RETURN_IF_ERROR(check_memory(data, "data", count));
  TRIREME_RETURN_IF_ERROR(check_rank(communicator, "root", root));
  out->kind = OperationKind::broadcast;
  out->dtype = dtype;
  out->root = root;
  out->receive = data;
  out->count = count;
  return Status::success();
}

}  // namespace trireme::api

namespace {

// The two v forms; `whole` has all blocks, `block` this rank's.
Status make_v(const Communicator& communicator, const void* send, void* receive,
              const std::uint64_t* counts, trireme_dtype dtype, bool gathers, Operation* out) {
  const int rank = communicator.rank();
  std::uint64_t total = 0;
  TRIREME_RETURN_IF_ERROR(check_counts("counts", counts, communicator.world_size(), dtype, &total));
  const std::uint64_t own = counts[rank];
  TRIREME_RETURN_IF_ERROR(check_memory(send, "send", gathers ? own : total));
  TRIREME_RETURN_IF_ERROR(check_memory(receive, "receive", gathers ? total : own));
  const std::uint64_t size = dtype_size(dtype);
  const std::uint64_t before = std::accumulate(counts, counts + rank, std::uint64_t{0});
  const void* const block = gathers ? send : receive;
  const void* const whole = gathers ? receive : send;
  TRIREME_RETURN_IF_ERROR(check_overlap(block, own * size, whole, total * size, before * size,
                                        gathers
                                            ? "in place, send is this rank's block of receive"
                                            : "in place, receive is this rank's block of send"));
  out->dtype = dtype;
  out->send = send;
  out->receive = receive;
  out->count = total;
  out->counts.assign(counts, counts + communicator.world_size());
  return Status::success();
}

Status make_reduce_scatter_v(const Communicator& communicator, const void* send, void* receive,
                             const std::uint64_t* counts, trireme_dtype dtype,
                             trireme_reduction reduction, Operation* out) {
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(check_reduction(dtype, reduction));
  out->kind = OperationKind::reduce_scatter_v;
  out->reduction = reduction;
  return make_v(communicator, send, receive, counts, dtype, false, out);
}

Status make_all_gather_v(const Communicator& communicator, const void* send, void* receive,
                         const std::uint64_t* counts, trireme_dtype dtype, Operation* out) {
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  out->kind = OperationKind::all_gather_v;
  return make_v(communicator, send, receive, counts, dtype, true, out);
}

Status make_all_to_all(const Communicator& communicator, const void* send, void* receive,
                       std::uint64_t block_count, trireme_dtype dtype, Operation* out) {
  const auto world_size = static_cast<std::uint64_t>(communicator.world_size());
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(total_bytes("block_count", block_count, world_size, dtype, &bytes));
  TRIREME_RETURN_IF_ERROR(check_memory(send, "send", block_count));
  TRIREME_RETURN_IF_ERROR(check_memory(receive, "receive", block_count));
  TRIREME_RETURN_IF_ERROR(check_apart(send, bytes, receive, bytes));
  out->kind = OperationKind::all_to_all;
  out->dtype = dtype;
  out->send = send;
  out->receive = receive;
  out->count = block_count;
  return Status::success();
}

Status make_all_to_all_v(const Communicator& communicator, const void* send,
                         const std::uint64_t* send_counts, void* receive,
                         const std::uint64_t* receive_counts, trireme_dtype dtype, Operation* out) {
  const int world_size = communicator.world_size();
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(check_counts("send_counts", send_counts, world_size, dtype, &sent));
  TRIREME_RETURN_IF_ERROR(
      check_counts("receive_counts", receive_counts, world_size, dtype, &received));
  TRIREME_RETURN_IF_ERROR(check_memory(send, "send", sent));
  TRIREME_RETURN_IF_ERROR(check_memory(receive, "receive", received));
  const std::uint64_t size = dtype_size(dtype);
  TRIREME_RETURN_IF_ERROR(check_apart(send, sent * size, receive, received * size));
  out->kind = OperationKind::all_to_all_v;
  out->dtype = dtype;
  out->count = sent + received;
  out->send = send;
  out->receive = receive;
  out->counts.assign(send_counts, send_counts + world_size);
  out->counts.insert(out->counts.end(), receive_counts, receive_counts + world_size);
  return Status::success();
}

}  // namespace

trireme_status trireme_all_reduce(trireme_communicator* communicator, const void* send,
                                  void* receive, uint64_t count, trireme_dtype dtype,
                                  trireme_reduction reduction,
                                  const trireme_operation_options* options) {
  return run_plain(__func__, communicator, options, reduction,
                   [&](const Communicator&, PlainOperation* out) {
                     return make_all_reduce(send, receive, count, dtype, reduction, out);
                   });
}

trireme_status trireme_all_reduce_start(trireme_communicator* communicator, const void* send,
                                        void* receive, uint64_t count, trireme_dtype dtype,
                                        trireme_reduction reduction,
                                        const trireme_operation_options* options,
                                        trireme_request** out_request) {
  return start(__func__, communicator, options, reduction, out_request,
               [&](const Communicator&, Operation* out) {
                 return make_all_reduce(send, receive, count, dtype, reduction, out);
               });
}

trireme_status trireme_reduce_scatter(trireme_communicator* communicator, const void* send,
                                      void* receive, uint64_t receive_count, trireme_dtype dtype,
                                      trireme_reduction reduction,
                                      const trireme_operation_options* options) {
  return run_plain(__func__, communicator, options, reduction,
                   [&](const Communicator& object, PlainOperation* out) {
                     return make_reduce_scatter(object, send, receive, receive_count, dtype,
                                                reduction, out);
                   });
}

trireme_status trireme_reduce_scatter_start(trireme_communicator* communicator, const void* send,
                                            void* receive, uint64_t receive_count,
                                            trireme_dtype dtype, trireme_reduction reduction,
                                            const trireme_operation_options* options,
                                            trireme_request** out_request) {
  return start(__func__, communicator, options, reduction, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_reduce_scatter(object, send, receive, receive_count, dtype, reduction,
                                            out);
               });
}

trireme_status trireme_reduce_scatter_v(trireme_communicator* communicator, const void* send,
                                        void* receive, const uint64_t* counts, trireme_dtype dtype,
                                        trireme_reduction reduction,
                                        const trireme_operation_options* options) {
  return run(__func__, communicator, options, reduction,
             [&](const Communicator& object, Operation* out) {
               return make_reduce_scatter_v(object, send, receive, counts, dtype, reduction, out);
             });
}

trireme_status trireme_reduce_scatter_v_start(trireme_communicator* communicator, const void* send,
                                              void* receive, const uint64_t* counts,
                                              trireme_dtype dtype, trireme_reduction reduction,
                                              const trireme_operation_options* options,
                                              trireme_request** out_request) {
  return start(__func__, communicator, options, reduction, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_reduce_scatter_v(object, send, receive, counts, dtype, reduction, out);
               });
}

trireme_status trireme_all_gather(trireme_communicator* communicator, const void* send,
                                  void* receive, uint64_t send_count, trireme_dtype dtype,
                                  const trireme_operation_options* options) {
  return run_plain(__func__, communicator, options, 0,
                   [&](const Communicator& object, PlainOperation* out) {
                     return make_all_gather(object, send, receive, send_count, dtype, out);
                   });
}

trireme_status trireme_all_gather_start(trireme_communicator* communicator, const void* send,
                                        void* receive, uint64_t send_count, trireme_dtype dtype,
                                        const trireme_operation_options* options,
                                        trireme_request** out_request) {
  return start(__func__, communicator, options, 0, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_all_gather(object, send, receive, send_count, dtype, out);
               });
}

trireme_status trireme_all_gather_v(trireme_communicator* communicator, const void* send,
                                    void* receive, const uint64_t* counts, trireme_dtype dtype,
                                    const trireme_operation_options* options) {
  return run(__func__, communicator, options, 0, [&](const Communicator& object, Operation* out) {
    return make_all_gather_v(object, send, receive, counts, dtype, out);
  });
}

trireme_status trireme_all_gather_v_start(trireme_communicator* communicator, const void* send,
                                          void* receive, const uint64_t* counts,
                                          trireme_dtype dtype,
                                          const trireme_operation_options* options,
                                          trireme_request** out_request) {
  return start(__func__, communicator, options, 0, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_all_gather_v(object, send, receive, counts, dtype, out);
               });
}

trireme_status trireme_broadcast(trireme_communicator* communicator, void* data, uint64_t count,
                                 trireme_dtype dtype, int32_t root,
                                 const trireme_operation_options* options) {
  return run_plain(__func__, communicator, options, 0,
                   [&](const Communicator& object, PlainOperation* out) {
                     return make_broadcast(object, data, count, dtype, root, out);
                   });
}

trireme_status trireme_broadcast_start(trireme_communicator* communicator, void* data,
                                       uint64_t count, trireme_dtype dtype, int32_t root,
                                       const trireme_operation_options* options,
                                       trireme_request** out_request) {
  return start(__func__, communicator, options, 0, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_broadcast(object, data, count, dtype, root, out);
               });
}

trireme_status trireme_all_to_all(trireme_communicator* communicator, const void* send,
                                  void* receive, uint64_t block_count, trireme_dtype dtype,
                                  const trireme_operation_options* options) {
  return run(__func__, communicator, options, 0, [&](const Communicator& object, Operation* out) {
    return make_all_to_all(object, send, receive, block_count, dtype, out);
  });
}

trireme_status trireme_all_to_all_start(trireme_communicator* communicator, const void* send,
                                        void* receive, uint64_t block_count, trireme_dtype dtype,
                                        const trireme_operation_options* options,
                                        trireme_request** out_request) {
  return start(__func__, communicator, options, 0, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_all_to_all(object, send, receive, block_count, dtype, out);
               });
}

trireme_status trireme_all_to_all_v(trireme_communicator* communicator, const void* send,
                                    const uint64_t* send_counts, void* receive,
                                    const uint64_t* receive_counts, trireme_dtype dtype,
                                    const trireme_operation_options* options) {
  const auto make = [&](const Communicator& object, Operation* out) {
    return make_all_to_all_v(object, send, send_counts, receive, receive_counts, dtype, out);
  };
  return run(__func__, communicator, options, 0, make);
}

trireme_status trireme_all_to_all_v_start(trireme_communicator* communicator, const void* send,
                                          const uint64_t* send_counts, void* receive,
                                          const uint64_t* receive_counts, trireme_dtype dtype,
                                          const trireme_operation_options* options,
                                          trireme_request** out_request) {
  return start(__func__, communicator, options, 0, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_all_to_all_v(object, send, send_counts, receive, receive_counts, dtype,
                                          out);
               });
}

trireme_status trireme_barrier(trireme_communicator* communicator,
                               const trireme_operation_options* options) {
  return run_plain(__func__, communicator, options, 0,
                   [](const Communicator&, PlainOperation*) { return Status::success(); });
}

trireme_status trireme_barrier_start(trireme_communicator* communicator,
                                     const trireme_operation_options* options,
                                     trireme_request** out_request) {
  return start(__func__, communicator, options, 0, out_request,
               [](const Communicator&, Operation*) { return Status::success(); });
}

const char* trireme_algorithm_name(trireme_algorithm algorithm) {
  return algorithm_name(static_cast<Algorithm>(algorithm));
}
