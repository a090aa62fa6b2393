// The command line of trireme run, with the spellings of torchrun: underscores, --name=value, a program
// without -- before it.
#pragma once

#include <string>
#include <vector>

namespace trireme::cli {

struct RunArguments {
  std::vector<std::string> options;  // as the parser knows them, in order
  // With its arguments, behind the interpreter where it is a script or a module of Python; empty if
  // there is none.
  std::vector<std::string> program;
};

// Of what follows "run". Throws CLI::ValidationError for an option that nobody knows, which names the
// nearest one that somebody does.
RunArguments split_run_arguments(const std::vector<std::string>& words);

}  // namespace trireme::cli
