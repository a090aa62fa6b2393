// Messages between two ranks, through one ring for each ordered pair in the control segment.
#pragma once

#include <memory>

#include "backends/local/group.hpp"

namespace trireme::local {

// The message half of Backend; see there. The caller locks: one thread at a time is inside.
class Messages {
 public:
  explicit Messages(Group& group);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  void post(Message& message);
  void progress();
  bool withdraw(Message& message);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::local
