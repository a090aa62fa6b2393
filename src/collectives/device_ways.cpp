#include "collectives/device_ways.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "collectives/composite.hpp"
#include "devices/cuda/nccl.hpp"
#include "net/host_identity.hpp"
#include "platform/log.hpp"

namespace trireme {
namespace {

// Rank 0's answer about NCCL's id, in the bytes that it sends.
struct IdLetter {
  std::int32_t status = TRIREME_OK;
  cuda::NcclId id = {};
  char text[892] = {};
};
static_assert(sizeof(IdLetter) == 1024);

Status answer_of(const IdLetter& letter) {
  if (letter.status == TRIREME_OK) return Status::success();
  const bool is_status = letter.status < TRIREME_OK && letter.status >= kLowestStatus;
  FailureDetails details;
  details.blamed = {0};
  return Status::failure(
             is_status ? letter.status : TRIREME_ERROR_INTERNAL,
             "rank 0: " + std::string(letter.text, strnlen(letter.text, sizeof letter.text)))
      .with_details(std::move(details));
}

// A failure of the group, in the words of an operation that has met it.
Status as_of_operation(const Communicator& communicator, OperationKind kind,
                       const Status& failure) {
  const FailureDetails* const known = failure.details();
  FailureDetails details = known == nullptr ? FailureDetails{} : *known;
  details.operation = operation_name(kind);
  details.communicator = communicator.name();
  return Status::failure(failure.code(), failure.message()).with_details(std::move(details));
}

// How long the group of the host may take to notice that a peer is dead.
constexpr std::uint64_t kNewsNs = 500 * kMillisecond, kNewsLookNs = kMillisecond;

}  // namespace

// The peers wait in the operation, or will: they hear it now.
Status tell_peers(Communicator& communicator, OperationKind kind, const Status& why) {
  communicator.fail(why.code(), why.message());  // before anything that can throw
  std::string text = "rank " + std::to_string(communicator.rank()) + ": " + why.message();
  FailureDetails details;
  details.operation = operation_name(kind);
  details.communicator = communicator.name();
  details.blamed = {communicator.rank()};
  return Status::failure(why.code(), std::move(text)).with_details(std::move(details));
}

Status tell_or_hear(Communicator& communicator, OperationKind kind, const Status& why,
                    const Status& heard) {
  Status news = heard;
  if (why.code() == TRIREME_ERROR_DEVICE) {
    const Deadline deadline = Deadline::after(kNewsNs);
    while (news.ok() && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kNewsLookNs));
      news = communicator.failure();
    }
  }
  return news.ok() ? tell_peers(communicator, kind, why)
                   : as_of_operation(communicator, kind, news);
}

// Whatever this rank lacks becomes a reason that all ranks hear.
nccl::Offer DeviceWays::offer() const {
  nccl::Offer offer;
  offer.requires_nccl = wish_ == NcclWish::require ? 1 : 0;
  if (wish_ == NcclWish::refuse) {
    nccl::write_reason("backend \"" + backend_ + "\" was asked for", &offer);
    return offer;
  }
  if (!cuda::has_kernels()) {
    nccl::write_reason("the plugin for CUDA has no kernels, which sum in rank order", &offer);
    return offer;
  }
  const char* const blocking = std::getenv("NCCL_COMM_BLOCKING");
  if (blocking != nullptr && std::strcmp(blocking, "0") != 0) {
    nccl::write_reason(
        "NCCL_COMM_BLOCKING is set, so that calls of NCCL would wait without a deadline", &offer);
    return offer;
  }
  cuda::Found found{};
  std::string uuid, bus_id;
  Status status = cuda::load_nccl(&found);
  if (status.ok()) status = cuda::identify(*device_, &uuid, &bus_id);
  if (!status.ok()) {
    nccl::write_reason(status.message(), &offer);
    return offer;
  }
  offer.version = found.version;
  std::snprintf(offer.uuid, sizeof offer.uuid, "%s", uuid.c_str());
  // Parts of one GPU have numbers of their own, but one bus.
  std::uint64_t host = 0;
  const Digest identity = host_identity("");
  std::memcpy(&host, identity.data(), sizeof host);
  std::snprintf(offer.gpu, sizeof offer.gpu, "%016llx %s", static_cast<unsigned long long>(host),
                bus_id.c_str());
  return offer;
}

