// The common parts of the tests of the store: stores of each kind, and one call for each operation.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/store.hpp"

namespace trireme::cluster::test {

inline const Token kToken("a token of the tests of the store");
constexpr std::uint64_t kSecondNs = 1'000'000'000;
constexpr std::uint64_t kPatienceNs = 60 * kSecondNs;

struct Result {
  Status status = Status::success();
  StoreReply reply;
  trireme_status code() const { return status.code(); }
  const std::string& message() const { return status.message(); }
};

inline Result ask(Store& store, StoreRequest request, std::uint64_t timeout_ns = kPatienceNs) {
  Result result;
  result.status = store.ask(std::move(request), Deadline::after(timeout_ns), &result.reply);
  return result;
}

inline StoreRequest make(StoreOperation operation, std::string key, std::string value = "") {
  StoreRequest request;
  request.operation = operation;
  request.key = std::move(key);
  request.value = std::move(value);
  return request;
}

inline Result set(Store& store, const std::string& key, const std::string& value) {
  return ask(store, make(StoreOperation::set, key, value));
}
inline Result get(Store& store, const std::string& key) {
  return ask(store, make(StoreOperation::get, key));
}
inline Result remove(Store& store, const std::string& key) {
  return ask(store, make(StoreOperation::remove, key));
}
inline Result add(Store& store, const std::string& key, std::int64_t amount) {
  StoreRequest request = make(StoreOperation::add, key);
  request.amount = amount;
  return ask(store, std::move(request));
}
inline Result exchange(Store& store, const std::string& key, std::optional<std::string> expected,
                       const std::string& value) {
  StoreRequest request = make(StoreOperation::compare_exchange, key, value);
  request.expected = std::move(expected);
  return ask(store, std::move(request));
}
inline Result wait(Store& store, std::vector<std::string> keys,
                   std::uint64_t timeout_ns = kPatienceNs) {
  StoreRequest request = make(StoreOperation::wait, "");
  request.keys = std::move(keys);
  return ask(store, std::move(request), timeout_ns);
}

inline Result serve(const std::string& url, std::unique_ptr<Store>* out) {
  Result result;
  result.status = serve_store(url, kToken, Deadline::after(kPatienceNs), out);
  return result;
}
inline Result connect(const std::string& url, std::unique_ptr<Store>* out,
                      std::uint64_t timeout_ns = kPatienceNs, const Token& token = kToken) {
  Result result;
  result.status = connect_store(url, token, Deadline::after(timeout_ns), out);
  return result;
}

// A store that others can reach, of either kind; its file goes with it.
struct Job {
  explicit Job(bool file) {
    if (file) {
      char name[] = "/tmp/test-store-XXXXXX";
      close(mkstemp(name));
      path = name;
      url = "file://" + path;
      status = connect(url, &store).status;
    } else {
      status = serve("tcp://127.0.0.1:0", &store).status;
      if (status.ok()) url = store->url();
    }
  }
  ~Job() {
    if (!path.empty()) unlink(path.c_str());
  }

  std::string path;
  std::string url;
  std::unique_ptr<Store> store;
  Status status = Status::success();
};

}  // namespace trireme::cluster::test
