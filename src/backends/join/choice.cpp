#include "backends/join/choice.hpp"

#include <algorithm>
#include <utility>

#include "platform/descriptors.hpp"
#include "platform/failpoint.hpp"
#include "platform/log.hpp"
#include "platform/thread.hpp"

namespace trireme {
namespace {

constexpr char kMetBy[] = "tcp";
// How long a rank waits to map the memory of all others. All of them have met already.
constexpr std::uint64_t kMapNs = 2'000 * kMillisecond;
// How often a wait asks for trouble elsewhere.
constexpr std::uint64_t kLookNs = 2 * kMillisecond;
constexpr std::uint64_t kRestNs = 10 * kMillisecond;
// How often a rank tells news to its near ranks, for each rank of the group. While many ranks come
// one by one, news that come together go together.
constexpr std::uint64_t kNewsNs = kMillisecond / 5 * 2;
constexpr std::uint64_t kLongestNewsNs = 50 * kMillisecond;
// How long a decision waits for the choice. Then it goes by frames.
constexpr std::uint64_t kInsistNs = 200 * kMillisecond;
// Beyond the context of the messages by which models get their channels.
constexpr std::uint32_t kContext = 2 + kChannels;

std::string rank_of(const GroupOptions& options) {
  return "rank " + std::to_string(options.rank) + " of \"" + options.name + "\"";
}

// A failure of this rank: "rank 1 of "NAME" left".
Status failure_of(const GroupOptions& options, trireme_status code, const char* what) noexcept {
  try {
    FailureDetails details;
    details.communicator = options.name;
    details.blamed = {options.rank};
    return Status::failure(code, rank_of(options) + " " + what).with_details(std::move(details));
  } catch (...) {
    return Status::failure(code, "out of memory");  // short enough to need no memory
  }
}

// Whether the system refuses this rank what it needs to meet others.
Status refusal_of(const GroupOptions& options) {
  const int refused = system_refusal();
  if (refused == 0) return Status::success();
  FailureDetails details;
  details.communicator = options.name;
  details.blamed = {options.rank};
  details.system_error = refused;
  return Status::system(refused, rank_of(options) + " cannot meet the other ranks of its host")
      .with_details(std::move(details));
}

void log_of(const GroupOptions& options, trireme_log_level level, const char* text,
            const std::string& why) noexcept {
  if (!log_wanted(level)) return;
  try {
    log_line(level, rank_of(options) + ": " + text + why);
  } catch (...) {  // no memory for a line, so there is none
  }
}

GroupOptions host_options(const GroupOptions& options, const Token& token) {
  GroupOptions own = options;
  own.token = std::make_shared<const Token>(token);
  own.met_by = kMetBy;
  return own;
}

bool is_one_host(const std::vector<tcp::Entry>& entries) {
  return std::all_of(entries.begin(), entries.end(), [&](const tcp::Entry& entry) {
    return entry.host == entries.front().host && entry.engine[0] == 0;
  });
}

}  // namespace

std::string name_of_host_group(const Token& token, const std::vector<tcp::Entry>& entries, int me) {
  std::string all = "ranks of one host\n";
  const auto add = [&](const Digest& digest) {
    all.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  };
  add(entries[static_cast<std::size_t>(me)].host);
  for (const tcp::Entry& entry : entries) add(entry.nonce);
  return hexadecimal(hmac_sha256(token.secret(), all));
}

Choice::Choice(const GroupOptions& options, const Token& token, bool few_connections)
    : options_(host_options(options, token)),
      token_(token),
      few_connections_(few_connections),
      memory_(local::LocalBackend::make(options_, true)) {}

void Choice::begin(std::shared_ptr<host::HostBackend> frames, std::weak_ptr<tcp::Mesh> mesh) {
  const std::lock_guard lock(mutex_);
  frames_ = std::move(frames);
  mesh_ = std::move(mesh);
  if (verdict_ == Verdict::frames) chosen_.store(frames_.get(), std::memory_order_release);
  changed_.notify_all();
}

Status Choice::meet(const std::vector<tcp::Entry>& entries) {
  std::shared_ptr<local::LocalBackend> unused;  // released after the lock
  const std::lock_guard lock(mutex_);
  if (leaves_ || chosen() != nullptr) return Status::success();
  if (!is_one_host(entries) || options_.world_size > kMostRanksOfMemory) {
    verdict_ = Verdict::frames;
    unused = std::move(memory_);
    if (frames_ != nullptr) chosen_.store(frames_.get(), std::memory_order_release);
    changed_.notify_all();
    return Status::success();
  }
  place_ = name_of_host_group(token_, entries, options_.rank);
  TRIREME_RETURN_IF_ERROR(start_thread([self = shared_from_this()] { self->work(); }));
  works_ = true;
  return Status::success();
}

void Choice::leave() noexcept {
  std::shared_ptr<host::HostBackend> frames;
  std::shared_ptr<local::LocalBackend> memory;
  {
    std::unique_lock lock(mutex_);
    leaves_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !works_; });
    frames = std::move(frames_);
    memory = std::move(memory_);
  }
  memory.reset();
}

