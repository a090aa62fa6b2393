// The launcher: starts the workers of a job on this host, carries their output and signals, and
// answers for their end. On several hosts each has one, and they agree through their agents.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cluster/agent.hpp"

namespace trireme::cluster {

struct LaunchOptions {
  int workers = 1;         // on this host
  bool prefix = true;      // "[rank] " before each line
  std::string log_folder;  // also writes each rank's output there; "" for none
  std::chrono::nanoseconds grace = std::chrono::seconds(5);
  std::vector<std::string> program;  // and its arguments
  std::optional<NodeOptions> nodes;  // without: this host alone
};

// Runs the job to its end; the result is the exit code. May be called once in a process.
int run_launcher(const LaunchOptions& options);

}  // namespace trireme::cluster
