// --table: the speed that the project promises, beside the peers that are installed. It prints
// figures and no verdict, because machines differ.
#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>

#include "cli/bench/group.hpp"
#include "cli/bench/limits.hpp"
#include "cli/bench/peers.hpp"
#include "cli/bench/settings.hpp"

namespace trireme::bench {

namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;
constexpr std::uint64_t kLimitBytes = 64 * kMiB;

enum class Against { best_peer, best_peer_far, best_mpi, gloo, kernel, processes, flag };

const char* against_name(Against against) {
  switch (against) {
    case Against::best_peer: return "best peer";
    case Against::best_peer_far: return "best, far";
    case Against::best_mpi: return "best MPI";
    case Against::gloo: return "gloo";
    case Against::kernel: return "memory kernel";
    case Against::processes: return "processes";
    case Against::flag: return "flag trip, us";
  }
  return "";
}

// One promise: `bar` times as fast as its reference; flag: at most `bar` microseconds slower.
// best_peer_far: counts the rounds in which the two cores were far from each other.
struct Goal {
  Op op;
  int size;
  Ranks ranks;
  Memory memory;
  std::uint64_t bytes;
  Against against;
  double bar;
};

std::vector<Goal> all_goals() {
  constexpr auto reg = Memory::registered;
  constexpr auto own = Memory::ordinary;
  constexpr auto proc = Ranks::processes;
  constexpr auto ar = Op::all_reduce;
  std::vector<Goal> goals;
  for (const std::uint64_t bytes : {64 * kMiB, 256 * kMiB}) {
    if (bytes == kLimitBytes) goals.push_back({ar, 2, proc, reg, bytes, Against::kernel, 0.85});
    goals.push_back({ar, 2, proc, reg, bytes, Against::best_mpi, 6});
    goals.push_back({ar, 2, proc, reg, bytes, Against::gloo, 8});
  }
  const std::vector<Goal> rest{
      {ar, 2, proc, reg, 16 * kMiB, Against::best_peer, 7},
      {ar, 2, proc, reg, kMiB, Against::best_peer, 5},
      {ar, 2, proc, reg, 64 * kKiB, Against::best_peer, 8},
      {ar, 2, proc, own, 256 * kMiB, Against::best_peer, 4},
      {ar, 2, proc, own, 16 * kMiB, Against::best_peer, 2.5},
      {ar, 2, proc, own, kMiB, Against::best_peer, 1.8},
      {ar, 2, proc, own, 64 * kKiB, Against::best_peer, 3},
      {ar, 2, proc, own, 256 * kMiB, Against::best_peer_far, 1.2},
      {ar, 2, proc, own, 16 * kMiB, Against::best_peer_far, 1.2},
      {ar, 2, proc, own, kMiB, Against::best_peer_far, 1.2},
      {ar, 2, proc, own, 64 * kKiB, Against::best_peer_far, 1.2},
      {ar, 2, proc, own, 8, Against::best_mpi, 1.5},
      {ar, 2, proc, own, kKiB, Against::best_mpi, 1.5},
      {Op::barrier, 2, proc, reg, 0, Against::best_mpi, 4},
      {Op::reduce_scatter, 2, proc, reg, 64 * kMiB, Against::best_peer, 4},
      {Op::all_gather, 2, proc, reg, 64 * kMiB, Against::best_peer, 1.4},
      {Op::broadcast, 2, proc, reg, 64 * kMiB, Against::best_peer, 2.2},
      {ar, 4, proc, own, 8, Against::best_mpi, 1},
      {ar, 4, proc, reg, kMiB, Against::best_peer, 4},
      {ar, 4, proc, reg, 16 * kMiB, Against::best_peer, 4},
      {ar, 4, proc, own, kMiB, Against::best_peer, 2},
      {ar, 4, proc, own, 16 * kMiB, Against::best_peer, 2},
      {ar, 2, Ranks::threads, reg, 64 * kKiB, Against::processes, 1},
      {ar, 2, Ranks::threads, reg, 16 * kMiB, Against::processes, 1},
      {ar, 2, Ranks::threads, own, 8, Against::flag, 0.12},
  };
  goals.insert(goals.end(), rest.begin(), rest.end());
  return goals;
}

std::vector<Goal> goals_up_to(std::uint64_t bytes) {
  std::vector<Goal> goals = all_goals();
  std::erase_if(goals, [&](const Goal& goal) { return goal.bytes > bytes; });
  return goals;
}

bool is_mpi(const std::string& peer) { return peer == "openmpi" || peer == "mpich"; }

class Table {
 public:
  explicit Table(const Settings& settings)
      : settings_(settings),
        effort_(settings.effort),
        rounds_(settings.rounds != 0 ? settings.rounds : 5),
        goals_(goals_up_to(largest_bytes(settings))) {
    for (const std::string& peer : peer_names()) {
      const bool asked = settings.peers.empty() ||
                         std::count(settings.peers.begin(), settings.peers.end(), peer) > 0;
      if (asked && peer_installed(folder_of(settings), peer)) peers_.push_back(peer);
    }
  }

