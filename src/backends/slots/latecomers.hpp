// Latecomers: tells the log which ranks are late, while a wait for them goes on.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "backends/slots/presence.hpp"
#include "backends/slots/seat.hpp"
#include "platform/stall.hpp"

namespace trireme::local {

class Latecomers {
 public:
  // stall_ns: the log warns of a wait of this length.
  Latecomers(const Seat& seat, const Presence& presence, std::uint64_t stall_ns)
      : seat_(seat), presence_(presence), stall_ns_(stall_ns) {}

  // Measures a wait that may become long, for the log's warnings.
  Stall stall() const { return Stall(stall_ns_); }
  // For example: "not come to ", "all_reduce", 17; sequence 0 is not written. The one-rank form
  // needs no memory of its caller, which may wait for lack of memory.
  void warn(const std::vector<std::int32_t>& ranks, const char* what, const char* operation,
            std::uint64_t sequence, const Stall& stall) const noexcept;
  void warn(int rank, const char* what, const char* operation, std::uint64_t sequence,
            const Stall& stall) const noexcept;

  // A collective of this rank that runs without a look at the other ranks: another thread calls
  // report() from time to time, and looks for it.
  struct Watched {
    const char* operation;
    std::uint64_t sequence;
    Stall stall;
    std::function<std::vector<std::int32_t>()> missing;
    std::uint64_t tell_ns;       // when tell() is due next
    std::function<void()> tell;  // makes sure that all ranks know this rank's call
  };
  void watch(std::uint32_t channel, Watched* watched) noexcept;  // null: it is over
  void report() noexcept;

 private:
  void tell_all() noexcept;

  const Seat& seat_;
  const Presence& presence_;
  const std::uint64_t stall_ns_;
  std::mutex mutex_;
  std::array<Watched*, kChannels> watched_{};
  std::atomic<int> count_{0};  // of those that are not null
};

}  // namespace trireme::local
