// The guardian: a small parent of one worker that outlives the launcher just long enough to end the
// worker and everything the worker has started.
#pragma once

#include <cstdint>

namespace trireme::cluster {

// The descriptor on which a guardian hears its launcher: each byte is a signal for the program's
// process group, the end of the stream means that the launcher is gone.
constexpr int kLifeline = 3;
constexpr const char* kGuardianCommand = "guardian";

// What the guardian tells when the program has ended.
struct GuardianReport {
  std::uint64_t moment_ns;   // CLOCK_MONOTONIC
  std::int32_t wait_status;  // as of waitpid
  std::uint32_t reserved;
};

// Runs the program to its end as the guardian process. The result is the guardian's exit code.
int run_guardian(char** program);

}  // namespace trireme::cluster
