// Reads the cause of a worker's end from its last lines. It finds the line that is the message, and
// whether the message reports another worker's failure.
#pragma once

#include <string_view>

namespace trireme::cluster {

// A blank line, or a part of a trace of Python, .NET or Rust: it names no cause by itself.
bool says_nothing(std::string_view line);

// Reports a failure of the library because a peer was lost or gave up: that peer's own failure is
// the cause.
bool tells_of_a_lost_peer(std::string_view line);

}  // namespace trireme::cluster
