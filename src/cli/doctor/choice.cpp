// How long an all-reduce takes as the library chooses, beside each algorithm by name. So a reader
// sees whether the choice suits this network.
#include <trireme/trireme.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "cli/doctor/figures.hpp"
#include "cli/doctor/group.hpp"
#include "platform/clock.hpp"

namespace trireme::doctor {
namespace {

struct Size {
  const char* name;
  std::uint64_t bytes;
};
constexpr Size kSizes[] = {
    {"8 B", 8}, {"64 KiB", 64u << 10}, {"1 MiB", 1u << 20}, {"16 MiB", 16u << 20}};

// In microseconds, for each size. All ranks hold the same figures against them, so that all make
// the same calls.
constexpr double kFirstCalls = 2e6;    // no further algorithm is tried after this time
constexpr double kLaterCalls = 300e3;  // all algorithms in turn, again and again
constexpr double kLongestCall = 5e6;   // a size is left out if a call would take longer
constexpr double kSample = 200;        // short calls follow each other for this time
constexpr double kMostCalls = 16;
constexpr double kMostSamples = 15;
// An algorithm that is less than this faster may be so by noise.
constexpr double kMuchFaster = 1.5;

// Elements repeat after a prime, so that a shift by a block is noticed. The sums are small whole
// numbers: any order of adding gives the same bits.
constexpr std::uint64_t kPeriod = 61;

float element(std::uint64_t index, int rank) {
  return static_cast<float>((index % kPeriod + 1) * static_cast<std::uint64_t>(rank % 7 + 1) % 16);
}

struct Candidate {
  trireme_algorithm algorithm;
  std::vector<double> samples;  // microseconds a call of the slowest rank
  double wrong = 0;             // 1 + a rank whose sums are wrong
};

class Choice {
 public:
  explicit Choice(const Group& group)
      : group_(group),
        send_(std::end(kSizes)[-1].bytes / sizeof(float)),
        receive_(send_.size()),
        sums_(kPeriod) {
    for (std::uint64_t i = 0; i < send_.size(); ++i) send_[i] = element(i, group.rank);
    for (int rank = 0; rank < group.ranks; ++rank) {
      for (std::uint64_t i = 0; i < kPeriod; ++i) sums_[i] += element(i, rank);
    }
  }

  // False after a failure; then trireme_last_error() tells it.
  bool measure(const Size& size, Fact* out) {
    bytes_ = size.bytes;
    const double expected = extrapolated();
    if (expected > kLongestCall) {
      out->value = "left out: it would take some " + time_text(expected);
      return true;
    }
    std::vector<Candidate> candidates;
    bool all = true;
    double spent = 0;
    if (!try_all(&candidates, &spent, &all) || !repeat(spent, &candidates)) return false;
    tell(candidates, all, out);
    before_ = last_;
    last_ = {static_cast<double>(bytes_), median(candidates.front().samples)};
    return true;
  }

 private:
  // Microseconds of a call of this size, by a line through those of two smaller sizes. 0 if they
  // are not measured yet.
  double extrapolated() const {
    if (before_.bytes == 0) return 0;
    const double slope =
        std::max(0.0, last_.microseconds - before_.microseconds) / (last_.bytes - before_.bytes);
    return last_.microseconds + slope * (static_cast<double>(bytes_) - last_.bytes);
  }

  // The largest of all ranks' numbers takes the place of each.
  bool agree(std::vector<double>* numbers) {
    return trireme_all_reduce(group_.communicator, numbers->data(), numbers->data(),
                              numbers->size(), TRIREME_DTYPE_F64, TRIREME_REDUCTION_MAX,
                              nullptr) == TRIREME_OK;
  }

  // Calls in a row. *out_took becomes microseconds a call, or infinite if the backend does not have
  // the algorithm.
  bool call(int calls, Candidate* candidate, double* out_took) {
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.algorithm = candidate->algorithm;
    const std::uint64_t count = bytes_ / sizeof(float);
    std::fill_n(receive_.begin(), count, NAN);
    if (trireme_barrier(group_.communicator, nullptr) != TRIREME_OK) return false;
    const std::uint64_t begin = now_ns();
    for (int i = 0; i < calls; ++i) {
      const trireme_status status =
          trireme_all_reduce(group_.communicator, send_.data(), receive_.data(), count,
                             TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, &options);
      if (status == TRIREME_ERROR_UNSUPPORTED) {
        *out_took = HUGE_VAL;
        return true;
      }
      if (status != TRIREME_OK) return false;
    }
    *out_took = static_cast<double>(now_ns() - begin + 1) / 1e3 / calls;
    if (!sums_are_right()) candidate->wrong = group_.rank + 1;
    return true;
  }

