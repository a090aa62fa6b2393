// Ring: collectives of a few ranks on different hosts. Blocks go round, each rank passing on to the
// next: no byte crosses a wire more often than necessary.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "backends/engine.hpp"
#include "backends/wire/neighbours.hpp"

namespace trireme::hierarchical {

class Ring final : public host::Engine {
 public:
  Ring(const tcp::Members& members, std::unique_ptr<Neighbours> neighbours)
      : neighbours_(std::move(neighbours)),
        n_(static_cast<int>(members.ranks.size())),
        me_(members.own) {}

  const char* name() const override { return "ring"; }
  // Operations as the members see them, with counts by member and the root as an index. It reduces
  // no narrow types, and no reduction with a last step. After `reduce` the receive memory of
  // members that are not the root holds parts of the sum.
  bool offers(const Operation& operation) const override;
  bool prefers(const Operation&) const override { return true; }
  bool tells_apart() const override { return true; }
  Status run(const Operation& operation, std::uint64_t ticket, Deadline deadline) override;
  TrafficCounters traffic() const override { return neighbours_->traffic(); }
  void abort() noexcept override { neighbours_->abort(); }

 private:
  struct Block {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };
  // The state of a channel.
  struct Lane {
    std::unique_ptr<std::byte[]> memory;
    std::uint64_t bytes = 0;
  };
  // One call.
  struct Call;

  int at(int index) const { return (index % n_ + n_) % n_; }
  static std::byte* spare(Lane& lane, std::uint64_t bytes);
  Status step(Call& call, const std::byte* out, std::uint64_t out_bytes, std::byte* in,
              std::uint64_t in_bytes);
  std::vector<Block> blocks_of(const Operation& operation) const;
  Status all_reduce(Call& call);
  Status reduce_scatter(Call& call);
  Status all_gather(Call& call);
  Status broadcast(Call& call);
  Status reduce(Call& call);
  Status gather_blocks(Call& call, std::byte* data, const std::vector<Block>& blocks);

  const std::unique_ptr<Neighbours> neighbours_;
  const int n_;
  const int me_;
  std::array<Lane, kChannels> lanes_;
};

}  // namespace trireme::hierarchical
