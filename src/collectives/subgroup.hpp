// Groups made from a group. A child has a backend and deadlines of its own, and its parent does not
// notice when it fails. When the parent fails, so does the child: a rank that has heard of the one may
// not come to the other any more, and nobody there would know why. It does not notice when the parent is left.
//
// Making one takes two collectives of the parent: one in which the ranks say what they want, and one
// in which they say whether they joined, so that all ranks get a child or all get the same failure. Then
// they wait for the ranks of the child to meet: who dies afterwards is lost to the child, too.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.hpp"
#include "platform/status.hpp"

namespace trireme {

struct ChildOptions {
  std::string name;              // of the child in messages; "" makes one of the parent's
  std::uint64_t timeout_ns = 0;  // of the call; 0: the parent's
  std::uint32_t channel = 0;     // of the parent, in which the call is made
};

// One child this rank belongs to.
struct ChildPlan {
  std::string label;                // tells the children of one call apart; the same on its ranks
  std::vector<std::int32_t> ranks;  // of the parent, in the order of the child
};

// What all ranks must say alike when they make children.
struct Agreement {
  std::string text;
  const char* name = "";  // for messages: "... with different NAME"
};

// What one rank says; seen by all.
using Words = std::array<std::int32_t, 2>;

// Makes this rank's children of one call, in the order of the plan, which sees the words of all ranks. Ranks may have
// different plans, also empty ones, but the ranks of one label have the same ranks in it.
Status make_children(Communicator& parent, const Agreement& agreement, const Words& words,
                     const std::function<std::vector<ChildPlan>(const std::vector<Words>&)>& plan,
                     const ChildOptions& options, std::vector<std::shared_ptr<Communicator>>* out);

// *out is null on ranks that are in no group.
Status split(Communicator& parent, std::int32_t color, std::int32_t key,
             const ChildOptions& options, std::shared_ptr<Communicator>* out);
Status subgroup(Communicator& parent, const std::vector<std::int32_t>& ranks,
                const ChildOptions& options, std::shared_ptr<Communicator>* out);
Status duplicate(Communicator& parent, const ChildOptions& options,
                 std::shared_ptr<Communicator>* out);

// "PARENT/3.LABEL", or the name of the options.
std::string child_name(const ChildOptions& options, const std::string& parent,
                       std::uint64_t number, const std::string& label);

// One rank's end of the group that meets at SCHEME of the parent + `place`; `address` as in
// rendezvous_of_child().
Status join_child(Communicator& parent, const std::vector<std::int32_t>& ranks,
                  const std::string& place, const std::string& address, const std::string& name,
                  std::shared_ptr<Communicator>* out);

// Waits until all ranks of a child have met; ends early with what `trouble` answers, if that is a failure.
Status wait_until_met(const Communicator& child, Deadline deadline,
                      const std::function<Status()>& trouble);

}  // namespace trireme
