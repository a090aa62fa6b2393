#include "collectives/channel.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "backends/fingerprint.hpp"
#include "backends/parts.hpp"
#include "collectives/request.hpp"
#include "platform/thread.hpp"
#include "schedules/algorithm.hpp"

namespace trireme {

namespace {

// How long an operation waits behind a late one for its verdict, and how often it looks.
constexpr std::uint64_t kVerdictNs = 1'000'000'000;
constexpr std::uint64_t kLookNs = 2'000'000;

}  // namespace

// --- Timekeeper ------------------------------------------------------------------------------

Status Timekeeper::expect(std::uint64_t moment_ns, const std::shared_ptr<void>& keep) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return Status::success();
  if (!running_) {
    TRIREME_RETURN_IF_ERROR(start_thread([this, keep] { work(); }));
    running_ = true;
  }
  if (moment_ns < next_ns_) {
    next_ns_ = moment_ns;
    changed_.notify_one();
  }
  return Status::success();
}

void Timekeeper::stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_one();
}

void Timekeeper::work() noexcept {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const std::uint64_t next = next_ns_;
    if (wait_until(changed_, lock, Deadline::at(next),
                   [&] { return stopped_ || next_ns_ != next; })) {
      continue;
    }
    next_ns_ = UINT64_MAX;
    lock.unlock();
    const std::uint64_t earliest = expire_();
    lock.lock();
    next_ns_ = std::min(next_ns_, earliest);
  }
}

// --- Collective: one started operation -------------------------------------------------------

class Collective final : public Completion {
 public:
  Collective(Channel& channel_in, std::shared_ptr<void> keep, const void* owner,
             Operation operation_in, Deadline deadline_in)
      : Completion(owner),
        channel(channel_in),
        kind(operation_in.kind),
        operation(std::move(operation_in)),
        deadline(deadline_in),
        keep_(std::move(keep)) {}

  Status cancel() override { return channel.cancel(*this); }

  Channel& channel;
  const OperationKind kind;
  Operation operation;
  const Deadline deadline;
  std::uint64_t sequence = 0;
  std::uint64_t flight = 0;
  std::shared_ptr<Backend> backend;    // until it is done
  Status verdict = Status::success();  // its failure, if its deadline passes while it waits

 private:
  std::uint64_t due_ns() const override { return deadline.moment_ns(); }
  std::string label() const override {
    return std::string(operation_name(kind)) + ", sequence " + std::to_string(sequence) + ",";
  }

  const std::shared_ptr<void> keep_;
};

// --- the steps of a composite -----------------------------------------------------------------

namespace {

class StepsOfBackend final : public Steps {
 public:
  using Move = std::function<Status(const Operation&)>;  // one collective

  StepsOfBackend(Backend& backend, const Operation& called, std::shared_ptr<Memory>& scratch,
                 Move move)
      : backend_(backend), called_(called), scratch_(scratch), move_(std::move(move)) {}

  Status run(const Operation& step) override {
    Operation here = step;
    here.channel = called_.channel;
    here.model = called_.model;
    here.reproducible = called_.reproducible;
    if (here.kind == called_.kind) here.algorithm = called_.algorithm;
    return move_(here);
  }

  Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) override {
    return backend_.allocate(bytes, out);
  }

  Status scratch(std::uint64_t bytes, std::byte** out) override {
    if (scratch_ == nullptr || scratch_->bytes() < bytes) {
      scratch_.reset();
      TRIREME_RETURN_IF_ERROR(backend_.allocate(bytes, &scratch_));
    }
    *out = static_cast<std::byte*>(scratch_->data());
    return Status::success();
  }

 private:
  Backend& backend_;
  const Operation& called_;
  std::shared_ptr<Memory>& scratch_;
  const Move move_;
};

}  // namespace

// --- Channel ---------------------------------------------------------------------------------

void Channel::open(std::shared_ptr<Backend> backend) {
  const std::lock_guard lock(mutex_);
  backend_ = std::move(backend);
  opened_ = backend_.get();
  state_.fetch_and(~kClosed);
}

