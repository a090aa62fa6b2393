// PassMoves: the collectives of one pass. Keys and values travel while pairs are computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.hpp"

namespace trireme::parallel {

// Bytes of one array that go from each rank to one other, at from * ranks + to.
struct Transfer {
  std::vector<std::uint64_t> bytes;
  const void* send = nullptr;
  void* receive = nullptr;
};

// One thread.
class PassMoves {
 public:
  // `name` describes the pass, and `agreement` all that ranks must have in common. Both go with
  // each collective.
  PassMoves(Communicator& communicator, std::string name, std::uint64_t agreement,
            std::uint64_t timeout_ns);
  // Waits for the started transfers.
  ~PassMoves();
  PassMoves(const PassMoves&) = delete;
  PassMoves& operator=(const PassMoves&) = delete;

  // All ranks are in the pass.
  Status meet();
  // Arrays of all ranks, one after the other. `bytes` of each rank's part.
  Status gather(const void* first, void* all_first, const void* second, void* all_second,
                const std::vector<std::uint64_t>& bytes);
  // Transfers without a byte are left out, on all ranks.
  Status start(std::vector<Transfer> transfers);
  Status wait();
  // The words of all ranks, in order.
  Status tell(const std::vector<std::uint64_t>& words, std::vector<std::uint64_t>* all);

 private:
  Operation called(OperationKind kind) const;

  Communicator& communicator_;
  const std::shared_ptr<const std::string> name_;
  const std::uint64_t agreement_;
  const std::uint64_t timeout_ns_;
  const Deadline deadline_;
  std::shared_ptr<Request> request_;
};

}  // namespace trireme::parallel
