// SkipPlan: where outputs that are read, and their gradients, lie on one rank of a pipeline.
// Arithmetic alone: the schedule tells when each place is taken and given back.
//
// From F on, the layer's rank keeps a copy of its output for its own readers, and one for each rank
// that takes it. That rank has a copy, too. All stay until the last backward of the stages that
// need them. So a receiver has read a place before it is given back: F of a reader comes before its
// backward, and this before the layer's own. The place of a message that this rank receives begins
// when it comes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/executor/skip_arrivals.hpp"
#include "parallel/executor/skips.hpp"

namespace trireme::parallel {

class SkipPlan {
 public:
  // `header_bytes` lie in front of each place, and count.
  SkipPlan() = default;
  SkipPlan(const pipeline::Schedule& schedule, std::uint32_t rank, const std::vector<Skip>& skips,
           const std::vector<SkipArrival>& arrivals, std::uint64_t header_bytes);

  std::uint64_t bytes() const { return bytes_; }
  // Behind the header. Of a skip that this rank reads.
  std::uint64_t value(std::size_t skip, std::uint32_t micro_batch) const {
    return values_[skip * micro_batches_ + micro_batch];
  }
  // Of a skip that this rank makes: for one of its takers.
  std::uint64_t sent(std::size_t skip, std::size_t taker, std::uint32_t micro_batch) const {
    return sent_[(first_taker_[skip] + taker) * micro_batches_ + micro_batch];
  }
  // Of a reader of the skip, if this rank has the layer or the reader.
  std::uint64_t gradient(std::size_t skip, std::size_t reader, std::uint32_t micro_batch) const {
    return gradients_[(first_reader_[skip] + reader) * micro_batches_ + micro_batch];
  }

 private:
  class Walker;

  std::uint32_t micro_batches_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> values_{}, sent_{}, gradients_{};
  std::vector<std::size_t> first_reader_{}, first_taker_{};  // by skip
};

}  // namespace trireme::parallel
