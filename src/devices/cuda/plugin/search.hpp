// Where the libraries of others may lie, in the order of the tries.
#pragma once

#include <string>
#include <vector>

namespace trireme::cuda {

// getenv(), or another one for tests.
using Environment = const char* (*)(const char* name);

// A file that a variable names is the only place: another one would hide that it does not load.
std::vector<std::string> driver_places(Environment environment);
// `folder`: of the plugin.
std::vector<std::string> nccl_places(Environment environment, const std::string& folder);

}  // namespace trireme::cuda
