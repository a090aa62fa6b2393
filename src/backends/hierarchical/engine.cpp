#include "backends/hierarchical/engine.hpp"

#include <algorithm>
#include <utility>

#include "backends/hierarchical/run.hpp"
#include "backends/local/backend.hpp"
#include "backends/parts.hpp"
#include "kernels/reduce.hpp"
#include "platform/futex.hpp"
#include "platform/names.hpp"
#include "platform/stall.hpp"
#include "schedules/overlay.hpp"

namespace trireme::hierarchical {
namespace {

// Below so many bytes pieces between all ranks end a collective sooner. Measured on two hosts with
// two ranks each, both ways in turn: see tests/bench/hosts/table.py. More hosts, or more ranks on
// each, may have other bounds; trireme bench --tune measures them. `over_wire`: the pieces would go
// over the wire.
std::uint64_t least_bytes(OperationKind kind, bool over_wire) {
  constexpr std::uint64_t kKiB = 1u << 10;
  if (!over_wire) return 32 * kKiB;
  switch (kind) {
    case OperationKind::broadcast: return 64 * kKiB;
    case OperationKind::all_gather: return 256 * kKiB;
    case OperationKind::reduce: return 128 * kKiB;
    case OperationKind::all_gather_v: return 512 * kKiB;
    case OperationKind::reduce_scatter:
    case OperationKind::reduce_scatter_v: return 2048 * kKiB;
    default: return 32 * kKiB;
  }
}

// How often a thread asks the system for bytes before it sleeps, where every rank has a core.
constexpr int kPolls = 100;
// Ranks may share cores: a rank that yields lets its peer run, and no peer has to wake it.
constexpr int kYieldingPolls = 30;

tcp::Polls polls_of(int world_size) {
  const bool may_share = world_size > available_cpus();
  return may_share ? tcp::Polls{kYieldingPolls, true} : tcp::Polls{kPolls, false};
}

bool is_block_kind(OperationKind kind) {
  switch (kind) {
    case OperationKind::reduce_scatter:
    case OperationKind::reduce_scatter_v:
    case OperationKind::all_gather:
    case OperationKind::all_gather_v: return true;
    default: return false;
  }
}

// Bytes of all that is reduced or gathered.
std::uint64_t whole_bytes(const Operation& operation, int world_size) {
  const bool each = operation.counts.empty() && is_block_kind(operation.kind);
  const std::uint64_t elements =
      operation.count * (each ? static_cast<std::uint64_t>(world_size) : 1);
  return elements * dtype_size(operation.dtype);
}

}  // namespace

Operation column_step(const Operation& operation, bool by_library) {
  Operation step;
  step.channel = operation.channel;
  // By a library each host gets the sum. MPI's reductions to one rank lack minimum and maximum,
  // and Gloo's need room for the sum on every member.
  const bool to_all = by_library && operation.kind == OperationKind::reduce;
  step.kind = to_all ? OperationKind::all_reduce : operation.kind;
  step.dtype = operation.dtype;
  if (!reduces(operation.kind)) return step;
  if (kernels::is_narrow(operation.dtype)) step.dtype = TRIREME_DTYPE_F32;
  step.reduction = kernels::unfinished(operation.reduction);
  return step;
}

static_assert(host::kMostFrameOfSlot <= tcp::Exchange::kMostCallBytes);

HierarchicalEngine::HierarchicalEngine(Options options)
    : options_(std::move(options)),
      wire_(options_.library == nullptr && options_.lines != nullptr
                ? std::make_shared<tcp::Exchange>(all_ranks(options_.rank, options_.world_size),
                                                  options_.lines, polls_of(options_.world_size))
                : nullptr) {}

Status HierarchicalEngine::open() {
  if (wire_ == nullptr) return Status::success();
  options_.lines->tell([wire = std::weak_ptr(wire_)](int rank) {
    if (const auto open = wire.lock()) open->take_line(rank);
  });
  return wire_->open();
}

// The ranks to which a line between all ranks goes from the beginning.
std::vector<int> HierarchicalEngine::others() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const bool goes = options_.few_connections ? are_near(options_.rank, rank, options_.world_size)
                                               : rank != options_.rank;
    if (goes) ranks.push_back(rank);
  }
  return ranks;
}

void HierarchicalEngine::take_by(Take take) {
  if (options_.uses_wire) wire_->take_calls_by(std::move(take));
}

void HierarchicalEngine::after_taking(std::function<void()> taken, std::uint64_t longest_frame) {
  if (options_.uses_wire) wire_->after_calls(std::move(taken), longest_frame);
}

