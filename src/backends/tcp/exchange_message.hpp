// ExchangeMessage: one message on a line of an exchange, and the heads before it.
#pragma once

#include <cstdint>

#include "backends/tcp/seal.hpp"

namespace trireme::tcp {

struct ExchangeMessage {
  // Over several lines an announced piece goes in stretches. `stretch`: one of them; any line.
  enum class Kind : std::uint32_t { ready = 1, data, call, early, goodbye, stretch };

  struct Header {
    Kind kind;
    std::uint32_t number;  // ready, stretch, over several lines: of the receive; else 0
    std::uint64_t ticket;
    std::uint64_t slot;   // stretch: its first byte in the piece
    std::uint64_t bytes;  // of the piece; stretch: of itself
  };
  static_assert(sizeof(Header) == 32);

  // A piece goes in parts of a known length, each with its code before it; the header stands before
  // the first.
  struct Start {
    Seal::Head of_header;
    Header header;
    Seal::Head of_part;  // 0 if the header is all
  };
  static_assert(sizeof(Start) == 64);

  // Small enough that a part is still in the caches when its code is compared. A stretch is one.
  static constexpr std::uint64_t kPartBytes = 128u << 10;
};

}  // namespace trireme::tcp
