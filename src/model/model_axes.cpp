#include "model/model_axes.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "exchange/agreement.hpp"
#include "model/placed_parameters.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {
namespace {

using sharding::Group;
using sharding::Parameter;
using sharding::Range;

bool is_copied_on(const Parameter& parameter, const std::string& axis) {
  const sharding::AxisPlacement* const placement = placement_on(parameter, axis);
  return placement != nullptr && placement->is_copied();
}

// Aliases count as the parameter that they name.
bool is_compared(const Parameter& parameter, std::uint64_t number) {
  return parameter.target == number &&
         std::any_of(parameter.placements.begin(), parameter.placements.end(),
                     [](const sharding::AxisPlacement& each) {
                       return each.is_copied() || each.is_tied();
                     });
}

Status prefixed(const std::string& prefix, const Status& failure) {
  Status told = Status::failure(failure.code(), prefix + failure.message());
  return failure.details() != nullptr ? std::move(told).with_details(*failure.details())
                                      : std::move(told);
}

// Whether models make one gradient of a parameter there: SHARED, or WHOLE and trained.
bool has_one_gradient_on(const sharding::Registry& registry, const std::string& axis) {
  return std::any_of(
      registry.parameters().begin(), registry.parameters().end(), [&](const Parameter& parameter) {
        const sharding::AxisPlacement* const placement = placement_on(parameter, axis);
        return placement != nullptr && placement->is_copied() &&
               (placement->kind == TRIREME_PLACEMENT_SHARED || !parameter.frozen);
      });
}

// Sums over the elements that this rank updates: every element lies with one rank of the model.
Status own_sums(const sharding::Registry& registry, const sharding::Layout& layout,
                const ReadParameters& read, std::uint64_t* out) {
  for (std::size_t i = 0; i < registry.parameters().size(); ++i) {
    const Parameter& parameter = registry.parameters()[i];
    out[i] = 0;
    if (!is_compared(parameter, i)) continue;
    const Group& group = layout.group_of_parameter(parameter);
    const std::uint64_t first = layout.first_in_group(parameter);
    const std::uint64_t size = dtype_size(group.dtype);
    const Range part = intersect(group.owned, {first, parameter.elements});
    TRIREME_RETURN_IF_ERROR(
        read(layout.group_of[parameter.unit], part, [&](const char* data, Range stretch) {
          for (std::uint64_t k = 0; k < stretch.count; ++k) {
            std::uint64_t bits = 0;
            std::memcpy(&bits, data + k * size, size);
            out[i] += mixed_element(stretch.first - first + k, bits);
          }
        }));
  }
  return Status::success();
}

// Those of the whole model, by parameter.
Status all_sums(const Link& model, const ModelAxes::Compared& compared, std::uint64_t count,
                std::vector<std::uint64_t>* out) {
  std::shared_ptr<Memory> memory;
  TRIREME_RETURN_IF_ERROR(
      agree(model, compared.call, {},
            model.communicator->allocate(count * sizeof(std::uint64_t), &memory)));
  auto* const words = static_cast<std::uint64_t*>(memory->data());
  std::fill_n(words, count, 0);
  TRIREME_RETURN_IF_ERROR(compared.sums(words));
  Operation operation = in_place(model, model.gathers, OperationKind::all_reduce, TRIREME_DTYPE_U64,
                                 words, count, memory);
  TRIREME_RETURN_IF_ERROR(model.run(std::move(operation)));
  out->assign(words, words + count);
  return Status::success();
}

}  // namespace

std::uint64_t mixed_element(std::uint64_t element, std::uint64_t bits) {
  std::uint64_t word = (element + 1) * 0x9e3779b97f4a7c15 ^ bits;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
  word = (word ^ word >> 27) * 0x94d049bb133111eb;
  return word ^ word >> 31;
}

ModelAxes::ModelAxes(std::shared_ptr<const Mesh> mesh, const sharding::Placement& placement)
    : mesh_(std::move(mesh)), names_(placement.model_axis_names()) {
  for (const std::size_t axis : placement.model_axes()) {
    Line line;
    line.axis = mesh_->shape().axes()[axis].name;
    line.link->communicator = mesh_->axis_communicators()[axis];
    // One channel is enough for what a model says there: it says one thing after the other.
    if (line.link->communicator == mesh_->all_models()) all_.link = line.link;
    lines_.push_back(std::move(line));
  }
  if (!lines_.empty()) all_.link->communicator = mesh_->all_models();
}

