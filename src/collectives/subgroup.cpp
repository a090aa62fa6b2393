#include "collectives/subgroup.hpp"

#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "backends/mpi/backend.hpp"
#include "collectives/rendezvous.hpp"
#include "net/sha256.hpp"
#include "platform/failpoint.hpp"
#include "platform/system.hpp"
#include "platform/utf8.hpp"
#include "sharding/subgroup.hpp"

namespace trireme {
namespace {

// One rank's part of the first collective. The random numbers of all ranks make a secret meeting
// place, which no later parent of the same name has.
struct Wish {
  std::uint64_t random[2];
  Words words;
};
static_assert(sizeof(Wish) == 24);

// One rank's part of the second: whether it joined.
struct Report {
  std::int32_t code;
  std::int32_t system_error;
  char text[184];
};

Report report_of(const Status& status) {
  Report report{};
  report.code = status.code();
  if (status.details() != nullptr) report.system_error = status.details()->system_error;
  const std::string& text = status.message();
  std::memcpy(report.text, text.data(), whole_characters(text, sizeof report.text - 1));
  return report;
}

// Gathers one struct of each rank. If one rank's agreement differs, all ranks get MISMATCH.
template <class Part>
Status gather(Communicator& parent, std::uint32_t channel, const std::string& text,
              const char* name, const Part& own, Deadline deadline, std::vector<Part>* out) {
  out->resize(static_cast<std::size_t>(parent.world_size()));
  const auto digest = sha256(text);
  Operation operation;
  operation.channel = channel;
  operation.kind = OperationKind::all_gather;
  operation.dtype = TRIREME_DTYPE_BYTES;
  operation.send = &own;
  operation.receive = out->data();
  operation.count = sizeof(Part);
  std::memcpy(&operation.agreement, digest.data(), sizeof operation.agreement);
  operation.agreement_name = name;
  TRIREME_RETURN_IF_ERROR(parent.run(std::move(operation), deadline));
  // The plan finds this rank's place in the new group by its own part.
  const auto me = static_cast<std::size_t>(parent.rank());
  if (std::memcmp(&(*out)[me], &own, sizeof own) == 0) return Status::success();
  // The others have their result, and will wait for this rank.
  parent.fail(TRIREME_ERROR_CORRUPT, "the words of this rank came back changed");
  FailureDetails details;
  details.communicator = parent.name();
  return Status::failure(
             TRIREME_ERROR_CORRUPT,
             "the words of rank " + std::to_string(parent.rank()) + ", this one, came back changed")
      .with_details(std::move(details));
}

// The same on all ranks: it depends only on the reports.
Status verdict(Communicator& parent, const std::vector<Report>& reports) {
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const Report& report = reports[rank];
    if (report.code == TRIREME_OK) continue;
    FailureDetails details;
    details.blamed = {static_cast<std::int32_t>(rank)};
    details.system_error = report.system_error;
    const bool known = report.code < 0 && report.code >= kLowestStatus;
    const trireme_status code = known ? report.code : TRIREME_ERROR_CORRUPT;
    const std::string who = "rank " + std::to_string(rank);
    if (!known) parent.fail(code, who + " told a status that is none");  // others may have another
    return Status::failure(code,
                           who + " could not join its new group: " +
                               clean_text({report.text, strnlen(report.text, sizeof report.text)}))
        .with_details(std::move(details));
  }
  return Status::success();
}

}  // namespace

std::string child_name(const ChildOptions& options, const std::string& parent, std::uint64_t number,
                       const std::string& label) {
  if (!options.name.empty()) return options.name;
  std::string name = parent;
  name.append("/").append(std::to_string(number));
  if (!label.empty()) name.append(".").append(label);
  return name;
}

Status join_child(Communicator& parent, const std::vector<std::int32_t>& ranks,
                  const std::string& place, const std::string& address, const std::string& name,
                  std::shared_ptr<Communicator>* out) {
  GroupOptions options = parent.options();
  options.rendezvous = rendezvous_of_child(options.rendezvous, place, address);
  options.rank = sharding::position_of(ranks, parent.rank());
  options.world_size = static_cast<int>(ranks.size());
  options.name = name;
  Lineage lineage;
  lineage.root = parent.lineage().root;
  for (const std::int32_t rank : ranks) {
    lineage.ranks.push_back(parent.lineage().ranks[static_cast<std::size_t>(rank)]);
  }
  return Communicator::join(options, parent.timeout_ns(), std::move(lineage), out);
}