std::shared_ptr<Backend> Choice::now() const {
  const std::lock_guard lock(mutex_);
  if (chosen() != nullptr && verdict_ == Verdict::memory) return memory_;
  return frames_;
}

bool Choice::uses_memory() const noexcept {
  const std::lock_guard lock(mutex_);
  return chosen() != nullptr && verdict_ == Verdict::memory;
}

Status Choice::allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) const {
  std::shared_ptr<Backend> backend;
  {
    const std::lock_guard lock(mutex_);
    backend = memory_;
    if (backend == nullptr) backend = frames_;
  }
  return backend->allocate(bytes, out);
}

// --- failures ----------------------------------------------------------------------------------

// This rank wants frames. Returns false if all use memory already.
bool Choice::settle_on_frames() const noexcept {
  const std::lock_guard lock(mutex_);
  if (verdict_ == Verdict::open) {
    verdict_ = memory_ != nullptr && memory_->settle(false) ? Verdict::memory : Verdict::frames;
    changed_.notify_all();
  }
  return verdict_ == Verdict::frames;
}

void Choice::frames_failed(const Status& failure) {
  if (!settle_on_frames()) return;
  std::shared_ptr<const EndListener> listener;
  std::shared_ptr<local::LocalBackend> unused;  // released after the lock
  {
    const std::lock_guard lock(mutex_);
    listener = listener_;
    if (!works_ && frames_ != nullptr && chosen() == nullptr) {
      unused = std::move(memory_);
      chosen_.store(frames_.get(), std::memory_order_release);
      changed_.notify_all();
    }
  }
  if (listener != nullptr) (*listener)(failure);
}

void Choice::on_end(std::shared_ptr<const EndListener> listener) {
  std::shared_ptr<Backend> frames;
  std::shared_ptr<Backend> memory;
  {
    const std::lock_guard lock(mutex_);
    listener_ = listener;
    frames = frames_;
    if (chosen() != nullptr && verdict_ == Verdict::memory) memory = memory_;
  }
  if (frames != nullptr) {
    frames->on_end(
        std::make_shared<const EndListener>([weak = weak_from_this()](const Status& failure) {
          if (const std::shared_ptr<Choice> open = weak.lock()) open->frames_failed(failure);
        }));
  }
  if (memory != nullptr) memory->on_end(std::move(listener));
}

void Choice::on_wait(const std::shared_ptr<const WaitListener>& listener) {
  std::shared_ptr<Backend> backends[2];
  {
    const std::lock_guard lock(mutex_);
    backends[0] = frames_;
    backends[1] = memory_;
  }
  for (const std::shared_ptr<Backend>& backend : backends) {
    if (backend != nullptr) backend->on_wait(listener);
  }
}

void Choice::fail(const Status& status) noexcept {
  const bool by_frames = settle_on_frames();
  std::shared_ptr<Backend> backend;
  {
    const std::lock_guard lock(mutex_);
    backend = by_frames ? std::shared_ptr<Backend>(frames_) : std::shared_ptr<Backend>(memory_);
  }
  if (backend != nullptr) backend->fail(status);
}

Status Choice::failure(bool shared) const {
  const auto of = [&](const std::shared_ptr<Backend>& backend) {
    if (backend == nullptr) return Status::success();
    return shared ? backend->shared_failure() : backend->failure();
  };
  Status failed = of(now());
  if (failed.ok() || settle_on_frames()) return failed;
  std::shared_ptr<Backend> memory;
  {
    const std::lock_guard lock(mutex_);
    memory = memory_;
  }
  return of(memory);
}

