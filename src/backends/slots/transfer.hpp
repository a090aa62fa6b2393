// Transfer: takes elements of a call from their sources to this rank's receive memory, and counts
// the bytes.
#pragma once

#include <cstdint>

#include "backends/slots/call.hpp"
#include "backends/slots/sources.hpp"

namespace trireme::local {

class Transfer {
 public:
  Transfer(Call& call, Sources& sources) : call_(call), sources_(sources) {}

  // destination = the reduction of `count` elements of all sources, each from element `from` on.
  void reduce(void* destination, std::uint64_t from, std::uint64_t count);
  // Elements [first, first + count) of this rank's block, which lie at element `from` of all
  // sources: reduces or folds them.
  void combine(std::uint64_t from, std::uint64_t first, std::uint64_t count);
  // From element `from` of a rank's contribution to element `to` of this rank's receive memory.
  void copy(int rank, std::uint64_t from, std::uint64_t to, std::uint64_t count,
            bool streams = false);
  // The failpoint in the middle of a move: once.
  Status visit_middle();

  // Counts the bytes that this rank reads of others, and they of it.
  void count_parts();
  void count(std::uint64_t given, std::uint64_t read) {
    given_ += given;
    read_ += read;
  }
  std::uint64_t given() const { return given_; }  // bytes of this rank that peers read
  std::uint64_t read() const { return read_; }    // bytes of peers that this rank read

 private:
  Call& call_;
  Sources& sources_;
  bool visited_middle_ = false;
  std::uint64_t given_ = 0;
  std::uint64_t read_ = 0;
};

}  // namespace trireme::local
