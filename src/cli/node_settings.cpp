#include "cli/node_settings.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "net/endpoint.hpp"

namespace trireme::cli {
namespace {

template <class Number>
bool read(std::string_view text, Number low, Number high, Number* out) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && stop == text.data() + text.size() && *out >= low && *out <= high;
}

// Programs that start one agent on each host tell it the number of agents and its own index. Inside
// an allocation of Slurm, Open MPI starts its own helpers by srun, on fewer hosts: so mpirun's
// variables go first.
struct Starter {
  const char* nodes;
  const char* node_rank;
};
constexpr Starter kStarters[] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                 {"SLURM_NNODES", "SLURM_NODEID"},
                                 {"PMI_SIZE", "PMI_RANK"}};

void take_from_starter(cluster::NodeOptions* out) {
  for (const Starter& starter : kStarters) {
    const char* const nodes = std::getenv(starter.nodes);
    const char* const node_rank = std::getenv(starter.node_rank);
    if (nodes == nullptr || node_rank == nullptr) continue;
    if (!read(nodes, 1, cluster::kMostNodes, &out->most) ||
        !read(node_rank, 0, out->most - 1, &out->node_rank)) {
      throw CLI::ValidationError("--nnodes auto", std::string(starter.nodes) + " is \"" + nodes +
                                                      "\" and " + starter.node_rank + " \"" +
                                                      node_rank + "\"");
    }
    out->least = out->most;
    return;
  }
  throw CLI::ValidationError(
      "--nnodes auto", "neither Slurm (SLURM_NNODES, SLURM_NODEID) nor mpirun has started this");
}

void take_nodes(const std::string& text, cluster::NodeOptions* out) {
  const std::string_view all = text;
  const std::size_t colon = all.find(':');
  const std::string_view least = all.substr(0, colon);
  const std::string_view most = colon == all.npos ? least : all.substr(colon + 1);
  if (!read(least, 1, cluster::kMostNodes, &out->least) ||
      !read(most, out->least, cluster::kMostNodes, &out->most)) {
    throw CLI::ValidationError("--nnodes", "\"" + text + "\" is neither N, nor MIN:MAX, of 1 to " +
                                               std::to_string(cluster::kMostNodes) + ", nor auto");
  }
}

// The default port is that of torchrun's rendezvous.
void take_endpoint(std::string text, cluster::NodeOptions* out) {
  if (!text.empty() && text.find(':') == text.npos) text += ":29400";
  const std::size_t colon = text.rfind(':');
  std::string host = colon == text.npos ? "" : text.substr(0, colon);
  const bool brackets = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  if (host.empty() || (!brackets && host.find(':') != host.npos) ||
      !read(std::string_view(text).substr(colon + 1), 0, 65535, &out->port)) {
    throw CLI::ValidationError("--rdzv-endpoint",
                               "\"" + text + "\" is not HOST:PORT, or [ADDRESS]:PORT with IPv6");
  }
  out->host = host;
}

// KEY=SECONDS[,KEY=SECONDS...]
void take_configuration(const std::string& text, cluster::NodeOptions* out) {
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
    const std::size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = equals == item.npos ? "" : item.substr(equals + 1);
    double* const field = key == "join_timeout"        ? &out->join_seconds
                          : key == "last_call_timeout" ? &out->last_call_seconds
                          : key == "silence_timeout"   ? &out->silence_seconds
                                                       : nullptr;
    const double low = field == &out->silence_seconds ? 1.0 : 0.0;
    const double high = field == &out->silence_seconds ? 3600.0 : 86400.0;
    if (field == nullptr) {
      throw CLI::ValidationError("--rdzv-conf", "\"" + std::string(key) +
                                                    "\" is none of join_timeout, "
                                                    "last_call_timeout, silence_timeout");
    }
    if (!read(value, low, high, field)) {
      throw CLI::ValidationError("--rdzv-conf", "\"" + std::string(item) + "\" is not " +
                                                    std::string(key) + "=SECONDS, from " +
                                                    std::to_string(static_cast<int>(low)) + " to " +
                                                    std::to_string(static_cast<int>(high)));
    }
  }
}

}  // namespace

int usable_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

int workers_of(const std::string& text) {
  constexpr int kMost = 1024;
  int workers = 0;
  if (read(std::string_view(text), 1, kMost, &workers)) return workers;
  const int gpus = static_cast<int>(visible_gpus().size());
  if (text == "gpu" || (text == "auto" && gpus > 0)) {
    if (gpus > 0) return gpus;
    throw CLI::ValidationError("--nproc-per-node", "gpu: this host has none that is seen");
  }
  if (text == "auto" || text == "cpu") return std::min(usable_cores(), kMost);
  throw CLI::ValidationError("--nproc-per-node", "\"" + text + "\" is neither a number from 1 to " +
                                                     std::to_string(kMost) +
                                                     ", nor auto, gpu or cpu");
}

