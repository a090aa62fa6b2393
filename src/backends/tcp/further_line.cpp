#include "backends/tcp/further_line.hpp"

#include <poll.h>

#include <cerrno>

namespace trireme::tcp {

void FurtherLine::take(const Lines::Line& line) {
  sent_ = line.sent;
  received_ = line.received;
  socket_ = &line.socket;
}

// --- what goes ---------------------------------------------------------------------------------

void FurtherLine::send(const Stretches::Stretch& stretch) {
  stretch_ = stretch;
  moved_ = 0;
  start_.header = stretch.header;
  start_.of_header = sent_.make(&start_.header, sizeof start_.header);
  sent_.advance();
  start_.of_part = sent_.make(stretch.data, static_cast<std::uint32_t>(stretch.header.bytes));
  sent_.advance();
}

bool FurtherLine::flush(Stretches::Stretch* out) noexcept {
  const std::uint64_t all = sizeof start_ + stretch_.header.bytes;
  while (moved_ < all) {
    iovec parts[2];
    int count = 0;
    if (moved_ < sizeof start_) {
      parts[count++] = {reinterpret_cast<std::byte*>(&start_) + moved_, sizeof start_ - moved_};
    }
    const std::uint64_t of_data = moved_ < sizeof start_ ? 0 : moved_ - sizeof start_;
    parts[count++] = {const_cast<std::byte*>(stretch_.data) + of_data,
                      stretch_.header.bytes - of_data};
    std::size_t moved = 0;
    const Moved result = socket_->send(parts, count, &moved);
    if (result == Moved::ended) is_broken_ = true;  // bytes of the peer that are here still count
    if (result != Moved::some) return false;
    moved_ += moved;
  }
  *out = stretch_;
  stretch_ = {};
  return true;
}

// --- what comes --------------------------------------------------------------------------------

FurtherLine::Came FurtherLine::read(std::uint64_t* moved) {
  const bool is_data = in_.into != nullptr;
  std::byte* const to = is_data ? in_.into : reinterpret_cast<std::byte*>(&in_.start);
  const std::uint64_t whole = is_data ? in_.start.header.bytes : sizeof in_.start;
  std::size_t got = 0;
  const Moved result = socket_->receive(to + in_.got, whole - in_.got, &got);
  if (result == Moved::nothing) return Came::nothing;
  if (result == Moved::ended) {
    has_ended_ = true;
    return is_data || in_.got > 0 ? Came::cut_short : Came::end;
  }
  *moved += got;
  in_.got += got;
  if (in_.got < whole) return Came::some;
  in_.got = 0;
  return is_data ? Came::stretch : Came::header;
}

bool FurtherLine::is_intact() {
  const ExchangeMessage::Header& header = in_.start.header;
  if (in_.into == nullptr) {
    const Seal::Head& code = in_.start.of_header;
    if (!received_.fits(code) || code.bytes != sizeof header || !received_.fits(code, &header)) {
      return false;
    }
    received_.advance();
    return true;
  }
  const Seal::Head& code = in_.start.of_part;
  const std::byte* const came = std::exchange(in_.into, nullptr);
  if (!received_.fits(code) || code.bytes != header.bytes || !received_.fits(code, came)) {
    return false;
  }
  received_.advance();
  return true;
}

bool FurtherLine::watch(const EventQueue& queue, int key, short events) {
  if (has_ended_) events = 0;
  events_.store(events);
  if (events == watched_ || !queue.is_open()) return true;
  if (!queue.watch(socket_->get(), key, watched_, events)) return false;
  watched_ = events;
  return true;
}

}  // namespace trireme::tcp
