// The parameters and units of a model during registration, checked one by one.
#pragma once

#include <trireme/model.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "platform/status.hpp"
#include "sharding/range.hpp"

namespace trireme::sharding {

// How a parameter lies on one axis of a mesh.
struct AxisPlacement {
  std::string axis;
  trireme_placement kind = 0;
  std::uint32_t ranks = 1;  // along the axis; TIED: those that hold the parameter, once sealed
  // SPLIT: the dimension that is cut, and its extent in the whole parameter. The stretches are the
  // indices that this rank holds, in the order in which they lie here.
  std::uint32_t dimension = 0;
  std::uint64_t extent = 0;
  std::vector<Range> stretches;

  // Whether every rank along the axis holds the same parameter.
  bool is_copied() const {
    return kind == TRIREME_PLACEMENT_WHOLE || kind == TRIREME_PLACEMENT_SHARED;
  }
  bool is_split() const { return kind == TRIREME_PLACEMENT_SPLIT; }
  // Whether the stages of some ranks along the axis share the parameter.
  bool is_tied() const { return kind == TRIREME_PLACEMENT_TIED; }
  bool operator==(const AxisPlacement&) const = default;
};

struct Parameter {
  std::string name;
  trireme_dtype dtype = 0;
  std::vector<std::uint64_t> shape;
  std::uint64_t elements = 0;
  bool frozen = false;
  std::uint32_t replicas = 1;             // models that hold it, see NormRanks
  std::vector<AxisPlacement> placements;  // in the order of the mesh's axes
  std::uint32_t parameter_group = 0;      // of the options of an optimizer
  // A hash of the name, by which elements are rounded by chance. So each stage of a pipeline draws
  // as one process does.
  std::uint64_t draw_key = 0;
  std::uint64_t unit = 0;
  std::uint64_t first = 0;             // within the unit
  std::uint64_t target = 0;            // the parameter whose memory it uses: its own number unless
                                       // it is tied
  std::vector<std::uint64_t> aliases;  // of a target, in the order added
};

// "split on "tensor" by dimension 1 of 12: 0+4, 8+4".
std::string split_text(const AxisPlacement& placement);

// Null: the parameter has none on that axis.
const AxisPlacement* placement_on(const Parameter& parameter, const std::string& axis);
// Null: no stage of another rank may share it.
const AxisPlacement* tied_placement(const Parameter& parameter);

// Whether an optimizer updates the parameter of that number.
inline bool is_trained(const Parameter& parameter, std::uint64_t number) {
  return parameter.target == number && !parameter.frozen && parameter.elements > 0;
}

// A flat vector of parameters, without aliases.
struct Unit {
  std::string name;
  trireme_dtype dtype = 0;
  std::uint64_t elements = 0;
  std::uint64_t flat_first = 0;
  std::vector<std::uint64_t> parameters;
};

// One value that all ranks must agree on, for messages: "SUBJECT is VALUE on rank 0 and ...".
struct Fact {
  std::string subject;
  std::string value;
};

class Registry {
 public:
  // The boundary has read `options`, and a Placement has checked `placements`. A failure changes
  // nothing.
  Status add(const trireme_parameter_options& options, std::uint64_t* out_parameter,
             std::vector<AxisPlacement> placements = {});

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Unit>& units() const { return units_; }
  std::uint64_t elements() const { return elements_; }
  // The type of every unit, or 0 if they differ.
  trireme_dtype common_dtype() const;

  std::vector<Fact> facts() const;  // one a parameter, plain printable text

  // So many ranks hold a tied target. It counts for its aliases, too.
  void set_holders(std::uint64_t target, std::uint32_t ranks);

 private:
  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
  std::map<std::string, std::uint64_t> by_name_;
  std::map<std::string, std::uint64_t> unit_by_name_;
  std::uint64_t elements_ = 0;
};

// The words for a parameter that hold in every model: nothing of its unit, and not whether it is
// tied.
std::string parameter_text(const Parameter& parameter);
std::string shape_text(const std::vector<std::uint64_t>& shape);

// The name in quotes, with every letter escaped that could break a one-line message.
std::string quoted(const std::string& name);

}  // namespace trireme::sharding