  int run() {
    std::printf("# %s\n# peers:", trireme_build_info());
    for (const std::string& peer : peers_) std::printf(" %s", peer.c_str());
    std::printf("%s\n", peers_.empty() ? " none is installed" : "");
    std::fflush(stdout);
    for (int round = 0; round < rounds_; ++round) run_round(round);
    print();
    if (!settings_.json.empty()) write_json();
    return 0;
  }

 private:
  // A measured series: the library's operation, or a peer's.
  using Key = std::tuple<Op, int, std::string, std::uint64_t>;  // operation, ranks, who, bytes
  static std::string who(Ranks ranks, Memory memory) {
    return std::string(ranks_name(ranks)) + "/" + memory_name(memory);
  }

  // The time in one round; negative if it was not measured.
  double time(const Key& key, int round) const {
    const auto found = times_.find(key);
    return found == times_.end() ? -1 : found->second[static_cast<std::size_t>(round)];
  }

  void run_round(int round) {
    const double trip = flag_round_trip();
    trips_.push_back(trip);
    kernels_.push_back(sum_kernel(kLimitBytes));
    std::printf("# round %d of %d: flag round trip %.3f us (%s), memory kernel %.2f GB/s\n",
                round + 1, rounds_, trip, placement(trip), kernels_.back());
    std::fflush(stdout);
    for (const int size : {2, 4}) {
      for (const Ranks ranks : {Ranks::processes, Ranks::threads}) {
        for (const Memory memory : {Memory::registered, Memory::ordinary}) {
          run_ours(size, ranks, memory);
        }
      }
      for (const std::string& peer : peers_) run_peers(size, peer);
    }
    const double after = flag_round_trip();
    far_.push_back(is_far(trip) && is_far(after));
    std::printf("# after it: flag round trip %.3f us (%s)\n", after, placement(after));
  }

  void run_ours(int size, Ranks ranks, Memory memory) {
    Plan plan;
    plan.effort = effort_;
    std::vector<Key> keys;
    const auto add = [&](const Goal& goal) {
      const Key key{goal.op, size, who(ranks, memory), goal.bytes};
      if (std::count(keys.begin(), keys.end(), key) > 0) return;
      Case what{goal.op, TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, 0, 1, false};
      what.count = goal.op == Op::barrier ? 0 : goal.bytes / bytes_of(what, size);
      what.in_place = op_takes_in_place(goal.op) && goal.op != Op::reduce_scatter;
      keys.push_back(key);
      plan.cases.push_back(what);
    };
    for (const Goal& goal : goals_) {
      if (goal.size != size || goal.memory != memory) continue;
      const bool held_against = goal.against == Against::processes && ranks == Ranks::processes;
      if (goal.ranks == ranks || held_against) add(goal);
    }
    if (plan.cases.empty()) return;
    const std::vector<Result> results = run_group({size, ranks, memory, "", nullptr}, plan);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      times_[keys[i]].push_back(percentile(results[i].samples, 0.5));
    }
  }

