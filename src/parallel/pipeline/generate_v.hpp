// Schedules whose stages lie along a V or a wave.
#pragma once

#include <vector>

#include "parallel/pipeline/generate.hpp"

namespace trireme::pipeline {

// Two stages a rank: rank r has stages r and 2p-1-r. Each answers the actions of each rank.
std::vector<std::vector<Action>> zero_bubble_v(const Shape& shape);
std::vector<std::vector<Action>> dual_pipe_v(const Shape& shape);
std::vector<std::vector<Action>> v_half(const Shape& shape);
std::vector<std::vector<Action>> v_min(const Shape& shape);
// Any number of stages a rank.
std::vector<std::vector<Action>> wave(const Shape& shape);

}  // namespace trireme::pipeline
