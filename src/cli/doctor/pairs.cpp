// How fast each pair of ranks is: one pair talks, and all other ranks wait for its figures.
#include <trireme/trireme.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "cli/doctor/figures.hpp"
#include "cli/doctor/group.hpp"
#include "platform/clock.hpp"

namespace trireme::doctor {
namespace {

constexpr std::uint64_t kTag = 1;

// Messages of one size, there and back. The time is bounded, since a slow link must not outlast the
// deadline of those that wait.
struct Rounds {
  std::uint64_t bytes;
  double most;
  double microseconds;
};
constexpr Rounds kSmall{8, 200, 50e3};
constexpr Rounds kLarge{4u << 20, 8, 100e3};

// One rank's part of the talk of a pair.
class Talk {
 public:
  Talk(const Group& group, const Pair& pair)
      : group_(group),
        begins_(group.rank == pair.begins),
        peer_(begins_ ? pair.answers : pair.begins),
        // Bytes of another pair are no bytes of this one.
        seed_(static_cast<std::uint64_t>(pair.begins) * 31 +
              static_cast<std::uint64_t>(pair.answers)),
        data_(kLarge.bytes),
        other_(begins_ ? kLarge.bytes : 0) {}

  // False after a failure. Only the rank that begins knows the figures.
  bool run(Figures* out) {
    if (!begins_) return answer(kSmall) && answer(kLarge);
    for (std::uint64_t i = 0; i < data_.size(); ++i) data_[i] = pattern(i);
    double large = 0;
    if (!measure(kSmall, &out->microseconds) || !measure(kLarge, &large)) return false;
    out->megabytes = 2 * static_cast<double>(kLarge.bytes) / large;
    for (std::uint64_t i = 0; i < data_.size(); ++i) out->damaged |= data_[i] != pattern(i);
    return true;
  }

 private:
  std::uint8_t pattern(std::uint64_t index) const {
    return static_cast<std::uint8_t>((index * 131 >> 3) + seed_);
  }
  bool send(const void* data, std::uint64_t bytes) {
    return trireme_send(group_.communicator, data, bytes, TRIREME_DTYPE_BYTES, peer_, kTag,
                        nullptr) == TRIREME_OK;
  }
  bool receive(void* data, std::uint64_t bytes) {
    return trireme_receive(group_.communicator, data, bytes, TRIREME_DTYPE_BYTES, peer_, kTag,
                           nullptr) == TRIREME_OK;
  }
  // The next round sends the bytes that came in this one. So damage of any round is there at the
  // end.
  bool go_round(std::uint64_t bytes, double* out_microseconds) {
    const std::uint64_t begin = now_ns();
    if (!send(data_.data(), bytes) || !receive(other_.data(), bytes)) return false;
    *out_microseconds = static_cast<double>(now_ns() - begin + 1) / 1e3;
    if (bytes == data_.size()) {
      data_.swap(other_);
    } else {
      std::memcpy(data_.data(), other_.data(), bytes);
    }
    return true;
  }
  bool measure(const Rounds& rounds, double* out_microseconds) {
    double first = 0;
    if (!go_round(rounds.bytes, &first)) return false;
    // The first round warms up, unless it is so slow that it must do.
    const bool slow = first > rounds.microseconds;
    const auto more = static_cast<std::uint64_t>(
        slow ? 0 : std::clamp(rounds.microseconds / first, 1.0, rounds.most));
    if (!send(&more, sizeof more)) return false;
    std::vector<double> took(more, 0);
    for (double& each : took) {
      if (!go_round(rounds.bytes, &each)) return false;
    }
    *out_microseconds = slow ? first : median(std::move(took));
    return true;
  }
  bool echo(std::uint64_t bytes) {
    return receive(data_.data(), bytes) && send(data_.data(), bytes);
  }
  bool answer(const Rounds& rounds) {
    std::uint64_t more = 0;
    if (!echo(rounds.bytes) || !receive(&more, sizeof more)) return false;
    for (std::uint64_t round = 0; round < more; ++round) {
      if (!echo(rounds.bytes)) return false;
    }
    return true;
  }

  const Group& group_;
  const bool begins_;
  const int peer_;
  const std::uint64_t seed_;
  std::vector<std::uint8_t> data_;
  std::vector<std::uint8_t> other_;
};

// Gives all ranks the figures of a pair, after its talk. No later pair begins before that.
bool tell(const Group& group, const Pair& pair, Figures* figures) {
  double numbers[] = {figures->microseconds, figures->megabytes, figures->damaged ? 1.0 : 0.0};
  if (trireme_broadcast(group.communicator, numbers, std::size(numbers), TRIREME_DTYPE_F64,
                        pair.begins, nullptr) != TRIREME_OK) {
    return false;
  }
  *figures = {numbers[0], numbers[1], numbers[2] != 0};
  return true;
}

}  // namespace

bool add_pairs(const Group& group, Section* section) {
  const std::vector<Pair> pairs = pairs_of(group.ranks);
  const bool all = group.ranks <= kMostRanksByAllPairs;
  section->facts.push_back(
      {"pairs",
       std::to_string(pairs.size()) + ", one after the other: " +
           (all ? "each rank with each other one"
                : "rank 0 with each other one, and each rank with the next one"),
       ""});
  std::vector<Figures> figures;
  Fact failure;
  for (const Pair& pair : pairs) {
    const bool talks = group.rank == pair.begins || group.rank == pair.answers;
    Figures own;
    if ((talks && !Talk(group, pair).run(&own)) || !tell(group, pair, &own)) {
      // The rank to blame may be a third one.
      failure = {pair_name(pair), "is not measured to its end", trireme_last_error()};
      break;
    }
    figures.push_back(own);
  }
  const std::vector<std::string> remarks = slow_pairs(pairs, figures);
  for (std::size_t i = 0; i < figures.size(); ++i) {
    if (group.rank != 0 && group.rank != pairs[i].begins && group.rank != pairs[i].answers) {
      continue;
    }
    const std::string lines =
        lines_text(group.interfaces[static_cast<std::size_t>(pairs[i].begins)],
                   group.interfaces[static_cast<std::size_t>(pairs[i].answers)]);
    section->facts.push_back({pair_name(pairs[i]),
                              figures_text(figures[i]) + (lines.empty() ? "" : "; " + lines),
                              figures[i].damaged ? "the bytes that come are not the bytes that "
                                                   "were sent: the network or a memory is broken"
                                                 : "",
                              remarks[i]});
  }
  if (failure.name.empty()) return true;
  section->facts.push_back(failure);
  return false;
}

}  // namespace trireme::doctor
