// DirectMove: moves a call's data from where every contribution lies. Each rank writes its own
// receive memory, and only reads a peer's memory, but for all_reduce() and the root in broadcast().
#pragma once

#include <cstdint>

#include "backends/slots/call.hpp"
#include "backends/slots/sources.hpp"
#include "backends/slots/transfer.hpp"

namespace trireme::local {

class DirectMove {
 public:
  // A move reads memory of peers under this rank's mark. Slots outlive any failure, so they need
  // no mark.
  enum class Of { memory, slots };

  DirectMove(Call& call, Sources& sources, Transfer& transfer, Of of)
      : call_(call),
        op_(call.op),
        n_(call.n),
        me_(call.me),
        size_(call.size),
        sources_(sources),
        transfer_(transfer),
        of_(of) {}

  Status whole();  // of any kind: this rank reads all that it gets
  Status all_reduce();
  // `exposed`: the root can write to this rank's memory.
  Status broadcast(bool exposed);

 private:
  // Runs `body`, which touches peers' memory, unless the group has failed. See Offer::settle().
  template <class Body>
  Status read(Body&& body);
  // Calls body(first, count) for consecutive pieces of `count` elements, each within one read().
  template <class Body>
  Status in_pieces(std::uint64_t count, Body&& body, std::uint64_t bytes_of_a_piece = 0);
  // The reduction for all results of all_reduce: this rank's and every peer's.
  void reduce_into_all(std::uint64_t from, std::uint64_t count, bool stream);

  Call& call_;
  const Operation& op_;
  const int n_;
  const int me_;
  const std::uint64_t size_;
  Sources& sources_;
  Transfer& transfer_;
  const Of of_;
};

}  // namespace trireme::local
