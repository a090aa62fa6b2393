// World: what all ranks of mpirun tell each other once, when each of them makes its first group: which
// host it is on. MPI is only asked for what it does without waiting, so that a deadline can end the wait.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/mpi/plugin.hpp"
#include "net/hmac.hpp"
#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme::mpi {

struct World {
  std::vector<Digest> hosts;  // by rank: what is the same for ranks of one host alone
  Digest secret{};            // which these ranks alone know

  bool is_one_host() const;
};

class Meeting {
 public:
  // MPI has begun.
  Meeting(const Plugin& plugin, int world_size);

  // Waits until all ranks have called it once. TIMEOUT: may be called again. Any thread.
  Status wait(Deadline deadline, const World** out);

 private:
  struct Card {
    Digest host;
    Digest random;
  };

  Status look();

  const Plugin& plugin_;
  std::mutex mutex_;  // guards the rest, which MPI may write to for as long as the process lives
  Status failure_ = Status::success();
  Group* group_ = nullptr;
  Request* request_ = nullptr;
  Card own_{};
  std::vector<Card> all_;
  std::unique_ptr<const World> world_;
};

}  // namespace trireme::mpi
