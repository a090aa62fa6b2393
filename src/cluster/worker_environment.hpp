// What the launcher tells a worker through its environment: the variables of env://.
#pragma once

#include <string>
#include <vector>

#include "cluster/agent_messages.hpp"

namespace trireme::cluster {

class WorkerEnvironment {
 public:
  explicit WorkerEnvironment(int workers) : workers_(workers) { start_.world_size = workers; }

  // A job on this host alone: draws its token and the name under which its ranks meet. 0, or
  // libuv's error.
  int make_secrets();
  // A job on several hosts, where the user has given the token. "": workers find it as this process
  // did, in the file that TRIREME_TOKEN_FILE names.
  void take_place(const AgentStart& start, std::string token);

  // "NAME=VALUE" of everything: the launcher's own environment with the job's variables in it, and
  // without TRIREME_TOKEN_FD, whose descriptor can be read but once.
  std::vector<std::string> of_local_rank(int local_rank) const;

 private:
  const int workers_;
  AgentStart start_;
  std::string token_;
};

}  // namespace trireme::cluster
