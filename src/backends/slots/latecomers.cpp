#include "backends/slots/latecomers.hpp"

#include <string>

#include "backends/last_calls.hpp"
#include "platform/log.hpp"

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
  watched_[channel] = watched;
}

void Latecomers::report() noexcept {
  for (std::uint32_t channel = 0; channel < kChannels; ++channel) {
    try {
      std::unique_lock lock(mutex_);
      Watched* const watched = watched_[channel];
      if (watched == nullptr) continue;
      const std::uint64_t now = now_ns();
      if (now >= watched->tell_ns) {
        watched->tell_ns = UINT64_MAX;
        const std::function<void()> tell = watched->tell;
        lock.unlock();  // a failure there runs listeners
        tell();
        continue;
      }
      if (!watched->stall.due(now)) continue;
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
