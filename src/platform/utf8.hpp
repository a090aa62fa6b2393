// Whether text of a caller is UTF-8.
#pragma once

#include <string_view>

namespace trireme {

// Shortest forms only, no surrogates, nothing above U+10FFFF (RFC 3629).
bool is_utf8(std::string_view text) noexcept;

}  // namespace trireme
