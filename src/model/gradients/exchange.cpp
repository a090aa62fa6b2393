#include "model/gradients/exchange.hpp"

#include <utility>

#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "sharding/plan.hpp"

namespace trireme::strategies {

using sharding::Bucket;

namespace {

using When = ExchangeWay::When;

// The first row that fits.
struct WayRow {
  bool (*fits)(const sharding::Spread& spread);
  ExchangeWay way;
};
constexpr WayRow kWays[] = {
    {[](const sharding::Spread& spread) { return spread.leaves > 0; },
     {When::each_leaf, SinkKind::leaf_tree}},
    {[](const sharding::Spread& spread) { return spread.whole_gradients(); },
     {When::last_pass, SinkKind::in_place}},
    {[](const sharding::Spread& spread) { return spread.update_in_backward; },
     {When::each_pass, SinkKind::in_place}},
    {[](const sharding::Spread&) { return true; }, {When::each_pass, SinkKind::shard}},
};

// From this size on, an all-reduce moves fewer bytes than a reduction to blocks and their gather.
// Every rank reads smaller ones whole.
constexpr std::uint64_t kAtOnceBytes = 64u << 10;

}  // namespace

const ExchangeWay& way_of(const sharding::Spread& spread) {
  const WayRow* row = kWays;
  while (!row->fits(spread)) ++row;
  return row->way;
}

GradientExchange::GradientExchange(const sharding::Layout& layout, const StepPasses& passes,
                                   BucketMemory& memory, BucketUpdates& updates,
                                   OverflowWatch& overflow, Link& link,
                                   const std::shared_ptr<Storage>& storage, bool averages,
                                   bool uneven)
    : layout_(layout),
      passes_(passes),
      memory_(memory),
      updates_(updates),
      overflow_(overflow),
      link_(link),
      storage_(storage),
      way_(way_of(layout.spread)),
      sink_(way_.sink, layout, memory, averages, uneven),
      encoding_(encoding_of(layout.spread)),
      averages_(averages),
      uneven_(uneven) {}

// ---- memory of contributions ----

Status GradientExchange::place(std::uint64_t bucket, bool waits, char** out) {
  const bool whole = layout_.spread.whole_gradients();
  if (whole || memory_.contribution(bucket) == nullptr || memory_.is_read(bucket)) {
    // Peers may still read this rank's contribution of the leaf before.
    while (memory_.is_read(bucket)) TRIREME_RETURN_IF_ERROR(wait_oldest());
    if (whole) {
      memory_.place_in_gradients(bucket);
    } else {
      TRIREME_RETURN_IF_ERROR(find_place(bucket, waits));
    }
  }
  *out = memory_.contribution(bucket);
  return Status::success();
}

Status GradientExchange::find_place(std::uint64_t bucket, bool waits) {
  for (;;) {
    if (memory_.place_in_slot(bucket)) return Status::success();
    if (waits && launch_held_back_ != nullptr) TRIREME_RETURN_IF_ERROR(launch_held_back_());
    if (const std::size_t before = updates_.waiting(); before > 0) {
      TRIREME_RETURN_IF_ERROR(updates_.run(false));
      if (updates_.waiting() < before) continue;
    }
    if (in_flight_.empty() || (!waits && !in_flight_.front().request->done())) break;
    TRIREME_RETURN_IF_ERROR(wait_oldest());
  }
  // Gradients come in another order than buckets are launched, so no wait frees a slot; or this
  // rank may not wait.
  return memory_.place_in_extra(link_, bucket);
}

// ---- reductions ----

// data_parallel where peers write the sums into this rank's memory: it moves fewer bytes, with one
// barrier less, than a reduction to blocks and their gather. Both add in the order of ranks. An
// all-reduce over a transport may not, and every rank must contribute to one.
bool GradientExchange::reduces_at_once(const Bucket& bucket) const {
  return layout_.spread.whole_state() && !passes_.reproducible() && !uneven_ &&
         encoding_ == nullptr && bucket.elements * dtype_size(bucket.dtype) >= kAtOnceBytes &&
         link_.communicator->one_memory().is_there;
}

// A group of one rank, whose gradients lie in the place of their sum: a pass over them would only
// change the bits of NaN.
bool GradientExchange::is_reduced_as_handed_in() const {
  return link_.world_size() == 1 && way_.when == When::last_pass && !uneven_ &&
         encoding_ == nullptr;
}

Status GradientExchange::start(std::uint64_t number, const char* send, std::uint32_t pass,
                               bool waits) {
  if (is_reduced_as_handed_in()) {
    ++reductions_;
    return Status::success();
  }
  const Bucket& bucket = layout_.buckets[number];
  const bool last = passes_.is_last(pass);
  const bool updated_next = updates_.on() && last;
  if (updated_next) {
    TRIREME_RETURN_IF_ERROR(updates_.agreement().ask());
    // The result needs a place, even if this rank contributes nothing.
    if (memory_.reduced_in_slot() && memory_.contribution(number) == nullptr) {
      char* place_of_sum = nullptr;
      TRIREME_RETURN_IF_ERROR(place(number, waits, &place_of_sum));
    }
  }
  Operation operation;
  operation.channel = link_.reductions;
  operation.dtype = bucket.dtype;
  operation.send = send;
  operation.count = bucket.elements;
  const bool at_once = reduces_at_once(bucket);
  if (at_once) {
    operation.kind = OperationKind::all_reduce;
    operation.reduction = averages_ ? TRIREME_REDUCTION_AVERAGE : TRIREME_REDUCTION_SUM;
    operation.receive = memory_.contribution(number);
    // Only in a step that is discarded: its sums are not used.
    if (send == nullptr) operation.send = operation.receive;
  } else {
    operation.kind = OperationKind::fold;
    operation.counts = bucket.counts;
    operation.fold = sink_.fold(number, pass, last);
  }
  if (encoding_ != nullptr) {
    operation.dtype = encoding_->dtype;
    if (send != nullptr) operation.send = encode(number, send);
    operation.fold = encoding_->decoding(encoding_->dtype, std::move(operation.fold));
  }
  operation.agreement = std::uint64_t{pass} << 32 | number;
  operation.agreement_name = "micro-batch and bucket";
  operation.owner = memory_.hold(number);
  if (send != nullptr || at_once) {
    link_.given_bytes +=
        sharding::reduce_bytes(bucket.counts, link_.rank(), sharding::given_size(layout_, bucket));
  }
  if (at_once) {
    link_.given_bytes +=
        sharding::gather_bytes(bucket.counts, link_.rank(), dtype_size(bucket.dtype));
  }
  InFlight entry;
  entry.bucket = number;
  entry.last = last;
  TRIREME_FAILPOINT("bucket", "before_launch");
  TRIREME_RETURN_IF_ERROR(
      link_.communicator->start(std::move(operation), link_.deadline(), &entry.request));
  const bool reduced = way_.when != When::each_leaf || updated_next;
  if (layout_.spread.whole_state() && reduced && !at_once) {
    TRIREME_RETURN_IF_ERROR(start_gather(number, &entry.request));
  }
  add_in_flight(std::move(entry));
  ++reductions_;
  TRIREME_FAILPOINT("bucket", "after_launch");
  return Status::success();
}

const char* GradientExchange::encode(std::uint64_t number, const char* contribution) {
  char* const to = memory_.encoded(number);
  encoding_->encode(encoding_->dtype, layout_.buckets[number], contribution, to, overflow_);
  return to;
}

// data_parallel, unless it reduces at once: every rank gets every block.
Status GradientExchange::start_gather(std::uint64_t number, std::shared_ptr<Request>* out) {
  const Bucket& bucket = layout_.buckets[number];
  Operation operation;
  operation.channel = link_.reductions;
  operation.kind = OperationKind::all_gather_v;
  operation.dtype = bucket.dtype;
  operation.send = memory_.reduced_block(bucket);
  operation.receive = memory_.reduced(bucket);
  operation.count = bucket.elements;
  operation.counts = bucket.counts;
  operation.owner = memory_.hold(number);
  link_.given_bytes +=
      sharding::gather_bytes(bucket.counts, link_.rank(), dtype_size(bucket.dtype));
  return link_.communicator->start(std::move(operation), link_.deadline(), out);
}

// ---- waiting ----

void GradientExchange::add_in_flight(InFlight entry) {
  const std::uint64_t bucket = entry.bucket;
  in_flight_.push_back(std::move(entry));
  memory_.begin_reading(bucket);
}

Status GradientExchange::wait_oldest() {
  const InFlight oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  memory_.end_reading(oldest.bucket);
  Status status = link_.wait(*oldest.request);
  if (status.ok()) status = failpoint("bucket", "after_wait");
  const bool to_update = updates_.on() && oldest.last;
  if (to_update && status.ok()) updates_.add(oldest.bucket);
  if (!memory_.is_read(oldest.bucket) && !layout_.spread.whole_gradients() &&
      !(to_update && memory_.reduced_in_slot())) {
    memory_.release(oldest.bucket);
  }
  return status;
}

Status GradientExchange::wait_all() {
  Status first = Status::success();
  while (!in_flight_.empty()) {
    Status status = wait_oldest();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

Status GradientExchange::update_done() {
  if (!updates_.on()) return Status::success();
  while (!in_flight_.empty() && in_flight_.front().request->done()) {
    TRIREME_RETURN_IF_ERROR(wait_oldest());
  }
  return updates_.run(false);
}

Status GradientExchange::finish_updates(Status first) {
  if (first.ok()) first = updates_.agreement().ask();
  while (!in_flight_.empty()) {
    Status status = wait_oldest();
    if (status.ok() && first.ok()) status = updates_.run(true);
    if (first.ok()) first = std::move(status);
  }
  TRIREME_RETURN_IF_ERROR(std::move(first));
  TRIREME_RETURN_IF_ERROR(updates_.run(true));
  return updates_.agreement().look();
}

// ---- the end of the step ----

Status GradientExchange::finish(std::uint32_t contributors) {
  sink_.finish(contributors);
  if (way_.when != When::each_leaf || !layout_.spread.whole_state()) return Status::success();
  for (std::uint64_t number = 0; number < layout_.buckets.size(); ++number) {
    InFlight entry;
    entry.bucket = number;
    TRIREME_RETURN_IF_ERROR(start_gather(number, &entry.request));
    add_in_flight(std::move(entry));
  }
  return wait_all();
}

Status GradientExchange::reduce_all(const std::function<Fold(std::uint64_t bucket)>& sink_of) {
  for (std::uint64_t number = 0; number < layout_.buckets.size(); ++number) {
    const Bucket& bucket = layout_.buckets[number];
    Operation operation;
    operation.channel = link_.reductions;
    operation.kind = OperationKind::fold;
    operation.dtype = bucket.dtype;
    operation.send = storage_->gradients.data() + bucket.whole_offset;
    operation.count = bucket.elements;
    operation.counts = bucket.counts;
    operation.fold = sink_of(number);
    operation.agreement = number;
    operation.agreement_name = "bucket";
    operation.owner = storage_->hold();
    link_.given_bytes +=
        sharding::reduce_bytes(bucket.counts, link_.rank(), dtype_size(bucket.dtype));
    TRIREME_FAILPOINT("bucket", "before_sweep");
    TRIREME_RETURN_IF_ERROR(link_.run(std::move(operation)));
    ++reductions_;
  }
  return Status::success();
}

}  // namespace trireme::strategies
