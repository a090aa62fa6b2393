// LineWatch: tells of further lines that have ended, or on which nothing answers for sent bytes.
// The signs of life go by the first interface, and say nothing of the other ones. A peer that reads
// no bytes while it computes still answers for them, as its system does. One thread uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "backends/tcp/lines.hpp"

namespace trireme::tcp {

class LineWatch {
 public:
  // `limit_ns`: how long a line may be silent while bytes are under way.
  explicit LineWatch(std::uint64_t limit_ns) : limit_ns_(limit_ns) {}

  // Looks at the lines of all ranks, unless the last look was a moment ago.
  using Lose = std::function<void(int rank, const std::string& why)>;
  void look(const Lines& lines, int world_size, std::uint64_t now, const Lose& lose);

 private:
  struct State {
    std::uint64_t answered = 0;  // bytes
    std::uint64_t since_ns = 0;  // bytes are under way, and none was answered for; 0: none are
    std::uint64_t ended_ns = 0;  // it was seen ended then; 0: never
    bool is_told = false;
  };

  std::string trouble(const Socket& first, const Socket& socket, int line, State* state,
                      std::uint64_t now) const;

  const std::uint64_t limit_ns_;
  std::uint64_t next_ns_ = 0;
  std::map<std::pair<int, int>, State> states_;  // by rank and line
};

}  // namespace trireme::tcp
