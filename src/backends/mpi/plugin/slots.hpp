// Slots: the short messages of one channel by which ranks announce their calls. Receives are always
// posted, so that an early message goes straight to its place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/mpi/plugin.hpp"
#include "backends/mpi/plugin/runtime.hpp"

namespace trireme::mpi {

// Every function is called within an Inside.
class Slots {
 public:
  // Messages with another `number` belong to an earlier group, whose communicator had the same name
  // in MPI.
  Slots(int rank, int world_size, std::uint64_t number);

  // Keeps a copy; the message before must have been sent.
  void publish(const void* data, std::uint64_t bytes);
  // Sends the copy, once MPI has released its memory. Returns an error code of MPI.
  int send(MPI_Comm communicator);
  // Sends and takes all that can move. Returns an error code of MPI.
  int advance(MPI_Comm communicator, Take take, void* context, bool* any);
  // Ends the requests under way; false: MPI still uses their memory.
  bool end();

 private:
  struct Message {
    std::uint64_t number;
    std::array<std::byte, kSlotBytes> data;
    int bytes;  // with the number
    std::uint64_t content() const { return static_cast<std::uint64_t>(bytes) - sizeof number; }
  };
  struct Sent {
    Message message;
    std::vector<MPI_Request> requests;  // by rank
  };

  int expect(MPI_Comm communicator, int from);

  const int rank_;
  const std::uint64_t number_;
  bool listens_ = false;
  bool ending_ = false;
  bool waits_ = false;  // `next_` has not been sent
  Message next_;
  std::array<Sent, 2> sent_;  // in turn
  unsigned turn_ = 0;
  std::vector<Message> arrived_;        // by rank
  std::vector<MPI_Request> receiving_;  // by rank
};

}  // namespace trireme::mpi
