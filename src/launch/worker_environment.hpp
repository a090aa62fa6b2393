// What the launcher tells a worker through its environment: the variables of env://.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launch/agent_messages.hpp"

namespace trireme::cluster {

class WorkerEnvironment {
 public:
  explicit WorkerEnvironment(int workers) : workers_(workers) { start_.world_size = workers; }

  // A job on this host alone: draws its token and the name under which its ranks meet. 0, or
  // libuv's error.
  int make_secrets();
  // What programs that meet by MASTER_ADDR and MASTER_PORT themselves shall find there.
  void set_master(const std::string& address, int port);
  // How often the workers have been started before, and may be at most.
  void set_restarts(int before, int most) {
    restarts_ = before;
    most_restarts_ = most;
  }
  // What each worker alone finds, in order of local ranks: the GPU it sees. Empty: all see all.
  void set_gpus(std::vector<std::string> gpus) { gpus_ = std::move(gpus); }
  // OMP_NUM_THREADS, unless the user has set it; 0 for none.
  void set_threads(int threads) { threads_ = threads; }
  // A job on several hosts, where the user has given the token. "": workers find it as this process
  // did, in the file that TRIREME_TOKEN_FILE names.
  void take_place(const AgentStart& start, std::string token);

  // "NAME=VALUE" of everything: the launcher's own environment with the job's variables in it, and
  // without TRIREME_TOKEN_FD, whose descriptor can be read but once.
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
