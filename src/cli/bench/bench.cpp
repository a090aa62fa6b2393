// The ordinary run: one table an operation, sizes from smallest to largest, as nccl-tests print it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "cli/bench/group.hpp"
#include "cli/bench/limits.hpp"
#include "cli/bench/peers.hpp"
#include "cli/bench/settings.hpp"
#include "cli/bench/values.hpp"

namespace trireme::bench {

namespace {

constexpr std::uint64_t kSweepLimitBytes = 64u << 20;

struct FileEnd {
  void operator()(FILE* file) const { std::fclose(file); }
};

// One form of a row: in place or out of place.
struct Form {
  std::ptrdiff_t index = -1;    // of its case in the plan
  std::vector<double> samples;  // of all rounds
  std::vector<double> medians;  // by round
  std::uint64_t wrong = 0;
};

struct Row {
  Case what;
  std::uint64_t bytes = 0;
  Form forms[2];                           // out of place, in place
  std::vector<std::vector<double>> peers;  // medians by peer, by round
};

class Bench {
 public:
  Bench(const Settings& settings, const Joined* given)
      : settings_(settings),
        group_{given != nullptr ? given->size() : number_of_ranks(settings), ranks_of(settings),
               settings.memory == "private" ? Memory::ordinary : Memory::registered,
               settings.backend, given},
        tells_(given == nullptr || given->rank() == 0),
        rounds_(settings.rounds != 0     ? settings.rounds
                : settings.peers.empty() ? 1
                                         : 5),
        prints_(tells_ && settings.json != "-") {}

  int run() {
    make_rows();
    print_head();
    for (int round = 0; round < rounds_; ++round) run_round(round);
    if (!prints_each()) {
      for (const Row& row : rows_) print(row);
    }
    print_end();
    if (!settings_.json.empty() && tells_) write_json();
    return wrong() == 0 ? 0 : 1;
  }

 private:
  // The limits describe one host, and the ranks may be on several.
  bool is_given() const { return group_.given != nullptr; }
  bool prints_each() const { return rounds_ == 1 && settings_.peers.empty(); }

  void make_rows() {
    for (const Op op : operations_of(settings_)) {
      for (const trireme_dtype dtype : dtypes_of(settings_)) {
        for (const trireme_reduction reduction : reductions_of(settings_)) {
          if (!op_reduces(op) && reduction != reductions_of(settings_).front()) continue;
          if (supported(op, dtype, reduction)) make_rows(op, dtype, reduction);
        }
      }
    }
    plan_.effort = settings_.effort;
    plan_.checked = settings_.check;
  }

  void make_rows(Op op, trireme_dtype dtype, trireme_reduction reduction) {
    const std::uint64_t last = largest_bytes(settings_);
    Case what{op, dtype, reduction, settings_.root, 1, false, algorithm_of(settings_)};
    const std::uint64_t unit = bytes_of(what, group_.size);
    if (op == Op::barrier) return add_row({op, dtype, reduction, 0, 0, false, what.algorithm});
    for (std::uint64_t bytes = parse_bytes(settings_.minimum); bytes <= last;) {
      what.count = bytes == 0 ? 0 : std::max<std::uint64_t>(1, bytes / unit);
      add_row(what);
      if (settings_.step.empty())
        bytes = bytes == 0 ? 1 : bytes * factor_of(settings_);
      else
        bytes += parse_bytes(settings_.step);
    }
  }

  void add_row(const Case& what) {
    Row row;
    row.what = what;
    row.bytes = bytes_of(what, group_.size);
    // All sizes below one element become one element, once.
    if (!rows_.empty()) {
      const Case& last = rows_.back().what;
      if (last.op == what.op && last.dtype == what.dtype && last.reduction == what.reduction &&
          last.count == what.count) {
        return;
      }
    }
    const std::string& place = settings_.place;
    for (const bool in_place : {false, true}) {
      if (in_place ? !op_takes_in_place(what.op) : !op_takes_out_of_place(what.op)) continue;
      const bool only_form = what.op == Op::barrier;
      if (!only_form && place == (in_place ? "out" : "in")) continue;
      Case form = what;
      form.in_place = in_place;
      row.forms[in_place ? 1 : 0].index = static_cast<std::ptrdiff_t>(plan_.cases.size());
      plan_.cases.push_back(form);
    }
    row.peers.resize(settings_.peers.size());
    rows_.push_back(std::move(row));
  }

