// Operations as the benchmark calls them: the place of the elements, and the call itself.
#pragma once

#include <cstddef>
#include <vector>

#include "cli/bench/bench.hpp"

namespace trireme::bench {

// Elements of a receive buffer, in order: `count` of them, from element `first` of the values of
// rank `source`, or of the reduction if source is negative.
struct Run {
  std::uint64_t count;
  int source;
  std::uint64_t first;
};

// The buffers of one rank. All sizes are in elements.
struct Shape {
  std::uint64_t send = 0;
  std::uint64_t receive = 0;
  std::uint64_t send_at = 0;                  // in place: its offset in the one buffer
  std::uint64_t receive_at = 0;               // in place: the same
  std::vector<std::uint64_t> counts;          // the v forms; all_to_all_v: of what is sent
  std::vector<std::uint64_t> receive_counts;  // all_to_all_v
  std::vector<Run> expected;                  // of the receive buffer
};

Shape shape_of(const Case& what, int ranks, int rank);

// Calls the operation once; throws Failure.
void call(trireme_communicator* communicator, const Case& what, const Shape& shape, int ranks,
          int rank, void* send, void* receive);

void must(trireme_status status);  // throws Failure with the library's message

}  // namespace trireme::bench
