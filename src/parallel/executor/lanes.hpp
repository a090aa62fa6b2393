// Lanes: the ways of messages along a pipeline. Each carries one message of each micro-batch.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/executor/stage_message.hpp"
#include "parallel/pipeline/schedule.hpp"

namespace trireme::parallel {

struct Lane {
  std::uint32_t sender = 0, receiver = 0;  // ranks; the same: nothing is sent
};

class Lanes {
 public:
  // Of the stages of a valid schedule: outputs and gradients in turn.
  explicit Lanes(const pipeline::Schedule& schedule) : micro_batches_(schedule.micro_batches) {
    for (std::uint32_t stage = 0; stage < schedule.stages(); ++stage) {
      const std::uint32_t rank = schedule.rank_of[stage];
      lanes_.push_back({rank, stage + 1 < schedule.stages() ? schedule.rank_of[stage + 1] : rank});
      lanes_.push_back({rank, stage > 0 ? schedule.rank_of[stage - 1] : rank});
    }
  }
  static std::uint32_t of_stage(std::uint32_t stage, StageDirection direction) {
    return 2 * stage + static_cast<std::uint32_t>(direction);
  }
  std::uint32_t add(const Lane& lane) {
    lanes_.push_back(lane);
    return static_cast<std::uint32_t>(lanes_.size() - 1);
  }
  const Lane& operator[](std::uint32_t lane) const { return lanes_[lane]; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(lanes_.size()); }
  std::uint32_t micro_batches() const { return micro_batches_; }
  // Lanes on which this rank sends.
  std::uint64_t from(std::uint32_t rank) const {
    std::uint64_t count = 0;
    for (const Lane& lane : lanes_) {
      count += lane.sender == rank && lane.receiver != rank ? 1 : 0;
    }
    return count;
  }

 private:
  std::uint32_t micro_batches_;
  std::vector<Lane> lanes_{};
};

}  // namespace trireme::parallel
