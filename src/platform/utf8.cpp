#include "platform/utf8.hpp"

#include <cstdint>

namespace trireme {

bool is_utf8(std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const int more = lead < 0x80       ? 0
                     : lead >> 5 == 6  ? 1
                     : lead >> 4 == 14 ? 2
                     : lead >> 3 == 30 ? 3
                                       : -1;
    if (more < 0 || text.size() - i <= static_cast<std::size_t>(more)) return false;
    std::uint32_t point = more == 0 ? lead : lead & (0x3fu >> more);
    for (int k = 1; k <= more; ++k) {
      const auto next = static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]);
      if (next >> 6 != 2) return false;
      point = point << 6 | (next & 0x3fu);
    }
    constexpr std::uint32_t kLowest[] = {0, 0x80, 0x800, 0x10000};
    if (point < kLowest[more] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) {
      return false;
    }
    i += static_cast<std::size_t>(more) + 1;
  }
  return true;
}

}  // namespace trireme
