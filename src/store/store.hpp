// Store: the job's key-value store as a program sees it, whatever serves it.
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
  // Any thread. The reply belongs to a request that was done; a failure may come from the store or
  // from the way to it. Ends soon after the deadline. Fills in lane and number.
  virtual Status ask(StoreRequest request, Deadline deadline, StoreReply* reply) = 0;
  // Ends the calls under way.
  virtual void stop() noexcept = 0;
  // The URL by which others reach it: "tcp://10.0.0.2:4711", "file:///shared/job".
  virtual std::string url() const = 0;
};

// This process serves "tcp://ADDRESS:PORT"; with port 0 the system chooses the port. "env://" is as
// below.
Status serve_store(std::string_view url, const Token& token, Deadline deadline,
                   std::unique_ptr<Store>* out);
// "tcp://ADDRESS:PORT", "file:///PATH", or "env://": the URL in TRIREME_STORE, or the address in
// MASTER_ADDR and MASTER_PORT. Waits until the store is there.
Status connect_store(std::string_view url, const Token& token, Deadline deadline,
                     std::unique_ptr<Store>* out);

}  // namespace trireme::cluster
