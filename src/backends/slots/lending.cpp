#include "backends/slots/lending.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>

#include "backends/slots/ring.hpp"
#include "kernels/reduce.hpp"
#include "platform/death_word.hpp"
#include "platform/system.hpp"

namespace trireme::local {
namespace {

// From these sizes on one copy of lent memory is faster than two through the ring.
constexpr std::uint64_t kLeastMapped = 8u << 10;
constexpr std::uint64_t kLeastOfProcess = 16u << 10;  // the kernel copies, and looks up every page

// A number that only this process has at this address.
const std::uint64_t& witness() {
  static const std::uint64_t number = [] {
    std::uint64_t drawn = 0;
    return system_table().random_bytes(&drawn, sizeof drawn) ? drawn | 1 : 0;
  }();
  return number;
}

}  // namespace

Lending::Lending(Group& group, Buffers* buffers)
    : group_(group),
      buffers_(buffers),
      reach_(static_cast<std::size_t>(group.world_size()),
             buffers != nullptr && group.processes() ? Reach::unknown : Reach::no),
      processes_(static_cast<std::size_t>(group.world_size()), 0) {}

bool Lending::lends(const Ring& ring, const void* data, std::uint64_t bytes, std::uint64_t capacity,
                    Location* out) const {
  if (buffers_ == nullptr || bytes < std::min(kLeastMapped, capacity)) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  *out = Location{};
  if (!group_.processes()) {
    out->place = Place::address;
    out->offset = address;
    return true;
  }
  // The caller keeps the buffer until the message is done.
  if (const std::shared_ptr<OwnBuffer> buffer = buffers_->find(data, bytes)) {
    out->place = Place::shared;
    out->id = buffer->id();
    out->offset = address - reinterpret_cast<std::uintptr_t>(buffer->data());
    return true;
  }
  if (bytes < std::min(kLeastOfProcess, capacity)) return false;
  if (ring.reads_process.load(std::memory_order_relaxed) == 0) return false;
  out->place = Place::process;
  out->offset = address;
  return true;
}

// A process reads through its own mapping, or by the kernel: memory of this process may go away. It
// looks for a failure after it has read. A thread reads this memory itself: so it marks each piece,
// and looks for a failure under the mark. A failure is told before this rank looks at the mark.
void Lending::settle(const Ring& ring) const noexcept {
  if (group_.processes()) return;
  while (ring.reading.load(std::memory_order_seq_cst) != 0) sched_yield();
}

void Lending::introduce() {
  Member& own = group_.segment()->member(group_.rank());
  own.witness_at.store(reinterpret_cast<std::uintptr_t>(&witness()), std::memory_order_relaxed);
  own.witness.store(witness(), std::memory_order_relaxed);
  own.process.store(static_cast<std::uint32_t>(getpid()), std::memory_order_release);
  introduced_ = true;
}

void Lending::meet(int from, Ring& ring) {
  Reach& reach = reach_[static_cast<std::size_t>(from)];
  if (reach != Reach::unknown) return;
  if (!introduced_) introduce();
  const Member& theirs = group_.segment()->member(from);
  const auto process = static_cast<pid_t>(theirs.process.load(std::memory_order_acquire));
  if (process == 0) return;
  const std::uint64_t expected = theirs.witness.load(std::memory_order_relaxed);
  std::uint64_t found = 0;
  // In another namespace the number may be that of another process.
  const bool reads = process > 0 && expected != 0 &&
                     system_table().read_process(process, &found,
                                                 theirs.witness_at.load(std::memory_order_relaxed),
                                                 sizeof found) == sizeof found &&
                     found == expected;
  reach = reads ? Reach::yes : Reach::no;
  processes_[static_cast<std::size_t>(from)] = process;
  if (reads) ring.reads_process.store(1, std::memory_order_relaxed);
}

Status Lending::find(int from, const Location& location, std::uint64_t bytes, Lent* out) const {
  const Place place = location.place;
  const bool processes = group_.processes();
  out->place = Place::none;
  if (buffers_ != nullptr && place == Place::address && !processes) {
    out->data = reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(location.offset));
  } else if (buffers_ != nullptr && place == Place::shared && processes) {
    std::byte* data = nullptr;
    TRIREME_RETURN_IF_ERROR(buffers_->find_mapped(from, location, bytes, &data, &out->mapping));
    if (data == nullptr) return Status::success();
    out->data = data;
  } else if (place == Place::process && reach_[static_cast<std::size_t>(from)] == Reach::yes) {
    out->address = location.offset;
  } else {
    FailureDetails details;
    details.blamed = {from};
    return Status::failure(TRIREME_ERROR_CORRUPT,
                           "rank " + std::to_string(from) + " lends memory that is nowhere")
        .with_details(std::move(details));
  }
  out->place = place;
  return Status::success();
}

Status Lending::read(int from, const Lent& lent, std::uint64_t offset, std::byte* to,
                     std::uint64_t bytes, std::uint64_t total) const {
  if (lent.place != Place::process) {
    if (total >= kernels::streaming_bytes()) {
      kernels::stream(to, lent.data + offset, bytes);
    } else {
      kernels::copy(to, lent.data + offset, bytes);
    }
    return Status::success();
  }
  const pid_t process = processes_[static_cast<std::size_t>(from)];
  const ssize_t got = system_table().read_process(process, to, lent.address + offset, bytes);
  const int error_number = errno;
  // The number of a dead process may be that of another one by now.
  const std::uint32_t life = group_.segment()->member(from).life.load(std::memory_order_acquire);
  FailureDetails details;
  details.blamed = {from};
  if (DeathWord::tells_death(life) || (got < 0 && error_number == ESRCH)) {
    return Status::failure(TRIREME_ERROR_PEER_LOST,
                           "rank " + std::to_string(from) + " ended while its message was read")
        .with_details(std::move(details));
  }
  if (got >= 0) return Status::success();
  // The kernel does not tell on which side memory is missing.
  const bool own =
      error_number == ENOMEM ||
      (error_number == EFAULT &&
       system_table().read_process(getpid(), to, reinterpret_cast<std::uintptr_t>(to), bytes) < 0);
  if (own) details.blamed = {group_.rank()};
  details.system_error = error_number;
  return Status::system(error_number, "reading a message of rank " + std::to_string(from))
      .with_details(std::move(details));
}

}  // namespace trireme::local
