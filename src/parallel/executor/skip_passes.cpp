#include "parallel/executor/skip_passes.hpp"

#include <algorithm>
#include <cstring>

#include "parallel/executor/plan.hpp"
#include "platform/failpoint.hpp"
#include "trainer/local_reads.hpp"

namespace trireme::parallel {

using strategies::Extent;

Status SkipPasses::meet(const strategies::Link& link, const strategies::LayerTable& layers,
                        const Shape& shape, Lanes* lanes) {
  TRIREME_RETURN_IF_ERROR(find_skips(link, layers, shape.schedule, shape.cuts, &skips_));
  rank_ = link.rank();
  micro_batches_ = shape.schedule.micro_batches;
  header_bytes_ = shape.one_memory ? 0 : kHeaderBytes;
  for (Skip& skip : skips_) {
    for (Skip::Taker& taker : skip.takers) taker.lane = lanes->add({skip.rank, taker.rank});
    for (Skip::Reader& reader : skip.readers) {
      if (reader.rank != skip.rank) reader.lane = lanes->add({reader.rank, skip.rank});
    }
  }
  arrivals_ = find_arrivals(shape.schedule, rank_, skips_, !shape.one_memory);
  plan_ = SkipPlan(shape.schedule, rank_, skips_, arrivals_, header_bytes_);
  extents_.resize(skips_.size() * micro_batches_);
  own_.assign(layers.size(), kNoSkip);
  reads_.resize(layers.size());
  std::size_t most = 0;
  for (std::uint64_t i = 0; i < layers.size(); ++i) {
    for (std::size_t s = 0; s < skips_.size(); ++s) {
      if (skips_[s].layer == layers[i].number) own_[i] = s;
    }
    for (const std::uint64_t read : layers[i].reads) {
      std::size_t s = 0, r = 0;
      while (skips_[s].layer != read) ++s;
      while (skips_[s].readers[r].layer != layers[i].number) ++r;
      reads_[i].push_back({s, r});
    }
    most = std::max(most, reads_[i].size());
  }
  told_.allocate(most);
  return Status::success();
}

StageMessage SkipPasses::message_of(const Skip& skip, StageDirection direction,
                                    std::uint64_t reader, std::uint32_t lane,
                                    std::uint32_t micro_batch) const {
  StageMessage message;
  message.direction = direction;
  message.trains = trains_;
  message.step = step_;
  message.stage = static_cast<std::uint32_t>(skip.layer);
  message.micro_batch = micro_batch;
  message.bytes = skip.bytes;
  message.lane = lane;
  message.skips = true;
  message.reader = static_cast<std::uint32_t>(reader);
  return message;
}

// Waits until no message is read from the place.
Status SkipPasses::claim(std::size_t skip, const char* place) {
  return links_.claim(place - header_bytes_, header_bytes_ + skips_[skip].bytes);
}

Status SkipPasses::receive(std::size_t before, bool* failed) {
  for (; next_arrival_ < arrivals_.size(); ++next_arrival_) {
    const SkipArrival& arrival = arrivals_[next_arrival_];
    if (arrival.action > before) break;
    const bool forward = arrival.direction == StageDirection::forward;
    if (arrival.micro_batch >= present_ || !(forward || trains_)) continue;
    TRIREME_FAILPOINT("pipeline", "before_skip");
    const std::size_t i = arrival.skip;
    const Skip& skip = skips_[i];
    char* const place =
        forward ? value(i, arrival.micro_batch) : gradient_of(i, arrival.way, arrival.micro_batch);
    TRIREME_RETURN_IF_ERROR(claim(i, place));
    StageNews news;
    if (!forward) news.extent = extent(i, arrival.micro_batch);
    const std::uint64_t reader =
        forward ? skip.takers[arrival.way].layer : skip.readers[arrival.way].layer;
    const std::uint32_t lane =
        forward ? skip.takers[arrival.way].lane : skip.readers[arrival.way].lane;
    TRIREME_RETURN_IF_ERROR(
        links_.receive(message_of(skip, arrival.direction, reader, lane, arrival.micro_batch),
                       place, forward ? skip.rank : skip.readers[arrival.way].rank, &news));
    if (forward) extent(i, arrival.micro_batch) = news.extent;
    *failed = *failed || news.failed;
  }
  return Status::success();
}

Status SkipPasses::send_values(std::uint32_t stage, std::uint32_t micro_batch, bool failed) {
  for (std::size_t i = 0; i < skips_.size(); ++i) {
    if (skips_[i].rank != rank_ || skips_[i].stage != stage) continue;
    for (std::size_t t = 0; t < skips_[i].takers.size(); ++t) {
      const Skip::Taker& taker = skips_[i].takers[t];
      char* const place = memory_ + plan_.sent(i, t, micro_batch);
      TRIREME_RETURN_IF_ERROR(claim(i, place));
      TRIREME_FAILPOINT("pipeline", "before_skip");
      TRIREME_RETURN_IF_ERROR(links_.send(
          message_of(skips_[i], StageDirection::forward, taker.layer, taker.lane, micro_batch),
          {failed, false, extent(i, micro_batch)}, place, taker.rank));
    }
  }
  return Status::success();
}

Status SkipPasses::send_gradients(std::uint32_t stage, std::uint32_t micro_batch, bool failed) {
  for (std::size_t i = 0; i < skips_.size(); ++i) {
    if (skips_[i].rank == rank_) continue;
    for (std::size_t r = 0; r < skips_[i].readers.size(); ++r) {
      const Skip::Reader& reader = skips_[i].readers[r];
      if (reader.rank != rank_ || reader.stage != stage) continue;
      TRIREME_FAILPOINT("pipeline", "before_skip");
      TRIREME_RETURN_IF_ERROR(links_.send(
          message_of(skips_[i], StageDirection::backward, reader.layer, reader.lane, micro_batch),
          {failed, false, extent(i, micro_batch)}, gradient_of(i, r, micro_batch), skips_[i].rank));
    }
  }
  return Status::success();
}

Status SkipPasses::keep(const trireme_layer_call& call, const Extent& said) {
  const std::size_t skip = own_[call.layer];
  if (skip == kNoSkip) return Status::success();
  extent(skip, call.micro_batch) = said;
  std::vector<char*> places;
  const std::vector<Skip::Reader>& readers = skips_[skip].readers;
  if (std::any_of(readers.begin(), readers.end(),
                  [this](const Skip::Reader& reader) { return reader.rank == rank_; })) {
    places.push_back(value(skip, call.micro_batch));
  }
  for (std::size_t t = 0; t < skips_[skip].takers.size(); ++t) {
    places.push_back(memory_ + plan_.sent(skip, t, call.micro_batch));
  }
  for (char* const place : places) {
    TRIREME_RETURN_IF_ERROR(claim(skip, place));
    if (said.used > 0) std::memcpy(place, call.output, said.used);
  }
  return Status::success();
}

void SkipPasses::tell(trireme_layer_call* call, bool for_input) {
  told_.begin(call);
  for (const Read& read : reads_[call->layer]) {
    told_.add({value(read.skip, call->micro_batch), skips_[read.skip].bytes,
               &extent(read.skip, call->micro_batch),
               for_input ? gradient_of(read.skip, read.reader, call->micro_batch) : nullptr});
  }
}

// In the order of backward: the last reader comes first, and the next layer last.
void SkipPasses::add_gradients(trireme_layer_call* call, bool for_input,
                               const strategies::GapSearch& gaps) const {
  const std::size_t skip = own_[call->layer];
  if (skip == kNoSkip || call->output_gradient == nullptr) return;
  char* const sum = gradient_of(skip, 0, call->micro_batch);
  if (for_input) {
    std::vector<const void*> sources;
    for (std::size_t r = 0; r < skips_[skip].readers.size(); ++r) {
      sources.push_back(gradient_of(skip, r, call->micro_batch));
    }
    strategies::sum_gradients(*call, skips_[skip].dtype, gaps, &sources, sum);
  }
  call->output_gradient = sum;
}

}  // namespace trireme::parallel
