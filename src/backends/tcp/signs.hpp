// Signs: sends a byte to each peer now and then, on a connection for that alone, and measures the
// silence of each peer. Its thread allocates all memory beforehand and takes no lock: a delay of
// another thread of this rank is no silence to its peers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "net/tcp_socket.hpp"

namespace trireme::tcp {

class Signs {
 public:
  // Gives up a peer that is silent for so long, or somewhat longer before its first sign. In a
  // large group it waits for at least three signs. It then wakes `given_up`.
  Signs(int world_size, std::uint64_t silence_ns, const Waker& given_up);
  Status open();

  // Adds the connection to a rank. Only one thread may call it for a rank, once.
  void add(int rank, Socket socket) noexcept;
  bool has(int rank) const noexcept;
  // Notes that the rank has said something on another connection. Any thread.
  void receive(int rank) noexcept;
  // Any thread; returns 0 for a rank that has no connection.
  std::uint64_t silence_ns(int rank) const noexcept;
  bool is_given_up(int rank) const noexcept;
  std::uint64_t limit_ns() const noexcept { return limit_ns_; }
  // A peer that is silent for so long may be gone.
  std::uint64_t suspect_ns() const noexcept { return 3 * tick_ns_; }
  // Makes turn() close the connections and return false from now on. Any thread.
  void stop() noexcept;

  // One thread calls it again and again until it returns false.
  bool turn() noexcept;

 private:
  struct Peer {
    Socket socket;  // written before `there`
    std::atomic<bool> there{false};
    std::atomic<bool> heard{false};
    std::atomic<std::uint64_t> silence_ns{0};
    std::atomic<bool> given_up{false};
    // Only the turning thread uses these.
    bool ended = false;  // the connection
    bool begun = false;  // it has said something
  };

  void find_new() noexcept;
  void publish() noexcept;
  void listen() noexcept;
  void count(std::uint64_t elapsed_ns) noexcept;

  const std::uint64_t tick_ns_;  // from one sign to the next
  const std::uint64_t limit_ns_;
  const Waker& given_up_;
  Waker waker_;
  std::atomic<bool> stop_{false};
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank
  std::atomic<std::size_t> added_{0};
  std::vector<Peer*> open_;  // those with a connection; it needs no memory
  std::uint64_t last_ns_ = 0;
  std::uint64_t next_ns_ = 0;
};

}  // namespace trireme::tcp
