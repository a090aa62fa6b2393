// Tuning: what the user's table of measured algorithms says for one group. See
// schedules/tuning.hpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "backends/backend.hpp"
#include "platform/status.hpp"
#include "schedules/algorithm.hpp"
#include "schedules/tuning.hpp"

namespace trireme {

// Reads the file that the variable TRIREME_TUNING names. Null: the variable is not set.
// INVALID_ARGUMENT if the file cannot be read or is no table; the message has the line.
Status read_tuning(std::shared_ptr<const TuningTable>* out);

class Tuning {
 public:
  // Once, before anything else; the table may be null.
  void use(std::shared_ptr<const TuningTable> table);
  bool is_there() const noexcept { return table_ != nullptr; }
  std::uint64_t digest() const noexcept { return digest_; }

  // Finds the rules for this group. Call it after Backend::know_natives() has succeeded: only then
  // does the backend have its last name. Any thread.
  void settle(const Backend& backend);
  // The algorithm that the rules name for an operation whose caller asks for none, or `automatic`.
  // After settle(). Ranks with equal tables that make the same call get the same answer.
  Algorithm choose(const Backend& backend, const Operation& operation) const;
  // Whether choose() would return `automatic` for this operation, as far as this rank knows yet.
  bool leaves(const PlainOperation& operation, int world_size) const noexcept;

 private:
  std::shared_ptr<const TuningTable> table_;
  std::uint64_t digest_ = 0;
  std::atomic<const TunedGroup*> rules_{nullptr};
  std::atomic<bool> is_settled_{false};
};

}  // namespace trireme
