// request.h.
#include <trireme/request.h>

#include <memory>
#include <vector>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/message_info.hpp"
#include "collectives/communicator.hpp"

using namespace trireme;

namespace {

// Makes trireme_last_error() return the operation's message inside the callback. It holds the
// request, which holds this: the circle is cut when the operation ends, as every operation does.
struct Notice {
  trireme_completion_callback callback;
  void* user_data;
  std::shared_ptr<Request> request;
};

void notify(std::int32_t code, void* data) {
  const std::unique_ptr<Notice> notice(static_cast<Notice*>(data));
  if (code != TRIREME_OK) {
    api::guard("trireme_completion_callback", [&] { return notice->request->result(); });
  }
  notice->callback(code, notice->user_data);
}

}  // namespace

trireme_status trireme_request_test(const trireme_request* request, int32_t* out_done) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Request> object;
    TRIREME_RETURN_IF_ERROR(api::find(request, &object));
    TRIREME_RETURN_IF_ERROR(api::require(out_done, "out_done"));
    if (!object->done()) object->look();
    const bool done = object->done();
    if (done) TRIREME_RETURN_IF_ERROR(object->result());
    *out_done = done ? 1 : 0;
    return Status::success();
  });
}

trireme_status trireme_request_wait(const trireme_request* request, uint64_t timeout_ns) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Request> object;
    TRIREME_RETURN_IF_ERROR(api::find(request, &object));
    return object->wait(Deadline::after(timeout_ns));
  });
}

trireme_status trireme_request_wait_any(const trireme_request* const* requests, uint64_t count,
                                        uint64_t timeout_ns, uint64_t* out_index) {
  return api::guard(__func__, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(requests, "requests"));
    TRIREME_RETURN_IF_ERROR(api::require(out_index, "out_index"));
    if (count == 0) return invalid_argument("count is 0, but there must be a request to wait for");
    const Deadline deadline = Deadline::after(timeout_ns);
    std::vector<std::shared_ptr<Request>> objects;
    for (uint64_t i = 0; i < count; ++i) {
      std::shared_ptr<Request> object;
      const Status found = api::find(requests[i], &object);
      if (!found.ok()) {
        return Status::failure(found.code(),
                               "requests[" + std::to_string(i) + "]: " + found.message());
      }
      objects.push_back(std::move(object));
    }
    std::size_t index = 0;
    TRIREME_RETURN_IF_ERROR(wait_any(objects.data(), objects.size(), deadline, &index));
    *out_index = index;
    return Status::success();
  });
}

trireme_status trireme_request_wait_all(const trireme_request* const* requests, uint64_t count,
                                        uint64_t timeout_ns) {
  return api::guard(__func__, [&]() -> Status {
    if (count > 0) TRIREME_RETURN_IF_ERROR(api::require(requests, "requests"));
    const Deadline deadline = Deadline::after(timeout_ns);
    std::vector<std::shared_ptr<Request>> objects;
    for (std::uint64_t i = 0; i < count; ++i) {
      objects.emplace_back();
      TRIREME_RETURN_IF_ERROR(api::find(requests[i], &objects.back()));
    }
    Status first = Status::success();
    std::uint64_t pending = 0;
    for (const auto& object : objects) {
      Status status = object->wait(deadline);
      // An unfinished request has not failed: the message counts them instead.
      if (!object->done() && status.code() == TRIREME_ERROR_TIMEOUT) {
        ++pending;
      } else if (first.ok()) {
        first = std::move(status);
      }
    }
    if (!first.ok() || pending == 0) return first;
    return Status::failure(
        TRIREME_ERROR_TIMEOUT,
        std::to_string(pending) + " of " + std::to_string(count) + " requests are not done");
  });
}

trireme_status trireme_request_get_message(const trireme_request* request,
                                           trireme_message_info* out_info) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Request> object;
    MetMessage met;
    TRIREME_RETURN_IF_ERROR(api::find(request, &object));
    TRIREME_RETURN_IF_ERROR(api::check_message_info(out_info));
    if (!object->met(&met)) {
      return invalid_state("the request is no receive or probe that is done and went well");
    }
    api::write_message_info(met, out_info);
    return Status::success();
  });
}

trireme_status trireme_request_cancel(trireme_request* request) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Request> object;
    TRIREME_RETURN_IF_ERROR(api::find(request, &object));
    return object->cancel();
  });
}

trireme_status trireme_request_on_complete(trireme_request* request,
                                           trireme_completion_callback callback, void* user_data) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Request> object;
    TRIREME_RETURN_IF_ERROR(api::find(request, &object));
    if (callback == nullptr) return invalid_argument("callback is NULL");
    auto notice = std::make_unique<Notice>(Notice{callback, user_data, object});
    TRIREME_RETURN_IF_ERROR(object->on_complete(notify, notice.get()));
    static_cast<void>(notice.release());  // notify() owns it now, or has released it
    return Status::success();
  });
}

trireme_status trireme_request_get_fd(trireme_request* request, int32_t* out_fd) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Request> object;
    TRIREME_RETURN_IF_ERROR(api::find(request, &object));
    TRIREME_RETURN_IF_ERROR(api::require(out_fd, "out_fd"));
    int descriptor = -1;
    TRIREME_RETURN_IF_ERROR(object->descriptor(&descriptor));
    *out_fd = descriptor;
    return Status::success();
  });
}

void trireme_request_destroy(trireme_request* request) { api::destroy(request); }
