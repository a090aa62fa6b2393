#include "net/tcp_socket.hpp"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "platform/system.hpp"

namespace trireme::tcp {
namespace {

constexpr int kType = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
// A wait looks this often whether it should stop; a long one less often. All ranks of a large group
// may wait on one host.
constexpr std::uint64_t kSliceNs = 20'000'000;
constexpr std::uint64_t kLongestSliceNs = 200'000'000;

// Whether both ends are of this host, as far as their addresses tell.
bool is_within_host(int descriptor) {
  Endpoint own, peer;
  own.length = peer.length = sizeof own.address;
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&own.address), &own.length) != 0 ||
      getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer.address), &peer.length) != 0) {
    return false;
  }
  if (own.is_loopback() && peer.is_loopback()) return true;
  peer.set_port(0);
  own.set_port(0);
  return own.text() == peer.text();
}

Status stopped() { return Status::failure(TRIREME_ERROR_CANCELLED, "the group is being left"); }

Status ended(int error_number) {
  if (error_number == 0) {
    return Status::failure(TRIREME_ERROR_PEER_LOST, "the connection was closed there");
  }
  return Status::system(error_number, "the connection");
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    reset();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

void Socket::reset() {
  if (descriptor_ >= 0) system_table().close(descriptor_);
  descriptor_ = -1;
}

Status Socket::own_endpoint(Endpoint* out, int port) const {
  out->length = sizeof out->address;
  if (getsockname(descriptor_, reinterpret_cast<sockaddr*>(&out->address), &out->length) != 0) {
    return Status::system(errno, "the address of a socket");
  }
  if (port >= 0) out->set_port(static_cast<std::uint16_t>(port));
  return Status::success();
}

void Socket::tune(std::uint64_t silence_ns) const {
  const int on = 1;
  setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const unsigned ms = static_cast<unsigned>(silence_ns / 1'000'000);
  setsockopt(descriptor_, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
  // Within a host no path is congested, but bbr paces there, too: long pieces take 2 to 3 times as
  // long. Every system has reno, and lets every process choose it.
  if (is_within_host(descriptor_)) {
    setsockopt(descriptor_, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  }
}

void Socket::keep_alive(std::uint64_t idle_ns) const {
  const int on = 1, idle_s = static_cast<int>(idle_ns / 1'000'000'000), probes = 5;
  const int interval_s = std::max(1, idle_s / probes);
  setsockopt(descriptor_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(descriptor_, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(descriptor_, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(descriptor_, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

void Socket::bound_unsent(unsigned bytes) const {
  setsockopt(descriptor_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
}

std::uint64_t Socket::unanswered_bytes() const {
  int bytes = 0;
  return ::ioctl(descriptor_, SIOCOUTQ, &bytes) == 0 ? static_cast<std::uint64_t>(bytes) : 0;
}

Moved Socket::send(const void* data, std::size_t bytes, std::size_t* moved) const {
  iovec part{const_cast<void*>(data), bytes};
  return send(&part, 1, moved);
}

Moved Socket::send(iovec* parts, int count, std::size_t* moved) const {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<std::size_t>(count);
  *moved = 0;
  while (true) {
    const ssize_t sent =
        system_table().send_message(descriptor_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      *moved = static_cast<std::size_t>(sent);
      return Moved::some;
    }
    if (errno == EINTR) continue;
    const bool full = errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM;
    return full ? Moved::nothing : Moved::ended;
  }
}

Moved Socket::receive(void* data, std::size_t bytes, std::size_t* moved) const {
  iovec part{data, bytes};
  return receive(&part, 1, moved);
}

Moved Socket::receive(iovec* parts, int count, std::size_t* moved) const {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<std::size_t>(count);
  *moved = 0;
  while (true) {
    const ssize_t got = system_table().receive_message(descriptor_, &message, MSG_DONTWAIT);
    if (got > 0) {
      *moved = static_cast<std::size_t>(got);
      return Moved::some;
    }
    if (got == 0) {
      errno = 0;
      return Moved::ended;
    }
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == ENOMEM ? Moved::nothing : Moved::ended;
  }
}

bool wait_for(int descriptor, short events, Deadline deadline, const std::atomic<bool>& stop) {
  const std::uint64_t begin = now_ns();
  while (!stop.load(std::memory_order_acquire)) {
    const std::uint64_t rest = deadline.remaining_ns();
    if (rest == 0) return false;
    pollfd entry{descriptor, events, 0};
    const std::uint64_t slice = std::clamp((now_ns() - begin) / 4, kSliceNs, kLongestSliceNs);
    const int ms = static_cast<int>((std::min(rest, slice) + 999'999) / 1'000'000);
    if (::poll(&entry, 1, ms) > 0) return true;
  }
  return false;
}

Status Socket::send_all(const void* data, std::size_t bytes, Deadline deadline,
                        const std::atomic<bool>& stop) const {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    std::size_t moved = 0;
    if (send(from, bytes, &moved) == Moved::ended) return ended(errno);
    from += moved;
    bytes -= moved;
    if (bytes > 0 && !wait_for(descriptor_, POLLOUT, deadline, stop)) {
      if (stop) return stopped();
      return Status::failure(TRIREME_ERROR_TIMEOUT, "the other end does not read");
    }
  }
  return Status::success();
}

Status Socket::receive_all(void* data, std::size_t bytes, Deadline deadline,
                           const std::atomic<bool>& stop) const {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    std::size_t moved = 0;
    if (receive(to, bytes, &moved) == Moved::ended) return ended(errno);
    to += moved;
    bytes -= moved;
    if (moved == 0 && !wait_for(descriptor_, POLLIN, deadline, stop)) {
      if (stop) return stopped();
      return Status::failure(TRIREME_ERROR_TIMEOUT, "nothing came from there");
    }
  }
  return Status::success();
}

Status listen_at(const Endpoint& endpoint, Socket* out, Endpoint* bound) {
  Socket made(system_table().socket(endpoint.address.ss_family, kType, 0));
  if (!made) return Status::system(errno, "a socket");
  const int on = 1;
  // A port that was served a moment ago can be served again.
  setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (system_table().bind(made.get(), endpoint.get(), endpoint.length) != 0 ||
      system_table().listen(made.get(), SOMAXCONN) != 0) {
    return Status::system(errno, "cannot listen at " + endpoint.text());
  }
  TRIREME_RETURN_IF_ERROR(made.own_endpoint(bound));
  *out = std::move(made);
  return Status::success();
}

Status connect_to(const Endpoint& endpoint, Deadline deadline, const std::atomic<bool>& stop,
                  Socket* out, const Endpoint* from) {
  Socket made(system_table().socket(endpoint.address.ss_family, kType, 0));
  if (!made) return Status::system(errno, "a socket");
  if (from != nullptr && system_table().bind(made.get(), from->get(), from->length) != 0) {
    return Status::system(errno, "no connection from " + from->text());
  }
  if (system_table().connect(made.get(), endpoint.get(), endpoint.length) != 0 &&
      errno != EINPROGRESS && errno != EINTR) {
    return Status::system(errno, "no connection to " + endpoint.text());
  }
  if (!wait_for(made.get(), POLLOUT, deadline, stop)) {
    if (stop) return stopped();
    return Status::failure(TRIREME_ERROR_TIMEOUT, "no connection to " + endpoint.text());
  }
  int error_number = 0;
  socklen_t length = sizeof error_number;
  getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &error_number, &length);
  if (error_number != 0) {
    return Status::system(error_number, "no connection to " + endpoint.text());
  }
  *out = std::move(made);
  return Status::success();
}

Status Waker::open() {
  event_ = Socket(system_table().event_fd());
  if (!event_) return Status::system(errno, "an event descriptor");
  return Status::success();
}

void Waker::wake() const noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(event_.get(), &one, sizeof one));
}

void Waker::clear() const noexcept {
  std::uint64_t count = 0;
  static_cast<void>(!::read(event_.get(), &count, sizeof count));
}

}  // namespace trireme::tcp
