#include "cli/doctor/figures.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <sstream>

namespace trireme::doctor {
namespace {

// A pair is slow beyond these. A wake-up of the system takes longer than a message of shared
// memory, so a few microseconds more are noise.
constexpr double kSlowLatency = 4;
constexpr double kNoise = 20;  // microseconds
constexpr double kSlowBandwidth = 0.5;
constexpr std::size_t kFewestPairs = 3;

std::string number(double value) {
  char text[32];
  const int digits = value < 1 ? 2 : value < 10 ? 1 : 0;
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace

std::string pair_name(const Pair& pair) {
  return "rank " + std::to_string(pair.begins) + " and rank " + std::to_string(pair.answers);
}

std::vector<Pair> pairs_of(int ranks) {
  std::vector<Pair> pairs;
  for (int begins = 0; begins < ranks; ++begins) {
    const bool all = ranks <= kMostRanksByAllPairs || begins == 0;
    const int end = all ? ranks : std::min(begins + 2, ranks);
    for (int answers = begins + 1; answers < end; ++answers) pairs.push_back({begins, answers});
  }
  return pairs;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::vector<std::string> slow_pairs(const std::vector<Pair>& pairs,
                                    const std::vector<Figures>& figures) {
  std::vector<std::string> remarks(figures.size());
  if (figures.size() < kFewestPairs) return remarks;
  std::vector<double> times;
  std::vector<double> rates;
  for (const Figures& each : figures) {
    times.push_back(each.microseconds);
    rates.push_back(each.megabytes);
  }
  const Figures middle{median(times), median(rates)};
  for (std::size_t i = 0; i < figures.size(); ++i) {
    const bool late = figures[i].microseconds > kSlowLatency * middle.microseconds &&
                      figures[i].microseconds > middle.microseconds + kNoise;
    if (!late && figures[i].megabytes >= kSlowBandwidth * middle.megabytes) continue;
    remarks[i] = "much slower than the median pair, " + figures_text(middle) +
                 ". If it stays so, look at the way between " + pair_name(pairs[i]);
  }
  return remarks;
}

std::vector<std::string> interfaces_of(const std::string& rendezvous) {
  std::vector<std::string> names;
  const std::string option = "interface=";
  std::size_t at = rendezvous.find('?');
  while (at != std::string::npos && rendezvous.compare(at + 1, option.size(), option) != 0) {
    at = rendezvous.find('&', at + 1);
  }
  if (at == std::string::npos) return names;
  const std::size_t first = at + 1 + option.size();
  std::istringstream list(rendezvous.substr(first, rendezvous.find('&', first) - first));
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  return names;
}

std::string lines_text(const std::vector<std::string>& begins,
                       const std::vector<std::string>& answers) {
  if (begins.empty() && answers.empty()) return {};
  const auto name = [](const std::vector<std::string>& of, std::size_t line) {
    return of.empty() ? std::string("its route") : of[line];
  };
  std::string text;
  const std::size_t count = std::max<std::size_t>(1, std::min(begins.size(), answers.size()));
  for (std::size_t line = 0; line < count; ++line) {
    text += (line == 0 ? "line " : ", line ") + std::to_string(line) + " " + name(begins, line) +
            " to " + name(answers, line);
  }
  return text;
}

std::string time_text(double microseconds) {
  if (microseconds < 1e3) return number(microseconds) + " us";
  if (microseconds < 1e6) return number(microseconds / 1e3) + " ms";
  return number(microseconds / 1e6) + " s";
}

std::string figures_text(const Figures& figures) {
  return time_text(figures.microseconds) + " there and back, " + number(figures.megabytes) +
         " MB/s";
}

}  // namespace trireme::doctor
