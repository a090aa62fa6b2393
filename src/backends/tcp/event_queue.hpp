// EventQueue: waits for sockets in the kernel (epoll), which costs the same however many there are.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

namespace trireme::tcp {

class EventQueue {
 public:
  EventQueue() = default;
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // Without a descriptor for it there is none: is_open() then stays false, and sockets are polled.
  // `waker`: a socket that is always watched, by the key -1.
  void open(int waker) noexcept;
  bool is_open() const noexcept { return queue_.load() >= 0; }
  // Watches a socket for `events`, as of poll(); `before`: those it is watched for now. Any thread,
  // but one at a time for each socket. A thread that waits sees it. False: the system has no memory
  // for it.
  bool watch(int socket, int key, short before, short events) const noexcept;
  // Waits at most so long, and hands over what happened.
  void wait(int milliseconds, const std::function<void(int key, short happened)>& happened) const;

 private:
  std::atomic<int> queue_{-1};
};

}  // namespace trireme::tcp
