#include "devices/cuda/plugin/nccl_member.hpp"

#include <climits>
#include <memory>

#include "devices/cuda/plugin/answer.hpp"

namespace trireme::cuda {
namespace {

// NCCL 2.18 has the structure of this size. Its magic number is NCCL's own.
constexpr unsigned kNcclMagic = 0xcafebeef, kConfigVersion = 21800;

// No call of such a communicator waits for a peer.
NcclConfig without_waits() {
  return {sizeof(NcclConfig),
          kNcclMagic,
          kConfigVersion,
          0,
          INT_MIN,
          INT_MIN,
          INT_MIN,
          nullptr,
          INT_MIN};
}

}  // namespace

Status NcclMember::join(OpenDevice& device, const NcclId& id, std::int32_t rank,
                        std::int32_t world_size, NcclMember** out) {
  const NcclLibrary* library = nullptr;
  TRIREME_RETURN_IF_ERROR(open_nccl(&library));
  std::unique_ptr<NcclMember> member(new NcclMember(*library, device));
  const Status status = device.inside([&] {
    NcclConfig config = without_waits();
    return library->check(
        "ncclCommInitRankConfig",
        library->CommInitRankConfig(&member->communicator_, world_size, id, rank, &config));
  });
  // A failure may leave a communicator, which the caller aborts.
  if (member->communicator_ != nullptr) *out = member.release();
  return status;
}

Status NcclMember::look(NcclState* out) {
  return device_.inside([&]() -> Status {
    NcclResult state = kNcclDone;
    TRIREME_RETURN_IF_ERROR(
        library_.check("ncclCommGetAsyncError", library_.CommGetAsyncError(communicator_, &state)));
    *out = state == kNcclBusy ? NcclState::busy : NcclState::ready;
    return library_.check("NCCL", state);
  });
}

NcclResult NcclMember::queue(const NcclCall& call, StreamHandle* stream) {
  const auto type = static_cast<int>(call.type);
  const auto reduction = static_cast<int>(call.reduction);
  switch (call.kind) {
    case NcclKind::all_reduce:
      return library_.AllReduce(call.send, call.receive, call.count, type, reduction, communicator_,
                                stream);
    case NcclKind::reduce_scatter:
      return library_.ReduceScatter(call.send, call.receive, call.count, type, reduction,
                                    communicator_, stream);
    case NcclKind::all_gather:
      return library_.AllGather(call.send, call.receive, call.count, type, communicator_, stream);
    case NcclKind::broadcast:
      return library_.Broadcast(call.send, call.receive, call.count, type, call.peer, communicator_,
                                stream);
    case NcclKind::send:
      return library_.Send(call.send, call.count, type, call.peer, communicator_, stream);
    case NcclKind::receive:
      return library_.Recv(call.receive, call.count, type, call.peer, communicator_, stream);
  }
  return kNcclInvalidUsage;
}

// A group that has begun ends, whatever its calls answer: it belongs to the thread.
Status NcclMember::run(const NcclCall* calls, std::uint32_t count, StreamWord stream) {
  return device_.inside([&]() -> Status {
    TRIREME_RETURN_IF_ERROR(library_.check("ncclGroupStart", library_.GroupStart()));
    NcclResult queued = kNcclDone;
    for (std::uint32_t i = 0; i < count && (queued == kNcclDone || queued == kNcclBusy); ++i) {
      queued = queue(calls[i], static_cast<StreamHandle*>(stream));
    }
    const NcclResult ended = library_.GroupEnd();
    TRIREME_RETURN_IF_ERROR(library_.check("a collective of NCCL", queued));
    return library_.check("ncclGroupEnd", ended);
  });
}

Status NcclMember::finalize() {
  return device_.inside(
      [&] { return library_.check("ncclCommFinalize", library_.CommFinalize(communicator_)); });
}

Status NcclMember::destroy() {
  return device_.inside(
      [&] { return library_.check("ncclCommDestroy", library_.CommDestroy(communicator_)); });
}

Status NcclMember::abort() {
  return device_.inside(
      [&] { return library_.check("ncclCommAbort", library_.CommAbort(communicator_)); });
}

namespace {

template <class Body>
std::int32_t end_member(NcclMember* member, Answer* answer, Body&& body) noexcept {
  const std::int32_t status = guard(answer, body);
  delete member;
  return status;
}

}  // namespace

void add_nccl(NcclFunctions* nccl) {
  nccl->find = [](Found* out, char* text) noexcept {
    return guard(text, [&]() -> Status {
      Nccl found;
      TRIREME_RETURN_IF_ERROR(find_nccl(&found));
      out->version = found.version;
      write(found.file.c_str(), out->file, sizeof out->file);
      return Status::success();
    });
  };
  nccl->load = [](Found* out, char* text) noexcept {
    return guard(text, [&]() -> Status {
      const NcclLibrary* library = nullptr;
      TRIREME_RETURN_IF_ERROR(open_nccl(&library));
      out->version = library->version;
      write(library->file.c_str(), out->file, sizeof out->file);
      return Status::success();
    });
  };
  nccl->make_id = [](NcclId* out, Answer* answer) noexcept {
    return guard(answer, [&]() -> Status {
      const NcclLibrary* library = nullptr;
      TRIREME_RETURN_IF_ERROR(open_nccl(&library));
      return library->check("ncclGetUniqueId", library->GetUniqueId(out));
    });
  };
  nccl->join = [](OpenDevice* device, const NcclId* id, std::int32_t rank, std::int32_t world_size,
                  NcclMember** out, Answer* answer) noexcept {
    return guard(answer, [&] { return NcclMember::join(*device, *id, rank, world_size, out); });
  };
  nccl->look = [](NcclMember* member, NcclState* out, Answer* answer) noexcept {
    return guard(answer, [&] { return member->look(out); });
  };
  nccl->run = [](NcclMember* member, const NcclCall* calls, std::uint32_t count, StreamWord stream,
                 Answer* answer) noexcept {
    return guard(answer, [&] { return member->run(calls, count, stream); });
  };
  nccl->finalize = [](NcclMember* member, Answer* answer) noexcept {
    return guard(answer, [&] { return member->finalize(); });
  };
  nccl->destroy = [](NcclMember* member, Answer* answer) noexcept {
    return end_member(member, answer, [&] { return member->destroy(); });
  };
  nccl->abort = [](NcclMember* member, Answer* answer) noexcept {
    return end_member(member, answer, [&] { return member->abort(); });
  };
}

}  // namespace trireme::cuda
