// ChannelTable: the channels of a communicator, and which model has which of them. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/backend.hpp"
#include "collectives/channel.hpp"
#include "collectives/message_queue.hpp"
#include "collectives/records.hpp"

namespace trireme {

class ChannelTable {
 public:
  ChannelTable(Records& records, Timekeeper& timekeeper, MessageQueue& messages);

  // Makes those that are no model's.
  void open(std::shared_ptr<Backend> backend);
  // One that has been made.
  Channel& operator[](std::uint32_t number) const noexcept {
    return *channels_[number].load(std::memory_order_acquire);
  }

  // As Communicator's. *torn: the ranks were agreeing, and only some of them may know the outcome.
  std::uint32_t next_model() noexcept {
    return models_.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  Status take(std::uint32_t model, Deadline deadline, std::uint32_t* out, bool* torn);
  void leave(std::uint32_t model, std::uint32_t first) noexcept;

  // Ends operations that are late; returns the next moment to look, or UINT64_MAX.
  std::uint64_t expire();
  // No operation begins after this. True if one runs or waits.
  bool stop() noexcept;

 private:
  // By place: the last model that has left the place on one rank; 0: none. Numbers only grow.
  using Left = std::array<std::uint32_t, kModels>;

  void make(std::uint32_t number);
  Status find_place(std::uint32_t model, Deadline deadline, std::uint32_t* out);
  // A place for the model, whose owner has left it on all ranks; kModels if there is none.
  std::uint32_t free_place(std::uint32_t model, const std::vector<Left>& all) noexcept;
  Status refusal(std::uint32_t model) const;

  Records& records_;
  Timekeeper& timekeeper_;
  MessageQueue& messages_;
  std::atomic<std::uint32_t> models_{0};
  std::array<std::atomic<Channel*>, kChannels> channels_{};  // null: not made yet

  std::mutex mutex_;                  // guards the following
  std::shared_ptr<Backend> backend_;  // null: not open, or stopped
  std::deque<Channel> made_;
  Left left_{};
  Left owners_;  // of the places, as rank 0 alone knows
};

}  // namespace trireme
