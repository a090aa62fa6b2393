// Groups made from a group. A child has its own backend and deadlines, and its parent does not
// notice when it fails. When the parent fails, so does the child: a rank that knows the parent's
// failure may not come to the child any more, and the child's ranks would not know why. The child
// does not notice when the parent is left.
//
// Making one takes two collectives of the parent: in the first the ranks give their wishes, in the
// second they report whether they joined. So all ranks get a child, or all get the same failure.
// Then they wait for the ranks of the child to meet: a rank that dies afterwards is lost to the
// child, too.
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
  std::string name;              // of the child in messages; "" makes one from the parent's
  std::uint64_t timeout_ns = 0;  // of the call; 0: the parent's
  std::uint32_t channel = 0;     // the parent's channel for the call
};

// One child this rank belongs to.
struct ChildPlan {
  std::string label;                // names a child within a call; equal on its ranks
  std::vector<std::int32_t> ranks;  // of the parent, in the order of the child
};

// The terms that must be equal on all ranks that make children.
struct Agreement {
  std::string text;
  const char* name = "";  // for messages: "... with different NAME"
};

// One rank's words, which all ranks see.
using Words = std::array<std::int32_t, 2>;

// Makes this rank's children of one call. `plan` sees the words of all ranks, and sets the order.
// Ranks may have different plans, also empty ones. The plans of one label's ranks must list the
// same ranks for it.
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
std::string child_name(const ChildOptions& options, const std::string& parent, std::uint64_t number,
                       const std::string& label);

// Joins the group that meets at SCHEME of the parent + `place`, as one rank; `address` is as in
// rendezvous_of_child().
Status join_child(Communicator& parent, const std::vector<std::int32_t>& ranks,
                  const std::string& place, const std::string& address, const std::string& name,
                  std::shared_ptr<Communicator>* out);

}  // namespace trireme
