#include "launch/last_words.hpp"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace trireme::cluster {
namespace {

bool contains(std::string_view line, std::string_view part) { return line.find(part) != line.npos; }

// "   4: core::panicking::panic_fmt", a frame of Rust.
bool is_numbered(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  return digits > 0 && text.substr(digits, 2) == ": ";
}

}  // namespace

bool says_nothing(std::string_view line) {
  const std::size_t begin = line.find_first_not_of(" \t");
  const std::size_t end = line.find_last_not_of(" \t\r");
  if (begin == line.npos || end == line.npos) return true;
  const std::string_view text = line.substr(begin, end + 1 - begin);
  if (text.find_first_not_of("~^") == text.npos) return true;  // Python's marks under a line
  for (const std::string_view opening :
       {"trireme: warning: ", "trireme: info: ", "trireme: debug: ",
        "Traceback (most recent call last)", "stack backtrace:", "note: run with `RUST_BACKTRACE",
        "note: Some details are omitted", "--- End of "}) {
    if (text.starts_with(opening)) return true;
  }
  if (begin == 0) return false;
  const bool in_file = text.starts_with("File \"") && contains(text, "\", line ");
  return in_file || text.starts_with("at ") || is_numbered(text);
}

bool tells_of_a_lost_peer(std::string_view line) {
  for (const std::string_view name : {"PeerLost", "PEER_LOST", "AbortedError", "AbortedException",
                                      "status: Aborted", "ABORTED: trireme_"}) {
    if (contains(line, name)) return true;
  }
  // A program that prints trireme_last_error() and no more.
  const std::size_t call = line.find("trireme_");
  if (call == line.npos || line.find(": rank", call) == line.npos) return false;
  for (const std::string_view verb :
       {" was lost", " were lost", " left", " has left", " aborted"}) {
    if (contains(line, verb)) return true;
  }
  return false;
}

}  // namespace trireme::cluster
