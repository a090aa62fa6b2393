#include "backends/tcp/stretches.hpp"

#include <algorithm>

namespace trireme::tcp {
namespace {

bool has_more_stretches(const Stretches::Outgoing& each) {
  return each.begun < each.transfer->bytes;
}

std::uint64_t stretch_bytes(const Wire::Transfer& transfer, std::uint64_t first) {
  return std::min(ExchangeMessage::kPartBytes, transfer.bytes - first);
}

}  // namespace

bool Stretches::has_next() const {
  return std::any_of(out_.begin(), out_.end(), has_more_stretches);
}

Stretches::Stretch Stretches::next() {
  Outgoing& from = *std::find_if(out_.begin(), out_.end(), has_more_stretches);
  const std::uint64_t first = from.begun;
  const std::uint64_t bytes = stretch_bytes(*from.transfer, first);
  from.begun += bytes;
  return {&from,
          {ExchangeMessage::Kind::stretch, from.number, from.transfer->ticket, first, bytes},
          from.transfer->data + first};
}

bool Stretches::sent(const Stretch& stretch) noexcept {
  Outgoing& from = *stretch.of;
  from.sent += stretch.header.bytes;
  if (from.sent < from.transfer->bytes) return false;
  Transfer& whole = *from.transfer;
  out_.remove_if([&](const Outgoing& each) { return &each == &from; });
  whole.done.store(true, std::memory_order_release);
  return true;
}

std::uint32_t Stretches::receive(Transfer& transfer) {
  const std::uint64_t stretches =
      (transfer.bytes + ExchangeMessage::kPartBytes - 1) / ExchangeMessage::kPartBytes;
  in_.push_back({&transfer, next_number_, std::vector<bool>(stretches)});
  return next_number_++;
}

Stretches::Transfer* Stretches::begin(const Header& header) {
  const auto found = std::find_if(in_.begin(), in_.end(), [&](const Incoming& each) {
    return each.number == header.number && each.transfer->ticket == header.ticket;
  });
  if (found == in_.end()) return nullptr;
  Transfer* const into = found->transfer;
  const bool fits = header.slot % ExchangeMessage::kPartBytes == 0 && header.slot < into->bytes &&
                    header.bytes == stretch_bytes(*into, header.slot);
  if (!fits) return nullptr;
  const std::uint64_t stretch = header.slot / ExchangeMessage::kPartBytes;
  if (found->begun[stretch]) return nullptr;
  found->begun[stretch] = true;
  return into;
}

bool Stretches::arrived(const Header& header) noexcept {
  const auto found = std::find_if(
      in_.begin(), in_.end(), [&](const Incoming& each) { return each.number == header.number; });
  if (found == in_.end()) return false;
  found->arrived += header.bytes;
  if (found->arrived < found->transfer->bytes) return false;
  Transfer* const whole = found->transfer;
  in_.erase(found);
  whole->done.store(true, std::memory_order_release);
  return true;
}

void Stretches::forget(const Transfer& transfer) noexcept {
  std::erase_if(in_, [&](const Incoming& each) { return each.transfer == &transfer; });
  std::erase_if(out_, [&](const Outgoing& each) { return each.transfer == &transfer; });
}

}  // namespace trireme::tcp
