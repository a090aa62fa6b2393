// Backend: what moves the bytes of one communicator, and nothing more. It knows operations by their
// fingerprint, runs collectives one at a time in the order it is given them, and messages in any number.
#pragma once

#include <trireme/transport.h>
#include <trireme/types.h>
#include <trireme/version.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme {

enum class OperationKind : std::uint32_t {
  all_reduce = TRIREME_OPERATION_KIND_ALL_REDUCE,
  reduce_scatter = TRIREME_OPERATION_KIND_REDUCE_SCATTER,
  reduce_scatter_v = TRIREME_OPERATION_KIND_REDUCE_SCATTER_V,
  all_gather = TRIREME_OPERATION_KIND_ALL_GATHER,
  all_gather_v = TRIREME_OPERATION_KIND_ALL_GATHER_V,
  broadcast = TRIREME_OPERATION_KIND_BROADCAST,
  barrier = TRIREME_OPERATION_KIND_BARRIER,
  send = TRIREME_OPERATION_KIND_SEND,
  receive = TRIREME_OPERATION_KIND_RECEIVE,
  reduce = TRIREME_OPERATION_KIND_REDUCE,
  gather = TRIREME_OPERATION_KIND_GATHER,
  gather_v = TRIREME_OPERATION_KIND_GATHER_V,
  scatter = TRIREME_OPERATION_KIND_SCATTER,
  scatter_v = TRIREME_OPERATION_KIND_SCATTER_V,
  all_to_all = TRIREME_OPERATION_KIND_ALL_TO_ALL,
  all_to_all_v = TRIREME_OPERATION_KIND_ALL_TO_ALL_V,
  probe = TRIREME_OPERATION_KIND_PROBE,
  fold = 64,  // internal: see Operation::fold
};

const char* operation_name(OperationKind kind);  // "all_reduce"
// The group of its failpoints, which is its name unless that is of several words.
const char* failpoint_name(OperationKind kind);
std::string list_ranks(const std::vector<std::int32_t>& ranks);  // "rank 2", "ranks 1, 2 and 5"

// Gets, for elements [first, first + count) of this rank's range, where each rank's contribution lies: sources[r] is the
// first of those elements of rank r, or null if rank r contributes nothing. Called for consecutive pieces of the range.
// Must not fail, block or call the communicator.
using Fold = std::function<void(std::uint64_t first, std::uint64_t count,
                                const void* const* sources, std::uint32_t source_count)>;

// Memory that peers can read. Freed when the last reference goes.
class Memory {
 public:
  virtual ~Memory() = default;
  void* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

 protected:
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// Collectives run in order within a channel; channels do not wait for each other. Channel 0 is the
// caller's, the next one the caller's urgent operations. The others belong to models, so that
// gathers, reductions and the caller's own collectives need no common order across ranks; they
// carry only memory of Backend::allocate() (threads: any memory). A model has two of its own, and
// what it holds of them is made when it first uses them.
constexpr std::uint32_t kUrgentChannel = 1;
constexpr std::uint32_t kModelChannel = 2;  // the first of the first model
constexpr std::uint32_t kModels = 64;       // that a communicator has at the same time
constexpr std::uint32_t kChannels = kModelChannel + 2 * kModels;

struct Operation;

// What a composite operation can do while it runs.
class Steps {
 public:
  virtual ~Steps() = default;
  virtual Status run(const Operation& step) = 0;  // one collective, of the same channel
  // Memory that peers read without a copy, for results that live on.
  virtual Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) = 0;
  // The channel's scratch memory, at least this large. Its content is lost with the next call.
  virtual Status scratch(std::uint64_t bytes, std::byte** out) = 0;
};

