// AlgorithmRun: one rank's part of one collective, made of messages by a schedule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "backends/backend.hpp"
#include "collectives/message_queue.hpp"
#include "collectives/records.hpp"
#include "schedules/algorithm.hpp"

namespace trireme {

// Memory that operations of one channel use one after the other. Its content is lost between
// operations.
class Scratch {
 public:
  // At least this large, aligned to cache lines; throws if there is no memory.
  std::byte* get(std::uint64_t bytes);
  // Null unless that address lies in it.
  const std::shared_ptr<std::byte[]>* keeper_of(const std::byte* data) const {
    const auto offset =
        reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(memory_.get());
    return offset < bytes_ ? &memory_ : nullptr;
  }

 private:
  std::shared_ptr<std::byte[]> memory_;
  std::uint64_t bytes_ = 0;
};

// Nothing: messages cannot make it.
std::optional<Pattern> pattern_of(OperationKind kind);
// Bytes that one rank gives or gets, whichever side is the whole.
std::uint64_t whole_bytes(const PlainOperation& operation, Pattern pattern,
                          int world_size) noexcept;
std::uint64_t whole_bytes(const Operation& operation, Pattern pattern, int world_size);

// Call it before an operation is queued. UNSUPPORTED if the operation does not have the wanted
// algorithm, or the backend has no native one.
Status check_algorithm(const Backend& backend, const Operation& operation);

// Whether Backend::run() runs it, or else run_algorithm().
bool runs_natively(const Backend& backend, const Operation& operation);

// The same contract as Backend::run().
Status run_algorithm(Backend& backend, MessageQueue& messages, const Records& records,
                     Scratch& scratch, const Operation& operation, std::uint64_t sequence,
                     Deadline deadline);

}  // namespace trireme
