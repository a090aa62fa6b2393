// Stretches: the announced pieces between this rank and one peer that has several lines with it. A
// piece goes in stretches, each over the line that has the fewest bytes under way. The receiver
// numbers its receives, so stretches may come in any order: no line waits for another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "backends/tcp/exchange_message.hpp"
#include "backends/wire.hpp"

namespace trireme::tcp {

class Stretches {
 public:
  using Transfer = Wire::Transfer;
  using Header = ExchangeMessage::Header;

  struct Outgoing {
    Transfer* transfer;
    std::uint32_t number;     // of the peer's receive
    std::uint64_t begun = 0;  // bytes that are on a line
    std::uint64_t sent = 0;   // bytes that a line has sent
  };
  // Bytes that are on one line.
  struct Stretch {
    Outgoing* of = nullptr;  // null: there is none
    Header header{};
    const std::byte* data = nullptr;
  };

  // --- what goes ---
  // The peer has numbered its receive.
  void send(Transfer& transfer, std::uint32_t number) { out_.push_back({&transfer, number}); }
  bool has_next() const;
  // The next bytes, once. There must be some.
  Stretch next();
  // The bytes are on their way. True: the transfer is done.
  bool sent(const Stretch& stretch) noexcept;

  // --- what comes ---
  // Returns the number for the receive.
  std::uint32_t receive(Transfer& transfer);
  bool awaits() const { return !in_.empty(); }
  // A stretch begins to come. Returns the transfer to which it belongs. Null: there is none, it has
  // no such bytes, or they have come before. A second copy would stand for a missing stretch.
  Transfer* begin(const Header& header);
  // All bytes of the stretch are there. True: the transfer is done.
  bool arrived(const Header& header) noexcept;

  void forget(const Transfer& transfer) noexcept;

 private:
  struct Incoming {
    Transfer* transfer;
    std::uint32_t number;
    std::vector<bool> begun;    // by stretch
    std::uint64_t arrived = 0;  // bytes
  };

  std::list<Outgoing> out_;  // in order; their places stay
  std::vector<Incoming> in_;
  std::uint32_t next_number_ = 0;
};

}  // namespace trireme::tcp
