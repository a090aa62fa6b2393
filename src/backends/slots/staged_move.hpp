// StagedMove: moves a call's data through the staging chunks of the segment, piece by piece:
// between processes whose peers do not map their memory.
//
// A chunk is filled again kStages pieces later. A rank reads pieces of others until it enters the
// barrier after the next one, at most; all have entered that when a third chunk is filled.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backends/slots/arrivals.hpp"
#include "backends/slots/call.hpp"
#include "backends/slots/sources.hpp"
#include "backends/slots/transfer.hpp"

namespace trireme::local {

class StagedMove {
 public:
  StagedMove(Call& call, Arrivals& arrivals, Sources& sources, Transfer& transfer)
      : call_(call),
        op_(call.op),
        n_(call.n),
        me_(call.me),
        size_(call.size),
        arrivals_(arrivals),
        sources_(sources),
        transfer_(transfer) {}

  Status move();

 private:
  // A piece of all_reduce(): its elements, and the place of each rank's cut of them.
  struct Piece {
    std::uint64_t number;
    std::uint64_t first;
    std::uint64_t count;
    std::uint64_t cut;
    std::uint64_t begin(int rank) const {
      return std::min(count, cut * static_cast<std::uint64_t>(rank));
    }
  };
  Status all_reduce();  // and reduce
  void stage_cuts(const Piece& piece);
  void reduce_cut(const Piece& piece);
  void fetch_cuts(const Piece& piece);
  bool past_caches(std::uint64_t piece) const;
  void note_time(std::uint64_t piece, std::uint64_t took_ns);
  Status parts();  // every other kind
  std::byte* stage(int rank, std::uint64_t piece) const {
    return call_.segment.stage(op_.channel == kUrgentChannel, rank, piece);
  }

  Call& call_;
  const Operation& op_;
  const int n_;
  const int me_;
  const std::uint64_t size_;
  Arrivals& arrivals_;
  Sources& sources_;
  Transfer& transfer_;
  bool times_pieces_ = false;
};

}  // namespace trireme::local
