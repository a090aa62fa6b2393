// The launcher: starts the workers of a job on this host, carries their output and signals, and
// returns their outcome. On several hosts each has one, and they agree through their agents.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launch/agent.hpp"

namespace trireme::cluster {

struct LaunchOptions {
  int workers = 1;              // on this host
  bool prefix = true;           // "[rank] " before each line
  std::string log_folder;       // each rank's output is also written there; "" for none
  bool keep_survivors = false;  // a failed worker does not end the others
  std::chrono::nanoseconds grace = std::chrono::seconds(5);
  int restarts = 0;            // how often the workers of all hosts may be started again
  std::string master_address;  // for the workers of one host; "", 0: the defaults
  int master_port = 0;
  bool free_master_port = false;     // a port that no other process has
  bool bind_cores = false;           // each worker has its own share of this host's cores
  std::vector<std::string> gpus;     // by local rank: the GPU that the worker sees; empty: all
  std::vector<std::string> program;  // and its arguments
  std::optional<NodeOptions> nodes;  // without: this host alone
};

// Runs the job to its end; the result is the exit code.
int run_launcher(const LaunchOptions& options);

}  // namespace trireme::cluster
