// AlgorithmRun: one collective of one rank, made of messages as its schedule says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backends/backend.hpp"
#include "collectives/message_queue.hpp"
#include "collectives/records.hpp"

namespace trireme {

// Memory that operations of one channel use one after the other. Its content is lost in between.
class Scratch {
 public:
  // At least this large, aligned to cache lines; throws without memory.
  std::byte* get(std::uint64_t bytes);

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::uint64_t bytes_ = 0;
};

// Before an operation is queued: UNSUPPORTED if it asks for an algorithm that it does not have, or
// for a native one of a backend without.
Status check_algorithm(const Backend& backend, const Operation& operation);

// Whether Backend::run() runs it, or else run_algorithm().
bool runs_natively(const Backend& backend, const Operation& operation);

// As Backend::run().
Status run_algorithm(Backend& backend, MessageQueue& messages, const Records& records,
                     Scratch& scratch, const Operation& operation, std::uint64_t sequence,
                     Deadline deadline);

}  // namespace trireme
