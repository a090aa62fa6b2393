// Store: the job's key-value store as a program sees it, wherever it is.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "net/token.hpp"
#include "platform/clock.hpp"
#include "platform/status.hpp"
#include "store/state.hpp"

namespace trireme::cluster {

class Store {
 public:
  virtual ~Store() = default;
  // Any thread. The reply is of a request that was done; a failure may be the store's own or that
  // of the way to it. Ends soon after the deadline. Fills in lane and number.
  virtual Status ask(StoreRequest request, Deadline deadline, StoreReply* reply) = 0;
  // Calls under way end.
  virtual void stop() noexcept = 0;
  // By which others reach it: "tcp://10.0.0.2:4711", "file:///shared/job".
  virtual std::string url() const = 0;
};

// "tcp://ADDRESS:PORT" is served by this process, with port 0 at one that the system chooses;
// "env://" as below.
Status serve_store(std::string_view url, const Token& token, Deadline deadline,
                   std::unique_ptr<Store>* out);
// "tcp://ADDRESS:PORT", "file:///PATH", or "env://": the URL in TRIREME_STORE, or the address in
// MASTER_ADDR and MASTER_PORT. Waits until there is one.
Status connect_store(std::string_view url, const Token& token, Deadline deadline,
                     std::unique_ptr<Store>* out);

}  // namespace trireme::cluster
