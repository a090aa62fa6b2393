#include "collectives/communicator.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <utility>

#include "backends/last_calls.hpp"
#include "collectives/channel_table.hpp"
#include "collectives/memories.hpp"
#include "collectives/message_queue.hpp"
#include "collectives/records.hpp"
#include "collectives/rendezvous.hpp"
#include "collectives/request.hpp"
#include "net/token.hpp"
#include "platform/log.hpp"
#include "platform/thread.hpp"

namespace trireme {
namespace {

// Turns an exception of `body` into a failure.
Status caught_plainly(const std::function<Status()>& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return Status::failure(TRIREME_ERROR_INTERNAL, error.what());
  }
}

// One line for the log: "rank 0 of 2 joined "NAME", local (threads)".
void log_membership(const Records& records, const std::string& description,
                    const char* verb) noexcept {
  if (!log_wanted(TRIREME_LOG_INFO)) return;
  try {
    log_line(TRIREME_LOG_INFO, "rank " + std::to_string(records.rank) + " of " +
                                   std::to_string(records.world_size) + " " + verb + " \"" +
                                   records.name + "\", " + description);
  } catch (...) {  // no memory for a line, so there is none
  }
}

// Fails the group with a text that begins with "rank R", and blames this rank.
template <class Text>
void report(Backend& backend, const Records& records, trireme_status code, Text text) noexcept {
  try {
    FailureDetails details;
    details.communicator = records.name;
    details.blamed = {records.rank};
    backend.fail(Status::failure(code, text("rank " + std::to_string(records.rank)))
                     .with_details(std::move(details)));
  } catch (...) {
    backend.fail(Status::failure(code, "out of memory"));  // short enough to need no memory
  }
}

template <class Group>
[[gnu::cold]] void spread_failure_of(const Group& group) {
  const NoCancellation whole;
  if (const std::shared_ptr<Backend> backend = group.backend()) backend->spread_failure();
}

// The status that a call of the group returns. If the group has failed, the peers know it first.
template <class Group>
[[gnu::always_inline]] inline Status told(const Group& group, Status&& status) {
  if (!status.ok()) [[unlikely]]
    spread_failure_of(group);
  return std::move(status);
}

class Core final : public Communicator, public std::enable_shared_from_this<Core> {
 public:
  Core(std::unique_ptr<Backend> backend, const GroupOptions& options, std::uint64_t timeout_ns,
       Lineage lineage)
      : backend_(std::move(backend)),
        description_(backend_->description()),
        options_(options),
        lineage_(std::move(lineage)),
        offspring_(std::make_shared<Offspring>(lineage_)),
        timeout_ns_(timeout_ns),
        timekeeper_([this] { return channels_.expire(); }),
        channels_(records_, timekeeper_, messages_),
        messages_(records_) {
    records_.name = options.name;
    records_.rank = backend_->rank();
    records_.world_size = backend_->world_size();
    records_.stall_ns = options.stall_warning_ns;
    records_.tuning.use(options.tuning);
    channels_.open(backend_);
    messages_.open(backend_);
    backend_->on_end(std::make_shared<const EndListener>(
        [offspring = offspring_](const Status& failure) { offspring->end(failure); }));
    log_membership(records_, description_, "joined");
  }

  // Null once this rank has left.
  std::shared_ptr<Backend> backend() const {
    const std::lock_guard lock(mutex_);
    return backend_;
  }

