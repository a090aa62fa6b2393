// The group of the ranks that examine their connections. All of them make the same calls.
#pragma once

#include <trireme/trireme.h>

#include <string>
#include <vector>

#include "cli/doctor/doctor.hpp"

namespace trireme::doctor {

struct Group {
  trireme_communicator* communicator = nullptr;
  int rank = 0;
  int ranks = 0;
  std::vector<std::vector<std::string>> interfaces;  // by rank: those that it names

  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() { trireme_communicator_destroy(communicator); }
};

// Adds a fact for each pair of ranks: all of them on rank 0, on another rank its own. False after a
// failure, which is a fact, too; the group is of no more use then.
bool add_pairs(const Group& group, Section* section);

// How long an all-reduce takes as the library chooses, and by the fastest algorithm.
Section choice_facts(const Group& group);

}  // namespace trireme::doctor
