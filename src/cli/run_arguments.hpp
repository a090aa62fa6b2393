// The command line of trireme run, with the spellings of torchrun: underscores, --name=value, a
// program without -- before it.
#pragma once

#include <string>
#include <vector>

namespace trireme::cli {

struct RunArguments {
  std::vector<std::string> options;  // as the parser knows them, in order
  // With its arguments; its interpreter comes first where it is a script or a module of Python;
  // empty if no program is given.
  std::vector<std::string> program;
};

// Splits the words after "run". Throws CLI::ValidationError for an unknown option, and names the
// nearest known one.
RunArguments split_run_arguments(const std::vector<std::string>& words);

}  // namespace trireme::cli
