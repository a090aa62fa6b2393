// Signs: a byte to each peer now and then, on a connection that carries nothing else, and how long each
// peer has said nothing. The thread that gives and hears them has all its memory beforehand and takes no
// lock: what holds another thread of this rank is no silence to its peers.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "net/tcp_socket.hpp"

namespace trireme::tcp {

class Signs {
 public:
  // A peer is given up that says nothing for so long, and somewhat longer before its first sign.
  // `given_up` is woken then.
  Signs(int world_size, std::uint64_t silence_ns, const Waker& given_up);
  Status open();

  // The connection to a rank. One thread a rank, once.
  void add(int rank, Socket socket) noexcept;
  bool has(int rank) const noexcept;
  // The rank said something elsewhere. Any thread.
  void hear(int rank) noexcept;
  // Any thread; 0 of a rank that has no connection.
  std::uint64_t silence_ns(int rank) const noexcept;
  bool is_given_up(int rank) const noexcept;
  // turn() closes the connections and answers false from now on. Any thread.
  void stop() noexcept;

  // One thread's, again and again until it answers false.
  bool turn() noexcept;

 private:
  struct Peer {
    Socket socket;                  // written before `there`
    std::atomic<bool> there{false};
    std::atomic<bool> heard{false};
    std::atomic<std::uint64_t> silence_ns{0};
    std::atomic<bool> given_up{false};
    // The turning thread's.
    bool ended = false;  // the connection
    bool begun = false;  // it has said something
  };

  void give() noexcept;
  void listen() noexcept;
  void count(std::uint64_t elapsed_ns) noexcept;

  const std::uint64_t limit_ns_;
  const Waker& given_up_;
  Waker waker_;
  std::atomic<bool> stop_{false};
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<pollfd> polled_;  // by rank, and the waker; as long as it ever gets
  std::uint64_t last_ns_ = 0;
  std::uint64_t next_ns_ = 0;
};

}  // namespace trireme::tcp
