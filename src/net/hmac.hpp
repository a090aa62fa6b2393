// HMAC-SHA256 (RFC 2104, FIPS 198-1), by which two ends prove that they know a secret.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "net/sha256.hpp"

namespace trireme {

using Digest = std::array<std::uint8_t, 32>;

// A key for many messages: the work that is equal for all of them is done once.
class HmacKey {
 public:
  explicit HmacKey(std::string_view key);
  ~HmacKey();
  // The code of two parts that follow each other.
  Digest of(std::string_view data, std::string_view more = {}) const;

 private:
  Sha256 inner_;
  Sha256 outer_;
};

Digest hmac_sha256(std::string_view key, std::string_view data);

// Takes the same time for all digests, wherever they differ.
bool same_digest(const Digest& a, const Digest& b);

}  // namespace trireme
