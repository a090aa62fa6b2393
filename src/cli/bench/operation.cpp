#include "cli/bench/operation.hpp"

#include <algorithm>
#include <numeric>

namespace trireme::bench {

namespace {

// Uneven blocks around `count`: none, half more and half less in turn.
std::vector<std::uint64_t> uneven(std::uint64_t count, int ranks) {
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(ranks), count);
  for (std::size_t i = 0; i + 1 < counts.size(); i += 2) {
    counts[i] += count / 2;
    counts[i + 1] -= count / 2;
  }
  return counts;
}

std::uint64_t sum(const std::vector<std::uint64_t>& counts, std::size_t first) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(first),
                         std::uint64_t{0});
}

// The counts that rank `from` sends to each rank: the uneven blocks, beginning with another block
// at each rank.
std::vector<std::uint64_t> uneven_from(std::uint64_t count, int ranks, int from) {
  std::vector<std::uint64_t> counts = uneven(count, ranks);
  std::rotate(counts.begin(), counts.begin() + from, counts.end());
  return counts;
}

}  // namespace

const char* op_name(Op op) {
  switch (op) {
    case Op::all_reduce: return "all_reduce";
    case Op::reduce_scatter: return "reduce_scatter";
    case Op::reduce_scatter_v: return "reduce_scatter_v";
    case Op::all_gather: return "all_gather";
    case Op::all_gather_v: return "all_gather_v";
    case Op::broadcast: return "broadcast";
    case Op::barrier: return "barrier";
    case Op::send_receive: return "send_receive";
    case Op::reduce: return "reduce";
    case Op::gather: return "gather";
    case Op::gather_v: return "gather_v";
    case Op::scatter: return "scatter";
    case Op::scatter_v: return "scatter_v";
    case Op::all_to_all: return "all_to_all";
    case Op::all_to_all_v: return "all_to_all_v";
  }
  return "unknown";
}

bool op_reduces(Op op) {
  return op == Op::all_reduce || op == Op::reduce_scatter || op == Op::reduce_scatter_v ||
         op == Op::reduce;
}
bool op_has_root(Op op) {
  return op == Op::broadcast || op == Op::reduce || op == Op::gather || op == Op::gather_v ||
         op == Op::scatter || op == Op::scatter_v;
}
bool op_is_uneven(Op op) {
  return op == Op::reduce_scatter_v || op == Op::all_gather_v || op == Op::gather_v ||
         op == Op::scatter_v || op == Op::all_to_all_v;
}
bool op_takes_out_of_place(Op op) { return op != Op::broadcast; }
bool op_takes_in_place(Op op) {
  return op != Op::barrier && op != Op::send_receive && op != Op::all_to_all &&
         op != Op::all_to_all_v;
}

const char* ranks_name(Ranks ranks) {
  switch (ranks) {
    case Ranks::threads: return "threads";
    case Ranks::processes: return "processes";
    case Ranks::transport: return "transport";
    case Ranks::tcp: return "tcp";
    case Ranks::given: return "env";
  }
  return "unknown";
}
const char* memory_name(Memory memory) {
  return memory == Memory::registered ? "registered" : "private";
}

std::uint64_t bytes_of(const Case& what, int ranks) {
  const bool whole = what.op == Op::all_reduce || what.op == Op::reduce ||
                     what.op == Op::broadcast || what.op == Op::send_receive;
  const bool blocks = !whole && what.op != Op::barrier;
  return what.count * trireme_dtype_bytes(what.dtype) * static_cast<unsigned>(blocks ? ranks : 1);
}

double bus_factor(Op op, int ranks) {
  const double n = ranks;
  switch (op) {
    case Op::all_reduce: return 2 * (n - 1) / n;
    case Op::reduce_scatter:
    case Op::reduce_scatter_v:
    case Op::all_gather:
    case Op::all_gather_v:
    case Op::gather:
    case Op::gather_v:
    case Op::scatter:
    case Op::scatter_v:
    case Op::all_to_all:
    case Op::all_to_all_v: return (n - 1) / n;
    default: return 1;
  }
}

double percentile(std::vector<double> samples, double fraction) {
  if (samples.empty()) return 0;
  const auto last = static_cast<double>(samples.size() - 1);
  const auto at = samples.begin() + static_cast<std::ptrdiff_t>(last * fraction + 0.5);
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}

