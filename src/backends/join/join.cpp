// The choice of the backend for a rendezvous.
#include <memory>
#include <string_view>
#include <vector>

#include "backends/backend.hpp"
#include "backends/frames/backend.hpp"
#include "backends/gloo/engine.hpp"
#include "backends/hierarchical/engine.hpp"
#include "backends/join/choice.hpp"
#include "backends/join/network.hpp"
#include "backends/local/backend.hpp"
#include "backends/mpi/backend.hpp"
#include "backends/tcp/mesh.hpp"
#include "schedules/overlay.hpp"

namespace trireme {
namespace {

struct Scheme {
  std::string_view begin;
  std::string_view backend;
};
constexpr Scheme kThreads{"local://", "local"};
constexpr Scheme kProcesses{"host://", "local"};
constexpr Scheme kTransport{"transport://", "frames"};
constexpr Scheme kNetwork{"tcp://", "frames"};
constexpr Scheme kMpi{mpi::kScheme, "mpi"};

constexpr char kGloo[] = "gloo";
// The ranks know which of them share a host when they have met.
Status open_hierarchical_engine(const GroupOptions& options,
                                const std::shared_ptr<std::weak_ptr<tcp::Mesh>>& mesh,
                                std::shared_ptr<host::Engine> library,
                                tcp::Mesh::Options* mesh_options,
                                std::shared_ptr<host::Engine>* out) {
  hierarchical::HierarchicalEngine::Options own;
  own.rank = options.rank;
  own.world_size = options.world_size;
  own.name = options.name;
  own.lines = mesh_options->lines;
  own.uses_wire = library == nullptr;
  own.few_connections = mesh_options->few_connections;
  own.library = std::move(library);
  own.open_library = [lines = mesh_options->lines](Members members,
                                                   std::unique_ptr<host::Engine>* between) {
    return gloo::GlooEngine::open(std::move(members), lines, between);
  };
  own.silent = [mesh] {
    const auto open = mesh->lock();
    return open == nullptr ? std::vector<std::int32_t>{} : open->silent();
  };
  auto engine = std::make_shared<hierarchical::HierarchicalEngine>(std::move(own));
  TRIREME_RETURN_IF_ERROR(engine->open());
  mesh_options->line_peers = [weak = std::weak_ptr(engine), token = mesh_options->token,
                              me = options.rank](const std::vector<tcp::Entry>& entries,
                                                 std::vector<int>* ranks) {
    const auto open = weak.lock();
    if (open == nullptr) return Status::success();  // it has left
    std::vector<Digest> hosts;
    for (const tcp::Entry& entry : entries) hosts.push_back(entry.host);
    return open->open(hosts, name_of_host_group(token, entries, me), ranks);
  };
  *out = std::move(engine);
  return Status::success();
}

// The ranks' secret comes from the environment of this process; it is never part of a rendezvous.
Status join_network(const GroupOptions& options, std::string_view place,
                    std::unique_ptr<Backend>* out) {
  tcp::Mesh::Options mesh_options;
  mesh_options.rank = options.rank;
  mesh_options.world_size = options.world_size;
  mesh_options.name = options.name;
  TRIREME_RETURN_IF_ERROR(tcp::parse_place(place, &mesh_options.place));
  TRIREME_RETURN_IF_ERROR(Token::from_environment(&mesh_options.token));
  const bool by_gloo = options.backend == kGloo;
  if (by_gloo && mesh_options.place.few_connections) {
    return unsupported(
        "connections=few of a rendezvous does not go with backend \"gloo\", which "
        "needs a connection to every rank");
  }
  mesh_options.few_connections =
      mesh_options.place.few_connections || (!by_gloo && options.world_size > kMostFullyConnected);
  mesh_options.lines = std::make_shared<tcp::Lines>(options.world_size);
  std::unique_ptr<host::Engine> library;
  if (by_gloo) {
    TRIREME_RETURN_IF_ERROR(gloo::GlooEngine::open(all_ranks(options.rank, options.world_size),
                                                   mesh_options.lines, &library));
  }
  const auto watched = std::make_shared<std::weak_ptr<tcp::Mesh>>();
  std::shared_ptr<host::Engine> engine;
  TRIREME_RETURN_IF_ERROR(
      open_hierarchical_engine(options, watched, std::move(library), &mesh_options, &engine));
  std::shared_ptr<Choice> choice;
  if (options.backend.empty()) {
    choice = std::make_shared<Choice>(options, mesh_options.token, mesh_options.few_connections);
    mesh_options.line_peers = [weak = std::weak_ptr(choice), lines = mesh_options.line_peers](
                                  const std::vector<tcp::Entry>& entries,
                                  std::vector<int>* ranks) -> Status {
      const auto open = weak.lock();
      if (open != nullptr) TRIREME_RETURN_IF_ERROR(open->meet(entries));
      return lines(entries, ranks);
    };
  } else {
    mesh_options.engine = options.backend;
  }
  // Its thread must not outlive a join that fails.
  std::unique_ptr<Choice, void (*)(Choice*)> until_joined(choice.get(),
                                                          [](Choice* open) { open->leave(); });
  std::shared_ptr<tcp::Mesh> mesh;
  TRIREME_RETURN_IF_ERROR(tcp::Mesh::open(mesh_options, &mesh));
  *watched = mesh;
  const trireme_transport transport = mesh->transport();
  std::unique_ptr<const trireme_transport, void (*)(const trireme_transport*)> until_kept(
      &transport, [](const trireme_transport* given) { given->released(given->user_data); });
  std::unique_ptr<Backend> frames;
  TRIREME_RETURN_IF_ERROR(host::HostBackend::join(
      options, mesh_options.place.name,
      {transport, engine, by_gloo ? "gloo (tcp)" : "frames (tcp)",
       [mesh](int rank) { return mesh->loss(rank); },
       [mesh](bool because_of_another) { mesh->settle(because_of_another); },
       [mesh](int rank) { mesh->note_left(rank); }, [mesh] { return mesh->silent(); },
       [mesh](bool gives_up, Deadline deadline, const std::function<bool()>& ended) {
         return mesh->absent(gives_up, deadline, ended);
       },
       [mesh](std::string* where, std::shared_ptr<const void>* meeting) {
         return mesh->open_meeting(where, meeting);
       },
       !by_gloo, mesh_options.few_connections},
      &frames));
  static_cast<void>(until_kept.release());
  if (choice == nullptr) {
    *out = std::move(frames);
    return Status::success();
  }
  choice->begin(
      std::shared_ptr<host::HostBackend>(static_cast<host::HostBackend*>(frames.release())), mesh);
  *out = std::make_unique<NetworkBackend>(options, choice);
  static_cast<void>(until_joined.release());
  return Status::success();
}

}  // namespace

Status join_group(const GroupOptions& options, std::unique_ptr<Backend>* out) {
  const std::string_view rendezvous = options.rendezvous;
  if (!options.backend.empty() && options.backend != "local" && options.backend != "frames" &&
      options.backend != kGloo && options.backend != "mpi") {
    return unsupported(
        "backend \"" + options.backend +
        "\" is not in this build; it has \"local\", \"frames\", \"gloo\" and \"mpi\", and "
        "\"nccl\" for a device");
  }
  const Scheme* scheme = nullptr;
  for (const Scheme* const each : {&kThreads, &kProcesses, &kTransport, &kNetwork, &kMpi}) {
    if (rendezvous.substr(0, each->begin.size()) == each->begin) scheme = each;
  }
  if (scheme == nullptr) {
    return unsupported("rendezvous \"" + options.rendezvous +
                       "\" is of no kind in this build; it has local://NAME, host://NAME, "
                       "tcp://ADDRESS:PORT, transport://NAME and mpi://");
  }
  const bool may_use_gloo = scheme == &kNetwork && options.backend == kGloo;
  if (!options.backend.empty() && options.backend != scheme->backend && !may_use_gloo) {
    return unsupported("backend \"" + options.backend + "\" does not meet at \"" +
                       options.rendezvous + "\", which is of \"" + std::string(scheme->backend) +
                       "\"");
  }
  if ((scheme == &kTransport) != options.transport.has_value()) {
    return invalid_argument(options.transport.has_value()
                                ? "options.transport is set, but rendezvous \"" +
                                      options.rendezvous + "\" is not transport://NAME"
                                : "rendezvous \"" + options.rendezvous +
                                      "\" needs options.transport");
  }
  const std::string_view name = rendezvous.substr(scheme->begin.size());
  if (name.empty() && scheme != &kMpi) {
    return invalid_argument("rendezvous \"" + options.rendezvous + "\" has no name after //");
  }
  if (options.world_size < 1) {
    return invalid_argument("world_size " + std::to_string(options.world_size) + " is below 1");
  }
  if (options.world_size > kMaxRanks) {
    return unsupported("world_size " + std::to_string(options.world_size) + " is above " +
                       std::to_string(kMaxRanks) + ", the most ranks of a group");
  }
  const bool shares_memory = scheme == &kThreads || scheme == &kProcesses;
  if (shares_memory && options.world_size > kMostRanksOfMemory) {
    return unsupported("world_size " + std::to_string(options.world_size) + " is above " +
                       std::to_string(kMostRanksOfMemory) +
                       ", the most ranks that share memory; larger groups meet at tcp://");
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    return invalid_argument("rank " + std::to_string(options.rank) + " is not in 0 to " +
                            std::to_string(options.world_size - 1));
  }
  if (scheme == &kTransport) {
    return host::HostBackend::join(options, std::string(name),
                                   {*options.transport, nullptr, "frames (transport)", nullptr},
                                   out);
  }
  if (scheme == &kNetwork) return join_network(options, name, out);
  if (scheme == &kMpi) return mpi::join(options, out);
  return local::LocalBackend::join(options, std::string(name), scheme == &kProcesses, out);
}

}  // namespace trireme
