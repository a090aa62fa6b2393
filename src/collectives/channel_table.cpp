#include "collectives/channel_table.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

ChannelTable::ChannelTable(Records& records, Timekeeper& timekeeper, MessageQueue& messages)
    : records_(records), timekeeper_(timekeeper), messages_(messages) {
  std::iota(owners_.begin(), owners_.end(), 1);  // the first models have their own
}

void ChannelTable::open(std::shared_ptr<Backend> backend) {
  const std::lock_guard lock(mutex_);
  backend_ = std::move(backend);
  for (std::uint32_t number = 0; number < kModelChannel; ++number) make(number);
}

void ChannelTable::make(std::uint32_t number) {
  made_.emplace_back(number, records_, timekeeper_, messages_).open(backend_);
  channels_[number].store(&made_.back(), std::memory_order_release);
}

Status ChannelTable::take(std::uint32_t model, Deadline deadline, std::uint32_t* out, bool* torn) {
  *torn = false;
  std::uint32_t place = model - 1;
  if (model > kModels) {
    const Status found = find_place(model, deadline, &place);
    *torn = !found.ok();
    if (*torn) return found;
    if (place >= kModels) return refusal(model);
  }
  const std::uint32_t first = kModelChannel + 2 * place;
  const std::lock_guard lock(mutex_);
  if (backend_ == nullptr) return records_.left();
  for (std::uint32_t number = first; number < first + 2; ++number) {
    if (channels_[number].load(std::memory_order_relaxed) == nullptr) make(number);
    (*this)[number].give_to(model);
  }
  *out = first;
  return Status::success();
}

void ChannelTable::leave(std::uint32_t model, std::uint32_t first) noexcept {
  if (first == 0 && model > kModels) return;  // it never had any
  const std::uint32_t place = first == 0 ? model - 1 : (first - kModelChannel) / 2;
  const std::lock_guard lock(mutex_);
  left_[place] = std::max(left_[place], model);
}

// Rank 0 finds a place that no rank uses any more, and sends it to the others. The messages carry
// the model's number, so models may ask in any order on each rank.
Status ChannelTable::find_place(std::uint32_t model, Deadline deadline, std::uint32_t* out) {
  Left own;
  {
    const std::lock_guard lock(mutex_);
    own = left_;
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
    TRIREME_RETURN_IF_ERROR(messages_.run(word, deadline));
    TRIREME_RETURN_IF_ERROR(messages_.run(answer, deadline));
  } else {
    std::vector<Left> all(static_cast<std::size_t>(records_.world_size), own);
    word.kind = OperationKind::receive;
    for (word.peer = 1; word.peer < records_.world_size; ++word.peer) {
      word.data = &all[static_cast<std::size_t>(word.peer)];
      TRIREME_RETURN_IF_ERROR(messages_.run(word, deadline));
    }
    {
      const std::lock_guard lock(mutex_);
      place = free_place(model, all);
    }
    for (answer.peer = 1; answer.peer < records_.world_size; ++answer.peer) {
      TRIREME_RETURN_IF_ERROR(messages_.run(answer, deadline));
    }
  }
  *out = place;
  return Status::success();
}

std::uint32_t ChannelTable::free_place(std::uint32_t model, const std::vector<Left>& all) noexcept {
  for (std::uint32_t place = 0; place < kModels; ++place) {
    const auto is_left = [&](const Left& left) { return left[place] == owners_[place]; };
    if (!std::all_of(all.begin(), all.end(), is_left)) continue;
    owners_[place] = model;
    return place;
  }
  return kModels;
}

Status ChannelTable::refusal(std::uint32_t model) const {
  return invalid_state("model " + std::to_string(model) + " of \"" + records_.name +
                       "\" is one of more than " + std::to_string(kModels) +
                       " that live: destroy another one on all ranks, or give it a communicator of "
                       "trireme_communicator_duplicate()");
}

std::uint64_t ChannelTable::expire() {
  std::uint64_t earliest = UINT64_MAX;
  for (const auto& each : channels_) {
    Channel* const channel = each.load(std::memory_order_acquire);
    if (channel != nullptr) earliest = std::min(earliest, channel->expire());
  }
  return earliest;
}

bool ChannelTable::stop() noexcept {
  const std::lock_guard lock(mutex_);
  backend_ = nullptr;
  bool busy = false;
  for (Channel& channel : made_) busy = channel.stop() || busy;
  return busy;
}

}  // namespace trireme
