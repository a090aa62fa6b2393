// SHA-256 (FIPS 180-4), where a secret must not be readable from its digest.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trireme {

// The digest of bytes that come in parts.
class Sha256 {
 public:
  void add(std::string_view data);
  // Call it once, at the end.
  std::array<std::uint8_t, 32> finish();

 private:
  std::uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char block_[64] = {};  // the last bytes, which fill no block yet
  std::uint64_t bytes_ = 0;
};

std::array<std::uint8_t, 32> sha256(std::string_view data);

std::string hexadecimal(std::span<const std::uint8_t> bytes);

// For tests: whether to use the processor's own instructions from now on, where it has them. The
// default is to use them. Returns whether they are in use.
bool use_sha256_instructions(bool wanted);

}  // namespace trireme
