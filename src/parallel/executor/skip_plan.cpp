#include "parallel/executor/skip_plan.hpp"

#include <algorithm>
#include <map>

#include "parallel/executor/plan.hpp"

namespace trireme::parallel {

using pipeline::Action;
using strategies::activation_piece;

class SkipPlan::Walker {
 public:
  Walker(const pipeline::Schedule& schedule, std::uint32_t rank, const std::vector<Skip>& skips,
         const std::vector<SkipArrival>& arrivals, std::uint64_t header_bytes, SkipPlan* plan)
      : actions_(schedule.of(rank)),
        rank_(rank),
        skips_(skips),
        arrivals_(arrivals),
        header_bytes_(header_bytes),
        plan_(*plan),
        ends_(std::size_t{schedule.stages()} * schedule.micro_batches) {}

  void run() {
    // A stage is done with a micro-batch after its last backward.
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      const Action& action = actions_[i];
      if (!pipeline::is_message(action.kind)) end_of(action.stage, action.micro_batch) = i;
    }
    std::size_t next_arrival = 0;
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      const Action& action = actions_[i];
      while (next_arrival < arrivals_.size() && arrivals_[next_arrival].action == i) {
        take_arrival(arrivals_[next_arrival++]);
      }
      if (pipeline::is_forward(action.kind)) take_values(action);
      if (pipeline::is_backward(action.kind)) take_gradients(action);
      for (auto [next, last] = ending_.equal_range(i); next != last; ++next) {
        places_.give_back(next->second);
      }
    }
    plan_.bytes_ = places_.most();
  }

 private:
  std::size_t& end_of(std::uint32_t stage, std::uint32_t micro_batch) {
    return ends_[std::size_t{stage} * plan_.micro_batches_ + micro_batch];
  }
  // `end`: the number of the action after which it is given back.
  std::uint64_t take(const Skip& skip, std::size_t end) {
    const std::uint64_t bytes = activation_piece(header_bytes_ + skip.bytes);
    const std::uint64_t place = places_.take(bytes);
    if (bytes > 0) ending_.emplace(end, place);
    return place + header_bytes_;
  }
  // After the last backward of this rank's stages that read the output. 0: none reads it.
  std::size_t end_of_readers(const Skip& skip, std::uint32_t m) {
    std::size_t end = 0;
    for (const Skip::Reader& reader : skip.readers) {
      if (reader.rank == rank_) end = std::max(end, end_of(reader.stage, m));
    }
    return end;
  }
  void take_arrival(const SkipArrival& arrival) {
    const Skip& skip = skips_[arrival.skip];
    const std::uint32_t m = arrival.micro_batch;
    if (arrival.direction == StageDirection::forward) {
      plan_.values_[arrival.skip * plan_.micro_batches_ + m] = take(skip, end_of_readers(skip, m));
    } else {
      plan_.gradients_[(plan_.first_reader_[arrival.skip] + arrival.way) * plan_.micro_batches_ +
                       m] = take(skip, end_of(skip.stage, m));
    }
  }
  void take_values(const Action& action) {
    const std::uint32_t m = action.micro_batch;
    for (std::size_t i = 0; i < skips_.size(); ++i) {
      const Skip& skip = skips_[i];
      if (skip.rank != rank_ || skip.stage != action.stage) continue;
      for (std::size_t t = 0; t < skip.takers.size(); ++t) {
        plan_.sent_[(plan_.first_taker_[i] + t) * plan_.micro_batches_ + m] =
            take(skip, end_of(skip.stage, m));
      }
      const std::size_t end = end_of_readers(skip, m);
      if (end == 0) continue;
      plan_.values_[i * plan_.micro_batches_ + m] =
          take(skip, std::max(end, end_of(skip.stage, m)));
    }
  }
  // The rank of the layer has a place for each reader's gradient. A gradient that is sent has a
  // place of its own until the pass ends: nothing tells when it was read.
  void take_gradients(const Action& action) {
    for (std::size_t i = 0; i < skips_.size(); ++i) {
      const Skip& skip = skips_[i];
      for (std::size_t r = 0; r < skip.readers.size(); ++r) {
        const Skip::Reader& reader = skip.readers[r];
        if (reader.rank != rank_ || reader.stage != action.stage) continue;
        const std::size_t end =
            skip.rank == rank_ ? end_of(skip.stage, action.micro_batch) : actions_.size();
        plan_.gradients_[(plan_.first_reader_[i] + r) * plan_.micro_batches_ + action.micro_batch] =
            take(skip, end);
      }
    }
  }

  const std::span<const Action> actions_;
  const std::uint32_t rank_;
  const std::vector<Skip>& skips_;
  const std::vector<SkipArrival>& arrivals_;
  const std::uint64_t header_bytes_;
  SkipPlan& plan_;
  std::vector<std::size_t> ends_;                       // by stage and micro-batch
  std::multimap<std::size_t, std::uint64_t> ending_{};  // places by action
  FirstFit places_{};
};

SkipPlan::SkipPlan(const pipeline::Schedule& schedule, std::uint32_t rank,
                   const std::vector<Skip>& skips, const std::vector<SkipArrival>& arrivals,
                   std::uint64_t header_bytes)
    : micro_batches_(schedule.micro_batches) {
  std::size_t readers = 0, takers = 0;
  for (const Skip& skip : skips) {
    first_reader_.push_back(readers);
    first_taker_.push_back(takers);
    readers += skip.readers.size();
    takers += skip.takers.size();
  }
  sent_.resize(takers * micro_batches_);
  values_.resize(skips.size() * micro_batches_);
  gradients_.resize(readers * micro_batches_);
  Walker(schedule, rank, skips, arrivals, header_bytes, this).run();
}

}  // namespace trireme::parallel
