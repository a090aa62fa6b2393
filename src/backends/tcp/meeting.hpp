// Meeting: one rank's part in the meeting of its group. It gets the addresses of all from the
// directory, which rank 0 serves where it can. It stays there until it is connected to all near
// ranks: so it learns of ranks that go before. In a small group all ranks are near
// (schedules/overlay.hpp).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backends/tcp/address.hpp"
#include "backends/tcp/directory.hpp"

namespace trireme::tcp {

// Between two attempts: a random part of a time that doubles, so that many ranks do not call at
// once. Returns false if `stop` was set.
bool pause(int attempt, const std::atomic<bool>& stop);

class Meeting {
 public:
  // `own` must be complete when attend() begins; `name` is for the log.
  Meeting(const Endpoint& endpoint, const Token& token, const Visit& own, std::string name)
      : endpoint_(endpoint), token_(token), own_(own), name_(std::move(name)) {}

  // Runs until all ranks have come. A failure is the group's, but CANCELLED means that `stop` was
  // set.
  Status attend(const std::atomic<bool>& stop, std::vector<Entry>* out);

  // Any thread, during attend(): returns the ranks that have not come; none if all have met.
  // `gives_up`: this rank's deadline has passed. Waits for the directory's answer until `deadline`,
  // or until `ended`; rank 0 is to blame if there is none.
  std::optional<std::vector<std::int32_t>> absent(bool gives_up, Deadline deadline,
                                                  const std::function<bool()>& ended);

  // After attend(), any thread.
  int descriptor();            // to be polled; -1: none
  std::vector<int> receive();  // the ranks that have gone since; does not wait
  // Reports that this rank has lost another one.
  void lose(int rank) noexcept;
  // Ends the meeting when this rank is connected to all near ranks, or leaves because another one
  // has gone.
  void end_well() noexcept;
  // Ends the meeting when this rank leaves for a reason of its own: the rest learn that it has
  // gone.
  void end() noexcept;
  // Waits a short time until the rest have the news, if this process serves them.
  void settle() noexcept;
  // The directory that this process serves for this rank; may be null.
  std::shared_ptr<const void> served() {
    const std::lock_guard lock(mutex_);
    return directory_;
  }
  // No news of gone ranks comes any more.
  bool is_over() const { return over_.load(std::memory_order_acquire); }
  // The first rank that went before it was connected to all near ranks; -1: none. Others may have
  // gone because of it.
  int first_gone() const { return first_gone_.load(std::memory_order_acquire); }
  void note_gone(int rank) noexcept;

 private:
  enum class State { trying, waiting, refused, met };

  std::vector<std::int32_t> those_who_have_not_come() const;
  template <class Ready>
  void wait_for_answer(std::unique_lock<std::mutex>& lock, Deadline deadline,
                       const std::function<bool()>& ended, Ready ready);
  void enter(State state) noexcept;

  const Endpoint endpoint_;
  const Token token_;
  const Visit own_;
  const std::string name_;
  std::mutex mutex_;  // guards the fields below but atomics; no other lock is taken under it
  std::condition_variable changed_;
  State state_ = State::trying;      // refused: the last attempt failed
  const Socket* waiting_ = nullptr;  // the connection to the directory, until all have met
  News news_;
  std::uint64_t heard_ = 0;  // how often
  Seat seat_;                // the connection after that
  std::shared_ptr<Directory> directory_;
  std::atomic<bool> over_{false};
  std::atomic<int> first_gone_{-1};
};

}  // namespace trireme::tcp
