#include "collectives/rendezvous.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "backends/mpi/backend.hpp"
#include "net/endpoint.hpp"
#include "net/sha256.hpp"
#include "net/token.hpp"
#include "platform/file.hpp"

namespace trireme {
namespace {

constexpr std::string_view kEnvironment = "env://";

bool is_set(const char* variable) {
  const char* const text = std::getenv(variable);
  return text != nullptr && *text != 0;
}

Status read_text(const char* variable, std::string* out) {
  if (!is_set(variable)) {
    return invalid_argument(std::string("env:// needs the variable ") + variable);
  }
  *out = std::getenv(variable);
  return Status::success();
}

Status read_number(const char* variable, int low, int* out) {
  std::string text;
  TRIREME_RETURN_IF_ERROR(read_text(variable, &text));
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *out);
  if (error != std::errc() || stop != end || *out < low) {
    return invalid_argument(std::string("the variable ") + variable + " is \"" + text +
                            "\", not a number from " + std::to_string(low));
  }
  return Status::success();
}

// A number from 1 in a variable; 0 if it is not there or holds anything else.
int count_in(const char* variable) {
  int count = 0;
  return variable != nullptr && is_set(variable) && read_number(variable, 1, &count).ok() ? count
                                                                                          : 0;
}

// A program that starts processes gives each its place by its own variables; the first starter
// whose variables are there counts. Most also tell the number of ranks on this host, or the number
// of hosts.
struct Starter {
  const char* rank;
  const char* world_size;
  bool is_mpi;
  const char* ranks_here;
  const char* hosts[2];
};
constexpr Starter kStarters[] = {
    {"RANK", "WORLD_SIZE", false, "LOCAL_WORLD_SIZE", {"GROUP_WORLD_SIZE", "NNODES"}},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", true, "OMPI_COMM_WORLD_LOCAL_SIZE", {}},
    {"PMI_RANK", "PMI_SIZE", true, "MPI_LOCALNRANKS", {}},
    {"SLURM_PROCID", "SLURM_NTASKS", false, nullptr, {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}}};

// Null if no known starter has started this process as a rank.
const Starter* find_starter() {
  for (const Starter& starter : kStarters) {
    if (is_set(starter.rank) || is_set(starter.world_size)) return &starter;
  }
  return nullptr;
}

// This process's own command, as a user would type it, cut to fit into a message.
std::string own_command() {
  constexpr std::size_t kLongest = 160;
  const std::string words = read_small_file("/proc/self/cmdline");
  std::string text;
  for (std::size_t begin = 0; begin < words.size();) {
    const std::size_t end = std::min(words.find('\0', begin), words.size());
    const std::string word = words.substr(begin, end - begin);
    begin = end + 1;
    const bool printable = std::all_of(word.begin(), word.end(), [](unsigned char c) {
      return c >= ' ' && c != '\'' && c != 0x7F;
    });
    if (!printable || text.size() + word.size() > kLongest) return text + " ...";
    const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || std::strchr("%+,-./:=@_", c) != nullptr;
    });
    text += (text.empty() ? "" : " ") + (plain ? word : "'" + word + "'");
  }
  return text.empty() ? "PROGRAM" : text;
}

Status nobody_has_started_this() {
  return invalid_argument(
      "env:// needs the variable RANK, and no launcher has set it. Start the program by: trireme "
      "run --nproc-per-node 2 -- " +
      own_command());
}

// The caller's options may repeat the environment, but not contradict it.
Status take_number(const char* variable, const char* field, int low, int* option) {
  int value = 0;
  TRIREME_RETURN_IF_ERROR(read_number(variable, low, &value));
  if (*option != 0 && *option != value) {
    return invalid_argument(std::string("options.") + field + " is " + std::to_string(*option) +
                            ", but the variable " + variable + " is " + std::to_string(value));
  }
  *option = value;
  return Status::success();
}

// Whether the ranks are on several hosts, or on one, as far as the starter's variables tell.
enum class Spread { unknown, one_host, several_hosts };
Spread spread_of(const Starter& starter, const GroupOptions& options, std::string* why) {
  const auto says = [&](const char* variable) {
    *why = std::string(variable) + " is " + std::getenv(variable);
  };
  if (options.world_size == 1) return Spread::one_host;
  if (const int here = count_in(starter.ranks_here); here != 0) {
    says(starter.ranks_here);
    *why += " of " + std::to_string(options.world_size) + " ranks";
    return here < options.world_size ? Spread::several_hosts : Spread::one_host;
  }
  for (const char* const variable : starter.hosts) {
    const int hosts = count_in(variable);
    if (hosts == 0) continue;
    says(variable);
    return hosts > 1 ? Spread::several_hosts : Spread::one_host;
  }
  int local_rank = 0;
  if (is_set("LOCAL_RANK") && read_number("LOCAL_RANK", 0, &local_rank).ok() &&
      local_rank != options.rank) {
    says("LOCAL_RANK");
    *why += " of rank " + std::to_string(options.rank);
    return Spread::several_hosts;
  }
  return Spread::unknown;
}

// Whether an address or name leads every host to itself. A host's own name may do so on that host
// alone, so only these names are checked.
bool is_loopback(const std::string& host) {
  tcp::Endpoint endpoint;
  std::string why;
  if (!tcp::look_up_number(host, 1, &endpoint, &why)) return host == "localhost";
  return endpoint.is_loopback();
}

