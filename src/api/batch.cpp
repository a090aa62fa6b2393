// batch.h: lists, calls that find out how much comes, batches.
#include <trireme/batch.h>

#include <algorithm>
#include <vector>

#include "api/operation_call.hpp"
#include "collectives/composite.hpp"

using namespace trireme;
using namespace trireme::api;

namespace trireme::api {
namespace {

struct Batch {
  int depth = 0;
  std::vector<std::shared_ptr<Request>> requests;
};
thread_local Batch batch;

}  // namespace

bool in_batch() { return batch.depth > 0; }

void add_to_batch(std::shared_ptr<Request> request) {
  try {
    batch.requests.push_back(request);
  } catch (...) {  // an unlisted request would not be waited for
    if (!request->cancel().ok()) request->wait(Deadline::at(UINT64_MAX)).ok();
    throw;
  }
}

Status refuse_in_batch() {
  if (!in_batch()) return Status::success();
  return invalid_state("this operation cannot be started, and a batch is open on this thread");
}

}  // namespace trireme::api

namespace {

Status close_batch() {
  if (batch.depth == 0) return invalid_state("no batch is open on this thread");
  if (--batch.depth > 0) return Status::success();
  const std::vector<std::shared_ptr<Request>> requests = std::move(batch.requests);
  batch.requests.clear();
  Status first = Status::success();
  for (const std::shared_ptr<Request>& request : requests) {
    Status status = request->wait(Deadline::at(UINT64_MAX));  // each has its own deadline
    if (first.ok()) first = std::move(status);
  }
  return first;
}

constexpr std::uint64_t kMostEntries = 1u << 24;

Status read_list(const void* const* sends, void* const* receives, const char* receives_name,
                 const std::uint64_t* counts, std::uint64_t length, std::vector<Entry>* out) {
  if (length == 0) return Status::success();
  if (length > kMostEntries) {
    return invalid_argument("length is " + std::to_string(length) + ", but a list has at most " +
                            std::to_string(kMostEntries) + " entries");
  }
  TRIREME_RETURN_IF_ERROR(require(receives, receives_name));
  TRIREME_RETURN_IF_ERROR(require(counts, "counts"));
  out->resize(length);
  for (std::uint64_t i = 0; i < length; ++i) {
    (*out)[i] = {sends == nullptr ? nullptr : sends[i], receives[i], counts[i]};
  }
  return Status::success();
}

Status read_lists(const void* const* sends, void* const* receives, const std::uint64_t* counts,
                  std::uint64_t length, std::vector<Entry>* out) {
  if (length > 0) TRIREME_RETURN_IF_ERROR(require(sends, "sends"));
  return read_list(sends, receives, "receives", counts, length, out);
}

// A list of the caller before it becomes one operation.
struct List {
  Operation operation;         // without its buffers
  std::vector<Entry> entries;  // the counts and buffers
};

// Checks every entry by `check(entry)`, like the plain operation; `check` fills in the operation.
template <class Check>
Status check_list(const Call& call, List* list, Check check) {
  TRIREME_RETURN_IF_ERROR(check(Entry{}));  // the checks that an empty list needs, too
  for (std::size_t i = 0; i < list->entries.size(); ++i) {
    Status status = check(list->entries[i]);
    if (status.ok() && call.moves == nullptr) status = check_place(list->operation);
    if (status.ok()) continue;
    return Status::failure(status.code(), "entry " + std::to_string(i) + ": " + status.message());
  }
  list->operation.send = nullptr;
  list->operation.receive = nullptr;
  list->operation.count = 0;
  return Status::success();
}

// On the host, where its program knows its addresses.
Status complete_list(const Call& call, List* list) {
  make_list(&list->operation, std::move(list->entries), call.communicator->rank(),
            call.communicator->world_size());
  return call.apply_wire_dtype(&list->operation);
}

template <class Make>
trireme_status run_list(const char* function, trireme_communicator* handle,
                        const trireme_operation_options* options, trireme_reduction reduction,
                        Make make) noexcept {
  return guard(function, [&]() -> Status {
    Call call;
    List list;
    TRIREME_RETURN_IF_ERROR(call.open(handle, options, reduction, kCollectiveFlags, true));
    call.apply_options(&list.operation);
    TRIREME_RETURN_IF_ERROR(make(call, &list));
    if (call.moves != nullptr) return call.run_on_device(list.operation, &list.entries);
    TRIREME_RETURN_IF_ERROR(complete_list(call, &list));
    return run_or_add(call, std::move(list.operation));
  });
}

template <class Make>
trireme_status start_list(const char* function, trireme_communicator* handle,
                          const trireme_operation_options* options, trireme_reduction reduction,
                          trireme_request** out_request, Make make) noexcept {
  return guard(function, [&]() -> Status {
    Call call;
    List list;
    TRIREME_RETURN_IF_ERROR(call.open(handle, options, reduction, kCollectiveFlags, true));
    TRIREME_RETURN_IF_ERROR(require(out_request, "out_request"));
    call.apply_options(&list.operation);
    TRIREME_RETURN_IF_ERROR(make(call, &list));
    if (call.moves == nullptr) TRIREME_RETURN_IF_ERROR(complete_list(call, &list));
    return start_and_hand_over(call, std::move(list.operation), &list.entries, out_request);
  });
}

Status make_all_reduce_list(const Call& call, const void* const* sends, void* const* receives,
                            const std::uint64_t* counts, std::uint64_t length, trireme_dtype dtype,
                            trireme_reduction reduction, List* out) {
  TRIREME_RETURN_IF_ERROR(read_lists(sends, receives, counts, length, &out->entries));
  return check_list(call, out, [&](const Entry& entry) {
    return make_all_reduce(entry.send, entry.receive, entry.count, dtype, reduction,
                           &out->operation);
  });
}

Status make_reduce_scatter_list(const Call& call, const void* const* sends, void* const* receives,
                                const std::uint64_t* counts, std::uint64_t length,
                                trireme_dtype dtype, trireme_reduction reduction, List* out) {
  TRIREME_RETURN_IF_ERROR(read_lists(sends, receives, counts, length, &out->entries));
  return check_list(call, out, [&](const Entry& entry) {
    return make_reduce_scatter(*call.communicator, entry.send, entry.receive, entry.count, dtype,
                               reduction, &out->operation);
  });
}

Status make_all_gather_list(const Call& call, const void* const* sends, void* const* receives,
                            const std::uint64_t* counts, std::uint64_t length, trireme_dtype dtype,
                            List* out) {
  TRIREME_RETURN_IF_ERROR(read_lists(sends, receives, counts, length, &out->entries));
  return check_list(call, out, [&](const Entry& entry) {
    return make_all_gather(*call.communicator, entry.send, entry.receive, entry.count, dtype,
                           &out->operation);
  });
}

Status make_broadcast_list(const Call& call, void* const* data, const std::uint64_t* counts,
                           std::uint64_t length, trireme_dtype dtype, std::int32_t root,
                           List* out) {
  TRIREME_RETURN_IF_ERROR(read_list(nullptr, data, "data", counts, length, &out->entries));
  return check_list(call, out, [&](const Entry& entry) {
    return make_broadcast(*call.communicator, entry.receive, entry.count, dtype, root,
                          &out->operation);
  });
}

// Runs an operation that leaves its result in `found`, and hands its memory to the caller.
template <class Make>
trireme_status discover(const char* function, trireme_communicator* handle,
                        const trireme_operation_options* options, Discovered* found,
                        trireme_buffer** out_buffer, Make make) noexcept {
  return guard(function, [&]() -> Status {
    Call call;
    Operation operation;
    TRIREME_RETURN_IF_ERROR(refuse_in_batch());
    TRIREME_RETURN_IF_ERROR(call.open(handle, options, 0, kCollectiveFlags));
    call.apply_options(&operation);
    TRIREME_RETURN_IF_ERROR(make(*call.communicator, &operation));
    TRIREME_RETURN_IF_ERROR(call.apply_wire_dtype(&operation));
    TRIREME_RETURN_IF_ERROR(
        call.of_deadline(call.communicator->run(std::move(operation), call.deadline())));
    if (found->memory == nullptr) return Status::success();
    hand_out(*call.communicator, [&] {
      call.communicator->adopt(found->memory);
      *out_buffer = insert_buffer(call.communicator, std::move(found->memory));
    });
    return Status::success();
  });
}

}  // namespace

