#include "backends/tcp/losses.hpp"

#include <utility>

namespace trireme::tcp {

Losses::Losses(int rank, int world_size)
    : me_(rank),
      where_(static_cast<std::size_t>(world_size)),
      reasons_(static_cast<std::size_t>(world_size)),
      codes_(static_cast<std::size_t>(world_size)),
      left_(static_cast<std::size_t>(world_size)) {
  untold_.reserve(codes_.size());  // a loss is told without memory
}

void Losses::set_place(int rank, std::string where) {
  const std::lock_guard lock(mutex_);
  where_[static_cast<std::size_t>(rank)] = std::move(where);
}

void Losses::note_left(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  left_[static_cast<std::size_t>(rank)] = true;
}

bool Losses::add(int rank, trireme_status code, const std::string& why, Meeting& meeting) noexcept {
  const auto at = static_cast<std::size_t>(rank);
  const std::lock_guard lock(mutex_);
  if (codes_[at] != TRIREME_OK || (left_[at] && code == TRIREME_ERROR_PEER_LOST)) return false;
  codes_[at] = code;
  // This rank leaves because of the loss. A peer that gets no frame would take it for the cause.
  meeting.lose(rank);
  untold_.push_back(rank);
  try {
    reasons_[at] = why;
  } catch (...) {  // no memory for the reason: it is lost all the same
  }
  return true;
}

bool Losses::has(int rank) const noexcept {
  const std::lock_guard lock(mutex_);
  return codes_[static_cast<std::size_t>(rank)] != TRIREME_OK;
}

void Losses::fail(const Status& status) noexcept {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = status;
}

bool Losses::next(bool ranks, std::int32_t* out) noexcept {
  const std::lock_guard lock(mutex_);
  if (ranks && !untold_.empty()) {
    *out = untold_.front();
    untold_.erase(untold_.begin());
    return true;
  }
  if (failure_.ok() || std::exchange(failure_told_, true)) return false;
  *out = -1;
  return true;
}

Status Losses::why(int rank) const {
  const std::lock_guard lock(mutex_);
  if (rank < 0) return failure_;
  const auto at = static_cast<std::size_t>(rank);
  FailureDetails details;
  details.blamed = {rank};
  const std::string& why = reasons_[at].empty() ? "its connection broke" : reasons_[at];
  const bool corrupt = codes_[at] == TRIREME_ERROR_CORRUPT;
  std::string text =
      "rank " + std::to_string(rank) + " is lost to rank " + std::to_string(me_) + ": " + why;
  if (!where_[at].empty()) text += " (" + where_[at] + ")";
  return Status::failure(corrupt ? TRIREME_ERROR_CORRUPT : TRIREME_ERROR_PEER_LOST, std::move(text))
      .with_details(std::move(details));
}

}  // namespace trireme::tcp
