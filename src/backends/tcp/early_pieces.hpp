// EarlyPieces: the short pieces of one peer that came, or come, before they were asked for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/wire.hpp"

namespace trireme::tcp {

class EarlyPieces {
 public:
  using Transfer = Wire::Transfer;
  // A peer may be short pieces of so many bytes, or so many pieces, ahead. More than any algorithm
  // has under way with one peer on all channels: who may be further ahead announces its pieces.
  static constexpr std::size_t kMostAhead = 4096;
  static constexpr std::uint64_t kMostBytes = 64u << 20;

  struct Early {
    Transfer piece;
    std::unique_ptr<std::byte[]> memory;
    Transfer* taker = nullptr;  // asked for it meanwhile
  };

  // The first one of that ticket and slot, unless a transfer has it. Null: there is none.
  Early* find(const Transfer& transfer) const {
    const auto found = std::find_if(list_.begin(), list_.end(), [&](const auto& each) {
      return each->taker == nullptr && each->piece.ticket == transfer.ticket &&
             each->piece.slot == transfer.slot;
    });
    return found == list_.end() ? nullptr : found->get();
  }
  // Makes room for a piece that comes; null: too many are here.
  Transfer* begin(std::uint64_t ticket, std::uint64_t slot, std::uint64_t bytes) {
    if (list_.size() >= kMostAhead || bytes > kMostBytes - bytes_) return nullptr;
    auto early = std::make_unique<Early>();
    early->memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
    early->piece.ticket = ticket;
    early->piece.slot = slot;
    early->piece.data = early->memory.get();
    early->piece.bytes = bytes;
    list_.push_back(std::move(early));
    bytes_ += bytes;
    return &list_.back()->piece;
  }
  // Hands an early piece that is whole to the transfer that has asked for it, if one has. Any other
  // transfer is none of them.
  void finish(const Transfer* piece) {
    const auto found = std::find_if(list_.begin(), list_.end(),
                                    [&](const auto& each) { return &each->piece == piece; });
    if (found == list_.end() || (*found)->taker == nullptr) return;
    Transfer* const taker = (*found)->taker;
    std::copy_n(piece->data, piece->bytes, taker->data);
    bytes_ -= piece->bytes;
    taker->done.store(true, std::memory_order_release);
    list_.erase(found);
  }
  // The transfer asks for none any more.
  void forget(const Transfer& transfer) noexcept {
    for (const auto& each : list_) {
      if (each->taker == &transfer) each->taker = nullptr;
    }
  }

 private:
  std::vector<std::unique_ptr<Early>> list_;  // in the order of their arrival
  std::uint64_t bytes_ = 0;
};

}  // namespace trireme::tcp
