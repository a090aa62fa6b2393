#include "collectives/rendezvous.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

#include "platform/sha256.hpp"

namespace trireme {
namespace {

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
  const auto digest = sha256(address + '\n' + std::to_string(port) + '\n' + token);
  *out = "host://env-";
  for (int i = 0; i < 16; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    *out += kDigits[digest[i] >> 4];
    *out += kDigits[digest[i] & 15];
  }
  return Status::success();
}

}  // namespace

Status resolve_rendezvous(GroupOptions* options) {
  constexpr std::string_view kScheme = "env://";
  if (std::string_view(options->rendezvous).substr(0, kScheme.size()) != kScheme) {
    return Status::success();
  }
  if (options->rendezvous.size() != kScheme.size()) {
    return invalid_argument("rendezvous \"" + options->rendezvous +
                            "\": nothing may follow env://");
  }
  TRIREME_RETURN_IF_ERROR(take_number("WORLD_SIZE", "world_size", 1, &options->world_size));
  TRIREME_RETURN_IF_ERROR(take_number("RANK", "rank", 0, &options->rank));
  const char* const rendezvous = std::getenv("TRIREME_RENDEZVOUS");
  if (rendezvous == nullptr || *rendezvous == 0) return name_from_master(&options->rendezvous);
  if (std::strncmp(rendezvous, kScheme.data(), kScheme.size()) == 0) {
    return invalid_argument("the variable TRIREME_RENDEZVOUS must not be env:// again");
  }
  options->rendezvous = rendezvous;
  return Status::success();
}

std::string rendezvous_of_child(const std::string& parent, const std::string& place) {
  const std::size_t end = parent.find("://") + 3;
  const std::string scheme = parent.substr(0, end);
  if (scheme != "tcp://") return scheme + place;
  // tcp://ADDRESS:PORT[/NAME][?QUERY]
  const std::size_t query = std::min(parent.find('?'), parent.size());
  const std::size_t name = std::min(parent.find('/', end), query);
  return parent.substr(0, name).append("/").append(place).append(parent.substr(query));
}

}  // namespace trireme
