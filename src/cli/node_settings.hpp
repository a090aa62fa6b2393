// The options of trireme run for jobs on several hosts.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "launch/agent.hpp"

namespace trireme::cli {

// As the user wrote them.
struct NodeSettings {
  std::string nodes = "1";
  std::string endpoint;
  std::string backend;
  std::string master_address;
  int master_port = 0;
  bool standalone = false;
  std::string configuration;
  std::string job;
  int node_rank = -1;
};

void add_options(CLI::App& app, NodeSettings* out);

// The number of workers that "--nproc-per-node" means here: a number, or auto, gpu or cpu.
int workers_of(const std::string& text);

// Cores that this process may use.
int usable_cores();

// The GPUs of this host that CUDA would show to a program, by the names of CUDA_VISIBLE_DEVICES.
std::vector<std::string> visible_gpus();

// Empty if the job is on this host alone. Throws CLI::ValidationError.
std::optional<cluster::NodeOptions> nodes_of(const NodeSettings& settings);

}  // namespace trireme::cli
