// store.h.
#include "store/store.hpp"

#include <trireme/store.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "platform/utf8.hpp"

using namespace trireme;
using cluster::Store;
using cluster::StoreOperation;
using cluster::StoreReply;
using cluster::StoreRequest;

namespace trireme::api {

// A store and the timeout of its calls.
class StoreHandle {
 public:
  StoreHandle(std::unique_ptr<Store> store, std::uint64_t timeout_ns)
      : store_(std::move(store)), timeout_ns_(timeout_ns) {}

  Store& store() const { return *store_; }
  Status ask(StoreRequest request, StoreReply* reply) const {
    return store_->ask(std::move(request), Deadline::after(timeout_ns_), reply);
  }

 private:
  const std::unique_ptr<Store> store_;
  const std::uint64_t timeout_ns_;
};

}  // namespace trireme::api

namespace {

constexpr std::uint64_t kStoreTimeoutNs = 300'000'000'000;

using Open = Status (*)(std::string_view, const Token&, Deadline, std::unique_ptr<Store>*);

Status open_store(Open open, const char* url, const trireme_store_options* caller,
                  trireme_store** out_store) {
  trireme_store_options options = TRIREME_STORE_OPTIONS_INIT;
  if (caller != nullptr) {
    TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", &options));
  }
  if (options.flags != 0) {
    return invalid_argument("options.flags is " + std::to_string(options.flags) +
                            ", but must be 0");
  }
  TRIREME_RETURN_IF_ERROR(api::require(out_store, "out_store"));
  TRIREME_RETURN_IF_ERROR(api::detail::refuse_after_fork());
  if (!is_utf8(url)) return invalid_argument("url is no UTF-8");
  const std::uint64_t timeout_ns = options.timeout_ns == 0 ? kStoreTimeoutNs : options.timeout_ns;
  Token token;
  TRIREME_RETURN_IF_ERROR(Token::from_environment(&token));
  std::unique_ptr<Store> store;
  TRIREME_RETURN_IF_ERROR(open(url, token, Deadline::after(timeout_ns), &store));
  *out_store =
      api::insert<trireme_store>(std::make_shared<api::StoreHandle>(std::move(store), timeout_ns));
  return Status::success();
}

Status read_key(const char* key, const std::string& what, std::string* out) {
  TRIREME_RETURN_IF_ERROR(api::require(key, what.c_str()));
  // One byte beyond the limit is enough to see that it is too long.
  out->assign(key, strnlen(key, cluster::kMaxStoreKey + 1));
  if (out->size() <= cluster::kMaxStoreKey && !is_utf8(*out)) {
    return invalid_argument(what + " is no UTF-8");
  }
  return Status::success();
}

Status read_value(const void* value, std::uint64_t size, const std::string& what,
                  std::string* out) {
  if (size == 0) return Status::success();
  TRIREME_RETURN_IF_ERROR(api::require(value, what.c_str()));
  if (size > cluster::kMaxStoreValue) {
    return invalid_argument(what + " has " + std::to_string(size) + " bytes, above " +
                            std::to_string(cluster::kMaxStoreValue));
  }
  out->assign(static_cast<const char*>(value), size);
  return Status::success();
}

// A call about one key. complete(request) adds the operation's other fields, and use(reply) returns
// its results.
template <class Complete, class Use>
trireme_status call(const char* function, const trireme_store* handle, StoreOperation operation,
                    const char* key, Complete complete, Use use) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<api::StoreHandle> found;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &found));
    StoreRequest request;
    request.operation = operation;
    TRIREME_RETURN_IF_ERROR(read_key(key, "key", &request.key));
    TRIREME_RETURN_IF_ERROR(complete(request));
    StoreReply reply;
    TRIREME_RETURN_IF_ERROR(found->ask(std::move(request), &reply));
    use(reply);
    return Status::success();
  });
}

Status nothing_more(StoreRequest&) { return Status::success(); }

}  // namespace

trireme_status trireme_store_serve(const char* url, const trireme_store_options* options,
                                   trireme_store** out_store) {
  return api::guard(__func__, [&] {
    return open_store(cluster::serve_store, url == nullptr ? "tcp://127.0.0.1:0" : url, options,
                      out_store);
  });
}

