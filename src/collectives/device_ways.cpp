#include "collectives/device_ways.hpp"

#include <cstdio>
#include <cstring>
#include <utility>

#include "collectives/composite.hpp"
#include "devices/cuda/nccl.hpp"
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

}  // namespace

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
  cuda::Found found{};
  std::string uuid;
  Status status = cuda::load_nccl(&found);
  if (status.ok()) status = cuda::uuid_of(*device_, &uuid);
  if (!status.ok()) {
    nccl::write_reason(status.message(), &offer);
    return offer;
  }
  offer.version = found.version;
  std::snprintf(offer.uuid, sizeof offer.uuid, "%s", uuid.c_str());
  return offer;
}

Status DeviceWays::check_wish() const {
  if (wish_ != NcclWish::require) return Status::success();
  const nccl::Offer own = offer();
  if (own.version > 0) return Status::success();
  return unsupported("options.backend is \"nccl\": " + std::string(own.reason));
}

Status DeviceWays::refusal(const Way& way) const {
  return unsupported("a rank requires backend \"nccl\", which cannot be: " + way.obstacle);
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
  auto group = std::make_unique<nccl::Group>(device_, rank, communicator.world_size());
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
  const Status met =
      group->meet(letter.id, deadline, [&communicator] { return communicator.failure(); });
  if (!met.ok()) {
    // The peers wait for this rank inside NCCL: they hear of it before this waits for NCCL.
    communicator.fail(met.code(), met.message());
    static_cast<void>(group->abandon());
    return met;
  }
  way->group = std::move(group);
  return Status::success();
}

Status DeviceWays::decide(Steps& steps, const Operation& called, Communicator& communicator,
                          Deadline deadline) {
  Way& chosen = way(called.channel);
  if (chosen.decided) return chosen.refused ? refusal(chosen) : Status::success();
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
  return chosen.refused ? refusal(chosen) : Status::success();
}

}  // namespace trireme
