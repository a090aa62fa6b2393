#include "collectives/communicator.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "backends/last_calls.hpp"
#include "collectives/channel.hpp"
#include "collectives/message_queue.hpp"
#include "collectives/records.hpp"
#include "collectives/rendezvous.hpp"
#include "collectives/request.hpp"
#include "net/token.hpp"
#include "platform/log.hpp"
#include "platform/thread.hpp"

namespace trireme {
namespace {

// The memory of allocate(), so that an operation can keep alive what it works on: the caller may
// destroy a buffer while it is in use.
class Memories {
 public:
  void add(const std::shared_ptr<Memory>& memory) {
    const std::lock_guard lock(mutex_);
    std::erase_if(by_address_, [](const auto& entry) { return entry.second.memory.expired(); });
    const std::uintptr_t begin = address_of(memory->data());
    by_address_[begin] = {memory->bytes(), memory};
    lowest_.store(std::min(lowest_.load(), begin));
    highest_.store(std::max(highest_.load(), begin + memory->bytes()));
  }

  // Most memory is none of ours, which its address alone can tell.
  bool may_hold(const void* data) const {
    return address_of(data) >= lowest_.load(std::memory_order_relaxed) &&
           address_of(data) < highest_.load(std::memory_order_relaxed);
  }

  // The memory that holds this address, or null.
  std::shared_ptr<const void> find(const void* data) const {
    if (!may_hold(data)) [[likely]] return nullptr;
    return search(data);
  }

 private:
  std::shared_ptr<const void> search(const void* data) const {
    const std::lock_guard lock(mutex_);
    const auto after = by_address_.upper_bound(address_of(data));
    if (after == by_address_.begin()) return nullptr;
    const auto& [begin, entry] = *std::prev(after);
    return address_of(data) - begin < entry.bytes ? entry.memory.lock() : nullptr;
  }

  struct Entry {
    std::uint64_t bytes = 0;
    std::weak_ptr<const Memory> memory;
  };
  static std::uintptr_t address_of(const void* data) {
    return reinterpret_cast<std::uintptr_t>(data);
  }

  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Entry> by_address_;
  // Of all that ever was in it.
  std::atomic<std::uintptr_t> lowest_{UINTPTR_MAX};
  std::atomic<std::uintptr_t> highest_{0};
};

// What `body` throws becomes a failure.
Status caught_plainly(const std::function<Status()>& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return Status::failure(TRIREME_ERROR_INTERNAL, error.what());
  }
}

// What one operation must keep alive.
struct Held {
  std::vector<std::shared_ptr<const void>> memories;
  std::shared_ptr<const void> owner;
};

// Who has which channels. All but left() is rank 0's to know.
class Places {
 public:
  // By place, the last model that has left it on one rank; 0: none. Numbers only grow.
  using Left = std::array<std::uint32_t, kModels>;

  Places() { std::iota(owners_.begin(), owners_.end(), 1); }  // the first ones have their own

  void leave(std::uint32_t place, std::uint32_t model) noexcept {
    left_[place] = std::max(left_[place], model);
  }
  const Left& left() const { return left_; }
  // A place whose owner has left it on all ranks, for that model; kModels: there is none.
  std::uint32_t take(std::uint32_t model, const std::vector<Left>& all) noexcept {
    for (std::uint32_t place = 0; place < kModels; ++place) {
      const auto is_left = [&](const Left& left) { return left[place] == owners_[place]; };
      if (!std::all_of(all.begin(), all.end(), is_left)) continue;
      owners_[place] = model;
      return place;
    }
    return kModels;
  }

 private:
  Left left_{};
  Left owners_;
};

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
        timekeeper_([this] { return expire(); }),
        messages_(records_) {
    records_.name = options.name;
    records_.rank = backend_->rank();
    records_.world_size = backend_->world_size();
    records_.stall_ns = options.stall_warning_ns;
    for (std::uint32_t number = 0; number < kModelChannel; ++number) make_channel(number);
    messages_.open(backend_);
    backend_->on_end(std::make_shared<const EndListener>(
        [offspring = offspring_](const Status& failure) { offspring->end(failure); }));
  }

  // One line for the log: "rank 0 of 2 joined "NAME", local (threads)".
  void log_membership(const char* verb) const noexcept {
    if (!log_wanted(TRIREME_LOG_INFO)) return;
    try {
      log_line(TRIREME_LOG_INFO, "rank " + std::to_string(records_.rank) + " of " +
                                     std::to_string(records_.world_size) + " " + verb + " \"" +
                                     records_.name + "\", " + description_);
    } catch (...) {  // no memory for a line: nothing is said
    }
  }

