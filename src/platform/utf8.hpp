// UTF-8: whether text is, and making text of peers fit for messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "platform/status.hpp"

namespace trireme {

// Shortest forms only, no surrogates, nothing above U+10FFFF (RFC 3629).
bool is_utf8(std::string_view text) noexcept;

// Text of peers, made fit for messages: control characters, newlines too, and bytes that are not
// UTF-8 become '?'.
std::string clean_text(std::string_view text);

// How many bytes of `text`, at most `most`, end at a whole letter.
std::size_t whole_characters(std::string_view text, std::size_t most) noexcept;

// Checks the field `name` of an object's options, which messages show: 1 to 63 bytes of UTF-8
// without control characters.
Status check_object_name(const std::string& name);

}  // namespace trireme
