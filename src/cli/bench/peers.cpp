#include "cli/bench/peers.hpp"

#include <limits.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace trireme::bench {

namespace {

std::string program_of(const std::string& folder, const std::string& name) {
  return folder + "/" + (name == "torch" ? "torch_gloo.py" : "bench_peer_" + name);
}

// The beginning of the command: each peer has its own launcher.
std::string launcher(const std::string& name, const std::string& program, int ranks) {
  const std::string n = std::to_string(ranks);
  const std::string quoted = "'" + program + "'";
  if (name == "openmpi") {
    return "mpirun.openmpi --allow-run-as-root --oversubscribe -np " + n + " " + quoted;
  }
  if (name == "mpich") return "mpirun.mpich -np " + n + " " + quoted;
  if (name == "torch") return "/usr/bin/python3 " + quoted + " " + n;
  return quoted + " " + n;
}

std::string ending(int status) {
  if (WIFEXITED(status)) return "status " + std::to_string(WEXITSTATUS(status));
  return "signal " + std::to_string(WTERMSIG(status));
}

}  // namespace

const std::vector<std::string>& peer_names() {
  static const std::vector<std::string> names{"openmpi", "mpich", "gloo", "torch"};
  return names;
}

std::string peer_folder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length < 0) return "tests/bench/peers";
  const std::string self(path, static_cast<std::size_t>(length));
  return self.substr(0, self.rfind('/')) + "/tests/bench/peers";
}

bool peer_installed(const std::string& folder, const std::string& name) {
  return access(program_of(folder, name).c_str(), name == "torch" ? R_OK : X_OK) == 0;
}

std::vector<double> run_peer(const std::string& folder, const std::string& name, int ranks,
                             const std::vector<PeerCase>& cases, const Effort& effort) {
  std::string command = "timeout -k 5 600 " + launcher(name, program_of(folder, name), ranks) +
                        " " + std::to_string(effort.warmup) + " " +
                        std::to_string(effort.iterations) + " " + std::to_string(effort.seconds);
  for (const PeerCase& what : cases) {
    command += std::string(" ") + op_name(what.op) + ":" + std::to_string(what.bytes);
  }
  std::fflush(nullptr);
  FILE* const output = popen((command + " 2>&1 </dev/null").c_str(), "r");
  if (output == nullptr) throw Failure("cannot start " + name);
  std::vector<double> times(cases.size(), -1);
  std::string last;
  char line[1024];
  while (std::fgets(line, sizeof line, output) != nullptr) {
    char op[64];
    unsigned long long bytes = 0;
    double microseconds = 0;
    if (std::sscanf(line, "%63s %llu %lf", op, &bytes, &microseconds) != 3) {
      if (line[0] != '\n') last = line;
      continue;
    }
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (cases[i].bytes == bytes && std::strcmp(op, op_name(cases[i].op)) == 0) {
        times[i] = microseconds;
      }
    }
  }
  const int status = pclose(output);
  if (status != 0) {
    throw Failure("the peer " + name + " ended with " + ending(status) +
                  (last.empty() ? "" : ": " + last.substr(0, last.find('\n'))));
  }
  return times;
}

}  // namespace trireme::bench
