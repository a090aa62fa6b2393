#include "backends/join/letters.hpp"

namespace trireme {

Letters::Letters(Backend& backend, Answers& answers, std::uint32_t context)
    : backend_(backend), answers_(answers), context_(context) {
  for (std::size_t peer = 0; peer < answers.peers(); ++peer) letters_.emplace_back();
}

void Letters::post(std::optional<Message>& message, OperationKind kind, Answers::Known* data,
                   std::size_t peer) {
  message.emplace();
  message->kind = kind;
  message->data = data;
  message->count = sizeof *data;
  message->peer = answers_.rank_of(peer);
  message->context = context_;
  message->part_of = "meeting";
  message->deadline = Deadline::at(UINT64_MAX);
  backend_.post(*message);
}

Status Letters::end(std::optional<Message>& message, bool* ended) {
  if (!message.has_value() || !message->done.load(std::memory_order_acquire)) {
    return Status::success();
  }
  *ended = true;
  const Status status = message->status;
  message.reset();
  return status;
}

// A peer that hears the outcome from this rank may leave at once. So this rank waits for no letter
// any more when it tells it.
Status Letters::turn(bool news, bool* moved) {
  for (std::size_t peer = 0; peer < letters_.size(); ++peer) {
    Letter& letter = letters_[peer];
    if (!answers_.needs(peer)) static_cast<void>(take_back(letter.receive));
    if (!letter.send.has_value() && answers_.owes(peer, news)) {
      letter.sent = answers_.tell(peer);
      post(letter.send, OperationKind::send, &letter.sent, peer);
    }
    if (!letter.receive.has_value() && answers_.needs(peer)) {
      post(letter.receive, OperationKind::receive, &letter.received, peer);
    }
  }
  backend_.progress();
  for (std::size_t peer = 0; peer < letters_.size(); ++peer) {
    Letter& letter = letters_[peer];
    bool sent = false;
    bool received = false;
    TRIREME_RETURN_IF_ERROR(end(letter.send, &sent));
    TRIREME_RETURN_IF_ERROR(end(letter.receive, &received));
    if (received) answers_.take(peer, letter.received);
    *moved = *moved || sent || received;
  }
  return Status::success();
}

bool Letters::are_under_way() const {
  for (std::size_t peer = 0; peer < letters_.size(); ++peer) {
    const Letter& letter = letters_[peer];
    if (letter.send.has_value() && !answers_.is_through(peer)) return true;
    if (letter.receive.has_value() && letter.receive->matched) return true;
  }
  return false;
}

bool Letters::take_back(std::optional<Message>& message) {
  if (!message.has_value() || message->done.load(std::memory_order_acquire)) return true;
  if (!backend_.withdraw(*message)) return false;
  message.reset();
  return true;
}

bool Letters::take_back() {
  bool all = true;
  for (Letter& letter : letters_) {
    all = take_back(letter.send) && all;
    all = take_back(letter.receive) && all;
  }
  return all;
}

}  // namespace trireme
