// A device that is open in the plugin: what its memory, streams, events and members of NCCL share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "devices/cuda/plugin.hpp"
#include "devices/device.hpp"
#include "platform/status.hpp"

namespace trireme::cuda {

// A device that is open, for as long as anything of it lives.
class Session {
 public:
  Session(const Plugin& plugin, std::int32_t index) : plugin_(plugin), index_(index) {}
  Session(const Session&) = delete;
  ~Session() {
    Answer answer;
    if (device_ != nullptr) plugin_.close(device_, &answer);
  }

  Status open() {
    Answer answer;
    return told(plugin_.open(index_, &device_, &answer), answer);
  }
  // Calls a function of the plugin for this device.
  template <class... Parameters, class... Arguments>
  Status call(std::int32_t (*Plugin::*function)(OpenDevice*, Parameters...) noexcept,
              Arguments... arguments) const {
    Answer answer;
    return told((plugin_.*function)(device_, arguments..., &answer), answer);
  }
  // The same for one of NCCL's.
  template <class... Parameters, class... Arguments>
  Status call(std::int32_t (*NcclFunctions::*function)(Parameters...) noexcept,
              Arguments... arguments) const {
    Answer answer;
    return told((plugin_.nccl.*function)(arguments..., &answer), answer);
  }
  // The device may be at work for ever, and the driver waits for that before it gives memory back.
  // All sessions of a device share it.
  void note_standstill() const noexcept { standstill().store(true); }
  bool stands_still() const noexcept { return standstill().load(); }
  OpenDevice* device() const { return device_; }
  std::int32_t index() const { return index_; }

 private:
  static constexpr std::uint32_t kMostDevices = 64;

  std::atomic<bool>& standstill() const noexcept {
    static constinit std::atomic<bool> standing[kMostDevices];
    return standing[static_cast<std::uint32_t>(index_) % kMostDevices];
  }
  Status told(std::int32_t status, const Answer& answer) const {
    if (status == TRIREME_OK) return Status::success();
    return Status::failure(status, "CUDA device " + std::to_string(index_) + ": " + answer.text);
  }

  const Plugin& plugin_;
  const std::int32_t index_;
  OpenDevice* device_ = nullptr;
};
using SharedSession = std::shared_ptr<const Session>;

// The stream and the device are CUDA's.
StreamWord stream_word_of(devices::Stream& stream);
const SharedSession& session_of(const devices::Device& device);

}  // namespace trireme::cuda
