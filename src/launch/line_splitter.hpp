// Cuts a worker's output into lines, so that lines of different workers never mix.
#pragma once

#include <string>
#include <string_view>

namespace trireme::cluster {

class LineSplitter {
 public:
  // Calls take(line) for each whole line, without its end. A line longer than kLongest comes in
  // pieces, so that a worker that never ends its line cannot fill the memory.
  template <class Take>
  void add(std::string_view bytes, Take&& take) {
    while (!bytes.empty()) {
      const std::size_t end = bytes.find('\n');
      const bool whole = end != std::string_view::npos;
      const std::string_view part = bytes.substr(0, whole ? end : bytes.size());
      bytes.remove_prefix(part.size() + (whole ? 1 : 0));
      rest_.append(part);
      if (whole || rest_.size() >= kLongest) {
        if (!rest_.empty() || !cut_) take(std::string_view(rest_));
        rest_.clear();
        cut_ = !whole;
      }
    }
  }

  // Calls take(line) for a last line that has no end.
  template <class Take>
  void finish(Take&& take) {
    if (!rest_.empty()) take(std::string_view(rest_));
    rest_.clear();
  }

  static constexpr std::size_t kLongest = 65536;

 private:
  std::string rest_;
  bool cut_ = false;  // the line's beginning has been handed out already
};

}  // namespace trireme::cluster
