#include "parallel/experts/expert_names.hpp"

#include <mutex>
#include <set>
#include <string_view>
#include <utility>

namespace trireme::parallel {
namespace {

struct ExpertNames {
  std::mutex mutex;
  std::set<std::pair<const Communicator*, std::string_view>> taken;
};

// Never destroyed: a layer may outlive the statics of a program that ends.
ExpertNames& expert_names() {
  static auto* const names = new ExpertNames;
  return *names;
}

}  // namespace

Status take_expert_name(const Communicator& communicator, const std::string& name) {
  ExpertNames& names = expert_names();
  const std::lock_guard lock(names.mutex);
  if (names.taken.emplace(&communicator, name).second) return Status::success();
  return invalid_argument("options.name is \"" + name +
                          "\", which another layer of experts of the communicator has");
}

void drop_expert_name(const Communicator& communicator, const std::string& name) noexcept {
  ExpertNames& names = expert_names();
  const std::lock_guard lock(names.mutex);
  names.taken.erase({&communicator, std::string_view(name)});
}

}  // namespace trireme::parallel
