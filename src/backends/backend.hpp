// Backend: moves the bytes of one communicator, and nothing more. It knows operations by their
// fingerprint. It runs collectives one at a time in the order of the calls, and messages in any
// number.
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

#include "backends/rank_set.hpp"
#include "backends/wire.hpp"
#include "platform/backoff.hpp"
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
// The group of its failpoints: its name, or one word where the name has several.
const char* failpoint_name(OperationKind kind);
std::string list_ranks(const std::vector<std::int32_t>& ranks);  // "rank 2", "ranks 1, 2 and 5"

// Gets each rank's contribution to elements [first, first + count) of this rank's range. sources[r]
// points to the first of those elements of rank r, or is null if rank r contributes none. Called
// for consecutive pieces of the range. Must not fail, block or call the communicator.
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
// caller's, the next one is for the caller's urgent operations. The others belong to models, so
// that gathers, reductions and the caller's own collectives need no common order across ranks. They
// carry only memory of Backend::allocate(), but any memory between threads. A model has two of its
// own, whose memory is made at first use.
constexpr std::uint32_t kUrgentChannel = 1;
constexpr std::uint32_t kModelChannel = 2;  // the first of the first model
constexpr std::uint32_t kModels = 64;       // models of a communicator at the same time
constexpr std::uint32_t kChannels = kModelChannel + 2 * kModels;

struct Operation;

// The actions of a composite operation while it runs.
class Steps {
 public:
  virtual ~Steps() = default;
  virtual Status run(const Operation& step) = 0;  // runs one collective of the same channel
  // Allocates memory that peers read without a copy, for results that live on.
  virtual Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) = 0;
  // The channel's scratch memory, at least this large. Its content is lost with the next call.
  virtual Status scratch(std::uint64_t bytes, std::byte** out) = 0;
};

// One collective of one rank, as far as a few words describe it: nothing has to be allocated or
// freed for it. Its maker has checked the arguments.
struct PlainOperation {
  std::uint32_t channel = 0;
  std::uint32_t model = 0;  // the number of its model in the communicator; 0: the caller's
  OperationKind kind = OperationKind::barrier;
  trireme_dtype dtype = TRIREME_DTYPE_BYTES;
  trireme_reduction reduction = 0;  // 0 if the operation does not reduce
  std::int32_t root = 0;            // broadcast, reduce, gathers and scatters
  std::int32_t algorithm = 0;       // an Algorithm of schedules/algorithm.hpp; 0: the best one
  bool reproducible = false;        // combine in rank order, whatever the algorithm
  double scale = 0;                 // SCALED_SUM only
  const void* send = nullptr;
  void* receive = nullptr;  // broadcast: data, send is then unused
  // As in the header: all elements (all_reduce, reduce, broadcast), one block (reduce_scatter,
  // all_gather, gather, scatter, all_to_all), 0 (barrier), the sum of counts (the v forms and
  // fold).
  std::uint64_t count = 0;
};

// One collective, with all options.
struct Operation : PlainOperation {
  Operation() = default;
  explicit Operation(const PlainOperation& plain) : PlainOperation(plain) {}

  // The v forms and fold: elements of each rank's block. all_to_all_v: of the block that rank s has
  // for rank d, at s * world size + d.
  std::vector<std::uint64_t> counts;
  // fold: every rank gives `send` (count elements, or null for no contribution); rank r is shown
  // block r of all of them.
  Fold fold;
  // A further value that all ranks must agree on; part of the fingerprint. It has a name for
  // messages of a mismatch.
  std::uint64_t agreement = 0;
  const char* agreement_name = "";
  std::shared_ptr<const void> owner;  // lives until the operation is over, such as its memory
  std::vector<const void*>
      also_uses;  // addresses in further memory that must live as long, such as of lists
  // A step of a composite: the operation that was called, for the fingerprint and for messages.
  const Operation* called = nullptr;
  const Operation& as_called() const { return called == nullptr ? *this : *called; }
  // A composite: several collectives that take one place in the queue. The fields above then only
  // describe it; a failure of the program fails the group.
  std::function<Status(Steps& steps)> program;
  // Null, or what the program has found after all ranks have done their part: the caller's result.
  // The group goes on.
  std::shared_ptr<const Status> refused;
};

