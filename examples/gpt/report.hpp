// A person sees this of a training: its progress, and its losses as a picture.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gpt {

// A bar that is drawn anew in place on a terminal, and about twenty times line by line elsewhere.
class Progress {
 public:
  explicit Progress(int steps);
  void after_step(int done, double loss);

 private:
  const int steps_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Losses over steps, and the unigram entropy as a line, as an SVG file. Returns false if it cannot
// be written.
bool write_plot(const std::string& path, const std::vector<double>& losses, double entropy);

}  // namespace gpt