FlightRecord::What Channel::describe(const PlainOperation& operation,
                                     std::uint64_t sequence) const noexcept {
  const std::int32_t root = has_root(operation.kind) ? operation.root : -1;
  return {operation.kind, operation.dtype, root, number_, sequence, operation.count};
}

std::uint64_t Channel::begin_record(const Operation& operation, std::uint64_t sequence,
                                    Deadline deadline) noexcept {
  return records_.flight.begin(describe(operation, sequence), deadline.made_ns());
}

bool Channel::begin_at_once(std::uint64_t* sequence) noexcept {
  std::uint64_t state = state_.load(std::memory_order_relaxed);
  do {
    if ((state & (kRuns | kWaits | kClosed)) != 0) return false;
  } while (!state_.compare_exchange_weak(state, (state + kOneCollective) | kRuns,
                                         std::memory_order_seq_cst, std::memory_order_relaxed));
  *sequence = state / kOneCollective + 1;
  return true;
}

void Channel::end_small() noexcept {
  if ((state_.fetch_and(~kRuns) & (kWaits | kClosed)) == 0) return;
  const NoCancellation rest;
  std::shared_ptr<Backend> left;  // released after the lock
  const std::lock_guard lock(mutex_);
  if ((state_.load() & (kRuns | kClosed)) == kClosed) left = std::move(leaving_);
  changed_.notify_all();
}

void Channel::begin_next() noexcept {
  state_.fetch_or(kRuns);
  note_queue();
}

void Channel::note_queue() noexcept {
  if (queue_.empty()) state_.fetch_and(~kWaits);
}

std::shared_ptr<Backend> Channel::end_run() noexcept {
  state_.fetch_and(~kRuns);
  if (!queue_.empty()) changed_.notify_all();
  return std::move(leaving_);
}

// A failure that a program finds itself must reach the peers. They know the failure of a step
// already.
Status Channel::fail_composite(Backend& backend, OperationKind kind, std::uint64_t sequence,
                               const Status& status) const {
  const FailureDetails* const details = status.details();
  if (details != nullptr && !details->operation.empty()) return status;
  const bool blames = details != nullptr && !details->blamed.empty();
  const std::string text =
      blames ? status.message() : "rank " + std::to_string(records_.rank) + ": " + status.message();
  const Status own =
      make_failure(records_, kind, sequence, status.code(), text.c_str(),
                   blames ? details->blamed : std::vector<std::int32_t>{records_.rank});
  backend.fail(own);
  const Status first = backend.failure();
  // A mismatch that this rank saw is true, whatever failed first.
  const bool other = own.code() == TRIREME_ERROR_MISMATCH && first.code() != own.code();
  return other ? with_operation(records_, kind, sequence, own) : first;
}

// The operation, or *changed: with the algorithm of the tuning table, and with the table itself to
// compare. A rank tells it by its first operation that ranks compare by nothing else. A rank
// without a table tells nothing, which differs, too. All other differences show by the algorithms,
// in the first operation that they change.
const Operation& Channel::tuned(const Backend& backend, const Operation& operation,
                                std::optional<Operation>* changed) {
  Tuning& tuning = records_.tuning;
  tuning.settle(backend);
  const Algorithm algorithm = tuning.choose(backend, operation);
  const bool tells = operation.agreement == 0 && !tuning_is_told_.load(std::memory_order_relaxed);
  if (algorithm == Algorithm::automatic && !tells) return operation;
  Operation& own = changed->emplace(operation);
  if (algorithm != Algorithm::automatic) own.algorithm = static_cast<std::int32_t>(algorithm);
  if (tells) {
    own.agreement = tuning.digest();
    own.agreement_name = kTuningTables;
    tuning_is_told_.store(true, std::memory_order_relaxed);
  }
  return own;
}

Status Channel::move(Backend& backend, const Operation& operation, std::uint64_t sequence,
                     Deadline deadline) {
  const Status known = backend.know_natives(deadline);  // the operation reports its failure
  std::optional<Operation> changed;
  const bool may_change = records_.tuning.is_there() && known.ok();
  const Operation& one = may_change ? tuned(backend, operation, &changed) : operation;
  if (runs_natively(backend, one)) return backend.run(one, sequence, deadline);
  return run_algorithm(backend, messages_, records_, passing_, one, sequence, deadline);
}

