// The common parts of the peer programs: their arguments, their sampling and their output. Each
// program's own arguments are followed by WARMUP ITERATIONS SECONDS OPERATION:BYTES... and rank 0
// prints a line "OPERATION BYTES MICROSECONDS" for each: the median over samples of the slowest
// rank.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/bench/sampling.hpp"

namespace peer {

struct Case {
  std::string op;
  std::size_t bytes;
};

struct Arguments {
  std::uint32_t warmup;
  std::uint32_t iterations;
  double seconds;
  std::vector<Case> cases;
};

inline Arguments parse(int argc, char** argv) {
  Arguments all{};
  if (argc < 3) {
    std::fprintf(stderr, "WARMUP ITERATIONS SECONDS OPERATION:BYTES...\n");
    std::exit(2);
  }
  all.warmup = static_cast<std::uint32_t>(std::atoi(argv[0]));
  all.iterations = static_cast<std::uint32_t>(std::atoi(argv[1]));
  all.seconds = std::atof(argv[2]);
  for (int i = 3; i < argc; ++i) {
    const std::string text = argv[i];
    const std::size_t colon = text.find(':');
    all.cases.push_back({text.substr(0, colon), std::stoul(text.substr(colon + 1))});
  }
  return all;
}

// `slowest` makes every rank's samples the largest of all ranks' in rank 0.
template <class Meet, class Agree, class Slowest, class Call>
double measure(const Arguments& arguments, Meet meet, Agree agree, Slowest slowest, Call call) {
  std::vector<double> samples = trireme::bench::take_samples(arguments.warmup, arguments.iterations,
                                                             arguments.seconds, meet, agree, call);
  slowest(samples);
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

inline void print(const Case& what, double microseconds) {
  std::printf("%s %zu %.4f\n", what.op.c_str(), what.bytes, microseconds);
  std::fflush(stdout);
}

}  // namespace peer
