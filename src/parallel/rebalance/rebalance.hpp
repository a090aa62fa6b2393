// Rebalance: moves a training from one layout of models to another one between steps: parameters,
// state, masters and counters. The old models are only read. So whatever fails, they go on.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/communicator.hpp"
#include "exchange/storage.hpp"
#include "optimizer/optimizer.hpp"
#include "parallel/rebalance/moves.hpp"
#include "platform/status.hpp"

namespace trireme::parallel {

// Read by the boundary.
struct RebalanceOptions {
  std::uint32_t part = 0;
  std::shared_ptr<Communicator> communicator{};  // the caller's, of all ranks
  std::vector<std::uint64_t> cuts{};
  std::uint64_t buffer_bytes = 0;
  std::uint64_t timeout_ns = 0;
};

struct RebalanceReport {
  std::uint64_t sent_bytes = 0, received_bytes = 0, kept_bytes = 0;
  std::uint64_t buffer_bytes = 0;
  std::uint64_t peak_bytes = 0;
};

class Rebalance {
 public:
  // Collective. `read`: whether this rank's arguments could be read; without, both optimizers may
  // be null.
  static Status run(const std::shared_ptr<strategies::Optimizer>& from,
                    const std::shared_ptr<strategies::Optimizer>& to,
                    const RebalanceOptions& options, Status read, RebalanceReport* out);

 private:
  // The old optimizer's counters and the memory that they point to.
  struct CountedState {
    trireme_optimizer_counters counters = TRIREME_OPTIMIZER_COUNTERS_INIT;
    std::vector<std::uint64_t> parameter_steps;
    std::vector<double> group_rate_factors;
  };

  Rebalance(std::shared_ptr<strategies::Optimizer> from, std::shared_ptr<strategies::Optimizer> to,
            const RebalanceOptions& options)
      : from_(std::move(from)), to_(std::move(to)), options_(options) {}

  Status prepare(Status own);
  Status check() const;
  Status read_counters(const strategies::Optimizer& optimizer, CountedState* out) const;
  std::vector<sharding::Fact> facts() const;
  StateTable own_table() const;
  Status exchange_tables(std::vector<StateTable>* out);
  Status allocate();
  // From here on the new models change. A rank that fails by itself comes to all that follows, so
  // that no other one waits for it.
  Status commit();
  Status move_all();
  void move_own(const std::vector<StateMove>& message);
  void fill(const std::vector<StateMove>& message);
  void take(const std::vector<StateMove>& message);
  void note(Status status) {
    if (own_.ok()) own_ = std::move(status);
  }
  // One message out, one in; either may be null.
  Status exchange(const std::vector<StateMove>* out, std::uint32_t to,
                  const std::vector<StateMove>* in, std::uint32_t from);
  Status restore(Status ready);
  void give_up(const Status& status) const;
  // A failure of this rank alone ends the waits of all others.
  Status tell(Status status) const;

  const std::shared_ptr<strategies::Optimizer> from_, to_;
  const RebalanceOptions& options_;
  strategies::Link link_;  // a group of this call alone
  CountedState counted_;
  std::vector<StateMove> moves_;  // of this rank
  std::vector<StateParameter> parameters_;
  std::shared_ptr<Memory> sent_, received_;
  Status own_ = Status::success();  // of this rank's part of the move
  RebalanceReport report_;
};

}  // namespace trireme::parallel
