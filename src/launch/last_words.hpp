// What a worker's last lines say about its end: which of them is the message, and whether that tells of
// another's failure.
#pragma once

#include <string_view>

namespace trireme::cluster {

// Blank, or part of a trace of Python, .NET or Rust: it says nothing by itself.
bool says_nothing(std::string_view line);

// A failure of the library because a peer was lost or gave up: that peer's own failure is the cause.
bool tells_of_a_lost_peer(std::string_view line);

}  // namespace trireme::cluster
