#include "backends/slots/latecomers.hpp"

#include <string>

#include "backends/last_calls.hpp"
#include "backends/slots/slot_relay.hpp"
#include "platform/log.hpp"
#include "schedules/overlay.hpp"

namespace trireme::local {

void Latecomers::warn(const std::vector<std::int32_t>& ranks, const char* what,
                      const char* operation, std::uint64_t sequence,
                      const Stall& stall) const noexcept {
  if (!log_wanted(TRIREME_LOG_WARNING)) return;
  try {
    std::string text = std::string(what) + operation;
    if (sequence != 0) text += ", sequence " + std::to_string(sequence) + ",";
    warn_slow(seat_.name(), seat_.rank(), presence_.last_calls(), ranks, text, stall.waited_ns());
  } catch (...) {  // no memory for a line, so there is none
  }
}

void Latecomers::warn(int rank, const char* what, const char* operation, std::uint64_t sequence,
                      const Stall& stall) const noexcept {
  try {
    warn(std::vector<std::int32_t>{rank}, what, operation, sequence, stall);
  } catch (...) {
  }
}

void Latecomers::watch(std::uint32_t channel, Watched* watched) noexcept {
  const std::lock_guard lock(mutex_);
  count_.fetch_add((watched != nullptr ? 1 : 0) - (watched_[channel] != nullptr ? 1 : 0));
  watched_[channel] = watched;
}

void Latecomers::tell_all() noexcept {
  for (std::uint32_t channel = 0; channel < kChannels; ++channel) {
    try {
      std::unique_lock lock(mutex_);
      Watched* const watched = watched_[channel];
      const std::uint64_t now = now_ns();
      if (watched == nullptr || now < watched->tell_ns) continue;
      watched->tell_ns = now + period_of(SlotRelay::kTellNs, seat_.world_size());
      const std::function<void()> tell = watched->tell;
      lock.unlock();  // a failure there runs listeners
      tell();
    } catch (...) {  // no memory; it is told again
    }
  }
}

void Latecomers::report() noexcept {
  if (count_.load() == 0) return;  // as nearly always
  tell_all();
  for (std::uint32_t channel = 0; channel < kChannels; ++channel) {
    try {
      std::unique_lock lock(mutex_);
      Watched* const watched = watched_[channel];
      if (watched == nullptr || !watched->stall.due(now_ns())) continue;
      const std::vector<std::int32_t> missing = watched->missing();
      const char* const operation = watched->operation;
      const std::uint64_t sequence = watched->sequence;
      const Stall stall = watched->stall;
      lock.unlock();  // a log callback may take its time
      if (!missing.empty()) warn(missing, "not come to ", operation, sequence, stall);
    } catch (...) {  // no memory for a line, so there is none
    }
  }
}

}  // namespace trireme::local
