// Store server: serves the job's store at one address, on a thread of its own. A caller has two
// seconds to prove that it knows the job's token, and costs about a kilobyte until then.
#pragma once

#include <memory>
#include <string>

#include "net/endpoint.hpp"
#include "net/token.hpp"
#include "platform/status.hpp"

namespace trireme::cluster {

class StoreServer {
 public:
  // Listens at exactly this address; with port 0 the system chooses one.
  static Status start(const tcp::Endpoint& endpoint, const Token& token,
                      std::unique_ptr<StoreServer>* out);
  ~StoreServer() { stop(); }
  // Serves no request any more; ends all connections. Any thread.
  void stop() noexcept;

  const tcp::Endpoint& endpoint() const { return endpoint_; }

 private:
  class Loop;
  StoreServer(std::shared_ptr<Loop> loop, const tcp::Endpoint& endpoint)
      : loop_(std::move(loop)), endpoint_(endpoint) {}

  const std::shared_ptr<Loop> loop_;
  const tcp::Endpoint endpoint_;
};

}  // namespace trireme::cluster
