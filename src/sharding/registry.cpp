#include "sharding/registry.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "platform/names.hpp"
#include "platform/utf8.hpp"

namespace trireme::sharding {
namespace {

constexpr std::uint32_t kMaxDimensions = 16;
constexpr std::size_t kMaxName = 255;
// Keeps sums of byte counts over all parameters and ranks far from overflow.
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 48;

Status check_name(const char* text, const char* what, std::string* out) {
  const std::size_t length = strnlen(text, kMaxName + 1);
  if (length == 0) return invalid_argument(std::string(what) + " is empty");
  const std::string_view all(text, length);
  if (length > kMaxName) {
    const std::string begin = clean_text(all.substr(0, whole_characters(all, 32)));
    return invalid_argument(std::string(what) + " " + quoted(begin) +
                            "... is longer than 255 bytes");
  }
  if (!is_utf8(all)) return invalid_argument(std::string(what) + " is not UTF-8");
  *out = all;
  return Status::success();
}

Status count_elements(const std::string& name, const std::vector<std::uint64_t>& shape,
                      std::uint64_t* out) {
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : shape) {
    if (extent == 0) {
      *out = 0;
      return Status::success();
    }
  }
  for (const std::uint64_t extent : shape) {
    if (extent > kMaxElements / elements) {
      return invalid_argument("shape " + shape_text(shape) + " of parameter " + quoted(name) +
                              " has more than 2^48 elements");
    }
    elements *= extent;
  }
  *out = elements;
  return Status::success();
}

// FNV-1a.
std::uint64_t key_of(const std::string& name) {
  std::uint64_t key = 0xcbf29ce484222325u;
  for (const char each : name) key = (key ^ static_cast<unsigned char>(each)) * 0x100000001b3u;
  return key;
}

// Makes room for one more element, so that adding it cannot fail.
template <class T>
void make_room(std::vector<T>* list) {
  if (list->size() == list->capacity()) list->reserve(list->size() * 2 + 4);
}

}  // namespace

std::string quoted(const std::string& name) {
  std::string text = "\"";
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", byte);
      text += escape;
    } else {
      text += c;
    }
  }
  return text + "\"";
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string split_text(const AxisPlacement& placement) {
  std::string text = "split on " + quoted(placement.axis) + " by dimension " +
                     std::to_string(placement.dimension) + " of " +
                     std::to_string(placement.extent) + (placement.stretches.empty() ? "" : ":");
  for (std::size_t i = 0; i < placement.stretches.size(); ++i) {
    text += (i > 0 ? ", " : " ") + std::to_string(placement.stretches[i].first) + "+" +
            std::to_string(placement.stretches[i].count);
  }
  return text;
}

std::string parameter_text(const Parameter& parameter) {
  std::string text = quoted(parameter.name) + " " + dtype_name(parameter.dtype) + " " +
                     shape_text(parameter.shape);
  if (parameter.frozen) text += " frozen";
  if (parameter.replicas > 1) text += " of " + std::to_string(parameter.replicas) + " replicas";
  for (const AxisPlacement& placement : parameter.placements) {
    text += ' ';
    if (placement.is_split()) {
      text += split_text(placement);
    } else {
      text += placement.is_tied()                         ? "tied on "
              : placement.kind == TRIREME_PLACEMENT_WHOLE ? "whole on "
                                                          : "shared on ";
      text += quoted(placement.axis);
    }
  }
  if (parameter.parameter_group > 0) {
    text += " in parameter_group " + std::to_string(parameter.parameter_group);
  }
  return text;
}

const AxisPlacement* placement_on(const Parameter& parameter, const std::string& axis) {
  const std::vector<AxisPlacement>& all = parameter.placements;
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const AxisPlacement& each) { return each.axis == axis; });
  return found == all.end() ? nullptr : &*found;
}

const AxisPlacement* tied_placement(const Parameter& parameter) {
  const std::vector<AxisPlacement>& all = parameter.placements;
  const auto found = std::find_if(all.begin(), all.end(),
                                  [](const AxisPlacement& each) { return each.is_tied(); });
  return found == all.end() ? nullptr : &*found;
}