std::vector<std::int32_t> Choice::awaited(std::uint32_t channel) const {
  std::vector<std::int32_t> ranks = now()->awaited(channel);
  return ranks.empty() && chosen() == nullptr ? late() : ranks;
}

// Until the choice no message moves.
std::vector<std::int32_t> Choice::unready() const {
  std::shared_ptr<host::HostBackend> frames;
  {
    const std::lock_guard lock(mutex_);
    if (chosen() != nullptr) return {};
    frames = frames_;
  }
  std::vector<std::int32_t> absent;
  for (int rank = 0; frames != nullptr && rank < options_.world_size; ++rank) {
    if (!frames->has_joined(rank)) absent.push_back(rank);
  }
  return absent.empty() ? late() : absent;
}

// The ranks that keep this one from its choice; first those without a sign of life.
std::vector<std::int32_t> Choice::late() const {
  std::vector<std::int32_t> ranks;
  std::shared_ptr<tcp::Mesh> mesh;
  {
    const std::lock_guard lock(mutex_);
    ranks = awaited_.list();
    mesh = mesh_.lock();
    for (int rank = 0; maps_ && memory_ != nullptr && rank < options_.world_size; ++rank) {
      if (!memory_->has_joined(rank)) ranks.push_back(rank);
    }
    // The others wait for this one.
    if (ranks.empty()) ranks.push_back(options_.rank);
  }
  const std::vector<std::int32_t> without = mesh == nullptr ? ranks : mesh->silent();
  std::vector<std::int32_t> both;
  for (const std::int32_t rank : ranks) {
    if (std::find(without.begin(), without.end(), rank) != without.end()) both.push_back(rank);
  }
  return both.empty() ? ranks : both;
}

// --- waiting -----------------------------------------------------------------------------------

Status Choice::wait_for_choice(Deadline deadline, const std::function<Status()>& trouble) {
  while (chosen() == nullptr) {
    if (trouble != nullptr) TRIREME_RETURN_IF_ERROR(trouble());
    TRIREME_RETURN_IF_ERROR(failure(false));
    if (deadline.passed()) {
      TRIREME_RETURN_IF_ERROR(refusal_of(options_));
      FailureDetails details;
      details.communicator = options_.name;
      details.blamed = late();
      const bool one = details.blamed.size() == 1;
      return Status::failure(TRIREME_ERROR_TIMEOUT,
                             list_ranks(details.blamed) + (one ? " has" : " have") +
                                 " not told how it reaches the ranks of \"" + options_.name + "\"")
          .with_details(std::move(details));
    }
    const Deadline look = Deadline::at(std::min(deadline.moment_ns(), now_ns() + kLookNs));
    std::unique_lock lock(mutex_);
    wait_until(changed_, lock, look, [this] { return chosen() != nullptr; });
  }
  return Status::success();
}

Status Choice::wait(Deadline deadline, const std::function<Status()>& trouble) {
  std::shared_ptr<host::HostBackend> frames;
  {
    const std::lock_guard lock(mutex_);
    frames = frames_;
  }
  if (chosen() == nullptr && frames != nullptr) {
    const Status met = frames->wait_ready_unless(deadline, trouble);
    // Once all use memory, the ranks leave the other group.
    const bool failed = !frames->failure().ok();
    if (!met.ok() && (failed ? settle_on_frames() : !uses_memory())) return met;
    TRIREME_RETURN_IF_ERROR(wait_for_choice(deadline, trouble));
  }
  return chosen()->wait_ready_unless(deadline, trouble);
}

Status Choice::wait_for(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  std::shared_ptr<host::HostBackend> frames;
  {
    const std::lock_guard lock(mutex_);
    frames = frames_;
  }
  if (chosen() != nullptr || frames == nullptr) return Status::success();
  const Status met = frames->begin(operation, sequence, deadline);
  if (!met.ok() && settle_on_frames()) return met;
  const Status chose = wait_for_choice(deadline, nullptr);
  if (chose.ok()) return chose;
  if (settle_on_frames()) return frames->fail_operation(operation, sequence, chose);
  // All use memory. The thread looks for that verdict every few milliseconds.
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return chosen() != nullptr; });
  return Status::success();
}

