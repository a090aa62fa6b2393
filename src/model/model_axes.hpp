// The axes of a mesh along which other models lie. Ranks compare there the parameters that several
// models hold whole, and all ranks of the mesh meet to tell outcomes. A model on a communicator has
// no such axes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/mesh.hpp"
#include "collectives/subgroup.hpp"
#include "exchange/storage.hpp"
#include "model/gradients/axis_sums.hpp"
#include "model/replicas.hpp"
#include "model/tied_parameters.hpp"
#include "platform/status.hpp"
#include "sharding/layout.hpp"
#include "sharding/placement.hpp"

namespace trireme::strategies {

// One element's part of a sum that does not depend on who holds it: models of one axis may cut a
// parameter at other places. The constants are those of splitmix64.
std::uint64_t mixed_element(std::uint64_t element, std::uint64_t bits);

class ModelAxes {
 public:
  // A comparison of models along an axis.
  struct Compared {
    const char* call = "";   // of the user
    const char* what = "";   // of a parameter, for messages
    bool own_group = false;  // in the models' own group, which fails with one of them
    bool tied = false;       // also the parameters that stages share
    // Whether the parameter of that number is compared on the axis.
    bool (*is_on)(const sharding::Parameter& parameter, std::uint64_t number,
                  const std::string& axis) = nullptr;
    bool* differs = nullptr;  // set on all ranks of a model whose copies differ from others
    // Adds this rank's part of each parameter's sum.
    std::function<Status(std::uint64_t* sums)> sums;
  };

  // The sums of a model along its axes, and the counter of their memory; null if its own ranks have
  // failed to seal it.
  struct Sums {
    AxisSums* sums = nullptr;
    std::shared_ptr<AllocatedBytes> counter;
  };

  ModelAxes() = default;
  ModelAxes(std::shared_ptr<const Mesh> mesh, const sharding::Placement& placement);
  ~ModelAxes();
  ModelAxes(ModelAxes&&) = default;
  ModelAxes& operator=(ModelAxes&&) = delete;

  // Null without one.
  const Mesh* mesh() const { return mesh_.get(); }
  // Whether other ranks of the mesh have other models. Without any, all below does nothing.
  bool any() const { return !lines_.empty(); }
  // All ranks of the mesh, whose models step together; null without another model.
  const std::shared_ptr<Communicator>& all_ranks() const { return all_.link->communicator; }
  // How an optimizer of this model makes a group of all_ranks() for itself. Models that do so at
  // the same time do not meet one another.
  ChildOptions norm_child(std::uint64_t timeout_ns) const;
  // In quotes, for messages.
  const std::string& names() const { return names_; }
  // In the order of the mesh's axes, which is that of all calls along each axis in turn.
  std::vector<std::string> axis_names() const;
  // Groups that may have failed, in which other models wait for this one.
  std::vector<Communicator*> groups() const;
  // Groups of this model alone, in which it adds up and compares gradients along axes.
  const std::vector<std::shared_ptr<Communicator>>& own_groups() const { return own_groups_; }
  // This model's way along an axis, to ranks with placements there; or null.
  const Link* own_link(const std::string& axis) const;
  // Runs an operation there.
  Status run_along(const std::string& axis, Operation&& operation) const;
  // Whether none of them has failed.
  bool are_well() const;

  // The parameters that stages of several ranks share, once the model is sealed. All ranks along
  // the axis know the same ones.
  const std::vector<TiedParameter>& tied() const { return tied_; }
  // Collective over the mesh, if there are any of tied(): compares their copies along the axis.
  Status compare_tied(const Link& model, const sharding::Registry& registry,
                      const sharding::Layout& layout, const ReadParameters& read) const;

  // Whether this model and those of other ranks were sealed together. They may have failed since.
  bool sealed() const { return sealed_; }

  // Takes the number of a new model along each axis, and among all ranks.
  void take_numbers() noexcept;
  // Collective along each axis in turn, then over the mesh: if the models of other ranks have
  // failed, or hold other parameters whole along an axis, this one fails, too. `own` is the outcome
  // of this model on its ranks, which are those of `model`. Makes the groups in which gradients are
  // added up; `facts`: what models must have in common that do so.
  Status agree_on_seal(const Link& model, const sharding::Registry& registry,
                       const std::vector<sharding::Fact>& facts, const Sums& sums, Status own);
  // agree() along each axis on which trained parameters have placements, on the facts of the axis.
  Status agree_on_axes(
      const char* call,
      const std::function<std::vector<sharding::Fact>(const std::string& axis)>& facts_of,
      Status own) const;
  // agree() over all ranks of the mesh, once they have sealed this model. If a group of this model
  // has failed, not all of them may come, and the others hear of that failure.
  Status agree_on_mesh(const Link& model, const char* call,
                       const std::vector<sharding::Fact>& facts, const Status& own) const;
  // The same without waiting: this model does not come, because a group of it has failed.
  void tell_failure(const Link& model) const;
  // Fails the group of all ranks, but for an axis of the caller's.
  void fail_all_ranks(const Status& cause) const noexcept;
  // Ends the models' own groups: this model cannot come there.
  void fail_own_groups(const Status& cause) const noexcept;
  // Fails the groups in which other models may wait for this one.
  void fail(trireme_status code, std::string_view why) const noexcept;
  // Collective along each axis in turn, where a parameter is whole. All ranks of this model call
  // it. If `own` is a failure, the others are told. MISMATCH names the first parameter and the
  // coordinates that differ.
  Status compare_whole(const Link& model, const sharding::Registry& registry,
                       const sharding::Layout& layout, const ReadParameters& read,
                       const Status& own) const;
  // The same of anything that parameters have.
  Status compare(const Link& model, const sharding::Registry& registry, const Compared& compared,
                 const Status& own) const;

 private:
  // Some ranks, with a channel of the model's own.
  struct Ranks {
    std::shared_ptr<Link> link = std::make_shared<Link>();
    std::uint32_t number = 0;  // of the model among them; 0: none yet, or that of a line

    void take_number() noexcept { number = link->communicator->next_model(); }
    Status take_channel(std::uint64_t timeout_ns);
    void leave() const noexcept;
  };
  struct Line : Ranks {
    std::string axis;
    std::shared_ptr<Link> own;  // a group of the model's own, if it needs one
  };
  // Whether all ranks of the mesh lie along one axis.
  bool all_in_line() const { return lines_.size() == 1 && lines_[0].link == all_.link; }
  Status open_group(Line& line, const sharding::Registry& registry, const Sums& sums);
  // `own`: whether there are sums.
  Status compare_along(const Line& line, const sharding::Registry& registry,
                       const Compared& compared, const std::vector<std::uint64_t>& sums,
                       const Status& own) const;

  std::shared_ptr<const Mesh> mesh_;
  std::vector<Line> lines_;
  Ranks all_;
  std::vector<std::shared_ptr<Communicator>> own_groups_;
  std::string names_;
  std::vector<TiedParameter> tied_;
  bool sealed_ = false;
};

}  // namespace trireme::strategies