trireme_status trireme_batch_begin() {
  return guard(__func__, [] {
    ++batch.depth;
    return Status::success();
  });
}

trireme_status trireme_batch_end() {
  return guard(__func__, [] { return close_batch(); });
}

trireme_status trireme_all_reduce_list(trireme_communicator* communicator, const void* const* sends,
                                       void* const* receives, const uint64_t* counts,
                                       uint64_t length, trireme_dtype dtype,
                                       trireme_reduction reduction,
                                       const trireme_operation_options* options) {
  return run_list(__func__, communicator, options, reduction, [&](const Call& call, List* out) {
    return make_all_reduce_list(call, sends, receives, counts, length, dtype, reduction, out);
  });
}

trireme_status trireme_all_reduce_list_start(trireme_communicator* communicator,
                                             const void* const* sends, void* const* receives,
                                             const uint64_t* counts, uint64_t length,
                                             trireme_dtype dtype, trireme_reduction reduction,
                                             const trireme_operation_options* options,
                                             trireme_request** out_request) {
  return start_list(
      __func__, communicator, options, reduction, out_request, [&](const Call& call, List* out) {
        return make_all_reduce_list(call, sends, receives, counts, length, dtype, reduction, out);
      });
}

trireme_status trireme_reduce_scatter_list(trireme_communicator* communicator,
                                           const void* const* sends, void* const* receives,
                                           const uint64_t* counts, uint64_t length,
                                           trireme_dtype dtype, trireme_reduction reduction,
                                           const trireme_operation_options* options) {
  return run_list(__func__, communicator, options, reduction, [&](const Call& call, List* out) {
    return make_reduce_scatter_list(call, sends, receives, counts, length, dtype, reduction, out);
  });
}

