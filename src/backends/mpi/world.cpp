#include "backends/mpi/world.hpp"

#include <algorithm>

#include "backends/mpi/looks.hpp"
#include "net/host_identity.hpp"
#include "platform/failpoint.hpp"
#include "platform/system.hpp"

namespace trireme::mpi {
bool World::is_one_host() const {
  return std::all_of(hosts.begin(), hosts.end(),
                     [&](const Digest& host) { return host == hosts.front(); });
}

Meeting::Meeting(const Plugin& plugin, int world_size)
    : plugin_(plugin), all_(static_cast<std::size_t>(world_size)) {}

// Goes as far as MPI has come; a failure of MPI stays.
Status Meeting::look() {
  const auto failed = [this](const char* error) {
    return failure_ =
               Status::failure(TRIREME_ERROR_SYSTEM, std::string(plugin_.name) + ": " + error);
  };
  char error[kErrorBytes] = "";
  if (group_ == nullptr) {
    TRIREME_RETURN_IF_ERROR(failpoint("mpi", "before_meeting"));
    own_.host = host_identity("");
    if (!system_table().random_bytes(own_.random.data(), own_.random.size())) {
      return Status::failure(TRIREME_ERROR_SYSTEM, "the system gives no random numbers");
    }
    group_ = plugin_.join(error);
    if (group_ == nullptr) return failed(error);
  }
  if (request_ == nullptr) {
    const Call call{
        OperationKind::all_gather, TRIREME_DTYPE_BYTES, 0, 0, 0, sizeof(Card), &own_, all_.data()};
    const State state = plugin_.start(group_, call, &request_, error);
    if (state == State::failed) return failed(error);
    if (state == State::pending) return Status::success();
  }
  const State state = plugin_.test(group_, request_, error);
  if (state == State::pending) return Status::success();
  if (state == State::failed) return failed(error);
  auto world = std::make_unique<World>();
  for (const Card& card : all_) world->hosts.push_back(card.host);
  world->secret = all_.front().random;
  world_ = std::move(world);
  plugin_.leave(group_);
  return Status::success();
}

Status Meeting::wait(Deadline deadline, const World** out) {
  for (int looks = 0;; ++looks) {
    {
      const std::lock_guard lock(mutex_);
      TRIREME_RETURN_IF_ERROR(failure_);
      if (world_ == nullptr) TRIREME_RETURN_IF_ERROR(look());
      if (world_ != nullptr) {
        *out = world_.get();
        return Status::success();
      }
    }
    if (deadline.passed()) {
      return Status::failure(
          TRIREME_ERROR_TIMEOUT,
          "not all ranks of mpirun have come to make their first group, in which "
          "they exchange the names of their hosts");
    }
    pause_after(looks);
  }
}

}  // namespace trireme::mpi
