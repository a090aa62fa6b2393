// Figures of pairs of ranks: the pairs to measure, the slow ones among them, and texts. Pure.
#pragma once

#include <string>
#include <vector>

namespace trireme::doctor {

struct Pair {
  int begins = 0;
  int answers = 0;
};
std::string pair_name(const Pair& pair);  // "rank 0 and rank 1"

// Up to this many ranks every pair is measured. Beyond, they are so many that it would take long.
constexpr int kMostRanksByAllPairs = 16;
// All pairs; in larger worlds rank 0 with each other rank, and each rank with the next one.
std::vector<Pair> pairs_of(int ranks);

struct Figures {
  double microseconds = 0;  // of a few bytes, there and back
  double megabytes = 0;     // a second, of many bytes
  bool damaged = false;     // whether bytes came that were not sent
};

// Of an even number: the mean of the two in the middle. 0 of none.
double median(std::vector<double> values);

// For each pair a remark if it is much slower than the median pair, else "". Two pairs cannot tell
// which of them is the odd one: then there is none.
std::vector<std::string> slow_pairs(const std::vector<Pair>& pairs,
                                    const std::vector<Figures>& figures);

// The interfaces that a rendezvous of tcp:// names, in its order.
std::vector<std::string> interfaces_of(const std::string& rendezvous);
// The lines between two ranks that name these: "line 0 eth0 to eth0, line 1 eth1 to eth1". "" if
// neither rank names any.
std::string lines_text(const std::vector<std::string>& begins,
                       const std::vector<std::string>& answers);

std::string time_text(double microseconds);  // "8.1 us", "0.42 ms"
std::string figures_text(const Figures& figures);

}  // namespace trireme::doctor
