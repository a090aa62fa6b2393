// SHA-256 (FIPS 180-4), where a secret must not be readable from what is made of it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace trireme {

std::array<std::uint8_t, 32> sha256(std::string_view data);

}  // namespace trireme
