// UTF-8: whether text is, and making text of peers fit for messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme {

// Shortest forms only, no surrogates, nothing above U+10FFFF (RFC 3629).
bool is_utf8(std::string_view text) noexcept;

// Text of peers, made fit for messages: control characters, newlines too, and bytes that are not
// UTF-8 become '?'.
std::string clean_text(std::string_view text);

// How many bytes of `text`, at most `most`, end at a whole letter.
std::size_t whole_characters(std::string_view text, std::size_t most) noexcept;

}  // namespace trireme
