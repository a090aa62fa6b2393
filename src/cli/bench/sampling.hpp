// How one rank takes its samples; the peer programs take theirs the same way.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace trireme::bench {

constexpr double kSampleSeconds = 100e-6;  // at least, so that reading the clock does not matter
constexpr std::uint32_t kMostSamples = 500;
constexpr std::uint32_t kFewestSamples = 5;

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Microseconds a call in each sample, as this rank measured. `meet` is a barrier; `agree` gives
// every rank what rank 0 passes; `call` is the operation.
template <class Meet, class Agree, class Call>
std::vector<double> take_samples(std::uint32_t warmup, std::uint32_t iterations, double seconds,
                                 Meet meet, Agree agree, Call call) {
  const auto time = [&](std::uint32_t calls) {
    meet();
    const double begin = seconds_now();
    for (std::uint32_t i = 0; i < calls; ++i) call();
    return seconds_now() - begin;
  };
  for (std::uint32_t i = 0; i < warmup; ++i) call();
  std::uint32_t calls = std::max(1u, (iterations + kMostSamples - 1) / kMostSamples);
  std::uint32_t samples = (iterations + calls - 1) / calls;
  if (iterations == 0) {
    double took = agree(time(1));
    for (calls = 1; took < kSampleSeconds / 4 && calls < 4096; took = agree(time(calls))) {
      calls *= 4;
    }
    const double one = std::max(took / calls, 1e-9);
    calls = static_cast<std::uint32_t>(std::clamp(kSampleSeconds / one, 1.0, 65536.0));
    samples = static_cast<std::uint32_t>(
        std::clamp(seconds / (one * calls), double{kFewestSamples}, double{kMostSamples}));
  }
  std::vector<double> all;
  for (std::uint32_t i = 0; i < samples; ++i) all.push_back(time(calls) / calls * 1e6);
  return all;
}

}  // namespace trireme::bench
