// Communicator: the queue, the requests and the records above one backend.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.hpp"
#include "collectives/lineage.hpp"
#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme {

// The message that a receive or a probe has met.
struct MetMessage {
  std::int32_t source = 0;
  std::uint64_t tag = 0;
  std::uint64_t count = 0;
  trireme_dtype dtype = 0;
  std::shared_ptr<Memory> memory;  // with Message::Fit::allocate
};

// One started operation. Any thread.
class Request {
 public:
  virtual ~Request() = default;
  virtual bool done() const = 0;
  virtual Status result() const = 0;                 // success until it is done
  virtual Status wait(Deadline deadline) const = 0;  // its result; TIMEOUT if there is none by then
  virtual Status cancel() = 0;                       // INVALID_STATE once it has begun
  virtual Status on_complete(void (*callback)(std::int32_t, void*), void* user_data) = 0;
  virtual Status descriptor(int* out) = 0;
  virtual const void* owner() const = 0;  // its communicator, by address only
  // A caller asks whether it is done, and waits nowhere. It may be moved on here.
  virtual void look() {}
  // A caller waits for its end elsewhere than in wait(): it must be moved on without that caller.
  virtual void urge() {}
  // The message that a receive or probe has met; false for other operations, and for a failure.
  virtual bool met(MetMessage*) const { return false; }
  // Sets the deadline that a TIMEOUT of it names from now on: its length, and the option. The
  // option's text lives as long as the library.
  virtual void set_deadline_text(std::uint64_t timeout_ns, const char* option) = 0;
};

// Waits until one of the requests is done; *out_index is the lowest one. TIMEOUT if none is.
Status wait_any(const std::shared_ptr<Request>* requests, std::size_t count, Deadline deadline,
                std::size_t* out_index);

struct CommunicatorStatistics {
  std::uint64_t operations = 0;
  std::uint64_t failures = 0;
  TrafficCounters traffic;
};

// The arguments of a message operation; a send only reads the memory.
struct MessageArguments {
  OperationKind kind = OperationKind::send;
  void* data = nullptr;
  std::uint64_t count = 0;
  trireme_dtype dtype = 0;
  std::int32_t peer = 0;
  std::uint64_t tag = 0;
  bool any_tag = false;
  Message::Fit fit = Message::Fit::exact;
  std::uint32_t context = 0;          // as Message::context
  std::shared_ptr<const void> owner;  // as Operation::owner
};

class Communicator {
 public:
  // timeout_ns: the default of every call, never 0.
  static Status create(const GroupOptions& options, std::uint64_t timeout_ns,
                       std::shared_ptr<Communicator>* out);
  // The same with resolved options. `lineage` describes a group that was made from another one, and
  // is named by the options. A lineage without ranks means a group that was created, whose ranks
  // have their own numbers.
  static Status join(const GroupOptions& options, std::uint64_t timeout_ns, Lineage lineage,
                     std::shared_ptr<Communicator>* out);
  virtual ~Communicator() = default;  // leaves; started operations fail first

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual const std::string& name() const = 0;
  virtual std::string description() const = 0;
  virtual std::uint64_t timeout_ns() const = 0;
  virtual GroupOptions options() const = 0;  // by which groups join that are made from it
  virtual const Lineage& lineage() const = 0;
  virtual std::uint64_t next_child() noexcept = 0;  // 1, 2, ...: for the names of children

  // Backend's wait_ready_unless(); `trouble` may be empty.
  virtual Status wait_ready(Deadline deadline, const std::function<Status()>& trouble) const = 0;
  // The failure that poisoned it, or success. As with every failure that a call here returns, the
  // peers know it by then: Backend::spread_failure().
  virtual Status failure() const = 0;
  virtual Status shared_failure() const = 0;  // see Backend

