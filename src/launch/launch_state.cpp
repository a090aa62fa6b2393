#include "launch/launch_state.hpp"

#include <algorithm>
#include <csignal>

namespace trireme::cluster {
namespace {

// Time for the kernel to end a process after SIGKILL.
constexpr std::uint64_t kKillPatienceNs = 10'000'000'000;

// Moments so close to each other have no order.
constexpr std::uint64_t kTieNs = 100'000'000;

// How long the failed program that others lost may take to end, and how much later than theirs its
// failure may come.
constexpr std::uint64_t kCausePatienceNs = 500'000'000;
constexpr std::uint64_t kCauseNs = 1'000'000'000;

}  // namespace

bool is_earlier(const Ending& a, const Ending& b) {
  const std::uint64_t distance =
      a.moment_ns > b.moment_ns ? a.moment_ns - b.moment_ns : b.moment_ns - a.moment_ns;
  const bool a_is_effect = a.cause == Cause::peer, b_is_effect = b.cause == Cause::peer;
  if (a_is_effect != b_is_effect && distance < kCauseNs) return b_is_effect;
  if (a.by_signal != b.by_signal && distance < kTieNs) return a.by_signal;
  return a.moment_ns < b.moment_ns;
}

LaunchState::LaunchState(int workers, std::uint64_t grace_ns, bool keep_survivors)
    : grace_ns_(grace_ns),
      keep_survivors_(keep_survivors),
      running_count_(workers),
      running_(static_cast<std::size_t>(workers), true),
      endings_(static_cast<std::size_t>(workers)) {}

void LaunchState::begin_ending(int signal, std::uint64_t now_ns) {
  signal_to_send_ = signal;
  if (is_ending()) return;
  phase_ = Phase::ending;
  asked_to_end_ns_ = now_ns;
  phase_ends_ns_ = now_ns + grace_ns_;
}

void LaunchState::worker_ended(int rank, const Ending& ending, std::uint64_t now_ns) {
  const auto index = static_cast<std::size_t>(rank);
  if (!running_[index]) return;
  running_[index] = false;
  --running_count_;
  // A worker that dies of a signal sent to all workers has not failed. Any other ending counts by
  // its moment, because the report of the first failure may arrive second.
  if (ending.by_signal && (sent_signals_ >> ending.value & 1) != 0) return;
  endings_[index] = ending;
  if (!ending.is_failure() || keep_survivors_) return;
  if (is_ending()) {
    const bool was_asked = !ending.by_signal && ending.moment_ns > asked_to_end_ns_;
    if (was_asked) endings_[index]->cause = Cause::peer;
  } else if (ending.cause == Cause::own) {
    begin_ending(SIGTERM, now_ns);
  } else if (phase_ == Phase::running) {
    phase_ = Phase::waiting;
    phase_ends_ns_ = now_ns + kCausePatienceNs;
  }
}

void LaunchState::words_came(int rank, Cause cause, std::uint64_t now_ns) {
  std::optional<Ending>& ending = endings_[static_cast<std::size_t>(rank)];
  if (!ending || ending->cause != Cause::unknown) return;
  ending->cause = cause;
  if (phase_ == Phase::waiting && cause == Cause::own) begin_ending(SIGTERM, now_ns);
}

void LaunchState::start_failed(int rank, std::uint64_t now_ns, int code) {
  start_failed_ = code;
  for (auto index = static_cast<std::size_t>(rank); index < running_.size(); ++index) {
    if (running_[index]) --running_count_;
    running_[index] = false;
  }
  begin_ending(SIGTERM, now_ns);
}

void LaunchState::signal_received(int signal, std::uint64_t now_ns) {
  // A worker that failed for want of a peer may have lost one that this signal has ended, too.
  if (!is_ending()) received_signal_ = signal;
  if (phase_ <= Phase::ending) begin_ending(signal, now_ns);
}

void LaunchState::stop_wanted(std::uint64_t now_ns) {
  if (!is_ending()) begin_ending(SIGTERM, now_ns);
}

void LaunchState::time_passed(std::uint64_t now_ns) {
  if (phase_ == Phase::running || phase_ == Phase::given_up || now_ns < phase_ends_ns_) return;
  if (phase_ == Phase::waiting) {
    begin_ending(SIGTERM, now_ns);
  } else if (phase_ == Phase::ending) {
    phase_ = Phase::killing;
    phase_ends_ns_ = now_ns + kKillPatienceNs;
    signal_to_send_ = SIGKILL;
  } else {
    phase_ = Phase::given_up;
  }
}

int LaunchState::take_signal() {
  const int signal = signal_to_send_;
  signal_to_send_ = 0;
  if (signal != 0) sent_signals_ |= std::uint64_t{1} << signal;
  return signal;
}

std::optional<std::uint64_t> LaunchState::next_moment_ns() const {
  if (phase_ == Phase::running || finished()) return std::nullopt;
  return phase_ends_ns_;
}

std::optional<int> LaunchState::first_failed() const {
  if (start_failed_ != 0 || received_signal_ != 0) return std::nullopt;
  std::optional<int> first;
  for (std::size_t index = 0; index < endings_.size(); ++index) {
    if (!endings_[index] || !endings_[index]->is_failure()) continue;
    if (!first || is_earlier(*endings_[index], *endings_[static_cast<std::size_t>(*first)])) {
      first = static_cast<int>(index);
    }
  }
  return first;
}

bool LaunchState::has_survivors() const {
  return std::any_of(endings_.begin(), endings_.end(),
                     [](const auto& ending) { return ending && !ending->is_failure(); });
}

int LaunchState::exit_code() const {
  if (start_failed_ != 0) return start_failed_;
  if (received_signal_ != 0) return 128 + received_signal_;
  if (keep_survivors_ && has_survivors() && running_count_ == 0) return 0;
  const std::optional<int> failed = first_failed();
  if (failed) return ending(*failed)->exit_code();
  return running_count_ == 0 ? 0 : 1;
}

}  // namespace trireme::cluster