ModelAxes::~ModelAxes() {
  for (const Line& line : lines_) line.leave();
  all_.leave();
}

void ModelAxes::Ranks::leave() const noexcept {
  if (number != 0) link->communicator->leave_channels(number, link->gathers);
}

Status ModelAxes::Ranks::take_channel(std::uint64_t timeout_ns) {
  link->timeout_ns = timeout_ns;
  if (link->gathers != 0) return Status::success();
  return link->communicator->take_channels(number, link->deadline(), &link->gathers);
}

ChildOptions ModelAxes::norm_child(std::uint64_t timeout_ns) const {
  const std::uint32_t number = all_in_line() ? lines_[0].number : all_.number;
  return {all_ranks()->name() + "/model " + std::to_string(number) + "/norm", timeout_ns,
          all_.link->gathers};
}

std::vector<std::string> ModelAxes::axis_names() const {
  std::vector<std::string> found;
  for (const Line& line : lines_) found.push_back(line.axis);
  return found;
}

std::vector<Communicator*> ModelAxes::groups() const {
  std::vector<Communicator*> found;
  for (const Line& line : lines_) found.push_back(line.link->communicator.get());
  return found;
}

bool ModelAxes::are_well() const {
  return std::all_of(lines_.begin(), lines_.end(),
                     [](const Line& line) { return line.link->communicator->failure().ok(); });
}

void ModelAxes::take_numbers() noexcept {
  for (Line& line : lines_) line.take_number();
  if (!lines_.empty() && !all_in_line()) all_.take_number();
}

Status ModelAxes::agree_on_seal(const Link& model, const sharding::Registry& registry,
                                const std::vector<sharding::Fact>& facts, const Sums& sums,
                                Status own) {
  for (Line& line : lines_) {
    Status status = line.take_channel(model.timeout_ns);
    // This model's own failure comes first, and the others hear that it has one.
    std::vector<sharding::Fact> all = placed_facts(registry, line.axis);
    if (has_one_gradient_on(registry, line.axis)) all.insert(all.end(), facts.begin(), facts.end());
    if (status.ok()) status = agree(*line.link, "seal", all, own);
    if (status.ok()) status = check_placed(*line.link, line.axis, registry);
    if (status.ok() && line.axis == kTiedAxis) {
      status = find_tied(*line.link, registry, facts, &tied_);
    }
    if (status.ok()) status = open_group(line, registry, sums);
    if (own.ok()) own = along_axis(line.axis, status);
  }
  // A rank hears on its axes of few others.
  Status status = all_in_line() ? Status::success() : all_.take_channel(model.timeout_ns);
  std::string tied;  // all ranks of the mesh come to compare_tied(), or none
  for (const TiedParameter& each : tied_) tied += sharding::quoted(each.name) + ' ';
  if (all_.link->gathers != 0) {
    status = agree_on_mesh(model, "seal", {{"the list of tied parameters", tied}}, own);
  }
  if (!own.ok()) return own;
  sealed_ = status.ok();
  return status;
}

const Link* ModelAxes::own_link(const std::string& axis) const {
  const auto line = std::find_if(lines_.begin(), lines_.end(),
                                 [&](const Line& each) { return each.axis == axis; });
  return line == lines_.end() ? nullptr : line->own.get();
}

Status ModelAxes::run_along(const std::string& axis, Operation&& operation) const {
  return along_axis(axis, own_link(axis)->run(std::move(operation)));
}

Status ModelAxes::agree_on_axes(
    const char* call,
    const std::function<std::vector<sharding::Fact>(const std::string& axis)>& facts_of,
    Status own) const {
  for (const Line& line : lines_) {
    if (line.own == nullptr) continue;
    const Status status = along_axis(line.axis, agree(*line.own, call, facts_of(line.axis), own));
    if (own.ok()) own = Status(status);
  }
  return own;
}

