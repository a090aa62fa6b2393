// The options of trireme run that are about several hosts.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "cluster/agent.hpp"

namespace trireme::cli {

// As they are written.
struct NodeSettings {
  std::string nodes = "1";
  std::string endpoint;
  std::string configuration;
  std::string job;
  int node_rank = -1;
};

void add_options(CLI::App& app, NodeSettings* out);

// Nothing if the job is on this host alone. Throws CLI::ValidationError.
std::optional<cluster::NodeOptions> nodes_of(const NodeSettings& settings);

}  // namespace trireme::cli
