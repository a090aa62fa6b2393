// The axes of a mesh along which other models lie. Ranks compare there the parameters that several
// models hold whole. A model on a communicator has no such axes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/mesh.hpp"
#include "exchange/storage.hpp"
#include "model/replicas.hpp"
#include "platform/status.hpp"
#include "sharding/layout.hpp"
#include "sharding/placement.hpp"

namespace trireme::strategies {

class ModelAxes {
 public:
  ModelAxes() = default;
  ModelAxes(std::shared_ptr<const Mesh> mesh, const sharding::Placement& placement);
  ~ModelAxes();
  ModelAxes(ModelAxes&&) = default;
  ModelAxes& operator=(ModelAxes&&) = delete;

  // Null without one.
  const Mesh* mesh() const { return mesh_.get(); }
  // The ranks whose models step together; null without another model.
  std::shared_ptr<Communicator> norm_ranks() const;
  // In quotes, for messages.
  const std::string& names() const { return names_; }
  // Groups that may have failed, in which other models wait for this one.
  std::vector<Communicator*> groups() const;

  // Takes the number of a new model along each axis.
  void take_numbers() noexcept;
  // Collective along each axis in turn: if the models of other ranks have failed, or hold other
  // parameters whole there, this one fails, too. `own` is the outcome of this model.
  Status agree_on_whole(const sharding::Registry& registry, std::uint64_t timeout_ns, Status own);
  // Collective like that, where a parameter is whole. All ranks of this model call it, and its own
  // copies are equal. MISMATCH names the first parameter and the coordinates that differ.
  Status compare_whole(const Link& model, const sharding::Registry& registry,
                       const sharding::Layout& layout, const ReadParameters& read) const;

 private:
  struct Line {
    std::string axis;
    std::shared_ptr<Link> link;  // the ranks along it, with a channel of the model's own
    std::uint32_t number = 0;    // of the model among them
  };
  Status compare_along(const Line& line, const sharding::Registry& registry,
                       const std::vector<std::uint64_t>& sums) const;

  std::shared_ptr<const Mesh> mesh_;
  std::vector<Line> lines_;
  std::string names_;
};

}  // namespace trireme::strategies
