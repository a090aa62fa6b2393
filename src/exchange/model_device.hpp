// The device of a model: its memory there, and the way of bytes between it and memory of the host.
//
// Work goes to one stream, in the order of the calls. A call of a model waits until its work is
// done, so between two calls the device does nothing for the model. Whole units have a stream of
// their own, see DeviceUnits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "collectives/device_moves.hpp"
#include "devices/device.hpp"
#include "exchange/storage.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

// One thread at a time. INVALID_ARGUMENT, INVALID_STATE and UNSUPPORTED leave the device as it was.
// After any other failure it may still be at work: then its memory is never given back.
class ModelDevice {
 public:
  explicit ModelDevice(std::shared_ptr<DeviceMoves> moves) : moves_(std::move(moves)) {}
  ModelDevice(const ModelDevice&) = delete;
  ModelDevice& operator=(const ModelDevice&) = delete;

  // "CUDA device 0".
  std::string text() const { return moves_->text(); }
  // INVALID_ARGUMENT if the caller's memory is not this device's.
  Status check(const char* what, const void* data, std::uint64_t bytes) const {
    return moves_->check(what, data, bytes);
  }

  // The bytes of open(), whose largest gradient has `largest` bytes.
  static std::uint64_t plan(std::uint64_t largest);
  Status open(const std::shared_ptr<AllocatedBytes>& counter, std::uint64_t largest,
              std::uint64_t timeout_ns);
  void close();
  // The device may be at work for ever: no memory of it goes back.
  void keep_open() const { moves_->keep_open(); }
  devices::Place place() const { return moves_->device()->place(); }
  // Undefined contents; `bytes` is not 0.
  Status pin(Arena* out, const std::shared_ptr<AllocatedBytes>& counter, MemoryKind kind,
             std::uint64_t bytes);
  // Zeros.
  Status allocate(Arena* out, const std::shared_ptr<AllocatedBytes>& counter, MemoryKind kind,
                  std::uint64_t bytes);

  // ---- the caller's stream ----
  // Null: the default one, as before the first call. Refused as DeviceMoves::run() refuses one.
  // INVALID_STATE while it is recorded into a graph.
  Status set_stream(void* native);
  void* native_stream() const { return native_stream_; }
  // Work that is queued there follows the caller's, and the caller's later work follows it.
  Status caller(std::unique_ptr<devices::Stream>* out) { return adopt(native_stream_, out); }
  // The host waits for what the caller has queued there. A copy behind that work would touch the
  // caller's memory when this call has long returned.
  Status begin() { return wait_for(native_stream_); }
  // The same for a stream that was the caller's.
  Status wait_for(void* native);
  // Before memory goes back that the caller's work may use: the host waits for that work. False if
  // nothing is known of it: its stream is recorded into a graph, or does not exist any more.
  bool end();

  // ---- over when they return ----
  Status read(void* to_host, const void* from, std::uint64_t bytes);
  Status write(void* to, const void* from_host, std::uint64_t bytes);
  Status copy(void* to, const void* from, std::uint64_t bytes);
  // The bytes of a gradient in memory of the host, which stay until the next call.
  Status fetch(const void* from, std::uint64_t bytes, const void** out_host);
  Status finish();

  // ---- queued ----
  // As many bytes as stage() takes at once.
  std::uint64_t stage_bytes() const { return scratch_.bytes(); }
  // Copies memory of the host, which is read before this returns, to the device. It stays there
  // until the work queued before the next stage() is done.
  Status stage(const void* from_host, std::uint64_t bytes, void** out);
  // The same memory, for other work between two calls of stage().
  char* scratch() const { return scratch_.data(); }
  // For other work. Its outcome goes through told().
  devices::Stream& stream() { return *stream_; }
  devices::Device& device() const { return *moves_->device(); }
  Status told(Status status);
  // Whether told() has had no failure.
  bool works() const { return works_; }
  // Copies memory of the host, which is read before this returns, to the device, in any stream.
  Status queue(devices::Stream& stream, void* to, const void* from_host, std::uint64_t bytes);
  Status wait(devices::Event& event);

 private:
  struct Slot {
    char* data = nullptr;
    std::unique_ptr<devices::Event> used;  // by the last copy
  };
  Status adopt(void* native, std::unique_ptr<devices::Stream>* out);
  Slot& next_slot() { return slots_[turn_++ % 2]; }
  Status queue_read(Slot& slot, const void* from, std::uint64_t bytes);
  Status queue_write(devices::Stream& stream, void* to, const void* from_host, std::uint64_t bytes);

  const std::shared_ptr<DeviceMoves> moves_;
  std::uint64_t timeout_ns_ = 0, chunk_ = 0;
  void* native_stream_ = nullptr;
  std::unique_ptr<devices::Stream> stream_;
  std::unique_ptr<devices::Event> before_, done_;
  Arena pinned_, scratch_;
  Slot slots_[2];  // the first two chunks of the pinned memory
  std::uint64_t turn_ = 0;
  bool works_ = true;
};

}  // namespace trireme::strategies