void Registry::set_holders(std::uint64_t target, std::uint32_t ranks) {
  for (Parameter& parameter : parameters_) {
    if (parameter.target != target) continue;
    for (AxisPlacement& placement : parameter.placements) {
      if (!placement.is_tied()) continue;
      placement.ranks = ranks;
      parameter.replicas *= ranks;
    }
  }
}

Status Registry::add(const trireme_parameter_options& options, std::uint64_t* out_parameter,
                     std::vector<AxisPlacement> placements) {
  if (options.name == nullptr) return invalid_argument("options.name is NULL");
  Parameter parameter;
  TRIREME_RETURN_IF_ERROR(check_name(options.name, "options.name", &parameter.name));
  const std::string shown = quoted(parameter.name);
  if (by_name_.count(parameter.name) != 0) {
    return invalid_argument("options.name " + shown + " is taken by parameter " +
                            std::to_string(by_name_[parameter.name]));
  }
  if ((options.flags & ~static_cast<std::uint32_t>(TRIREME_PARAMETER_FLAG_FROZEN)) != 0) {
    return invalid_argument("options.flags " + std::to_string(options.flags) + " of parameter " +
                            shown + " has a bit that means nothing");
  }
  if (dtype_size(options.dtype) == 0) {
    return invalid_argument("options.dtype " + std::to_string(options.dtype) + " of parameter " +
                            shown + " is no dtype");
  }
  const trireme_dtype wide = gradient_dtype(options.dtype);
  if (wide != TRIREME_DTYPE_F32 && wide != TRIREME_DTYPE_F64) {
    return unsupported("options.dtype " + std::string(dtype_name(options.dtype)) +
                       " of parameter " + shown + "; a parameter is f64, f32, f16 or bf16");
  }
  if (options.dimensions > kMaxDimensions) {
    return invalid_argument("options.dimensions " + std::to_string(options.dimensions) +
                            " of parameter " + shown + " is above 16");
  }
  if (options.dimensions > 0 && options.shape == nullptr) {
    return invalid_argument("options.shape is NULL, but options.dimensions is " +
                            std::to_string(options.dimensions));
  }
  parameter.dtype = options.dtype;
  parameter.replicas = options.replicas > 0 ? options.replicas : 1;
  parameter.placements = std::move(placements);
  parameter.parameter_group = options.parameter_group;
  parameter.frozen = (options.flags & TRIREME_PARAMETER_FLAG_FROZEN) != 0;
  if (options.dimensions > 0) {
    parameter.shape.assign(options.shape, options.shape + options.dimensions);
  }
  TRIREME_RETURN_IF_ERROR(count_elements(parameter.name, parameter.shape, &parameter.elements));
  const std::uint64_t number = parameters_.size();
  parameter.draw_key = key_of(parameter.name);

  std::string unit_name;
  if (options.unit != nullptr) {
    TRIREME_RETURN_IF_ERROR(check_name(options.unit, "options.unit", &unit_name));
  }
  if (options.tied_to != nullptr) {
    std::string other;
    TRIREME_RETURN_IF_ERROR(check_name(options.tied_to, "options.tied_to", &other));
    const auto found = by_name_.find(other);
    if (found == by_name_.end()) {
      return invalid_argument("options.tied_to " + quoted(other) + " of parameter " + shown +
                              " names no earlier parameter");
    }
    const std::uint64_t target = parameters_[found->second].target;
    const Parameter& original = parameters_[target];
    if (original.dtype != parameter.dtype || original.shape != parameter.shape ||
        original.frozen != parameter.frozen) {
      return invalid_argument("parameter " + shown + " is " + dtype_name(parameter.dtype) + " " +
                              shape_text(parameter.shape) + (parameter.frozen ? " frozen" : "") +
                              ", but " + quoted(original.name) + " that it is tied to is " +
                              dtype_name(original.dtype) + " " + shape_text(original.shape) +
                              (original.frozen ? " frozen" : ""));
    }
    if (options.unit != nullptr && unit_name != units_[original.unit].name) {
      return invalid_argument("options.unit of parameter " + shown + " is " + quoted(unit_name) +
                              ", but it is tied to " + quoted(original.name) + " of unit " +
                              quoted(units_[original.unit].name));
    }
    if (!parameter.placements.empty() && parameter.placements != original.placements) {
      return invalid_argument("options.placements of parameter " + shown + " are not those of " +
                              quoted(original.name) + " that it is tied to");
    }
    if (options.replicas > 0 && parameter.replicas != original.replicas) {
      return invalid_argument("options.replicas of parameter " + shown + " is " +
                              std::to_string(options.replicas) + ", but it is tied to " +
                              quoted(original.name) + " that has " +
                              std::to_string(original.replicas));
    }
    if (options.parameter_group > 0 && parameter.parameter_group != original.parameter_group) {
      return invalid_argument("options.parameter_group of parameter " + shown + " is " +
                              std::to_string(options.parameter_group) + ", but it is tied to " +
                              quoted(original.name) + " of group " +
                              std::to_string(original.parameter_group));
    }
    parameter.replicas = original.replicas;
    parameter.placements = original.placements;
    parameter.parameter_group = original.parameter_group;
    parameter.unit = original.unit;
    parameter.first = original.first;
    parameter.target = target;
    parameter.draw_key = original.draw_key;
    make_room(&parameters_);
    make_room(&parameters_[target].aliases);
    by_name_.emplace(parameter.name, number);
    parameters_[target].aliases.push_back(number);
    parameters_.push_back(std::move(parameter));
    *out_parameter = number;
    return Status::success();
  }

  if (unit_name.empty()) unit_name = parameter.name;
  if (parameter.elements > kMaxElements - elements_) {
    return invalid_argument("parameter " + shown + " brings the model above 2^48 elements");
  }
  const auto known = unit_by_name_.find(unit_name);
  const bool is_new = known == unit_by_name_.end();
  if (!is_new) {
    if (known->second + 1 != units_.size()) {
      return invalid_argument("unit " + quoted(unit_name) + " of parameter " + shown +
                              " was left before; parameters of one unit are added one after the "
                              "other");
    }
    if (units_.back().dtype != parameter.dtype) {
      return invalid_argument("parameter " + shown + " is " + dtype_name(parameter.dtype) +
                              ", but unit " + quoted(unit_name) + " is " +
                              dtype_name(units_.back().dtype));
    }
  }
  // Allocations come first, so that a parameter is there whole or not at all.
  make_room(&parameters_);
  if (is_new) {
    Unit unit;
    unit.name = unit_name;
    unit.dtype = parameter.dtype;
    unit.flat_first = elements_;
    make_room(&unit.parameters);
    make_room(&units_);
    by_name_.emplace(parameter.name, number);
    try {
      unit_by_name_.emplace(unit_name, units_.size());
    } catch (...) {
      by_name_.erase(parameter.name);
      throw;
    }
    units_.push_back(std::move(unit));
  } else {
    make_room(&units_.back().parameters);
    by_name_.emplace(parameter.name, number);
  }
  Unit& unit = units_.back();
  parameter.unit = units_.size() - 1;
  parameter.first = unit.elements;
  parameter.target = number;
  unit.elements += parameter.elements;
  unit.parameters.push_back(number);
  elements_ += parameter.elements;
  parameters_.push_back(std::move(parameter));
  *out_parameter = number;
  return Status::success();
}

trireme_dtype Registry::common_dtype() const {
  for (const Unit& unit : units_) {
    if (unit.dtype != units_.front().dtype) return 0;
  }
  return units_.empty() ? 0 : units_.front().dtype;
}

std::vector<Fact> Registry::facts() const {
  std::vector<Fact> facts;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    std::string value = parameter_text(parameter);
    if (parameter.target != i) value += " tied to " + quoted(parameters_[parameter.target].name);
    const std::string& unit = units_[parameter.unit].name;
    if (unit != parameter.name && parameter.target == i) value += " in unit " + quoted(unit);
    facts.push_back({"parameter " + std::to_string(i), std::move(value)});
  }
  return facts;
}

}  // namespace trireme::sharding
