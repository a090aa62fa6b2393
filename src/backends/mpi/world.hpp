// World: the exchange of all ranks of mpirun about their hosts, once, when each makes its first
// group. It makes only calls of MPI that do not wait, so that a deadline can end the wait.
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
  std::vector<Digest> hosts;  // by rank: equal only for ranks of one host
  Digest secret{};            // only these ranks know it

  bool is_one_host() const;
};

class Meeting {
 public:
  // MPI must have begun.
  Meeting(const Plugin& plugin, int world_size);

  // Waits until all ranks have called it once. After TIMEOUT it may be called again. Any thread.
  Status wait(Deadline deadline, const World** out);

 private:
  struct Card {
    Digest host;
    Digest random;
  };

  Status look();

  const Plugin& plugin_;
  std::mutex mutex_;  // guards the fields below, which MPI may write for good
  Status failure_ = Status::success();
  Group* group_ = nullptr;
  Request* request_ = nullptr;
  Card own_{};
  std::vector<Card> all_;
  std::unique_ptr<const World> world_;
};

}  // namespace trireme::mpi
