#include "report.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace gpt {

Progress::Progress(int steps) : steps_(steps), terminal_(isatty(STDERR_FILENO) == 1) {}

void Progress::after_step(int done, double loss) {
  const int every = std::max(1, steps_ / 20);
  if (!terminal_ && done % every != 0 && done != steps_ && done != 1) return;
  constexpr int kCells = 24;
  const int filled = kCells * done / steps_;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::fprintf(stderr, "%s[%s%s] %d/%d  loss %.3f  %.0f s, %.0f s left%s", terminal_ ? "\r" : "",
               std::string(filled, '#').c_str(), std::string(kCells - filled, '.').c_str(), done,
               steps_, loss, seconds, seconds / done * (steps_ - done),
               terminal_ && done != steps_ ? "  " : "\n");
}

bool write_plot(const std::string& path, const std::vector<double>& losses, double entropy) {
  constexpr double kWidth = 640, kHeight = 360, kLeft = 50, kRight = 20, kTop = 30, kBottom = 40;
  const double most = std::ceil(std::max(entropy, *std::max_element(losses.begin(), losses.end())));
  const double last_step = std::max<double>(1, static_cast<double>(losses.size()) - 1);
  const auto x = [&](double step) { return kLeft + step / last_step * (kWidth - kLeft - kRight); };
  const auto y = [&](double loss) {
    return kHeight - kBottom - loss / most * (kHeight - kTop - kBottom);
  };

  std::ostringstream svg;
  svg.precision(5);
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << kWidth << ' ' << kHeight
      << "\" font-family=\"sans-serif\" font-size=\"12\">\n"
      << "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      << "<text x=\"" << kLeft << "\" y=\"18\">loss, nats a character</text>\n";
  for (int i = 0; i <= static_cast<int>(most); ++i)
    svg << "<path d=\"M" << kLeft << ' ' << y(i) << 'H' << kWidth - kRight
        << "\" stroke=\"#dddddd\"/><text x=\"" << kLeft - 8 << "\" y=\"" << y(i) + 4
        << "\" text-anchor=\"end\">" << i << "</text>\n";
  for (int i = 0; i <= 4; ++i) {
    const double step = std::round(last_step * i / 4);
    svg << "<text x=\"" << x(step) << "\" y=\"" << kHeight - kBottom + 18
        << "\" text-anchor=\"middle\">" << step + 1 << "</text>\n";
  }
  svg << "<text x=\"" << (kLeft + kWidth - kRight) / 2 << "\" y=\"" << kHeight - 6
      << "\" text-anchor=\"middle\">step</text>\n"
      << "<path d=\"M" << kLeft << ' ' << y(entropy) << 'H' << kWidth - kRight
      << "\" stroke=\"#c0392b\" stroke-dasharray=\"6 4\"/><text x=\"" << kWidth - kRight
      << "\" y=\"" << y(entropy) - 5 << "\" text-anchor=\"end\" fill=\"#c0392b\">unigram entropy "
      << entropy << "</text>\n<path fill=\"none\" stroke=\"#1f618d\" stroke-width=\"1.5\" d=\"";
  for (std::size_t step = 0; step < losses.size(); ++step)
    svg << (step == 0 ? 'M' : 'L') << x(static_cast<double>(step)) << ' ' << y(losses[step]);
  svg << "\"/>\n</svg>\n";
  std::ofstream file(path);
  file << svg.str();
  file.close();
  return file.good();
}

}  // namespace gpt
