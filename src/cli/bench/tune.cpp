// --tune: measures every algorithm of every operation beside the library's own choice, and writes
// rules for those that are faster. Groups take them by the variable TRIREME_TUNING.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <memory>
#include <utility>

#include "cli/bench/group.hpp"
#include "cli/bench/settings.hpp"
#include "schedules/tuning.hpp"

namespace trireme::bench {

namespace {

constexpr int kRounds = 5;

struct Tuned {
  Op op;
  Pattern pattern;
};
// The forms with counts follow the rules of those without.
constexpr Tuned kTuned[] = {
    {Op::all_reduce, Pattern::all_reduce}, {Op::reduce_scatter, Pattern::reduce_scatter},
    {Op::all_gather, Pattern::all_gather}, {Op::broadcast, Pattern::broadcast},
    {Op::reduce, Pattern::reduce},         {Op::gather, Pattern::gather},
    {Op::scatter, Pattern::scatter},       {Op::all_to_all, Pattern::all_to_all},
    {Op::barrier, Pattern::barrier},
};

// A file of its own beside `path`, which gets that name when it is whole: a run that ends early
// leaves the old table.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(path), part_(path + ".XXXXXX") {
    struct stat about {};
    const bool is_there = lstat(path_.c_str(), &about) == 0;
    if (is_there && !S_ISREG(about.st_mode)) {  // a device, or a link to one
      throw Failure("cannot write " + path_ + ": it is there, and is no regular file");
    }
    const int descriptor = mkostemp(part_.data(), O_CLOEXEC);
    if (descriptor < 0) refuse();
    const mode_t mask = umask(0);
    umask(mask);
    fchmod(descriptor, is_there ? about.st_mode & 0777 : 0666 & ~mask);
    file_ = fdopen(descriptor, "w");
    if (file_ != nullptr) return;
    const int reason = errno;
    close(descriptor);
    unlink(part_.c_str());
    errno = reason;
    refuse();
  }
  ~NewFile() {
    if (file_ != nullptr) std::fclose(file_);
    if (!is_named_) unlink(part_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const std::string& text) {
    if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) refuse();
    if (std::fclose(std::exchange(file_, nullptr)) != 0) refuse();
    if (std::rename(part_.c_str(), path_.c_str()) != 0) refuse();
    is_named_ = true;
  }

 private:
  [[noreturn]] void refuse() const {
    throw Failure("cannot write " + path_ + ": " + std::strerror(errno));
  }

  const std::string path_;
  std::string part_;
  FILE* file_ = nullptr;
  bool is_named_ = false;
};

// One operation at one size.
struct Measured {
  Pattern pattern = Pattern::all_reduce;
  Case what;
  std::uint64_t bytes = 0;
  std::vector<TunedCandidate> candidates;  // by the number of the algorithm
  std::uint64_t wrong = 0;
};

struct Planned {
  std::size_t row;
  bool again;  // the second time in a round
};

double median(const TunedCandidate& candidate) { return percentile(candidate.rounds, 0.5); }

class Tune {
 public:
  Tune(const Settings& settings, const Joined* given)
      : settings_(settings),
        group_{given != nullptr ? given->size() : number_of_ranks(settings), ranks_of(settings),
               settings.memory == "private" ? Memory::ordinary : Memory::registered,
               settings.backend, given},
        tells_(given == nullptr || given->rank() == 0),
        rounds_(settings.rounds != 0 ? settings.rounds : kRounds) {}

  int run() {
    // Whoever may not write there learns so before the measurement. It leaves nothing there, in
    // case that somebody ends this process meanwhile.
    if (tells_) const NewFile tried(settings_.tune);
    make_rows();
    print_head();
    std::string backend;
    run_group(
        group_, plan_, [&](std::size_t index, const Result& result) { add(index, result); },
        &backend);
    if (!tells_) return 0;
    std::vector<TunedSize> sizes;
    std::uint64_t wrong = 0;
    for (const Measured& row : rows_) {
      sizes.push_back({row.pattern, row.bytes, choose_tuned(row.candidates)});
      wrong += row.wrong;
    }
    if (wrong > 0) {
      std::printf("# wrong elements: %llu; nothing is written\n",
                  static_cast<unsigned long long>(wrong));
      return 1;
    }
    const std::string text = tuning_text(group_.size, backend, sizes, remarks());
    try {
      NewFile(settings_.tune).write(text);
    } catch (const Failure&) {
      std::printf("%s", text.c_str());  // it took long to measure
      throw;
    }
    std::printf("# wrote %s for %d ranks of %s\n", settings_.tune.c_str(), group_.size,
                backend.c_str());
    return 0;
  }

