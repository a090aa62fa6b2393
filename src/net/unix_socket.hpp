// Packets with descriptors over unix sockets whose names lie in no file system.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "platform/status.hpp"

namespace trireme {

// The process at the other end.
struct PeerCredentials {
  uid_t uid = 0;
  pid_t pid = 0;
};

enum class SocketResult { done, again, closed, refused };  // refused: errno says why

// Packet sockets: non-blocking, closed on exec. The name vanishes with the last copy of the socket.
// *out is -1 on failure; errno is EADDRINUSE if the name is taken.
int listen_abstract(const std::string& name);
// -1 with errno; EAGAIN and ECONNREFUSED: try again later
int connect_abstract(const std::string& name);
bool peer_credentials(int socket, PeerCredentials* out);

// Sends one packet, whole or not at all; sends a descriptor along unless it is negative.
SocketResult send_packet(int socket, const void* data, std::size_t bytes, int descriptor);
// Receives one packet of at most `capacity` bytes. *descriptor is the descriptor that came with it,
// or -1. A packet that is longer, or brings more than one descriptor, has *bytes 0. EMFILE: this
// process has no number left for the descriptor that came.
SocketResult receive_packet(int socket, void* data, std::size_t capacity, std::size_t* bytes,
                            int* descriptor);

// A descriptor that becomes readable when the process ends; -1 if the system cannot make one.
int open_process(pid_t pid);
// Whether a signal or a debugger has stopped the process; false where the system does not tell.
bool process_stands_still(pid_t pid) noexcept;

}  // namespace trireme