Status Channel::execute(Backend& backend, const Operation& operation, std::uint64_t sequence,
                        Deadline deadline, bool published) noexcept {
  bool returned = false;
  due_ns_.store(deadline.moment_ns(), std::memory_order_relaxed);
  const auto move_one = [&](const Operation& one) {
    if (published) return backend.finish_small(one, sequence, deadline);
    return move(backend, one, sequence, deadline);
  };
  Status status = caught(records_, operation.kind, sequence, [&] {
    Status answer = Status::success();
    if (operation.program) {
      StepsOfBackend steps(backend, operation, scratch_, move_one);
      answer = operation.program(steps);
      if (!answer.ok()) answer = fail_composite(backend, operation.kind, sequence, answer);
    } else {
      answer = move_one(operation);
    }
    returned = true;
    return answer;
  });
  if (!returned) backend.fail(status);
  due_ns_.store(UINT64_MAX, std::memory_order_relaxed);
  return status;
}

// Whether the tuning table, if there is one, changes nothing about the operation.
bool Channel::is_left_as_it_is(const PlainOperation& operation) const noexcept {
  const Tuning& tuning = records_.tuning;
  return !tuning.is_there() || (tuning_is_told_.load(std::memory_order_relaxed) &&
                                tuning.leaves(operation, records_.world_size));
}

Status Channel::run(const PlainOperation& operation, std::uint64_t timeout_ns) {
  std::uint64_t sequence = 0;
  const bool may_be_small = operation.algorithm == 0 && is_left_as_it_is(operation);
  if (!may_be_small || !begin_at_once(&sequence)) {
    const NoCancellation rest;
    return run(Operation(operation), Deadline::after(timeout_ns));
  }
  BriefTime time;
  const SmallProgress progress = opened_->start_small(operation, sequence, &time);
  if (progress == SmallProgress::over) [[likely]] {
    records_.flight.note(describe(operation, sequence), time.start_ticks, time.end_ticks);
    end_small();
    return Status::success();
  }
  // From here on it is in the flight record, and may wait.
  const NoCancellation rest;
  const Deadline deadline = Deadline::after(timeout_ns);
  const std::uint64_t flight =
      records_.flight.begin(describe(operation, sequence), deadline.made_ns());
  const Status status = execute(*opened_, Operation(operation), sequence, deadline,
                                progress == SmallProgress::waiting);
  end_small();
  records_.flight.end(flight, status.code());
  return status;
}

// All ranks must give the same answer about "native", whichever has met the others already.
void Channel::know_natives(const Operation& operation, Deadline deadline) {
  if (operation.algorithm != static_cast<std::int32_t>(Algorithm::native)) return;
  std::shared_ptr<Backend> backend;
  {
    const std::lock_guard lock(mutex_);
    backend = backend_;
  }
  if (backend == nullptr) return;
  const Status known = backend->know_natives(deadline);
  // Peers that know the answer begin the operation, so this rank fails it for the group instead of
  // refusing it.
  if (!known.ok()) backend->fail(known);
}

Status Channel::run(const Operation& operation, Deadline deadline) {
  know_natives(operation, deadline);
  std::shared_ptr<Backend> left;  // released after the lock
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Backend> backend = backend_;
  if (backend == nullptr) return records_.left();
  TRIREME_RETURN_IF_ERROR(check_algorithm(*backend, operation));
  Queue turn;
  std::uint64_t sequence = 0;
  const bool waits = !begin_at_once(&sequence);
  if (waits) {
    turn.emplace_back();
    sequence = take_sequence();
  }
  const std::uint64_t flight = begin_record(operation, sequence, deadline);
  Status status = Status::success();
  if (waits) status = wait_turn(lock, &turn, operation.kind, sequence, deadline);
  if (status.ok()) {
    lock.unlock();
    status = execute(*backend, operation, sequence, deadline);
    lock.lock();
    left = end_run();
  }
  lock.unlock();
  records_.flight.end(flight, status.code());
  return status;
}