std::shared_ptr<Backend> Choice::insist(Deadline deadline) {
  {
    std::unique_lock lock(mutex_);
    wait_until(changed_, lock, Deadline::after(std::min(deadline.remaining_ns() / 2, kInsistNs)),
               [this] { return verdict_ != Verdict::open || stops_insisting_; });
  }
  const bool by_frames = settle_on_frames();
  std::unique_lock lock(mutex_);
  if (by_frames) return frames_;
  // The thread looks for the verdict every few milliseconds.
  changed_.wait(lock, [this] { return chosen() != nullptr; });
  return memory_;
}

void Choice::stop_insisting() noexcept {
  std::shared_ptr<Backend> backends[2];
  {
    const std::lock_guard lock(mutex_);
    stops_insisting_ = true;
    changed_.notify_all();
    backends[0] = frames_;
    backends[1] = memory_;
  }
  for (const std::shared_ptr<Backend>& backend : backends) {
    if (backend != nullptr) backend->stop_deciding();
  }
}

void Choice::rest(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (chosen() != nullptr) return;
  const std::uint64_t until = std::min(deadline.moment_ns(), now_ns() + kRestNs);
  changed_.wait_for(lock, std::chrono::nanoseconds(Deadline::at(until).remaining_ns()));
}

// Ranks that all use the memory of a host make other groups there, too.
void Choice::adapt(GroupOptions* options_of_child) const {
  if (!uses_memory()) return;
  options_of_child->rendezvous = "host://" + place_;
  options_of_child->token = options_.token;
  options_of_child->met_by = options_.met_by;
}

// --- the thread --------------------------------------------------------------------------------

// A failure: this rank leaves, or wants frames.
Status Choice::trouble() const {
  const std::lock_guard lock(mutex_);
  if (!leaves_ && verdict_ == Verdict::open) return Status::success();
  return Status::failure(TRIREME_ERROR_CANCELLED, "this rank does not wait for that");
}

void Choice::work() noexcept {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return frames_ != nullptr || leaves_; });
  }
  try {
    static_cast<void>(try_memory());
  } catch (...) {
    fail(failure_of(options_, TRIREME_ERROR_OUT_OF_MEMORY, "has no memory left to join"));
  }
  finish();
}

void Choice::note_mapping(bool maps) {
  const std::lock_guard lock(mutex_);
  maps_ = maps;
}

Status Choice::try_memory() {
  std::shared_ptr<host::HostBackend> frames;
  std::shared_ptr<local::LocalBackend> memory;
  {
    const std::lock_guard lock(mutex_);
    frames = frames_;
    memory = memory_;
    if (leaves_) return Status::success();
  }
  const auto leaves = [this]() -> Status {
    const std::lock_guard lock(mutex_);
    return leaves_ ? Status::failure(TRIREME_ERROR_CANCELLED, "the group is being left")
                   : Status::success();
  };
  TRIREME_RETURN_IF_ERROR(frames->wait_ready_unless(Deadline::at(UINT64_MAX), leaves));
  Status able = trouble();
  if (able.ok()) able = failpoint("memory", "before_join");
  if (able.ok()) able = memory->meet(place_, options_.token);
  Answers answers(options_.rank, options_.world_size, few_connections_);
  bool all = false;
  TRIREME_RETURN_IF_ERROR(tell(*frames, answers, 1, able.ok(), &all));
  if (all) {
    const auto ends = [&]() -> Status {
      TRIREME_RETURN_IF_ERROR(trouble());
      TRIREME_RETURN_IF_ERROR(refusal_of(options_));
      return frames->failure();
    };
    note_mapping(true);
    able = memory->wait_ready_unless(Deadline::after(kMapNs), ends);
    note_mapping(false);
    if (able.ok()) able = failpoint("memory", "before_use");
    if (able.ok()) able = trouble();
    TRIREME_RETURN_IF_ERROR(tell(*frames, answers, 2, able.ok(), &all));
  }
  if (all) {
    const std::lock_guard lock(mutex_);
    if (verdict_ == Verdict::open) {
      verdict_ = memory->settle(true) ? Verdict::memory : Verdict::frames;
      changed_.notify_all();
    }
    return Status::success();
  }
  const bool had_trouble = able.code() == TRIREME_ERROR_CANCELLED;  // see trouble()
  if (!able.ok() && !had_trouble) {
    log_of(options_, TRIREME_LOG_WARNING,
           "the ranks are on one host, but send frames, as this one cannot use its memory: ",
           able.message());
  }
  return Status::success();
}

