#include "launch/reserved_port.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include <cerrno>

namespace trireme::cluster {

void ReservedPort::release() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

bool ReservedPort::take(const std::string& address) {
  release();
  sockaddr_storage place{};
  if (uv_ip4_addr(address.c_str(), 0, reinterpret_cast<sockaddr_in*>(&place)) != 0 &&
      uv_ip6_addr(address.c_str(), 0, reinterpret_cast<sockaddr_in6*>(&place)) != 0) {
    errno = EADDRNOTAVAIL;
    return false;
  }
  const int descriptor = socket(place.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  socklen_t length = sizeof place;
  auto* const generic = reinterpret_cast<sockaddr*>(&place);
  if (descriptor < 0) return false;
  if (setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(descriptor, generic, sizeof place) != 0 ||
      getsockname(descriptor, generic, &length) != 0) {
    close(descriptor);
    return false;
  }
  number_ = ntohs(place.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&place)->sin6_port
                                              : reinterpret_cast<sockaddr_in*>(&place)->sin_port);
  socket_ = descriptor;
  return true;
}

}  // namespace trireme::cluster
