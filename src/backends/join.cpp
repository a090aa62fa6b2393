// The choice of the backend for a rendezvous.
#include <string_view>

#include "backends/backend.hpp"
#include "backends/local/backend.hpp"

namespace trireme {
namespace {

constexpr std::string_view kThreads = "local://";
constexpr std::string_view kProcesses = "host://";

}  // namespace

Status join_group(const GroupOptions& options, std::unique_ptr<Backend>* out) {
  const std::string_view rendezvous = options.rendezvous;
  if (!options.backend.empty() && options.backend != "local") {
    return unsupported("backend \"" + options.backend + "\" is not in this build; it has \"local\"");
  }
  const bool threads = rendezvous.substr(0, kThreads.size()) == kThreads;
  if (!threads && rendezvous.substr(0, kProcesses.size()) != kProcesses) {
    return unsupported("rendezvous \"" + options.rendezvous +
                       "\" is of no kind in this build; it has local://NAME and host://NAME");
  }
  const std::string_view name = rendezvous.substr((threads ? kThreads : kProcesses).size());
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
  return local::LocalBackend::join(options, std::string(name), !threads, out);
}

}  // namespace trireme