  // Collectives of a channel run in the order of these calls, across both forms; run() executes on
  // the calling thread when the channel's queue is empty. start() executes on the channel's
  // progress thread, which the first start() makes.
  virtual Status run(Operation&& operation, Deadline deadline) = 0;
  // The same with a timeout, for callers that have not read the clock: a small operation need not
  // read it.
  virtual Status run_plain(const PlainOperation& operation, std::uint64_t timeout_ns) = 0;
  virtual Status start(Operation operation, Deadline deadline, std::shared_ptr<Request>* out) = 0;

  // *out_met, if not null, gets the message that a receive or probe has met. With a timeout, as
  // run_plain().
  virtual Status run_message(const MessageArguments& message, std::uint64_t timeout_ns,
                             MetMessage* out_met) = 0;
  // Runs both at once; returns the first failure.
  virtual Status run_messages(const MessageArguments& first, const MessageArguments& second,
                              std::uint64_t timeout_ns) = 0;
  // Sends a copy: waits only for room among the copies under way.
  virtual Status send_buffered(const MessageArguments& message, Deadline deadline) = 0;
  virtual Status start_message(const MessageArguments& message, Deadline deadline,
                               std::shared_ptr<Request>* out) = 0;

  // The number of a new model: 1, 2, ... Every rank numbers the same models in the same order;
  // later calls of a model have no order.
  virtual std::uint32_t next_model() noexcept = 0;
  // The first of the two channels of that model. The model keeps them for itself on all ranks.
  // Beyond the first kModels models the ranks agree about them, so the call is collective, in any
  // order with other models. INVALID_STATE while all channels are taken.
  virtual Status take_channels(std::uint32_t model, Deadline deadline, std::uint32_t* out) = 0;
  // The model does not use them any more, or never will (`first` is 0). Another model may have them
  // once all ranks have called this.
  virtual void leave_channels(std::uint32_t model, std::uint32_t first) noexcept = 0;

  virtual Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) = 0;
  // The same as Backend's: memory of a peer that this rank maps, too.
  virtual OneMemory one_memory() const = 0;
  virtual std::uint64_t key_of(Memory& memory) const = 0;
  virtual Status map_peer(int peer, std::uint64_t key, std::uint64_t bytes, Deadline deadline,
                          std::shared_ptr<Memory>* out) = 0;
  // Treats memory that an operation allocated like that of allocate() from now on.
  virtual void adopt(const std::shared_ptr<Memory>& memory) = 0;
  virtual void abort(const std::string& reason) noexcept = 0;
  // Fails the group: this rank does not go on, for a reason that the peers do not know.
  virtual void fail(trireme_status code, std::string_view what) noexcept = 0;
  // Fails the group: this rank has no memory to return the result of an operation. The peers have
  // finished the operation, so it cannot be repeated.
  virtual void fail_to_hand_out() noexcept = 0;
  // Fails the group because `failed`, another group of this rank, has failed: `failure` is its
  // shared_failure().
  virtual void fail_with(const Lineage& failed, const Status& failure) noexcept = 0;
  // From now on this group fails when `parent` does, whichever rank of the parent finds the
  // failure.
  virtual void follow(Communicator& parent) = 0;
  // See follow(). The result listens to long waits in the child: this group's ranks report them.
  virtual std::shared_ptr<const WaitListener> take_child(const std::weak_ptr<Communicator>& child,
                                                         const Lineage& lineage) = 0;
  // Leaves now, even while children keep the object alive: running operations fail, later ones
  // return INVALID_STATE.
  virtual void leave() noexcept = 0;

  // Runs `body`, which makes decisions by Backend::decide(); only one such body runs at a time.
  virtual Status decide(Deadline deadline, const std::function<Status(Backend&)>& body) = 0;

  virtual CommunicatorStatistics statistics() const = 0;
  virtual std::string flight_record() const = 0;          // one line of JSON an operation
  virtual Status last_calls(std::string* out) const = 0;  // one line of JSON a rank
};

}  // namespace trireme
