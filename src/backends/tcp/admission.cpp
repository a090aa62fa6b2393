#include "backends/tcp/admission.hpp"

#include <algorithm>
#include <cstring>

#include "platform/failpoint.hpp"

namespace trireme::tcp {
namespace {

// A caller's first bytes, the offset of its purpose in them, and its next bytes.
constexpr std::size_t kHelloBytes = 104;
constexpr std::size_t kPurposeAt = 12;
constexpr std::size_t kProofBytes = 32;

}  // namespace

void Admission::add_to(std::vector<pollfd>* polled) const {
  polled->push_back({is_open() ? acceptor_.get() : -1, POLLIN, 0});
  for (const Unauthenticated& each : unauthenticated_)
    polled->push_back({each.socket.get(), POLLIN, 0});
}

bool Admission::is_open() const {
  const std::uint64_t oldest_since_ns =
      unauthenticated_.empty() ? 0 : unauthenticated_.front().since_ns;
  return now_ns() >= acceptor_.opens_ns(unauthenticated_.size(), oldest_since_ns);
}

void Admission::accept_callers() {
  while (is_open()) {
    Socket caller = acceptor_.accept();
    if (!caller) {
      // Newcomers may hold all descriptors, which the group needs.
      const bool is_fair =
          !unauthenticated_.empty() && now_ns() - unauthenticated_.front().since_ns >= kFairNs;
      if (is_fair && acceptor_.is_refused(now_ns())) unauthenticated_.pop_front();
      return;
    }
    if (acceptor_.is_full(unauthenticated_.size())) unauthenticated_.pop_front();
    unauthenticated_.push_back({std::move(caller), now_ns(), {}, {}, {}});
  }
}

// Bytes after an unauthenticated peer's proof belong to the socket's next owner: so they are not
// read here.
Admission::Step Admission::advance(Unauthenticated& newcomer,
                                   const std::vector<Purpose>& purposes) {
  char bytes[kHelloBytes];
  while (true) {
    const std::size_t most = newcomer.handshake ? kProofBytes : kHelloBytes - newcomer.hello.size();
    std::size_t moved = 0;
    const Moved result = newcomer.socket.receive(bytes, most, &moved);
    if (result == Moved::nothing) return Step::wait;
    if (result == Moved::ended) return Step::drop;
    if (newcomer.handshake) {
      // A caller's proof, in one piece or more, is the last that it says before the verdict.
      const Step step = receive(newcomer, {bytes, moved});
      if (step != Step::wait) return step;
      continue;
    }
    newcomer.hello.append(bytes, moved);
    if (newcomer.hello.size() < kHelloBytes) continue;
    std::uint32_t wanted = 0;
    std::memcpy(&wanted, newcomer.hello.data() + kPurposeAt, sizeof wanted);
    newcomer.purpose = static_cast<Purpose>(wanted);
    HandshakeTerms terms = own_;
    // If no owner here accepts the purpose, the handshake tells why it ends.
    const bool known =
        std::find(purposes.begin(), purposes.end(), newcomer.purpose) != purposes.end();
    terms.purpose = known ? newcomer.purpose : purposes.front();
    newcomer.handshake.emplace(token_, Handshake::Side::called, terms, "a caller");
    std::string nothing;
    if (!newcomer.handshake->start(&nothing).ok()) return Step::drop;
    const Step step = receive(newcomer, newcomer.hello);
    if (step != Step::wait) return step;
  }
}

Admission::Step Admission::receive(Unauthenticated& newcomer, std::string_view bytes) {
  std::size_t used = 0;
  std::size_t moved = 0;
  std::string answer;
  const Status status = newcomer.handshake->take(bytes, &used, &answer);
  // A fresh connection has room for this; one without room is not a rank's.
  const bool sent = answer.empty() ||
                    (newcomer.socket.send(answer.data(), answer.size(), &moved) == Moved::some &&
                     moved == answer.size());
  if (!status.ok() || !sent || used != bytes.size()) return Step::drop;
  return newcomer.handshake->done() ? Step::proved : Step::wait;
}

void Admission::serve(const std::vector<pollfd>& polled, std::size_t first,
                      const std::vector<Purpose>& purposes, const Enter& enter) {
  std::size_t at = first + 1;
  const std::uint64_t now = now_ns();
  for (auto it = unauthenticated_.begin(); it != unauthenticated_.end();) {
    const bool ready = polled[at++].revents != 0;
    const Step step = ready ? advance(*it, purposes) : Step::wait;
    if (step == Step::wait && now - it->since_ns < acceptor_.patience_ns()) {
      ++it;
      continue;
    }
    if (step == Step::proved && failpoint("gate", "before_enter").ok()) {
      enter(it->handshake->other_rank(), it->purpose, std::move(it->socket), it->handshake->keys());
    } else {
      acceptor_.turned_away();
    }
    it = unauthenticated_.erase(it);
  }
  if (polled[first].revents != 0) accept_callers();
}

void Admission::close() {
  acceptor_.close();
  unauthenticated_.clear();
}

}  // namespace trireme::tcp
