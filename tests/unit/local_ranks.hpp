// The common parts of the tests of the local backend: one rank's walk through every collective,
// against sums computed here from the formula that fills the contributions.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/backend.hpp"
#include "platform/clock.hpp"

namespace local_ranks {

using namespace trireme;

constexpr std::uint64_t kSecond = 1'000'000'000;
// Long enough for the slowest machine: no test waits for it unless something is broken.
constexpr std::uint64_t kLong = 100 * kSecond;

inline Status join(const std::string& url, int rank, int world_size,
                   std::unique_ptr<Backend>* out) {
  GroupOptions options;
  options.rank = rank;
  options.world_size = world_size;
  options.rendezvous = url;
  options.name = "job";
  return join_group(options, out);
}

// A rank that failed and left before all came would be missed by those who come later. The failure
// of one that went on already is the body's to see.
inline Status wait_for_all(Backend& backend) {
  const Status status = backend.wait_ready(Deadline::after(kLong));
  return backend.failure().ok() ? status : Status::success();
}

// Element i of rank r's contribution. Sums of floats depend on their order, so the order is tested,
// too.
inline float value(int rank, std::uint64_t i) {
  const auto mixed =
      static_cast<std::uint32_t>((i * 2654435761u) ^ (static_cast<std::uint64_t>(rank) * 40503u));
  return (static_cast<float>(mixed % 20011) - 10005.0f) / 7.0f;
}

inline float sum_of_all(int world_size, std::uint64_t i) {
  float sum = value(0, i);
  for (int rank = 1; rank < world_size; ++rank) sum += value(rank, i);
  return sum;
}

enum class Source { own, allocated, mixed };

// Elements in memory of one's own or of allocate(), with a guard after them.
class Elements {
 public:
  Elements(Backend& backend, std::uint64_t count, bool allocated) : count_(count) {
    if (allocated && backend.allocate((count + kGuard) * sizeof(float), &memory_).ok()) {
      data_ = static_cast<float*>(memory_->data());
    } else {
      private_.resize(count + kGuard);
      data_ = private_.data();
    }
    std::fill(data_, data_ + count + kGuard, kUntouched);
  }
  float* data() { return data_; }
  float& operator[](std::uint64_t i) { return data_[i]; }
  bool guard_is_whole() const { return is_untouched(count_, count_ + kGuard); }
  bool is_untouched() const { return is_untouched(0, count_ + kGuard); }

 private:
  static constexpr std::uint64_t kGuard = 33;
  static constexpr float kUntouched = -123456.5f;
  bool is_untouched(std::uint64_t from, std::uint64_t to) const {
    return std::all_of(data_ + from, data_ + to, [](float f) { return f == kUntouched; });
  }

  std::uint64_t count_;
  std::vector<float> private_;
  std::shared_ptr<Memory> memory_;
  float* data_ = nullptr;
};

struct Walk {
  explicit Walk(Backend& backend_in, std::uint32_t channel_in = 0)
      : backend(backend_in), channel(channel_in) {}

  Backend& backend;
  std::uint32_t channel;
  std::uint64_t sequence = 0;
  std::string error;  // the first thing that was wrong

  int rank() const { return backend.rank(); }
  int world_size() const { return backend.world_size(); }

