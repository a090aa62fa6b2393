// JobState: the knowledge and the decisions of the agent that coordinates a job on several hosts.
// It decides which agents join, when the job begins, the ranks of each agent, when all end, and
// which failure is the cause. Pure: its caller tells it events and the time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "launch/agent_messages.hpp"
#include "launch/launch_state.hpp"

namespace trireme::cluster {

struct JobLimits {
  std::uint64_t join_ns = 0;       // time for the fewest agents to come
  std::uint64_t last_call_ns = 0;  // further time for more, once the fewest are there
  bool keep_survivors = false;     // a failed or lost agent does not end the others
};

class JobState {
 public:
  // The coordinator's own agent, kOwnAgent, has joined. `own` says how many nodes there may be.
  static constexpr int kOwnAgent = 0;
  JobState(const AgentHello& own, const JobLimits& limits, std::uint64_t now_ns);

  // Returns "" or the reason why the agent may not join. The caller numbers the agents, ascending
  // as they come.
  std::string join(int agent, const AgentHello& hello, std::uint64_t now_ns);
  void stop_wanted(int agent, const AgentStop& stop);
  void ended(int agent, const AgentEnd& end, std::uint64_t now_ns);
  // `how`: "its connection has ended". `moment_ns`: its last sign of life. Returns the line to
  // print at once where the job goes on without it, or "".
  std::string lost(int agent, const std::string& how, std::uint64_t moment_ns);
  void time_passed(std::uint64_t now_ns);

  bool begun() const { return begun_; }
  // The workers are being ended, or the job is over. An agent that comes now may be of the next
  // start of this job, and quicker than the coordinator.
  bool is_ending() const { return stop_.has_value() || verdict_.has_value(); }
  // Valid once the job has begun; ranks of other jobs at the same place do not know `name`.
  AgentStart start_of(int agent, const std::string& name) const;
  // The stop that all agents but the ended ones are to receive.
  const std::optional<AgentStop>& stop() const { return stop_; }
  // Set once no agent of the job is left, or the job will never begin.
  const std::optional<AgentVerdict>& verdict() const { return verdict_; }

 private:
  struct Agent {
    AgentHello hello;
    int node_rank = 0;
    int first_rank = 0;
    bool over = false;
  };

  std::string why_not(const AgentHello& hello) const;
  void begin();
  void note(const std::string& text, int code, const Ending& ending);
  void blame(const std::string& text, int code, const Ending& ending);
  void decide();
  std::string describe(const Agent& agent) const;

  const int least_;
  const int most_;
  const int restarts_;
  const JobLimits limits_;
  const std::uint64_t join_ends_ns_;
  std::optional<std::uint64_t> last_call_ns_;  // when it ends
  bool begun_ = false;
  int world_size_ = 0;
  std::map<int, Agent> agents_;
  std::optional<AgentStop> stop_;
  bool stop_is_wanted_ = false;  // by an agent, and not only because another one has ended
  std::optional<AgentVerdict> verdict_;

  bool has_survivors_ = false;  // an agent's workers have succeeded
  bool is_final_ = false;       // an agent's workers could not be started

  // The earliest failure of all.
  std::optional<Ending> first_;
  AgentVerdict first_verdict_;
};

}  // namespace trireme::cluster
