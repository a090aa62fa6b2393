#include "collectives/rendezvous.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "backends/mpi/backend.hpp"
#include "platform/sha256.hpp"

namespace trireme {
namespace {

constexpr std::string_view kEnvironment = "env://";

Status read_text(const char* variable, std::string* out) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == 0) {
    return invalid_argument(std::string("env:// needs the variable ") + variable);
  }
  *out = text;
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

bool is_set(const char* variable) {
  const char* const text = std::getenv(variable);
  return text != nullptr && *text != 0;
}

// Who starts processes tells each its place by variables of its own; the first that are there
// count.
struct Starter {
  const char* rank;
  const char* world_size;
  bool is_mpi;
};
constexpr Starter kStarters[] = {{"RANK", "WORLD_SIZE", false},
                                 {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", true},
                                 {"PMI_RANK", "PMI_SIZE", true},
                                 {"SLURM_PROCID", "SLURM_NTASKS", false}};

const Starter& find_starter() {
  for (const Starter& starter : kStarters) {
    if (is_set(starter.rank) || is_set(starter.world_size)) return starter;
  }
  return kStarters[0];
}

// The caller may say again what the environment says, but nothing else.
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

// The name says nothing about the token: anybody on the host can list the names of sockets.
Status name_from_master(std::string* out) {
  std::string address;
  std::string token;
  int port = 0;
  TRIREME_RETURN_IF_ERROR(read_text("MASTER_ADDR", &address));
  TRIREME_RETURN_IF_ERROR(read_number("MASTER_PORT", 1, &port));
  TRIREME_RETURN_IF_ERROR(read_text("TRIREME_TOKEN", &token));
  *out = "host://env-" + secret_place(address + '\n' + std::to_string(port) + '\n' + token);
  return Status::success();
}

Status resolve_environment(GroupOptions* options) {
  if (options->rendezvous.size() != kEnvironment.size()) {
    return invalid_argument("rendezvous \"" + options->rendezvous +
                            "\": nothing may follow env://");
  }
  const Starter& starter = find_starter();
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
  // Inside mpirun nothing else need be said.
  if (starter.is_mpi && !is_set("MASTER_ADDR")) {
    options->rendezvous = mpi::kScheme;
    return Status::success();
  }
  return name_from_master(&options->rendezvous);
}

}  // namespace

Status resolve_rendezvous(GroupOptions* options, Deadline deadline) {
  if (options->rendezvous.rfind(kEnvironment, 0) == 0) {
    TRIREME_RETURN_IF_ERROR(resolve_environment(options));
  }
  // What is wrong with the options is said before MPI is begun.
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
