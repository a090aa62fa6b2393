#include "backends/slots/group.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "backends/last_calls.hpp"
#include "platform/death_word.hpp"
#include "platform/futex.hpp"
#include "platform/log.hpp"
#include "platform/utf8.hpp"

namespace trireme::local {
namespace {

// Longest sleep at one go: the caller's loop looks at the clock of the system table again, and among
// processes somebody may have died.
constexpr std::uint64_t kLongestSleep = 200'000'000;
constexpr std::uint64_t kLongestSleepAmongProcesses = 10'000'000;
constexpr std::uint64_t kLongestYielding = 2'000'000;

template <std::size_t N>
void put_text(char (&field)[N], const std::string& text) {
  const std::size_t length = whole_letters(text, N - 1);
  std::memcpy(field, text.data(), length);
  std::memset(field + length, 0, N - length);
}

// The field is a peer's: it may lack its final 0.
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

Group::Group(int rank, int world_size, std::string name, bool processes, std::uint64_t stall_ns)
    : rank_(rank),
      world_size_(world_size),
      name_(std::move(name)),
      processes_(processes),
      // With more ranks than CPUs a spinning rank only keeps its peers from running.
      spins_(world_size > available_cpus() ? 0 : 60),
      stall_ns_(stall_ns) {
  // Far from the count of the segment's bell, which activity() changes to when the segment comes.
  private_bell_.events.store(1u << 31, std::memory_order_relaxed);
}

void Group::attach(const Segment& segment, std::shared_ptr<void> owner) {
  attached_ = std::make_unique<Segment>(segment);
  owner_ = std::move(owner);
  segment_.store(attached_.get(), std::memory_order_seq_cst);
  for (int rank = 0; rank < world_size_; ++rank) {  // who was given up before the segment came
    if (given_up_here_[static_cast<unsigned>(rank)].load(std::memory_order_seq_cst)) give_up(rank);
  }
  // A failure from before the segment came is told in it, too.
  bool recorded = false;
  {
    const std::lock_guard lock(mutex_);
    recorded = recorded_;
    if (recorded) segment.record(rank_) = own_record_;
  }
  if (recorded) {
    std::uint32_t none = 0;
    segment.header().first_failure.compare_exchange_strong(
        none, static_cast<std::uint32_t>(rank_) + 1, std::memory_order_seq_cst);
  }
  wake_everybody();
}

bool Group::left(int rank) const {
  if (left_here_[static_cast<unsigned>(rank)].load(std::memory_order_acquire)) return true;
  const Segment* const shared = segment();
  return shared != nullptr && shared->member(rank).left.load(std::memory_order_acquire) != 0;
}

void Group::mark_joined() noexcept {
  segment()->member(rank_).joined.store(1, std::memory_order_release);
  wake_everybody();
}

void Group::mark_left(int rank) noexcept {
  left_here_[static_cast<unsigned>(rank)].store(true, std::memory_order_release);
  if (const Segment* const shared = segment()) {
    shared->member(rank).left.store(1, std::memory_order_release);
  }
  wake_everybody();
}

void Group::give_up(int rank) noexcept {
  given_up_here_[static_cast<unsigned>(rank)].store(true, std::memory_order_seq_cst);
  const Segment* const shared = segment();
  if (shared == nullptr) return;
  shared->member(rank).given_up.store(1, std::memory_order_release);
  ring(shared->header().decision_bell);
}

bool Group::counts_as_lost(int rank) const noexcept {
  const Segment* const shared = segment();
  if (left(rank) || lost(rank)) return true;
  if (shared->member(rank).given_up.load(std::memory_order_acquire) != 0) return true;
  const std::uint32_t first = shared->header().first_failure.load(std::memory_order_acquire);
  if (first == 0 || first > static_cast<std::uint32_t>(world_size_)) return false;
  const FailureRecord& record = shared->record(static_cast<int>(first) - 1);
  return (record.code == TRIREME_ERROR_TIMEOUT || record.code == TRIREME_ERROR_PEER_LOST) &&
         (record.blamed[rank / 64] >> (rank % 64) & 1) != 0;
}

std::vector<LastCalls> Group::last_calls() const {
  std::vector<LastCalls> all(static_cast<std::size_t>(world_size_));
  const Segment* const shared = segment();
  for (int rank = 0; rank < world_size_; ++rank) {
    LastCalls& calls = all[static_cast<std::size_t>(rank)];
    if (left(rank)) {
      calls.state = LastCalls::State::left;
    } else if (lost(rank)) {
      calls.state = LastCalls::State::lost;
    } else if (joined(rank)) {
      calls.state = LastCalls::State::joined;
    }
    calls.known = shared != nullptr && (sees_peers_ || rank == rank_);
    if (!calls.known) continue;
    const Member& member = shared->member(rank);
    const std::uint64_t call = member.last_call.load(std::memory_order_relaxed);
    calls.collective = static_cast<OperationKind>(call >> 56);
    calls.channel = static_cast<std::uint32_t>(call >> 48 & 0xff);
    const bool of_model = calls.channel >= kModelChannel;
    calls.model = of_model ? static_cast<std::uint32_t>(call >> 32 & 0xffff) : 0;
    calls.sequence = call & (of_model ? 0xffffffff : (1ull << 48) - 1);
    const std::uint64_t message = member.last_message.load(std::memory_order_relaxed);
    if (message == 0) continue;
    calls.message = static_cast<OperationKind>(message >> 56);
    calls.peer = static_cast<std::int32_t>(message >> 40 & 0xffff) - 1;
    calls.message_sequence = message & ((1ull << 40) - 1);
  }
  return all;
}

void Group::warn_slow(const std::vector<std::int32_t>& ranks, const char* what,
                      const char* operation, std::uint64_t sequence,
                      const Stall& stall) const noexcept {
  if (!log_wanted(TRIREME_LOG_WARNING)) return;
  try {
    std::string text = std::string(what) + operation;
    if (sequence != 0) text += ", sequence " + std::to_string(sequence) + ",";
    trireme::warn_slow(name_, rank_, last_calls(), ranks, text, stall.waited_ns());
  } catch (...) {  // no memory for a line: nothing is said
  }
}

void Group::warn_slow(int rank, const char* what, const char* operation, std::uint64_t sequence,
                      const Stall& stall) const noexcept {
  try {
    warn_slow(std::vector<std::int32_t>{rank}, what, operation, sequence, stall);
  } catch (...) {
  }
}

void Group::watch(std::uint32_t channel, Watched* watched) noexcept {
  const std::lock_guard lock(watch_mutex_);
  watched_[channel] = watched;
}

void Group::tell_of_latecomers() noexcept {
  for (std::uint32_t channel = 0; channel < kChannels; ++channel) {
    try {
      std::unique_lock lock(watch_mutex_);
      Watched* const watched = watched_[channel];
      if (watched == nullptr || !watched->stall.due(now_ns())) continue;
      const std::vector<std::int32_t> missing = watched->missing();
      const auto [operation, sequence, stall, unused] = *watched;
      lock.unlock();  // what hears the log may take its time
      if (!missing.empty()) warn_slow(missing, "not come to ", operation, sequence, stall);
    } catch (...) {  // no memory for a line: nothing is said
    }
  }
}

// What those who did not come, or are lost, did last is what everybody wants to know next.
std::string Group::with_last_calls(const Status& status) const {
  const FailureDetails* const details = status.details();
  const bool missing =
      status.code() == TRIREME_ERROR_TIMEOUT || status.code() == TRIREME_ERROR_PEER_LOST;
  if (details == nullptr || !missing) return status.message();
  const std::string calls = describe_last_calls(last_calls(), details->blamed);
  if (status.message().find(calls) != std::string::npos) return status.message();  // told already
  return status.message() + " (" + calls + ")";
}

// Who waits in vain for a rank may wait for one that waits itself.
Status Group::blamed_on_silent(const Status& status) const {
  const FailureDetails* const late = status.details();
  if (late == nullptr || status.code() != TRIREME_ERROR_TIMEOUT) return status;
  std::vector<std::int32_t> silent;
  {
    const std::lock_guard lock(silent_mutex_);
    if (silent_) silent = silent_();
  }
  if (silent.empty() || silent == late->blamed) return status;
  FailureDetails details = *late;
  details.blamed = silent;
  return Status::failure(TRIREME_ERROR_TIMEOUT, list_ranks(silent) +
                                                    " gave no sign of life when the deadline "
                                                    "passed; " +
                                                    status.message())
      .with_details(std::move(details));
}

// Every rank takes the same steps in a channel, so who has taken more than another one waits for it there.
std::vector<std::int32_t> Group::behind(std::uint32_t channel, int rank) const {
  const Segment& shared = *segment();
  const auto steps = [&](int of) {
    return shared.lane(channel, of).position.load(std::memory_order_acquire);
  };
  std::vector<std::int32_t> ranks;
  const std::uint64_t taken = steps(rank);
  for (int other = 0; taken > 0 && other < world_size_; ++other) {
    if (steps(other) < taken) ranks.push_back(other);
  }
  return ranks;
}

std::vector<std::int32_t> Group::awaited(std::uint32_t channel) const {
  if (segment() == nullptr) return {};
  return behind(channel, rank_);
}

// Whether that rank waits in any channel, and for whom else than this rank.
bool Group::waits(int rank, std::uint32_t channels, std::vector<bool>* awaited) const {
  bool any = false;
  for (std::uint32_t channel = 0; channel < channels; ++channel) {
    for (const std::int32_t other : behind(channel, rank)) {
      any = true;
      (*awaited)[static_cast<std::size_t>(other)] = true;
    }
  }
  (*awaited)[static_cast<std::size_t>(rank_)] = false;
  return any;
}

// A late rank may wait in another channel itself. To blame are those who wait for nobody: the late ones, or
// if all of them wait, whom they wait for in the end. Ranks that wait for each other alone keep the blame.
Status Group::blamed_on_roots(const Status& status) const {
  const FailureDetails* const late = status.details();
  if (late == nullptr || status.code() != TRIREME_ERROR_TIMEOUT || segment() == nullptr) return status;
  std::uint32_t channels = sees_peers_ ? 0 : kChannels;
  for (int rank = 0; sees_peers_ && rank < world_size_; ++rank) {
    channels = std::max(channels, channels_of(rank));
  }
  std::vector<std::int32_t> roots;
  std::vector<std::int32_t> waiting;
  std::vector<std::int32_t> front = late->blamed;
  std::vector<bool> met(static_cast<std::size_t>(world_size_));
  for (const std::int32_t rank : front) met[static_cast<std::size_t>(rank)] = true;
  while (roots.empty() && !front.empty()) {
    std::vector<bool> next(static_cast<std::size_t>(world_size_));
    for (const std::int32_t rank : front) {
      const bool blocked = rank != rank_ && waits(rank, channels, &next);
      (blocked ? waiting : roots).push_back(rank);
    }
    front.clear();
    for (int rank = 0; rank < world_size_; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      if (!next[at] || met[at]) continue;
      met[at] = true;
      front.push_back(rank);
    }
  }
  if (roots.empty() || waiting.empty()) return status;
  std::sort(waiting.begin(), waiting.end());
  FailureDetails details = *late;
  details.blamed = roots;
  return Status::failure(TRIREME_ERROR_TIMEOUT, list_ranks(roots) +
                                                    (roots.size() == 1 ? " keeps " : " keep ") +
                                                    list_ranks(waiting) + " waiting elsewhere; " +
                                                    status.message())
      .with_details(std::move(details));
}

void Group::fail(const Status& status) noexcept {
  try {
    const Status told = blamed_on_silent(blamed_on_roots(status));
    fail(to_record(told, with_last_calls(told), world_size_));
  } catch (...) {  // no memory for what the ranks called last
    fail(to_record(status, status.message(), world_size_));
  }
}

void Group::fail(const FailureRecord& record) noexcept {
  try {
    std::function<void()> listener;
    {
      const std::lock_guard lock(mutex_);
      if (recorded_) return;
      listener = listener_;
      own_record_ = record;
      recorded_ = true;
      const Segment* const shared = segment();
      if (shared != nullptr) {
        shared->record(rank_) = own_record_;
        std::uint32_t none = 0;
        shared->header().first_failure.compare_exchange_strong(
            none, static_cast<std::uint32_t>(rank_) + 1, std::memory_order_seq_cst);
      }
      // Under the lock: a thread that finds a failure recorded finds the group failed, too.
      failed_here_.store(true, std::memory_order_seq_cst);
    }
    wake_everybody();
    if (listener) listener();
    tell_end();
  } catch (...) {  // a mutex or memory: the flag alone still ends every wait of this rank
    failed_here_.store(true, std::memory_order_seq_cst);
    wake_everybody();
  }
}

Status Group::failure_for(Reader reader, const char* operation, std::uint64_t sequence) const {
  if (!failed()) return Status::success();
  FailureRecord record;
  std::unique_lock lock(mutex_);
  const Segment* const shared = segment();
  const std::uint32_t first =
      shared == nullptr ? 0 : shared->header().first_failure.load(std::memory_order_acquire);
  if (first > 0 && first <= static_cast<std::uint32_t>(world_size_)) {
    record = shared->record(static_cast<int>(first) - 1);
  } else if (recorded_) {
    record = own_record_;
  } else {
    return Status::failure(TRIREME_ERROR_CORRUPT,
                           "the failure record of \"" + name_ + "\" names no rank");
  }
  if (met_by_.empty() && operation != nullptr) {
    met_by_ = operation;
    met_at_ = sequence;
  }
  FailureDetails details;
  details.communicator = name_;
  details.system_error = record.system_error;
  details.operation = take_text(record.operation);
  details.sequence = record.sequence;
  if (details.operation.empty()) {
    details.operation = met_by_;
    details.sequence = met_at_;
  }
  for (int rank = 0; rank < world_size_; ++rank) {
    if ((record.blamed[rank / 64] >> (rank % 64) & 1) != 0) details.blamed.push_back(rank);
  }
  std::string text = take_text(record.text);
  const bool own = reader == Reader::this_rank &&
                   std::find(details.blamed.begin(), details.blamed.end(), rank_) !=
                       details.blamed.end();
  if (own && text.find("this rank") == std::string::npos && text.find("this one") == std::string::npos) {
    text += " (rank " + std::to_string(rank_) + " is this rank)";
  }
  if (!details.operation.empty()) {
    text += " during " + details.operation;
    if (details.sequence != 0) text += ", sequence " + std::to_string(details.sequence);
    text += " of \"" + name_ + "\"";
  } else {
    text += " in \"" + name_ + "\"";
  }
  const bool known = record.code < 0 && record.code >= TRIREME_ERROR_INTERNAL;
  const bool heard = recorded_;
  lock.unlock();
  // Seen in the segment before its rank could tell anybody, and perhaps it never can: who meets it passes it on.
  if (!heard) const_cast<Group*>(this)->fail(record);
  return Status::failure(known ? record.code : TRIREME_ERROR_CORRUPT, std::move(text))
      .with_details(std::move(details));
}

void Group::on_failure(std::function<void()> listener) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
}

void Group::on_end(std::shared_ptr<const EndListener> listener) {
  bool recorded = false;
  {
    const std::lock_guard lock(mutex_);
    end_listener_ = std::move(listener);
    recorded = recorded_;
  }
  if (recorded) tell_end();
}

void Group::tell_end() const noexcept {
  try {
    std::shared_ptr<const EndListener> listener;
    {
      const std::lock_guard lock(mutex_);
      listener = end_listener_;
    }
    if (listener != nullptr) (*listener)(shared_failure());
  } catch (...) {  // no memory to say it: the deadlines are left
  }
}

FailureRecord Group::own_record() const {
  const std::lock_guard lock(mutex_);
  return own_record_;
}

bool Patience::wait(Deadline deadline) noexcept {
  if (spins_ > 0) {
    --spins_;
    cpu_relax();
    return true;
  }
  if (yields_ == 0) return false;
  --yields_;
  sched_yield();
  // On a busy machine a turn of the others may take long, and only who sleeps looks for deaths.
  const std::uint64_t now = now_ns();
  if (yields_end_ns_ == 0) yields_end_ns_ = std::min(now + kLongestYielding, deadline.moment_ns());
  if (now >= yields_end_ns_) yields_ = 0;
  return yields_ > 0;
}

void Group::ring(Bell& bell) const noexcept {
  bell.events.fetch_add(1, std::memory_order_seq_cst);
  if (bell.sleepers.load(std::memory_order_seq_cst) != 0) {
    futex_wake_all(bell.events, processes_ && &bell != &private_bell_);
  }
}

void Group::sleep(Bell& bell, std::uint32_t seen, Deadline deadline) const noexcept {
  bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (bell.events.load(std::memory_order_seq_cst) == seen) {
    const std::uint64_t longest = processes_ ? kLongestSleepAmongProcesses : kLongestSleep;
    futex_wait(bell.events, seen, std::min(deadline.remaining_ns(), longest),
               processes_ && &bell != &private_bell_);
  }
  bell.sleepers.fetch_sub(1, std::memory_order_relaxed);
  if (processes_) look_for_deaths();
}

// Every 10 ms at most, however often the bells are rung.
void Group::look_for_deaths() const noexcept {
  const std::uint64_t now = now_ns();
  if (now < next_look_ns_.load(std::memory_order_relaxed)) return;
  next_look_ns_.store(now + kLongestSleepAmongProcesses * 9 / 10, std::memory_order_relaxed);
  const Segment* const shared = segment();
  for (int rank = 0; shared != nullptr && rank < world_size_; ++rank) {
    const std::uint32_t life = shared->member(rank).life.load(std::memory_order_relaxed);
    if (rank == rank_ || !DeathWord::tells_death(life)) continue;
    const std::lock_guard lock(mutex_);
    if (!death_listener_ || death_told_[static_cast<unsigned>(rank)].exchange(true)) continue;
    death_listener_(rank);
  }
}

void Group::on_death(std::function<void(int)> listener) {
  const std::lock_guard lock(mutex_);
  death_listener_ = std::move(listener);
}

void Group::ring_member(int rank) const noexcept {
  if (const Segment* const shared = segment()) ring(shared->member(rank).message_bell);
  if (courier_ != nullptr && rank != rank_) courier_->ring(rank);
}

std::uint32_t Group::activity() const noexcept {
  const Segment* const shared = segment();
  const Bell& bell = shared == nullptr ? private_bell_ : shared->member(rank_).message_bell;
  return bell.events.load(std::memory_order_seq_cst);
}

void Group::wait_activity(std::uint32_t seen, Deadline deadline) noexcept {
  Patience before_sleep = patience();
  while (activity() == seen && !failed() && before_sleep.wait(deadline)) {
  }
  while (activity() == seen && !failed() && !deadline.passed()) {
    const Segment* const shared = segment();
    sleep(shared == nullptr ? private_bell_ : shared->member(rank_).message_bell, seen, deadline);
  }
}

void Group::wake_waiters() noexcept {
  ring(private_bell_);
  ring_member(rank_);
}

void Group::wake_everybody() noexcept {
  ring(private_bell_);
  const Segment* const shared = segment();
  if (shared == nullptr) return;
  ring(shared->header().join_bell);
  ring(shared->header().decision_bell);
  std::uint32_t used = 0;
  for (int rank = 0; rank < world_size_; ++rank) used = std::max(used, channels_of(rank));
  for (int rank = 0; rank < world_size_; ++rank) {
    ring(shared->member(rank).message_bell);
    for (std::uint32_t channel = 0; channel < used; ++channel) {
      ring(shared->lane(channel, rank).bell);
    }
  }
}

}  // namespace trireme::local
