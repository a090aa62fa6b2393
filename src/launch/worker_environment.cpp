#include "launch/worker_environment.hpp"

#include <unistd.h>
#include <uv.h>

#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>

#include "net/sha256.hpp"

namespace trireme::cluster {

// The name is drawn apart from the token, because every user of the host can list names of sockets.
int WorkerEnvironment::make_secrets() {
  std::uint8_t bytes[48];
  if (const int refusal = uv_random(nullptr, nullptr, bytes, sizeof bytes, 0, nullptr)) {
    return refusal;
  }
  token_ = hexadecimal(std::span(bytes).first(32));
  start_.rendezvous = "host://" + hexadecimal(std::span(bytes).last(16));
  start_.master_address = "127.0.0.1";
  start_.master_port = 29500;  // for programs that need a port; no process listens there
  return 0;
}

void WorkerEnvironment::set_master(const std::string& address, int port) {
  if (!address.empty()) start_.master_address = address;
  if (port != 0) start_.master_port = port;
}

void WorkerEnvironment::take_place(const AgentStart& start, std::string token) {
  start_ = start;
  token_ = std::move(token);
}

std::vector<std::string> WorkerEnvironment::of_local_rank(int local_rank) const {
  std::vector<std::pair<std::string, std::string>> variables = {
      {"RANK", std::to_string(start_.first_rank + local_rank)},
      {"WORLD_SIZE", std::to_string(start_.world_size)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(workers_)},
      {"GROUP_RANK", std::to_string(start_.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(start_.nodes)},
      {"NODE_RANK", std::to_string(start_.node_rank)},
      {"MASTER_ADDR", start_.master_address},
      {"MASTER_PORT", std::to_string(start_.master_port)},
      {"TRIREME_RENDEZVOUS", start_.rendezvous},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(restarts_)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(most_restarts_)},
  };
  if (!gpus_.empty()) {
    variables.emplace_back("CUDA_VISIBLE_DEVICES", gpus_[static_cast<std::size_t>(local_rank)]);
  }
  const auto add_default = [&](const char* name, const std::string& value) {
    if (std::getenv(name) == nullptr) variables.emplace_back(name, value);
  };
  if (threads_ > 0) add_default("OMP_NUM_THREADS", std::to_string(threads_));
  add_default("TRIREME_LOG", "warning");
  if (!token_.empty()) variables.emplace_back("TRIREME_TOKEN", token_);
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    // The launcher has read the token behind it, or it does not concern the workers.
    bool ours = text.substr(0, text.find('=')) == "TRIREME_TOKEN_FD";
    for (const auto& [name, value] : variables) {
      ours = ours || text.substr(0, text.find('=')) == name;
    }
    if (!ours) all.emplace_back(text);
  }
  for (const auto& [name, value] : variables) all.push_back(name + "=" + value);
  return all;
}

}  // namespace trireme::cluster
