#include "parallel/executor/outcome.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "platform/failpoint.hpp"
#include "platform/utf8.hpp"

namespace trireme::parallel {

// One rank's words. Peers may write to this memory, so nothing in it is trusted.
struct PipelineOutcome::Words {
  std::int64_t code = 0;
  std::int64_t system_error = 0;
  std::int64_t stop = 0;
  std::int64_t stopped = 0;
  double loss = 0;
  std::int64_t length = 0;
  char text[720] = {};
};

std::uint64_t PipelineOutcome::planned_bytes() const {
  return std::uint64_t{link_.world_size()} * sizeof(Words);
}

Status PipelineOutcome::allocate() {
  return link_.communicator->allocate(planned_bytes(), &memory_);
}

PipelineOutcome::Words* PipelineOutcome::words_of(std::uint32_t rank) const {
  return static_cast<Words*>(memory_->data()) + rank;
}

Status PipelineOutcome::run(std::uint64_t agreement, const Told& told) {
  Words said;
  said.stop = told.stop ? 1 : 0;
  said.stopped = told.stopped ? 1 : 0;
  said.loss = told.loss;
  if (told.failure != nullptr && !told.failure->ok()) {
    const std::string text = told.failure->message();
    const std::size_t length = whole_characters(text, sizeof said.text);
    said.code = told.failure->code();
    said.length = static_cast<std::int64_t>(length);
    if (const FailureDetails* const details = told.failure->details(); details != nullptr) {
      said.system_error = details->system_error;
    }
    std::memcpy(said.text, text.data(), length);
  }
  std::memcpy(words_of(link_.rank()), &said, sizeof said);
  static_assert(sizeof(Words) % sizeof(std::int64_t) == 0);
  Operation operation =
      strategies::in_place(link_, link_.gathers, OperationKind::all_gather, TRIREME_DTYPE_I64,
                           memory_->data(), sizeof(Words) / sizeof(std::int64_t), memory_);
  operation.agreement = agreement;
  operation.agreement_name = "step counts, or trainer calls (step, evaluate)";
  TRIREME_FAILPOINT("pipeline", "before_outcome");
  TRIREME_RETURN_IF_ERROR(link_.run(std::move(operation)));
  TRIREME_FAILPOINT("pipeline", "after_outcome");
  return Status::success();
}

Status PipelineOutcome::failure() const {
  bool stopped = false;
  for (std::uint32_t rank = 0; rank < link_.world_size(); ++rank) {
    Words told;
    std::memcpy(&told, words_of(rank), sizeof told);
    stopped = stopped || told.stopped != 0;
    if (told.code == TRIREME_OK) continue;
    const bool known = told.code < 0 && told.code >= TRIREME_ERROR_INTERNAL;
    const std::int64_t length =
        std::clamp<std::int64_t>(told.length, 0, static_cast<std::int64_t>(sizeof told.text));
    FailureDetails details;
    details.blamed.push_back(static_cast<std::int32_t>(rank));
    details.system_error = static_cast<int>(told.system_error);
    details.communicator = link_.communicator->name();
    return Status::failure(known ? static_cast<trireme_status>(told.code) : TRIREME_ERROR_CORRUPT,
                           "rank " + std::to_string(rank) + " of the pipeline: " +
                               clean_text(std::string(told.text, static_cast<std::size_t>(length))))
        .with_details(std::move(details));
  }
  if (!stopped) return Status::success();
  return Status::failure(TRIREME_ERROR_INTERNAL,
                         "a message of the pipeline said that its sender failed, and no rank did");
}

bool PipelineOutcome::anyone_stops() const {
  for (std::uint32_t rank = 0; rank < link_.world_size(); ++rank) {
    if (words_of(rank)->stop != 0) return true;
  }
  return false;
}

double PipelineOutcome::loss() const { return words_of(last_rank_)->loss; }

}  // namespace trireme::parallel
