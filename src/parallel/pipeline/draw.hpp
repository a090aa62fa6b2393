// Draw: the actions of a schedule along time, as text, SVG and Chrome trace.
#pragma once

#include <string>

#include "parallel/pipeline/simulate.hpp"

namespace trireme::pipeline {

// All take times with record. Times may be simulated or measured.
// A line for each rank; "." is idle. Names of actions are cut if the line has not enough columns.
std::string draw_text(const Schedule& schedule, const Times& times, std::size_t most_columns);
std::string draw_svg(const Schedule& schedule, const Times& times);
// Events of chrome://tracing and Perfetto, in microseconds. Ranks are threads.
std::string draw_trace(const Schedule& schedule, const Times& times);

}  // namespace trireme::pipeline