  int rank() const override { return records_.rank; }
  int world_size() const override { return records_.world_size; }
  const std::string& name() const override { return records_.name; }
  // The text may grow once the ranks have met.
  std::string description() const override {
    const std::shared_ptr<Backend> backend = this->backend();
    return backend == nullptr ? description_ : backend->description();
  }
  std::uint64_t timeout_ns() const override { return timeout_ns_; }
  GroupOptions options() const override {
    GroupOptions own = options_;
    if (const std::shared_ptr<Backend> backend = this->backend()) backend->adapt(&own);
    return own;
  }
  const Lineage& lineage() const override { return lineage_; }
  std::uint64_t next_child() noexcept override {
    return children_.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  Status wait_ready(Deadline deadline, const std::function<Status()>& trouble) const override {
    if (inside_callback_of(this) && !deadline.passed()) return refuse_blocking_in_callback();
    std::shared_ptr<Backend> backend;
    {
      const std::lock_guard lock(mutex_);
      backend = backend_;
      if (backend == nullptr) return records_.left();
      ++waiting_for_peers_;
    }
    const Status status = backend->wait_ready_unless(deadline, trouble);
    {
      const std::lock_guard lock(mutex_);
      --waiting_for_peers_;
    }
    return told(*this, Status(status));
  }

  Status failure() const override {
    const std::shared_ptr<Backend> backend = this->backend();
    return backend == nullptr ? records_.left() : told(*this, backend->failure());
  }
  Status shared_failure() const override {
    const std::shared_ptr<Backend> backend = this->backend();
    return backend == nullptr ? records_.left() : backend->shared_failure();
  }

  Status run(Operation&& operation, Deadline deadline) override {
    if (inside_callback_of(this)) return refuse_blocking_in_callback();
    memories_.hold(&operation);
    Channel& channel = channels_[operation.channel];
    operation.model = channel.model();
    return told(*this, channel.run(operation, deadline));
  }

  Status run_plain(const PlainOperation& operation, std::uint64_t timeout_ns) override {
    if (inside_callback_of(this)) return refuse_blocking_in_callback();
    const Memories::Both kept = memories_.find(operation);
    return told(*this, channels_[operation.channel].run(operation, timeout_ns));
  }

  Status start(Operation operation, Deadline deadline, std::shared_ptr<Request>* out) override {
    memories_.hold(&operation);
    Channel& channel = channels_[operation.channel];
    operation.model = channel.model();
    return told(*this,
                channel.start(shared_from_this(), this, std::move(operation), deadline, out));
  }

  Status run_message(const MessageArguments& message, std::uint64_t timeout_ns,
                     MetMessage* out_met) override {
    if (inside_callback_of(this)) return refuse_blocking_in_callback();
    const MessageArguments held = memories_.hold(message);
    return told(*this, messages_.run(&held, 1, timeout_ns, out_met));
  }

  Status run_messages(const MessageArguments& first, const MessageArguments& second,
                      std::uint64_t timeout_ns) override {
    if (inside_callback_of(this)) return refuse_blocking_in_callback();
    const MessageArguments both[] = {memories_.hold(first), memories_.hold(second)};
    return told(*this, messages_.run(both, 2, timeout_ns, nullptr));
  }

  Status send_buffered(const MessageArguments& message, Deadline deadline) override {
    if (inside_callback_of(this)) return refuse_blocking_in_callback();
    return told(*this, messages_.send_buffered(shared_from_this(), this, memories_.hold(message),
                                               deadline));
  }

  Status start_message(const MessageArguments& message, Deadline deadline,
                       std::shared_ptr<Request>* out) override {
    return told(*this,
                messages_.start(shared_from_this(), this, memories_.hold(message), deadline, out));
  }

  std::uint32_t next_model() noexcept override { return channels_.next_model(); }
  Status take_channels(std::uint32_t model, Deadline deadline, std::uint32_t* out) override {
    bool torn = false;
    const Status taken = channels_.take(model, deadline, out, &torn);
    const std::shared_ptr<Backend> backend = torn ? this->backend() : nullptr;
    if (backend == nullptr) return told(*this, Status(taken));
    backend->fail(taken);
    return told(*this, backend->failure());
  }
  void leave_channels(std::uint32_t model, std::uint32_t first) noexcept override {
    channels_.leave(model, first);
  }

  Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) override {
    const std::shared_ptr<Backend> backend = this->backend();
    if (backend == nullptr) return records_.left();
    std::shared_ptr<Memory> memory;
    TRIREME_RETURN_IF_ERROR(backend->allocate(bytes, &memory));
    memories_.add(memory);
    *out = std::move(memory);
    return Status::success();
  }

  OneMemory one_memory() const override {
    const std::shared_ptr<Backend> backend = this->backend();
    return backend == nullptr ? OneMemory{false, true} : backend->one_memory();
  }

