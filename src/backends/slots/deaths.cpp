#include "backends/slots/deaths.hpp"

#include <utility>

#include "platform/clock.hpp"
#include "platform/death_word.hpp"

namespace trireme::local {
namespace {

constexpr std::uint64_t kBetweenLooksNs = 9'000'000;

}  // namespace

void Deaths::on_death(std::function<void(int)> listener) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
}

void Deaths::look() noexcept {
  const std::uint64_t now = now_ns();
  if (now < next_look_ns_.load(std::memory_order_relaxed)) return;
  next_look_ns_.store(now + kBetweenLooksNs, std::memory_order_relaxed);
  const Segment* const shared = seat_.segment();
  for (int rank = 0; shared != nullptr && rank < seat_.world_size(); ++rank) {
    const std::uint32_t life = shared->member(rank).life.load(std::memory_order_relaxed);
    if (rank == seat_.rank() || !DeathWord::tells_death(life)) continue;
    const std::lock_guard lock(mutex_);
    if (!listener_ || told_[static_cast<unsigned>(rank)].exchange(true)) continue;
    listener_(rank);
  }
}

}  // namespace trireme::local
