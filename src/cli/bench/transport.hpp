// A transport between the threads of one process, for ranks that the library reaches only through
// trireme_transport: one queue of frames for each rank.
#pragma once

#include <trireme/trireme.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

namespace trireme::bench {

class Network {
 public:
  explicit Network(int ranks);
  // For trireme_communicator_options.transport; the network must outlive its users.
  trireme_transport transport(int rank);

 private:
  struct Frame {
    std::int32_t from;
    std::vector<std::byte> bytes;
  };
  struct End {
    Network* network;
    std::int32_t rank;
    std::mutex mutex;
    std::condition_variable arrived;
    std::deque<Frame> frames;
  };

  static std::int32_t send(void* end, std::int32_t to, const void* data, std::uint64_t bytes,
                           std::uint64_t timeout_ns);
  static std::int32_t receive(void* end, std::int32_t* from, void* data, std::uint64_t capacity,
                              std::uint64_t* bytes, std::uint64_t timeout_ns);

  std::deque<End> ends_;
};

}  // namespace trireme::bench
