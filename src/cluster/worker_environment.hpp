// What the launcher tells a worker through its environment: the variables of env://.
#pragma once

#include <string>
#include <vector>

namespace trireme::cluster {

class WorkerEnvironment {
 public:
  explicit WorkerEnvironment(int workers) : workers_(workers) {}

  // Draws the job's token and the name under which its ranks meet. 0, or libuv's error.
  int make_secrets();

  // "NAME=VALUE" of everything: the launcher's own environment with the job's variables in it.
  std::vector<std::string> of_rank(int rank) const;

 private:
  const int workers_;
  std::string token_;
  std::string meeting_;
};

}  // namespace trireme::cluster
