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

// What a receive or a probe has met.
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
  virtual Status result() const = 0;                 // success while it is not done
  virtual Status wait(Deadline deadline) const = 0;  // its result, or TIMEOUT while it is not done
  virtual Status cancel() = 0;                       // INVALID_STATE once it has begun
  virtual Status on_complete(void (*callback)(std::int32_t, void*), void* user_data) = 0;
  virtual Status descriptor(int* out) = 0;
  virtual const void* owner() const = 0;  // its communicator, by address only
  // What a receive or probe has met; false for other operations, and unless it went well.
  virtual bool met(MetMessage*) const { return false; }
  // What a TIMEOUT of it tells of its deadline from now on: how long it was, and the option, which lives
  // as long as the library.
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

// What a message operation needs to know; the memory is only read by a send.
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
  // The same with options that are whole. `lineage`: of a group that was made from another one; its name is
  // that of the options. Without ranks: of one that was created, where ranks have their own numbers.
  static Status join(const GroupOptions& options, std::uint64_t timeout_ns, Lineage lineage,
                     std::shared_ptr<Communicator>* out);
  virtual ~Communicator() = default;  // leaves; started operations end with a failure first

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual const std::string& name() const = 0;
  virtual std::string description() const = 0;
  virtual std::uint64_t timeout_ns() const = 0;
  virtual const GroupOptions& options() const = 0;  // as it was joined
  virtual const Lineage& lineage() const = 0;
  const std::vector<std::int32_t>& root_ranks() const { return lineage().ranks; }
  virtual std::uint64_t next_child() noexcept = 0;  // 1, 2, ...: for the names of children

  virtual Status wait_ready(Deadline deadline) const = 0;
  virtual Status failure() const = 0;  // that poisoned it, or success
  virtual Status shared_failure() const = 0;  // see Backend

  // Collectives of a channel run in the order of these calls, across both forms; run() executes on
  // the calling thread when the channel's queue is empty, start() on the channel's progress thread,
  // which the first start() makes.
  virtual Status run(Operation&& operation, Deadline deadline) = 0;
  // The same with the time it may take, for callers who have not looked at the clock: a small operation need not.
  virtual Status run_plain(const PlainOperation& operation, std::uint64_t timeout_ns) = 0;
  virtual Status start(Operation operation, Deadline deadline, std::shared_ptr<Request>* out) = 0;

  // *out_met, if not null: what a receive or probe has met.
  virtual Status run_message(const MessageArguments& message, Deadline deadline,
                             MetMessage* out_met) = 0;
  // Both at once; answers the first failure.
  virtual Status run_messages(const MessageArguments& first, const MessageArguments& second,
                              Deadline deadline) = 0;
  // A send of a copy: waits only for room among the copies that are under way.
  virtual Status send_buffered(const MessageArguments& message, Deadline deadline) = 0;
  virtual Status start_message(const MessageArguments& message, Deadline deadline,
                               std::shared_ptr<Request>* out) = 0;

  // The number of a new model: 1, 2, ... Every rank counts the same models in the same order; what
  // comes later has no order.
  virtual std::uint32_t next_model() noexcept = 0;
  // The first of the two channels of that model. Its own for as long as it keeps them, on all ranks:
  // the ranks agree about those of models behind the first kModels, so it is collective, in any order
  // with other models. INVALID_STATE while all channels are taken.
  virtual Status take_channels(std::uint32_t model, Deadline deadline, std::uint32_t* out) = 0;
  // The model uses them no more, or never will (`first` is 0). Another one may have them once all
  // ranks have said so.
  virtual void leave_channels(std::uint32_t model, std::uint32_t first) noexcept = 0;

  virtual Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) = 0;
  // As Backend's: memory of a peer that this rank sees, too.
  virtual bool shares_memory() const = 0;
  virtual std::uint64_t key_of(Memory& memory) const = 0;
  virtual Status map_peer(int peer, std::uint64_t key, std::uint64_t bytes, Deadline deadline,
                          std::shared_ptr<Memory>* out) = 0;
  // Memory that an operation allocated, from now on like that of allocate().
  virtual void adopt(const std::shared_ptr<Memory>& memory) = 0;
  virtual void abort(const std::string& reason) noexcept = 0;
  // Fails the group: this rank does not go on, for a reason that the peers do not know yet.
  virtual void fail(trireme_status code, std::string_view what) noexcept = 0;
  // Fails the group: this rank has no memory to hand out what an operation has given it. The peers have done it, so
  // that it cannot be called again.
  virtual void fail_to_hand_out() noexcept = 0;
  // Fails the group because `failed`, another one of this rank, has failed: `failure` is its shared_failure().
  virtual void fail_with(const Lineage& failed, const Status& failure) noexcept = 0;
  // From now on this group fails when `parent` does, whoever of the parent's ranks finds that.
  virtual void follow(Communicator& parent) = 0;
  virtual void take_child(const std::weak_ptr<Communicator>& child) = 0;  // see follow()
  // Leaves now, also while children keep the object alive: running operations fail, later ones
  // answer INVALID_STATE.
  virtual void leave() noexcept = 0;

  // Runs `body`, which makes decisions by Backend::decide(), and no other such body at the same time.
  virtual Status decide(Deadline deadline, const std::function<Status(Backend&)>& body) = 0;

  virtual CommunicatorStatistics statistics() const = 0;
  virtual std::string flight_record() const = 0;  // one line of JSON an operation
  virtual Status last_calls(std::string* out) const = 0;  // one line of JSON a rank
};

}  // namespace trireme
