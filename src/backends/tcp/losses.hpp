// Losses: the ranks that a rank of a mesh has lost, with the reasons, and the failure of the mesh
// itself. The receiving thread gets each of them once. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "backends/tcp/meeting.hpp"
#include "platform/status.hpp"

namespace trireme::tcp {

class Losses {
 public:
  Losses(int rank, int world_size);

  // Where a rank is, for messages: "10.0.0.2:4711".
  void set_place(int rank, std::string where);
  // From now on the rank cannot be lost, but what came of it may be CORRUPT.
  void note_left(int rank) noexcept;
  // A rank is lost. The meeting learns it first. False: it was lost before, or had left.
  bool add(int rank, trireme_status code, const std::string& why, Meeting& meeting) noexcept;
  bool has(int rank) const noexcept;
  // The mesh has failed. The first failure counts.
  void fail(const Status& status) noexcept;

  // The next loss that this function has not given yet: a rank, only with `ranks`, or -1 for the
  // mesh. False: there is none.
  bool next(bool ranks, std::int32_t* out) noexcept;
  // CORRUPT or PEER_LOST with the reason. For -1, the failure of the mesh.
  Status why(int rank) const;

 private:
  const int me_;
  mutable std::mutex mutex_;           // guards the following; taken after that of a peer
  std::vector<std::string> where_;     // by rank
  std::vector<std::string> reasons_;   // by rank
  std::vector<trireme_status> codes_;  // by rank: lost as what; 0: it is not
  std::vector<bool> left_;             // by rank
  std::vector<int> untold_;
  Status failure_ = Status::success();
  bool failure_told_ = false;
};

}  // namespace trireme::tcp