constexpr std::int32_t kAnySource = -1;

// Memory of this process alone.
Status allocate_private(std::uint64_t bytes, std::shared_ptr<Memory>* out);

// One message under way. The caller of post() owns it; the backend touches it, and `data`, until
// `done`.
struct Message {
  OperationKind kind = OperationKind::send;  // or receive, or probe, which takes nothing
  void* data = nullptr;                      // only read by a send
  std::uint64_t count = 0;
  trireme_dtype dtype = TRIREME_DTYPE_BYTES;
  std::int32_t peer = 0;  // receives and probes: or kAnySource
  std::uint64_t tag = 0;
  bool any_tag = false;
  // Receives: `up_to` also takes a message shorter than `count`; `allocate` takes any size, in
  // memory that is allocated when the message is met.
  enum class Fit { exact, up_to, allocate } fit = Fit::exact;
  // Messages match within a context alone: 0 holds the caller's messages, 1 + channel an
  // algorithm's. Contexts beyond these hold the messages by which models get their channels.
  std::uint32_t context = 0;
  const char* part_of = "";    // for messages of failures: the operation, and
  std::uint64_t sequence = 0;  // its number
  Deadline deadline = Deadline::at(0);
  // Set by the backend inside progress(), withdraw() or post(); by the caller of move_at_once().
  Status status = Status::success();
  std::atomic<bool> done{false};
  bool matched = false;  // a byte has moved or a peer's half was found
  // Receives and probes: the message that was met.
  std::int32_t source = 0;
  std::uint64_t met_tag = 0;
  std::uint64_t met_count = 0;
  trireme_dtype met_dtype = 0;
  std::shared_ptr<Memory> allocated;  // with Fit::allocate
  // For the backend's own use.
  std::uint64_t moved_bytes = 0;
  std::uint64_t lent_until = 0;  // the position at which the receiver is done with lent bytes, or 0
  Message* before = nullptr;     // its neighbours in a MessageList
  Message* after = nullptr;
};

// Messages in order. The links lie in the messages, so that listing one allocates nothing. A
// message is in one list at a time.
class MessageList {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  Message* front() const noexcept { return first_; }  // null: it is empty
  void push_back(Message& message) noexcept;
  void remove(Message& message) noexcept;

 private:
  Message* first_ = nullptr;
  Message* last_ = nullptr;
};

// The last calls of one rank, as far as another rank sees them.
struct LastCalls {
  enum class State { absent, joined, left, lost } state = State::absent;
  bool known = false;          // false: this backend cannot see its calls
  OperationKind collective{};  // 0: none yet
  std::uint32_t channel = 0;
  std::uint32_t model = 0;  // as PlainOperation's
  std::uint64_t sequence = 0;
  OperationKind message{};  // 0: none yet
  std::int32_t peer = 0;    // of the message, or kAnySource
  std::uint64_t message_sequence = 0;
};

struct TrafficCounters {
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t sent_messages = 0;  // on connections; ranks that share memory send none
};

// The kinds of common decisions, see Backend::decide(). `confirm` is the second half of `shrink`.
enum class DecisionKind : std::uint32_t { none = 0, agree, shrink, confirm };

const char* decision_name(DecisionKind kind);  // "agree", "shrink"

struct Decision {
  std::uint64_t number = 0;         // the decision's number in its group, from 1
  std::vector<std::int32_t> ranks;  // ranks whose votes count, ascending; with this rank
  std::uint64_t value = 0;  // agree, confirm: bitwise and of the votes; shrink: exclusive or
  bool again = false;       // some ranks voted to shrink, some to confirm: all begin to shrink anew
  // shrink: the address where the new group meets, in place of this one's; "": the same.
  std::string place;
  std::shared_ptr<const void> meeting;  // keeps the place open, if this rank has to
};

