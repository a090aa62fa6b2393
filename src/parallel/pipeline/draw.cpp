#include "parallel/pipeline/draw.hpp"

#include <algorithm>
#include <cmath>

namespace trireme::pipeline {
namespace {

double shortest_action(const Schedule& schedule, const Times& times) {
  double shortest = 0;
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    const double time = times.end[i] - times.start[i];
    if (time > 0 && (shortest == 0 || time < shortest)) shortest = time;
  }
  return shortest;
}

const char* color_of(trireme_pipeline_kind kind) {
  switch (kind) {
    case TRIREME_PIPELINE_KIND_F: return "#8ecae6";
    case TRIREME_PIPELINE_KIND_I: return "#ffb703";
    case TRIREME_PIPELINE_KIND_W: return "#90be6d";
    case TRIREME_PIPELINE_KIND_B: return "#fb8500";
    default: return "#cccccc";
  }
}

}  // namespace

std::string draw_text(const Schedule& schedule, const Times& times, std::size_t most_columns) {
  std::size_t label = 1;
  for (const Action& action : schedule.actions) {
    if (!is_message(action.kind)) label = std::max(label, action_text(action).size());
  }
  const double shortest = shortest_action(schedule, times);
  const std::size_t digits = std::to_string(schedule.ranks - 1).size();
  const double most = static_cast<double>(std::max<std::size_t>(most_columns, digits + 8)) -
                      static_cast<double>(digits) - 6;
  double scale = shortest == 0 ? 0 : static_cast<double>(label + 1) / shortest;
  if (times.makespan * scale > most) scale = most / times.makespan;
  const auto column = [&](double time) {
    return static_cast<std::size_t>(std::lround(time * scale));
  };
  std::string out;
  for (std::uint32_t rank = 0; rank < schedule.ranks; ++rank) {
    std::string line(column(times.makespan), '.');
    const std::span<const Action> list = schedule.of(rank);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::uint64_t number = schedule.first[rank] + i;
      const std::size_t begin = column(times.start[number]);
      const std::size_t end = std::min(column(times.end[number]), line.size());
      if (begin >= end) continue;  // shorter than a character
      std::string text = action_text(list[i]);
      text.resize(end - begin, ' ');
      line.replace(begin, end - begin, text);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    const std::string name = std::to_string(rank);
    out += "rank " + std::string(digits - name.size(), ' ') + name + " " + line + "\n";
  }
  return out;
}

std::string draw_svg(const Schedule& schedule, const Times& times) {
  constexpr double kRow = 24, kBox = 20, kLeft = 56, kLetter = 6.5;
  const double shortest = shortest_action(schedule, times);
  double scale = shortest == 0 ? 0 : 28 / shortest;
  if (times.makespan * scale > 20000) scale = 20000 / times.makespan;
  const auto text = [](double value) { return number_text(std::round(value * 100) / 100); };
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" +
                    text(kLeft + times.makespan * scale + 4) + "\" height=\"" +
                    text(kRow * schedule.ranks + 4) +
                    "\" font-family=\"sans-serif\" font-size=\"11\">\n";
  for (std::uint32_t rank = 0; rank < schedule.ranks; ++rank) {
    const double top = kRow * rank + 2;
    out += "<text x=\"2\" y=\"" + text(top + 14) + "\">rank " + std::to_string(rank) + "</text>\n";
    const std::span<const Action> list = schedule.of(rank);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::uint64_t number = schedule.first[rank] + i;
      const double left = kLeft + times.start[number] * scale;
      const double width = (times.end[number] - times.start[number]) * scale;
      if (width <= 0) continue;
      const std::string name = action_text(list[i]);
      out += "<rect x=\"" + text(left) + "\" y=\"" + text(top) + "\" width=\"" + text(width) +
             "\" height=\"" + text(kBox) + "\" fill=\"" + color_of(list[i].kind) +
             "\" stroke=\"#555555\"><title>" + name + "</title></rect>\n";
      if (width >= kLetter * static_cast<double>(name.size())) {
        out +=
            "<text x=\"" + text(left + 2) + "\" y=\"" + text(top + 14) + "\">" + name + "</text>\n";
      }
    }
  }
  return out + "</svg>\n";
}

std::string draw_trace(const Schedule& schedule, const Times& times) {
  std::string out = "{\"traceEvents\":[";
  const char* separator = "\n";
  for (std::uint32_t rank = 0; rank < schedule.ranks; ++rank) {
    const std::span<const Action> list = schedule.of(rank);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::uint64_t number = schedule.first[rank] + i;
      const Action& action = list[i];
      out += separator;
      out += "{\"name\":\"" + action_text(action) + "\",\"cat\":\"" + kind_name(action.kind) +
             "\",\"ph\":\"X\",\"ts\":" + number_text(times.start[number] * 1e6) +
             ",\"dur\":" + number_text((times.end[number] - times.start[number]) * 1e6) +
             ",\"pid\":0,\"tid\":" + std::to_string(rank) +
             ",\"args\":{\"stage\":" + std::to_string(action.stage) +
             ",\"micro_batch\":" + std::to_string(action.micro_batch) + "}}";
      separator = ",\n";
    }
  }
  return out + "\n],\"displayTimeUnit\":\"ms\"}\n";
}

}  // namespace trireme::pipeline
