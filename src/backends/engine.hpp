// Engine: runs collectives for a group of this backend beside the frames. Gloo and MPI are such
// engines, and so is the library's own over the memory of each host. Before the backend returns
// success it has compared the calls of all ranks; the engine only moves and reduces.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "backends/backend.hpp"
#include "backends/twin.hpp"
#include "backends/wire.hpp"

namespace trireme::host {

// Most bytes of a frame that an engine carries.
constexpr std::uint64_t kMostFrameOfSlot = 4608;

class Engine {
 public:
  virtual ~Engine() = default;

  virtual const char* name() const = 0;  // "gloo"
  // The group's description instead of the one of the transport, or "".
  virtual std::string description() const { return ""; }

  // Whether the engine has this collective, and whether it is faster at it than messages are. Both
  // depend only on terms that all ranks agree on: kind, dtype, reduction, counts, root, world size.
  // The answers stay the same once the group is ready.
  virtual bool offers(const Operation& operation) const = 0;
  virtual bool prefers(const Operation& operation) const = 0;

  // The engine runs calls of the channels before this one; messages carry the others. The same on
  // all ranks.
  virtual std::uint32_t channels() const { return kChannels; }

  // Whether calls with different tickets never meet, whatever ranks call at the same time: then
  // run() begins while the ranks still compare their calls. Else run() begins after that.
  virtual bool tells_apart() const = 0;

  // Runs one collective on the calling thread; one at a time per channel, several channels at once.
  // All ranks that make the same call have the same `ticket`. No other call of the group has it
  // while this one may be under way. Returns by the deadline, or soon after abort(), and touches no
  // memory of the operation from then on. TIMEOUT if it was late; any other failure ends the group.
  // It becomes the group's failure only if there is no better reason, such as the death of a peer.
  virtual Status run(const Operation& operation, std::uint64_t ticket, Deadline deadline) = 0;

  // Whether buffers of the backend shall have twins. The engine may lend the twins of a call's
  // memory to a library that cannot give them back: see run_lent(). Asked once.
  virtual bool lends() const { return false; }
  // Finds the twin of the buffer that holds all of [data, data + bytes), or null. Set before the
  // ranks have met.
  using FindTwin = std::function<std::shared_ptr<Twin>(const void* data, std::uint64_t bytes)>;
  virtual void find_twins_by(FindTwin find) { static_cast<void>(find); }
  // Whether this rank can lend all memory of the collective. Other ranks may not.
  virtual bool can_lend(const Operation& operation) const {
    return static_cast<void>(operation), false;
  }
  // As run(), where all ranks can lend. A rank succeeds only once the lent memory of every rank has
  // been read, while that rank was in its call. After a failure the twins are revoked.
  virtual Status run_lent(const Operation& operation, std::uint64_t ticket, Deadline deadline) {
    return run(operation, ticket, deadline);
  }

  // The wire between all ranks, over which algorithms run, or null. The same on all ranks once the
  // group is ready.
  virtual Wire* wire() { return nullptr; }
  // A failure of that wire, in the words of the engine.
  virtual Status explained(const Status& status) const { return status; }

  // Whether the engine carries the ranks' calls to their peers by itself, on the threads that call;
  // else the group's transport carries them. The same on all ranks, from the beginning. Where calls
  // are told apart, a thread inside run() must take frames, too.
  virtual bool carries_slots() const { return false; }
  // Sends a frame to every peer; the caller may reuse its memory at once. Frames of a channel
  // arrive in order, and each peer has at most one that it has not taken. Never waits; a failure
  // ends the group. `later`: the frame may wait for the first bytes of this call on wire(), or for
  // fetch().
  virtual Status publish(std::uint32_t channel, const void* frame, std::uint64_t bytes,
                         bool later) {
    return static_cast<void>(channel), static_cast<void>(frame), static_cast<void>(bytes),
           static_cast<void>(later), Status::success();
  }
  // Whether publish_to() is there. The same on all ranks, from the beginning.
  virtual bool publishes_to_one() const { return false; }
  // Whether a connection to a rank that is not near is made only when it is needed: see
  // schedules/overlay.hpp. The same on all ranks, from the beginning.
  virtual bool has_few_connections() const { return false; }
  // Whether all ranks are on one host, so that no link between hosts delays a frame. The same on
  // all ranks, once the group is ready.
  virtual bool is_on_one_host() const { return false; }
  // As publish(), to one peer, which may have any number that it has not taken.
  virtual Status publish_to(int rank, const void* frame, std::uint64_t bytes, bool later) {
    return static_cast<void>(rank), static_cast<void>(frame), static_cast<void>(bytes),
           static_cast<void>(later), Status::success();
  }
  // `taken` is called after frames were taken, outside of all locks; it must not throw.
  // `longest_frame`: peers send no longer one. Set before the ranks have met.
  virtual void after_taking(std::function<void()> taken, std::uint64_t longest_frame) {
    static_cast<void>(taken), static_cast<void>(longest_frame);
  }
  // Takes arrived frames; one thread at a time calls it. Set before the ranks have met; it must not
  // throw.
  using Take = std::function<void(int from, const std::byte* frame, std::uint64_t bytes)>;
  virtual void take_by(Take take) { static_cast<void>(take); }
  // Takes the frames that have arrived in that channel, and perhaps in others, if there are any.
  // Any thread, when the ranks have met.
  virtual Status fetch(std::uint32_t channel, bool* any) {
    return static_cast<void>(channel), static_cast<void>(any), Status::success();
  }
  // Whether rest() waits for frames; else fetch() has to be called again and again.
  virtual bool can_rest() const { return false; }
  // How many frames have been taken.
  virtual std::uint64_t taken() const { return 0; }
  // Waits for frames, or for another event of the engine; not long. Returns at once if frames were
  // taken since taken() was `seen`.
  virtual void rest(std::uint64_t seen, Deadline deadline) {
    static_cast<void>(seen), static_cast<void>(deadline);
  }
  // Whether any connection of the engine may have ended.
  virtual bool has_ended() const { return true; }
  // When the engine's connection to a rank ended; 0: it has not. loss_of() says how.
  virtual std::uint64_t ended_ns(int rank) const { return static_cast<void>(rank), 0; }
  virtual Status loss_of(int rank) { return static_cast<void>(rank), Status::success(); }
  // This rank leaves: peers shall not take the end of the engine's connections for a loss. flush()
  // sends it.
  virtual void say_goodbye() noexcept {}
  // Whether that rank has said so.
  virtual bool has_left(int rank) const { return static_cast<void>(rank), false; }
  // Sends the bytes for which there was no room in publish(). True: there are none left.
  // *flushed grows from call to call while bytes go.
  virtual bool flush(std::uint64_t* flushed) noexcept { return *flushed = 0, true; }

  // Bytes that the engine gave to peers and got from them, if it can tell. Any thread.
  virtual TrafficCounters traffic() const { return {}; }

  // The group has failed or ends: every run() ends, and later ones fail at once. Any thread, more
  // than once; never waits.
  virtual void abort() noexcept = 0;
};

}  // namespace trireme::host
