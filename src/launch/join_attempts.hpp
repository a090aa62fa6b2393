// JoinAttempts: when an agent tries again to reach the place where a job meets, and when it gives
// up. Pure: told about the time.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::cluster {

class JoinAttempts {
 public:
  // From begin() on, attempts are made for so long.
  explicit JoinAttempts(std::uint64_t limit_ns) : limit_ns_(limit_ns) {}

  void begin(std::uint64_t now_ns) { ends_ns_ = now_ns + limit_ns_; }
  // An attempt begins: none is due until it has failed.
  void started() { next_ns_ = 0; }
  // It has come to nothing. The next one is due after a pause that `drawn`, a random number,
  // chooses: not at the same moment as all others, which have been refused together.
  void failed(const std::string& why, std::uint32_t drawn, std::uint64_t now_ns);

  bool is_due(std::uint64_t now_ns) const { return next_ns_ != 0 && now_ns >= next_ns_; }
  bool is_over(std::uint64_t now_ns) const { return now_ns >= ends_ns_; }
  // "WHERE has not been reached within 2 s: connection refused", with the last failure.
  std::string refusal(const std::string& where) const;

 private:
  const std::uint64_t limit_ns_;
  std::uint64_t ends_ns_ = 0;
  std::uint64_t next_ns_ = 0;  // 0: an attempt is under way
  std::string last_failure_ = "no answer";
};

}  // namespace trireme::cluster
