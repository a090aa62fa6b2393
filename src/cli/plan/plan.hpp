// trireme plan: compares schedules of a pipeline, and draws one.
#pragma once

#include <string>

namespace trireme::plan {

struct Settings {
  std::string file{};          // of costs
  std::string order = "best";  // that is drawn
  std::string format = "drawing";
  bool all = true;  // the table of all orders
};

// Writes to the standard output. Throws std::runtime_error for a file or an order that is wrong.
int run(const Settings& settings);

}  // namespace trireme::plan
