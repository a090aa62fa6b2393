// PassExchange: the exchange of ranks at the end of a trainer's pass. Each rank gives its failure,
// the losses of its micro-batches, and whether it asks to stop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/model.hpp"
#include "trainer/layer_failure.hpp"
#include "trainer/layer_table.hpp"

namespace trireme::strategies {

class PassExchange {
 public:
  // `rounds`: micro-batches of a rank. `total`: micro-batches of all ranks together.
  PassExchange(ShardView& shard, const LayerTable& layers, std::uint32_t rounds,
               std::uint32_t total)
      : shard_(shard), layers_(layers), rounds_(rounds), total_(total) {}

  Status allocate();
  std::uint64_t planned_bytes() const;
  std::uint64_t allocated_bytes() const { return memory_->bytes(); }

  // Collective. `agreement`: the same number on all ranks. `losses`: of this rank's rounds.
  Status run(std::uint64_t agreement, const LayerFailure& own, const std::vector<double>& losses,
             bool stop);

  // Results of the last run(), the same on all ranks. A failure names all ranks that failed.
  Status failure() const;
  bool anyone_stops() const;
  double mean_loss() const;

 private:
  static constexpr std::uint64_t kAnswerWords = 9;

  std::uint32_t rank() const { return shard_.link().rank(); }
  std::uint32_t world_size() const { return shard_.link().world_size(); }
  std::uint64_t words() const { return kAnswerWords + rounds_; }
  std::int64_t* words_of(std::uint32_t rank) const;
  std::string gaps_of(std::uint64_t layer, std::int64_t missing, const LayerGaps& gaps) const;

  ShardView& shard_;
  const LayerTable& layers_;
  const std::uint32_t rounds_;
  const std::uint32_t total_;
  std::shared_ptr<Memory> memory_;
};

}  // namespace trireme::strategies
