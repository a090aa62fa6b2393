// A device for tests of kernels: those that TRIREME_TEST_DEVICE names by its number. Arguments lie
// in pinned memory, which kernels and the host reach at the same address.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "devices/cuda/devices.hpp"
#include "devices/cuda/plugin.hpp"
#include "platform/status.hpp"

class OnDevice {
 public:
  // Null without the variable. Ends the program if the device does not open.
  static OnDevice* get() {
    static OnDevice* const device = open();
    return device;
  }

  // A place of kSlot bytes. give_back() lets it serve again.
  static constexpr std::uint64_t kSlot = 1 << 16;
  std::byte* take() {
    if (free_.empty()) {
      constexpr std::uint64_t kSlots = 64;
      void* first = nullptr;
      good(plugin_.pin(device_, kSlot * kSlots, &first, &answer_));
      for (std::uint64_t i = 0; i < kSlots; ++i) {
        free_.push_back(static_cast<std::byte*>(first) + i * kSlot);
      }
    }
    std::byte* const slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give_back(std::byte* slot) { free_.push_back(slot); }

  // Runs a kernel to its end.
  void launch(std::uint32_t kernel, const void* args, std::uint64_t bytes, std::uint32_t blocks,
              std::uint32_t threads) {
    good(plugin_.launch(device_, kernel, args, bytes, {blocks, threads}, stream_, &answer_));
    good(plugin_.record(device_, event_, stream_, &answer_));
    for (bool done = false; !done;) good(plugin_.query(device_, event_, &done, &answer_));
    ++launches_;
  }
  std::uint64_t launches() const { return launches_; }

 private:
  OnDevice(const trireme::cuda::Plugin& plugin, std::int32_t index) : plugin_(plugin) {
    good(plugin.open(index, &device_, &answer_));
    good(plugin.create_stream(device_, &stream_, &answer_));
    good(plugin.create_event(device_, &event_, &answer_));
  }
  static OnDevice* open() {
    const char* const number = std::getenv("TRIREME_TEST_DEVICE");
    if (number == nullptr) return nullptr;
    const trireme::cuda::Plugin* plugin = nullptr;
    const trireme::Status status = trireme::cuda::load_plugin(&plugin);
    if (!status.ok()) end(status.message().c_str());
    return new OnDevice(*plugin, std::atoi(number));
  }
  void good(std::int32_t status) {
    if (status != TRIREME_OK) end(answer_.text);
  }
  [[noreturn]] static void end(const char* text) {
    std::fprintf(stderr, "%s\n", text);
    std::exit(1);
  }

  const trireme::cuda::Plugin& plugin_;
  trireme::cuda::OpenDevice* device_ = nullptr;
  trireme::cuda::StreamWord stream_ = nullptr;
  trireme::cuda::EventWord event_ = nullptr;
  trireme::cuda::Answer answer_{};
  std::vector<std::byte*> free_;
  std::uint64_t launches_ = 0;
};
