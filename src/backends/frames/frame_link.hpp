// FrameLink: the peers of a rank whose group uses the caller's transport. The rank has its own
// control segment and message rings, as if its peers were threads; two threads play the peers'
// part: one sends the bytes of the outgoing rings as frames, the other fills the incoming rings
// from frames.
//
// A rank's publication of a collective goes to each peer as a frame of its own (the slot protocol
// of slots/collective.hpp); the protocol guarantees that the peer has room for it. Where the engine
// carries these frames, the calling thread sends and fetches them itself, past the two threads.
//
// A rank sends at most as many bytes of a stream as the peer's ring has room for. So no bytes are
// kept elsewhere, and a frame that does not fit is a fault.
#pragma once

#include <trireme/transport.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/engine.hpp"
#include "backends/frames/callers_transport.hpp"
#include "backends/frames/decisions.hpp"
#include "backends/frames/frame.hpp"
#include "backends/frames/links.hpp"
#include "backends/frames/slot_frames.hpp"
#include "backends/slots/group.hpp"
#include "backends/slots/membership.hpp"
#include "backends/slots/ring.hpp"

namespace trireme::host {

class FrameLink final : public local::Membership, public std::enable_shared_from_this<FrameLink> {
 public:
  // `group` is the name that all ranks use; `name` is for messages. `loss`, `left` and
  // `few_connections` are as in HostBackend::Ways.
  FrameLink(int rank, int world_size, std::string group, std::string name,
            const trireme_transport& transport, std::shared_ptr<Engine> engine,
            std::function<Status(int)> loss, std::function<void(int)> left, bool few_connections,
            std::uint64_t stall_ns);
  ~FrameLink() override;

  Status start();  // makes the threads
  // Sends the remaining frames, says goodbye and ends the threads. Waits while frames move, but not
  // for a peer that takes none.
  void leave() noexcept;

  // After a failure: waits a short time until the peers know it. A caller that gets a failure may
  // end at once, and its peers would only see that it is gone.
  void spread_failure() noexcept;

  local::Group& group() { return group_; }
  Engine* engine() const { return engine_.get(); }
  Decisions& decisions() { return decisions_; }
  bool joined(int rank) const override;
  bool all_joined();
  local::Bell& bell() override { return segment_->header().join_bell; }
  void on_end(std::shared_ptr<const EndListener> listener) override {
    group_.failure().on_end(std::move(listener));
  }

  SlotFrames& slots() { return slots_; }
  std::uint64_t sent_frames() const { return sent_frames_.load(std::memory_order_relaxed); }

 private:
  using Link = Links::Link;
  static constexpr int kSets = Links::kSets;

  std::uint64_t capacity() const { return local::ring_capacity(segment_->layout()); }
  local::Ring& ring_to(int rank, int set) { return local::ring_of(*segment_, set, me_, rank); }
  local::Ring& ring_from(int rank, int set) { return local::ring_of(*segment_, set, rank, me_); }
  void poke(int rank) noexcept;
  void fail(trireme_status code, const std::string& text,
            std::vector<std::int32_t> blamed) noexcept;
  void fail(const Status& status) noexcept;
  void lose(int rank) noexcept;
  bool is(bool Link::*that, int rank);
  bool has_unsent(int rank);
  bool awaits_connection();

  // For the sending thread.
  void send_frames() noexcept;
  bool is_done_with(int rank);
  // One look at all links.
  struct Pass {
    local::WaitsBelow waits;  // the ranks for which this one waits elsewhere
    std::uint64_t next_news_ns = UINT64_MAX;
  };
  void build(int rank, Pass* pass);
  bool build_decision(int rank, Link& link, Pass* pass);
  void build_slot(Link& link);
  void build_data(int rank, Link& link);
  std::byte* begin_frame(Link& link, FrameKind kind, int set, std::uint64_t position,
                         std::uint64_t bytes);
  void check_broken(std::uint64_t* wake_ns);

  // For the receiving thread.
  void receive_frames() noexcept;
  void receive_until_over() noexcept;
  Status take(int from, const std::byte* frame, std::uint64_t bytes);
  Status take_hello(int from, const Hello& hello);
  Status take_data(int from, const FrameHeader& header, const std::byte* data, std::uint64_t bytes);
  Status take_credit(int from, const FrameHeader& header);
  Status take_leave(int from, const std::byte* rest, std::uint64_t bytes);
  void finish_leaves();

  const int me_;
  const int n_;
  CallersTransport transport_;
  std::shared_ptr<Engine> engine_;  // null without
  const std::function<Status(int)> loss_;
  const std::function<void(int)> left_;  // null without
  const std::uint64_t frame_bytes_;
  std::array<std::uint8_t, 32> group_hash_{};
  local::Group group_;
  Decisions decisions_;
  SlotFrames slots_;
  std::unique_ptr<local::Segment> segment_;
  // Ranks that said goodbye, but whose calls are not all here; for the receiving thread.
  struct Leaver {
    int rank;
    SlotFrames::LastSlots last;
    std::uint64_t calls;  // that were here when this rank looked last
    Deadline grace;
  };
  std::vector<Leaver> leavers_;
  std::atomic<std::uint64_t> sent_frames_{0};
  std::atomic<bool> all_joined_{false};

  std::mutex mutex_;  // guards everything below; never held while the transport is called
  std::condition_variable changed_;
  std::uint64_t pokes_ = 0;
  Links links_;
  bool started_ = false;
  bool abandoned_ = false;  // the threads end before their first call
  bool leaving_ = false;
  bool stopped_ = false;    // no more frames are sent
  bool spread_ = false;     // callers no longer wait for the failure to be sent
  bool tried_all_ = false;  // leaving: every frame that can be sent was offered
};

}  // namespace trireme::host
