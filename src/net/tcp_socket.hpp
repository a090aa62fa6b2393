// Socket: one descriptor of TCP. No call raises SIGPIPE, and all sockets are closed on exec.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "net/endpoint.hpp"
#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme::tcp {

enum class Moved { some, nothing, ended };  // ended: errno says why, 0 if the peer closed it

constexpr std::uint64_t kIdleNs = 5'000'000'000;
constexpr std::uint64_t kLongestIdleNs = 60'000'000'000;  // in a large group

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { reset(); }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;

  explicit operator bool() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }
  void reset();

  // The local address; `port` replaces its port unless it is negative.
  Status own_endpoint(Endpoint* out, int port = -1) const;
  // Sends small messages at once, and ends the connection when sent bytes stay unacknowledged for
  // silence_ns; 0: when the system gives up. Within this host it sends without pacing.
  void tune(std::uint64_t silence_ns) const;
  // Notices that the other host has vanished, even on a connection that is idle for so long: within
  // twice that time.
  void keep_alive(std::uint64_t idle_ns = kIdleNs) const;

  // Takes no more than about so many bytes that the system has not sent yet.
  void bound_unsent(unsigned bytes) const;
  // Sent bytes that the other end has not answered for. Bytes that wait to be sent count, too.
  std::uint64_t unanswered_bytes() const;

  // Moves as many bytes as there is room for, and does not wait.
  Moved send(const void* data, std::size_t bytes, std::size_t* moved) const;
  Moved send(iovec* parts, int count, std::size_t* moved) const;
  Moved receive(void* data, std::size_t bytes, std::size_t* moved) const;
  Moved receive(iovec* parts, int count, std::size_t* moved) const;
  // Sends all of them; ends early when `stop` is set. TIMEOUT, PEER_LOST or SYSTEM otherwise.
  Status send_all(const void* data, std::size_t bytes, Deadline deadline,
                  const std::atomic<bool>& stop) const;
  Status receive_all(void* data, std::size_t bytes, Deadline deadline,
                     const std::atomic<bool>& stop) const;

 private:
  int descriptor_ = -1;
};

// *out is bound to exactly this address; *bound is what it became with port 0.
Status listen_at(const Endpoint& endpoint, Socket* out, Endpoint* bound);
// `from`: the address of this host that the connection comes from; null: as the system's routes
// say.
Status connect_to(const Endpoint& endpoint, Deadline deadline, const std::atomic<bool>& stop,
                  Socket* out, const Endpoint* from = nullptr);
// Waits for poll()'s `events`. Returns false at the deadline, and at most 0.2 s after `stop` is
// set.
bool wait_for(int descriptor, short events, Deadline deadline, const std::atomic<bool>& stop);

// Wakes poll() of another thread.
class Waker {
 public:
  Status open();
  void wake() const noexcept;
  void clear() const noexcept;
  int get() const { return event_.get(); }

 private:
  Socket event_;
};

}  // namespace trireme::tcp