Status HierarchicalEngine::publish(std::uint32_t, const void* frame, std::uint64_t bytes,
                                   bool later) {
  return wire_->publish(frame, bytes, later);
}

Status HierarchicalEngine::fetch(std::uint32_t, bool* any) { return wire_->fetch(any); }

Status HierarchicalEngine::open(const std::vector<Digest>& identities, const std::string& host_name,
                                std::vector<int>* neighbours) {
  neighbours->clear();
  if (options_.uses_wire) *neighbours = others();
  auto hosts = std::make_unique<Hosts>(identities);
  on_one_host_.store(hosts->count() == 1, std::memory_order_release);
  // A host with too many ranks to share memory: then no host does.
  const bool fits = std::all_of(hosts->ranks.begin(), hosts->ranks.end(), [](const auto& ranks) {
    return ranks.size() <= static_cast<std::size_t>(kMostRanksOfMemory);
  });
  const bool shares = fits && hosts->count() < options_.world_size;
  if (!shares || hosts->count() == 1) {
    if (options_.library != nullptr) *neighbours = others();
    return Status::success();
  }
  const auto me = static_cast<std::size_t>(options_.rank);
  const int host = hosts->host[me];
  const int place = hosts->place[me];
  GroupOptions options;
  options.rank = place;
  options.world_size = static_cast<int>(hosts->ranks[static_cast<std::size_t>(host)].size());
  options.rendezvous = "host://" + host_name;
  options.name = options_.name;
  options.stall_warning_ns = kNeverStalls;  // it would warn of ranks by other numbers
  std::unique_ptr<Backend> local;
  TRIREME_RETURN_IF_ERROR(local::LocalBackend::join(options, host_name, true, &local));
  // On a host with more ranks than others, the ranks beyond carry no shard.
  std::unique_ptr<host::Engine> column;
  if (place < hosts->shards) {
    const Members members{hosts->column(place), host};
    if (options_.library != nullptr) {
      for (const int rank : members.ranks) {
        if (rank != options_.rank) neighbours->push_back(rank);
      }
      TRIREME_RETURN_IF_ERROR(options_.open_library(members, &column));
    } else {
      if (!options_.uses_wire) *neighbours = wire::Ring::neighbours(members);
      column = std::make_unique<wire::Ring>(members, *wire_);
    }
  }
  const std::lock_guard lock(mutex_);
  if (aborted_.load()) return Status::success();
  local_ = std::move(local);
  column_ = std::move(column);
  hosts_ = std::move(hosts);
  hosts_seen_.store(hosts_.get(), std::memory_order_release);
  return Status::success();
}

std::string HierarchicalEngine::description() const {
  const std::string lines = options_.lines == nullptr ? "" : options_.lines->text();
  if (hosts() == nullptr) {
    if (lines.empty()) return "";
    return (options_.library == nullptr ? "frames" : options_.library->name()) +
           (" (tcp, " + lines + ")");
  }
  const std::string between =
      options_.library == nullptr ? "" : std::string(", ") + options_.library->name();
  return "hierarchical (" + hosts()->text() + between + (lines.empty() ? "" : ", " + lines) + ")";
}

Wire* HierarchicalEngine::wire() {
  if (options_.uses_wire) return wire_.get();
  const bool reaches_all = hosts() == nullptr || options_.library_reaches_all;
  return options_.library != nullptr && reaches_all ? options_.library->wire() : nullptr;
}

bool HierarchicalEngine::offers(const Operation& operation) const {
  const Hosts* const all = hosts();
  if (all == nullptr) return library() != nullptr && library()->offers(operation);
  switch (operation.kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce:
    case OperationKind::broadcast: return column_offers(operation);
    default: return all->equal && is_block_kind(operation.kind) && column_offers(operation);
  }
}

// The same on all ranks, whether they carry a shard or not.
bool HierarchicalEngine::column_offers(const Operation& operation) const {
  return options_.library == nullptr || options_.library->offers(column_step(operation, true));
}

bool HierarchicalEngine::prefers(const Operation& operation) const {
  if (library() != nullptr) return library()->prefers(operation);
  return whole_bytes(operation, options_.world_size) >=
         least_bytes(operation.kind, options_.uses_wire);
}

TrafficCounters HierarchicalEngine::traffic() const {
  if (wire_ != nullptr) return wire_->traffic();
  const bool by_column = hosts() != nullptr && !options_.library_reaches_all;
  const host::Engine* const moves = by_column ? column_.get() : options_.library.get();
  return moves == nullptr ? TrafficCounters{} : moves->traffic();
}

