// Group: one rank's view of the control segment: who is there, who has left, what has failed, and how to wait.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/slots/segment.hpp"
#include "platform/clock.hpp"
#include "platform/stall.hpp"
#include "platform/status.hpp"

namespace trireme::local {

// How long a rank looks by itself for what a peer is about to do, before it sleeps: it spins while there
// is a core for every rank, then lets others run. Waking a sleeper takes longer than most operations.
class Patience {
 public:
  Patience(int spins, int yields) : spins_(spins), yields_(yields) {}
  // Waits a moment; false once it is time to sleep.
  bool wait(Deadline deadline) noexcept;

 private:
  int spins_;
  int yields_;
  std::uint64_t yields_end_ns_ = 0;
};

// For peers that do not see the segment: takes to them what this rank does.
class Courier {
 public:
  virtual ~Courier() = default;
  // The bell of `rank` was rung here.
  virtual void ring(int rank) noexcept = 0;
  // This rank has published a collective in that channel; on the thread that runs it.
  virtual void publish(std::uint32_t channel) noexcept = 0;
  // Whether a rank that waits for what peers publish has to look for it with fetch(): else it is
  // brought, and their bells are rung.
  virtual bool is_fetched() const noexcept = 0;
  // Brings what has come of a channel. Any thread; never waits. False: nothing.
  virtual bool fetch(std::uint32_t channel) noexcept = 0;
};

class Group {
 public:
  // stall_ns: after so long a wait the log hears of it.
  Group(int rank, int world_size, std::string name, bool processes,
        std::uint64_t stall_ns = kNeverStalls);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const std::string& name() const { return name_; }
  bool processes() const { return processes_; }

  // The segment, or null as long as rank 0 has not passed it (processes only). Once there, it stays.
  const Segment* segment() const { return segment_.load(std::memory_order_acquire); }
  // `owner` keeps the mapping alive.
  void attach(const Segment& segment, std::shared_ptr<void> owner);

  // Whether a rank has come and sees the segment.
  bool joined(int rank) const {
    const Segment* const shared = segment();
    return shared != nullptr && shared->member(rank).joined.load(std::memory_order_acquire) != 0;
  }
  void mark_joined() noexcept;  // this rank itself; the segment is there

  // Whether this rank has left the group in order. A rank that was lost is a failure of the group instead.
  bool left(int rank) const;
  void mark_left(int rank) noexcept;  // this rank itself, or a peer that said so
  // Whether the process of that rank is known to be gone, or to run no more.
  bool lost(int rank) const {
    return lost_here_[static_cast<unsigned>(rank)].load(std::memory_order_acquire);
  }
  void mark_lost(int rank) noexcept {
    lost_here_[static_cast<unsigned>(rank)].store(true, std::memory_order_release);
    wake_everybody();
  }
  // Whether decisions are made without this rank: it left, was lost, was given up, or the group's failure
  // blames it for not being there. A rank that was given up may still live.
  bool counts_as_lost(int rank) const noexcept;
  void give_up(int rank) noexcept;
  // What the ranks called last. Between processes nothing is known before the segment has come.
  std::vector<LastCalls> last_calls() const;
  // The collective that this rank calls.
  void note_call(OperationKind kind, std::uint32_t channel, std::uint32_t model,
                 std::uint64_t sequence) noexcept {
    Member& own = segment()->member(rank_);
    own.last_call.store(pack_call(kind, channel, model, sequence), std::memory_order_relaxed);
    // Before it sleeps there: a failure rings the bells of those that were used.
    std::uint32_t used = own.channels.load(std::memory_order_relaxed);
    while (channel >= used && !own.channels.compare_exchange_weak(used, channel + 1)) {
    }
  }
  // How many channels a rank has used, from 0 on.
  std::uint32_t channels_of(int rank) const noexcept {
    const std::uint32_t used = segment()->member(rank).channels.load(std::memory_order_seq_cst);
    return used < kChannels ? used : kChannels;
  }
  // Whom this rank waits for in a channel: those who have not come as far there.
  std::vector<std::int32_t> awaited(std::uint32_t channel) const;
  // For a transport: the peers' calls are not in this segment.
  void hide_calls_of_peers() { sees_peers_ = false; }

  // A wait that may become long, and what the log hears of it.
  Stall stall() const { return Stall(stall_ns_); }
  // "not come to ", "all_reduce", 17; sequence 0: none is told. The one-rank form needs no memory
  // of its caller, who may have to wait because there is none.
  void warn_slow(const std::vector<std::int32_t>& ranks, const char* what, const char* operation,
                 std::uint64_t sequence, const Stall& stall) const noexcept;
  void warn_slow(int rank, const char* what, const char* operation, std::uint64_t sequence,
                 const Stall& stall) const noexcept;

  // A collective of this rank that goes on without a look at who else has come: whoever calls
  // tell_of_latecomers() from time to time, on another thread, looks for it.
  struct Watched {
    const char* operation;
    std::uint64_t sequence;
    Stall stall;
    std::function<std::vector<std::int32_t>()> missing;
  };
  void watch(std::uint32_t channel, Watched* watched) noexcept;  // null: it is over
  void tell_of_latecomers() noexcept;

  // --- failure: the first one wins, on all ranks ---