  void run_round(int round) {
    const double before = is_given() ? 0 : flag_round_trip();
    run_group(group_, plan_, [&](std::size_t index, const Result& result) {
      for (Row& row : rows_) {
        for (Form& form : row.forms) {
          if (form.index != static_cast<std::ptrdiff_t>(index)) continue;
          form.samples.insert(form.samples.end(), result.samples.begin(), result.samples.end());
          form.medians.push_back(percentile(result.samples, 0.5));
          form.wrong += result.wrong;
          const Form& last = row.forms[row.forms[1].index >= 0 ? 1 : 0];
          if (prints_each() && &form == &last) print(row);
        }
      }
    });
    for (std::size_t p = 0; p < settings_.peers.size(); ++p) {
      std::vector<PeerCase> cases;
      for (const Row& row : rows_) cases.push_back({row.what.op, row.bytes});
      const std::vector<double> times =
          run_peer(folder_of(settings_), settings_.peers[p], group_.size, cases, settings_.effort);
      for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i].peers[p].push_back(times[i]);
    }
    if (is_given()) return;
    const double after = flag_round_trip();
    trips_.insert(trips_.end(), {before, after});
    if (prints_ && !prints_each()) {
      std::printf("# round %d of %d: flag round trip %.3f us (%s) before, %.3f us (%s) after\n",
                  round + 1, rounds_, before, placement(before), after, placement(after));
      std::fflush(stdout);
    }
  }

