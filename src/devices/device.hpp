// A device: memory, and streams that work on it. The host is one, and so is each CUDA device.
// Code that works on a device knows a Stream and not its kind.
//
// A stream does its work in the order of the calls. Calls only queue it: on the host it is done
// when they return. Memory must live until the device is done with it, which an Event tells.
#pragma once

#include <trireme/types.h>

#include <cstdint>
#include <memory>

#include "kernels/update.hpp"
#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme::devices {

// Where memory lies.
struct Place {
  trireme_device_kind kind = TRIREME_DEVICE_HOST;
  std::int32_t index = 0;

  bool is_host() const { return kind == TRIREME_DEVICE_HOST; }
  friend bool operator==(const Place&, const Place&) = default;
};

// Memory of a device, or pinned memory of the host. Its end gives it back at once.
class Block {
 public:
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  virtual ~Block() = default;
  virtual void* data() const = 0;
};

// A moment in a stream. Before the first record() it is done.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  virtual ~Event() = default;
  // Whether the device has come there. Never waits.
  virtual Status ask(bool* out_done) = 0;
};

// As kernels::reduce(). At most kMostSources sources.
struct Reduction {
  trireme_dtype dtype;
  trireme_reduction reduction;
  void* to;
  const void* const* sources;
  std::uint32_t source_count;
  std::uint64_t count;
  std::uint32_t divisor;
  double scale;
};
constexpr std::uint32_t kMostSources = 256;

// As kernels::update().
struct Update {
  const kernels::UpdateRule& rule;
  trireme_dtype dtype;
  void* parameters;
  const void* gradients;
  void* const* states;
  std::uint64_t count, step;
  double learning_rate, gradient_scale;
  const kernels::RandomRounding* random;  // or null
};

// As kernels::lamb_direction().
struct LambDirection {
  const kernels::UpdateRule& rule;
  trireme_dtype dtype;
  const void* parameters;
  void* gradients;
  void* const* states;
  std::uint64_t count, step;
  double gradient_scale;
};

// The most elements of a measure().
constexpr std::uint64_t kMostMeasured = std::uint64_t{1} << 30;

// As the functions of kernels/reduce.hpp with these names, between f32 and f16 or bf16. `to` is the
// wide side of widen and adopt, and the narrow one of narrow.
enum class Cast { widen, narrow, adopt };

class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  // Memory of the host must be pinned if the stream is a device's.
  virtual Status copy(void* to, const void* from, std::uint64_t bytes) = 0;
  virtual Status fill(void* to, unsigned char value, std::uint64_t bytes) = 0;
  virtual Status reduce(const Reduction& call) = 0;
  virtual Status update(const Update& call) = 0;
  virtual Status lamb_direction(const LambDirection& call) = 0;
  // Adds the squares of f16, bf16, f32 or f64 to the digits of a kernels::ExactSum, which may need
  // carries afterwards. The number of values that are inf or NaN lies behind them.
  virtual Status measure(trireme_dtype dtype, const void* values, std::uint64_t count,
                         std::int64_t* sum) = 0;
  virtual Status cast(Cast cast, trireme_dtype narrow, void* to, const void* from,
                      std::uint64_t count) = 0;

  // The event is done when all work before it is. Both events and streams are of one device.
  virtual Status record(Event& event) = 0;
  // Later work in this stream begins when the event is done.
  virtual Status wait(Event& event) = 0;
};

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;
  virtual Place place() const = 0;

  // `bytes` is not 0. The contents are undefined.
  virtual Status allocate(std::uint64_t bytes, std::unique_ptr<Block>* out) = 0;
  virtual Status pin(std::uint64_t bytes, std::unique_ptr<Block>* out) = 0;
  virtual Status create_stream(std::unique_ptr<Stream>* out) = 0;
  // A caller's stream, whose end is the caller's, too.
  virtual Status adopt_stream(void* native, std::unique_ptr<Stream>* out) = 0;
  virtual Status create_event(std::unique_ptr<Event>* out) = 0;
  // It may be at work for ever, and the return of memory could wait for that. From now on no block
  // of it returns memory in this process, whoever has opened it.
  virtual void abandon() const noexcept {}
  virtual bool is_abandoned() const noexcept { return false; }
};

// Blocks, streams and events keep their device alive.
std::shared_ptr<Device> host_device();

// Looks at an event until it is done. TIMEOUT at the deadline.
Status finish(Event& event, Deadline deadline);

}  // namespace trireme::devices
