#include "platform/utf8.hpp"

#include <cstdint>

namespace trireme {
namespace {

struct Character {
  std::size_t bytes = 0;  // 0: none begins here
  std::uint32_t point = 0;
};

Character first_character(std::string_view text) noexcept {
  const auto lead = static_cast<unsigned char>(text[0]);
  const int more = lead < 0x80       ? 0
                   : lead >> 5 == 6  ? 1
                   : lead >> 4 == 14 ? 2
                   : lead >> 3 == 30 ? 3
                                     : -1;
  if (more < 0 || text.size() <= static_cast<std::size_t>(more)) return {};
  std::uint32_t point = more == 0 ? lead : lead & (0x3fu >> more);
  for (int k = 1; k <= more; ++k) {
    const auto next = static_cast<unsigned char>(text[static_cast<std::size_t>(k)]);
    if (next >> 6 != 2) return {};
    point = point << 6 | (next & 0x3fu);
  }
  constexpr std::uint32_t kLowest[] = {0, 0x80, 0x800, 0x10000};
  if (point < kLowest[more] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return {};
  return {static_cast<std::size_t>(more) + 1, point};
}

}  // namespace

bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const Character letter = first_character(text);
    if (letter.bytes == 0) return false;
    text.remove_prefix(letter.bytes);
  }
  return true;
}

std::string clean_text(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const Character letter = first_character(text);
    const std::size_t bytes = letter.bytes == 0 ? 1 : letter.bytes;
    // The second range of control characters begins escapes of terminals, too.
    const bool control = letter.point < 0x20 || (letter.point >= 0x7f && letter.point < 0xa0);
    if (letter.bytes == 0 || control) {
      clean += '?';
    } else {
      clean += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return clean;
}

std::size_t whole_characters(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) return text.size();
  std::size_t bytes = most;
  const auto follows = [&](std::size_t at) {
    return static_cast<unsigned char>(text[at]) >> 6 == 2;
  };
  while (bytes > 0 && most - bytes < 4 && follows(bytes)) --bytes;
  return follows(bytes) ? most : bytes;  // a letter is never so long, so this is not UTF-8
}

}  // namespace trireme
