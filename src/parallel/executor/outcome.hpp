// PipelineOutcome: the exchange of a pipeline's ranks at the end of a pass. The ranks of each model
// have told each other before, so that all ranks of all models know the same afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "exchange/storage.hpp"
#include "platform/status.hpp"

namespace trireme::parallel {

class PipelineOutcome {
 public:
  struct Told {
    const Status* failure = nullptr;  // of this rank's model, or null
    bool stop = false;
    double loss = 0;       // of the last stage
    bool stopped = false;  // a peer's message said that it has failed
  };

  PipelineOutcome(strategies::Link& link, std::uint32_t last_rank)
      : link_(link), last_rank_(last_rank) {}

  std::uint64_t planned_bytes() const;
  Status allocate();
  std::uint64_t allocated_bytes() const { return memory_ ? memory_->bytes() : 0; }

  // Collective. `agreement`: the same number on all ranks.
  Status run(std::uint64_t agreement, const Told& told);
  // Results of the last run(), the same on all ranks. A failure names the first rank that failed.
  Status failure() const;
  bool anyone_stops() const;
  double loss() const;

 private:
  struct Words;
  Words* words_of(std::uint32_t rank) const;

  strategies::Link& link_;
  const std::uint32_t last_rank_;
  std::shared_ptr<Memory> memory_;
};

}  // namespace trireme::parallel
