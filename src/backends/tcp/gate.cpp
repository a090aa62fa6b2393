#include "backends/tcp/gate.hpp"

#include <algorithm>
#include <cstring>

#include "platform/failpoint.hpp"

namespace trireme::tcp {
namespace {

// What a caller says first, where in it stands what it came for, and what it says next.
constexpr std::size_t kHelloBytes = 104;
constexpr std::size_t kPurposeAt = 12;
constexpr std::size_t kProofBytes = 32;

}  // namespace

void Gate::add_to(std::vector<pollfd>* polled) const {
  polled->push_back({is_open() ? entrance_.get() : -1, POLLIN, 0});
  for (const Stranger& each : strangers_) polled->push_back({each.socket.get(), POLLIN, 0});
}

bool Gate::is_open() const {
  const std::uint64_t oldest_since_ns = strangers_.empty() ? 0 : strangers_.front().since_ns;
  return now_ns() >= entrance_.opens_ns(strangers_.size(), oldest_since_ns);
}

void Gate::accept_callers() {
  while (is_open()) {
    Socket caller = entrance_.accept();
    if (!caller) return;
    if (strangers_.size() >= kMostStrangers) strangers_.pop_front();
    strangers_.push_back({std::move(caller), now_ns(), {}, {}, {}});
  }
}

// What follows a stranger's proof is for whoever gets the socket: never more is read.
Gate::Step Gate::advance(Stranger& stranger, const std::vector<Purpose>& purposes) {
  char bytes[kHelloBytes];
  while (true) {
    const std::size_t most = stranger.handshake ? kProofBytes : kHelloBytes - stranger.hello.size();
    std::size_t moved = 0;
    const Moved result = stranger.socket.receive(bytes, most, &moved);
    if (result == Moved::nothing) return Step::wait;
    if (result == Moved::ended) return Step::drop;
    if (stranger.handshake) {
      // Split or not, it is the last thing that a caller says before it has heard the verdict.
      const Step step = hear(stranger, {bytes, moved});
      if (step != Step::wait) return step;
      continue;
    }
    stranger.hello.append(bytes, moved);
    if (stranger.hello.size() < kHelloBytes) continue;
    std::uint32_t wanted = 0;
    std::memcpy(&wanted, stranger.hello.data() + kPurposeAt, sizeof wanted);
    stranger.purpose = static_cast<Purpose>(wanted);
    HandshakeTerms terms = own_;
    // With a purpose that nobody has here the handshake says why it ends.
    const bool known =
        std::find(purposes.begin(), purposes.end(), stranger.purpose) != purposes.end();
    terms.purpose = known ? stranger.purpose : purposes.front();
    stranger.handshake.emplace(token_, Handshake::Side::called, terms, "a caller");
    std::string nothing;
    if (!stranger.handshake->start(&nothing).ok()) return Step::drop;
    const Step step = hear(stranger, stranger.hello);
    if (step != Step::wait) return step;
  }
}

Gate::Step Gate::hear(Stranger& stranger, std::string_view bytes) {
  std::size_t used = 0;
  std::size_t moved = 0;
  std::string answer;
  const Status status = stranger.handshake->take(bytes, &used, &answer);
  // A fresh connection has room for this; one that has not is none of ours.
  const bool sent = answer.empty() ||
                    (stranger.socket.send(answer.data(), answer.size(), &moved) == Moved::some &&
                     moved == answer.size());
  if (!status.ok() || !sent || used != bytes.size()) return Step::drop;
  return stranger.handshake->done() ? Step::proved : Step::wait;
}

void Gate::serve(const std::vector<pollfd>& polled, std::size_t first,
                 const std::vector<Purpose>& purposes, const Enter& enter) {
  std::size_t at = first + 1;
  const std::uint64_t now = now_ns();
  for (auto it = strangers_.begin(); it != strangers_.end();) {
    const bool ready = polled[at++].revents != 0;
    const Step step = ready ? advance(*it, purposes) : Step::wait;
    if (step == Step::wait && now - it->since_ns < kStrangerNs) {
      ++it;
      continue;
    }
    if (step == Step::proved && failpoint("gate", "before_enter").ok()) {
      enter(it->handshake->other_rank(), it->purpose, std::move(it->socket), it->handshake->keys());
    } else {
      entrance_.turned_away();
    }
    it = strangers_.erase(it);
  }
  if (polled[first].revents != 0) accept_callers();
}

void Gate::close() {
  entrance_.close();
  strangers_.clear();
}

}  // namespace trireme::tcp
