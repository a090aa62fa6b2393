// Seal: the code before each frame of one direction of a connection, which reveals bytes that were
// changed on the way. TCP's own checksum misses one error in 65,536, and a device between two hosts
// may write a new one. It is neither a signature nor a secret: XXH3, from the keys of the
// connection.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/hash.hpp"
#include "net/hmac.hpp"
#include "platform/mix.hpp"

namespace trireme::tcp {

class Seal {
 public:
  struct Head {
    std::uint32_t bytes;       // of the frame
    std::uint32_t bytes_code;  // of `bytes`: a wrong one would be awaited
    std::uint64_t code;        // of the frame
  };
  static_assert(sizeof(Head) == 16);

  Seal() = default;
  explicit Seal(const Digest& key) { std::memcpy(&key_, key.data(), sizeof key_); }

  Head make(const void* frame, std::uint32_t bytes) const {
    return {bytes, code_of(bytes), kernels::hash(frame, bytes, place())};
  }
  bool fits(const Head& head) const { return head.bytes_code == code_of(head.bytes); }
  bool fits(const Head& head, const void* frame) const {
    return head.code == kernels::hash(frame, head.bytes, place());
  }
  // Goes to the next frame: a repeated or missing frame does not fit.
  void advance() { ++sequence_; }

 private:
  std::uint64_t place() const { return mix(key_, sequence_); }
  std::uint32_t code_of(std::uint32_t bytes) const {
    return static_cast<std::uint32_t>(mix(place(), bytes));
  }

  std::uint64_t key_ = 0;
  std::uint64_t sequence_ = 0;
};

}  // namespace trireme::tcp
