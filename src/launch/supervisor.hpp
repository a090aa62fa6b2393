// The supervisor: a small parent of one worker. It outlives the launcher just long enough to end
// the worker and all of the worker's descendants.
#pragma once

#include <cstdint>

namespace trireme::cluster {

// The descriptor by which a supervisor receives from its launcher: each byte is a signal for the
// program's process group, and the end of the stream means that the launcher is gone.
constexpr int kLifeline = 3;
constexpr const char* kSupervisorCommand = "supervisor";

// The supervisor's report after the program has ended.
struct SupervisorReport {
  std::uint64_t moment_ns;   // CLOCK_MONOTONIC
  std::int32_t wait_status;  // as of waitpid
  std::uint32_t reserved;
};

// Runs the program to its end as the supervisor process. The result is the supervisor's exit code.
int run_supervisor(char** program);

}  // namespace trireme::cluster