  int rank() const override { return records_.rank; }
  int world_size() const override { return records_.world_size; }
  const std::string& name() const override { return records_.name; }
  // It may say more once the ranks have met.
  std::string description() const override {
    const std::shared_ptr<Backend> backend = this->backend();
    return backend == nullptr ? description_ : backend->description();
  }
  std::uint64_t timeout_ns() const override { return timeout_ns_; }
  const GroupOptions& options() const override { return options_; }
  const Lineage& lineage() const override { return lineage_; }
  std::uint64_t next_child() noexcept override {
    return children_.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  Status wait_ready(Deadline deadline) const override {
    if (inside_callback_of(this) && !deadline.passed()) return refuse_blocking_in_callback();
    std::shared_ptr<Backend> backend;
    {
      const std::lock_guard lock(mutex_);
      backend = backend_;
      if (backend == nullptr) return records_.left();
      ++waiting_for_peers_;
    }
    const Status status = backend->wait_ready(deadline);
    const std::lock_guard lock(mutex_);
    --waiting_for_peers_;
    return status;
  }

  Status failure() const override {
    const std::shared_ptr<Backend> backend = this->backend();
    return backend == nullptr ? records_.left() : backend->failure();
  }
  Status shared_failure() const override {
    const std::shared_ptr<Backend> backend = this->backend();
    return backend == nullptr ? records_.left() : backend->shared_failure();
  }

  Status run(Operation&& operation, Deadline deadline) override {
    if (inside_callback_of(this)) return refuse_blocking_in_callback();
    hold(&operation);
    Channel& channel = this->channel(operation.channel);
    operation.model = channel.model();
    return channel.run(operation, deadline);
  }

  Status run_plain(const PlainOperation& operation, std::uint64_t timeout_ns) override {
    if (inside_callback_of(this)) return refuse_blocking_in_callback();
    const auto sent = memories_.find(operation.send);
    const auto received = memories_.find(operation.receive);
    return channel(operation.channel).run(operation, timeout_ns);
  }

  Status start(Operation operation, Deadline deadline, std::shared_ptr<Request>* out) override {
    hold(&operation);
    Channel& channel = this->channel(operation.channel);
    operation.model = channel.model();
    return channel.start(shared_from_this(), this, std::move(operation), deadline, out);
  }

  Status run_message(const MessageArguments& message, Deadline deadline,
                     MetMessage* out_met) override {
    if (inside_callback_of(this)) return refuse_blocking_in_callback();
    const MessageArguments held = hold(message);
    return messages_.run(&held, 1, deadline, out_met);
  }

  Status run_messages(const MessageArguments& first, const MessageArguments& second,
                      Deadline deadline) override {
    if (inside_callback_of(this)) return refuse_blocking_in_callback();
    const MessageArguments both[] = {hold(first), hold(second)};
    return messages_.run(both, 2, deadline, nullptr);
  }

  Status send_buffered(const MessageArguments& message, Deadline deadline) override {
    if (inside_callback_of(this)) return refuse_blocking_in_callback();
    return messages_.send_buffered(shared_from_this(), this, hold(message), deadline);
  }

  Status start_message(const MessageArguments& message, Deadline deadline,
                       std::shared_ptr<Request>* out) override {
    return messages_.start(shared_from_this(), this, hold(message), deadline, out);
  }

  std::uint32_t next_model() noexcept override {
    return models_.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  Status take_channels(std::uint32_t model, Deadline deadline, std::uint32_t* out) override {
    std::uint32_t place = model - 1;
    if (model > kModels) {
      const Status found = find_place(model, deadline, &place);
      if (!found.ok()) return give_up(found);
      if (place >= kModels) return refuse_model(model);
    }
    const std::uint32_t first = kModelChannel + 2 * place;
    const std::lock_guard lock(mutex_);
    if (backend_ == nullptr) return records_.left();
    for (std::uint32_t number = first; number < first + 2; ++number) {
      if (channels_[number].load(std::memory_order_relaxed) == nullptr) make_channel(number);
      channel(number).give_to(model);
    }
    *out = first;
    return Status::success();
  }

  void leave_channels(std::uint32_t model, std::uint32_t first) noexcept override {
    if (first == 0 && model > kModels) return;  // it never had any
    const std::uint32_t place = first == 0 ? model - 1 : (first - kModelChannel) / 2;
    const std::lock_guard lock(mutex_);
    places_.leave(place, model);
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

  bool shares_memory() const override {
    const std::shared_ptr<Backend> backend = this->backend();
    return backend != nullptr && backend->shares_memory();
  }

  std::uint64_t key_of(Memory& memory) const override {
    const std::shared_ptr<Backend> backend = this->backend();
    return backend == nullptr ? 0 : backend->key_of(memory);
  }

  Status map_peer(int peer, std::uint64_t key, std::uint64_t bytes, Deadline deadline,
                  std::shared_ptr<Memory>* out) override {
    const std::shared_ptr<Backend> backend = this->backend();
    if (backend == nullptr) return records_.left();
    return backend->map_peer(peer, key, bytes, deadline, out);
  }

  void adopt(const std::shared_ptr<Memory>& memory) override { memories_.add(memory); }

  void abort(const std::string& reason) noexcept override {
    const std::shared_ptr<Backend> backend = this->backend();
    if (backend == nullptr) return;  // a rank that has left has no say
    tell(*backend, TRIREME_ERROR_ABORTED, [&](std::string rank) {
      return rank + " aborted" + (reason.empty() ? "" : ": \"" + reason + "\"");
    });
  }

  void fail(trireme_status code, std::string_view what) noexcept override {
    const std::shared_ptr<Backend> backend = this->backend();
    if (backend == nullptr) return;
    tell(*backend, code, [&](std::string rank) { return (rank += ": ").append(what); });
  }

  void fail_to_hand_out() noexcept override {
    const std::shared_ptr<Backend> backend = this->backend();
    if (backend == nullptr) return;
    tell(*backend, TRIREME_ERROR_OUT_OF_MEMORY, [](std::string rank) {
      return rank + " has no memory left for what an operation gave it";
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

  void follow(Communicator& parent) override { parent.take_child(weak_from_this()); }

  void take_child(const std::weak_ptr<Communicator>& child) override {
    offspring_->add(child);
    const std::shared_ptr<Backend> backend = this->backend();
    const Status failure = backend == nullptr ? Status::success() : backend->shared_failure();
    if (!failure.ok()) offspring_->end(failure);
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
        return Status::failure(TRIREME_ERROR_TIMEOUT,
                               "another thread of this rank is deciding in \"" + records_.name + "\"");
      }
      deciding_ = true;
    }
    const Status status = caught_plainly([&] { return body(*backend); });
    const std::lock_guard lock(mutex_);
    deciding_ = false;
    decided_.notify_all();
    return status;
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
    {
      const std::lock_guard lock(mutex_);
      for (Channel& channel : made_) busy = channel.stop() || busy;
    }
    log_membership("left");
    if (!busy) return;
    tell(*backend, TRIREME_ERROR_PEER_LOST,
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
  std::shared_ptr<Backend> backend() const {
    const std::lock_guard lock(mutex_);
    return backend_;
  }

  Channel& channel(std::uint32_t number) const noexcept {
    return *channels_[number].load(std::memory_order_acquire);
  }
  void make_channel(std::uint32_t number) {
    made_.emplace_back(number, records_, timekeeper_, messages_).open(backend_);
    channels_[number].store(&made_.back(), std::memory_order_release);
  }

  // Rank 0 finds a place that no rank uses any more, and tells the others. By messages that have the
  // model's number: which models ask first, on which rank, does not matter.
  Status find_place(std::uint32_t model, Deadline deadline, std::uint32_t* out) {
    Places::Left own;
    {
      const std::lock_guard lock(mutex_);
      own = places_.left();
    }
    MessageArguments word;
    word.data = &own;
    word.count = sizeof own;
    word.dtype = TRIREME_DTYPE_BYTES;
    word.tag = model;
    word.context = 1 + kChannels;
    std::uint32_t place = kModels;
    MessageArguments answer = word;
    answer.data = &place;
    answer.count = sizeof place;
    if (records_.rank != 0) {
      answer.kind = OperationKind::receive;
      TRIREME_RETURN_IF_ERROR(messages_.run(&word, 1, deadline, nullptr));
      TRIREME_RETURN_IF_ERROR(messages_.run(&answer, 1, deadline, nullptr));
    } else {
      std::vector<Places::Left> all(static_cast<std::size_t>(records_.world_size), own);
      word.kind = OperationKind::receive;
      for (word.peer = 1; word.peer < records_.world_size; ++word.peer) {
        word.data = &all[static_cast<std::size_t>(word.peer)];
        TRIREME_RETURN_IF_ERROR(messages_.run(&word, 1, deadline, nullptr));
      }
      {
        const std::lock_guard lock(mutex_);
        place = places_.take(model, all);
      }
      for (answer.peer = 1; answer.peer < records_.world_size; ++answer.peer) {
        TRIREME_RETURN_IF_ERROR(messages_.run(&answer, 1, deadline, nullptr));
      }
    }
    *out = place;
    return Status::success();
  }

  // What the ranks have told each other by then is known to some of them only.
  Status give_up(const Status& status) {
    const std::shared_ptr<Backend> backend = this->backend();
    if (backend == nullptr) return status;
    backend->fail(status);
    return backend->failure();
  }

  Status refuse_model(std::uint32_t model) const {
    return invalid_state("model " + std::to_string(model) + " of \"" + records_.name + "\" is one of more than " +
                         std::to_string(kModels) +
                         " that live: destroy another one on all ranks, or give it a communicator of "
                         "trireme_communicator_duplicate()");
  }

  void hold(Operation* operation) const {
    if (operation->also_uses.empty() && !memories_.may_hold(operation->send) &&
        !memories_.may_hold(operation->receive)) {
      return;
    }
    Held held;
    const auto add = [&](const void* data) {
      if (auto memory = memories_.find(data)) held.memories.push_back(std::move(memory));
    };
    add(operation->send);
    add(operation->receive);
    for (const void* const data : operation->also_uses) add(data);
    if (held.memories.empty()) return;
    held.owner = std::move(operation->owner);
    operation->owner = std::make_shared<const Held>(std::move(held));
  }

  MessageArguments hold(MessageArguments message) const {
    message.owner = memories_.find(message.data);
    return message;
  }

  std::uint64_t expire() {
    std::uint64_t earliest = UINT64_MAX;
    for (const auto& each : channels_) {
      Channel* const channel = each.load(std::memory_order_acquire);
      if (channel != nullptr) earliest = std::min(earliest, channel->expire());
    }
    return earliest;
  }

  // Fails the group with a text that begins with "rank R", and that rank to blame.
  template <class Text>
  void tell(Backend& backend, trireme_status code, Text text) noexcept {
    try {
      FailureDetails details;
      details.communicator = records_.name;
      details.blamed = {records_.rank};
      backend.fail(Status::failure(code, text("rank " + std::to_string(records_.rank)))
                       .with_details(std::move(details)));
    } catch (...) {
      backend.fail(Status::failure(code, "out of memory"));  // short enough to need none
    }
  }

  mutable std::mutex mutex_;
  std::shared_ptr<Backend> backend_;   // null once left
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
  std::atomic<std::uint32_t> models_{0};
  Places places_;
  std::atomic<std::uint64_t> children_{0};
  Memories memories_;
  Timekeeper timekeeper_;
  std::deque<Channel> made_;
  std::array<std::atomic<Channel*>, kChannels> channels_{};  // null: not made yet
  MessageQueue messages_;
};

}  // namespace

Status Communicator::create(const GroupOptions& options, std::uint64_t timeout_ns,
                            std::shared_ptr<Communicator>* out) {
  GroupOptions resolved = options;
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
  // Those whom MPI has told where they meet know a name that nobody else knows.
  if (resolved.rendezvous.rfind("host://", 0) == 0 && resolved.met_by.empty()) {
    const auto token = std::make_shared<Token>();
    TRIREME_RETURN_IF_ERROR(Token::from_environment_if_any(token.get()));
    resolved.token = token;
  }
  return join(resolved, timeout_ns, {}, out);
}

Status Communicator::join(const GroupOptions& options, std::uint64_t timeout_ns,
                          Lineage lineage, std::shared_ptr<Communicator>* out) {
  std::unique_ptr<Backend> backend;
  TRIREME_RETURN_IF_ERROR(join_group(options, &backend));
  lineage.name = options.name;
  if (lineage.ranks.empty()) {
    static std::atomic<std::uint64_t> roots{0};
    lineage.root = ++roots;
    lineage.ranks.resize(static_cast<std::size_t>(options.world_size));
    std::iota(lineage.ranks.begin(), lineage.ranks.end(), 0);
  }
  auto core =
      std::make_shared<Core>(std::move(backend), options, timeout_ns, std::move(lineage));
  core->log_membership("joined");
  // Threads and requests hold the core itself; whoever holds this pointer holds the membership.
  // The last one may be a thread that can be cancelled elsewhere: a small operation holds no
  // NoCancellation, and what is let go of here closes files.
  *out = std::shared_ptr<Communicator>(core.get(), [core](Communicator* which) mutable {
    const NoCancellation whole;
    which->leave();
    core.reset();
  });
  return Status::success();
}

}  // namespace trireme
