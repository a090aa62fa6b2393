// HMAC-SHA256 (RFC 2104, FIPS 198-1), by which those who know a secret prove it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace trireme {

using Digest = std::array<std::uint8_t, 32>;

Digest hmac_sha256(std::string_view key, std::string_view data);

// Takes as long for equal digests as for others, wherever they differ.
bool same_digest(const Digest& a, const Digest& b);

}  // namespace trireme
