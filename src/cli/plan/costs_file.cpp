#include "cli/plan/costs_file.hpp"

#include <charconv>
#include <cmath>
#include <sstream>
#include <stdexcept>

namespace trireme::plan {
namespace {

constexpr std::uint64_t kMostStages = 1u << 16;
constexpr double kMostBytes = 281474976710656;  // 2^48

struct Line {
  std::uint64_t number = 0;
  std::string word{};
  std::vector<double> values{};

  [[noreturn]] void fail(const std::string& reason) const {
    throw std::runtime_error("line " + std::to_string(number) + ": " + word + " " + reason);
  }
  void want(std::size_t least, std::size_t most) const {
    if (values.size() >= least && values.size() <= most) return;
    fail("takes " + std::to_string(least) + (least == most ? "" : " to " + std::to_string(most)) +
         " numbers, not " + std::to_string(values.size()));
  }
  std::uint64_t whole(std::size_t i, double most) const {
    if (!(values[i] >= 0 && values[i] <= most) || std::floor(values[i]) != values[i]) {
      fail("takes whole numbers from 0 to " + std::to_string(static_cast<std::uint64_t>(most)));
    }
    return static_cast<std::uint64_t>(values[i]);
  }
  std::uint32_t count() const {
    want(1, 1);
    return static_cast<std::uint32_t>(whole(0, 1u << 24));
  }
};

bool read_line(const std::string& text, Line* out) {
  std::istringstream words(text.substr(0, text.find('#')));
  words.imbue(std::locale::classic());
  if (!(words >> out->word)) return false;
  std::string number;
  while (words >> number) {
    double value = 0;
    const char* const end = number.data() + number.size();
    const auto [stop, error] = std::from_chars(number.data(), end, value);
    if (error != std::errc() || stop != end)
      out->fail("has \"" + number + "\", which is no number");
    out->values.push_back(value);
  }
  return true;
}

// stage FORWARD INPUT WEIGHT [KEPT_BYTES [HELD_BYTES [MESSAGE_BYTES]]]
trireme_pipeline_stage_costs read_stage(const Line& line) {
  line.want(3, 6);
  trireme_pipeline_stage_costs out = TRIREME_PIPELINE_STAGE_COSTS_INIT;
  out.forward = line.values[0];
  out.input = line.values[1];
  out.weight = line.values[2];
  std::uint64_t* const bytes[] = {&out.kept_bytes, &out.held_bytes, &out.message_bytes};
  for (std::size_t i = 3; i < line.values.size(); ++i) *bytes[i - 3] = line.whole(i, kMostBytes);
  return out;
}

double read_one(const Line& line) {
  line.want(1, 1);
  return line.values[0];
}

}  // namespace

CostsFile read_costs(const std::string& text) {
  CostsFile out;
  std::istringstream lines(text);
  std::string content;
  for (std::uint64_t number = 1; std::getline(lines, content); ++number) {
    Line line{.number = number};
    if (!read_line(content, &line)) continue;
    if (line.word == "ranks") {
      out.ranks = line.count();
    } else if (line.word == "stages_per_rank") {
      out.stages_per_rank = line.count();
    } else if (line.word == "micro_batches") {
      out.micro_batches = line.count();
    } else if (line.word == "buffers") {
      out.buffers = line.count();
    } else if (line.word == "overhead") {
      out.overhead = read_one(line);
    } else if (line.word == "latency") {
      out.latency = read_one(line);
    } else if (line.word == "bytes_per_second") {
      out.bytes_per_second = read_one(line);
    } else if (line.word == "limit") {
      line.want(1, kMostStages);
      out.limits.clear();
      for (std::size_t i = 0; i < line.values.size(); ++i) {
        out.limits.push_back(line.whole(i, kMostBytes));
      }
    } else if (line.word == "stage") {
      out.stages.push_back(read_stage(line));
    } else {
      line.fail(
          "is no word of this file; words are ranks, stages_per_rank, micro_batches, stage, "
          "limit, buffers, overhead, latency and bytes_per_second");
    }
  }
  const std::uint64_t stages = std::uint64_t{out.ranks} * out.stages_per_rank;
  if (stages == 0 || stages > kMostStages || out.micro_batches == 0) {
    throw std::runtime_error("ranks and micro_batches must be given, and stages be 1 to " +
                             std::to_string(kMostStages));
  }
  if (out.stages.size() == 1) out.stages.resize(stages, out.stages.front());
  if (out.stages.size() != stages) {
    throw std::runtime_error("there are " + std::to_string(out.stages.size()) +
                             " lines of stage for " + std::to_string(stages) + " stages");
  }
  if (out.limits.size() == 1) out.limits.resize(out.ranks, out.limits.front());
  if (!out.limits.empty() && out.limits.size() != out.ranks) {
    throw std::runtime_error("limit has " + std::to_string(out.limits.size()) + " numbers for " +
                             std::to_string(out.ranks) + " ranks");
  }
  return out;
}

}  // namespace trireme::plan
