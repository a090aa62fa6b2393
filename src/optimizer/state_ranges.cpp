#include "optimizer/state_ranges.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "exchange/agreement.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using optimizers::Piece;
using sharding::Group;
using sharding::Parameter;
using sharding::Range;

// Parameters of all groups, then the vectors of the rule. With data_parallel every rank has all of
// them, but still owns only its share.
void StateRanges::place(const UpdateRule& rule) {
  rule_ = &rule;
  const sharding::Layout& layout = shard_.layout();
  for (const Group& group : layout.groups) {
    for (const std::uint64_t unit : group.units) {
      for (const std::uint64_t number : shard_.registry().units()[unit].parameters) {
        const Parameter& parameter = shard_.registry().parameters()[number];
        const std::uint64_t first = layout.first_in_group(parameter);
        const Range part = intersect(group.owned, {first, parameter.elements});
        if (part.count == 0) continue;
        const bool is_here = !group.in_file && shard_.on_device() == nullptr;
        char* const data = is_here ? shard_.parameters_at(group, part.first) : nullptr;
        ranges_.push_back(
            {TRIREME_STATE_KIND_PARAMETER, 0, number, part.first - first, part.count, data, 0, 0});
      }
    }
  }
  for (std::uint32_t vector = 0; vector < state_.all_vectors(); ++vector) {
    for (std::uint64_t number = 0; number < state_.pieces().size(); ++number) {
      const Piece& piece = state_.pieces()[number];
      if (!state_.keeps(number, vector)) continue;
      const Parameter& parameter = shard_.registry().parameters()[piece.parameter];
      const Range owned = layout.group_of_parameter(parameter).owned;
      const std::uint64_t first = layout.first_in_group(parameter);
      const Range part = intersect(owned, {first + piece.first, piece.count});
      if (part.count == 0) continue;  // another rank's
      ranges_.push_back(
          state_.stretch_of(number, vector, {part.first - first - piece.first, part.count}));
    }
  }
  const std::vector<StateRange> own = rule_->own_ranges();
  ranges_.insert(ranges_.end(), own.begin(), own.end());
  // Buckets have another order.
  std::sort(ranges_.begin(), ranges_.end(), [](const StateRange& a, const StateRange& b) {
    return std::tie(a.kind, a.vector, a.parameter, a.first) <
           std::tie(b.kind, b.vector, b.parameter, b.first);
  });
}

Status StateRanges::describe(std::uint64_t index, trireme_state_range* out) const {
  if (index >= ranges_.size()) {
    return invalid_argument("range " + std::to_string(index) + " of " +
                            std::to_string(ranges_.size()));
  }
  const StateRange& range = ranges_[index];
  const Parameter& parameter = shard_.registry().parameters()[range.parameter];
  out->kind = range.kind;
  out->dtype = range.kind == TRIREME_STATE_KIND_PARAMETER ? parameter.dtype
                                                          : gradient_dtype(parameter.dtype);
  out->vector = range.vector;
  out->parameter = range.parameter;
  out->name = parameter.name.c_str();
  out->shape = parameter.shape.empty() ? nullptr : parameter.shape.data();
  out->dimensions = static_cast<std::uint32_t>(parameter.shape.size());
  if (range.kind == TRIREME_STATE_KIND_ROWS || range.kind == TRIREME_STATE_KIND_COLUMNS) {
    out->shape = rule_->own_shape(range);
    out->dimensions = 1;
  }
  out->first = range.first;
  out->count = range.count;
  out->data = range.data;
  return Status::success();
}

std::uint64_t StateRanges::element_bytes(const StateRange& range) const {
  const trireme_dtype dtype = shard_.registry().parameters()[range.parameter].dtype;
  return dtype_size(range.kind == TRIREME_STATE_KIND_PARAMETER ? dtype : gradient_dtype(dtype));
}

// Copies between the range and memory of the caller: `read`, or `written` to the range.
Status StateRanges::copy(const StateRange& range, char* read, const char* written) const {
  const Parameter& parameter = shard_.registry().parameters()[range.parameter];
  const std::uint64_t size = element_bytes(range);
  const auto move = [&](void* there, std::uint64_t first, std::uint64_t count) {
    if (read != nullptr) {
      std::memcpy(read + first * size, there, count * size);
    } else {
      std::memcpy(there, written + first * size, count * size);
    }
  };
  if (range.data != nullptr) {
    move(range.data, 0, range.count);
    return Status::success();
  }
  if (range.kind == TRIREME_STATE_KIND_PARAMETER) {
    const sharding::Layout& layout = shard_.layout();
    const std::uint64_t begin = layout.first_in_group(parameter) + range.first;
    const Status copied =
        shard_.visit(layout.group_of[parameter.unit], {begin, range.count},
                     read != nullptr ? ParameterFile::Access::read : ParameterFile::Access::update,
                     [&](char* data, Range part) { move(data, part.first - begin, part.count); });
    const Status closed = shard_.close_window();
    return copied.ok() ? Status(closed) : Status(copied);
  }
  return state_.copy_from_file(range, read, written);
}

