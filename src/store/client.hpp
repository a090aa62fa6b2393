// Store client: a store that is reached over TCP. Calls that run at the same time have one
// connection each, which stays for later calls; one that breaks is made anew, and its request is
// repeated.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "net/tcp_socket.hpp"
#include "store/server.hpp"
#include "store/store.hpp"
#include "store/wire.hpp"

namespace trireme::cluster {

class StoreClient : public Store {
 public:
  // `server` lives as long as this client; it may be null.
  StoreClient(std::string host, std::uint16_t port, const Token& token,
              std::unique_ptr<StoreServer> server)
      : host_(std::move(host)), port_(port), token_(token), server_(std::move(server)) {}

  // Waits until a store serves there. AUTHENTICATION and MISMATCH: another server does. TIMEOUT.
  Status open(Deadline deadline);

  Status ask(StoreRequest request, Deadline deadline, StoreReply* reply) override;
  void stop() noexcept override;
  std::string url() const override;

 private:
  // A connection, and its state for the case that it breaks.
  struct Line {
    Lane lane{};
    std::uint64_t number = 0;  // of its last request
    tcp::Socket socket;
    std::optional<FrameReader> reader;
    std::optional<FrameWriter> writer;
  };

  std::string where() const;
  std::unique_ptr<Line> idle_line();
  Status fresh_line(std::unique_ptr<Line>* out) const;
  void keep(std::unique_ptr<Line> line);
  Status connect(Line& line, Deadline deadline) const;
  Status connect_patiently(Line& line, Deadline deadline) const;
  Status exchange(Line& line, const StoreRequest& request, Deadline deadline, StoreReply* reply);
  Status wait_for(const Line& line, short events, Deadline deadline) const;
  void pause(std::uint64_t* longest_ns, Deadline deadline) const;

  const std::string host_;
  const std::uint16_t port_;
  const Token token_;
  const std::unique_ptr<StoreServer> server_;
  tcp::Waker stopped_;  // stays readable
  std::atomic<bool> stop_{false};
  std::atomic<StoreInstance> instance_{0};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Line>> idle_;
};

}  // namespace trireme::cluster
