#include "cli/bench/settings.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>

#include "cli/bench/peers.hpp"
#include "cli/bench/values.hpp"

namespace trireme::bench {

namespace {

constexpr std::uint64_t kMostTunedBytes = 1ull << 48;

std::string refuse_bytes(const std::string& text) {
  std::size_t digits = 0;
  while (digits < text.size() && std::isdigit(static_cast<unsigned char>(text[digits]))) ++digits;
  const std::string unit = text.substr(digits);
  if (digits == 0 || digits > 15 || (unit != "" && unit != "K" && unit != "M" && unit != "G")) {
    return "\"" + text + "\" is not a number of bytes such as 1024, 64K, 16M or 1G";
  }
  return "";
}

bool is_op(const std::string& name) {
  for (int i = 0; i < kOps; ++i) {
    if (name == op_name(static_cast<Op>(i))) return true;
  }
  return false;
}

std::string refuse_op(const std::string& name) {
  if (is_op(name)) return "";
  std::string known;
  for (int i = 0; i < kOps; ++i) known += std::string(" ") + op_name(static_cast<Op>(i));
  return "\"" + name + "\" is not one of" + known;
}

std::string refuse_dtype(const std::string& name) {
  for (trireme_dtype d = TRIREME_DTYPE_I8; d <= TRIREME_DTYPE_BYTES; ++d) {
    if (name == trireme_dtype_name(d)) return "";
  }
  if (name == "all") return "";
  return "\"" + name + "\" is not a dtype such as f32, bf16 or i8, and not all";
}

std::vector<std::string> algorithm_names() {
  std::vector<std::string> names;
  for (trireme_algorithm a = TRIREME_ALGORITHM_AUTOMATIC; a <= TRIREME_ALGORITHM_NATIVE; ++a) {
    names.push_back(trireme_algorithm_name(a));
  }
  return names;
}

std::string refuse_reduction(const std::string& name) {
  for (trireme_reduction r = TRIREME_REDUCTION_SUM; r <= TRIREME_REDUCTION_SCALED_SUM; ++r) {
    if (name == trireme_reduction_name(r)) return "";
  }
  if (name == "all") return "";
  return "\"" + name + "\" is not a reduction such as sum or max, and not all";
}

}  // namespace

std::uint64_t parse_bytes(const std::string& text) {
  const std::uint64_t number = std::stoull(text);
  switch (text.back()) {
    case 'K': return number << 10;
    case 'M': return number << 20;
    case 'G': return number << 30;
    default: return number;
  }
}

std::uint64_t largest_bytes(const Settings& settings) {
  if (!settings.maximum.empty()) return parse_bytes(settings.maximum);
  return settings.table ? UINT64_MAX : 16u << 20;
}

std::uint32_t factor_of(const Settings& settings) {
  if (settings.factor != 0) return settings.factor;
  return settings.tune.empty() ? 2 : 4;
}

std::vector<Op> operations_of(const Settings& settings) {
  std::vector<Op> ops;
  for (int i = 0; i < kOps; ++i) {
    const std::string name = op_name(static_cast<Op>(i));
    const bool asked = std::count(settings.operations.begin(), settings.operations.end(), name) > 0;
    const bool by_default = settings.operations.empty() && (settings.all || i == 0);
    if (asked || by_default) ops.push_back(static_cast<Op>(i));
  }
  return ops;
}

std::vector<trireme_dtype> dtypes_of(const Settings& settings) {
  std::vector<trireme_dtype> dtypes;
  for (trireme_dtype d = TRIREME_DTYPE_I8; d <= TRIREME_DTYPE_BYTES; ++d) {
    if (settings.all || settings.dtype == "all" || settings.dtype == trireme_dtype_name(d)) {
      dtypes.push_back(d);
    }
  }
  return dtypes;
}

std::vector<trireme_reduction> reductions_of(const Settings& settings) {
  std::vector<trireme_reduction> reductions;
  for (trireme_reduction r = TRIREME_REDUCTION_SUM; r <= TRIREME_REDUCTION_SCALED_SUM; ++r) {
    if (settings.all || settings.reduction == "all" ||
        settings.reduction == trireme_reduction_name(r)) {
      reductions.push_back(r);
    }
  }
  return reductions;
}

int number_of_ranks(const Settings& settings) { return settings.ranks != 0 ? settings.ranks : 2; }

Ranks ranks_of(const Settings& settings) {
  if (settings.ranks_as == "threads") return Ranks::threads;
  if (settings.ranks_as == "transport") return Ranks::transport;
  if (settings.ranks_as == "tcp") return Ranks::tcp;
  return settings.ranks_as == "env" ? Ranks::given : Ranks::processes;
}

trireme_algorithm algorithm_of(const Settings& settings) {
  trireme_algorithm algorithm = TRIREME_ALGORITHM_AUTOMATIC;
  while (settings.algorithm != trireme_algorithm_name(algorithm)) ++algorithm;
  return algorithm;
}

bool supported(Op op, trireme_dtype dtype, trireme_reduction reduction) {
  if (!op_reduces(op)) return true;
  trireme_capability_query query = TRIREME_CAPABILITY_QUERY_INIT;
  query.operation = TRIREME_OPERATION_KIND_ALL_REDUCE;
  query.dtype = dtype;
  query.reduction = reduction;
  return trireme_capability(&query) == TRIREME_OK;
}

std::string folder_of(const Settings& settings) {
  return settings.peer_folder.empty() ? peer_folder() : settings.peer_folder;
}

void add_options(CLI::App& command, Settings* s) {
  const CLI::Validator bytes(refuse_bytes, "BYTES");
  command.add_option("operation", s->operations, "Operations (default all_reduce)")
      ->check(CLI::Validator(refuse_op, "OPERATION"));
  CLI::Option* const maximum =
      command.add_option("-e,--maxbytes", s->maximum, "Largest size (default 16M)")->check(bytes);
  CLI::Option* const iterations =
      command
          .add_option("-n,--iters", s->effort.iterations, "Calls of each case; default: by time")
          ->check(CLI::Range(1, 100'000'000));
  CLI::Option* const warmup =
      command.add_option("-w,--warmup-iters", s->effort.warmup, "Calls before (default 5)")
          ->check(CLI::Range(0, 1'000'000));
  CLI::Option* const seconds =
      command.add_option("--seconds", s->effort.seconds, "Time for each case (default 0.05)")
          ->check(CLI::Range(0.0, 3600.0))
          ->excludes(iterations);
  CLI::Option* const peer =
      command.add_option("--peer", s->peers, "Measure beside openmpi, mpich, gloo or torch")
          ->check(CLI::IsMember(peer_names()));
  CLI::Option* const folder =
      command.add_option("--peer-folder", s->peer_folder, "Where the peers' programs are")
          ->type_name("DIR");
  CLI::Option* const rounds =
      command
          .add_option("--rounds", s->rounds,
                      "Rounds, all ways in turn (1; with peers and --tune 5)")
          ->check(CLI::Range(1, 1000));
  CLI::Option* const json =
      command.add_option("--json", s->json, "Also write the figures to a file; - for the output")
          ->type_name("FILE");
  CLI::Option* const check =
      command.add_flag("-c,--check", s->check, "Compare every element with its right value");
  CLI::Option* const all = command.add_flag(
      "--all", s->all,
      "With --check: sweep dtypes, reductions, algorithms, memory, kinds and numbers of ranks");
  CLI::Option* const table =
      command.add_flag("--table", s->table, "Measure the promised speeds, beside the peers");

  CLI::Option* const ranks_as =
      command
          .add_option("--ranks-as", s->ranks_as,
                      "threads, processes (the default), transport: threads over a transport, "
                      "tcp: processes over the loopback, or env: this process is one of them")
          ->check(CLI::IsMember({"threads", "processes", "transport", "tcp", "env"}))
          ->excludes(table);
  command
      .add_option("--backend", s->backend,
                  "As the field of trireme_communicator_options, for ranks as tcp and env")
      ->needs(ranks_as);

  // Neither --table nor --all reads these.
  CLI::Option* const step =
      command.add_option("-i,--stepbytes", s->step, "Bytes from one size to the next")
          ->check(bytes);
  CLI::Option* const only_ordinary[] = {
      command.add_option("-b,--minbytes", s->minimum, "Smallest size (default 8)")->check(bytes),
      step,
      command
          .add_option("-f,--stepfactor", s->factor,
                      "Factor from one size to the next (default 2; with --tune 4)")
          ->check(CLI::Range(2, 1 << 20))
          ->excludes(step),
      command.add_option("-d,--datatype", s->dtype, "Type of the elements, or all (default f32)")
          ->check(CLI::Validator(refuse_dtype, "DTYPE")),
      command.add_option("-o,--op", s->reduction, "Reduction, or all (default sum)")
          ->check(CLI::Validator(refuse_reduction, "REDUCTION")),
      command.add_option("-r,--root", s->root, "Root, where there is one (default 0)"),
      command.add_option("-g,--ranks", s->ranks, "Number of ranks (default 2)")
          ->check(CLI::Range(1, kMostRanks)),
      command.add_option("--algorithm", s->algorithm, "How it is made of messages (automatic)")
          ->check(CLI::IsMember(algorithm_names())),
      command.add_option("--memory", s->memory, "registered (the default) or private")
          ->check(CLI::IsMember({"registered", "private"})),
      command.add_option("--place", s->place, "in, out or both (the default)")
          ->check(CLI::IsMember({"in", "out", "both"})),
  };
  for (CLI::Option* const option : only_ordinary) {
    table->excludes(option);
    all->excludes(option);
  }
  table->excludes(check);
  CLI::Option* const tune =
      command
          .add_option("--tune", s->tune,
                      "Measure all algorithms, and write the rules of the best ones to a file. "
                      "Groups take them by TRIREME_TUNING")
          ->type_name("FILE");
  for (const char* const option : {"--table", "--all", "--check", "--peer", "--json", "--stepbytes",
                                   "--datatype", "--op", "--root", "--algorithm", "--place"}) {
    tune->excludes(command.get_option(option));
  }
  for (CLI::Option* const option :
       {maximum, iterations, warmup, seconds, peer, folder, rounds, json, table}) {
    all->excludes(option);
  }
}

void check_settings(const Settings& s) {
  const auto refuse = [](const char* option, const std::string& why) {
    throw CLI::ValidationError(option, why);
  };
  if (!s.table && parse_bytes(s.minimum) > largest_bytes(s)) {
    refuse("--minbytes", "is above --maxbytes");
  }
  if (!s.step.empty() && parse_bytes(s.step) == 0) refuse("--stepbytes", "is 0");
  const bool given = s.ranks_as == "env";
  const int ranks = given ? kMostRanks : number_of_ranks(s);
  if (s.root < 0 || s.root >= ranks) {
    refuse("--root", "is " + std::to_string(s.root) + ", but the ranks are 0 to " +
                         std::to_string(ranks - 1));
  }
  if (std::isnan(s.effort.seconds)) refuse("--seconds", "is not a number");
  if (s.algorithm != "automatic" && !s.operations.empty() &&
      std::count(s.operations.begin(), s.operations.end(), "send_receive") > 0) {
    refuse("--algorithm", "does not go with send_receive");
  }
  if (!s.tune.empty()) {
    if (largest_bytes(s) > kMostTunedBytes) refuse("--maxbytes", "is above 262144G");
    for (const Op op : operations_of(s)) {
      if (!is_tuned(op)) refuse("--tune", std::string("has no rules for ") + op_name(op));
    }
  }
  if (s.all && !s.check) refuse("--all", "goes with --check");
  if (!s.backend.empty() && !given && s.ranks_as != "tcp") {
    refuse("--backend", "goes with --ranks-as tcp and env");
  }
  if (given && !s.peers.empty())
    refuse("--peer", "does not go with ranks that others have started");
  if (given && s.ranks != 0) refuse("--ranks", "are as many as others have started");
  if (s.table && !s.operations.empty()) refuse("--table", "has its own operations");
  if (!s.peers.empty() && !s.table && (s.dtype != "f32" || s.reduction != "sum" || s.root != 0)) {
    refuse("--peer", "goes with f32, sum and root 0 only");
  }
  for (const Op op : operations_of(s)) {
    if (op_is_uneven(op) && !s.peers.empty()) {
      refuse("--peer", std::string("does not go with ") + op_name(op));
    }
    const std::string place = s.all ? "both" : s.place;
    const bool one_form = !op_takes_in_place(op) || !op_takes_out_of_place(op);
    if (one_form && place != "both" && op != Op::barrier &&
        (place == "in" ? !op_takes_in_place(op) : !op_takes_out_of_place(op))) {
      refuse("--place", std::string(op_name(op)) + " has no such form");
    }
  }
  bool any = s.table;
  for (const Op op : operations_of(s)) {
    for (const trireme_dtype dtype : dtypes_of(s)) {
      for (const trireme_reduction reduction : reductions_of(s)) {
        any = any || supported(op, dtype, reduction);
      }
    }
  }
  if (!any) refuse("--op", s.reduction + " of " + s.dtype + " has no meaning");
  for (const std::string& peer : s.peers) {
    if (!peer_installed(folder_of(s), peer)) {
      refuse("--peer", peer + " has no program in " + folder_of(s));
    }
  }
}

}  // namespace trireme::bench
