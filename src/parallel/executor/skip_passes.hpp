// SkipPasses: the outputs that layers of this rank read or that others read, in each pass.
#pragma once

#include <trireme/trainer.h>

#include <cstdint>
#include <vector>

#include "parallel/executor/lanes.hpp"
#include "parallel/executor/links.hpp"
#include "parallel/executor/skip_arrivals.hpp"
#include "parallel/executor/skip_plan.hpp"
#include "parallel/executor/skips.hpp"
#include "trainer/call_reads.hpp"
#include "trainer/extent.hpp"
#include "trainer/gaps.hpp"

namespace trireme::parallel {

class SkipPasses {
 public:
  struct Shape {
    const pipeline::Schedule& schedule;
    const std::vector<std::uint64_t>& cuts;
    bool one_memory;
  };

  // `links` live as long as this.
  explicit SkipPasses(StageLinks& links) : links_(links) {}

  // Collective. Adds the lanes of its messages.
  Status meet(const strategies::Link& link, const strategies::LayerTable& layers,
              const Shape& shape, Lanes* lanes);
  std::uint64_t bytes() const { return plan_.bytes(); }
  void use(char* memory) { memory_ = memory; }
  // `micro_batches`: of this rank.
  void begin_pass(bool trains, std::uint64_t step, std::uint32_t micro_batches) {
    trains_ = trains;
    step_ = step;
    present_ = micro_batches;
    next_arrival_ = 0;
  }

  // Receives what is due before the action of this rank, whether a pass runs that action or not.
  Status receive(std::size_t before, bool* failed);
  // An action of this rank that computes. Each call is about all skips of its stage.
  Status send_values(std::uint32_t stage, std::uint32_t micro_batch, bool failed);
  Status send_gradients(std::uint32_t stage, std::uint32_t micro_batch, bool failed);

  // After the first forward of a layer, by its place on this rank: keeps what others read.
  Status keep(const trireme_layer_call& call, const strategies::Extent& extent);
  // Before a call of a layer.
  void tell(trireme_layer_call* call, bool for_input);
  const strategies::CallReads& told() const { return told_; }
  // Before backward of a layer whose output others read: sets output_gradient to the sum of all
  // gradients. It is made in backward for the input, once.
  void add_gradients(trireme_layer_call* call, bool for_input,
                     const strategies::GapSearch& gaps) const;

 private:
  static constexpr std::size_t kNoSkip = ~std::size_t{0};

  StageMessage message_of(const Skip& skip, StageDirection direction, std::uint64_t reader,
                          std::uint32_t lane, std::uint32_t micro_batch) const;
  char* value(std::size_t skip, std::uint32_t micro_batch) const {
    return memory_ + plan_.value(skip, micro_batch);
  }
  char* gradient_of(std::size_t skip, std::size_t reader, std::uint32_t micro_batch) const {
    return memory_ + plan_.gradient(skip, reader, micro_batch);
  }
  strategies::Extent& extent(std::size_t skip, std::uint32_t micro_batch) {
    return extents_[skip * micro_batches_ + micro_batch];
  }
  Status claim(std::size_t skip, const char* place);

  StageLinks& links_;
  std::uint32_t rank_ = 0, micro_batches_ = 0;
  std::uint64_t header_bytes_ = 0;
  std::vector<Skip> skips_{};
  std::vector<SkipArrival> arrivals_{};
  SkipPlan plan_{};
  struct Read {
    std::size_t skip = 0, reader = 0;
  };
  std::vector<std::vector<Read>> reads_{};     // by layer of this rank, in its order
  std::vector<std::size_t> own_{};             // by layer of this rank: the skip that it makes
  std::vector<strategies::Extent> extents_{};  // by skip and micro-batch
  strategies::CallReads told_{};
  char* memory_ = nullptr;
  bool trains_ = false;
  std::uint64_t step_ = 0;
  std::uint32_t present_ = 0;  // micro-batches of the pass
  std::size_t next_arrival_ = 0;
};

}  // namespace trireme::parallel
