// trireme doctor: reports what this machine can do for a job, and every obstacle.
#pragma once

#include <string>
#include <vector>

namespace trireme::doctor {

struct Fact {
  std::string name;
  std::string value;
  std::string advice;  // "" if all is well
  // Worth knowing, but no obstacle: it may be noise. So it leaves the exit code 0. "" for none.
  std::string remark = {};
};

struct Section {
  std::string name;
  std::vector<Fact> facts;
};

// Facts of the library: its path, its backends, and what each can do.
Section library_facts();
std::vector<Section> backend_facts();
// Plugin, driver, devices and NCCL, with every file tried.
Section device_facts();
// The grants of the system: cores, memory, limits, ways between processes.
Section machine_facts();
Section limit_facts();
Section sharing_facts();
Section network_facts();
// The variables that a launcher has given this process. They never include the token itself.
Section job_facts();
// Whether state can be offloaded to files of a folder.
Section folder_facts(const std::string& folder);

// The rank and group as which this process meets others.
struct Connection {
  std::string rendezvous;  // "" for none
  std::string backend;
  int rank = 0;
  int world_size = 0;
  double wait_seconds = 30;
};
// How the ranks reach each other, and if all do, how fast they are together.
std::vector<Section> connection_facts(const Connection& connection);

struct Settings {
  bool json = false;
  std::string folder;  // "" for none
  Connection connection;
};

// The command. Runs the command; returns its exit code: 0, or 1 if there is advice.
int run(const Settings& settings);

}  // namespace trireme::doctor
