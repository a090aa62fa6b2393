#include "backends/tcp/exchange_peer.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "platform/clock.hpp"
#include "platform/failpoint.hpp"

namespace trireme::tcp {
namespace {

constexpr std::uint64_t kPartBytes = ExchangeMessage::kPartBytes;
// A peer may be so many receives ahead.
constexpr std::size_t kMostAhead = EarlyPieces::kMostAhead;
// A thread that looks for calls moves no more of a peer's bytes at a time.
constexpr std::uint64_t kTurnBytes = 1u << 20;
// Up to here a copy costs less than to wait for the peer's announcement. Both ends know the length
// of a piece, so they agree.
constexpr std::uint64_t kShortBytes = 64u << 10;
// Short messages of so many bytes leave in one call of the system. Of the longer ones each leaves
// without the next.
constexpr std::size_t kMostTogether = 16u << 10;
// Before a long piece a read takes no more bytes ahead: what is ahead is copied once more.
constexpr std::size_t kAheadOfLong = 2u << 10;

bool goes_at_once(const Wire::Transfer& transfer) {
  return !transfer.announced && transfer.bytes <= kShortBytes;
}

bool meet(const Wire::Transfer& transfer, std::uint64_t ticket, std::uint64_t slot) {
  return transfer.ticket == ticket && transfer.slot == slot;
}

}  // namespace

Status ExchangePeer::connect(const Lines& lines) {
  if (is_connected()) return Status::success();
  if (line_.socket == nullptr && !line_.is_asked && further_.count() == 0) {
    const int count = lines.expected(rank_);
    if (count > 1) {
      further_.open(count - 1);
      part_.before.reserve(sizeof(Start));  // for begin_stretch()
    }
  }
  further_.take(lines, rank_);
  if (line_.socket != nullptr) return Status::success();
  const Lines::Line* const line = lines.find(rank_);
  if (line == nullptr) {
    if (line_.is_asked && lines.is_refused(rank_)) end(ECONNREFUSED);
    if (line_.is_asked) return Status::success();
    line_.is_asked = lines.ask(rank_);
    if (line_.is_asked) return Status::success();
    return Status::failure(TRIREME_ERROR_INTERNAL,
                           "the engine has no connection to rank " + std::to_string(rank_));
  }
  if (further_.count() > 0) line->socket.bound_unsent(FurtherLines::kMostUnsent);
  line_.socket = &line->socket;
  sent_ = line->sent;
  received_ = line->received;
  return Status::success();
}

void ExchangePeer::end(int error_number) noexcept {
  if (ended_.load()) return;
  if (error_number != 0) line_.error_number = error_number;
  ended_.store(true);
  ended_ns_.store(now_ns(), std::memory_order_release);
  common_.has_ended.store(true, std::memory_order_release);
  update_events();
  common_.wake_all();
}

bool ExchangePeer::corrupt(const char* what) {
  common_.corrupt(*this, what);
  return false;
}

// A peer without a wanted transfer is not watched: its bytes wait in its socket.
bool ExchangePeer::update_events() noexcept {
  short events = 0;
  if (has_unsent() != counted_) {
    counted_ = !counted_;
    common_.unsent_peers.fetch_add(counted_ ? 1 : -1);
  }
  const bool comes = !sends_.empty() || !receives_.empty() || incoming_.into != nullptr ||
                     further_.awaits() || common_.take_call != nullptr || broken_;
  if (!ended_ && line_.socket != nullptr && !line_.has_ended) {
    if (has_more() && !held_.load()) events |= POLLOUT;
    if (comes) events |= POLLIN;
  }
  bool more = (events & ~events_.load()) != 0;
  events_.store(events);
  const int key = member_ * kMostLines;
  if (!further_.watch(common_.queue, key, !ended_, comes, &more)) common_.out_of_memory();
  if (events == watched_ || !common_.queue.is_open()) return more;
  if (common_.queue.watch(line_.socket->get(), key, watched_, events)) {
    watched_ = events;
  } else {
    common_.out_of_memory();
  }
  return more;
}

void ExchangePeer::refresh() {
  if (update_events() && !common_.queue.is_open()) common_.wake_poll();
}

// --- what goes ---------------------------------------------------------------------------------

bool ExchangePeer::send(Transfer& transfer) {
  const bool at_once = goes_at_once(transfer);
  const Kind kind = at_once ? Kind::early : Kind::data;
  const Header header{kind, 0, transfer.ticket, transfer.slot, transfer.bytes};
  if (at_once) {
    enqueue({header, &transfer, {}}, transfer.later);
    return true;
  }
  const auto found = std::find_if(ready_.begin(), ready_.end(), [&](const Header& each) {
    return meet(transfer, each.ticket, each.slot);
  });
  if (found == ready_.end()) {
    sends_.push_back(&transfer);
    return true;
  }
  if (found->bytes != transfer.bytes) return corrupt("a piece of another length");
  const std::uint32_t number = found->number;
  ready_.erase(found);
  if (further_.carry(transfer)) {
    send_in_stretches(transfer, number);
  } else {
    enqueue({header, &transfer, {}}, transfer.later);
  }
  return true;
}

void ExchangePeer::send_in_stretches(Transfer& transfer, std::uint32_t number) {
  const bool of_others = has_more() || further_.has_unsent();
  further_.pieces().send(transfer, number);
  common_.sent_messages.fetch_add(1, std::memory_order_relaxed);
  if (flush() && of_others) common_.wake_all();
}

void ExchangePeer::publish(std::vector<std::byte> frame, bool later) {
  const Header header{Kind::call, 0, 0, 0, frame.size()};
  enqueue({header, nullptr, std::move(frame)}, later);
}

void ExchangePeer::say_goodbye() { enqueue({{Kind::goodbye, 0, 0, 0, 0}, nullptr, {}}, false); }

void ExchangePeer::forget(const Transfer& transfer) noexcept {
  std::erase(sends_, &transfer);
  std::erase(receives_, &transfer);
  early_.forget(transfer);
  further_.pieces().forget(transfer);
  std::erase_if(out_, [&](const Outgoing& each) { return each.transfer == &transfer; });
  if (incoming_.into == &transfer) incoming_.into = nullptr;
}

// A message behind bytes that had no room waits for room, as they do.
void ExchangePeer::enqueue(Outgoing&& outgoing, bool later) {
  const bool was_idle = !has_more();
  out_.push_back(std::move(outgoing));
  common_.sent_messages.fetch_add(1, std::memory_order_relaxed);
  if (later && was_idle) {
    held_.store(true);
    common_.held.fetch_add(1);
    return;
  }
  const bool of_others = held_.load();
  if (later || (!was_idle && !of_others)) return;
  if (flush() && of_others) common_.wake_all();
}

void ExchangePeer::release() noexcept {
  if (held_.exchange(false)) common_.held.fetch_sub(1);
}

// Puts the heads of the next part, and with `copies` its bytes, behind what goes.
void ExchangePeer::append_part(Outgoing& outgoing, bool copies) {
  const std::uint64_t bytes = std::min(kPartBytes, outgoing.bytes() - outgoing.begun);
  const std::byte* const data = outgoing.data() + outgoing.begun;
  // First: who has counted a code must send it.
  part_.before.reserve(part_.before.size() + sizeof(Start) + (copies ? bytes : 0));
  Start start{};
  start.header = outgoing.header;
  const auto* from = reinterpret_cast<const std::byte*>(&start);
  if (outgoing.begun == 0) {
    start.of_header = sent_.make(&outgoing.header, sizeof outgoing.header);
    sent_.advance();
  } else {
    from = reinterpret_cast<const std::byte*>(&start.of_part);
  }
  if (bytes > 0) {
    start.of_part = sent_.make(data, static_cast<std::uint32_t>(bytes));
    sent_.advance();
  }
  part_.before.insert(part_.before.end(), from, reinterpret_cast<const std::byte*>(&start + 1));
  if (copies) part_.before.insert(part_.before.end(), data, data + bytes);
  outgoing.begun += bytes;
}

// Takes the messages without a transfer that stand first, and then a part of the first transfer.
Status ExchangePeer::begin_part() {
  part_.before.clear();
  part_.of_transfer = false;
  part_.stretch = {};
  part_.part_bytes = part_.moved = 0;
  while (!out_.empty()) {
    Outgoing& first = out_.front();
    if (first.transfer != nullptr) {
      TRIREME_RETURN_IF_ERROR(first.begun > 0 ? failpoint("piece", "mid_piece")
                                              : failpoint("piece", "before_first"));
      const std::uint64_t begun = first.begun;
      append_part(first, false);
      part_.of_transfer = true;
      part_.part = first.data() + begun;
      part_.part_bytes = first.begun - begun;
      return Status::success();
    }
    const std::size_t together = part_.before.size() + sizeof(Start) + first.bytes();
    if (!part_.before.empty() && together > kMostTogether) return Status::success();
    do append_part(first, true);
    while (first.begun < first.bytes());
    out_.pop_front();
  }
  return Status::success();
}

// Gives stretches to the lines. `first`: the first line; null: it has no room. True: that one has a
// stretch to send.
bool ExchangePeer::begin_stretch(const Socket* first, bool* done) noexcept {
  if (further_.count() == 0 || broken_) return false;
  Stretches::Stretch stretch;
  std::uint64_t sent = 0;
  const bool gets = further_.flush(first, &stretch, done, &sent);
  common_.sent_bytes.fetch_add(sent, std::memory_order_relaxed);
  if (!gets) return false;
  Start start{};
  start.header = stretch.header;
  start.of_header = sent_.make(&start.header, sizeof start.header);
  sent_.advance();
  start.of_part = sent_.make(stretch.data, static_cast<std::uint32_t>(stretch.header.bytes));
  sent_.advance();
  const auto* const bytes = reinterpret_cast<const std::byte*>(&start);
  part_.before.assign(bytes, bytes + sizeof start);  // connect() has made room
  part_.of_transfer = false;
  part_.stretch = stretch;
  part_.part = stretch.data;
  part_.part_bytes = stretch.header.bytes;
  part_.moved = 0;
  return true;
}

bool ExchangePeer::flush() noexcept {
  bool done = false;
  release();
  if (line_.socket == nullptr) return done;
  while (!ended_ && (has_more() || begin_stretch(line_.socket, &done))) {
    if (part_.moved == part_.whole()) {
      Status begun = Status::success();
      try {
        begun = begin_part();
      } catch (...) {
        common_.out_of_memory();
        return done;
      }
      if (!begun.ok()) {
        end(failed_with(begun));
        return true;
      }
    }
    iovec parts[2];
    int count = 0;
    const std::uint64_t before = part_.before.size();
    if (part_.moved < before) {
      parts[count++] = {part_.before.data() + part_.moved, before - part_.moved};
    }
    if (part_.part_bytes > 0) {
      const std::uint64_t rest = std::min(part_.part_bytes, part_.whole() - part_.moved);
      parts[count++] = {const_cast<std::byte*>(part_.part) + (part_.part_bytes - rest), rest};
    }
    std::size_t moved = 0;
    const Moved result = line_.socket->send(parts, count, &moved);
    if (result == Moved::nothing) {
      static_cast<void>(begin_stretch(nullptr, &done));
      return done;
    }
    if (result == Moved::ended && errno != EPIPE && errno != ECONNRESET) {
      end(errno);
      return true;
    }
    if (result == Moved::ended) {
      line_.error_number = errno;
      // Bytes of the peer that are here still count. read() ends the connection behind them.
      broken_ = true;
      out_.clear();
      part_.before.clear();
      part_.part_bytes = part_.moved = 0;
      return true;
    }
    part_.moved += moved;
    common_.moved_bytes.fetch_add(moved, std::memory_order_relaxed);
    if (part_.moved < part_.whole()) continue;
    if (part_.stretch.of != nullptr) {
      common_.sent_bytes.fetch_add(part_.part_bytes, std::memory_order_relaxed);
      done = further_.pieces().sent(part_.stretch) || done;
      part_.stretch = {};
      continue;
    }
    if (!part_.of_transfer) continue;
    const Outgoing& first = out_.front();
    common_.sent_bytes.fetch_add(part_.part_bytes, std::memory_order_relaxed);
    if (first.begun < first.bytes()) continue;
    first.transfer->done.store(true, std::memory_order_release);
    out_.pop_front();
    done = true;
  }
  return done;
}

// --- what comes --------------------------------------------------------------------------------

bool ExchangePeer::has_early(const Transfer& transfer) const {
  if (!goes_at_once(transfer)) return false;
  const EarlyPieces::Early* const early = early_.find(transfer);
  return early != nullptr && early->piece.done.load();
}

bool ExchangePeer::receive(Transfer& transfer) {
  EarlyPieces::Early* const early = goes_at_once(transfer) ? early_.find(transfer) : nullptr;
  if (early != nullptr) {
    if (early->piece.bytes != transfer.bytes) return corrupt("a piece of another length");
    early->taker = &transfer;
    if (early->piece.done.load()) early_.finish(&early->piece);
    return true;
  }
  Header header{Kind::ready, 0, transfer.ticket, transfer.slot, transfer.bytes};
  if (!goes_at_once(transfer) && further_.carry(transfer)) {
    header.number = further_.pieces().receive(transfer);
    try {
      enqueue({header, nullptr, {}}, transfer.later);
    } catch (...) {  // the transfer goes
      further_.pieces().forget(transfer);
      throw;
    }
    return true;
  }
  receives_.push_back(&transfer);
  if (goes_at_once(transfer)) return true;
  try {
    enqueue({header, nullptr, {}}, transfer.later);
  } catch (...) {  // the transfer goes
    receives_.pop_back();
    throw;
  }
  return true;
}

// The bytes behind a header may be those of a long piece, whose place is known only then.
std::size_t ExchangePeer::most_ahead() const {
  const auto is_long = [](const Transfer* each) { return !goes_at_once(*each); };
  const bool waits = std::any_of(receives_.begin(), receives_.end(), is_long);
  return waits || further_.awaits() ? kAheadOfLong : kAheadBytes;
}

// A short read also takes the bytes behind it: one call of the system brings a header and a call.
Moved ExchangePeer::receive_some(std::byte* to, std::size_t wanted, std::size_t* moved) {
  if (ahead_begin_ == ahead_end_) {
    const std::size_t most = most_ahead();
    if (wanted > most / 2) return line_.socket->receive(to, wanted, moved);
    std::size_t came = 0;
    const Moved result = line_.socket->receive(common_.ahead.data(), most, &came);
    if (result == Moved::nothing || result == Moved::ended) return result;
    ahead_begin_ = 0;
    ahead_end_ = came;
  }
  *moved = std::min(wanted, ahead_end_ - ahead_begin_);
  std::copy_n(common_.ahead.data() + ahead_begin_, *moved, to);
  ahead_begin_ += *moved;
  return Moved::some;
}

void ExchangePeer::read(int line, const Transfer* awaited) {
  if (ended_) return;
  if (line == 0) {
    read_first(awaited);
  } else {
    std::uint64_t received = 0;
    const FurtherLines::Found found = further_.read(line, awaited, &received);
    const int error_number = errno;
    common_.received_bytes.fetch_add(received, std::memory_order_relaxed);
    if (found == FurtherLines::Found::wrong_bytes) corrupt("bytes that it did not send");
    if (found == FurtherLines::Found::unasked_bytes) corrupt("a piece that was not asked for");
    if (found == FurtherLines::Found::broken_line) end(error_number);
  }
  // A peer may have sent and then left. Its bytes on the further lines still count, too.
  if (line_.has_ended && !(further_.awaits() && further_.are_open())) end(line_.error_number);
}

void ExchangePeer::read_first(const Transfer* awaited) {
  const std::uint64_t calls = common_.taken_calls.load(std::memory_order_relaxed);
  std::uint64_t read_bytes = 0;
  ahead_begin_ = ahead_end_ = 0;
  const auto pays = [&] {
    if (awaited != nullptr) return awaited->done.load(std::memory_order_relaxed);
    return common_.taken_calls.load(std::memory_order_relaxed) != calls || read_bytes >= kTurnBytes;
  };
  while (!ended_ && (!pays() || ahead_begin_ < ahead_end_)) {
    Transfer* const into = incoming_.into;
    auto* to = reinterpret_cast<std::byte*>(&start_);
    std::uint64_t whole = sizeof start_;
    iovec part{nullptr, 0};
    if (into != nullptr) {
      part = {into->data + incoming_.arrived,
              std::min(kPartBytes, into->bytes - incoming_.arrived)};
      to = incoming_.of_part ? static_cast<std::byte*>(part.iov_base)
                             : reinterpret_cast<std::byte*>(&start_.of_part);
      whole = incoming_.of_part ? part.iov_len : sizeof start_.of_part;
    }
    const bool with_part = into != nullptr && !incoming_.of_part && ahead_begin_ == ahead_end_;
    iovec places[2] = {{to + incoming_.got, whole - incoming_.got}, part};
    std::size_t moved = 0;
    const Moved result = with_part ? line_.socket->receive(places, 2, &moved)
                                   : receive_some(to + incoming_.got, places[0].iov_len, &moved);
    if (result == Moved::nothing) return;
    if (result == Moved::ended) {
      line_.has_ended = true;
      if (errno != 0) line_.error_number = errno;
      return;
    }
    incoming_.got += moved;
    read_bytes += moved;
    if (incoming_.got < whole) continue;
    incoming_.got -= whole;
    if (into == nullptr) {
      try {
        if (!take_start()) return;
      } catch (...) {  // the bytes that follow have no place
        end(ENOMEM);
        throw;
      }
    } else if (incoming_.of_part) {
      if (!take_part()) return;
    } else {
      incoming_.of_part = true;
      if (incoming_.got < part.iov_len) continue;
      incoming_.got = 0;
      if (!take_part()) return;
    }
  }
}

void ExchangePeer::begin_incoming(Transfer* transfer) {
  if (transfer->bytes == 0) {
    transfer->done.store(true, std::memory_order_release);
    return;
  }
  incoming_.into = transfer;
  incoming_.arrived = 0;
  incoming_.of_part = true;
}

bool ExchangePeer::take_start() {
  const Header& header = start_.header;
  const Seal::Head& code = start_.of_header;
  if (!received_.fits(code) || code.bytes != sizeof header || !received_.fits(code, &header)) {
    return corrupt("bytes that it did not send");
  }
  received_.advance();
  if (header.kind == Kind::ready) return take_ready();
  if (header.kind == Kind::goodbye) {
    left_.store(true, std::memory_order_release);
    return true;
  }
  if (header.kind == Kind::call) {
    if (common_.take_call == nullptr || header.bytes == 0 ||
        header.bytes > common_.most_call_bytes) {
      return corrupt("a call of a wrong length");
    }
    if (call_bytes_.size() < header.bytes) call_bytes_.resize(header.bytes);
    call_.data = call_bytes_.data();
    call_.bytes = header.bytes;
    begin_incoming(&call_);
    return true;
  }
  if (header.kind == Kind::stretch) {
    incoming_.into = further_.pieces().begin(header);
    if (incoming_.into == nullptr) return corrupt("a piece that was not asked for");
    incoming_.arrived = header.slot;
    incoming_.of_part = incoming_.is_stretch = true;
    return true;
  }
  const bool at_once = header.kind == Kind::early;
  if (!at_once && header.kind != Kind::data) return corrupt("a message of no kind");
  if (at_once && header.bytes > kShortBytes) return corrupt("a piece of a wrong length");
  // A piece that goes at once may overtake an announced one of its slot.
  const auto found = std::find_if(receives_.begin(), receives_.end(), [&](const Transfer* each) {
    return meet(*each, header.ticket, header.slot) && goes_at_once(*each) == at_once;
  });
  if (found == receives_.end() && at_once) {
    Transfer* const early = early_.begin(header.ticket, header.slot, header.bytes);
    if (early == nullptr) return corrupt("too many pieces ahead");
    begin_incoming(early);
    return true;
  }
  if (found == receives_.end()) return corrupt("a piece that was not asked for");
  if ((*found)->bytes != header.bytes) return corrupt("a piece of another length");
  Transfer* const transfer = *found;
  receives_.erase(found);
  begin_incoming(transfer);
  return true;
}

// Handles a whole part.
bool ExchangePeer::take_part() {
  Transfer* const into = incoming_.into;
  const std::uint64_t bytes = std::min(kPartBytes, into->bytes - incoming_.arrived);
  const Seal::Head& code = start_.of_part;
  if (!received_.fits(code) || code.bytes != bytes ||
      !received_.fits(code, into->data + incoming_.arrived)) {
    return corrupt("bytes that it did not send");
  }
  received_.advance();
  const bool is_call = into == &call_;
  if (!is_call) common_.received_bytes.fetch_add(bytes, std::memory_order_relaxed);
  incoming_.arrived += bytes;
  incoming_.of_part = false;
  if (std::exchange(incoming_.is_stretch, false)) {
    incoming_.into = nullptr;
    static_cast<void>(further_.pieces().arrived(start_.header));
    return true;
  }
  if (incoming_.arrived < into->bytes) return true;
  incoming_.into = nullptr;
  if (is_call) {
    common_.take_call(member_, call_bytes_.data(), call_.bytes);
    common_.taken_calls.fetch_add(1, std::memory_order_release);
    return true;
  }
  if (const Status visit = failpoint("piece", "before_done"); !visit.ok()) {
    return end(failed_with(visit)), false;
  }
  into->done.store(true, std::memory_order_release);
  early_.finish(into);
  return true;
}

bool ExchangePeer::take_ready() {
  const Header& header = start_.header;
  const auto found = std::find_if(sends_.begin(), sends_.end(), [&](const Transfer* each) {
    return meet(*each, header.ticket, header.slot);
  });
  if (found == sends_.end()) {
    if (ready_.size() >= kMostAhead) return corrupt("too many announcements");
    ready_.push_back(header);
    return true;
  }
  Transfer* const transfer = *found;
  if (header.bytes != transfer->bytes) return corrupt("a piece of another length");
  sends_.erase(found);
  if (further_.carry(*transfer)) {
    send_in_stretches(*transfer, header.number);
    return true;
  }
  enqueue({{Kind::data, 0, transfer->ticket, transfer->slot, transfer->bytes}, transfer, {}},
          false);
  return true;
}

}  // namespace trireme::tcp