Status DeviceWays::check_wish() const {
  if (wish_ != NcclWish::require) return Status::success();
  const nccl::Offer own = offer();
  if (own.version > 0) return Status::success();
  return unsupported("options.backend is \"nccl\": " + std::string(own.reason));
}

Status DeviceWays::refusal(std::uint32_t channel) const {
  if (!way(channel).refused) return Status::success();
  return unsupported("a rank requires backend \"nccl\", which cannot be: " + obstacle(channel));
}

void DeviceWays::note(const std::string& text) {
  const std::lock_guard lock(mutex_);
  text_ = text;
}

std::string DeviceWays::text() const {
  const std::lock_guard lock(mutex_);
  return text_.empty() ? "not chosen before the first operation" : text_;
}

// Rank 0 makes the id. Its failure to do so reaches the others in the same letter.
Status DeviceWays::meet(Steps& steps, const Operation& called, Communicator& communicator,
                        Deadline deadline, Way* way) const {
  const int rank = communicator.rank();
  auto group = std::make_unique<nccl::Group>(device_, rank, communicator.world_size(), failed_);
  IdLetter letter;
  if (rank == 0) {
    const Status made = group->make_id(deadline, &letter.id);
    letter.status = made.code();
    std::snprintf(letter.text, sizeof letter.text, "%s", made.ok() ? "" : made.message().c_str());
  }
  Operation tell = step_of(called);
  tell.kind = OperationKind::broadcast;
  tell.dtype = TRIREME_DTYPE_BYTES;
  tell.reduction = 0;
  tell.root = 0;
  tell.count = sizeof letter;
  tell.receive = &letter;
  TRIREME_RETURN_IF_ERROR(steps.run(tell));
  TRIREME_RETURN_IF_ERROR(answer_of(letter));
  Status heard = Status::success();
  const Status met = group->meet(letter.id, deadline, [&] {
    heard = communicator.failure();
    return heard;
  });
  if (!met.ok()) {
    // The peers wait for this rank inside NCCL: they hear of it before this waits for NCCL.
    Status told = tell_or_hear(communicator, called.kind, met, heard);
    static_cast<void>(group->abandon());  // nothing of the caller is in its work
    return told;
  }
  way->group = std::move(group);
  return Status::success();
}

Status DeviceWays::decide(Steps& steps, const Operation& called, Communicator& communicator,
                          Deadline deadline) {
  Way& chosen = way(called.channel);
  if (chosen.decided) return Status::success();
  const nccl::Offer own = offer();
  std::vector<nccl::Offer> offers(static_cast<std::size_t>(communicator.world_size()));
  Operation tell = step_of(called);
  tell.kind = OperationKind::all_gather;
  tell.dtype = TRIREME_DTYPE_BYTES;
  tell.reduction = 0;
  tell.count = sizeof own;
  tell.send = &own;
  tell.receive = offers.data();
  TRIREME_RETURN_IF_ERROR(steps.run(tell));
  chosen.obstacle = nccl::obstacle(offers);
  if (chosen.obstacle.empty()) {
    TRIREME_RETURN_IF_ERROR(meet(steps, called, communicator, deadline, &chosen));
    note("NCCL " + cuda::text_of_nccl(own.version));
  } else {
    note("pinned memory, as NCCL cannot be: " + chosen.obstacle);
    chosen.refused = nccl::first_to_require(offers) >= 0;
  }
  chosen.decided = true;
  log_line(TRIREME_LOG_INFO, "\"" + communicator.name() + "\": device memory goes by " + text());
  return Status::success();
}

}  // namespace trireme