  std::uint64_t key_of(Memory& memory) const override {
    const std::shared_ptr<Backend> backend = this->backend();
    return backend == nullptr ? 0 : backend->key_of(memory);
  }

  Status map_peer(int peer, std::uint64_t key, std::uint64_t bytes, Deadline deadline,
                  std::shared_ptr<Memory>* out) override {
    const std::shared_ptr<Backend> backend = this->backend();
    if (backend == nullptr) return records_.left();
    return told(*this, backend->map_peer(peer, key, bytes, deadline, out));
  }

  void adopt(const std::shared_ptr<Memory>& memory) override { memories_.add(memory); }

  void abort(const std::string& reason) noexcept override {
    const std::shared_ptr<Backend> backend = this->backend();
    if (backend == nullptr) return;  // a rank that has left decides no more
    report(*backend, records_, TRIREME_ERROR_ABORTED, [&](std::string rank) {
      return rank + " aborted" + (reason.empty() ? "" : ": \"" + reason + "\"");
    });
  }

  void fail(trireme_status code, std::string_view what) noexcept override {
    const std::shared_ptr<Backend> backend = this->backend();
    if (backend == nullptr) return;
    report(*backend, records_, code, [&](std::string rank) { return (rank += ": ").append(what); });
  }

  void fail_to_hand_out() noexcept override {
    const std::shared_ptr<Backend> backend = this->backend();
    if (backend == nullptr) return;
    report(*backend, records_, TRIREME_ERROR_OUT_OF_MEMORY, [](std::string rank) {
      return rank + " has no memory left for the result of an operation";
    });
  }

  void fail_with(const Lineage& failed, const Status& failure) noexcept override {
    const std::shared_ptr<Backend> backend = this->backend();
    if (backend == nullptr) return;
    try {
      backend->fail(inherited_failure(failed, failure, lineage_));
    } catch (...) {
      backend->fail(Status::failure(failure.code(), "out of memory"));
    }
  }

  void follow(Communicator& parent) override {
    const std::shared_ptr<const WaitListener> listener =
        parent.take_child(weak_from_this(), lineage_);
    if (const std::shared_ptr<Backend> backend = this->backend()) backend->on_wait(listener);
  }

  std::shared_ptr<const WaitListener> take_child(const std::weak_ptr<Communicator>& child,
                                                 const Lineage& lineage) override {
    offspring_->add(child);
    const std::shared_ptr<Backend> backend = this->backend();
    const Status failure = backend == nullptr ? Status::success() : backend->shared_failure();
    if (!failure.ok()) offspring_->end(failure);
    return std::make_shared<const WaitListener>(
        [own = std::weak_ptr<Backend>(backend), from = lineage, to = lineage_](
            const RankSet& ranks, Waiting what) noexcept {
          const RankSet here = ranks_of(from, ranks, to);
          const std::shared_ptr<Backend> parent = own.lock();
          if (parent != nullptr && !here.empty()) parent->note_wait(here, what);
        });
  }

  Status decide(Deadline deadline, const std::function<Status(Backend&)>& body) override {
    if (inside_callback_of(this)) return refuse_blocking_in_callback();
    std::shared_ptr<Backend> backend;
    {
      std::unique_lock lock(mutex_);
      const bool mine = wait_until(decided_, lock, deadline,
                                   [this] { return !deciding_ || backend_ == nullptr; });
      backend = backend_;
      if (backend == nullptr) return records_.left();
      if (!mine) {
        return Status::failure(
            TRIREME_ERROR_TIMEOUT,
            "another thread of this rank is deciding in \"" + records_.name + "\"");
      }
      deciding_ = true;
    }
    const Status status = caught_plainly([&] { return body(*backend); });
    {
      const std::lock_guard lock(mutex_);
      deciding_ = false;
      decided_.notify_all();
    }
    return told(*this, Status(status));
  }

