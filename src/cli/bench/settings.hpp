// The command line of trireme bench.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/bench.hpp"

namespace CLI {
class App;
}

namespace trireme::bench {

struct Settings {
  std::vector<std::string> operations;  // none: all_reduce
  std::string minimum = "8";
  std::string maximum;       // empty: 16M; in the table no limit
  std::string step;          // bytes; empty: by factor
  std::uint32_t factor = 0;  // 0: 2, or 4 to tune
  Effort effort;
  std::string dtype = "f32";
  std::string reduction = "sum";
  std::int32_t root = 0;
  int ranks = 0;  // 0: 2, or as many as there are
  std::string algorithm = "automatic";
  std::string ranks_as;  // empty: processes; with --all threads, processes, transport
  std::string backend;   // empty: the rendezvous' own
  std::string memory = "registered";
  std::string place = "both";
  bool check = false;
  bool all = false;
  bool table = false;
  std::vector<std::string> peers;
  std::string peer_folder;
  int rounds = 0;    // 0: 1, or 5 beside peers and to tune
  std::string json;  // file, "-" for the output
  std::string tune;  // file of the table to write; empty: none
};

void add_options(CLI::App& command, Settings* settings);
// Throws CLI::ValidationError for options that contradict each other.
void check_settings(const Settings& settings);
// Returns the exit code: 0, or 1 if an element was wrong. Throws Failure.
int run(const Settings& settings);

// The parts of run().
int run_sweep(const Settings& settings, const Joined* given);  // --all --check
int run_table(const Settings& settings);                       // --table
int run_tune(const Settings& settings, const Joined* given);   // --tune

// The values of texts that check_settings() has accepted.
std::uint64_t parse_bytes(const std::string& text);
std::uint64_t largest_bytes(const Settings& settings);
std::uint32_t factor_of(const Settings& settings);
bool is_tuned(Op op);  // --tune measures it
std::vector<Op> operations_of(const Settings& settings);
std::vector<trireme_dtype> dtypes_of(const Settings& settings);
int number_of_ranks(const Settings& settings);  // of a group that is made here
Ranks ranks_of(const Settings& settings);
trireme_algorithm algorithm_of(const Settings& settings);
std::vector<trireme_reduction> reductions_of(const Settings& settings);
bool supported(Op op, trireme_dtype dtype, trireme_reduction reduction);
std::string folder_of(const Settings& settings);

}  // namespace trireme::bench