Status ModelAxes::agree_on_mesh(const Link& model, const char* call,
                                const std::vector<sharding::Fact>& facts, const Status& own) const {
  tell_failure(model);
  Status status = agree(*all_.link, call, facts, own);
  if (status.ok() || !own.ok()) return status;
  return prefixed("among all ranks of the mesh: ", status);
}

void ModelAxes::tell_failure(const Link& model) const {
  std::vector<Communicator*> may_have_failed = groups();
  may_have_failed.push_back(model.communicator.get());
  for (const Communicator* const group : may_have_failed) {
    const Status cause = group->shared_failure();
    if (!cause.ok()) return all_.link->communicator->fail_with(group->lineage(), cause);
  }
}

void ModelAxes::fail_all_ranks(const Status& cause) const noexcept {
  if (!all_in_line()) all_.link->communicator->fail(cause.code(), cause.message());
}

void ModelAxes::fail_own_groups(const Status& cause) const noexcept {
  for (const auto& group : own_groups_) group->fail(cause.code(), cause.message());
}

// Every model along the axis holds the same parameters there, so each makes a group, or none does.
Status ModelAxes::open_group(Line& line, const sharding::Registry& registry, const Sums& sums) {
  bool placed = false;
  for (std::size_t i = 0; i < registry.parameters().size(); ++i) {
    const Parameter& parameter = registry.parameters()[i];
    // A rank without an element of a split parameter comes, too: others hold some.
    const sharding::AxisPlacement* const placement = placement_on(parameter, line.axis);
    placed |= placement != nullptr && !placement->is_tied() && parameter.target == i &&
              !parameter.frozen && (placement->is_split() || parameter.elements > 0);
  }
  if (!placed) return Status::success();
  const Link& link = *line.link;
  const std::string name =
      link.communicator->name() + "/model " + std::to_string(line.number) + "/gradients";
  std::shared_ptr<Communicator> group;
  TRIREME_RETURN_IF_ERROR(
      duplicate(*link.communicator, {name, link.timeout_ns, link.gathers}, &group));
  line.own = std::make_shared<Link>();
  line.own->communicator = group;
  line.own->timeout_ns = link.timeout_ns;
  own_groups_.push_back(group);
  const std::vector<sharding::SharedAxis>& axes = sums.sums->axes();
  const auto axis = std::find_if(axes.begin(), axes.end(), [&](const sharding::SharedAxis& each) {
    return each.axis == line.axis;
  });
  if (axis == axes.end()) return Status::success();
  const auto number = static_cast<std::size_t>(axis - axes.begin());
  std::vector<bool> cuts = sums.sums->cuts_of(number);
  std::shared_ptr<Memory> memory;
  Status ready = sums.sums->allocate(number, group, sums.counter);
  if (ready.ok()) {
    ready = link.communicator->allocate(cuts.size() * sizeof(std::uint64_t), &memory);
  }
  TRIREME_RETURN_IF_ERROR(agree(link, "seal", {}, ready));
  auto* const words = static_cast<std::uint64_t*>(memory->data());
  for (std::size_t i = 0; i < cuts.size(); ++i) words[i] = cuts[i] ? 1 : 0;
  Operation operation = in_place(link, link.gathers, OperationKind::all_reduce, TRIREME_DTYPE_U64,
                                 words, cuts.size(), memory);
  TRIREME_FAILPOINT("seal", "before_cuts");
  TRIREME_RETURN_IF_ERROR(link.run(std::move(operation)));
  for (std::size_t i = 0; i < cuts.size(); ++i) cuts[i] = words[i] > 0;
  sums.sums->open(number, cuts);
  return Status::success();
}

void ModelAxes::fail(trireme_status code, std::string_view why) const noexcept {
  if (!any()) return;
  for (const Line& line : lines_) line.link->communicator->fail(code, why);
  all_.link->communicator->fail(code, why);
}

Status ModelAxes::compare_whole(const Link& model, const sharding::Registry& registry,
                                const sharding::Layout& layout, const ReadParameters& read,
                                const Status& own) const {
  Compared compared;
  compared.call = "check_replicas";
  compared.tied = true;
  compared.is_on = [](const Parameter& parameter, std::uint64_t number, const std::string& axis) {
    return is_compared(parameter, number) && is_copied_on(parameter, axis);
  };
  compared.sums = [&](std::uint64_t* sums) { return own_sums(registry, layout, read, sums); };
  return compare(model, registry, compared, own);
}