// One collective as one rank sees it, as far as a few words tell: nothing has to be made or freed for it.
// Arguments were checked by whoever made it.
struct PlainOperation {
  std::uint32_t channel = 0;
  std::uint32_t model = 0;  // whose it is, by its number in the communicator; 0: the caller's
  OperationKind kind = OperationKind::barrier;
  trireme_dtype dtype = TRIREME_DTYPE_BYTES;
  trireme_reduction reduction = 0;  // 0 where nothing is reduced
  std::int32_t root = 0;            // broadcast, reduce, gathers and scatters
  std::int32_t algorithm = 0;       // an Algorithm of schedules/algorithm.hpp; 0: the best one
  bool reproducible = false;        // combine in rank order, whatever the algorithm
  double scale = 0;                 // SCALED_SUM only
  const void* send = nullptr;
  void* receive = nullptr;  // broadcast: data, send is then unused
  // As in the header: all elements (all_reduce, reduce, broadcast), one block (reduce_scatter,
  // all_gather, gather, scatter, all_to_all), 0 (barrier), the sum of counts (the v forms and fold).
  std::uint64_t count = 0;
};

// One collective, with all that it can have.
struct Operation : PlainOperation {
  Operation() = default;
  explicit Operation(const PlainOperation& plain) : PlainOperation(plain) {}

  // The v forms and fold: elements of each rank's block. all_to_all_v: of the block that rank s has
  // for rank d, at s * world size + d.
  std::vector<std::uint64_t> counts;
  // fold: every rank gives `send` (count elements, or null for no contribution); rank r is shown block r of all of them.
  Fold fold;
  // Anything else that all ranks must agree on; part of the fingerprint. For messages of a mismatch it has a name.
  std::uint64_t agreement = 0;
  const char* agreement_name = "";
  std::shared_ptr<const void> owner;  // what must live until the operation is over, such as memory it uses
  std::vector<const void*> also_uses;  // addresses in memory that must live as long, such as of lists
  // A step of a composite: the operation that was called, for the fingerprint and for messages.
  const Operation* called = nullptr;
  const Operation& as_called() const { return called == nullptr ? *this : *called; }
  // A composite: several collectives that take one place in the queue. The fields above then only
  // describe it; a failure of the program fails the group.
  std::function<Status(Steps& steps)> program;
};

constexpr std::int32_t kAnySource = -1;

// Memory of this process alone.
Status allocate_private(std::uint64_t bytes, std::shared_ptr<Memory>* out);

// One message under way. Owned by the caller of post(); the backend touches it, and `data`, until `done`.
struct Message {
  OperationKind kind = OperationKind::send;  // or receive, or probe, which takes nothing
  void* data = nullptr;                      // only read by a send
  std::uint64_t count = 0;
  trireme_dtype dtype = TRIREME_DTYPE_BYTES;
  std::int32_t peer = 0;  // receives and probes: or kAnySource
  std::uint64_t tag = 0;
  bool any_tag = false;
  // Receives: the message may be shorter than `count`, or of any size, in memory that is allocated
  // when it is met.
  enum class Fit { exact, up_to, allocate } fit = Fit::exact;
  // Messages match within a context alone: 0 holds the caller's, 1 + channel those of algorithms, and
  // what comes after them the words by which models get their channels.
  std::uint32_t context = 0;
  const char* part_of = "";    // for messages of failures: the operation, and
  std::uint64_t sequence = 0;  // its number
  Deadline deadline = Deadline::at(0);
  // Set by the backend inside progress(), withdraw() or post().
  Status status = Status::success();
  std::atomic<bool> done{false};
  bool matched = false;  // a byte has moved or a peer's half was found
  // Receives and probes: what was met.
  std::int32_t source = 0;
  std::uint64_t met_tag = 0;
  std::uint64_t met_count = 0;
  trireme_dtype met_dtype = 0;
  std::shared_ptr<Memory> allocated;  // with Fit::allocate
  std::uint64_t moved_bytes = 0;  // for the backend's own use
};

