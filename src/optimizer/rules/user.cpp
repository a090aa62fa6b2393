#include "optimizer/rules/user.hpp"

#include <string>
#include <utility>

#include "platform/failpoint.hpp"

namespace trireme::strategies {

Status UserRule::update(const StepFactors& factors) {
  RuleAnswer answer;
  TRIREME_RETURN_IF_ERROR(update_all(factors, &answer));
  return compare_answers(shard_, answer.answer, answer.parameter, "update rule", "parameter");
}

Status compare_answers(ShardView& shard, std::int32_t answer, std::uint64_t number, const char* who,
                       const char* what) {
  std::int64_t* const answers = shard.told_words();
  std::int64_t* const own = answers + 2 * std::size_t{shard.link().rank()};
  own[0] = answer;
  own[1] = static_cast<std::int64_t>(number);
  Operation operation = in_place(shard.link(), shard.link().reductions, OperationKind::all_gather,
                                 TRIREME_DTYPE_I64, answers, 2, shard.storage()->hold());
  TRIREME_FAILPOINT("step", "before_answers");
  TRIREME_RETURN_IF_ERROR(shard.link().run(std::move(operation)));
  for (std::uint32_t rank = 0; rank < shard.link().world_size(); ++rank) {
    const std::int64_t other = answers[2 * std::size_t{rank}];
    if (other == 0) continue;
    const auto at = static_cast<std::uint64_t>(answers[2 * std::size_t{rank} + 1]);
    FailureDetails details;
    details.communicator = shard.link().communicator->name();
    details.blamed = {static_cast<std::int32_t>(rank)};
    if (at == sharding::kNone) {
      return Status::failure(TRIREME_ERROR_MISMATCH, "rank " + std::to_string(rank) +
                                                         " has discarded the step, and others have "
                                                         "made it")
          .with_details(std::move(details));
    }
    return Status::failure(TRIREME_ERROR_CALLBACK, std::string("the ") + who + " of rank " +
                                                       std::to_string(rank) + " answered " +
                                                       std::to_string(other) + " for " + what +
                                                       " " + std::to_string(at))
        .with_details(std::move(details));
  }
  return Status::success();
}

}  // namespace trireme::strategies
