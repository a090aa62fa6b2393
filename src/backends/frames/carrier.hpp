// Carrier: the peers of a rank whose group uses the caller's transport. The rank has a control
// segment and message rings of its own, as if its peers were threads; two threads play their part:
// one empties the rings to the peers into frames, the other fills the rings from them.
//
// What a rank publishes of a collective goes to each peer as a frame of its own (the slot protocol of
// slots/collective.cpp): a peer has room for it by that protocol. Where the engine carries these
// frames, whoever calls the collective sends and fetches them itself, past the two threads.
//
// A rank sends at most as much of a stream as the peer's ring has room for, so nothing has to be
// kept elsewhere, and a frame that does not fit is one that should not be there.
#pragma once

#include <trireme/transport.h>

#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/engine.hpp"
#include "backends/frames/decisions.hpp"
#include "backends/frames/frame.hpp"
#include "backends/slots/group.hpp"
#include "backends/slots/membership.hpp"
#include "backends/slots/ring.hpp"

namespace trireme::host {

class Carrier final : public local::Membership,
                      public local::Courier,
                      public std::enable_shared_from_this<Carrier> {
 public:
  // `group` is what all ranks call it; `name` is for messages.
  // `loss` as in HostBackend::Ways.
  Carrier(int rank, int world_size, std::string group, std::string name,
          const trireme_transport& transport, std::shared_ptr<Engine> engine,
          std::function<Status(int)> loss, std::uint64_t stall_ns);
  ~Carrier() override;

  Status start();  // makes the threads
  // Hands over what is left, says goodbye and ends the threads. Waits as long as that goes on, but not
  // for a peer that takes nothing.
  void leave() noexcept;

  // After a failure: waits until the peers have been told, but not long. Who gets a failure may end at
  // once, and its peers would only see that it is gone.
  void spread_failure() noexcept;

  local::Group& group() { return group_; }
  Engine* engine() const { return engine_.get(); }
  Decisions& decisions() { return decisions_; }
  bool joined(int rank) const override;
  local::Bell& bell() override { return segment_->header().join_bell; }
  void on_end(std::shared_ptr<const EndListener> listener) override {
    group_.on_end(std::move(listener));
  }

  void ring(int) noexcept override { poke(); }
  void publish(std::uint32_t channel) noexcept override;
  bool is_fetched() const noexcept override { return carries_slots_; }
  bool fetch(std::uint32_t channel) noexcept override;

 private:
  static constexpr int kSets = 2;

  struct Link {
    bool said_hello = false;
    bool said_failure = false;
    bool said_leave = false;
    std::vector<std::byte> frame;   // built, but not taken by the transport; the sender's alone
    std::uint64_t frame_bytes = 0;  // longest that the peer takes
    std::array<std::uint64_t, kSets> sent{};        // of the streams to the peer
    std::array<std::uint64_t, kSets> consumed{};    // what the peer said of them
    std::array<std::uint64_t, kSets> credited{};    // what the peer was told of its streams
    std::array<std::uint64_t, kChannels> called{};  // the last slot sent, by channel
    std::uint64_t broken_ns = 0;  // when the transport failed to send to the peer; 0: it did not
    bool dead = false;            // it did so again
    std::int32_t answer = 0;      // what it answered then
  };

  // How many slots a rank has published by channel, when it leaves.
  using LastSlots = std::array<std::uint64_t, kChannels>;
  LastSlots last_slots() const;
  // Those whose slots the engine carries, from 0 on.
  std::uint32_t carried_channels() const { return carries_slots_ ? engine_->channels() : 0; }

  std::uint64_t capacity() const { return local::ring_capacity(segment_->layout()); }
  Link& link(int rank) { return links_[static_cast<std::size_t>(rank)]; }
  local::Ring& ring_to(int rank, int set) { return local::ring_of(*segment_, set, me_, rank); }
  local::Ring& ring_from(int rank, int set) { return local::ring_of(*segment_, set, rank, me_); }
  void poke() noexcept;
  void fail(trireme_status code, const std::string& text,
            std::vector<std::int32_t> blamed) noexcept;
  void fail(const Status& status) noexcept;
  void lose(int rank) noexcept;
  void end_thread() noexcept;

  // The sending thread.
  void send_frames() noexcept;
  bool is_done_with(int rank);
  void build(int rank);
  bool build_decision(int rank, Link& link);
  void build_slot(Link& link);
  static void write_slot(const local::Slot& slot, std::byte* to);
  void build_data(int rank, Link& link);
  std::byte* begin_frame(Link& link, FrameKind kind, int set, std::uint64_t position,
                         std::uint64_t bytes);
  std::int32_t hand_over(int rank, const std::vector<std::byte>& frame) noexcept;
  void check_broken(std::uint64_t* wake_ns);

  // The receiving thread.
  void receive_frames() noexcept;
  void receive_until_over() noexcept;
  Status take(int from, const std::byte* frame, std::uint64_t bytes);
  Status take_hello(int from, const Hello& hello);
  Status take_data(int from, const FrameHeader& header, const std::byte* data, std::uint64_t bytes);
  Status take_slot(int from, const FrameHeader& header, const std::byte* rest, std::uint64_t bytes);
  Status take_credit(int from, const FrameHeader& header);
  Status take_leave(int from, const std::byte* rest, std::uint64_t bytes);
  void end_hopeless(int from) noexcept;
  Status corrupt(int from, const std::string& what) const;

  const int me_;
  const int n_;
  const trireme_transport transport_;
  std::shared_ptr<Engine> engine_;  // null without
  const bool carries_slots_;        // it does
  const std::function<Status(int)> loss_;
  const std::uint64_t frame_bytes_;
  std::array<std::uint8_t, 32> group_hash_{};
  local::Group group_;
  Decisions decisions_;
  std::unique_ptr<local::Segment> segment_;

  std::mutex mutex_;  // guards everything below; never held while the transport is called
  std::condition_variable changed_;
  std::uint64_t pokes_ = 0;
  std::vector<Link> links_;
  bool started_ = false;
  bool abandoned_ = false;  // the threads end before they call anything
  bool leaving_ = false;
  bool stopped_ = false;     // nothing more is to be sent
  bool spread_ = false;      // nobody waits any more until the failure has been told
  std::uint64_t moved_ = 0;  // frames that the transport took
  bool tried_all_ = false;   // leaving: everything that could be handed over has been
};

}  // namespace trireme::host
