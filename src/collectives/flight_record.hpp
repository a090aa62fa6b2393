// Flight record: the last operations of one rank. Its memory is there from the start, so that it
// can be read after any failure and while operations run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backends/backend.hpp"
#include "platform/spin_lock.hpp"
#include "platform/ticks.hpp"

namespace trireme {

class FlightRecord {
 public:
  static constexpr std::uint64_t kEntries = 2048;

  struct What {
    OperationKind kind;
    trireme_dtype dtype;
    std::int32_t peer;  // root of a broadcast, peer of a message, else -1
    std::uint32_t channel;
    std::uint64_t sequence;
    std::uint64_t count;
  };

  FlightRecord();

  // Returns the number by which end() finds the operation again. `start_ns`: 0 for now.
  std::uint64_t begin(const What& what, std::uint64_t start_ns = 0) noexcept;
  // `end_ns`: 0 for now.
  void end(std::uint64_t number, trireme_status status, std::uint64_t end_ns = 0) noexcept;
  // begin() and end() at once, for an operation that has succeeded, with stamps of ticks_now().
  void note(const What& what, std::uint64_t start_ticks, std::uint64_t end_ticks) noexcept;

  std::uint64_t operations() const noexcept;  // ended, well or not
  std::uint64_t failures() const noexcept;
  std::string text() const;  // one line of JSON an operation, oldest first

 private:
  struct Entry {
    What what;
    std::uint64_t number;
    std::uint64_t start;
    std::uint64_t end;
    trireme_status status;
    bool ended;
    bool in_ticks;  // else in nanoseconds
  };

  const TickScale scale_;
  mutable SpinLock mutex_;  // held for one entry, or for copying all of them
  const std::unique_ptr<Entry[]> entries_;
  std::uint64_t begun_ = 0;
  std::uint64_t ended_ = 0;
  std::uint64_t failed_ = 0;
};

}  // namespace trireme
