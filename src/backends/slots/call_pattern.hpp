// CallPattern: tells which call the two calls before it announce.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace trireme::local {

// Programs repeat their calls, so the two calls before one mostly tell which it is. Ranks that have
// made the same calls have the same pattern, and so expect the same call.
class CallPattern {
 public:
  // Whether the two calls before announce this one: it followed them the last time. `call`: a hash
  // of all that ranks compare.
  bool announces(std::uint64_t call) const noexcept { return next_[place()] == call && call != 0; }
  // Notes a call. Returns what announces() said of it.
  bool expects(std::uint64_t call) noexcept {
    std::uint64_t& next = next_[place()];
    const bool expected = next == call && call != 0;
    next = call;
    before_ = last_;
    last_ = call;
    return expected;
  }

 private:
  static constexpr int kShift = 59;  // 32 places

  std::size_t place() const noexcept {
    return static_cast<std::size_t>(((std::rotl(before_, 23) ^ last_) * 0x9e3779b97f4a7c15u) >>
                                    kShift);
  }

  std::uint64_t before_ = 0;
  std::uint64_t last_ = 0;
  std::uint64_t next_[1u << (64 - kShift)] = {};  // by the two calls before
};

}  // namespace trireme::local