  void run_peers(int size, const std::string& peer) {
    std::vector<PeerCase> cases;
    for (const Goal& goal : goals_) {
      if (goal.size != size || goal.ranks == Ranks::threads) continue;
      const bool known = std::any_of(cases.begin(), cases.end(), [&](const PeerCase& other) {
        return other.op == goal.op && other.bytes == goal.bytes;
      });
      if (!known) cases.push_back({goal.op, goal.bytes});
    }
    const std::vector<double> times = run_peer(folder_of(settings_), peer, size, cases, effort_);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      times_[{cases[i].op, size, peer, cases[i].bytes}].push_back(times[i]);
    }
  }

  // The library and its reference in one round, in microseconds; negative if that was not measured.
  std::pair<double, double> pair(const Goal& goal, int round) const {
    const auto index = static_cast<std::size_t>(round);
    if (goal.against == Against::best_peer_far && !far_[index]) return {-1, -1};
    const double ours = time({goal.op, goal.size, who(goal.ranks, goal.memory), goal.bytes}, round);
    double other = -1;
    if (goal.against == Against::kernel) {
      other = static_cast<double>(goal.bytes) / kernels_[index] / 1e3;
    } else if (goal.against == Against::flag) {
      other = trips_[index];
    } else if (goal.against == Against::processes) {
      other = time({goal.op, goal.size, who(Ranks::processes, goal.memory), goal.bytes}, round);
    } else {
      for (const std::string& peer : peers_) {
        if (goal.against == Against::best_mpi && !is_mpi(peer)) continue;
        if (goal.against == Against::gloo && peer != "gloo") continue;
        const double theirs = time({goal.op, goal.size, peer, goal.bytes}, round);
        if (theirs > 0 && (other < 0 || theirs < other)) other = theirs;
      }
    }
    return {ours, other};
  }

  struct Figures {
    double ours = -1, other = -1, ratio = -1;  // medians over rounds; us, us, times or us
    bool reached = false;
  };
  Figures figures(const Goal& goal) const {
    std::vector<double> ours, others, ratios;
    for (int round = 0; round < rounds_; ++round) {
      const auto [mine, other] = pair(goal, round);
      if (other < 0) continue;
      ours.push_back(mine);
      others.push_back(other);
      ratios.push_back(goal.against == Against::flag ? mine - other : other / mine);
    }
    if (ratios.empty()) return {};
    Figures all{percentile(ours, 0.5), percentile(others, 0.5), percentile(ratios, 0.5), false};
    all.reached = goal.against == Against::flag ? all.ratio <= goal.bar : all.ratio >= goal.bar;
    return all;
  }

  void print() const {
    std::printf("%-15s %2s %-9s %-10s %10s | %10s %8s | %-13s %10s | %8s %6s\n", "operation", "n",
                "ranks", "memory", "bytes", "ours us", "GB/s", "against", "theirs us", "ratio",
                "bar");
    for (const Goal& goal : goals_) {
      const Figures f = figures(goal);
      std::printf("%-15s %2d %-9s %-10s %10llu | ", op_name(goal.op), goal.size,
                  ranks_name(goal.ranks), memory_name(goal.memory),
                  static_cast<unsigned long long>(goal.bytes));
      if (f.ours < 0) {
        std::printf("%10s %8s | %-13s %10s |\n", "-", "-", against_name(goal.against), "absent");
        continue;
      }
      std::printf("%10.2f %8.2f | %-13s %10.2f | %8.2f %6.2f %s\n", f.ours,
                  static_cast<double>(goal.bytes) / f.ours / 1e3, against_name(goal.against),
                  f.other, f.ratio, goal.bar, f.reached ? "reached" : "below");
    }
  }

  void write_json() const {
    FILE* const out = settings_.json == "-" ? stdout : std::fopen(settings_.json.c_str(), "w");
    if (out == nullptr) throw Failure("cannot write " + settings_.json);
    std::fprintf(out, "{\"library\": \"%s\", \"rounds\": %d, \"flag_round_trip_us\": %.4f, ",
                 trireme_build_info(), rounds_, percentile(trips_, 0.5));
    std::fprintf(out, "\"memory_limit_gbps\": %.4f, \"goals\": [", percentile(kernels_, 0.5));
    const char* between = "\n";
    for (const Goal& goal : goals_) {
      const Figures f = figures(goal);
      std::fprintf(out, "%s  {\"operation\": \"%s\", \"ranks\": %d, \"ranks_as\": \"%s\", ",
                   between, op_name(goal.op), goal.size, ranks_name(goal.ranks));
      std::fprintf(out, "\"memory\": \"%s\", \"bytes\": %llu, \"against\": \"%s\", ",
                   memory_name(goal.memory), static_cast<unsigned long long>(goal.bytes),
                   against_name(goal.against));
      std::fprintf(out, "\"ours_us\": %.4f, \"theirs_us\": %.4f, \"ratio\": %.4f, \"bar\": %.2f}",
                   f.ours, f.other, f.ratio, goal.bar);
      between = ",\n";
    }
    std::fprintf(out, "\n]}\n");
    const bool written = std::fflush(out) == 0;
    if (out != stdout) std::fclose(out);
    if (!written) throw Failure("cannot write the figures");
  }

  const Settings& settings_;
  const Effort effort_;
  const int rounds_;
  const std::vector<Goal> goals_;
  std::vector<std::string> peers_;
  std::map<Key, std::vector<double>> times_;  // by round
  std::vector<double> trips_;
  std::vector<bool> far_;  // by round: before it and after it
  std::vector<double> kernels_;
};

}  // namespace

int run_table(const Settings& settings) { return Table(settings).run(); }

}  // namespace trireme::bench