  void wrong(const std::string& what) {
    if (!error.empty()) return;
    error = "rank " + std::to_string(rank()) + " of " + std::to_string(world_size()) + ": " + what;
  }
  void run(Operation operation) {
    operation.channel = channel;
    const Status status = backend.run(operation, ++sequence, Deadline::after(kLong));
    if (!status.ok()) wrong(status.message());
  }
  template <class Expected>
  void check(const char* what, Elements& elements, std::uint64_t count, Expected expected) {
    if (!error.empty()) return;
    for (std::uint64_t i = 0; i < count; ++i) {
      const float want = expected(i);
      if (std::memcmp(&elements[i], &want, sizeof want) == 0) continue;
      return wrong(std::string(what) + ": element " + std::to_string(i) + " of " +
                   std::to_string(count) + " is " + std::to_string(elements[i]) + ", not " +
                   std::to_string(want));
    }
    if (!elements.guard_is_whole()) wrong(std::string(what) + " wrote past the end");
  }
};

inline Operation operation(OperationKind kind, std::uint64_t count) {
  Operation made;
  made.kind = kind;
  made.count = count;
  made.dtype = TRIREME_DTYPE_F32;
  if (kind == OperationKind::all_reduce || kind == OperationKind::reduce_scatter ||
      kind == OperationKind::reduce_scatter_v) {
    made.reduction = TRIREME_REDUCTION_SUM;
  }
  return made;
}

inline Operation all_reduce_of(const void* send, void* receive, std::uint64_t count) {
  Operation made = operation(OperationKind::all_reduce, count);
  made.send = send;
  made.receive = receive;
  return made;
}

inline void check_all_reduce(Walk& walk, std::uint64_t count, bool allocated, bool in_place) {
  Elements send(walk.backend, count, allocated);
  Elements other(walk.backend, in_place ? 0 : count, allocated);
  Elements& receive = in_place ? send : other;
  for (std::uint64_t i = 0; i < count; ++i) send[i] = value(walk.rank(), i);
  walk.run(all_reduce_of(send.data(), receive.data(), count));
  walk.check("all_reduce", receive, count,
             [&](std::uint64_t i) { return sum_of_all(walk.world_size(), i); });
  if (in_place) return;
  walk.check("send of all_reduce", send, count,
             [&](std::uint64_t i) { return value(walk.rank(), i); });
}

inline void check_broadcast(Walk& walk, std::uint64_t count, bool allocated, int root) {
  Elements data(walk.backend, count, allocated);
  for (std::uint64_t i = 0; i < count; ++i) data[i] = value(walk.rank(), i);
  Operation broadcast = operation(OperationKind::broadcast, count);
  broadcast.receive = data.data();
  broadcast.root = root;
  walk.run(broadcast);
  walk.check("broadcast", data, count, [&](std::uint64_t i) { return value(root, i); });
}

// reduce_scatter(_v), all_gather(_v) and fold. Without `counts` all blocks have `count` elements.
struct Blocks {
  Blocks(int world_size, int rank, std::uint64_t count_in, std::vector<std::uint64_t> counts_in)
      : counts(std::move(counts_in)), lengths(counts) {
    even = counts.empty();
    if (even) lengths.assign(static_cast<std::size_t>(world_size), count_in);
    for (int r = 0; r < world_size; ++r) {
      if (r == rank) begin = all;
      all += lengths[static_cast<std::size_t>(r)];
    }
    mine = lengths[static_cast<std::size_t>(rank)];
    count = even ? count_in : all;
  }
  std::vector<std::uint64_t> counts, lengths;
  std::uint64_t all = 0, begin = 0, mine = 0, count = 0;
  bool even = false;
};

inline void check_reduce_scatter(Walk& walk, const Blocks& blocks, bool allocated, bool in_place) {
  Elements send(walk.backend, blocks.all, allocated);
  Elements receive(walk.backend, blocks.mine, allocated);
  for (std::uint64_t i = 0; i < blocks.all; ++i) send[i] = value(walk.rank(), i);
  Operation scatter = operation(
      blocks.even ? OperationKind::reduce_scatter : OperationKind::reduce_scatter_v, blocks.count);
  scatter.counts = blocks.counts;
  scatter.send = send.data();
  scatter.receive = in_place ? send.data() + blocks.begin : receive.data();
  walk.run(scatter);
  if (in_place) std::copy_n(send.data() + blocks.begin, blocks.mine, receive.data());
  walk.check(operation_name(scatter.kind), receive, blocks.mine,
             [&](std::uint64_t i) { return sum_of_all(walk.world_size(), blocks.begin + i); });
}

inline void check_all_gather(Walk& walk, const Blocks& blocks, bool allocated, bool in_place) {
  Elements send(walk.backend, blocks.mine, allocated);
  Elements receive(walk.backend, blocks.all, allocated);
  float* const contribution = in_place ? receive.data() + blocks.begin : send.data();
  for (std::uint64_t i = 0; i < blocks.mine; ++i) {
    contribution[i] = value(walk.rank(), blocks.begin + i);
  }
  Operation gather = operation(
      blocks.even ? OperationKind::all_gather : OperationKind::all_gather_v, blocks.count);
  gather.counts = blocks.counts;
  gather.send = contribution;
  gather.receive = receive.data();
  walk.run(gather);
  std::uint64_t end = blocks.lengths[0];
  int owner = 0;
  walk.check(operation_name(gather.kind), receive, blocks.all, [&](std::uint64_t i) {
    while (i >= end) end += blocks.lengths[static_cast<std::size_t>(++owner)];
    return value(owner, i);
  });
}

// Ranks with an odd number contribute nothing.
inline void check_fold(Walk& walk, const Blocks& blocks, bool allocated) {
  Elements send(walk.backend, blocks.all, allocated);
  Elements sums(walk.backend, blocks.mine, false);
  for (std::uint64_t i = 0; i < blocks.all; ++i) send[i] = value(walk.rank(), i);
  Operation fold = operation(OperationKind::fold, blocks.all);
  fold.counts = blocks.lengths;
  fold.send = walk.rank() % 2 == 1 ? nullptr : send.data();
  std::uint64_t next = 0;
  fold.fold = [&](std::uint64_t from, std::uint64_t length, const void* const* sources,
                  std::uint32_t source_count) {
    if (from != next) walk.wrong("fold skipped from " + std::to_string(next));
    next = from + length;
    if (source_count != static_cast<std::uint32_t>(walk.world_size())) {
      return walk.wrong("fold has " + std::to_string(source_count) + " sources");
    }
    for (std::uint32_t rank = 0; rank < source_count; ++rank) {
      if ((sources[rank] == nullptr) != (rank % 2 == 1)) return walk.wrong("fold: wrong sources");
    }
    for (std::uint64_t i = 0; i < length; ++i) {
      float sum = 0;
      for (std::uint32_t rank = 0; rank < source_count; rank += 2) {
        sum += static_cast<const float*>(sources[rank])[i];
      }
      sums[from + i] = sum;
    }
  };
  walk.run(fold);
  if (next != blocks.mine) walk.wrong("fold ended at " + std::to_string(next));
  walk.check("fold", sums, blocks.mine, [&](std::uint64_t i) {
    float sum = 0;
    for (int rank = 0; rank < walk.world_size(); rank += 2) sum += value(rank, blocks.begin + i);
    return sum;
  });
}

// Every kind of collective over every kind of length.
inline void check_everything(Walk& walk, Source source, std::uint64_t longest) {
  const bool allocated =
      source == Source::allocated || (source == Source::mixed && walk.rank() % 2 == 0);
  const auto n = static_cast<std::uint64_t>(walk.world_size());
  const std::uint64_t lengths[] = {0, 1, 2, 3, 7, n - 1, n + 1, 1000, 1025, longest};
  for (const std::uint64_t count : lengths) {
    if (!walk.error.empty()) return;
    walk.run(operation(OperationKind::barrier, 0));
    std::vector<std::uint64_t> counts;  // uneven, with an empty block in it
    for (std::uint64_t rank = 0; rank < n; ++rank) {
      counts.push_back(rank == n / 2 ? 0 : count / n + rank * 3);
    }
    const Blocks even(walk.world_size(), walk.rank(), count / n, {});
    const Blocks uneven(walk.world_size(), walk.rank(), 0, counts);
    for (const bool in_place : {false, true}) {
      check_all_reduce(walk, count, allocated, in_place);
      for (const Blocks* blocks : {&even, &uneven}) {
        check_reduce_scatter(walk, *blocks, allocated, in_place);
        check_all_gather(walk, *blocks, allocated, in_place);
        check_fold(walk, *blocks, allocated);
      }
    }
    check_broadcast(walk, count, allocated, 0);
    check_broadcast(walk, count, allocated, walk.world_size() - 1);
  }
}

// Whether a failure has this code, blames exactly these ranks and has these words; "" or the
// difference.
inline std::string failure_is(const Status& status, trireme_status code,
                              const std::vector<std::int32_t>& blamed, const std::string& text) {
  if (status.code() != code) {
    return "status " + std::to_string(status.code()) + " \"" + status.message() + "\", not " +
           std::to_string(code);
  }
  if (status.details() == nullptr) return "no details: " + status.message();
  if (status.details()->blamed != blamed) return "blames others: " + status.message();
  if (status.message().find(text) == std::string::npos) {
    return "\"" + status.message() + "\" lacks \"" + text + "\"";
  }
  return "";
}

// cmocka has a macro of the member's name.
inline void fail_group(Backend& backend, const Status& status) { backend.fail(status); }

inline void pause_briefly() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

// One operation of each kind, with 5000 elements a rank: more than fits into a slot.
inline Operation any_operation(OperationKind kind, int world_size, Elements& send,
                               Elements& receive) {
  constexpr std::uint64_t kBlock = 5000;
  const auto n = static_cast<std::uint64_t>(world_size);
  Operation made = operation(kind, kBlock);
  made.send = send.data();
  made.receive = receive.data();
  if (kind == OperationKind::barrier) made.count = 0;
  if (kind == OperationKind::reduce_scatter_v || kind == OperationKind::all_gather_v ||
      kind == OperationKind::fold) {
    made.counts.assign(n, kBlock);
    made.count = kBlock * n;
  }
  if (kind == OperationKind::fold) {
    made.fold = [](std::uint64_t, std::uint64_t, const void* const*, std::uint32_t) {};
  }
  return made;
}

constexpr OperationKind kKinds[] = {OperationKind::all_reduce,       OperationKind::reduce_scatter,
                                    OperationKind::reduce_scatter_v, OperationKind::all_gather,
                                    OperationKind::all_gather_v,     OperationKind::broadcast,
                                    OperationKind::barrier,          OperationKind::fold};
constexpr const char* kPoints[] = {"before_publish", "after_publish", "before_move",
                                   "mid_move",       "after_move",    "before_leave"};

// Runs the kind until it fails, which it must: one operation may still end well for a rank that was
// done before the failure.
inline Status run_until_failure(Backend& backend, OperationKind kind, bool allocated) {
  const auto n = static_cast<std::uint64_t>(backend.world_size());
  Elements send(backend, 5000 * n, allocated);
  Elements receive(backend, 5000 * n, allocated);
  Status status = Status::success();
  for (std::uint64_t sequence = 1; status.ok() && sequence <= 3; ++sequence) {
    status = backend.run(any_operation(kind, backend.world_size(), send, receive), sequence,
                         Deadline::after(kLong));
  }
  return status;
}

// The ways in which rank 2 can disagree with the others about an all_reduce of 5 f32; and what
// shows it.
struct Disagreement {
  const char* name;
  void (*change)(Operation& operation);
  const char* text;
};
constexpr Disagreement kDisagreements[] = {
    {"dtype", [](Operation& o) { o.dtype = TRIREME_DTYPE_I32; },
     "rank 0 called all_reduce(sum, f32, count 5) and rank 2 called all_reduce(sum, i32, count 5)"},
    {"count", [](Operation& o) { o.count = 4; },
     "all_reduce(sum, f32, count 5) and rank 2 called all_reduce(sum, f32, count 4)"},
    {"reduction", [](Operation& o) { o.reduction = TRIREME_REDUCTION_MAX; },
     "rank 2 called all_reduce(max, f32, count 5)"},
    {"kind",
     [](Operation& o) {
       o.kind = OperationKind::barrier;
       o.count = 0;
     },
     "rank 2 called barrier()"},
    {"agreement", [](Operation& o) { o.agreement = 8; }, "with different layout"},
};

inline std::string check_disagreement(Backend& backend, const Disagreement& disagreement) {
  Elements send(backend, 5, false);
  Elements receive(backend, 5, false);
  Operation mine = all_reduce_of(send.data(), receive.data(), 5);
  mine.agreement = 7;
  mine.agreement_name = "layout";
  if (backend.rank() == 2) disagreement.change(mine);
  for (std::uint64_t sequence = 1; sequence <= 2; ++sequence) {
    const std::string error = failure_is(backend.run(mine, sequence, Deadline::after(kLong)),
                                         TRIREME_ERROR_MISMATCH, {0, 2}, disagreement.text);
    if (!error.empty()) return std::string(disagreement.name) + ": " + error;
  }
  if (!receive.is_untouched()) return std::string(disagreement.name) + ": data was moved";
  return "";
}

}  // namespace local_ranks
