// TrainerDevice: memory and work of a trainer whose model is on a device. Callbacks queue their
// work in the caller's stream, and the trainer queues its own there. The host waits where it needs
// a result: the gradients of a layer, and the losses of a pass.
#pragma once

#include <trireme/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/storage.hpp"
#include "kernels/gaps.hpp"
#include "model/device_shard.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

// INVALID_ARGUMENT and INVALID_STATE are mistakes of the caller, and fail no group.
class TrainerDevice {
 public:
  // `shard` outlives it.
  explicit TrainerDevice(DeviceShard& shard);
  // Waits for work of the caller that a pass has not waited for.
  ~TrainerDevice();
  TrainerDevice(const TrainerDevice&) = delete;
  TrainerDevice& operator=(const TrainerDevice&) = delete;

  // Bytes of activations and of a layer's gradients, and micro-batches of a rank.
  Status allocate(std::uint64_t activations, std::uint64_t gradients, std::uint32_t rounds);
  // Beside activations and gradients on the device.
  static std::uint64_t plan_losses(std::uint32_t rounds) { return rounds * sizeof(double); }
  static std::uint64_t plan_gradients(std::uint64_t gradients);
  std::uint64_t allocated_bytes() const { return arena_.bytes() + pinned_.bytes(); }

  char* arena() const { return arena_.data(); }
  // Pinned memory of the host, which the device reaches at the same address.
  double* losses() const { return reinterpret_cast<double*>(pinned_.data() + losses_); }
  char* gradients() const { return pinned_.data(); }

  trireme_device place() const;
  trireme_stream stream() const;
  // Whether work can be queued in the caller's stream. Waits for work that an earlier pass has left
  // in another one.
  Status begin();
  // Before a callback, whose work wait() waits for.
  void note_work() {
    works_ = true;
    native_ = shard_.device().native_stream();
  }
  bool works() const { return works_; }
  // Waits for all that is queued.
  Status wait();

  // ---- queued behind the caller's work ----
  // Fills memory with a mark, or with zeros.
  Status mark(void* to, std::uint64_t bytes, kernels::Gap gap);
  Status clear(void* to, std::uint64_t bytes);
  // To pinned memory of this class.
  Status fetch(void* to, const void* from, std::uint64_t bytes);

  // Whether a gradient that a callback brings is memory of the device.
  Status check(const void* gradient, std::uint64_t bytes) const;
  // Memory of the device on which nothing is at work.
  Status read(void* to_host, const void* from, std::uint64_t bytes);

 private:
  // Work for the caller's stream: work(stream).
  template <class Work>
  Status queue(const Work& work);
  Status told(Status status);

  DeviceShard& shard_;
  Arena arena_, pinned_;
  const char* marks_ = nullptr;  // in the arena, one kind after the other
  std::uint64_t losses_ = 0;     // where they are in the pinned memory
  bool works_ = false;           // work may be queued
  void* native_ = nullptr;       // in this stream
};

}  // namespace trireme::strategies
