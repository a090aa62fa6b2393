// Messages between two ranks, through the rings of each ordered pair in the control segment.
#pragma once

#include <memory>

#include "backends/slots/group.hpp"
#include "backends/slots/memory.hpp"

namespace trireme::local {

// The message half of Backend; see there. The caller locks: one thread at a time is inside.
//
// A ring is a stream of headers, each followed by its payload and by as many bytes as are left up
// to the next cell. The writer clears the next cell's stamp before it publishes a message. A
// message that is larger than the ring flows through it while both sides make progress. Where ranks
// share memory, the bytes of a large message stay where they are: the ring has their place, and the
// receiver copies them from there. Such a send is done when the receiver has read on. A message
// is set aside in the receiver's memory if no receive asks for its tag while another receive waits
// for that rank. The memory is up to kSetAsideBytes for each sender; beyond that the sender waits.
class Messages {
 public:
  static constexpr std::uint64_t kSetAsideBytes = 64u << 20;

  // Rings come in two sets, so that a waiting message of the caller's does not stop an algorithm's.
  // `buffers`: null where ranks share no memory.
  Messages(Group& group, int set, Buffers* buffers);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  void post(Message& message);
  void progress();
  bool withdraw(Message& message);
  bool move_at_once(Message& message) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::local
