// The choice of the backend for a rendezvous.
#include <string_view>

#include "backends/backend.hpp"
#include "backends/host/backend.hpp"
#include "backends/local/backend.hpp"

namespace trireme {
namespace {

struct Scheme {
  std::string_view begin;
  std::string_view backend;
};
constexpr Scheme kThreads{"local://", "local"};
constexpr Scheme kProcesses{"host://", "local"};
constexpr Scheme kTransport{"host-transport://", "host"};

}  // namespace

Status join_group(const GroupOptions& options, std::unique_ptr<Backend>* out) {
  const std::string_view rendezvous = options.rendezvous;
  if (!options.backend.empty() && options.backend != "local" && options.backend != "host") {
    return unsupported("backend \"" + options.backend +
                       "\" is not in this build; it has \"local\" and \"host\"");
  }
  const Scheme* scheme = nullptr;
  for (const Scheme* const each : {&kThreads, &kProcesses, &kTransport}) {
    if (rendezvous.substr(0, each->begin.size()) == each->begin) scheme = each;
  }
  if (scheme == nullptr) {
    return unsupported("rendezvous \"" + options.rendezvous +
                       "\" is of no kind in this build; it has local://NAME, host://NAME and "
                       "host-transport://NAME");
  }
  if (!options.backend.empty() && options.backend != scheme->backend) {
    return unsupported("backend \"" + options.backend + "\" does not meet at \"" +
                       options.rendezvous + "\", which is of \"" +
                       std::string(scheme->backend) + "\"");
  }
  if ((scheme == &kTransport) != options.transport.has_value()) {
    return invalid_argument(options.transport.has_value()
                                ? "options.transport is set, but rendezvous \"" +
                                      options.rendezvous + "\" is not host-transport://NAME"
                                : "rendezvous \"" + options.rendezvous +
                                      "\" needs options.transport");
  }
  const std::string_view name = rendezvous.substr(scheme->begin.size());
  if (name.empty()) {
    return invalid_argument("rendezvous \"" + options.rendezvous + "\" has no name after //");
  }
  if (options.world_size < 1) {
    return invalid_argument("world_size " + std::to_string(options.world_size) + " is below 1");
  }
  if (options.world_size > local::kMaxRanks) {
    return unsupported("world_size " + std::to_string(options.world_size) + " is above " +
                       std::to_string(local::kMaxRanks) + ", the most ranks of one host");
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    return invalid_argument("rank " + std::to_string(options.rank) + " is not in 0 to " +
                            std::to_string(options.world_size - 1));
  }
  if (scheme == &kTransport) {
    return host::HostBackend::join(options, std::string(name),
                                   {*options.transport, nullptr, "host (transport)"}, out);
  }
  return local::LocalBackend::join(options, std::string(name), scheme == &kProcesses, out);
}

}  // namespace trireme
