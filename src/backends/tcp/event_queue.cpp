#include "backends/tcp/event_queue.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

namespace trireme::tcp {
namespace {

// How many sockets are served at a time, of those that have something.
constexpr std::size_t kMostEvents = 64;

static_assert(POLLIN == static_cast<int>(EPOLLIN) && POLLOUT == static_cast<int>(EPOLLOUT) &&
              POLLERR == static_cast<int>(EPOLLERR) && POLLHUP == static_cast<int>(EPOLLHUP));

epoll_event event_of(int key, short events) {
  epoll_event event{};
  event.events = static_cast<std::uint32_t>(events);
  event.data.u64 = static_cast<std::uint64_t>(static_cast<std::int64_t>(key));
  return event;
}

}  // namespace

EventQueue::~EventQueue() {
  if (is_open()) ::close(queue_.load());
}

void EventQueue::open(int waker) noexcept {
  const int queue = ::epoll_create1(EPOLL_CLOEXEC);
  if (queue < 0) return;
  epoll_event event = event_of(-1, POLLIN);
  if (::epoll_ctl(queue, EPOLL_CTL_ADD, waker, &event) != 0) {
    ::close(queue);
    return;
  }
  queue_.store(queue);
}

bool EventQueue::watch(int socket, int key, short before, short events) const noexcept {
  epoll_event event = event_of(key, events);
  const int change = events == 0 ? EPOLL_CTL_DEL : before == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  const bool done = ::epoll_ctl(queue_.load(), change, socket, &event) == 0;
  return done || events == 0 || errno == EBADF;  // a closed socket is not watched any more
}

void EventQueue::wait(int milliseconds,
                      const std::function<void(int key, short happened)>& happened) const {
  std::array<epoll_event, kMostEvents> events;
  const int count =
      ::epoll_wait(queue_.load(), events.data(), static_cast<int>(events.size()), milliseconds);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    happened(static_cast<int>(static_cast<std::int64_t>(event.data.u64)),
             static_cast<short>(event.events));
  }
}

}  // namespace trireme::tcp