Status Channel::wait_turn(std::unique_lock<std::mutex>& lock, Queue* turn, OperationKind kind,
                          std::uint64_t sequence, Deadline deadline) {
  turn->front().sequence = sequence;
  const Queue::iterator place = turn->begin();
  queue_.splice(queue_.end(), *turn);
  const auto is_mine = [&] { return !runs() && queue_.begin() == place; };
  bool mine = wait_until(changed_, lock, deadline, is_mine);
  std::optional<Status> verdict;
  while (!mine && backend_ != nullptr) {
    verdict = verdict_behind(*backend_, kind, sequence, deadline);
    if (verdict.has_value()) break;
    mine = wait_until(changed_, lock, Deadline::after(kLookNs), is_mine);
  }
  queue_.erase(place);
  if (mine) {
    begin_next();
    return Status::success();
  }
  note_queue();
  if (!queue_.empty()) changed_.notify_all();
  const std::shared_ptr<Backend> backend = backend_;
  if (backend == nullptr) return with_operation(records_, kind, sequence, records_.left());
  return *verdict;
}

// All operations that wait behind one are late soon after it. The peers would each blame this rank,
// which itself waits for the ranks that have not come to the first one.
std::optional<Status> Channel::verdict_behind(Backend& backend, OperationKind kind,
                                              std::uint64_t sequence,
                                              Deadline deadline) const noexcept {
  const std::uint64_t due = due_ns_.load(std::memory_order_relaxed);
  try {
    Status failure = backend.failure();
    if (!failure.ok()) return failure;
    if (due <= deadline.moment_ns() && now_ns() < deadline.moment_ns() + kVerdictNs) return {};
    // The peers will wait for an operation that never comes, so the group is out of step. This rank
    // is not at fault.
    std::vector<std::int32_t> awaited = backend.awaited(number_);
    const std::string text =
        "rank " + std::to_string(records_.rank) + " had it queued behind " +
        (awaited.empty() ? "others" : "one that waits for " + list_ranks(awaited)) +
        " when its deadline passed";
    failure = make_failure(records_, kind, sequence, TRIREME_ERROR_TIMEOUT, text.c_str(),
                           std::move(awaited));
    backend.fail(failure);
    return with_operation(records_, kind, sequence, failure);
  } catch (...) {
    const Status failure = Status::failure(TRIREME_ERROR_TIMEOUT, "out of memory");  // needs none
    backend.fail(failure);
    return failure;
  }
}

Status Channel::start(const std::shared_ptr<void>& keep, const void* owner, Operation operation,
                      Deadline deadline, std::shared_ptr<Request>* out) {
  auto collective =
      std::make_shared<Collective>(*this, keep, owner, std::move(operation), deadline);
  Queue turn;
  turn.push_back({0, collective});
  know_natives(collective->operation, deadline);

  const std::lock_guard lock(mutex_);
  if (backend_ == nullptr) return records_.left();
  TRIREME_RETURN_IF_ERROR(check_algorithm(*backend_, collective->operation));
  TRIREME_RETURN_IF_ERROR(backend_->failure());
  if (!has_thread_) {
    TRIREME_RETURN_IF_ERROR(start_thread([this, keep] { work(); }));
    has_thread_ = true;
  }
  state_.fetch_or(kWaits);  // operations that have not begun by now begin after it
  if (runs() || !queue_.empty()) {
    const Status expected = timekeeper_.expect(deadline.moment_ns(), keep);
    if (!expected.ok()) {
      note_queue();
      return expected;
    }
  }
  collective->sequence = turn.front().sequence = take_sequence();
  collective->flight = begin_record(collective->operation, collective->sequence, deadline);
  collective->backend = backend_;
  queue_.splice(queue_.end(), turn);
  changed_.notify_all();
  *out = std::move(collective);
  return Status::success();
}

Status Channel::cancel(const Collective& collective) {
  const std::string name = operation_name(collective.kind);
  const Status failure = make_failure(
      records_, collective.kind, collective.sequence, TRIREME_ERROR_CANCELLED,
      ("rank " + std::to_string(records_.rank) + " withdrew it").c_str(), {records_.rank});
  std::shared_ptr<Backend> backend;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(queue_.begin(), queue_.end(), [&](const Turn& turn) {
      return turn.started.get() == &collective;
    });
    if (found == queue_.end()) {
      return invalid_state(name + ", sequence " + std::to_string(collective.sequence) +
                           ", has begun or is done");
    }
    backend = collective.backend;
    backend->fail(failure);  // first, so that who sees it cancelled finds that the group has failed
    withdraw(found, with_operation(records_, collective.kind, collective.sequence, failure));
  }
  backend->spread_failure();
  return Status::success();
}

