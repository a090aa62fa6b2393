// The launcher's next action, and the worker that it blames: pure; its caller tells it events and
// the time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::cluster {

// The cause of a worker's failure by its last lines. `peer`: it lost a peer, or failed after it was
// asked to end, so another failure is the cause. `unknown`: its output may still bring a message.
enum class Cause { own, unknown, peer };

// How a worker's program ended.
struct Ending {
  bool by_signal = false;
  int value = 0;  // exit code or signal number
  std::uint64_t moment_ns = 0;
  Cause cause = Cause::own;

  bool is_failure() const { return by_signal || value != 0; }
  int exit_code() const { return by_signal ? 128 + value : value; }
};

// Orders two failures: the earlier one is the cause. The launcher may notice a worker that gave up
// over a lost peer before that peer, whose program still ends: so within a second an own failure
// goes first, and at nearly the same moment a death by a signal.
bool is_earlier(const Ending& a, const Ending& b);

class LaunchState {
 public:
  // grace_ns: the time from the first polite signal to SIGKILL. `keep_survivors`: a failed worker
  // does not end the others.
  LaunchState(int workers, std::uint64_t grace_ns, bool keep_survivors = false);

  void worker_ended(int rank, const Ending& ending, std::uint64_t now_ns);
  // The output of a failed worker has been read to its end.
  void words_came(int rank, Cause cause, std::uint64_t now_ns);
  // Ranks from `rank` on never run, and `code` is their exit code.
  void start_failed(int rank, std::uint64_t now_ns, int code = 126);
  void signal_received(int signal, std::uint64_t now_ns);
  // An event on another host ends the job.
  void stop_wanted(std::uint64_t now_ns);
  void time_passed(std::uint64_t now_ns);

  // The signal to send now to every worker that still runs, or 0. Returns each signal once.
  int take_signal();
  // The next moment at which time_passed() has work, if there is one.
  std::optional<std::uint64_t> next_moment_ns() const;

  // The workers have been asked to end, for any reason.
  bool is_ending() const { return phase_ > Phase::waiting; }
  // The user's signal that began the end, or 0.
  int received_signal() const { return received_signal_; }
  // A worker ended well, which is enough where survivors are kept.
  bool has_survivors() const;
  bool is_running(int rank) const { return running_[static_cast<std::size_t>(rank)]; }
  // The wait is over: all have ended, or the rest does not even die of SIGKILL.
  bool finished() const { return running_count_ == 0 || phase_ == Phase::given_up; }

  // The rank whose failure is the cause, if one failed before the workers were asked to end.
  std::optional<int> first_failed() const;
  // Empty for a rank that still runs or ended as it was asked to.
  const std::optional<Ending>& ending(int rank) const {
    return endings_[static_cast<std::size_t>(rank)];
  }
  int exit_code() const;

 private:
  // waiting: a worker has failed, but it lost a peer, whose own failure is the cause.
  enum class Phase { running, waiting, ending, killing, given_up };

  void begin_ending(int signal, std::uint64_t now_ns);

  const std::uint64_t grace_ns_;
  const bool keep_survivors_;
  std::uint64_t asked_to_end_ns_ = 0;
  Phase phase_ = Phase::running;
  std::uint64_t phase_ends_ns_ = 0;
  int signal_to_send_ = 0;
  std::uint64_t sent_signals_ = 0;  // bit n: signal n
  int received_signal_ = 0;
  int start_failed_ = 0;  // the exit code for it
  int running_count_;
  std::vector<bool> running_;
  std::vector<std::optional<Ending>> endings_;
};

}  // namespace trireme::cluster
