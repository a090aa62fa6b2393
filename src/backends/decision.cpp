#include "backends/decision.hpp"

#include <utility>

namespace trireme {

Status decision_failure(trireme_status code, std::string text, const char* name,
                        std::vector<std::int32_t> blamed, const std::string& group) {
  FailureDetails details{name, group, 0, std::move(blamed), 0};
  return Status::failure(code, text + " during " + name + " of \"" + group + "\"")
      .with_details(std::move(details));
}

Status excluded_failure(int rank, const char* name, const std::string& group) {
  return decision_failure(
      TRIREME_ERROR_PEER_LOST,
      "rank " + std::to_string(rank) + ", this one, counts as lost: the others go on without it",
      name, {rank}, group);
}

Status mismatch_failure(const char* name, const std::string& group) {
  return decision_failure(TRIREME_ERROR_MISMATCH, "some ranks called agree and others shrink", name,
                          {}, group);
}

Status left_failure(const std::string& group) {
  return invalid_state("this rank has left \"" + group + "\"");
}

}  // namespace trireme
