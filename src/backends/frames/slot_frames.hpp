// SlotFrames: turns the slots that a rank publishes into frames, and frames of peers into their
// slots. The engine sends these frames where it carries slots, on the threads that make the calls;
// else the link sends them.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "backends/engine.hpp"
#include "backends/frames/call_news.hpp"
#include "backends/frames/call_rounds.hpp"
#include "backends/frames/cell_frames.hpp"
#include "backends/frames/frame.hpp"
#include "backends/slots/group.hpp"
#include "backends/slots/segment.hpp"
#include "backends/slots/slot_relay.hpp"

namespace trireme::host {

class SlotFrames final : public local::SlotRelay {
 public:
  // A rank that leaves has sent these: by carried channel the position of its last slot, and by
  // channel of cells how many of these. So many steps has it taken.
  struct LastSlots {
    // As it travels.
    static std::uint64_t bytes(std::uint32_t channels) {
      return channels == 0 ? 0 : offsetof(LastSlots, slots) + channels * sizeof(std::uint64_t);
    }

    std::array<std::uint64_t, local::kCellChannels> cells;
    std::array<std::uint64_t, local::kCellChannels> steps;
    std::array<std::uint64_t, kChannels> slots;
  };

  // `engine`: null without. `poke` tells the link that there is something for that rank, or, with
  // this rank itself, for all.
  SlotFrames(local::Group& group, Engine* engine, std::function<void(int rank)> poke,
             std::function<void(const Status&)> fail)
      : group_(group),
        engine_(engine),
        poke_(std::move(poke)),
        fail_(std::move(fail)),
        carries_(engine != nullptr && engine->carries_slots()),
        cells_(group, engine,
               carries_ && engine->can_rest() && engine->publishes_to_one() &&
                   !engine->has_few_connections() && group.world_size() > 1 &&
                   group.world_size() <= CellFrames::kMostRanks) {
    if (!carries_ || !engine->can_rest()) return;
    const int n = group.world_size();
    always_in_rounds_ = engine->publishes_to_one() &&
                        (n > CallRounds::kMostDirect || engine->has_few_connections());
    const bool perhaps = engine->publishes_to_one() && n > CallRounds::kMostDirectOnOneHost;
    if (always_in_rounds_ || perhaps) rounds_.emplace(group, *engine);
    if (engine->has_few_connections()) news_.emplace(group, *engine);
    most_bytes_ = wide(always_in_rounds_ ? CallRounds::most_bytes(n) : direct_bytes(n));
  }
  void use(local::Segment& segment) {
    segment_ = &segment;
    cells_.use(segment);
    if (rounds_.has_value()) rounds_->use(segment);
    if (news_.has_value()) news_->use(segment);
  }
  void start();  // before the ranks have met

  void ring(int rank) noexcept override { poke_(rank); }
  void publish(std::uint32_t channel, bool later) noexcept override;
  Wire* wire() const noexcept override { return engine_ == nullptr ? nullptr : engine_->wire(); }
  bool is_fetched() const noexcept override { return carries_; }
  bool fetch(std::uint32_t channel) noexcept override;
  void fetch_all() noexcept override;
  bool can_rest() const noexcept override { return carries_ && engine_->can_rest(); }
  std::uint64_t taken() const noexcept override { return engine_->taken(); }
  void rest(std::uint64_t seen, Deadline deadline) noexcept override;
  void tell(std::uint32_t channel, bool in_cell) noexcept override;
  void keep_absent(std::uint32_t channel, std::vector<std::int32_t>* missing) const override {
    if (news_.has_value() && channel < carried_channels()) news_->keep_absent(channel, missing);
  }
  // The ranks that give no sign of life: `silent` tells the near ones, the others tell the rest.
  // Set it before the ranks have met.
  void on_silence(std::function<std::vector<std::int32_t>()> silent);
  bool sends_cells() const noexcept override { return cells_.may_send(); }
  bool spreads_cells() const noexcept override { return cells_.spreads(); }
  void spread_cell(std::uint32_t channel, std::uint64_t position,
                   std::uint64_t bytes) noexcept override;
  void send_cell(std::uint32_t channel, std::uint64_t position, int to, std::uint64_t at,
                 std::uint64_t bytes, bool later) noexcept override;
  void tell_steps(std::uint32_t channel, std::uint64_t position) noexcept override;
  // Sends what this rank has to pass on.
  void pass_on() noexcept;
  // Whether slots come over other ranks: then those of a rank that has left may be late. Call it
  // when the ranks have met.
  bool in_rounds() const noexcept override {
    return rounds_.has_value() && (always_in_rounds_ || engine_->is_on_one_host());
  }
  // Whether all calls of a rank are here that it had sent to this one at its end.
  bool has_all(int rank, const LastSlots& last) const;
  // Fails the group if a connection of the engine has ended, though its rank has not said goodbye,
  // or a carried frame made no sense. Call it when no frame of the transport waits.
  void look(const std::function<bool(int rank)>& said_goodbye);

  // How many channels the engine carries, from 0 on.
  std::uint32_t carried_channels() const { return carries_ ? engine_->channels() : 0; }
  // Most bytes that a rank contributes to a collective that travels with the slots.
  std::uint64_t most_bytes() const { return most_bytes_; }
  LastSlots last(int to) const;  // of this rank, to that one

  // Writes the bytes after the header of a frame. bytes_of() is their number.
  static std::size_t bytes_of(const local::Slot& slot) { return sizeof(Call) + slot.carried; }
  static void write(const local::Slot& slot, std::byte* to);
  // Whether this is a slot that only the engine may bring.
  bool carries(const std::byte* frame, std::uint64_t bytes) const;
  // Takes the slot of a peer out of its frame. CORRUPT if the frame makes no sense.
  Status take(int from, const FrameHeader& header, const std::byte* rest, std::uint64_t bytes);
  // Called when a peer has published a slot or left. A rank inside the engine compares no calls,
  // and may wait there for ranks that never come. It finds the reason by itself: see
  // Run::explain().
  void end_hopeless(int from) noexcept;

 private:
  // Each rank sends its contribution to all others, so the limit is one of all of them.
  static std::uint64_t direct_bytes(int world_size) {
    constexpr std::uint64_t kOfAll = 64u << 10;
    return kOfAll / static_cast<std::uint64_t>(std::max(1, world_size - 1));
  }
  static std::uint64_t wide(std::uint64_t bytes) {
    return std::clamp(bytes, kCarriedBytes, local::kInlineBytes);
  }

  Status send(std::uint32_t channel, bool later);
  Status check_and_take(int from, const std::byte* frame, std::uint64_t bytes);
  Status check_call(int from, const Call& call) const;
  Status take_call(int from, int rank, const FrameHeader& header, const Call& call,
                   const std::byte* payload);
  void take_carried(int from, const std::byte* frame, std::uint64_t bytes) noexcept;
  void tell_bad_frame() noexcept;

  local::Group& group_;
  Engine* const engine_;
  const std::function<void(int)> poke_;
  const std::function<void(const Status&)> fail_;
  const bool carries_;
  CellFrames cells_;
  std::uint64_t most_bytes_ = kCarriedBytes;
  bool always_in_rounds_ = false;
  std::optional<CallRounds> rounds_;  // empty: each call goes to all ranks at once
  std::optional<CallNews> news_;      // empty: a rank that waits for long tells all others
  local::Segment* segment_ = nullptr;
  std::mutex mutex_;
  Status bad_frame_ = Status::success();    // the first carried frame that makes no sense
  std::atomic<bool> has_bad_frame_{false};  // and its failure is not told yet
};

}  // namespace trireme::host