Status ModelAxes::compare_tied(const Link& model, const sharding::Registry& registry,
                               const sharding::Layout& layout, const ReadParameters& read) const {
  Compared compared;
  compared.call = "the first step of a trainer";
  compared.tied = true;
  compared.is_on = [](const Parameter&, std::uint64_t, const std::string&) { return false; };
  compared.sums = [&](std::uint64_t* sums) { return own_sums(registry, layout, read, sums); };
  Status found = compare(model, registry, compared, Status::success());
  // Ranks along another axis may hold other parts, which are the same.
  return tied_.empty() ? std::move(found) : agree_on_mesh(model, compared.call, {}, found);
}

Status ModelAxes::compare(const Link& model, const sharding::Registry& registry,
                          const Compared& compared, const Status& own) const {
  const std::uint64_t count = registry.parameters().size();
  bool any_on = compared.tied && !tied_.empty();
  for (std::uint64_t i = 0; i < count; ++i) {
    for (const sharding::AxisPlacement& placement : registry.parameters()[i].placements) {
      any_on |= compared.is_on(registry.parameters()[i], i, placement.axis);
    }
  }
  if (!any_on || !any()) return Status(own);
  std::vector<std::uint64_t> sums(count);
  const Status summed = own.ok() ? all_sums(model, compared, count, &sums) : Status(own);
  // All ranks of an axis come, whatever this model has found itself or on another axis.
  Status found = Status(summed);
  for (const Line& line : lines_) {
    Status status = compare_along(line, registry, compared, sums, summed);
    if (status.ok() && compared.tied && line.axis == kTiedAxis) {
      status = along_axis(line.axis,
                          strategies::compare_tied(*line.link, compared.call, tied_, sums, summed));
    }
    if (found.ok()) found = std::move(status);
  }
  return found;
}

Status ModelAxes::compare_along(const Line& line, const sharding::Registry& registry,
                                const Compared& compared, const std::vector<std::uint64_t>& sums,
                                const Status& own) const {
  std::vector<std::uint64_t> numbers;  // of the parameters
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const Parameter& parameter = registry.parameters()[i];
    if (compared.is_on(parameter, i, line.axis)) numbers.push_back(i);
  }
  if (numbers.empty()) return Status::success();
  const Link& link = compared.own_group ? *line.own : *line.link;
  const std::uint64_t count = numbers.size();
  const std::uint32_t ranks = link.world_size();
  std::shared_ptr<Memory> memory;
  const Status ready =
      own.ok() ? link.communicator->allocate(ranks * count * sizeof sums[0], &memory) : Status(own);
  TRIREME_RETURN_IF_ERROR(along_axis(line.axis, agree(link, compared.call, {}, ready)));
  auto* const all = static_cast<std::uint64_t*>(memory->data());
  std::uint64_t* const mine = all + count * link.rank();
  for (std::uint64_t i = 0; i < count; ++i) mine[i] = sums[numbers[i]];
  Operation operation = in_place(link, link.gathers, OperationKind::all_gather, TRIREME_DTYPE_U64,
                                 all, count, memory);
  TRIREME_RETURN_IF_ERROR(along_axis(line.axis, link.run(std::move(operation))));
  std::vector<std::int32_t> everybody;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    everybody.push_back(static_cast<std::int32_t>(rank));
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    std::vector<std::uint64_t> values;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) values.push_back(all[rank * count + i]);
    std::vector<std::int32_t> blamed = different_ranks(everybody, values);
    if (blamed.empty()) continue;
    if (compared.differs != nullptr) *compared.differs = true;
    const Parameter& parameter = registry.parameters()[numbers[i]];
    return along_axis(line.axis, copies_differ(link,
                                               std::string(compared.what) + "parameter " +
                                                   std::to_string(numbers[i]) + " (" +
                                                   sharding::quoted(parameter.name) + ")",
                                               everybody, std::move(blamed)));
  }
  return Status::success();
}

}  // namespace trireme::strategies