// What one rank called last, as far as another one can see it.
struct LastCalls {
  enum class State { absent, joined, left, lost } state = State::absent;
  bool known = false;  // false: this backend cannot see its calls, and the fields below say nothing
  OperationKind collective{};  // 0: none yet
  std::uint32_t channel = 0;
  std::uint32_t model = 0;  // as PlainOperation's
  std::uint64_t sequence = 0;
  OperationKind message{};  // 0: none yet
  std::int32_t peer = 0;    // of the message, or kAnySource
  std::uint64_t message_sequence = 0;
};

struct TrafficCounters {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
};

// What ranks decide together, see Backend::decide(). `confirm` is the second half of `shrink`.
enum class DecisionKind : std::uint32_t { none = 0, agree, shrink, confirm };

const char* decision_name(DecisionKind kind);  // "agree", "shrink"

struct Decision {
  std::uint64_t number = 0;         // in its group, from 1
  std::vector<std::int32_t> ranks;  // whose votes count, ascending; this rank is one of them
  std::uint64_t value = 0;          // agree, confirm: bitwise and of the votes; shrink: exclusive or
  bool again = false;               // some voted to shrink, some to confirm: all begin to shrink anew
  // shrink: the address where the new group meets, in place of this one's; "": the same.
  std::string place;
  std::shared_ptr<const void> meeting;  // keeps it open, if that is for this rank to do
};

// Hears why a group has failed, as Backend::shared_failure(). Must not wait for anybody; may run while the backend ends.
using EndListener = std::function<void(const Status& failure)>;

// How far Backend::start_brief() came.
enum class Brief { refused, over, waiting };
// When, by ticks_now(): just after it was published, and the last time it was seen under way.
struct BriefTime {
  std::uint64_t start_ticks = 0;
  std::uint64_t end_ticks = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;  // leaves the group; never waits for a peer

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  virtual std::string description() const = 0;  // "local (threads)"

  // Waits until all ranks have joined. May be called again after TIMEOUT. Any thread.
  virtual Status wait_ready(Deadline deadline) = 0;

  // Runs one collective on the calling thread; one at a time per channel. `sequence` counts the collectives of the channel
  // from 1. Includes the wait for the peers to join. The first failure poisons the group: it is told to all ranks, and every
  // later call on any channel answers it.
  virtual Status run(const Operation& operation, std::uint64_t sequence, Deadline deadline) = 0;

  // The same for a small collective that may be over before a look at the clock would pay: has it done, unless its peers
  // let it wait for more than a moment. `refused`: nothing has been done; run() is the way. `waiting`: it is published,
  // and finish_brief() has to follow. Only for operations without an algorithm.
  virtual Brief start_brief(const PlainOperation& operation, std::uint64_t sequence,
                            BriefTime* out_time) noexcept {
    static_cast<void>(operation), static_cast<void>(sequence), static_cast<void>(out_time);
    return Brief::refused;
  }
  virtual Status finish_brief(const Operation& operation, std::uint64_t sequence,
                              Deadline deadline) {
    return run(operation, sequence, deadline);
  }

  // Whether run() has this collective, as algorithm "native", and whether it is the better way where
  // no algorithm is asked for. Else it is made of messages. The same on ranks that call the same,
  // once know_natives() has come back with success, which may wait for all ranks to join.
  virtual Status know_natives(Deadline deadline) {
    static_cast<void>(deadline);
    return Status::success();
  }
  virtual bool has_native(const Operation& operation) const = 0;
  virtual bool prefers_native(const Operation& operation) const { return has_native(operation); }
  // The first half of run(), for a collective that is then made of messages: waits until all ranks
  // have called it, and compares. *gives: by rank, whether it contributes elements.
  virtual Status agree(const Operation& operation, std::uint64_t sequence, Deadline deadline,
                       std::vector<bool>* gives) = 0;

