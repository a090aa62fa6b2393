// Sources: where this rank reads the contribution of each rank, and writes its result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/slots/call.hpp"
#include "backends/slots/memory.hpp"

namespace trireme::local {

// Null stays null: it has no elements.
inline const std::byte* at(const void* data, std::uint64_t bytes) {
  return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes;
}
inline std::byte* at(void* data, std::uint64_t bytes) {
  return data == nullptr ? nullptr : static_cast<std::byte*>(data) + bytes;
}

class Sources {
 public:
  enum class Way { inline_payload, direct, staged };

  Sources(Call& call, Buffers& buffers)
      : call_(call),
        buffers_(buffers),
        places_(call.channel.sources.data()),
        results_(call.channel.results.data()) {}

  Way choose_way() const;
  Status take_payloads();  // in the slots
  Status open_all();       // in the memory of the ranks
  void put(int rank, const std::byte* place) { places_[static_cast<std::size_t>(rank)] = place; }

  // The first byte that a rank contributes, or null.
  const std::byte* of(int rank) const { return places_[static_cast<std::size_t>(rank)]; }
  // A rank's receive memory, where this rank may write it; or null.
  std::byte* result(int rank) const { return results_[static_cast<std::size_t>(rank)]; }
  // All contributions from that element on.
  const void** cut(std::uint64_t from) const {
    const void** const cut = call_.channel.cut.data();
    for (int rank = 0; rank < call_.n; ++rank) {
      cut[static_cast<std::size_t>(rank)] = at(of(rank), from * call_.size);
    }
    return cut;
  }

 private:
  Status open(int rank, const Location& location, std::uint64_t bytes, std::byte** out);
  Status check(int rank, bool needs_result) const;

  Call& call_;
  Buffers& buffers_;
  // By rank, in the channel's memory.
  const std::byte** const places_;
  std::byte** const results_;
};

}  // namespace trireme::local