  bool sums_are_right() const {
    const std::uint64_t count = bytes_ / sizeof(float);
    for (std::uint64_t i = 0; i < count; i += kPeriod) {
      const std::uint64_t length = std::min(kPeriod, count - i);
      if (std::memcmp(&receive_[i], sums_.data(), length * sizeof(float)) != 0) return false;
    }
    return true;
  }

  // Calls each algorithm once, and keeps those that the backend has. The automatic choice is first.
  // Direct is last, since it is slow with many bytes.
  bool try_all(std::vector<Candidate>* candidates, double* out_spent, bool* out_all) {
    for (int i = 0; i <= TRIREME_ALGORITHM_NATIVE; ++i) {
      if (*out_spent > kFirstCalls) {
        *out_all = false;
        return true;
      }
      const trireme_algorithm algorithm =
          i == 0 ? TRIREME_ALGORITHM_AUTOMATIC : TRIREME_ALGORITHM_NATIVE + 1 - i;
      Candidate candidate{algorithm, {0}};
      if (!call(1, &candidate, &candidate.samples[0])) return false;
      std::vector<double> numbers{candidate.samples[0], candidate.wrong};
      if (!agree(&numbers)) return false;
      if (!std::isfinite(numbers[0])) continue;
      candidate.samples[0] = numbers[0];
      candidate.wrong = numbers[1];
      *out_spent += numbers[0];
      candidates->push_back(candidate);
    }
    return true;
  }

  // The first calls warm up, unless they are so slow that they must do. The algorithms take turns.
  // So whatever slows the machine down meanwhile meets all of them.
  bool repeat(double spent, std::vector<Candidate>* candidates) {
    if (spent > kLaterCalls) return true;
    const double first = candidates->front().samples[0];
    const auto calls = static_cast<int>(std::clamp(kSample / first, 1.0, kMostCalls));
    const auto rounds =
        static_cast<std::size_t>(std::clamp(kLaterCalls / (spent * calls), 1.0, kMostSamples));
    std::vector<double> numbers;
    for (std::size_t round = 0; round < rounds; ++round) {
      for (Candidate& candidate : *candidates) {
        numbers.push_back(0);
        if (!call(calls, &candidate, &numbers.back())) return false;
      }
    }
    for (const Candidate& candidate : *candidates) numbers.push_back(candidate.wrong);
    if (!agree(&numbers)) return false;
    const std::size_t many = candidates->size();
    for (std::size_t i = 0; i < many; ++i) {
      Candidate& candidate = (*candidates)[i];
      candidate.wrong = numbers[rounds * many + i];
      candidate.samples.clear();
      for (std::size_t round = 0; round < rounds; ++round) {
        candidate.samples.push_back(numbers[round * many + i]);
      }
    }
    return true;
  }

  static void tell(const std::vector<Candidate>& candidates, bool all, Fact* out) {
    const Candidate* fastest = nullptr;
    for (const Candidate& candidate : candidates) {
      if (candidate.wrong > 0) {
        out->advice = "rank " + std::to_string(static_cast<int>(candidate.wrong) - 1) +
                      " has wrong sums by " + trireme_algorithm_name(candidate.algorithm) +
                      ": the network or a memory is broken";
      }
      if (candidate.algorithm == TRIREME_ALGORITHM_AUTOMATIC) continue;
      if (fastest == nullptr || median(candidate.samples) < median(fastest->samples)) {
        fastest = &candidate;
      }
    }
    const double chosen = median(candidates.front().samples);
    out->value = time_text(chosen) + " as chosen";
    if (fastest == nullptr) {
      out->value += ", too slow to try algorithms by name";
      return;
    }
    const std::string name = trireme_algorithm_name(fastest->algorithm);
    const double best = median(fastest->samples);
    out->value += ", " + time_text(best) + " by " + name +
                  (all ? ", the fastest by name" : ", the fastest of those tried in the time");
    if (chosen < best * kMuchFaster) return;
    out->remark =
        name + " is much faster here than the choice: trireme bench --tune finds the best";
  }

  const Group& group_;
  std::vector<float> send_;
  std::vector<float> receive_;
  std::vector<float> sums_;
  std::uint64_t bytes_ = 0;
  // As chosen, of the two sizes before.
  struct {
    double bytes;
    double microseconds;
  } before_{}, last_{};
};

}  // namespace

Section choice_facts(const Group& group) {
  Section section{"all_reduce of f32", {}};
  Choice choice(group);
  for (const Size& size : kSizes) {
    Fact fact{size.name, "", ""};
    const bool done = choice.measure(size, &fact);
    if (!done) {
      fact.value = "fails";
      fact.advice = trireme_last_error();
    }
    section.facts.push_back(fact);
    if (!done) break;
  }
  return section;
}

}  // namespace trireme::doctor