// Receives the reason why a group has failed, as Backend::shared_failure(). It must not wait; it
// may run while the backend ends.
using EndListener = std::function<void(const Status& failure)>;

// A long wait of this rank, and the ranks that it waits for, by their numbers in its group. A
// listener must not throw: a wait that it has learned of ends there, too.
enum class Waiting { begins, over, failed };
using WaitListener = std::function<void(const RankSet& ranks, Waiting what)>;

// How far Backend::start_small() came.
enum class SmallProgress { refused, over, waiting };
// Moments by ticks_now(): just after the operation was published, and the last time it was seen
// under way.
struct BriefTime {
  std::uint64_t start_ticks = 0;
  std::uint64_t end_ticks = 0;
};

struct GroupOptions;

// A wait for ranks to join may go on after its deadline, to learn the names of those that have not
// come. It goes on for as long as it has waited, but no longer than this. A timeout of 0 only asks.
constexpr std::uint64_t kMostPatienceNs = 500 * kMillisecond;

// Whether all ranks can see one memory, as far as this rank knows.
struct OneMemory {
  bool is_there;  // unless it is known at once, it may come when the ranks meet
  // By all ranks; else only when they have met. Ranks that can meet give the same answer.
  bool known_at_once;
  bool ruled_out = false;  // this rank knows at once that none comes
};

// Carries messages between the ranks of a group.
class Messenger {
 public:
  virtual ~Messenger() = default;

  // post() registers a message (and may finish it), progress() moves all that can move now. One
  // thread at a time is inside post, progress and withdraw; the caller locks. Once the group has
  // failed, progress() ends all messages and does not throw.
  virtual void post(Message& message) = 0;
  virtual void progress() = 0;
  virtual bool withdraw(Message& message) = 0;  // false: it is matched or done
  // Moves a send or receive that is not posted, whole, if that goes without a wait and nothing is
  // before it. False: nothing of it has moved. The caller locks as for post(), and sets `done`.
  virtual bool move_at_once(Message& message) noexcept { return static_cast<void>(message), false; }
  // Peers wake this rank only while a thread of it rests. The thread calls begin_rest(), then
  // progress() once more, then wait_activity(). It takes 1 off the result when it is awake again.
  virtual std::atomic<std::uint32_t>* begin_rest(std::uint32_t* out_seen) noexcept = 0;
  // Sleeps until progress() may have new work, the group has failed, or the deadline passes.
  // `seen`: from begin_rest(), which came before the last progress().
  virtual void wait_activity(std::uint32_t seen, Deadline deadline) = 0;
  virtual Backoff backoff() const = 0;  // how long a thread polls before it rests
  virtual void wake_waiters() = 0;      // makes this rank's own wait_activity() return
  // The ranks without which no message of this rank moves yet. Any thread, any time.
  virtual std::vector<std::int32_t> unready() const { return {}; }
};

// While it exists peers wake this rank: see Messenger::begin_rest().
class Rest {
 public:
  explicit Rest(Messenger& messenger) : sleepers_(messenger.begin_rest(&seen_)) {}
  ~Rest() { sleepers_->fetch_sub(1, std::memory_order_relaxed); }
  Rest(const Rest&) = delete;
  Rest& operator=(const Rest&) = delete;
  std::uint32_t seen() const { return seen_; }  // for wait_activity()

 private:
  std::uint32_t seen_ = 0;
  std::atomic<std::uint32_t>* const sleepers_;
};

class Backend : public Messenger {
 public:
  ~Backend() override = default;  // leaves the group; never waits for a peer

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  virtual std::string description() const = 0;  // "local (threads)"