// The name does not reveal the token: every user of the host can list the names of sockets.
Status name_on_this_host(const std::string& address, int port, std::string* out) {
  std::string secret;
  if (is_set("TRIREME_TOKEN_FILE") || is_set("TRIREME_TOKEN_FD")) {
    Token token;
    TRIREME_RETURN_IF_ERROR(Token::from_environment(&token));
    secret = token.secret();
  } else if (Status status = read_text("TRIREME_TOKEN", &secret); !status.ok()) {
    return invalid_argument(status.message() + ", the job's secret. " + how_to_make_a_token());
  }
  *out = "host://env-" + secret_place(address + '\n' + std::to_string(port) + '\n' + secret);
  return Status::success();
}

// torchrun's agent listens at MASTER_PORT itself, for its own store, and this variable tells so.
int port_for_ranks(int master_port) {
  const char* const text = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool taken = text != nullptr && std::strcmp(text, "True") == 0;
  return taken && master_port < 65535 ? master_port + 1 : master_port;
}

// Every rank must come to the same place by its own knowledge alone.
Status meet_at_master(const Starter& starter, GroupOptions* options) {
  std::string address;
  int port = 0;
  if (Status status = read_text("MASTER_ADDR", &address); !status.ok()) {
    if (!is_set("SLURM_PROCID")) return status;
    return invalid_argument(status.message() +
                            ", the host of rank 0. Before srun: export MASTER_PORT=29500 "
                            "MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head "
                            "-n 1)");
  }
  if (address.size() > 2 && address.front() == '[' && address.back() == ']') {
    address = address.substr(1, address.size() - 2);
  }
  TRIREME_RETURN_IF_ERROR(read_number("MASTER_PORT", 1, &port));
  std::string why;
  const Spread spread = spread_of(starter, *options, &why);
  const bool loopback = is_loopback(address);
  if (spread == Spread::one_host || (spread == Spread::unknown && loopback)) {
    return name_on_this_host(address, port, &options->rendezvous);
  }
  if (loopback) {
    return invalid_argument("the variable MASTER_ADDR is " + address +
                            ", by which each host reaches only itself, but the ranks are on "
                            "several hosts (" +
                            why + "). Set MASTER_ADDR to an address of the host of rank 0");
  }
  options->rendezvous =
      "tcp://" + tcp::endpoint_text(address, std::to_string(port_for_ranks(port)));
  Token token;
  return Token::from_environment(&token);
}

Status resolve_environment(GroupOptions* options) {
  if (options->rendezvous.size() != kEnvironment.size()) {
    return invalid_argument("rendezvous \"" + options->rendezvous +
                            "\": nothing may follow env://");
  }
  const Starter* const found = find_starter();
  if (found == nullptr) return nobody_has_started_this();
  const Starter& starter = *found;
  TRIREME_RETURN_IF_ERROR(take_number(starter.world_size, "world_size", 1, &options->world_size));
  TRIREME_RETURN_IF_ERROR(take_number(starter.rank, "rank", 0, &options->rank));
  if (is_set("TRIREME_RENDEZVOUS")) {
    const std::string rendezvous = std::getenv("TRIREME_RENDEZVOUS");
    if (rendezvous.rfind(kEnvironment, 0) == 0) {
      return invalid_argument("the variable TRIREME_RENDEZVOUS must not be env:// again");
    }
    options->rendezvous = rendezvous;
    return Status::success();
  }
  // Inside mpirun no other variable is needed.
  if (starter.is_mpi && !is_set("MASTER_ADDR")) {
    options->rendezvous = mpi::kScheme;
    return Status::success();
  }
  return meet_at_master(starter, options);
}

}  // namespace

Status resolve_rendezvous(GroupOptions* options, Deadline deadline) {
  if (options->rendezvous.rfind(kEnvironment, 0) == 0) {
    TRIREME_RETURN_IF_ERROR(resolve_environment(options));
  }
  // Wrong options are refused before MPI is begun.
  const bool is_wrong =
      options->transport.has_value() || (!options->backend.empty() && options->backend != "mpi");
  if (!mpi::is_mpi(options->rendezvous) || is_wrong) return Status::success();
  TRIREME_RETURN_IF_ERROR(mpi::take_place(options));
  return options->backend.empty() ? mpi::meet_on_host(options, deadline) : Status::success();
}

std::string secret_place(const std::string& secret) {
  const auto digest = sha256(secret);
  return hexadecimal(std::span(digest).first(16));
}

std::string rendezvous_of_child(const std::string& parent, const std::string& place,
                                const std::string& address) {
  const std::size_t end = parent.find("://") + 3;
  const std::string scheme = parent.substr(0, end);
  if (scheme != "tcp://") return scheme + place;
  // tcp://ADDRESS:PORT[/NAME][?QUERY]
  const std::size_t query = std::min(parent.find('?'), parent.size());
  const std::size_t name = std::min(parent.find('/', end), query);
  const std::string begin = address.empty() ? parent.substr(0, name) : scheme + address;
  return begin + '/' + place + parent.substr(query);
}

}  // namespace trireme