std::vector<std::string> visible_gpus() {
  std::vector<std::string> gpus;
  if (const char* const text = std::getenv("CUDA_VISIBLE_DEVICES"); text != nullptr) {
    std::string_view rest = text;
    while (!rest.empty()) {
      const std::string_view item = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(item.size() + 1, rest.size()));
      if (item.empty() || item == "-1") break;  // as CUDA reads it
      gpus.emplace_back(item);
    }
    return gpus;
  }
  for (int number = 0;; ++number) {
    std::error_code none;
    if (!std::filesystem::exists("/dev/nvidia" + std::to_string(number), none)) return gpus;
    gpus.push_back(std::to_string(number));
  }
}

void add_options(CLI::App& app, NodeSettings* out) {
  app.add_option(
         "--nnodes", out->nodes,
         "Number of hosts, each with a trireme run of its own (default 1): N, or MIN:MAX, or "
         "auto: as Slurm or mpirun say")
      ->type_name("NODES");
  app.add_option("--rdzv-endpoint", out->endpoint,
                 "Where they meet: an address of one of the hosts. All know the job's token, by "
                 "TRIREME_TOKEN_FILE, TRIREME_TOKEN_FD or TRIREME_TOKEN")
      ->type_name("HOST:PORT");
  app.add_option("--rdzv-backend", out->backend,
                 "c10d or static, as torchrun's lines say: the hosts meet at --rdzv-endpoint")
      ->check(CLI::IsMember({"c10d", "static"}));
  app.add_option("--master-addr", out->master_address,
                 "The same as --rdzv-endpoint with --master-port; on one host MASTER_ADDR of the "
                 "workers")
      ->type_name("HOST");
  app.add_option("--master-port", out->master_port, "Its port (default 29500)")
      ->check(CLI::Range(1, 65535))
      ->type_name("PORT");
  app.add_flag("--standalone", out->standalone, "This host alone, with a free port as MASTER_PORT");
  app.add_option("--node-rank", out->node_rank,
                 "The number of this host, from 0 (default: in the order in which they come)")
      ->check(CLI::Range(0, cluster::kMostNodes - 1));
  app.add_option("--rdzv-id", out->job, "The job's name: agents of another job are refused")
      ->type_name("NAME");
  app.add_option(
         "--rdzv-conf", out->configuration,
         "In seconds: join_timeout=600 for the fewest hosts to come, last_call_timeout=30 for "
         "more than the fewest, silence_timeout=5 without a sign of life until one is lost")
      ->type_name("KEY=SECONDS,...");
}

std::optional<cluster::NodeOptions> nodes_of(const NodeSettings& settings) {
  cluster::NodeOptions nodes;
  if (settings.nodes == "auto") {
    take_from_starter(&nodes);
  } else {
    take_nodes(settings.nodes, &nodes);
  }
  if (settings.standalone && nodes.most > 1) {
    throw CLI::ValidationError("--standalone", "means this host alone, --nnodes " + settings.nodes);
  }
  std::string endpoint = settings.endpoint;
  if (endpoint.empty() && nodes.most > 1 && !settings.master_address.empty()) {
    const int port = settings.master_port != 0 ? settings.master_port : 29500;
    endpoint = tcp::endpoint_text(settings.master_address, std::to_string(port));
  }
  if (settings.standalone) {
    return std::nullopt;  // other values of torchrun's option
  }
  if (endpoint.empty()) {
    if (nodes.most > 1) {
      throw CLI::ValidationError("--rdzv-endpoint", "HOST:PORT is missing: where the hosts meet");
    }
    const bool means_nothing = settings.node_rank > 0 || settings.master_address.empty();
    if ((settings.node_rank >= 0 && means_nothing) || !settings.job.empty() ||
        !settings.configuration.empty()) {
      throw CLI::ValidationError("--node-rank, --rdzv-id, --rdzv-conf",
                                 "they mean nothing without --rdzv-endpoint");
    }
    return std::nullopt;
  }
  take_endpoint(endpoint, &nodes);
  if (nodes.port == 0) {
    if (nodes.most == 1) return std::nullopt;  // a line of torchrun's for one host
    throw CLI::ValidationError("--rdzv-endpoint",
                               "\"" + endpoint + "\" has port 0, which the hosts cannot know");
  }
  take_configuration(settings.configuration, &nodes);
  nodes.job = settings.job;
  if (settings.node_rank >= nodes.most) {
    throw CLI::ValidationError("--node-rank", std::to_string(settings.node_rank) + " is none of " +
                                                  std::to_string(nodes.most) +
                                                  " nodes, which are counted from 0");
  }
  if (settings.node_rank >= 0) nodes.node_rank = settings.node_rank;
  return nodes;
}

}  // namespace trireme::cli
