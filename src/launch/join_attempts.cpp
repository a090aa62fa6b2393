#include "launch/join_attempts.hpp"

#include "launch/agent_messages.hpp"

namespace trireme::cluster {
namespace {

constexpr std::uint64_t kShortestPauseMs = 50;
constexpr std::uint64_t kLongestPauseMs = 1000;

}  // namespace

void JoinAttempts::failed(const std::string& why, std::uint32_t drawn, std::uint64_t now_ns) {
  last_failure_ = why;
  const std::uint64_t pause_ms = kShortestPauseMs + drawn % (kLongestPauseMs - kShortestPauseMs);
  next_ns_ = now_ns + pause_ms * 1'000'000;
}

std::string JoinAttempts::refusal(const std::string& where) const {
  return where + " has not been reached within " + seconds_text(limit_ns_) + ": " + last_failure_;
}

}  // namespace trireme::cluster
