#include "backends/mpi/backend.hpp"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "backends/frames/backend.hpp"
#include "backends/hierarchical/engine.hpp"
#include "backends/mpi/engine.hpp"
#include "backends/mpi/plugin.hpp"
#include "backends/mpi/world.hpp"
#include "backends/wire/ring.hpp"
#include "platform/dynamic_library.hpp"

namespace trireme::mpi {
namespace {

struct Kind {
  const char* name;
  const char* variable;  // mpirun sets it for every process
  const char* library;   // a program of this MPI is linked with it
  const char* together;  // mpirun sets it to the number of ranks on this host
};
// In this order, as Open MPI's mpirun may itself run under a manager that sets PMI_RANK.
constexpr Kind kKinds[] = {
    {"openmpi", "OMPI_COMM_WORLD_RANK", "libmpi.so.40", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpich", "PMI_RANK", "libmpich.so.12", "MPI_LOCALNRANKS"}};

std::string file_of(const Kind& kind) {
  return plugin_path(std::string("libtrireme_mpi_") + kind.name + ".so");
}

bool is_set(const char* variable) {
  const char* const text = std::getenv(variable);
  return text != nullptr && *text != 0;
}

// Whether mpirun says that all ranks are on this host.
bool are_together(int world_size) {
  bool said = false;
  for (const Kind& kind : kKinds) {
    if (!is_set(kind.together)) continue;
    if (std::getenv(kind.together) != std::to_string(world_size)) return false;
    said = true;
  }
  return said;
}

// The user's choice comes first, then the MPI that the program uses already, then the MPI of
// mpirun.
Status choose(std::string* file) {
  if (is_set("TRIREME_MPI_LIBRARY")) {
    *file = std::getenv("TRIREME_MPI_LIBRARY");
    for (const Kind& kind : kKinds) {
      if (*file == kind.name) *file = file_of(kind);
    }
    return Status::success();
  }
  for (const Kind& kind : kKinds) {
    if (!DynamicLibrary::is_loaded(kind.library)) continue;
    *file = file_of(kind);
    return Status::success();
  }
  for (const Kind& kind : kKinds) {
    if (!is_set(kind.variable)) continue;
    *file = file_of(kind);
    return Status::success();
  }
  return invalid_state(
      "mpi:// needs a process that mpirun has started, but neither OMPI_COMM_WORLD_RANK (Open MPI) "
      "nor PMI_RANK (MPICH) is set, no MPI is loaded, and TRIREME_MPI_LIBRARY names none");
}

Status load(const std::string& file, const Plugin** out) {
  return open_plugin("MPI", file, kPluginSymbol, kPluginVersion, out);
}

// A process has one MPI: the first choice stays.
Status find_plugin(const Plugin** out) {
  static std::mutex* const mutex = new std::mutex;
  static const Plugin* found = nullptr;
  const std::lock_guard lock(*mutex);
  if (found == nullptr) {
    std::string file;
    TRIREME_RETURN_IF_ERROR(choose(&file));
    TRIREME_RETURN_IF_ERROR(load(file, &found));
  }
  *out = found;
  return Status::success();
}

Status begin(const Plugin& plugin, std::int32_t* rank, std::int32_t* world_size) {
  char error[kErrorBytes] = "";
  const std::int32_t status = plugin.begin(rank, world_size, error);
  if (status == TRIREME_OK) return Status::success();
  return Status::failure(status, std::string(plugin.name) + ": " + error);
}

Status take(const char* field, std::int32_t value, int* option) {
  if (*option != 0 && *option != value) {
    return invalid_argument(std::string("options.") + field + " is " + std::to_string(*option) +
                            ", but MPI says " + std::to_string(value));
  }
  *option = value;
  return Status::success();
}

Status meet(const Plugin& plugin, int world_size, Deadline deadline, const World** out) {
  static Meeting* const meeting = new Meeting(plugin, world_size);
  return meeting->wait(deadline, out);
}

// A secret meeting place for the ranks of this rank's host, another one each time.
std::string next_place(const World& world, int rank) {
  static std::atomic<std::uint64_t> places{0};
  std::string text = std::to_string(places.fetch_add(1));
  for (const std::uint8_t byte : world.hosts[static_cast<std::size_t>(rank)]) {
    text += static_cast<char>(byte);
  }
  const Digest place =
      hmac_sha256({reinterpret_cast<const char*>(world.secret.data()), world.secret.size()}, text);
  return "mpi-" + hexadecimal(std::span(place).first(16));
}

// MPI itself runs among all ranks; where ranks share hosts, it runs among the ranks of one place.
// `group` must outlive the engine.
Status open_engine(const Plugin& plugin, Group& group, const GroupOptions& options,
                   std::shared_ptr<host::Engine>* out) {
  auto itself = std::make_shared<MpiEngine>(plugin, group, options.rank, options.world_size,
                                            are_together(options.world_size));
  if (options.backend.empty()) {
    const World* world = nullptr;
    TRIREME_RETURN_IF_ERROR(meet(plugin, options.world_size, Deadline::after(0), &world));
    const std::string place = next_place(*world, options.rank);
    if (hierarchical::Hosts(world->hosts).count() < options.world_size) {
      hierarchical::HierarchicalEngine::Options own;
      own.rank = options.rank;
      own.world_size = options.world_size;
      own.name = options.name;
      own.open_library = [wire = itself->wire()](Members members,
                                                 std::unique_ptr<host::Engine>* column) {
        *column = std::make_unique<wire::Ring>(std::move(members), *wire);
        return Status::success();
      };
      own.library = std::move(itself);
      own.library_reaches_all = true;
      auto engine = std::make_shared<hierarchical::HierarchicalEngine>(std::move(own));
      std::vector<int> neighbours;  // MPI reaches all
      TRIREME_RETURN_IF_ERROR(engine->open(world->hosts, place, &neighbours));
      *out = std::move(engine);
      return Status::success();
    }
  }
  *out = std::move(itself);
  return Status::success();
}

}  // namespace

bool is_mpi(const std::string& rendezvous) { return rendezvous.rfind(kScheme, 0) == 0; }

Status available() {
  const Plugin* plugin = nullptr;
  std::string file;
  if (choose(&file).ok()) return load(file, &plugin);
  std::string tried;
  for (const Kind& kind : kKinds) {
    const Status status = load(file_of(kind), &plugin);
    if (status.ok()) return status;
    tried += (tried.empty() ? "" : "; ") + status.message();
  }
  return unsupported(tried);
}

Status take_place(GroupOptions* options) {
  const Plugin* plugin = nullptr;
  TRIREME_RETURN_IF_ERROR(find_plugin(&plugin));
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  TRIREME_RETURN_IF_ERROR(begin(*plugin, &rank, &world_size));
  TRIREME_RETURN_IF_ERROR(take("world_size", world_size, &options->world_size));
  return take("rank", rank, &options->rank);
}

Status meet_on_host(GroupOptions* options, Deadline deadline) {
  const Plugin* plugin = nullptr;
  TRIREME_RETURN_IF_ERROR(find_plugin(&plugin));
  const World* world = nullptr;
  TRIREME_RETURN_IF_ERROR(meet(*plugin, options->world_size, deadline, &world));
  if (options->name.empty()) options->name = kScheme;
  const bool fits = options->world_size <= kMostRanksOfMemory;
  if (!world->is_one_host() || !fits) return Status::success();
  options->rendezvous = "host://" + next_place(*world, options->rank);
  options->met_by = plugin->name;
  return Status::success();
}

Status join(const GroupOptions& options, std::unique_ptr<Backend>* out) {
  const Plugin* plugin = nullptr;
  TRIREME_RETURN_IF_ERROR(find_plugin(&plugin));
  char error[kErrorBytes] = "";
  Group* const group = plugin->join(error);
  if (group == nullptr) {
    return Status::failure(TRIREME_ERROR_SYSTEM, std::string(plugin->name) + ": " + error);
  }
  trireme_transport transport = TRIREME_TRANSPORT_INIT;
  transport.user_data = group;
  transport.maximum_frame_bytes = kFrameBytes;
  transport.send = plugin->send;
  transport.receive = plugin->receive;
  transport.released = plugin->leave;
  try {
    std::shared_ptr<host::Engine> engine;
    Status status = open_engine(*plugin, *group, options, &engine);
    if (status.ok()) {
      status = host::HostBackend::join(
          options, options.rendezvous,
          {transport, std::move(engine), std::string("mpi (") + plugin->name + ")", nullptr}, out);
    }
    if (!status.ok()) plugin->leave(group);
    return status;
  } catch (...) {
    plugin->leave(group);
    throw;
  }
}

}  // namespace trireme::mpi