  bool failed() const noexcept {
    if (failed_here_.load(std::memory_order_acquire)) return true;
    const Segment* const shared = segment();
    return shared != nullptr && shared->header().first_failure.load(std::memory_order_seq_cst) != 0;
  }
  // Tells all ranks and wakes everybody. Details of the status (operation, sequence, blamed, system_error) are passed on. Any
  // thread, any time.
  void fail(const Status& status) noexcept;
  // The failure, with its details, or success. The first operation that meets a failure of no operation (a lost peer) gives it
  // its name; without arguments nothing is added.
  Status failure(const char* operation = nullptr, std::uint64_t sequence = 0) const {
    return failure_for(Reader::this_rank, operation, sequence);
  }
  Status shared_failure() const { return failure_for(Reader::all, nullptr, 0); }
  // Who gives no sign of life: to blame when this rank waits too long, for ranks that may wait themselves. Set before the
  // first operation.
  // When this returns, the one before is not called any more.
  void on_silence(std::function<std::vector<std::int32_t>()> silent) {
    const std::lock_guard lock(silent_mutex_);
    silent_ = std::move(silent);
  }
  // Called once, after the failure was recorded here: takes the news to peers that share no segment yet.
  void on_failure(std::function<void()> listener);
  FailureRecord own_record() const;  // valid in the listener and after it
  // As Backend's: when this rank has recorded the failure. Between processes each does, by its liaison.
  void on_end(std::shared_ptr<const EndListener> listener);
  void fail(const FailureRecord& record) noexcept;  // as a peer told it

  // Called once for each peer whose process ends without leaving, by a thread that waits for
  // something, and perhaps before its memory and its sockets are gone; null: no more.
  void on_death(std::function<void(int)> listener);

  // --- waiting ---

  // Changes `bell`, and wakes who sleeps on it.
  void ring(Bell& bell) const noexcept;
  // Sleeps until bell.events is not `seen` any more or the deadline passes, but not long: call it in a loop.
  void sleep(Bell& bell, std::uint32_t seen, Deadline deadline) const noexcept;
  // Whether there is a core for every rank.
  bool spins() const { return spins_ > 0; }
  Patience patience() const { return Patience(spins_, kYields); }
  // The bell of this process alone: joining, and arrival of buffers.
  Bell& private_bell() { return private_bell_; }

  // --- for messages ---

  // Set before the first message and the first collective; lives as long as the group. Null: peers
  // see the segment.
  void use(Courier* courier) { courier_ = courier; }
  Courier* courier() const noexcept { return courier_; }
  void announce(std::uint32_t channel) const noexcept {
    if (courier_ != nullptr) courier_->publish(channel);
  }
  // Rings the message bell of a peer, or of this rank. Does nothing before the segment is there.
  void ring_member(int rank) const noexcept;
  std::uint32_t activity() const noexcept;
  void wait_activity(std::uint32_t seen, Deadline deadline) noexcept;
  void wake_waiters() noexcept;

  void count_traffic(std::uint64_t sent, std::uint64_t received) noexcept {
    bytes_sent_.fetch_add(sent, std::memory_order_relaxed);
    bytes_received_.fetch_add(received, std::memory_order_relaxed);
  }
  TrafficCounters traffic() const noexcept {
    return {bytes_sent_.load(std::memory_order_relaxed),
            bytes_received_.load(std::memory_order_relaxed)};
  }

 private:
  void wake_everybody() noexcept;
  void tell_end() const noexcept;
  void look_for_deaths() const noexcept;
  std::string with_last_calls(const Status& status) const;
  enum class Reader { this_rank, all };  // to this rank alone it is said that it is itself to blame
  Status failure_for(Reader reader, const char* operation, std::uint64_t sequence) const;
  Status blamed_on_silent(const Status& status) const;
  Status blamed_on_roots(const Status& status) const;
  std::vector<std::int32_t> behind(std::uint32_t channel, int rank) const;
  bool waits(int rank, std::uint32_t channels, std::vector<bool>* awaited) const;

  const int rank_;
  const int world_size_;
  const std::string name_;
  const bool processes_;
  static constexpr int kYields = 200;
  const int spins_;
  const std::uint64_t stall_ns_;
  bool sees_peers_ = true;

  std::atomic<const Segment*> segment_{nullptr};
  std::unique_ptr<Segment> attached_;
  std::shared_ptr<void> owner_;

  mutable std::mutex mutex_;  // guards the seven below; never held across a wait
  bool recorded_ = false;     // own_record_ is written
  FailureRecord own_record_{};
  mutable std::string met_by_;  // first operation that met the failure
  mutable std::uint64_t met_at_ = 0;
  std::function<void()> listener_;
  std::shared_ptr<const EndListener> end_listener_;
  std::function<void(int)> death_listener_;

  mutable std::mutex silent_mutex_;  // a thread of the group may fail it while the group ends
  std::function<std::vector<std::int32_t>()> silent_;
  Courier* courier_ = nullptr;

  std::mutex watch_mutex_;
  std::array<Watched*, kChannels> watched_{};

  std::atomic<bool> failed_here_{false};
  std::array<std::atomic<bool>, kMaxRanks> left_here_{};
  std::array<std::atomic<bool>, kMaxRanks> lost_here_{};
  std::array<std::atomic<bool>, kMaxRanks> given_up_here_{};
  mutable std::array<std::atomic<bool>, kMaxRanks> death_told_{};
  mutable std::atomic<std::uint64_t> next_look_ns_{0};

  mutable Bell private_bell_{};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> bytes_received_{0};
};

}  // namespace trireme::local
