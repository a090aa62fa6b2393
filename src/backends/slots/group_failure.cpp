#include "backends/slots/group_failure.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/last_calls.hpp"
#include "platform/utf8.hpp"

namespace trireme::local {
namespace {

template <std::size_t N>
void put_text(char (&field)[N], const std::string& text) {
  const std::size_t length = whole_characters(text, N - 1);
  std::memcpy(field, text.data(), length);
  std::memset(field + length, 0, N - length);
}

// A peer fills the field: it may lack its final 0.
template <std::size_t N>
std::string take_text(const char (&field)[N]) {
  return clean_text({field, strnlen(field, N - 1)});
}

FailureRecord to_record(const Status& status, const std::string& text, int world_size) {
  FailureRecord record{};
  record.code = status.code() == TRIREME_OK ? TRIREME_ERROR_INTERNAL : status.code();
  put_text(record.text, text);
  if (const FailureDetails* const details = status.details()) {
    record.system_error = details->system_error;
    record.sequence = details->sequence;
    put_text(record.operation, details->operation);
    for (const std::int32_t rank : details->blamed) {
      if (rank < 0 || rank >= world_size) continue;
      record.blamed[rank / 64] |= 1ull << (rank % 64);
    }
  }
  return record;
}

}  // namespace

void GroupFailure::attach(const Segment& segment) {
  segment_.store(&segment, std::memory_order_seq_cst);
  bool recorded = false;
  {
    const std::lock_guard lock(mutex_);
    recorded = recorded_;
    if (recorded) segment.record(seat_.rank()) = own_record_;
  }
  if (recorded) {
    std::uint32_t none = 0;
    segment.header().first_failure.compare_exchange_strong(
        none, static_cast<std::uint32_t>(seat_.rank()) + 1, std::memory_order_seq_cst);
  }
}

// Adds the last calls of ranks that did not come or are lost, because readers ask for them next.
std::string GroupFailure::with_last_calls(const Status& status) const {
  const FailureDetails* const details = status.details();
  const bool missing =
      status.code() == TRIREME_ERROR_TIMEOUT || status.code() == TRIREME_ERROR_PEER_LOST;
  if (details == nullptr || !missing) return status.message();
  const std::string calls = describe_last_calls(presence_.last_calls(), details->blamed);
  if (status.message().find(calls) != std::string::npos) return status.message();  // told already
  return status.message() + " (" + calls + ")";
}

void GroupFailure::tell(const Status& status) noexcept {
  try {
    const Status told = blame_.judge(status);
    tell(to_record(told, with_last_calls(told), seat_.world_size()));
  } catch (...) {  // no memory for the last calls
    tell(to_record(status, status.message(), seat_.world_size()));
  }
}

void GroupFailure::tell(const FailureRecord& record) noexcept {
  try {
    std::function<void()> listener;
    {
      const std::lock_guard lock(mutex_);
      if (recorded_) return;
      own_record_ = record;
      recorded_ = true;
      const Segment* const shared = segment_.load(std::memory_order_acquire);
      if (shared != nullptr) {
        shared->record(seat_.rank()) = own_record_;
        std::uint32_t none = 0;
        shared->header().first_failure.compare_exchange_strong(
            none, static_cast<std::uint32_t>(seat_.rank()) + 1, std::memory_order_seq_cst);
      }
      // Under the lock: a thread that sees the recorded failure also finds the group failed.
      here_.store(true, std::memory_order_seq_cst);
      listener = listener_;  // last: it may find no memory
    }
    bells_.wake_everybody();
    if (listener) listener();
    tell_end();
  } catch (...) {  // a mutex or memory: the flag alone still ends every wait of this rank
    here_.store(true, std::memory_order_seq_cst);
    bells_.wake_everybody();
  }
}

Status GroupFailure::status_for(Reader reader, const char* operation,
                                std::uint64_t sequence) const {
  if (!happened()) return Status::success();
  FailureRecord record;
  std::unique_lock lock(mutex_);
  const Segment* const shared = segment_.load(std::memory_order_acquire);
  const std::uint32_t first =
      shared == nullptr ? 0 : shared->header().first_failure.load(std::memory_order_acquire);
  if (first > 0 && first <= static_cast<std::uint32_t>(seat_.world_size())) {
    record = shared->record(static_cast<int>(first) - 1);
  } else if (recorded_) {
    record = own_record_;
  } else {
    return Status::failure(TRIREME_ERROR_CORRUPT,
                           "the failure record of \"" + seat_.name() + "\" names no rank");
  }
  if (met_by_.empty() && operation != nullptr) {
    met_by_ = operation;
    met_at_ = sequence;
  }
  FailureDetails details;
  details.communicator = seat_.name();
  details.system_error = record.system_error;
  details.operation = take_text(record.operation);
  details.sequence = record.sequence;
  if (details.operation.empty()) {
    details.operation = met_by_;
    details.sequence = met_at_;
  }
  for (int rank = 0; rank < seat_.world_size(); ++rank) {
    if ((record.blamed[rank / 64] >> (rank % 64) & 1) != 0) details.blamed.push_back(rank);
  }
  std::string text = take_text(record.text);
  const bool own =
      reader == Reader::this_rank &&
      std::find(details.blamed.begin(), details.blamed.end(), seat_.rank()) != details.blamed.end();
  if (own && text.find("this rank") == std::string::npos &&
      text.find("this one") == std::string::npos) {
    text += " (rank " + std::to_string(seat_.rank()) + " is this rank)";
  }
  if (!details.operation.empty()) {
    text += " during " + details.operation;
    if (details.sequence != 0) text += ", sequence " + std::to_string(details.sequence);
    text += " of \"" + seat_.name() + "\"";
  } else {
    text += " in \"" + seat_.name() + "\"";
  }
  const bool known = record.code < 0 && record.code >= kLowestStatus;
  const bool heard = recorded_;
  lock.unlock();
  // This rank may see a peer's failure in the segment before that peer tells the others, and
  // perhaps it never can: so each rank that sees it passes it on.
  if (!heard) const_cast<GroupFailure*>(this)->tell(record);
  return Status::failure(known ? record.code : TRIREME_ERROR_CORRUPT, std::move(text))
      .with_details(std::move(details));
}

void GroupFailure::on_record(std::function<void()> listener) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
}

void GroupFailure::on_end(std::shared_ptr<const EndListener> listener) {
  bool recorded = false;
  {
    const std::lock_guard lock(mutex_);
    end_listener_ = std::move(listener);
    recorded = recorded_;
  }
  if (recorded) tell_end();
}

void GroupFailure::tell_end() const noexcept {
  try {
    std::shared_ptr<const EndListener> listener;
    {
      const std::lock_guard lock(mutex_);
      listener = end_listener_;
    }
    if (listener != nullptr) (*listener)(shared_status());
  } catch (...) {  // no memory to report it: the deadlines still hold
  }
}

FailureRecord GroupFailure::own_record() const {
  const std::lock_guard lock(mutex_);
  return own_record_;
}

}  // namespace trireme::local