trireme_status trireme_store_connect(const char* url, const trireme_store_options* options,
                                     trireme_store** out_store) {
  return api::guard(__func__, [&] {
    return open_store(cluster::connect_store, url == nullptr ? "env://" : url, options, out_store);
  });
}

void trireme_store_destroy(trireme_store* store) {
  const NoCancellation whole_call;
  if (const auto object = api::remove(store)) object->store().stop();
}

trireme_status trireme_store_get_address(const trireme_store* store, char* text, uint64_t capacity,
                                         uint64_t* out_length) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<api::StoreHandle> found;
    TRIREME_RETURN_IF_ERROR(api::find(store, &found));
    return api::write_text(found->store().url(), text, capacity, out_length);
  });
}

trireme_status trireme_store_set(trireme_store* store, const char* key, const void* value,
                                 uint64_t bytes) {
  return call(
      __func__, store, StoreOperation::set, key,
      [&](StoreRequest& request) { return read_value(value, bytes, "value", &request.value); },
      [](const StoreReply&) {});
}

trireme_status trireme_store_get(trireme_store* store, const char* key, void* value,
                                 uint64_t capacity, uint64_t* out_bytes, int32_t* out_found) {
  return call(
      __func__, store, StoreOperation::get, key,
      [&](StoreRequest&) -> Status {
        if (capacity > 0) TRIREME_RETURN_IF_ERROR(api::require(value, "value"));
        return api::require(out_found, "out_found");
      },
      [&](const StoreReply& reply) {
        const std::string_view there = reply.value ? *reply.value : std::string_view();
        const std::size_t part = std::min<std::uint64_t>(there.size(), capacity);
        if (part > 0) std::memcpy(value, there.data(), part);
        if (out_bytes != nullptr) *out_bytes = there.size();
        *out_found = reply.value.has_value();
      });
}

trireme_status trireme_store_wait(trireme_store* store, const char* const* keys, uint64_t key_count,
                                  uint64_t timeout_ns) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<api::StoreHandle> found;
    TRIREME_RETURN_IF_ERROR(api::find(store, &found));
    if (key_count > 0) TRIREME_RETURN_IF_ERROR(api::require(keys, "keys"));
    if (key_count > cluster::kMaxWaitKeys) {
      return invalid_argument("key_count is " + std::to_string(key_count) + ", above " +
                              std::to_string(cluster::kMaxWaitKeys));
    }
    StoreRequest request;
    request.operation = StoreOperation::wait;
    request.keys.resize(key_count);
    for (std::size_t i = 0; i < key_count; ++i) {
      TRIREME_RETURN_IF_ERROR(
          read_key(keys[i], "keys[" + std::to_string(i) + "]", &request.keys[i]));
    }
    StoreReply reply;
    return found->store().ask(std::move(request), Deadline::after(timeout_ns), &reply);
  });
}

trireme_status trireme_store_add(trireme_store* store, const char* key, int64_t amount,
                                 int64_t* out_sum) {
  return call(
      __func__, store, StoreOperation::add, key,
      [&](StoreRequest& request) {
        request.amount = amount;
        return Status::success();
      },
      [&](const StoreReply& reply) {
        if (out_sum != nullptr) *out_sum = reply.number;
      });
}

trireme_status trireme_store_compare_exchange(trireme_store* store, const char* key,
                                              const void* expected, uint64_t expected_bytes,
                                              const void* value, uint64_t bytes,
                                              int32_t* out_exchanged) {
  return call(
      __func__, store, StoreOperation::compare_exchange, key,
      [&](StoreRequest& request) -> Status {
        TRIREME_RETURN_IF_ERROR(api::require(out_exchanged, "out_exchanged"));
        if (expected != nullptr || expected_bytes != 0) {
          TRIREME_RETURN_IF_ERROR(
              read_value(expected, expected_bytes, "expected", &request.expected.emplace()));
        }
        return read_value(value, bytes, "value", &request.value);
      },
      [&](const StoreReply& reply) { *out_exchanged = static_cast<int32_t>(reply.number); });
}

trireme_status trireme_store_delete(trireme_store* store, const char* key, int32_t* out_deleted) {
  return call(__func__, store, StoreOperation::remove, key, nothing_more,
              [&](const StoreReply& reply) {
                if (out_deleted != nullptr) *out_deleted = static_cast<int32_t>(reply.number);
              });
}
