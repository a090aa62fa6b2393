// Peers: programs that run the same operations with another library, built where that library is
// installed.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/bench.hpp"

namespace trireme::bench {

struct PeerCase {
  Op op;
  std::uint64_t bytes;
};

const std::vector<std::string>& peer_names();
// Peers lie beside this program, where the build puts them.
std::string peer_folder();
bool peer_installed(const std::string& folder, const std::string& name);

// Microseconds a call, the median over samples of the slowest rank; negative where the peer has no
// such operation. Throws Failure if the peer fails.
std::vector<double> run_peer(const std::string& folder, const std::string& name, int ranks,
                             const std::vector<PeerCase>& cases, const Effort& effort);

}  // namespace trireme::bench