  // Waits until all ranks have joined. May be called again after TIMEOUT. Any thread.
  Status wait_ready(Deadline deadline) { return wait_ready_unless(deadline, nullptr); }
  // A failure of `trouble` ends the wait. It is asked every few milliseconds, and less often in a
  // large group. So the deadline stays one: a caller whose deadline passes has given up on the
  // missing ranks.
  virtual Status wait_ready_unless(Deadline deadline, const std::function<Status()>& trouble) = 0;
  // Whether this rank and `rank` have met. Does not wait; any thread.
  virtual bool has_joined(int rank) const = 0;

  // Runs one collective on the calling thread; one at a time per channel. `sequence` counts the
  // collectives of the channel from 1. Includes the wait for the peers to join. The first failure
  // poisons the group: all ranks receive it, and every later call on any channel returns it.
  virtual Status run(const Operation& operation, std::uint64_t sequence, Deadline deadline) = 0;

  // The same for a small collective that is mostly over before reading the clock would pay. It
  // completes the collective, unless a peer takes longer than a moment. `refused`: nothing was
  // done; call run() instead. `waiting`: it is published, and finish_small() must follow. Only for
  // operations without an algorithm.
  virtual SmallProgress start_small(const PlainOperation& operation, std::uint64_t sequence,
                                    BriefTime* out_time) noexcept {
    static_cast<void>(operation), static_cast<void>(sequence), static_cast<void>(out_time);
    return SmallProgress::refused;
  }
  virtual Status finish_small(const Operation& operation, std::uint64_t sequence,
                              Deadline deadline) {
    return run(operation, sequence, deadline);
  }

  // Whether run() has this collective as algorithm "native", and whether that is the better way
  // where the caller asks for no algorithm. Else messages make it. Ranks that make the same call
  // get the same answer once know_natives() has succeeded, which may wait for all ranks to join.
  virtual Status know_natives(Deadline deadline) {
    static_cast<void>(deadline);
    return Status::success();
  }
  virtual bool has_native(const Operation& operation) const = 0;
  virtual bool prefers_native(const Operation& operation) const { return has_native(operation); }
  // The first half of run(), for a collective that messages then make: waits until all ranks have
  // called it, and compares their calls. *gives, by rank: whether it contributes elements.
  virtual Status agree(const Operation& operation, std::uint64_t sequence, Deadline deadline,
                       std::vector<bool>* gives) = 0;
  // Compares the ranks' calls of the collective while `move` makes it over a wire, with a ticket
  // that no other call of the group has. Success means that both have succeeded. A fold is moved
  // after the comparison. *gives is as in agree(), written before `move` and for a fold only.
  // Nothing: such a collective is made by messages. The same on all ranks, once know_natives() has
  // succeeded.
  using OverWire = std::function<Status(Wire& wire, std::uint64_t ticket)>;
  virtual std::optional<Status> run_over_wire(const Operation& operation, std::uint64_t sequence,
                                              Deadline deadline, std::vector<bool>* gives,
                                              const OverWire& move) {
    return static_cast<void>(operation), static_cast<void>(sequence), static_cast<void>(deadline),
           static_cast<void>(gives), static_cast<void>(move), std::nullopt;
  }