  void leave() noexcept override {
    std::shared_ptr<Backend> backend;
    bool busy = false;
    {
      const std::lock_guard lock(mutex_);
      backend = std::move(backend_);
      backend_ = nullptr;
      if (backend == nullptr) return;
      last_traffic_ = backend->traffic();
      busy = waiting_for_peers_ > 0;
      decided_.notify_all();
    }
    backend->stop_deciding();
    timekeeper_.stop();
    busy = messages_.stop() || busy;
    busy = channels_.stop() || busy;
    log_membership(records_, backend->description(), "left");
    if (!busy) return;
    report(*backend, records_, TRIREME_ERROR_PEER_LOST,
           [](std::string rank) { return rank + " left with operations under way"; });
  }

  CommunicatorStatistics statistics() const override {
    CommunicatorStatistics statistics;
    statistics.operations = records_.flight.operations();
    statistics.failures = records_.flight.failures();
    const std::lock_guard lock(mutex_);
    statistics.traffic = backend_ == nullptr ? last_traffic_ : backend_->traffic();
    return statistics;
  }

  std::string flight_record() const override { return records_.flight.text(); }

  Status last_calls(std::string* out) const override {
    const std::shared_ptr<Backend> backend = this->backend();
    if (backend == nullptr) return records_.left();
    *out = last_calls_text(backend->last_calls());
    return Status::success();
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Backend> backend_;  // null once left
  std::condition_variable decided_;
  bool deciding_ = false;
  mutable int waiting_for_peers_ = 0;  // threads in wait_ready()
  TrafficCounters last_traffic_;
  const std::string description_;
  const GroupOptions options_;
  const Lineage lineage_;
  const std::shared_ptr<Offspring> offspring_;
  const std::uint64_t timeout_ns_;
  Records records_;
  std::atomic<std::uint64_t> children_{0};
  Memories memories_;
  Timekeeper timekeeper_;
  ChannelTable channels_;
  MessageQueue messages_;
};

}  // namespace

Status Communicator::create(const GroupOptions& options, std::uint64_t timeout_ns,
                            std::shared_ptr<Communicator>* out) {
  GroupOptions resolved = options;
  TRIREME_RETURN_IF_ERROR(read_tuning(&resolved.tuning));
  TRIREME_RETURN_IF_ERROR(resolve_rendezvous(&resolved, Deadline::after(timeout_ns)));
  if (resolved.world_size < 1) {
    return invalid_argument("options.world_size is " + std::to_string(resolved.world_size) +
                            ", but a group has at least 1 rank");
  }
  if (resolved.rank < 0 || resolved.rank >= resolved.world_size) {
    return invalid_argument("options.rank is " + std::to_string(resolved.rank) +
                            ", but the ranks are 0 to " + std::to_string(resolved.world_size - 1));
  }
  if (resolved.name.empty()) resolved.name = resolved.rendezvous;
  // Ranks that MPI has told where they meet have a secret name, and need no token.
  if (resolved.rendezvous.rfind("host://", 0) == 0 && resolved.met_by.empty()) {
    const auto token = std::make_shared<Token>();
    TRIREME_RETURN_IF_ERROR(Token::from_environment_if_any(token.get()));
    resolved.token = token;
  }
  return join(resolved, timeout_ns, {}, out);
}

Status Communicator::join(const GroupOptions& options, std::uint64_t timeout_ns, Lineage lineage,
                          std::shared_ptr<Communicator>* out) {
  std::unique_ptr<Backend> backend;
  TRIREME_RETURN_IF_ERROR(join_group(options, &backend));
  lineage.name = options.name;
  if (lineage.ranks.empty()) {
    static std::atomic<std::uint64_t> roots{0};
    lineage.root = ++roots;
    lineage.ranks.resize(static_cast<std::size_t>(options.world_size));
    std::iota(lineage.ranks.begin(), lineage.ranks.end(), 0);
  }
  auto core = std::make_shared<Core>(std::move(backend), options, timeout_ns, std::move(lineage));
  // Threads and requests hold the core itself; the last holder of this pointer ends the membership.
  // That may be a thread which can be cancelled elsewhere: a small operation holds no
  // NoCancellation, and this destructor closes files.
  *out = std::shared_ptr<Communicator>(core.get(), [core](Communicator* which) mutable {
    const NoCancellation whole;
    which->leave();
    core.reset();
  });
  return Status::success();
}

}  // namespace trireme
