// GradientExchange: brings a bucket from this rank's contribution to the reduced gradients.
//
// A row of the table in exchange.cpp tells when contributions go out, and the place of their sums.
// An Encoding tells the form in which they travel.
//
// A rank waits only for reductions that it has started itself. All ranks start them in one order,
// so the rank that has started fewest never waits for another one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "exchange/storage.hpp"
#include "model/gradients/bucket_memory.hpp"
#include "model/gradients/bucket_updates.hpp"
#include "model/gradients/encoding.hpp"
#include "model/gradients/overflow.hpp"
#include "model/gradients/passes.hpp"
#include "model/gradients/sink.hpp"
#include "sharding/layout.hpp"

namespace trireme::strategies {

struct ExchangeWay {
  // A rank gives the contribution of each pass; the sum of its passes, in the last one; or each
  // leaf on its own.
  enum class When { each_pass, last_pass, each_leaf };

  When when;
  SinkKind sink;
};

const ExchangeWay& way_of(const sharding::Spread& spread);

class GradientExchange {
 public:
  GradientExchange(const sharding::Layout& layout, const StepPasses& passes, BucketMemory& memory,
                   BucketUpdates& updates, OverflowWatch& overflow, Link& link,
                   const std::shared_ptr<Storage>& storage, bool averages, bool uneven);

  // ---- when ----
  // `launch` starts the buckets that wait for a sum along an axis, and waits for that.
  void set_held_back(std::function<Status()> launch) { launch_held_back_ = std::move(launch); }
  // From now on gradients stay on this rank until reduce_all().
  void keep_until_step(bool keep) { kept_until_step_ = keep; }
  bool kept_until_step() const { return kept_until_step_; }
  // Whether contributions of the pass under way go out.
  bool sends() const {
    return !kept_until_step_ && !(way_.when == ExchangeWay::When::last_pass && passes_.no_sync());
  }
  // Whether the pass under way adds to those before it on this rank.
  bool adds() const { return way_.when == ExchangeWay::When::last_pass && passes_.present() > 0; }
  // Whether a reduction of the present pass needs no memory here if this rank contributes nothing.
  bool needs_no_place() const {
    return way_.when == ExchangeWay::When::each_pass && passes_.made() == 0;
  }

  // ---- a bucket ----
  // Memory for this rank's contribution that no reduction reads any more. `waits`: where no planned
  // memory is free, this rank may wait for reductions.
  Status place(std::uint64_t bucket, bool waits, char** out);
  // `send` is null if this rank contributes nothing.
  Status start(std::uint64_t bucket, const char* send, std::uint32_t pass, bool waits);

  // ---- the end ----
  Status wait_all();
  // Updates the buckets that are reduced by now.
  Status update_done();
  // Waits for all started reductions, and updates their buckets if `first`, the outcome so far, is
  // a success.
  Status finish_updates(Status first);
  // After wait_all(): every gradient that this rank holds becomes the reduced one. `contributors`:
  // the sum of StepPasses::contributed() over all ranks; even inputs do not need it.
  Status finish(std::uint32_t contributors);
  // Reduces the kept gradients, bucket by bucket. sink_of(bucket) gets the ranks' gradients of this
  // rank's block; they must not change before it is over.
  Status reduce_all(const std::function<Fold(std::uint64_t bucket)>& sink_of);

  bool averages() const { return averages_; }
  std::uint64_t reductions() const { return reductions_; }

 private:
  struct InFlight {
    std::uint64_t bucket = 0;
    bool last = false;  // of its step
    std::shared_ptr<Request> request;
  };

  bool reduces_at_once(const sharding::Bucket& bucket) const;
  bool is_reduced_as_handed_in() const;
  Status find_place(std::uint64_t bucket, bool waits);
  const char* encode(std::uint64_t bucket, const char* contribution);
  Status start_gather(std::uint64_t bucket, std::shared_ptr<Request>* out);
  void add_in_flight(InFlight entry);
  Status wait_oldest();

  const sharding::Layout& layout_;
  const StepPasses& passes_;
  BucketMemory& memory_;
  BucketUpdates& updates_;
  OverflowWatch& overflow_;
  Link& link_;
  const std::shared_ptr<Storage> storage_;
  const ExchangeWay way_;
  const GradientSink sink_;
  const Encoding* const encoding_;  // null: contributions travel as they are
  const bool averages_;
  const bool uneven_;
  bool kept_until_step_ = false;
  std::function<Status()> launch_held_back_;  // or null: none wait
  std::deque<InFlight> in_flight_;
  std::uint64_t reductions_ = 0;
};

}  // namespace trireme::strategies
