// Store file: a store without a server, in a file that all processes of a job reach. The file lists
// the requests that changed the store, each with a code that only the job can make; every process
// carries them out in that order, so all hold the same state.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "net/handshake.hpp"
#include "net/tcp_socket.hpp"
#include "store/store.hpp"

namespace trireme::cluster {

class StoreFile : public Store {
 public:
  StoreFile(std::string path, const Token& token);

  // Makes the file if it is not there. AUTHENTICATION: the file belongs to another job, or other
  // users can write it.
  Status open(Deadline deadline);

  Status ask(StoreRequest request, Deadline deadline, StoreReply* reply) override;
  void stop() noexcept override;
  std::string url() const override { return "file://" + path_; }

 private:
  class Lock;

  std::string what() const;
  Status pause(std::uint64_t* longest_ns) const;
  Status read_new();
  Status read_frame(bool* whole, StoreReply* reply);
  Status append(const StoreRequest& request);
  void carry_out(const StoreRequest& request, StoreReply* reply);
  Status change(StoreRequest request, Deadline deadline, StoreReply* reply);
  Status look(StoreRequest request, Deadline deadline, StoreReply* reply);

  const std::string path_;
  const Digest key_;
  tcp::Waker stopped_;
  std::mutex mutex_;
  tcp::Socket file_;  // no socket, but closed like one
  Lane lane_{};
  std::uint64_t number_ = 0;
  StoreState state_;  // after all requests up to here:
  std::uint64_t offset_ = 0;
  std::optional<FrameReader> reader_;
};

}  // namespace trireme::cluster
