// Call: a connection to an end that has proved to know the job's token.
#pragma once

#include <atomic>
#include <string>

#include "net/handshake.hpp"
#include "net/tcp_socket.hpp"

namespace trireme::tcp {

// Calls the endpoint and makes the handshake. *out is the connection; *keys, unless it is null, are
// the keys of its frames.
Status call(const Endpoint& endpoint, const std::string& where, const Token& token,
            const HandshakeTerms& terms, Deadline deadline, const std::atomic<bool>& stop,
            Socket* out, SessionKeys* keys = nullptr);
struct HandshakeDeadlines {
  Deadline answer;  // to the first words
  Deadline word;    // the last one; the other end may take the connection before it comes
};
// The second half of it, over a connection that connect_to() has made.
Status shake_hands(Socket made, const std::string& where, const Token& token,
                   const HandshakeTerms& terms, const HandshakeDeadlines& deadlines,
                   const std::atomic<bool>& stop, Socket* out, SessionKeys* keys);

}  // namespace trireme::tcp
