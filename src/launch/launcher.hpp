// The launcher: starts the workers of a job on this host, carries their output and signals, and
// answers for their end. On several hosts each has one, and they agree through their agents.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launch/agent.hpp"

namespace trireme::cluster {

struct LaunchOptions {
  int workers = 1;         // on this host
  bool prefix = true;      // "[rank] " before each line
  std::string log_folder;  // also writes each rank's output there; "" for none
  bool keep_survivors = false;  // a worker that fails does not end the others
  std::chrono::nanoseconds grace = std::chrono::seconds(5);
  int restarts = 0;                // how often the workers may be started again; this host alone
  std::string master_address;      // what the workers are told on one host; "", 0: what is usual
  int master_port = 0;
  bool free_master_port = false;   // one that nobody else has
  bool bind_cores = false;         // each worker has a share of this host's cores to itself
  std::vector<std::string> gpus;   // by local rank: the one that a worker sees; empty: all
  std::vector<std::string> program;  // and its arguments
  std::optional<NodeOptions> nodes;  // without: this host alone
};

// Runs the job to its end; the result is the exit code.
int run_launcher(const LaunchOptions& options);

}  // namespace trireme::cluster
