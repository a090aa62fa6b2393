#include "collectives/flight_record.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

#include "platform/clock.hpp"
#include "platform/names.hpp"

namespace trireme {

// The memory is not zeroed: entries past the last one are never read, and their pages are never
// touched.
FlightRecord::FlightRecord() : entries_(new Entry[kEntries]) {}

std::uint64_t FlightRecord::begin(const What& what, std::uint64_t start_ns) noexcept {
  const std::uint64_t now = start_ns != 0 ? start_ns : now_ns();
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = begun_++;
  entries_[number % kEntries] = {what, number, now, 0, TRIREME_OK, false, false};
  return number;
}

void FlightRecord::note(const What& what, std::uint64_t start_ticks,
                        std::uint64_t end_ticks) noexcept {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = begun_++;
  ++ended_;
  entries_[number % kEntries] = {what, number, start_ticks, end_ticks, TRIREME_OK, true, true};
}

void FlightRecord::end(std::uint64_t number, trireme_status status, std::uint64_t end_ns) noexcept {
  const std::uint64_t now = end_ns != 0 ? end_ns : now_ns();
  const std::lock_guard lock(mutex_);
  ++ended_;
  if (status != TRIREME_OK) ++failed_;
  Entry& entry = entries_[number % kEntries];
  if (entry.number != number) return;  // it ran longer than 2,048 others
  entry.end = now;
  entry.status = status;
  entry.ended = true;
}

std::uint64_t FlightRecord::operations() const noexcept {
  const std::lock_guard lock(mutex_);
  return ended_;
}

std::uint64_t FlightRecord::failures() const noexcept {
  const std::lock_guard lock(mutex_);
  return failed_;
}

std::string FlightRecord::text() const {
  std::vector<Entry> copy;
  copy.reserve(kEntries);
  {
    const std::lock_guard lock(mutex_);
    for (std::uint64_t i = begun_ - std::min(begun_, kEntries); i < begun_; ++i) {
      copy.push_back(entries_[i % kEntries]);
    }
  }
  const TickScale::At now = scale_.now();
  std::string text;
  for (const Entry& entry : copy) {
    const std::uint64_t start_ns = entry.in_ticks ? now.ns_of(entry.start) : entry.start;
    const std::uint64_t end_ns = entry.in_ticks ? now.ns_of(entry.end) : entry.end;
    const What& what = entry.what;
    const bool message = what.kind == OperationKind::send || what.kind == OperationKind::receive;
    text += "{\"sequence\":" + std::to_string(what.sequence);
    text += ",\"operation\":\"" + std::string(operation_name(what.kind)) + "\"";
    if (what.channel != 0) text += ",\"channel\":" + std::to_string(what.channel);
    text += ",\"dtype\":\"" + std::string(dtype_name(what.dtype)) + "\"";
    text += ",\"count\":" + std::to_string(what.count);
    if (what.peer >= 0) {
      text += (message ? ",\"peer\":" : ",\"root\":") + std::to_string(what.peer);
    }
    text += ",\"start_ns\":" + std::to_string(start_ns);
    if (entry.ended) {
      text += ",\"end_ns\":" + std::to_string(std::max(start_ns, end_ns));
      text += ",\"status\":\"" + std::string(status_name(entry.status)) + "\"}\n";
    } else {
      text += ",\"end_ns\":null,\"status\":null}\n";
    }
  }
  return text;
}

}  // namespace trireme