// Tells the others, and hears all of them. Only this thread sends messages by frames until the rank
// has chosen. A letter that comes later stays where it is: no other message has its context.
Status Choice::tell(Backend& frames, Answers& answers, std::uint32_t round, bool own, bool* all) {
  answers.say(round, own);
  Letters letters(frames, answers, kContext);
  try {
    TRIREME_RETURN_IF_ERROR(exchange(frames, answers, letters));
  } catch (...) {
    frames.fail(
        failure_of(options_, TRIREME_ERROR_OUT_OF_MEMORY, "has no memory left to tell the others"));
    frames.progress();  // ends all messages, as the group has failed
    throw;
  }
  *all = answers.are_yes();
  return Status::success();
}

// Returns when all have told, and no near rank waits for this one. Or this rank leaves, or all use
// memory: then it takes its messages back.
Status Choice::exchange(Backend& frames, Answers& answers, Letters& letters) {
  const std::uint64_t pause_ns = std::clamp(
      kNewsNs * static_cast<std::uint64_t>(options_.world_size), kRestNs, kLongestNewsNs);
  std::uint64_t news_ns = now_ns() + pause_ns;
  bool leaves = false;
  bool use_memory = false;
  bool is_over = false;
  while (!leaves && !use_memory && !is_over) {
    const Rest rest(frames);
    const bool news = now_ns() >= news_ns;
    if (news) news_ns = now_ns() + pause_ns;
    bool moved = false;
    TRIREME_RETURN_IF_ERROR(letters.turn(news, &moved));
    {
      const std::lock_guard lock(mutex_);
      awaited_ = answers.missing();
      leaves = leaves_;
      use_memory = verdict_ == Verdict::memory;
    }
    // News that have come may have to go on.
    is_over = !moved && answers.has_all() && !letters.are_under_way();
    if (!moved && !is_over && !leaves && !use_memory) {
      frames.wait_activity(rest.seen(), Deadline::after(kRestNs));
    }
  }
  // Near ranks may not know yet that all use memory.
  bool moved = false;
  if (use_memory && !is_over) {
    answers.learn_yes();
    TRIREME_RETURN_IF_ERROR(letters.turn(false, &moved));
  }
  if (!letters.take_back()) {  // a failure ends them
    frames.fail(failure_of(options_, TRIREME_ERROR_PEER_LOST, "left"));
    frames.progress();
  }
  return is_over ? Status::success()
                 : Status::failure(TRIREME_ERROR_CANCELLED, "this rank needs no answer");
}

void Choice::finish() noexcept {
  std::shared_ptr<Backend> unused;
  std::shared_ptr<local::LocalBackend> memory;
  std::shared_ptr<const EndListener> listener;
  bool leaves = false;
  {
    const std::lock_guard lock(mutex_);
    leaves = leaves_;
  }
  if (!leaves) static_cast<void>(settle_on_frames());
  {
    const std::lock_guard lock(mutex_);
    if (verdict_ == Verdict::memory) memory = memory_;
    listener = listener_;
  }
  if (memory != nullptr && listener != nullptr) memory->on_end(listener);
  {
    const std::lock_guard lock(mutex_);
    if (verdict_ == Verdict::memory) {
      // Other groups may meet where this rank serves.
      if (const std::shared_ptr<tcp::Mesh> mesh = mesh_.lock()) served_ = mesh->served();
      unused = std::move(frames_);
      chosen_.store(memory_.get(), std::memory_order_release);
    } else if (verdict_ == Verdict::frames) {
      unused = std::move(memory_);
      chosen_.store(frames_.get(), std::memory_order_release);
    }
    changed_.notify_all();
    // A later listener finds the choice.
    if (listener_ == listener) memory = nullptr;
    listener = listener_;
  }
  if (memory != nullptr && listener != nullptr) memory->on_end(listener);
  memory.reset();
  unused.reset();  // says goodbye to the peers
  if (uses_memory()) {
    log_of(options_, TRIREME_LOG_INFO, "all ranks are on one host and use its memory", "");
  }
  const std::lock_guard lock(mutex_);
  works_ = false;
  changed_.notify_all();
}

}  // namespace trireme
