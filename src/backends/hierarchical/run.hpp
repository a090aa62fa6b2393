// Run: one hierarchical collective of one rank, piece by piece.
//
// A rank copies its piece to its shelf, and all ranks of the host meet; then each reads the pieces
// that it needs. Two pieces share no room: a rank that reuses the room of a piece has met all
// others at the piece between, and so knows that they have read it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/hierarchical/engine.hpp"
#include "platform/names.hpp"

namespace trireme::hierarchical {

// The bytes that a rank copies at a time, and those that it computes; there is room for two of
// both.
constexpr std::uint64_t kPieceBytes = 1u << 20;
constexpr std::uint64_t kShelfBytes = 4 * kPieceBytes;

// The collective of the ranks of one place, without memory and counts.
Operation column_step(const Operation& operation, bool by_library);

class HierarchicalEngine::Run {
 public:
  Run(HierarchicalEngine& engine, const Operation& operation, std::uint64_t ticket,
      Deadline deadline)
      : engine_(engine),
        hosts_(*engine.hosts()),
        shelf_(engine.shelves_[operation.channel]),
        op_(operation),
        ticket_(ticket),
        deadline_(deadline),
        size_(dtype_size(operation.dtype)),
        me_(engine.options_.rank),
        host_(hosts_.host[at(me_)]),
        place_(hosts_.place[at(me_)]),
        here_(static_cast<int>(hosts_.ranks[at(host_)].size())) {}

  Status execute();

 private:
  struct Cut {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  std::byte* laid(int place) const { return shelf_.first[at(place)] + room_; }
  std::byte* made(int place) const { return shelf_.first[at(place)] + room_ + kPieceBytes; }
  void begin_piece() {
    room_ = (shelf_.pieces++ % 2) * 2 * kPieceBytes;
    ++piece_;
  }
  Status meet() { return engine_.barrier(op_.channel, deadline_); }
  Cut shard(int place, std::uint64_t count) const;
  bool carries() const { return place_ < hosts_.shards; }

  std::uint64_t block(int rank) const {
    return op_.counts.empty() ? op_.count : op_.counts[at(rank)];
  }
  std::uint64_t block_begin(int rank) const;
  // Elements of that rank's block within [first, first + most).
  std::uint64_t block_piece(int rank, std::uint64_t first, std::uint64_t most) const {
    const std::uint64_t all = block(rank);
    return all <= first ? 0 : std::min(most, all - first);
  }
  std::uint64_t longest_block() const;

  bool is_narrow() const;
  std::byte* sums(std::uint64_t bytes);
  // Combines the data of all ranks of the host from that element on, as partial results.
  void combine_here(std::uint64_t from, std::uint64_t count, std::byte* partial) const;
  // Turns partial results into the caller's result.
  void finish(const std::byte* partial, std::uint64_t count, std::byte* out) const;
  Operation column_step() const {
    return hierarchical::column_step(op_, engine_.options_.library != nullptr);
  }
  // Skips a step that is empty for all members of the column.
  Status column(const Operation& step) {
    return step.count == 0 ? Status::success()
                           : engine_.column_->run(step, ticket_ + piece_, deadline_);
  }

  Status all_reduce();  // and reduce
  Status reduce_scatter();
  Status all_gather();
  Status broadcast();

  HierarchicalEngine& engine_;
  const Hosts& hosts_;
  Shelf& shelf_;
  const Operation& op_;
  const std::uint64_t ticket_;
  const Deadline deadline_;
  const std::uint64_t size_;
  const int me_;
  const int host_;
  const int place_;
  const int here_;  // ranks of this host
  std::uint64_t room_ = 0;
  std::uint64_t piece_ = 0;  // of this collective
};

}  // namespace trireme::hierarchical
