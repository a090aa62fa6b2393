#include "net/unix_socket.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "platform/descriptors.hpp"
#include "platform/system.hpp"

namespace trireme {
namespace {

constexpr int kType = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr std::size_t kMostDescriptors = 4;  // taken from a packet, so that none of them leaks

socklen_t abstract_address(const std::string& name, sockaddr_un* out) {
  *out = {};
  out->sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof out->sun_path - 1);
  std::memcpy(out->sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

int close_keeping_errno(int descriptor) {
  const int error_number = errno;
  system_table().close(descriptor);
  errno = error_number;
  return -1;
}

// Takes the descriptors that came with a packet; they are the library's from now on.
std::size_t note_descriptors(msghdr& message, int* out) {
  std::size_t count = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < here && count < kMostDescriptors; ++i) {
      std::memcpy(&out[count], CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      note_descriptor(out[count++]);
    }
  }
  return count;
}

}  // namespace

int listen_abstract(const std::string& name) {
  const int socket = system_table().socket(AF_UNIX, kType, 0);
  if (socket < 0) return -1;
  sockaddr_un address;
  const socklen_t length = abstract_address(name, &address);
  if (system_table().bind(socket, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      system_table().listen(socket, SOMAXCONN) != 0) {
    return close_keeping_errno(socket);
  }
  return socket;
}

int connect_abstract(const std::string& name) {
  const int socket = system_table().socket(AF_UNIX, kType, 0);
  if (socket < 0) return -1;
  sockaddr_un address;
  const socklen_t length = abstract_address(name, &address);
  if (system_table().connect(socket, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return close_keeping_errno(socket);
  }
  return socket;
}

bool peer_credentials(int socket, PeerCredentials* out) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return false;
  *out = {credentials.uid, credentials.pid};
  return true;
}

SocketResult send_packet(int socket, const void* data, std::size_t bytes, int descriptor) {
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  while (true) {
    const ssize_t sent = system_table().send_message(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return SocketResult::done;
    switch (errno) {
      case EINTR: continue;
      case EAGAIN:
      case ENOBUFS:
      case ENOMEM:
      case ETOOMANYREFS:  // descriptors in flight; they drain as the peers read
        return SocketResult::again;
      case EPIPE:
      case ECONNRESET: return SocketResult::closed;
      default: return SocketResult::refused;
    }
  }
}

SocketResult receive_packet(int socket, void* data, std::size_t capacity, std::size_t* bytes,
                            int* descriptor) {
  *bytes = 0;
  *descriptor = -1;
  iovec part{data, capacity};
  msghdr message{};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))];
  int came[kMostDescriptors];
  std::size_t count = 0;
  ssize_t received = -1;
  bool reset = false;
  do {
    const DescriptorChange change;
    message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    received = system_table().receive_message(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // A reset is told once, before what the peer had still sent.
    const bool again = received < 0 && (errno == EINTR || (errno == ECONNRESET && !reset));
    if (received < 0 && errno == ECONNRESET) reset = true;
    if (again) continue;
    if (received >= 0) count = note_descriptors(message, came);
    break;
  } while (true);
  if (received < 0) {
    if (reset) return SocketResult::closed;
    return errno == EAGAIN ? SocketResult::again : SocketResult::refused;
  }
  // A cut message with fewer descriptors than there is room for: this process had no number left
  // for one of them.
  const bool refused = (message.msg_flags & MSG_CTRUNC) != 0 && count < kMostDescriptors;
  for (std::size_t i = refused ? 0 : 1; i < count; ++i) system_table().close(came[i]);
  if (refused) {
    errno = EMFILE;
    return SocketResult::refused;
  }
  if (count > 0) *descriptor = came[0];
  if (received == 0 && count == 0) return SocketResult::closed;
  const bool whole = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 && count <= 1;
  if (whole) *bytes = static_cast<std::size_t>(received);
  return SocketResult::done;
}

int open_process(pid_t pid) {
  if (pid <= 0) return -1;
  return own_descriptor([pid] { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); });
}

bool process_stands_still(pid_t pid) noexcept {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[256];
  const ssize_t bytes = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (bytes <= 0) return false;
  text[bytes] = 0;
  const char* const name_end = std::strrchr(text, ')');  // the program's name may hold anything
  return name_end != nullptr && (name_end[1] == ' ') && (name_end[2] == 'T' || name_end[2] == 't');
}

}  // namespace trireme
