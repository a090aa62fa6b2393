// Call: a connection to somebody who has proved to know the job's token.
#pragma once

#include <atomic>
#include <string>

#include "net/handshake.hpp"
#include "net/tcp_socket.hpp"

namespace trireme::tcp {

// Calls there and greets; *out is a connection to one that knows the token, *keys, unless it is
// null, are those of its frames.
Status call(const Endpoint& endpoint, const std::string& where, const Token& token,
            const HandshakeTerms& terms, Deadline deadline, const std::atomic<bool>& stop,
            Socket* out, SessionKeys* keys = nullptr);

}  // namespace trireme::tcp