Shape shape_of(const Case& what, int ranks, int rank) {
  const auto n = static_cast<std::uint64_t>(ranks);
  const auto me = static_cast<std::uint64_t>(rank);
  const std::uint64_t count = what.count;
  Shape shape;
  switch (what.op) {
    case Op::all_reduce:
      shape.send = shape.receive = count;
      shape.expected = {{count, -1, 0}};
      break;
    case Op::reduce_scatter:
    case Op::reduce_scatter_v: {
      std::vector<std::uint64_t> counts(n, count);
      if (what.op == Op::reduce_scatter_v) shape.counts = counts = uneven(count, ranks);
      shape.send = sum(counts, counts.size());
      shape.receive = counts[me];
      shape.receive_at = sum(counts, me);
      shape.expected = {{shape.receive, -1, shape.receive_at}};
      break;
    }
    case Op::all_gather:
    case Op::all_gather_v: {
      std::vector<std::uint64_t> counts(n, count);
      if (what.op == Op::all_gather_v) shape.counts = counts = uneven(count, ranks);
      shape.send = counts[me];
      shape.receive = sum(counts, counts.size());
      shape.send_at = sum(counts, me);
      for (int r = 0; r < ranks; ++r) {
        shape.expected.push_back({counts[static_cast<std::size_t>(r)], r, 0});
      }
      break;
    }
    case Op::broadcast:
      shape.send = rank == what.root ? count : 0;
      shape.receive = count;
      shape.expected = {{count, what.root, 0}};
      break;
    case Op::barrier: break;
    case Op::send_receive:
      shape.send = shape.receive = count;
      shape.expected = {{count, (rank + ranks - 1) % ranks, 0}};
      break;
    case Op::reduce:
      shape.send = count;
      if (rank != what.root) break;
      shape.receive = count;
      shape.expected = {{count, -1, 0}};
      break;
    case Op::gather:
    case Op::gather_v: {
      std::vector<std::uint64_t> counts(n, count);
      if (what.op == Op::gather_v) shape.counts = counts = uneven(count, ranks);
      shape.send = counts[me];
      if (rank != what.root) break;
      shape.receive = sum(counts, counts.size());
      shape.send_at = sum(counts, me);
      for (int r = 0; r < ranks; ++r) {
        shape.expected.push_back({counts[static_cast<std::size_t>(r)], r, 0});
      }
      break;
    }
    case Op::scatter:
    case Op::scatter_v: {
      std::vector<std::uint64_t> counts(n, count);
      if (what.op == Op::scatter_v) shape.counts = counts = uneven(count, ranks);
      shape.receive = counts[me];
      shape.expected = {{counts[me], what.root, sum(counts, me)}};
      if (rank != what.root) break;
      shape.send = sum(counts, counts.size());
      shape.receive_at = sum(counts, me);
      break;
    }
    case Op::all_to_all:
      shape.send = shape.receive = n * count;
      for (int r = 0; r < ranks; ++r) shape.expected.push_back({count, r, me * count});
      break;
    case Op::all_to_all_v:
      shape.counts = uneven_from(count, ranks, rank);
      for (int r = 0; r < ranks; ++r) {
        const std::vector<std::uint64_t> theirs = uneven_from(count, ranks, r);
        shape.receive_counts.push_back(theirs[me]);
        shape.expected.push_back({theirs[me], r, sum(theirs, me)});
      }
      shape.send = sum(shape.counts, n);
      shape.receive = sum(shape.receive_counts, n);
      break;
  }
  return shape;
}

void must(trireme_status status) {
  if (status == TRIREME_ERROR_UNSUPPORTED) throw Unsupported(trireme_last_error());
  if (status != TRIREME_OK) throw Failure(trireme_last_error());
}

void call(trireme_communicator* communicator, const Case& what, const Shape& shape, int ranks,
          int rank, void* send, void* receive) {
  trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
  if (what.reduction == TRIREME_REDUCTION_SCALED_SUM && op_reduces(what.op)) options.scale = 0.5;
  if (what.op != Op::send_receive) options.algorithm = what.algorithm;
  switch (what.op) {
    case Op::all_reduce:
      return must(trireme_all_reduce(communicator, send, receive, what.count, what.dtype,
                                     what.reduction, &options));
    case Op::reduce_scatter:
      return must(trireme_reduce_scatter(communicator, send, receive, what.count, what.dtype,
                                         what.reduction, &options));
    case Op::reduce_scatter_v:
      return must(trireme_reduce_scatter_v(communicator, send, receive, shape.counts.data(),
                                           what.dtype, what.reduction, &options));
    case Op::all_gather:
      return must(
          trireme_all_gather(communicator, send, receive, what.count, what.dtype, &options));
    case Op::all_gather_v:
      return must(trireme_all_gather_v(communicator, send, receive, shape.counts.data(), what.dtype,
                                       &options));
    case Op::broadcast:
      return must(
          trireme_broadcast(communicator, receive, what.count, what.dtype, what.root, &options));
    case Op::barrier: return must(trireme_barrier(communicator, &options));
    case Op::send_receive:
      return must(trireme_send_receive(communicator, send, what.count, (rank + 1) % ranks, 0,
                                       receive, what.count, (rank + ranks - 1) % ranks, 0,
                                       what.dtype, &options));
    case Op::reduce:
      return must(trireme_reduce(communicator, send, receive, what.count, what.dtype,
                                 what.reduction, what.root, &options));
    case Op::gather:
      return must(
          trireme_gather(communicator, send, receive, what.count, what.dtype, what.root, &options));
    case Op::gather_v:
      return must(trireme_gather_v(communicator, send, receive, shape.counts.data(), what.dtype,
                                   what.root, &options));
    case Op::scatter:
      return must(trireme_scatter(communicator, send, receive, what.count, what.dtype, what.root,
                                  &options));
    case Op::scatter_v:
      return must(trireme_scatter_v(communicator, send, receive, shape.counts.data(), what.dtype,
                                    what.root, &options));
    case Op::all_to_all:
      return must(
          trireme_all_to_all(communicator, send, receive, what.count, what.dtype, &options));
    case Op::all_to_all_v:
      return must(trireme_all_to_all_v(communicator, send, shape.counts.data(), receive,
                                       shape.receive_counts.data(), what.dtype, &options));
  }
}

}  // namespace trireme::bench