 private:
  void make_rows() {
    for (const Tuned& tuned : kTuned) {
      const std::vector<std::string>& asked = settings_.operations;
      if (!asked.empty() && std::count(asked.begin(), asked.end(), op_name(tuned.op)) == 0) {
        continue;
      }
      Case what;
      what.op = tuned.op;
      what.in_place = op_takes_in_place(what.op);
      if (what.op == Op::barrier) {
        add_row(tuned.pattern, what);
        continue;
      }
      what.count = 1;
      const std::uint64_t unit = bytes_of(what, group_.size);
      const std::uint64_t last = largest_bytes(settings_);
      const std::uint64_t first = std::max<std::uint64_t>(1, parse_bytes(settings_.minimum));
      const std::uint64_t factor = factor_of(settings_);
      for (std::uint64_t bytes = first; bytes <= last; bytes *= factor) {
        const std::uint64_t count = std::max<std::uint64_t>(1, bytes / unit);
        const bool again =
            !rows_.empty() && rows_.back().what.op == what.op && rows_.back().what.count == count;
        what.count = count;
        if (!again) add_row(tuned.pattern, what);
        if (bytes > last / factor) break;  // the product may not fit
      }
    }
    plan_.effort = settings_.effort;
    plan_.checked = true;
    plan_.skips_absent = true;
  }

  // The algorithms take turns, round after round: so whatever slows the machine down meanwhile
  // meets all of them. The library's own choice begins and ends each round, and its better time
  // counts. So a rule has to beat it in spite of the noise.
  void add_row(Pattern pattern, const Case& what) {
    Measured row;
    row.pattern = pattern;
    row.what = what;
    row.bytes = bytes_of(what, group_.size);
    for (std::int32_t number = 0; number < kAlgorithms; ++number) {
      row.candidates.push_back({static_cast<Algorithm>(number), {}});
    }
    for (int round = 0; round < rounds_; ++round) {
      for (const TunedCandidate& candidate : row.candidates) {
        const Algorithm algorithm = candidate.algorithm;
        if (algorithm != Algorithm::automatic && algorithm != Algorithm::native &&
            !supports(algorithm, pattern)) {
          continue;
        }
        plan(what, algorithm, false);
      }
      plan(what, Algorithm::automatic, true);
    }
    rows_.push_back(std::move(row));
  }

  void plan(Case what, Algorithm algorithm, bool again) {
    what.algorithm = static_cast<trireme_algorithm>(algorithm);
    plan_.cases.push_back(what);
    planned_.push_back({rows_.size(), again});
  }

  void add(std::size_t index, const Result& result) {
    const auto [number, again] = planned_[index];
    Measured& row = rows_[number];
    row.wrong += result.wrong;
    if (!result.unsupported) {
      const auto algorithm = static_cast<std::size_t>(plan_.cases[index].algorithm);
      std::vector<double>& rounds = row.candidates[algorithm].rounds;
      const double time = percentile(result.samples, 0.5);
      if (again)
        rounds.back() = std::min(rounds.back(), time);
      else
        rounds.push_back(time);
    }
    const bool last = index + 1 == planned_.size() || planned_[index + 1].row != number;
    if (!last) return;
    std::erase_if(row.candidates, [](const auto& each) { return each.rounds.empty(); });
    print(row);
  }

  void print_head() const {
    if (!tells_) return;
    for (const std::string& remark : remarks()) std::printf("# %s\n", remark.c_str());
    std::printf("# %-14s %10s  %s\n", "operation", "bytes",
                "microseconds a call: as chosen, and by each algorithm; the rule");
    std::fflush(stdout);
  }

  void print(const Measured& row) const {
    std::printf("  %-14s %10llu ", op_name(row.what.op),
                static_cast<unsigned long long>(row.bytes));
    for (const TunedCandidate& candidate : row.candidates) {
      const bool own = candidate.algorithm == Algorithm::automatic;
      std::printf(" %s %.2f", own ? "chosen" : algorithm_name(candidate.algorithm),
                  median(candidate));
    }
    const TunedChoice choice = choose_tuned(row.candidates);
    if (choice.algorithm == Algorithm::automatic)
      std::printf("; none\n");
    else
      std::printf("; %s, %.2f times as fast\n", algorithm_name(choice.algorithm), choice.factor);
    std::fflush(stdout);
  }

  std::vector<std::string> remarks() const {
    const std::time_t now = std::time(nullptr);
    std::tm parts = {};
    char date[16] = "";
    gmtime_r(&now, &parts);
    std::strftime(date, sizeof date, "%Y-%m-%d", &parts);
    return {std::string("measured on ") + date + " by " + trireme_build_info(),
            std::to_string(group_.size) + " ranks as " + ranks_name(group_.ranks) + ", " +
                memory_name(group_.memory) + " memory, f32, " + std::to_string(rounds_) +
                " rounds"};
  }

  const Settings& settings_;
  const Group group_;
  const bool tells_;
  const int rounds_;
  Plan plan_;
  std::vector<Measured> rows_;
  std::vector<Planned> planned_;  // by case of the plan
};

}  // namespace

bool is_tuned(Op op) {
  return std::any_of(std::begin(kTuned), std::end(kTuned),
                     [op](const Tuned& tuned) { return tuned.op == op; });
}

int run_tune(const Settings& settings, const Joined* given) { return Tune(settings, given).run(); }

}  // namespace trireme::bench