trireme_status trireme_reduce_scatter_list_start(trireme_communicator* communicator,
                                                 const void* const* sends, void* const* receives,
                                                 const uint64_t* counts, uint64_t length,
                                                 trireme_dtype dtype, trireme_reduction reduction,
                                                 const trireme_operation_options* options,
                                                 trireme_request** out_request) {
  return start_list(__func__, communicator, options, reduction, out_request,
                    [&](const Call& call, List* out) {
                      return make_reduce_scatter_list(call, sends, receives, counts, length, dtype,
                                                      reduction, out);
                    });
}

trireme_status trireme_all_gather_list(trireme_communicator* communicator, const void* const* sends,
                                       void* const* receives, const uint64_t* counts,
                                       uint64_t length, trireme_dtype dtype,
                                       const trireme_operation_options* options) {
  return run_list(__func__, communicator, options, 0, [&](const Call& call, List* out) {
    return make_all_gather_list(call, sends, receives, counts, length, dtype, out);
  });
}

trireme_status trireme_all_gather_list_start(trireme_communicator* communicator,
                                             const void* const* sends, void* const* receives,
                                             const uint64_t* counts, uint64_t length,
                                             trireme_dtype dtype,
                                             const trireme_operation_options* options,
                                             trireme_request** out_request) {
  return start_list(
      __func__, communicator, options, 0, out_request, [&](const Call& call, List* out) {
        return make_all_gather_list(call, sends, receives, counts, length, dtype, out);
      });
}

trireme_status trireme_broadcast_list(trireme_communicator* communicator, void* const* data,
                                      const uint64_t* counts, uint64_t length, trireme_dtype dtype,
                                      int32_t root, const trireme_operation_options* options) {
  return run_list(__func__, communicator, options, 0, [&](const Call& call, List* out) {
    return make_broadcast_list(call, data, counts, length, dtype, root, out);
  });
}

