#include "backends/tcp/meeting.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "platform/descriptors.hpp"
#include "platform/failpoint.hpp"
#include "platform/log.hpp"
#include "platform/system.hpp"
#include "platform/thread.hpp"

namespace trireme::tcp {
namespace {

constexpr std::uint64_t kWarnNs = 3'000'000'000;
// How often a wait for an answer asks whether it has ended.
constexpr std::uint64_t kLookNs = 2 * kMillisecond;

}  // namespace

bool pause(int attempt, const std::atomic<bool>& stop) {
  std::uint32_t random = 0;
  static_cast<void>(system_table().random_bytes(&random, sizeof random));
  const std::uint64_t most = (10 * kMillisecond) << std::min(attempt, 6);
  wait_for(-1, 0, Deadline::after(kMillisecond + random % most), stop);
  return !stop.load(std::memory_order_acquire);
}

Status Meeting::attend(const std::atomic<bool>& stop, std::vector<Entry>* out) {
  Wait wait;
  wait.sit = [this](const Socket* seat) {
    const std::lock_guard lock(mutex_);
    waiting_ = seat;
    if (seat != nullptr) enter(State::waiting);
  };
  wait.receive = [this](const News& news) {
    const std::lock_guard lock(mutex_);
    news_ = news;
    ++heard_;
    changed_.notify_all();
  };
  std::shared_ptr<Directory> directory;
  int refusals = 0;
  const std::uint64_t begin = now_ns();
  bool said = false;
  for (int attempt = 0;; ++attempt) {
    if (own_.rank == 0 && directory == nullptr) {
      TRIREME_RETURN_IF_ERROR(Directory::serve(endpoint_, token_, &directory));
      const std::lock_guard lock(mutex_);
      directory_ = directory;
    }
    bool refused = false;
    Seat seat;
    const Status status = visit(endpoint_, token_, own_, wait, stop, out, &refused, &seat);
    const int refusal = failed_with(status);
    if (status.ok() || refusal == EMFILE || refusal == ENFILE) note_refusal(refusal);
    if (status.ok()) {
      const std::lock_guard lock(mutex_);
      seat_ = std::move(seat);
      enter(State::met);
      return status;
    }
    {
      const std::lock_guard lock(mutex_);
      enter(State::refused);
    }
    const bool unknown = status.code() == TRIREME_ERROR_AUTHENTICATION;
    if (!stop.load(std::memory_order_acquire) &&
        (refused || status.code() == TRIREME_ERROR_MISMATCH ||
         (unknown && ++refusals == kMostRefusals))) {
      FailureDetails details;
      details.blamed = {own_.rank};
      return Status::failure(status.code(), status.message()).with_details(details);
    }
    if (!said && now_ns() - begin > kWarnNs && log_wanted(TRIREME_LOG_WARNING)) {
      said = true;
      log_line(
          TRIREME_LOG_WARNING,
          name_ + " does not get to where the ranks meet, and tries again: " + status.message());
    }
    if (!pause(attempt, stop)) {
      return Status::failure(TRIREME_ERROR_CANCELLED, "the group is being left");
    }
  }
}

// Call it under the mutex.
void Meeting::enter(State state) noexcept {
  state_ = state;
  changed_.notify_all();
}

std::vector<std::int32_t> Meeting::those_who_have_not_come() const {
  std::vector<std::int32_t> out;
  for (std::int32_t rank = 0; rank < own_.world_size; ++rank) {
    if (rank != own_.rank && !news_.came[static_cast<std::size_t>(rank)]) out.push_back(rank);
  }
  if (!out.empty()) return out;
  // The last ranks came after these had given up and left.
  for (std::int32_t rank = 0; rank < own_.world_size; ++rank) {
    if (news_.left[static_cast<std::size_t>(rank)]) out.push_back(rank);
  }
  return out;
}

// `ended` may take locks, so it is asked without this one.
template <class Ready>
void Meeting::wait_for_answer(std::unique_lock<std::mutex>& lock, Deadline deadline,
                              const std::function<bool()>& ended, Ready ready) {
  bool has_ended = false;
  while (!has_ended && !deadline.passed()) {
    const Deadline look = Deadline::at(std::min(deadline.moment_ns(), now_ns() + kLookNs));
    if (wait_until(changed_, lock, look, ready)) return;
    lock.unlock();
    has_ended = ended();
    lock.lock();
  }
}

std::optional<std::vector<std::int32_t>> Meeting::absent(bool gives_up, Deadline deadline,
                                                         const std::function<bool()>& ended) {
  std::unique_lock lock(mutex_);
  wait_for_answer(lock, deadline, ended, [&] { return state_ != State::trying; });
  if (waiting_ != nullptr) {
    const std::uint64_t before = heard_;
    ask(*waiting_, gives_up);
    wait_for_answer(lock, deadline, ended, [&] { return heard_ != before || waiting_ == nullptr; });
    if (heard_ != before) return those_who_have_not_come();
    // All have met, or this attempt has ended: the state tells which in a moment.
    wait_for_answer(lock, deadline, ended,
                    [&] { return state_ != State::waiting || waiting_ != nullptr; });
  }
  // Without an answer in time the one before counts: this rank still sits at the meeting.
  if (waiting_ != nullptr && heard_ > 0) return those_who_have_not_come();
  if (state_ == State::met) return std::nullopt;
  // Rank 0 may have been there, and have given up like this rank.
  if (heard_ > 0 && news_.gave_up[0]) return those_who_have_not_come();
  if (own_.rank == 0) return std::nullopt;
  return std::vector<std::int32_t>{0};
}

int Meeting::descriptor() {
  const std::lock_guard lock(mutex_);
  return seat_.get();
}

std::vector<int> Meeting::receive() {
  std::vector<int> gone;
  const std::lock_guard lock(mutex_);
  if (!seat_) return gone;
  const bool ended = !seat_.receive_gone(&gone);
  if (ended) {
    seat_.reset();
    over_.store(true, std::memory_order_release);
  }
  return gone;
}

void Meeting::lose(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  if (!seat_) return;
  if (rank != own_.rank) {
    // This rank reads no more news. Earlier news may name another rank: the reason why this one
    // left.
    const int told = seat_.first_told();
    note_gone(told >= 0 && told != own_.rank ? told : rank);
  }
  seat_.say_last(rank);
}

void Meeting::end_well() noexcept { lose(own_.rank); }

void Meeting::end() noexcept {
  const std::lock_guard lock(mutex_);
  seat_.reset();
}

void Meeting::settle() noexcept {
  std::shared_ptr<Directory> directory;
  {
    const std::lock_guard lock(mutex_);
    directory = directory_;
  }
  if (directory != nullptr) directory->settle();
}

void Meeting::note_gone(int rank) noexcept {
  int nobody = -1;
  if (rank < own_.world_size) first_gone_.compare_exchange_strong(nobody, rank);
}

}  // namespace trireme::tcp
