// trireme bench: measures the speed of the operations beside the machine's limits and beside peers,
// and checks every element. This file has the types that its parts share.
#pragma once

#include <trireme/trireme.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace trireme::bench {

enum class Op {
  all_reduce,
  reduce_scatter,
  reduce_scatter_v,
  all_gather,
  all_gather_v,
  broadcast,
  barrier,
  send_receive,  // a ring: each sends to the next rank and receives from the one before
  reduce,
  gather,
  gather_v,
  scatter,
  scatter_v,
  all_to_all,
  all_to_all_v,
};
constexpr int kOps = 15;
const char* op_name(Op op);
bool op_reduces(Op op);
bool op_has_root(Op op);
bool op_is_uneven(Op op);  // blocks of different lengths
bool op_takes_out_of_place(Op op);
bool op_takes_in_place(Op op);

// transport: threads over a transport of their own. tcp: processes that meet on the loopback.
// given: this process is one rank of a group that another program has started.
enum class Ranks { threads, processes, transport, tcp, given };
enum class Memory { registered, ordinary };
const char* ranks_name(Ranks ranks);
const char* memory_name(Memory memory);

// A measurement that is impossible ends the command with this.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// The operation has no such algorithm.
class Unsupported : public Failure {
 public:
  using Failure::Failure;
};

// How long to measure. A sample is a number of calls one after the other; its time is the slowest
// rank's.
struct Effort {
  std::uint32_t warmup = 5;
  std::uint32_t iterations = 0;  // 0: as many as fit into `seconds`
  double seconds = 0.05;
};

// One operation with one set of arguments, as all ranks of a group run it.
struct Case {
  Op op = Op::all_reduce;
  trireme_dtype dtype = TRIREME_DTYPE_F32;
  trireme_reduction reduction = TRIREME_REDUCTION_SUM;
  std::int32_t root = 0;
  std::uint64_t count = 0;  // as in the header: all, or one block; v forms: a mean block
  bool in_place = false;
  trireme_algorithm algorithm = TRIREME_ALGORITHM_AUTOMATIC;
};

class Joined;

// A group of ranks, and its settings.
struct Group {
  int size = 2;
  Ranks ranks = Ranks::processes;
  Memory memory = Memory::registered;
  std::string backend;  // empty: the rendezvous' own
  const Joined* given = nullptr;
};

struct Result {
  std::vector<double> samples;  // microseconds a call, slowest rank, each the mean of one sample
  std::uint64_t wrong = 0;      // elements; only if checked
  bool unsupported = false;     // there is no such algorithm
};

// Bytes that count for an operation's speed: those that one rank holds of the larger side.
std::uint64_t bytes_of(const Case& what, int ranks);
// GB/s that links carry per GB/s of the operation, as nccl-tests count.
double bus_factor(Op op, int ranks);
double percentile(std::vector<double> samples, double fraction);

}  // namespace trireme::bench