  void print_head() {
    if (!is_given()) limit_ = sum_kernel(kSweepLimitBytes);
    if (!prints_) return;
    std::printf("# %s\n", trireme_build_info());
    std::printf("# %d ranks as %s, %s memory; time: median of the slowest rank over samples\n",
                group_.size, ranks_name(group_.ranks), memory_name(group_.memory));
    if (is_given()) {
      std::printf("# backend: %s\n", group_.given->backend().c_str());
    } else {
      std::printf("# memory limit: a = b = a + b, 2 threads, %llu MiB: %.2f GB/s\n",
                  static_cast<unsigned long long>(kSweepLimitBytes >> 20), limit_);
    }
    std::printf("#%58s %-45s %s\n", "", "out of place", "in place");
    std::printf("# %12s %11s %6s %10s %4s", "size (B)", "count", "type", "redop", "root");
    for (int form = 0; form < 2; ++form) {
      std::printf(" %10s %9s %7s %7s %7s", "time (us)", "p99 (us)", "algbw", "busbw", "#wrong");
    }
    for (const std::string& peer : settings_.peers) {
      std::printf(" %12s %6s", (peer + " us").c_str(), "ratio");
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  void print(const Row& row) {
    if (!prints_) return;
    if (row.what.op != printed_) std::printf("# %s\n", op_name(row.what.op));
    printed_ = row.what.op;
    const bool reduces = op_reduces(row.what.op);
    std::printf("  %12llu %11llu %6s %10s %4d", static_cast<unsigned long long>(row.bytes),
                static_cast<unsigned long long>(row.what.count), trireme_dtype_name(row.what.dtype),
                reduces ? trireme_reduction_name(row.what.reduction) : "none",
                op_has_root(row.what.op) ? row.what.root : -1);
    for (const Form& form : row.forms) {
      if (form.index < 0) {
        std::printf(" %10s %9s %7s %7s %7s", "N/A", "N/A", "N/A", "N/A", "N/A");
        continue;
      }
      const double time = percentile(form.samples, 0.5);
      const double speed = static_cast<double>(row.bytes) / time / 1e3;
      const std::string wrong = settings_.check ? std::to_string(form.wrong) : "N/A";
      std::printf(" %10.2f %9.2f %7.2f %7.2f %7s", time, percentile(form.samples, 0.99), speed,
                  speed * bus_factor(row.what.op, group_.size), wrong.c_str());
    }
    for (const std::vector<double>& peer : row.peers) {
      const double time = percentile(peer, 0.5);
      if (time < 0)
        std::printf(" %12s %6s", "N/A", "N/A");
      else
        std::printf(" %12.2f %6.2f", time, ratio(row, peer));
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  // How many times faster than the peer. Peers work in place where the operation can. The median
  // over rounds of each round's own ratio.
  static double ratio(const Row& row, const std::vector<double>& peer) {
    const Form& ours = row.forms[row.forms[1].index >= 0 ? 1 : 0];
    std::vector<double> ratios;
    for (std::size_t i = 0; i < peer.size(); ++i) ratios.push_back(peer[i] / ours.medians[i]);
    return percentile(ratios, 0.5);
  }

  std::uint64_t wrong() const {
    std::uint64_t sum = 0;
    for (const Row& row : rows_) sum += row.forms[0].wrong + row.forms[1].wrong;
    return sum;
  }

  void print_end() const {
    if (!prints_) return;
    if (!is_given()) {
      const double trip = percentile(trips_, 0.5);
      std::printf("# flag round trip %.3f us (%s)\n", trip, placement(trip));
    }
    if (settings_.check) {
      std::printf("# wrong elements: %llu\n", static_cast<unsigned long long>(wrong()));
    }
  }

  void write_json() const {
    std::unique_ptr<FILE, FileEnd> file;
    FILE* out = stdout;
    if (settings_.json != "-") {
      file.reset(std::fopen(settings_.json.c_str(), "w"));
      if (file == nullptr) throw Failure("cannot write " + settings_.json);
      out = file.get();
    }
    std::fprintf(out, "{\"library\": \"%s\", \"ranks\": %d, \"ranks_as\": \"%s\", ",
                 trireme_build_info(), group_.size, ranks_name(group_.ranks));
    std::fprintf(out, "\"memory\": \"%s\", \"rounds\": %d, ", memory_name(group_.memory), rounds_);
    if (is_given()) {
      std::fprintf(out, "\"backend\": \"%s\", \"rows\": [", group_.given->backend().c_str());
    } else {
      const double trip = percentile(trips_, 0.5);
      std::fprintf(out, "\"memory_limit_gbps\": %.4f, \"flag_round_trip_us\": %.4f, ", limit_,
                   trip);
      std::fprintf(out, "\"placement\": \"%s\", \"rows\": [", placement(trip));
    }
    const char* between = "\n";
    for (const Row& row : rows_) {
      std::fprintf(out, "%s  {\"operation\": \"%s\", \"bytes\": %llu, \"count\": %llu, ", between,
                   op_name(row.what.op), static_cast<unsigned long long>(row.bytes),
                   static_cast<unsigned long long>(row.what.count));
      std::fprintf(out, "\"dtype\": \"%s\", \"reduction\": \"%s\", \"root\": %d",
                   trireme_dtype_name(row.what.dtype),
                   op_reduces(row.what.op) ? trireme_reduction_name(row.what.reduction) : "none",
                   row.what.root);
      write_form(out, "out_of_place", row, row.forms[0]);
      write_form(out, "in_place", row, row.forms[1]);
      for (std::size_t p = 0; p < row.peers.size(); ++p) {
        const double time = percentile(row.peers[p], 0.5);
        if (time < 0) continue;
        std::fprintf(out, ", \"%s\": {\"time_us\": %.4f, \"ratio\": %.4f}",
                     settings_.peers[p].c_str(), time, ratio(row, row.peers[p]));
      }
      std::fprintf(out, "}");
      between = ",\n";
    }
    std::fprintf(out, "\n]}\n");
    if (std::fflush(out) != 0) throw Failure("cannot write the figures");
  }

  void write_form(FILE* out, const char* name, const Row& row, const Form& form) const {
    if (form.index < 0) return;
    const double time = percentile(form.samples, 0.5);
    const double speed = static_cast<double>(row.bytes) / time / 1e3;
    std::fprintf(out, ", \"%s\": {\"time_us\": %.4f, \"p10_us\": %.4f, \"p90_us\": %.4f, ", name,
                 time, percentile(form.samples, 0.1), percentile(form.samples, 0.9));
    std::fprintf(out, "\"p99_us\": %.4f, \"samples\": %zu, \"algbw\": %.4f, \"busbw\": %.4f, ",
                 percentile(form.samples, 0.99), form.samples.size(), speed,
                 speed * bus_factor(row.what.op, group_.size));
    if (settings_.check) {
      std::fprintf(out, "\"wrong\": %llu}", static_cast<unsigned long long>(form.wrong));
    } else {
      std::fprintf(out, "\"wrong\": null}");
    }
  }

  const Settings& settings_;
  const Group group_;
  const bool tells_;  // this process holds the results
  const int rounds_;
  const bool prints_;
  Plan plan_;
  std::vector<Row> rows_;
  std::vector<double> trips_;
  double limit_ = 0;
  Op printed_ = static_cast<Op>(-1);
};

}  // namespace

int run(const Settings& settings) {
  if (settings.table) return run_table(settings);
  if (!settings.tune.empty()) unsetenv("TRIREME_TUNING");  // the library's own choice is measured
  std::unique_ptr<Joined> given;
  if (ranks_of(settings) == Ranks::given) {
    given = std::make_unique<Joined>(settings.backend);
    if (given->size() > kMostRanks || settings.root >= given->size()) {
      throw Failure("of " + std::to_string(given->size()) + " ranks, root " +
                    std::to_string(settings.root) + ": there may be " + std::to_string(kMostRanks) +
                    ", and the root has to be one of them");
    }
  }
  if (!settings.tune.empty()) return run_tune(settings, given.get());
  return settings.all ? run_sweep(settings, given.get()) : Bench(settings, given.get()).run();
}

}  // namespace trireme::bench
