// Lending: memory that a send lends to its receiver. The ring has only the place of the bytes, and
// the receiver copies them from there: once. Frames lend nothing, as their ranks share no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/slots/group.hpp"
#include "backends/slots/memory.hpp"

namespace trireme::local {

struct Ring;

// Lent memory as the receiver reads it.
struct Lent {
  Place place = Place::none;  // none: nothing is lent
  const std::byte* data = nullptr;
  std::shared_ptr<void> mapping;  // shared: keeps `data` mapped
  std::uint64_t address = 0;      // process: in the memory of the sender
};

class Lending {
 public:
  // `buffers`: null where ranks share no memory.
  Lending(Group& group, Buffers* buffers);

  // The sender: whether it lends these bytes, and the place that the receiver gets.
  bool lends(const Ring& ring, const void* data, std::uint64_t bytes, std::uint64_t capacity,
             Location* out) const;
  // The sender, after a failure: the receiver reads nothing any more when this returns.
  void settle(const Ring& ring) const noexcept;

  // The receiver: finds out, once, whether it can read the memory of that rank's process. Before
  // that the rank lends it no memory of its own.
  void meet(int from, Ring& ring);
  bool has_met(int from) const { return reach_[static_cast<std::size_t>(from)] != Reach::unknown; }
  // The receiver: none in out->place if the buffer has not come yet.
  Status find(int from, const Location& location, std::uint64_t bytes, Lent* out) const;
  // The receiver: copies a piece. `total`: of the message.
  Status read(int from, const Lent& lent, std::uint64_t offset, std::byte* to, std::uint64_t bytes,
              std::uint64_t total) const;

  // The longest piece that is copied between two looks at the group's failure.
  static constexpr std::uint64_t kPiece = 1u << 20;

 private:
  enum class Reach : std::uint8_t { unknown, yes, no };  // no: also where ranks are threads

  void introduce();

  Group& group_;
  Buffers* const buffers_;
  bool introduced_ = false;       // this rank's witness is in the segment
  std::vector<Reach> reach_;      // by rank
  std::vector<pid_t> processes_;  // by rank, of those that can be read
};

}  // namespace trireme::local