Status StateRanges::check(std::uint64_t index, const void* data, std::uint64_t bytes) const {
  TRIREME_RETURN_IF_ERROR(shard_.check_sealed());
  trireme_state_range described = {};
  TRIREME_RETURN_IF_ERROR(describe(index, &described));
  if (data == nullptr) return invalid_argument("data is NULL");
  const std::uint64_t wanted = described.count * dtype_size(described.dtype);
  if (bytes != wanted) {
    return invalid_argument("bytes is " + std::to_string(bytes) + ", but range " +
                            std::to_string(index) + " has " + std::to_string(wanted));
  }
  if (shard_.gradients().step_under_way()) return invalid_state("a step is under way");
  return Status::success();
}

Status StateRanges::read(std::uint64_t index, void* data, std::uint64_t bytes) const {
  TRIREME_RETURN_IF_ERROR(check(index, data, bytes));
  if (shard_.on_device() != nullptr) {
    TRIREME_RETURN_IF_ERROR(shard_.on_device()->begin());
  }
  return copy(ranges_[index], static_cast<char*>(data), nullptr);
}

// A gather would return the copy, and the peers have copies, too, which this rank alone cannot
// drop.
Status StateRanges::check_no_copy(const StateRange& range) const {
  if (range.kind != TRIREME_STATE_KIND_PARAMETER) return Status::success();
  const std::uint64_t unit = shard_.registry().parameters()[range.parameter].unit;
  if (!shard_.has_copy(shard_.layout().group_of[unit])) return Status::success();
  return invalid_state(
      "unit " + std::to_string(unit) + " (" +
      sharding::quoted(shard_.registry().units()[unit].name) +
      ") was gathered since the last step, load or broadcast_parameters, and copies of "
      "it may stay; write parameters right after one of these");
}

Status StateRanges::write(std::uint64_t index, const void* data, std::uint64_t bytes) {
  TRIREME_RETURN_IF_ERROR(check(index, data, bytes));
  TRIREME_RETURN_IF_ERROR(check_no_copy(ranges_[index]));
  if (shard_.on_device() != nullptr) {
    TRIREME_RETURN_IF_ERROR(shard_.on_device()->begin());
  }
  const Status status = copy(ranges_[index], nullptr, static_cast<const char*>(data));
  state_.count_file();
  return status;
}

StateRange StateRanges::part_of(const StateRange& range, Range part) const {
  StateRange cut = range;
  cut.first += part.first;
  cut.count = part.count;
  cut.skipped += part.first;
  if (cut.data != nullptr) {
    cut.data = static_cast<char*>(cut.data) + part.first * element_bytes(range);
  }
  return cut;
}

Status StateRanges::read_part(std::uint64_t index, Range part, char* data) const {
  return copy(part_of(ranges_[index], part), data, nullptr);
}

Status StateRanges::write_part(std::uint64_t index, Range part, const char* data) {
  const Status status = copy(part_of(ranges_[index], part), nullptr, data);
  state_.count_file();
  return status;
}

Status StateRanges::check_no_copies() const {
  for (const StateRange& range : ranges_) TRIREME_RETURN_IF_ERROR(check_no_copy(range));
  return Status::success();
}

// Gives the vectors of all pieces, part by part, through memory that peers can read wherever the
// state lies.
Status StateRanges::give_state(const char* call) {
  const sharding::Layout& layout = shard_.layout();
  constexpr std::uint64_t kPart = std::uint64_t{1} << 18;  // elements
  std::uint64_t largest = 0;
  for (const Piece& piece : state_.pieces()) largest = std::max(largest, piece.count);
  std::shared_ptr<Memory> memory;
  TRIREME_RETURN_IF_ERROR(
      agree(shard_.link(), call, {},
            shard_.communicator().allocate(std::min(largest, kPart) * sizeof(double), &memory)));
  char* const data = static_cast<char*>(memory->data());
  for (std::uint64_t number = 0; number < state_.pieces().size(); ++number) {
    for (std::uint32_t vector = 0; vector < state_.all_vectors(); ++vector) {
      if (!state_.keeps(number, vector)) continue;
      const Piece& piece = state_.pieces()[number];
      const trireme_dtype dtype = gradient_dtype(piece.dtype);
      const sharding::Parameter& parameter = shard_.registry().parameters()[piece.parameter];
      const sharding::Group& group = layout.group_of_parameter(parameter);
      const std::uint64_t begin = layout.first_in_group(parameter) + piece.first;
      for (std::uint64_t first = 0; first < piece.count; first += kPart) {
        const Range part = {begin + first, std::min(kPart, piece.count - first)};
        Operation operation;
        operation.channel = shard_.link().gathers;
        operation.kind = OperationKind::all_gather_v;
        operation.dtype = dtype;
        operation.send = operation.receive = data;
        operation.count = part.count;
        operation.owner = memory;
        for (std::uint32_t rank = 0; rank < layout.spread.world_size; ++rank) {
          operation.counts.push_back(intersect(layout.owned_by(group, rank), part).count);
        }
        const Range own = intersect(group.owned, part);
        if (own.count > 0) {
          char* const mine = data + (own.first - part.first) * dtype_size(dtype);
          operation.send = mine;
          TRIREME_RETURN_IF_ERROR(shard_.report_disk(copy(
              state_.stretch_of(number, vector, {own.first - begin, own.count}), mine, nullptr)));
        }
        TRIREME_RETURN_IF_ERROR(shard_.link().run(std::move(operation)));
        TRIREME_RETURN_IF_ERROR(shard_.report_disk(
            copy(state_.stretch_of(number, vector, {first, part.count}), nullptr, data)));
      }
    }
  }
  state_.count_file();
  return Status::success();
}

}  // namespace trireme::strategies