trireme_status trireme_broadcast_list_start(trireme_communicator* communicator, void* const* data,
                                            const uint64_t* counts, uint64_t length,
                                            trireme_dtype dtype, int32_t root,
                                            const trireme_operation_options* options,
                                            trireme_request** out_request) {
  return start_list(__func__, communicator, options, 0, out_request,
                    [&](const Call& call, List* out) {
                      return make_broadcast_list(call, data, counts, length, dtype, root, out);
                    });
}

trireme_status trireme_broadcast_to_buffer(trireme_communicator* communicator, const void* data,
                                           uint64_t count, trireme_dtype dtype, int32_t root,
                                           const trireme_operation_options* options,
                                           trireme_buffer** out_buffer) {
  Discovered found;
  return discover(__func__, communicator, options, &found, out_buffer,
                  [&](const Communicator& object, Operation* out) -> Status {
                    const bool is_root = object.rank() == root;
                    void* const elements = is_root ? const_cast<void*>(data) : nullptr;
                    TRIREME_RETURN_IF_ERROR(check_rank(object, "root", root));
                    if (!is_root) TRIREME_RETURN_IF_ERROR(require(out_buffer, "out_buffer"));
                    TRIREME_RETURN_IF_ERROR(
                        make_broadcast(object, elements, is_root ? count : 0, dtype, root, out));
                    TRIREME_RETURN_IF_ERROR(check_place(*out));
                    make_broadcast_to_memory(out, object.rank(), out_buffer != nullptr, &found);
                    return Status::success();
                  });
}

trireme_status trireme_scatter_to_buffer(trireme_communicator* communicator, const void* send,
                                         const uint64_t* counts, trireme_dtype dtype, int32_t root,
                                         const trireme_operation_options* options,
                                         trireme_buffer** out_buffer) {
  Discovered found;
  return discover(__func__, communicator, options, &found, out_buffer,
                  [&](const Communicator& object, Operation* out) -> Status {
                    TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
                    TRIREME_RETURN_IF_ERROR(check_rank(object, "root", root));
                    TRIREME_RETURN_IF_ERROR(require(out_buffer, "out_buffer"));
                    out->kind = OperationKind::scatter_v;
                    out->dtype = dtype;
                    out->root = root;
                    if (object.rank() == root) {
                      std::uint64_t total = 0;
                      TRIREME_RETURN_IF_ERROR(
                          check_counts("counts", counts, object.world_size(), dtype, &total));
                      TRIREME_RETURN_IF_ERROR(check_memory(send, "send", total));
                      TRIREME_RETURN_IF_ERROR(check_place("send", send, total));
                      out->send = send;
                      out->counts.assign(counts, counts + object.world_size());
                    }
                    make_scatter_to_memory(out, object.rank(), object.world_size(), &found);
                    return Status::success();
                  });
}

trireme_status trireme_all_gather_to_buffer(trireme_communicator* communicator, const void* send,
                                            uint64_t send_count, trireme_dtype dtype,
                                            const trireme_operation_options* options,
                                            uint64_t* out_counts, trireme_buffer** out_buffer) {
  Discovered found;
  const trireme_status status =
      discover(__func__, communicator, options, &found, out_buffer,
               [&](const Communicator& object, Operation* out) -> Status {
                 std::uint64_t bytes = 0;
                 TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
                 TRIREME_RETURN_IF_ERROR(total_bytes("send_count", send_count, 1, dtype, &bytes));
                 TRIREME_RETURN_IF_ERROR(check_memory(send, "send", send_count));
                 TRIREME_RETURN_IF_ERROR(check_place("send", send, send_count));
                 TRIREME_RETURN_IF_ERROR(require(out_counts, "out_counts"));
                 TRIREME_RETURN_IF_ERROR(require(out_buffer, "out_buffer"));
                 out->kind = OperationKind::all_gather_v;
                 out->dtype = dtype;
                 out->send = send;
                 out->count = send_count;
                 make_all_gather_to_memory(out, object.rank(), object.world_size(), &found);
                 return Status::success();
               });
  if (status == TRIREME_OK) std::copy(found.counts.begin(), found.counts.end(), out_counts);
  return status;
}
