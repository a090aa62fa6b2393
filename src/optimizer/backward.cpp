// Optimizer: update in backward, bucket by bucket as their gradients are reduced.
#include <utility>

#include "optimizer/optimizer.hpp"
#include "optimizer/rules/user.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::Bucket;

// `reduced` is the whole bucket with data_parallel, else this rank's block of it.
Status Optimizer::update_bucket(std::uint64_t number, char* reduced) {
  const Bucket& bucket = shard_.layout().buckets[number];
  TRIREME_FAILPOINT("bucket", "before_update");
  shard_.gradients().hook().after(number, reduced);
  // All ranks learn of it in the step.
  if (shard_.gradients().hook().answer().answer != 0 || answer_.answer != 0)
    return Status::success();
  norms_.clip_values(bucket, reduced);
  const sharding::Range pieces = state_.pieces_of(number, reduced);
  TRIREME_RETURN_IF_ERROR(shard_.report_disk(shard_.expect_groups(bucket.groups)));
  const StepFactors factors = {steps_ + 1, parameter_steps_.steps_of, parameter_steps_.skipped};
  TRIREME_RETURN_IF_ERROR(rule_->update_pieces(pieces, factors, &answer_));
  return shard_.report_disk(shard_.close_window());
}

// Updates the remaining buckets, and compares the outcomes of all ranks.
Status Optimizer::finish_updates() {
  Reducer& reducer = shard_.gradients();
  TRIREME_RETURN_IF_ERROR(reducer.finish_updates());
  TRIREME_FAILPOINT("step", "after_reductions");
  if (shard_.options().bucket_hook != nullptr) {
    const HookAnswer& hook = reducer.hook().answer();
    TRIREME_RETURN_IF_ERROR(
        compare_answers(shard_, hook.answer, hook.bucket, "bucket hook", "bucket"));
  }
  const Status& verdict = reducer.agreement().verdict();
  if (!verdict.ok()) {
    // The ranks that have discarded the step receive the failure, too.
    shard_.fail_groups(verdict.code(), verdict.message());
    return Status(verdict);
  }
  // This is needed without a rule of the caller, too: no rank may take a step for made that another
  // one has discarded.
  return compare_answers(shard_, std::exchange(answer_.answer, 0), answer_.parameter, "update rule",
                         "parameter");
}

// For a rank that discards a step which the others may make: the exchange of finish_updates().
void Optimizer::tell_discarded(const HookAnswer& hook) {
  Status told = Status::success();
  if (shard_.options().bucket_hook != nullptr) {
    told = compare_answers(shard_, hook.answer, hook.bucket, "bucket hook", "bucket");
  }
  if (told.ok())
    told = compare_answers(shard_, kDiscarded, sharding::kNone, "update rule", "parameter");
}

}  // namespace trireme::strategies
