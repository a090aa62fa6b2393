// Operations made of several collectives, as one place in the queue. See Operation::program.
#pragma once

#include "backends/backend.hpp"

namespace trireme {

// The fields that all steps of a composite share with the called operation, which lives as long.
Operation step_of(const Operation& called);

// Makes an all_to_all_v exchange its counts first, and compare them. `counts` hold the counts that
// this rank sends to each rank, followed by the counts that it expects of each.
void make_all_to_all_v(Operation* operation, int rank, int world_size);

// Turns a collective of f32 into one whose elements travel as `wire`, a narrow dtype.
void make_wire(Operation* operation, trireme_dtype wire, int rank, int world_size);

// Entries of a list: the same operation over several buffers. Broadcast uses `receive` alone.
struct Entry {
  const void* send = nullptr;
  void* receive = nullptr;
  std::uint64_t count = 0;  // as Operation::count
};

// Turns `operation` into one over all entries. It is an all_reduce, reduce_scatter, all_gather or
// broadcast, without its buffers. Small entries are packed and travel together.
void make_list(Operation* operation, std::vector<Entry> entries, int rank, int world_size);

// The result of a call that finds out how many elements come.
struct Discovered {
  std::shared_ptr<Memory> memory;     // null if none was wanted
  std::vector<std::uint64_t> counts;  // all_gather: elements of each block
};

// For a broadcast, scatter_v or all_gather_v whose count only the giving ranks know: counts on the
// root, count, counts[0]. The result first exchanges the count, and then allocates the memory to
// receive into. `out` must live until the operation is done.
void make_broadcast_to_memory(Operation* operation, int rank, bool wants_memory, Discovered* out);
void make_scatter_to_memory(Operation* operation, int rank, int world_size, Discovered* out);
void make_all_gather_to_memory(Operation* operation, int rank, int world_size, Discovered* out);

}  // namespace trireme
