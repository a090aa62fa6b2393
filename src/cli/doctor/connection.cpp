// Whether ranks on several hosts reach each other: they meet as the ranks of a job do, and talk.
#include <trireme/trireme.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "cli/doctor/figures.hpp"
#include "cli/doctor/group.hpp"

namespace trireme::doctor {
namespace {

// Each rank tells the others its part of a rendezvous that names interfaces. Ranks that share
// memory have no lines.
bool tell_interfaces(const Connection& connection, const std::string& backend, Group* group) {
  constexpr std::size_t kMost = 512;  // 8 names, each of at most 46 characters as an address has
  group->interfaces.resize(static_cast<std::size_t>(group->ranks));
  if (backend.rfind("local", 0) == 0) return true;
  const char* const given = std::getenv("TRIREME_RENDEZVOUS");
  const bool is_env = connection.rendezvous.rfind("env:", 0) == 0;
  std::string own = !is_env ? connection.rendezvous : given == nullptr ? "" : given;
  std::vector<std::string> names = interfaces_of(own);
  own = "?interface=";
  for (const std::string& name : names) own += name + ",";
  if (names.empty() || own.size() >= kMost) own.clear();
  own.resize(kMost);
  std::vector<char> all(kMost * static_cast<std::size_t>(group->ranks));
  if (trireme_all_gather(group->communicator, own.data(), all.data(), kMost, TRIREME_DTYPE_BYTES,
                         nullptr) != TRIREME_OK) {
    return false;
  }
  for (std::size_t rank = 0; rank < group->interfaces.size(); ++rank) {
    const char* const theirs = all.data() + rank * kMost;
    group->interfaces[rank] = interfaces_of({theirs, strnlen(theirs, kMost)});
  }
  return true;
}

// False if the ranks do not meet; then the section says why.
bool meet(const Connection& connection, Group* group, Section* section) {
  trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
  options.rendezvous = connection.rendezvous.c_str();
  options.rank = connection.rank;
  options.world_size = connection.world_size;
  if (!connection.backend.empty()) options.backend = connection.backend.c_str();
  const auto wait_ns = static_cast<std::uint64_t>(connection.wait_seconds * 1e9);
  options.timeout_ns = wait_ns;
  if (trireme_communicator_create(&options, &group->communicator) != TRIREME_OK ||
      trireme_communicator_wait_ready(group->communicator, wait_ns) != TRIREME_OK) {
    section->facts.push_back({"all ranks", "do not meet", trireme_last_error()});
    return false;
  }
  char backend[128] = "";
  if (trireme_communicator_get_rank(group->communicator, &group->rank) != TRIREME_OK ||
      trireme_communicator_get_world_size(group->communicator, &group->ranks) != TRIREME_OK ||
      trireme_communicator_get_backend(group->communicator, backend, sizeof backend, nullptr) !=
          TRIREME_OK) {
    section->facts.push_back({"all ranks", "cannot be asked", trireme_last_error()});
    return false;
  }
  section->facts.push_back(
      {"all ranks",
       "meet: this is rank " + std::to_string(group->rank) + " of " + std::to_string(group->ranks),
       ""});
  section->facts.push_back({"backend", backend, ""});
  if (group->ranks < 2 || tell_interfaces(connection, backend, group)) return true;
  section->facts.push_back({"all ranks", "cannot tell their interfaces", trireme_last_error()});
  return false;
}

}  // namespace

std::vector<Section> connection_facts(const Connection& connection) {
  std::vector<Section> sections{{"connection", {}}};
  Group group;
  if (!meet(connection, &group, &sections.front()) || group.ranks < 2) return sections;
  if (!add_pairs(group, &sections.front())) return sections;
  sections.push_back(choice_facts(group));
  return sections;
}

}  // namespace trireme::doctor
