// The environment that the launcher gives a worker: the variables of env://.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launch/agent_messages.hpp"

namespace trireme::cluster {

class WorkerEnvironment {
 public:
  explicit WorkerEnvironment(int workers) : workers_(workers) { start_.world_size = workers; }

  // For a job on this host alone: draws its token and the name under which its ranks meet. Returns
  // 0, or libuv's error.
  int make_secrets();
  // The address for programs that meet by MASTER_ADDR and MASTER_PORT themselves.
  void set_master(const std::string& address, int port);
  // How often the workers were restarted before, and how often they may be.
  void set_restarts(int before, int most) {
    restarts_ = before;
    most_restarts_ = most;
  }
  // The GPU that each worker sees, in order of local ranks. Empty: every worker sees all.
  void set_gpus(std::vector<std::string> gpus) { gpus_ = std::move(gpus); }
  // OMP_NUM_THREADS, unless the user has set it; 0 for none.
  void set_threads(int threads) { threads_ = threads; }
  // For a job on several hosts, whose token comes from the user. "": workers find the token as this
  // process did, in the file that TRIREME_TOKEN_FILE names.
  void take_place(const AgentStart& start, std::string token);

  // The whole environment as "NAME=VALUE": the launcher's own with the job's variables. It lacks
  // TRIREME_TOKEN_FD, whose descriptor can be read only once.
  std::vector<std::string> of_local_rank(int local_rank) const;

 private:
  const int workers_;
  int restarts_ = 0;
  int most_restarts_ = 0;
  int threads_ = 0;
  std::vector<std::string> gpus_;
  AgentStart start_;
  std::string token_;
};

}  // namespace trireme::cluster
