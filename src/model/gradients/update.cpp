// Update in backward: a bucket is updated as soon as it is reduced, and its place is free again.
//
// When that may be. A reduction is over on this rank only when all ranks have come to it, so all have
// handed in their gradients of the bucket (in the last pass of the step, where there are several): by
// the contract nobody reads its parameters any more before the step ends, whether ranks share them or
// not. Frozen neighbours in its units may still be read, and gathered, which is why a bucket waits for
// the gathers under way here: a later one reads this rank's shard only when this rank has come to it.
// Where the caller keeps a unit gathered the bucket waits, too. At the step nobody reads.
//
// Whether that may be. Before their first bucket of the last pass the ranks tell each other their
// learning rates and whether they go on. That operation comes before all those buckets on the
// channel, so it is over before any of them could be updated: all ranks update in this step or none does.
#include <cstring>
#include <string>
#include <utility>

#include "model/gradients/reducer.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

namespace {

// What each rank tells: 32 bytes of the exchange.
struct Told {
  std::uint64_t goes_on;
  std::uint64_t rates;
  double rate;
  std::uint64_t reserved;
};

}  // namespace

Status Reducer::ask_to_update() {
  if (asked_ != nullptr) return Status::success();
  auto* const all = reinterpret_cast<Told*>(storage_->working.data());
  Told* const own = all + link_.rank();
  *own = {has_rate_ && !refuses_ ? std::uint64_t{1} : 0, rates_, rate_, 0};
  Operation operation;
  operation.channel = link_.reductions;
  operation.kind = OperationKind::all_gather;
  operation.dtype = TRIREME_DTYPE_U64;
  operation.send = own;
  operation.receive = all;
  operation.count = sizeof(Told) / sizeof(std::uint64_t);
  operation.owner = storage_->hold();
  TRIREME_FAILPOINT("bucket", "before_ask");
  return link_.communicator->start(std::move(operation), link_.deadline(), &asked_);
}

Status Reducer::look_at_answers() {
  if (answer_ != Answer::unknown) return Status::success();
  TRIREME_RETURN_IF_ERROR(link_.wait(*asked_));
  const auto* const all = reinterpret_cast<const Told*>(storage_->working.data());
  answer_ = Answer::yes;
  FailureDetails details;
  details.communicator = link_.communicator->name();
  const auto refuse = [&](std::uint32_t rank, const std::string& why) {
    answer_ = Answer::no;
    details.blamed = {static_cast<std::int32_t>(rank)};
    verdict_ = Status::failure(TRIREME_ERROR_MISMATCH, why).with_details(std::move(details));
  };
  for (std::uint32_t rank = 0; rank < link_.world_size(); ++rank) {
    if (all[rank].goes_on != 0) continue;
    refuse(rank, "rank " + std::to_string(rank) +
                     " has failed in this step or discarded it, and others have not");
    return Status::success();
  }
  for (std::uint32_t rank = 1; rank < link_.world_size(); ++rank) {
    if (all[rank].rates == all[0].rates) continue;
    const std::string who = std::to_string(rank);
    if (std::memcmp(&all[rank].rate, &all[0].rate, sizeof(double)) == 0) {
      refuse(rank,
             "the learning rate of a group of parameters differs between rank 0 and rank " + who);
    } else {
      refuse(rank, "learning rate is " + text_of(all[0].rate) + " on rank 0 and " +
                       text_of(all[rank].rate) + " on rank " + who);
    }
    return Status::success();
  }
  return Status::success();
}

// What is reduced by now.
Status Reducer::update_done() {
  if (!updates()) return Status::success();
  while (!in_flight_.empty() && in_flight_.front().request->done()) {
    TRIREME_RETURN_IF_ERROR(wait_oldest());
  }
  return update_reduced(false);
}

Status Reducer::update_reduced(bool late) {
  if (reduced_.empty()) return Status::success();
  TRIREME_RETURN_IF_ERROR(look_at_answers());
  Status status = Status::success();
  std::size_t kept = 0;
  for (const std::uint64_t number : reduced_) {
    const sharding::Bucket& bucket = layout_.buckets[number];
    bool done = discards_ || answer_ == Answer::no;
    if (!done && status.ok()) {
      status = settings_.update(
          number, layout_.spread.whole_state() ? reduced(bucket) : reduced_block(bucket), late,
          &done);
    }
    if (done) {
      free_slot(number);
    } else {
      reduced_[kept++] = number;
    }
  }
  reduced_.resize(kept);
  return status;
}

Status Reducer::finish_updates() {
  Status first = reproducible() ? launch_absent() : Status::success();
  if (first.ok()) first = ask_to_update();
  while (!in_flight_.empty()) {
    Status status = wait_oldest();
    if (status.ok() && first.ok()) status = update_reduced(true);
    if (first.ok()) first = std::move(status);
  }
  TRIREME_RETURN_IF_ERROR(std::move(first));
  TRIREME_RETURN_IF_ERROR(update_reduced(true));
  return look_at_answers();
}

}  // namespace trireme::strategies
