#include "backends/gloo/engine.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backends/parts.hpp"
#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::gloo {

using Piece = tcp::Exchange::Transfer;

struct Transfer : Piece {};

struct Run {
  tcp::Exchange& exchange;
  const Operation& operation;
  std::uint64_t ticket;
  Deadline deadline;
  Status stopped = Status::success();  // the reason why a service refused
};

namespace {

bool is_integer(trireme_dtype dtype) {
  return dtype >= TRIREME_DTYPE_I8 && dtype <= TRIREME_DTYPE_U64;
}

// Whether the result is the same if partial results have the dtype itself. Narrow types are not:
// they are rounded once, at the end.
bool combines_in_steps(trireme_dtype dtype, trireme_reduction reduction) {
  if (is_integer(dtype) || dtype == TRIREME_DTYPE_F32 || dtype == TRIREME_DTYPE_F64) return true;
  return reduction == TRIREME_REDUCTION_MIN || reduction == TRIREME_REDUCTION_MAX;
}

// A failure whose words need no memory.
Status no_memory() noexcept {
  return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "out of memory");
}

Transfer* begin(Run* run, int member, std::uint64_t slot, const void* data, std::uint64_t bytes,
                Status (tcp::Exchange::*way)(Piece&)) noexcept {
  try {
    auto transfer = std::make_unique<Transfer>();
    transfer->peer = member;
    transfer->ticket = run->ticket;
    transfer->slot = slot;
    transfer->data = static_cast<std::byte*>(const_cast<void*>(data));
    transfer->bytes = bytes;
    run->stopped = (run->exchange.*way)(*transfer);
    return run->stopped.ok() ? transfer.release() : nullptr;
  } catch (...) {
    run->stopped = no_memory();
    return nullptr;
  }
}

constexpr Services kServices{
    [](Run* run, int member, std::uint64_t slot, const void* data, std::uint64_t bytes) noexcept {
      return begin(run, member, slot, data, bytes, &tcp::Exchange::send);
    },
    [](Run* run, int member, std::uint64_t slot, void* data, std::uint64_t bytes) noexcept {
      return begin(run, member, slot, data, bytes, &tcp::Exchange::receive);
    },
    [](Run* run, Transfer* transfer) noexcept {
      try {
        run->stopped = run->exchange.wait(*transfer, run->deadline);
      } catch (...) {
        run->stopped = no_memory();
      }
      return run->stopped.ok();
    },
    [](Run* run, Transfer* transfer) noexcept {
      run->exchange.drop(*transfer);
      delete transfer;
    },
    [](const Run* run, void* out, const void* one, const void* other,
       std::uint64_t count) noexcept {
      const void* const sources[] = {one, other};
      kernels::reduce(run->operation.dtype, kernels::unfinished(run->operation.reduction), out,
                      sources, 2, count, 1, 1);
    }};

std::string plugin_file() {
  const char* const named = std::getenv("TRIREME_GLOO_LIBRARY");
  if (named != nullptr && *named != 0) return named;
  return plugin_path("libtrireme_gloo.so");
}

Status load(const Plugin** out) {
  return open_plugin("Gloo", plugin_file(), kPluginSymbol, kPluginVersion, out);
}

}  // namespace

Status available() {
  const Plugin* plugin = nullptr;
  return load(&plugin);
}

Status GlooEngine::open(Members members, std::shared_ptr<const tcp::Lines> lines,
                        std::unique_ptr<host::Engine>* out) {
  const Plugin* plugin = nullptr;
  TRIREME_RETURN_IF_ERROR(load(&plugin));
  auto engine = std::make_unique<GlooEngine>(*plugin, std::move(members), std::move(lines));
  TRIREME_RETURN_IF_ERROR(engine->exchange_.open());
  engine->group_ = plugin->open(engine->exchange_.own(), engine->exchange_.size(), &kServices);
  if (engine->group_ == nullptr) {
    return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "no memory for a group of Gloo");
  }
  *out = std::move(engine);
  return Status::success();
}

GlooEngine::~GlooEngine() {
  if (group_ != nullptr) plugin_.close(group_);
}

bool GlooEngine::offers(const Operation& operation) const {
  if (exchange_.size() == 1) return false;
  switch (operation.kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce:
    case OperationKind::reduce_scatter:
      return combines_in_steps(operation.dtype, operation.reduction);
    case OperationKind::all_gather:
    case OperationKind::all_to_all:
    case OperationKind::broadcast:
    case OperationKind::barrier: return true;
    default: return false;
  }
}

// Thresholds measured against messages on the loopback, with 2 and 4 ranks. Gloo's reductions in
// two rounds pay from about this size on, all else from the size that does not fit into a slot.
bool GlooEngine::prefers(const Operation& operation) const {
  constexpr std::uint64_t kReducedBytes = 16u << 10;
  const bool in_rounds =
      operation.kind == OperationKind::all_reduce || operation.kind == OperationKind::reduce;
  return !in_rounds || operation.count * dtype_size(operation.dtype) >= kReducedBytes;
}

Status GlooEngine::run(const Operation& operation, std::uint64_t ticket, Deadline deadline) {
  // Gloo divides by the length.
  if (operation.count == 0 && operation.kind != OperationKind::barrier) return Status::success();
  if (operation.kind == OperationKind::reduce_scatter) {
    return ring_.run(operation, ticket, deadline);
  }
  return run_in_gloo(operation, ticket, deadline);
}

Status GlooEngine::run_in_gloo(const Operation& operation, std::uint64_t ticket,
                               Deadline deadline) {
  const OperationKind kind = operation.kind;
  const std::uint64_t size = dtype_size(operation.dtype);
  const bool is_reduced = reduces(kind);
  // Gloo needs room for partial results on every member.
  std::unique_ptr<std::byte[]> own;
  void* receive = operation.receive;
  const bool takes = kind != OperationKind::reduce || operation.root == exchange_.own();
  if (!takes) {
    own.reset(new std::byte[operation.count * size]);
    receive = own.get();
  }
  const void* send = kind == OperationKind::broadcast ? nullptr : operation.send;
  const std::uint64_t before_own =
      static_cast<std::uint64_t>(exchange_.own()) * operation.count * size;
  const bool in_place = send == receive || (kind == OperationKind::all_gather &&
                                            send == static_cast<std::byte*>(receive) + before_own);
  const Call call{kind,
                  operation.channel,
                  operation.root,
                  is_reduced ? static_cast<std::uint32_t>(size) : 1,
                  is_reduced ? operation.count : operation.count * size,
                  in_place ? nullptr : send,
                  receive};
  Run run{exchange_, operation, ticket, deadline};
  char error[kErrorBytes] = "";
  switch (plugin_.run(group_, call, &run, error)) {
    case State::done: break;
    case State::stopped: return run.stopped;
    case State::no_memory: return no_memory();
    case State::failed:
      exchange_.abort();
      return Status::failure(TRIREME_ERROR_SYSTEM, std::string("Gloo: ") + error);
  }
  if (is_reduced && takes && kernels::unfinished(operation.reduction) != operation.reduction) {
    const void* const source = receive;
    kernels::reduce(operation.dtype, operation.reduction, receive, &source, 1, operation.count,
                    static_cast<std::uint32_t>(exchange_.size()), operation.scale);
  }
  return Status::success();
}

}  // namespace trireme::gloo