void HierarchicalEngine::abort() noexcept {
  aborted_.store(true, std::memory_order_release);
  if (options_.library != nullptr) options_.library->abort();
  if (wire_ != nullptr) wire_->abort();
  const std::lock_guard lock(mutex_);
  if (column_ != nullptr) column_->abort();
  if (local_ != nullptr)
    local_->fail(Status::failure(TRIREME_ERROR_ABORTED, "the group has ended"));
}

// Translates a failure of the host's own group into numbers of the whole group.
Status HierarchicalEngine::as_group(const Status& status) const {
  const FailureDetails* const theirs = status.details();
  if (theirs == nullptr || theirs->blamed.empty()) return status;
  const Hosts& all = *hosts();
  const std::vector<int>& here =
      all.ranks[static_cast<std::size_t>(all.host[static_cast<std::size_t>(options_.rank)])];
  FailureDetails details;
  details.system_error = theirs->system_error;
  for (const std::int32_t place : theirs->blamed) {
    if (place < 0 || static_cast<std::size_t>(place) >= here.size()) continue;
    details.blamed.push_back(here[static_cast<std::size_t>(place)]);
  }
  const std::string ranks = list_ranks(details.blamed);
  std::string text;
  switch (status.code()) {
    case TRIREME_ERROR_TIMEOUT: text = ranks + " did not go on before the deadline"; break;
    case TRIREME_ERROR_PEER_LOST: text = ranks + " was lost on its host"; break;
    default:  // its numbers are places
      text = ranks + ", among the ranks of one host: " + status.message();
  }
  return Status::failure(status.code(), std::move(text)).with_details(std::move(details));
}

Status HierarchicalEngine::explained(const Status& status) const {
  if (status.code() != TRIREME_ERROR_TIMEOUT || !options_.silent) return status;
  const std::vector<std::int32_t> silent = options_.silent();
  if (silent.empty()) return status;
  FailureDetails details;
  details.blamed = silent;
  return Status::failure(TRIREME_ERROR_TIMEOUT, list_ranks(silent) +
                                                    " gave no sign of life when the deadline "
                                                    "passed")
      .with_details(std::move(details));
}

Status HierarchicalEngine::local_step(std::uint32_t channel, Operation step, Deadline deadline) {
  step.channel = channel;
  const Status status = local_->run(step, ++shelves_[channel].sequence, deadline);
  return status.ok() ? status : as_group(status);
}

Status HierarchicalEngine::barrier(std::uint32_t channel, Deadline deadline) {
  return local_step(channel, Operation(), deadline);
}

Status HierarchicalEngine::open_shelf(std::uint32_t channel, Deadline deadline) {
  Shelf& shelf = shelves_[channel];
  if (!shelf.first.empty()) return Status::success();
  TRIREME_RETURN_IF_ERROR(local_->allocate(kShelfBytes, &shelf.own));
  const auto here = static_cast<std::size_t>(local_->world_size());
  const std::uint64_t key = local_->key_of(*shelf.own);
  std::vector<std::uint64_t> keys(here);
  Operation gather;
  gather.kind = OperationKind::all_gather;
  gather.dtype = TRIREME_DTYPE_U64;
  gather.count = 1;
  gather.send = &key;
  gather.receive = keys.data();
  TRIREME_RETURN_IF_ERROR(local_step(channel, gather, deadline));
  shelf.others.resize(here);
  std::vector<std::byte*> first(here);
  for (std::size_t place = 0; place < here; ++place) {
    const bool own = static_cast<int>(place) == local_->rank();
    if (own) {
      shelf.others[place] = shelf.own;
    } else {
      const Status mapped = local_->map_peer(static_cast<int>(place), keys[place], kShelfBytes,
                                             deadline, &shelf.others[place]);
      if (!mapped.ok()) return as_group(mapped);
    }
    first[place] = static_cast<std::byte*>(shelf.others[place]->data());
  }
  shelf.first = std::move(first);
  return Status::success();
}

Status HierarchicalEngine::run(const Operation& operation, std::uint64_t ticket,
                               Deadline deadline) {
  if (library() != nullptr) return library()->run(operation, ticket, deadline);
  if (aborted_.load(std::memory_order_acquire)) {
    return Status::failure(TRIREME_ERROR_ABORTED, "the group has ended");
  }
  Status status = open_shelf(operation.channel, deadline);
  if (status.ok()) status = Run(*this, operation, ticket, deadline).execute();
  return status.ok() ? status : explained(status);
}

}  // namespace trireme::hierarchical
