#include "net/tcp_call.hpp"

#include <utility>

#include "platform/failpoint.hpp"

namespace trireme::tcp {

Status call(const Endpoint& endpoint, const std::string& where, const Token& token,
            const HandshakeTerms& terms, Deadline deadline, const std::atomic<bool>& stop,
            Socket* out, SessionKeys* keys) {
  Socket made;
  TRIREME_RETURN_IF_ERROR(connect_to(endpoint, deadline, stop, &made));
  return shake_hands(std::move(made), where, token, terms, {deadline, deadline}, stop, out, keys);
}

Status shake_hands(Socket made, const std::string& where, const Token& token,
                   const HandshakeTerms& terms, const HandshakeDeadlines& deadlines,
                   const std::atomic<bool>& stop, Socket* out, SessionKeys* keys) {
  constexpr std::size_t kAnswerBytes = 136;
  constexpr std::size_t kWordBytes = 36;
  Handshake handshake(token, Handshake::Side::caller, terms, where);
  std::string said;
  TRIREME_RETURN_IF_ERROR(handshake.start(&said));
  TRIREME_FAILPOINT("call", "before_hello");
  for (const std::size_t bytes : {kAnswerBytes, kWordBytes}) {
    const Deadline deadline = bytes == kAnswerBytes ? deadlines.answer : deadlines.word;
    if (bytes == kWordBytes) TRIREME_FAILPOINT("call", "before_proof");
    TRIREME_RETURN_IF_ERROR(made.send_all(said.data(), said.size(), deadline, stop));
    said.clear();
    if (bytes == kWordBytes) TRIREME_FAILPOINT("call", "before_verdict");
    char heard[kAnswerBytes];
    TRIREME_RETURN_IF_ERROR(made.receive_all(heard, bytes, deadline, stop));
    std::size_t used = 0;
    const Status status = handshake.take({heard, bytes}, &used, &said);
    if (!status.ok()) {
      // These bytes tell the other end why. Its answer does not matter here.
      static_cast<void>(made.send_all(said.data(), said.size(), deadline, stop));
      return status;
    }
  }
  if (keys != nullptr) *keys = handshake.keys();
  *out = std::move(made);
  return Status::success();
}

}  // namespace trireme::tcp
