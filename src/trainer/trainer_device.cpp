#include "trainer/trainer_device.hpp"

#include <algorithm>
#include <string>

#include "sharding/activation_plan.hpp"

namespace trireme::strategies {

using kernels::Gap;

namespace {

constexpr std::uint64_t kMarkBytes = 64 << 10;  // of each kind
constexpr Gap kMarks[] = {Gap::in_activations, Gap::in_gradients};

}  // namespace

TrainerDevice::TrainerDevice(DeviceShard& shard) : shard_(shard) {}

TrainerDevice::~TrainerDevice() {
  if (!works_) return;
  bool is_over = false;
  try {
    is_over = wait().ok();
  } catch (...) {  // no memory for the words of a failure
  }
  // Memory in use goes back on no account: the device may read and write what comes there next.
  if (!is_over) shard_.device().keep_open();
}

// ---- memory ----

std::uint64_t TrainerDevice::plan_gradients(std::uint64_t gradients) {
  return std::size(kMarks) * kMarkBytes + gradients;
}

Status TrainerDevice::allocate(std::uint64_t activations, std::uint64_t gradients,
                               std::uint32_t rounds) {
  const std::uint64_t marks = activations + gradients;
  const auto counter = std::make_shared<AllocatedBytes>();
  ModelDevice& device = shard_.device();
  TRIREME_RETURN_IF_ERROR(device.allocate(&arena_, counter, MemoryKind::working,
                                          marks + std::size(kMarks) * kMarkBytes));
  TRIREME_RETURN_IF_ERROR(
      device.pin(&pinned_, counter, MemoryKind::working, gradients + plan_losses(rounds)));
  losses_ = gradients;
  std::vector<char> pattern(kMarkBytes);
  for (std::size_t i = 0; i < std::size(kMarks); ++i) {
    kernels::mark_gap(pattern.data(), kMarkBytes, kMarks[i]);
    TRIREME_RETURN_IF_ERROR(
        device.write(arena_.data() + marks + i * kMarkBytes, pattern.data(), kMarkBytes));
  }
  marks_ = arena_.data() + marks;
  return Status::success();
}

trireme_device TrainerDevice::place() const {
  const devices::Place place = shard_.device().place();
  return {place.kind, place.index};
}

trireme_stream TrainerDevice::stream() const {
  return {place().kind, 0, shard_.device().native_stream()};
}

// ---- order ----

template <class Work>
Status TrainerDevice::queue(const Work& work) {
  ModelDevice& device = shard_.device();
  std::unique_ptr<devices::Stream> stream;
  TRIREME_RETURN_IF_ERROR(shard_.report(device.caller(&stream)));
  note_work();
  return told(shard_.report(device.told(work(*stream))));
}

// After any other failure the device keeps all memory.
Status TrainerDevice::told(Status status) {
  if (!status.ok() && status.code() != TRIREME_ERROR_INVALID_ARGUMENT &&
      status.code() != TRIREME_ERROR_INVALID_STATE) {
    works_ = false;
  }
  return status;
}

Status TrainerDevice::begin() {
  if (works_ && native_ != shard_.device().native_stream()) TRIREME_RETURN_IF_ERROR(wait());
  return queue([](devices::Stream&) { return Status::success(); });
}

Status TrainerDevice::wait() {
  void* const native = works_ ? native_ : shard_.device().native_stream();
  TRIREME_RETURN_IF_ERROR(told(shard_.report(shard_.device().wait_for(native))));
  works_ = false;
  return Status::success();
}

// ---- work ----

// Each copy has all that lies there already, so a few are enough.
Status TrainerDevice::mark(void* to, std::uint64_t bytes, Gap gap) {
  const char* const pattern = marks_ + (gap == Gap::in_activations ? 0 : kMarkBytes);
  return queue([&](devices::Stream& stream) {
    char* const first = static_cast<char*>(to);
    std::uint64_t done = std::min(bytes, kMarkBytes);
    TRIREME_RETURN_IF_ERROR(stream.copy(first, pattern, done));
    while (done < bytes) {
      const std::uint64_t part = std::min(done, bytes - done);
      TRIREME_RETURN_IF_ERROR(stream.copy(first + done, first, part));
      done += part;
    }
    return Status::success();
  });
}

Status TrainerDevice::clear(void* to, std::uint64_t bytes) {
  return queue([&](devices::Stream& stream) { return stream.fill(to, 0, bytes); });
}

Status TrainerDevice::fetch(void* to, const void* from, std::uint64_t bytes) {
  return queue([&](devices::Stream& stream) { return stream.copy(to, from, bytes); });
}

Status TrainerDevice::check(const void* gradient, std::uint64_t bytes) const {
  return shard_.report(shard_.device().told(shard_.device().check("gradient", gradient, bytes)));
}

Status TrainerDevice::read(void* to_host, const void* from, std::uint64_t bytes) {
  return shard_.report(shard_.device().read(to_host, from, bytes));
}

}  // namespace trireme::strategies