  // Allocates memory that run() reads from peers without a copy. Any thread.
  virtual Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) = 0;

  virtual OneMemory one_memory() const { return {false, true}; }
  // The number by which peers know memory of allocate(); they map the memory while it lives.
  virtual std::uint64_t key_of(Memory&) const { return 0; }
  virtual Status map_peer(int peer, std::uint64_t key, std::uint64_t bytes, Deadline deadline,
                          std::shared_ptr<Memory>* out);

  // Makes the group fail on all ranks with this status, unless it has failed already. Any thread,
  // any time.
  virtual void fail(const Status& status) noexcept = 0;
  // The failure that poisoned the group, or success. Does not wait. Any thread.
  virtual Status failure() const = 0;
  // The same for ranks of other groups: without the parts that are for this rank alone.
  virtual Status shared_failure() const { return failure(); }
  // If the group has failed: waits until the peers know it, but not for long. A caller that gets a
  // failure may end at once, and its peers would only see that it is gone. So call this before a
  // failed call returns, with no lock held. Any thread.
  virtual void spread_failure() noexcept {}

  // Calls the listener when the group has failed, whichever rank has found the failure and whatever
  // this rank does; at once if it has failed already. It may be called more than once. Call
  // on_end() before anything else.
  virtual void on_end(std::shared_ptr<const EndListener> listener) = 0;

  // Decides one thing among the ranks that are there, also after a failure and while ranks die:
  // every rank that gets a decision gets the same one. Does not wait for ranks that count as lost.
  // These have died, left, did not vote before the deadline of an earlier decision, or are blamed
  // by the group's TIMEOUT or PEER_LOST. A living rank that counts as lost gets PEER_LOST, and so
  // does a rank that reaches too few others to decide. Ranks that vote on different things get
  // MISMATCH. One call at a time.
  virtual Status decide(DecisionKind kind, std::uint64_t vote, Deadline deadline, Decision* out);
  // Changes the options by which a group joins that is made from this one; the ranks have met.
  virtual void adapt(GroupOptions* options_of_child) const { static_cast<void>(options_of_child); }
  // The first of these ranks without which decisions are made; -1: there is none.
  virtual int first_lost(const std::vector<std::int32_t>& ranks) const {
    return static_cast<void>(ranks), -1;
  }
  // Ends a decide() of another thread; every later one fails.
  virtual void stop_deciding() noexcept {}

  // The ranks for which this rank's collective in the channel waits, as far as it shows. Any
  // thread, any time.
  virtual std::vector<std::int32_t> awaited(std::uint32_t channel) const {
    return static_cast<void>(channel), std::vector<std::int32_t>{};
  }

  // Listens to long waits of this rank here. Set once, before anything else is called.
  virtual void on_wait(std::shared_ptr<const WaitListener> listener) {
    static_cast<void>(listener);
  }
  // This rank waits in a group that was made from this one. Peers see that here: this rank is not
  // to blame for waits on it meanwhile.
  virtual void note_wait(const RankSet& ranks, Waiting what) noexcept {
    static_cast<void>(ranks), static_cast<void>(what);
  }

  virtual TrafficCounters traffic() const = 0;
  // By rank. Any thread, any time; after a failure it does not change.
  virtual std::vector<LastCalls> last_calls() const = 0;

 protected:
  Backend(int rank, int world_size) : rank_(rank), world_size_(world_size) {}

 private:
  const int rank_;
  const int world_size_;
};

class Token;
class TuningTable;

struct GroupOptions {
  int rank = 0;
  int world_size = 1;
  // "local://NAME", "host://NAME", "tcp://ADDRESS:PORT", "transport://NAME" or "mpi://";
  // env:// was resolved before
  std::string rendezvous;
  std::string
      backend;  // "" or the one of the rendezvous: "local", "frames" or "mpi"; tcp://: or "gloo"
  std::optional<trireme_transport> transport;  // there with transport:// alone; checked
  std::string name;                            // for messages
  // host://: the ranks' common secret; none if their starter gave none. A child has its parent's.
  std::shared_ptr<const Token> token;
  // The table of measured algorithms, or null. A child has its parent's.
  std::shared_ptr<const TuningTable> tuning;
  std::string met_by;  // has told the ranks where they meet: "Open MPI"
  // The log warns after a wait of this long, and whenever the wait has doubled.
  std::uint64_t stall_warning_ns = 10'000'000'000;
};

// Claims a place in the group with the right backend. Does not wait for the peers.
Status join_group(const GroupOptions& options, std::unique_ptr<Backend>* out);

}  // namespace trireme