  // Messages: post() registers one (and may finish it), progress() moves what can be moved now. One thread at a time is
  // inside post, progress and withdraw; the caller locks. activity() changes whenever a peer has done something that progress()
  // may see; wait_activity() sleeps until it is not `seen` any more, the group has failed, or the deadline passes. Once the
  // group has failed, progress() ends all messages and does not throw.
  virtual void post(Message& message) = 0;
  virtual void progress() = 0;
  virtual bool withdraw(Message& message) = 0;  // false: it is matched or done
  virtual std::uint32_t activity() const = 0;
  virtual void wait_activity(std::uint32_t seen, Deadline deadline) = 0;
  virtual void wake_waiters() = 0;  // makes this rank's own wait_activity return, as a peer's deed would

  // Memory that run() reads from peers without a copy. Any thread.
  virtual Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) = 0;

  // Whether all ranks can see one memory.
  virtual bool shares_memory() const { return false; }
  // What peers know memory of allocate() by; they map it while it lives.
  virtual std::uint64_t key_of(Memory&) const { return 0; }
  virtual Status map_peer(int peer, std::uint64_t key, std::uint64_t bytes, Deadline deadline,
                          std::shared_ptr<Memory>* out);

  // Makes the group fail on all ranks with this status, unless it has failed already. Any thread, any time.
  virtual void fail(const Status& status) noexcept = 0;
  // The failure that poisoned the group, or success. Any thread.
  virtual Status failure() const = 0;
  // The same as ranks of other groups may hear it: without what is told to this rank alone.
  virtual Status shared_failure() const { return failure(); }

  // Whom to tell when the group has failed, whichever rank found that and whatever this one is at; at once if
  // it has. Perhaps more than once. Before anything else is called.
  virtual void on_end(std::shared_ptr<const EndListener> listener) = 0;

  // Decides one thing among the ranks that are there, also after a failure and while ranks die: every rank
  // that gets an answer gets the same one. Does not wait for ranks that count as lost: those that died, left,
  // are blamed by the group's failure if that is TIMEOUT or PEER_LOST, or did not vote before the deadline of
  // an earlier decision. Such a rank gets PEER_LOST if it lives, and so does who reaches too few others to decide.
  // Ranks that vote on different things get MISMATCH. One call at a time.
  virtual Status decide(DecisionKind kind, std::uint64_t vote, Deadline deadline, Decision* out);
  // Whether decisions are made without this rank.
  virtual bool counts_as_lost(int rank) const { return static_cast<void>(rank), false; }
  // Ends a decide() of another thread; every later one fails.
  virtual void stop_deciding() noexcept {}

  // Whom the collective that this rank runs in the channel waits for, as far as it shows. Any thread, any time.
  virtual std::vector<std::int32_t> awaited(std::uint32_t channel) const {
    return static_cast<void>(channel), std::vector<std::int32_t>{};
  }

  virtual TrafficCounters traffic() const = 0;
  // By rank. Any thread, any time; after a failure it stays as it was then.
  virtual std::vector<LastCalls> last_calls() const = 0;

 protected:
  Backend(int rank, int world_size) : rank_(rank), world_size_(world_size) {}

 private:
  const int rank_;
  const int world_size_;
};

class Token;

struct GroupOptions {
  int rank = 0;
  int world_size = 1;
  // "local://NAME", "host://NAME", "tcp://ADDRESS:PORT", "host-transport://NAME" or "mpi://"; env://
  // is resolved before
  std::string rendezvous;
  std::string backend;  // "" or the one of the rendezvous: "local", "host" or "mpi"; tcp://: or "gloo"
  std::optional<trireme_transport> transport;  // there with host-transport:// alone; checked
  std::string name;        // for messages
  // host://: what all must know; none where their starter gave none. A child's is its parent's.
  std::shared_ptr<const Token> token;
  std::string met_by;      // who has told the ranks where they meet, for the description: "Open MPI"
  // After a wait of this long the log hears of it, and whenever the wait has doubled.
  std::uint64_t stall_warning_ns = 10'000'000'000;
};

// Claims a place in the group with the right backend. Does not wait for the peers.
Status join_group(const GroupOptions& options, std::unique_ptr<Backend>* out);

}  // namespace trireme
