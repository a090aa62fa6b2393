// Operations made of several collectives, as one place in the queue. See Operation::program.
#pragma once

#include "backends/backend.hpp"

namespace trireme {

// Turns an all_to_all_v whose `counts` hold what this rank sends to each rank, followed by what it
// expects of each, into one that first exchanges these numbers, and compares them.
void make_all_to_all_v(Operation* operation, int rank, int world_size);

// Turns a collective of f32 into one whose elements travel as `wire`, a narrow dtype.
void make_wire(Operation* operation, trireme_dtype wire, int rank, int world_size);

// Entries of a list: the same operation over several buffers. Broadcast uses `receive` alone.
struct Entry {
  const void* send = nullptr;
  void* receive = nullptr;
  std::uint64_t count = 0;  // as Operation::count
};

// Makes `operation` (all_reduce, reduce_scatter, all_gather or broadcast, without its buffers) one
// over all entries. Small ones are packed and travel together.
void make_list(Operation* operation, std::vector<Entry> entries, int rank, int world_size);

// What a call that finds out how much comes leaves behind.
struct Discovered {
  std::shared_ptr<Memory> memory;     // null where none was wanted
  std::vector<std::uint64_t> counts;  // all_gather: elements of each block
};

// Turns a broadcast, scatter_v or all_gather_v, of which only the ranks that give know the count
// (counts on the root, count, counts[0]), into one that first tells it and then allocates what it
// receives into. `out` must live until the operation is done.
void make_broadcast_to_memory(Operation* operation, int rank, bool wants_memory, Discovered* out);
void make_scatter_to_memory(Operation* operation, int rank, int world_size, Discovered* out);
void make_all_gather_to_memory(Operation* operation, int rank, int world_size, Discovered* out);

}  // namespace trireme
