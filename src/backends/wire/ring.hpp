// Ring: collectives of some ranks over a wire. Blocks go round, each rank passing on to the next:
// no byte crosses the wire more often than necessary.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "backends/engine.hpp"

namespace trireme::wire {

class Ring final : public host::Engine {
 public:
  // `members` are the peers' numbers on the wire, which outlives the ring.
  Ring(Members members, Wire& wire)
      : members_(std::move(members)),
        wire_(wire),
        n_(static_cast<int>(members_.ranks.size())),
        me_(members_.own) {}
  // The ranks to which connections are needed.
  static std::vector<int> neighbours(const Members& members);

  const char* name() const override { return "ring"; }
  // Operations as the members see them, with counts by member and the root as an index. It rounds
  // the narrow types in each step, and has a last step only in a reduce-scatter. After `reduce` the
  // receive memory of members that are not the root holds parts of the sum.
  bool offers(const Operation& operation) const override;
  bool prefers(const Operation&) const override { return true; }
  bool tells_apart() const override { return true; }
  Status run(const Operation& operation, std::uint64_t ticket, Deadline deadline) override;
  // The memory of the operation is that of twins. The caller does what Engine::run_lent() promises.
  Status run_lent(const Operation& operation, std::uint64_t ticket, Deadline deadline) override;
  void abort() noexcept override {}  // the wire's owner ends it

 private:
  struct Block {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };
  // The state of a channel.
  struct Lane {
    std::shared_ptr<std::byte[]> memory;
    std::uint64_t bytes = 0;
  };
  // One call.
  struct Call;
  // One message of it that is under way.
  class Posted;
  // An all-reduce has several pieces under way.
  class Piece;

  int at(int index) const { return (index % n_ + n_) % n_; }
  const Block& block_of(const std::vector<Block>& blocks, int index) const {
    return blocks[static_cast<std::size_t>(at(index))];
  }
  static std::byte* spare(Lane& lane, std::uint64_t bytes);
  Status run_call(Call& call);
  // Sends to the next member, and receives from the previous one; both ends agree on the sizes. A
  // size of 0 sends no message. Long copies go in segments.
  Status step(Call& call, const std::byte* out, std::uint64_t out_bytes, std::byte* in,
              std::uint64_t in_bytes);
  std::vector<Block> blocks_of(const Operation& operation) const;
  Status all_reduce(Call& call);
  Status reduce_scatter(Call& call);
  Status all_gather(Call& call);
  Status broadcast(Call& call);
  Status reduce(Call& call);
  Status gather_blocks(Call& call, std::byte* data, const std::vector<Block>& blocks);

  const Members members_;
  Wire& wire_;
  const int n_;
  const int me_;
  std::array<Lane, kChannels> lanes_;
};

}  // namespace trireme::wire
