// A group of ranks that runs cases: threads of this process, processes made for it, or a group that
// exists already and has this process as a rank.
#pragma once

#include <functional>
#include <vector>

#include "cli/bench/bench.hpp"

namespace trireme::bench {

struct Plan {
  std::vector<Case> cases;
  Effort effort;
  bool timed = true;
  bool checked = false;
  bool skips_absent = false;  // checked alone: an algorithm that is not there is no failure
};

// This process as one rank of the group that env:// describes.
class Joined {
 public:
  // Waits until all ranks are there. Throws Failure.
  explicit Joined(const std::string& backend);
  ~Joined();
  Joined(const Joined&) = delete;
  Joined& operator=(const Joined&) = delete;

  trireme_communicator* communicator() const { return communicator_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& backend() const { return backend_; }  // as the communicator names it

 private:
  trireme_communicator* communicator_ = nullptr;
  std::int32_t rank_ = 0;
  std::int32_t size_ = 0;
  std::string backend_;
};

// Runs all cases in order; `done` receives each result as its case ends. Throws Failure if any
// operation fails. For a given group, all ranks call this, and only rank 0 gets the results.
// *backend becomes its name, as the communicator gives it.
std::vector<Result> run_group(const Group& group, const Plan& plan,
                              const std::function<void(std::size_t, const Result&)>& done = {},
                              std::string* backend = nullptr);

}  // namespace trireme::bench