namespace {

Status make_with_peers(Communicator& parent, const Agreement& agreement, const Words& words,
                       const std::function<std::vector<ChildPlan>(const std::vector<Words>&)>& plan,
                       const ChildOptions& options,
                       std::vector<std::shared_ptr<Communicator>>* out) {
  const Deadline deadline =
      Deadline::after(options.timeout_ns == 0 ? parent.timeout_ns() : options.timeout_ns);
  if (parent.options().transport.has_value()) {
    return unsupported("a transport carries one group, and none that is made from it");
  }
  if (mpi::is_mpi(parent.options().rendezvous)) {
    return unsupported("mpi:// is one group of all ranks of mpirun, and none that is made from it");
  }
  Wish own{{}, words};
  if (!system_table().random_bytes(own.random, sizeof own.random)) {
    return Status::failure(TRIREME_ERROR_SYSTEM, "the system gives no random numbers");
  }
  std::vector<Wish> all;
  TRIREME_RETURN_IF_ERROR(
      gather(parent, options.channel, agreement.text, agreement.name, own, deadline, &all));
  // A model names its own children, which ranks may make in any order.
  const std::uint64_t number = options.channel == 0 ? parent.next_child() : 0;

  std::vector<std::shared_ptr<Communicator>> children;
  // The peers wait for this rank's report, so a failure must not skip it.
  const Status joined = [&]() -> Status {
    try {
      std::vector<Words> said;
      std::string secret(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(Wish));
      for (const Wish& each : all) said.push_back(each.words);
      TRIREME_RETURN_IF_ERROR(failpoint("child", "before_join"));
      for (const ChildPlan& child : plan(said)) {
        const std::string place = "sub-" + secret_place(secret + child.label);
        children.emplace_back();
        TRIREME_RETURN_IF_ERROR(join_child(parent, child.ranks, place, "",
                                           child_name(options, parent.name(), number, child.label),
                                           &children.back()));
        children.back()->follow(parent);
      }
      return failpoint("child", "after_join");
    } catch (const std::bad_alloc&) {
      return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "out of memory");
    } catch (const std::exception& error) {
      return Status::failure(TRIREME_ERROR_INTERNAL, error.what());
    }
  }();
  std::vector<Report> reports;
  TRIREME_RETURN_IF_ERROR(gather(parent, options.channel, agreement.text + "; joined",
                                 agreement.name, report_of(joined), deadline, &reports));
  TRIREME_RETURN_IF_ERROR(verdict(parent, reports));
  for (const std::shared_ptr<Communicator>& child : children) {
    const Status met = child->wait_ready(deadline, [&] { return parent.failure(); });
    if (met.ok()) continue;
    TRIREME_RETURN_IF_ERROR(parent.failure());
    // The child was made, even if a quicker rank has aborted or left it already.
    if (met.code() == TRIREME_ERROR_TIMEOUT) return met;
  }
  *out = std::move(children);
  return Status::success();
}

}  // namespace

Status make_children(Communicator& parent, const Agreement& agreement, const Words& words,
                     const std::function<std::vector<ChildPlan>(const std::vector<Words>&)>& plan,
                     const ChildOptions& options, std::vector<std::shared_ptr<Communicator>>* out) {
  try {
    return make_with_peers(parent, agreement, words, plan, options, out);
  } catch (...) {  // no memory in the middle of a step that all ranks take together
    parent.fail_to_hand_out();
    throw;
  }
}

namespace {

Status make_child(Communicator& parent, const Agreement& agreement, const Words& words,
                  const std::function<std::vector<ChildPlan>(const std::vector<Words>&)>& plan,
                  const ChildOptions& options, std::shared_ptr<Communicator>* out) {
  std::vector<std::shared_ptr<Communicator>> children;
  TRIREME_RETURN_IF_ERROR(make_children(parent, agreement, words, plan, options, &children));
  *out = children.empty() ? nullptr : std::move(children.front());
  return Status::success();
}

}  // namespace

Status split(Communicator& parent, std::int32_t color, std::int32_t key,
             const ChildOptions& options, std::shared_ptr<Communicator>* out) {
  const auto plan = [&](const std::vector<Words>& words) -> std::vector<ChildPlan> {
    if (color < 0) return {};
    std::vector<sharding::Choice> choices;
    for (const Words& each : words) choices.push_back({each[0], each[1]});
    return {{std::to_string(color), sharding::ranks_of_color(choices, color)}};
  };
  return make_child(parent, {"split", "groups"}, {color, key}, plan, options, out);
}

Status subgroup(Communicator& parent, const std::vector<std::int32_t>& ranks,
                const ChildOptions& options, std::shared_ptr<Communicator>* out) {
  TRIREME_RETURN_IF_ERROR(sharding::check_rank_list(ranks, parent.world_size()));
  std::string text = "subgroup";
  for (const std::int32_t rank : ranks) text.append(" ").append(std::to_string(rank));
  const auto plan = [&](const std::vector<Words>&) -> std::vector<ChildPlan> {
    if (sharding::position_of(ranks, parent.rank()) < 0) return {};
    return {{"", ranks}};
  };
  return make_child(parent, {std::move(text), "ranks of a subgroup"}, {}, plan, options, out);
}

Status duplicate(Communicator& parent, const ChildOptions& options,
                 std::shared_ptr<Communicator>* out) {
  const auto plan = [&](const std::vector<Words>& words) -> std::vector<ChildPlan> {
    ChildPlan all;
    for (std::size_t rank = 0; rank < words.size(); ++rank) {
      all.ranks.push_back(static_cast<std::int32_t>(rank));
    }
    return {std::move(all)};
  };
  return make_child(parent, {"duplicate", "groups"}, {}, plan, options, out);
}

}  // namespace trireme
