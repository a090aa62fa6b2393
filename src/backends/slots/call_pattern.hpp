// CallPattern: tells which call the two calls before it announce.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace trireme::local {

// Programs repeat their calls, so the two calls before one mostly tell which it is. A call that
// comes between them once is forgotten. Two calls that never stood before another one announce the
// call that was announced last, as a loop repeats it. Ranks that have made the same calls
// have the same pattern, and so expect the same call, and no other one.
class CallPattern {
 public:
  // Whether the calls before announce this one. `call`: a hash of all that ranks compare.
  bool announces(std::uint64_t call) const noexcept { return next() == call && call != 0; }
  // Notes a call. Returns what announces() said of it.
  bool expects(std::uint64_t call) noexcept {
    const bool expected = announces(call);
    Follower& follower = followers_[place()];
    if (follower.pair != pair() || follower.call == call || follower.missed) {
      follower = {pair(), call, false};
    } else {
      follower.missed = true;
    }
    if (expected) steady_ = call;
    before_ = last_;
    last_ = call;
    return expected;
  }

 private:
  static constexpr int kShift = 57;  // 128 places

  struct Follower {
    std::uint64_t pair;  // of the calls before it; another pair may take its place
    std::uint64_t call;
    bool missed;  // another one came the last time
  };

  std::uint64_t next() const noexcept {
    const Follower& follower = followers_[place()];
    return follower.pair == pair() ? follower.call : steady_;
  }
  std::uint64_t pair() const noexcept {
    return (std::rotl(before_, 23) ^ last_) * 0x9e3779b97f4a7c15u;
  }
  std::size_t place() const noexcept { return static_cast<std::size_t>(pair() >> kShift); }

  std::uint64_t before_ = 0;
  std::uint64_t last_ = 0;
  std::uint64_t steady_ = 0;                      // the last one that was announced
  Follower followers_[1u << (64 - kShift)] = {};  // by the two calls before
};

}  // namespace trireme::local