std::uint64_t Channel::expire() {
  std::shared_ptr<Backend> failed;  // released after the lock
  const std::uint64_t earliest = judge_late(&failed);
  if (failed == nullptr) return earliest;
  // The peers know the failure before a caller that waits for one of these operations.
  failed->spread_failure();
  const std::lock_guard lock(mutex_);
  for (auto next = queue_.begin(); next != queue_.end();) {
    const auto turn = next++;
    if (turn->started == nullptr || turn->started->verdict.ok()) continue;
    withdraw(turn, turn->started->verdict);
  }
  return earliest;
}

// Gives late operations their verdict; *failed is then their backend.
std::uint64_t Channel::judge_late(std::shared_ptr<Backend>* failed) {
  std::uint64_t earliest = UINT64_MAX;
  const std::lock_guard lock(mutex_);
  for (const Turn& turn : queue_) {
    if (turn.started == nullptr) continue;
    Collective& late = *turn.started;
    if (!late.deadline.passed()) {
      earliest = std::min(earliest, late.deadline.moment_ns());
      continue;
    }
    const std::optional<Status> failure =
        verdict_behind(*late.backend, late.kind, late.sequence, late.deadline);
    if (!failure.has_value()) {
      earliest = std::min(earliest, now_ns() + kLookNs);
      continue;
    }
    late.verdict = *failure;
    *failed = late.backend;
  }
  return earliest;
}

// The caller holds the lock.
void Channel::withdraw(Queue::iterator turn, const Status& status) noexcept {
  withdrawn_.splice(withdrawn_.end(), queue_, turn);
  note_queue();
  Collective& collective = *turn->started;
  collective.backend.reset();  // the caller holds it, too
  records_.flight.end(collective.flight, status.code());
  collective.complete(Status(status));
  changed_.notify_all();
}

bool Channel::stop() noexcept {
  std::shared_ptr<Backend> backend;  // both are released outside the lock
  std::shared_ptr<Memory> scratch;
  const std::lock_guard lock(mutex_);
  backend = std::move(backend_);
  backend_ = nullptr;
  const bool running = (state_.fetch_or(kClosed) & kRuns) != 0;
  if (running)
    leaving_ = std::move(backend);
  else
    scratch = std::move(scratch_);
  changed_.notify_all();
  return running || !queue_.empty();
}

void Channel::work() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] {
      return !withdrawn_.empty() || may_run() || (backend_ == nullptr && queue_.empty());
    });
    if (!withdrawn_.empty()) {
      Queue turn;
      turn.splice(turn.end(), withdrawn_, withdrawn_.begin());
      lock.unlock();
      turn.front().started->operation = {};  // what it keeps alive
      turn.front().started->deliver();
      turn.clear();
      lock.lock();
    } else if (may_run()) {
      run_started(lock);
    } else {
      return;
    }
  }
}

void Channel::run_started(std::unique_lock<std::mutex>& lock) noexcept {
  Queue turn;
  turn.splice(turn.end(), queue_, queue_.begin());
  Collective& collective = *turn.front().started;
  begin_next();
  lock.unlock();
  Status status =
      execute(*collective.backend, collective.operation, collective.sequence, collective.deadline);
  lock.lock();
  std::shared_ptr<Backend> left = end_run();
  lock.unlock();
  left.reset();
  // Everything that could make it look unfinished goes first: a caller that sees it done may leave
  // the group at once.
  records_.flight.end(collective.flight, status.code());
  if (!status.ok()) collective.backend->spread_failure();
  if (status.ok() && collective.operation.refused != nullptr) {
    status = *collective.operation.refused;
  }
  collective.backend.reset();
  collective.operation = {};  // what it keeps alive
  collective.complete(std::move(status));
  collective.deliver();
  turn.clear();
  lock.lock();
}

}  // namespace trireme
