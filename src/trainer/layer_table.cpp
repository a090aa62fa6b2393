#include "trainer/layer_table.hpp"

#include <algorithm>

#include "platform/names.hpp"
#include "platform/utf8.hpp"

namespace trireme::strategies {

using sharding::Parameter;

namespace {

constexpr std::size_t kLongestName = 255;

}  // namespace

std::string LayerTable::name_of(std::uint64_t number) const {
  if (number == layers_.size() && !layers_.empty() && layers_[0].stage != kNoStage) {
    return "a layer of a later stage";
  }
  if (number >= layers_.size()) return "layer " + std::to_string(number);
  const Layer& layer = layers_[number];
  const bool staged = layer.stage != kNoStage;
  std::string name = "layer " + std::to_string(staged ? layer.number : number) + " (" +
                     sharding::quoted(layer.name) + ")";
  if (staged) name += " of stage " + std::to_string(layer.stage);
  return name;
}

bool is_read_dtype(trireme_dtype dtype) {
  return dtype == TRIREME_DTYPE_F32 || dtype == TRIREME_DTYPE_F64 || dtype == TRIREME_DTYPE_F16 ||
         dtype == TRIREME_DTYPE_BF16;
}

Status check_read_bytes(std::uint64_t layer, std::uint64_t bytes, trireme_dtype dtype) {
  if (bytes % dtype_size(dtype) == 0) return Status::success();
  return invalid_argument("layer " + std::to_string(layer) +
                          ", which others read, has output_bytes " + std::to_string(bytes) +
                          ", no whole number of " + dtype_name(dtype));
}

Status LayerTable::check_reads(std::uint64_t i, std::uint64_t total) const {
  const Layer& layer = layers_[i];
  const std::uint64_t own = layer.stage == kNoStage ? i : layer.number;
  if (!is_read_dtype(output_dtype(i))) {
    return invalid_argument(name_of(i) + " has output_dtype " +
                            std::to_string(layer.described.output_dtype) +
                            ", which is not f16, bf16, f32 or f64");
  }
  for (std::size_t k = 0; k < layer.reads.size(); ++k) {
    const std::uint64_t read = layer.reads[k];
    const std::string what = name_of(i) + " reads layer " + std::to_string(read);
    if (read >= total) {
      return invalid_argument(what + ", but the model has " + std::to_string(total) + " layers");
    }
    if (read == own) return invalid_argument(what + ", which is itself");
    if (read > own) return invalid_argument(what + ", which is a later one");
    if (read + 1 == own) return invalid_argument(what + ", whose output is its input");
    if (std::find(layer.reads.begin(), layer.reads.begin() + static_cast<std::ptrdiff_t>(k),
                  read) != layer.reads.begin() + static_cast<std::ptrdiff_t>(k)) {
      return invalid_argument(what + " twice");
    }
  }
  return Status::success();
}

Status LayerTable::check(std::uint64_t total) const {
  const auto name_of_parameter = [&](std::uint64_t number) {
    const Parameter& parameter = parameters()[number];
    return "parameter " + std::to_string(number) + " (" + sharding::quoted(parameter.name) +
           ") of unit " + sharding::quoted(registry_.units()[parameter.unit].name);
  };
  constexpr std::uint64_t kNobody = UINT64_MAX;
  std::vector<std::uint64_t> owners(parameters().size(), kNobody);
  for (std::uint64_t i = 0; i < layers_.size(); ++i) {
    const trireme_layer& layer = layers_[i].described;
    const std::string& name = layers_[i].name;
    if (name.empty()) return invalid_argument("layer " + std::to_string(i) + " has no name");
    if (name.size() > kLongestName || !is_utf8(name)) {
      return invalid_argument("the name of layer " + std::to_string(i) +
                              " is longer than 255 bytes, or no UTF-8");
    }
    if (layer.flags != 0) {
      return invalid_argument(name_of(i) + " has flags " + std::to_string(layer.flags) +
                              ", which must be 0");
    }
    if (layer.forward == nullptr || layer.backward == nullptr) {
      return invalid_argument(name_of(i) + " has no " +
                              (layer.forward == nullptr ? "forward" : "backward") + " callback");
    }
    if (layer.reserved != 0) return invalid_argument(name_of(i) + " has reserved, which must be 0");
    TRIREME_RETURN_IF_ERROR(check_reads(i, total));
    const bool begins = i == 0 || layers_[i].stage != layers_[i - 1].stage;
    if (layer.input_bytes > 0 && !begins &&
        layer.input_bytes != layers_[i - 1].described.output_bytes) {
      return invalid_argument(name_of(i) + " has input_bytes " + std::to_string(layer.input_bytes) +
                              ", but " + name_of(i - 1) + " has output_bytes " +
                              std::to_string(layers_[i - 1].described.output_bytes));
    }
    if (layer.first_parameter > parameters().size() ||
        layer.parameter_count > parameters().size() - layer.first_parameter) {
      return invalid_argument(name_of(i) + " has " + std::to_string(layer.parameter_count) +
                              " parameters from number " + std::to_string(layer.first_parameter) +
                              " on, but the model has only " + std::to_string(parameters().size()));
    }
    for (std::uint64_t k = 0; k < layer.parameter_count; ++k) {
      std::uint64_t& owner = owners[layer.first_parameter + k];
      if (owner != kNobody) {
        return invalid_argument(name_of_parameter(layer.first_parameter + k) + " belongs to " +
                                name_of(owner) + " and to " + name_of(i) +
                                "; add an alias of it to the model (tied_to) for one of the two");
      }
      owner = i;
    }
  }
  const auto found = std::find(owners.begin(), owners.end(), kNobody);
  if (found == owners.end()) return Status::success();
  return invalid_argument(name_of_parameter(static_cast<std::uint64_t>(found - owners.begin())) +
                          " belongs to no layer; every parameter of the model needs one");
}

void LayerTable::find_units() {
  for (std::uint64_t i = 0; i < layers_.size(); ++i) {
    std::vector<std::uint64_t>& units = layers_[i].units;
    for (std::uint64_t k = 0; k < layers_[i].described.parameter_count; ++k) {
      const Parameter& parameter = parameters()[parameter_number(i, k)];
      if (std::find(units.begin(), units.end(), parameter.unit) == units.end()) {
        units.push_back(parameter.unit);
      }
      if (!parameter.frozen && parameter.elements > 0) first_trained_ = std::min(first_trained_, i);
    }
  }
}

std::uint64_t LayerTable::split_count() const {
  return static_cast<std::uint64_t>(
      std::count_if(layers_.begin(), layers_.end(),
                    [](const Layer& layer) { return layer.described.backward_weight != nullptr; }));
}

std::vector<LayerBytes> LayerTable::bytes() const {
  std::vector<LayerBytes> sizes;
  for (const Layer& layer : layers_) {
    sizes.push_back({layer.described.output_bytes, layer.described.saved_bytes});
  }
  return sizes;
}

std::string LayerTable::reads_text(std::uint64_t i) const {
  std::string text;
  if (layers_[i].described.output_dtype != 0) {
    text = ", output_dtype " + std::to_string(layers_[i].described.output_dtype);
  }
  for (const std::uint64_t read : layers_[i].reads) {
    text += (read == layers_[i].reads.front() ? ", reads " : " ") + std::to_string(read);
  }
  return text;
}

void LayerTable::add_facts(std::vector<sharding::Fact>* facts) const {
  facts->push_back({"layer_count", std::to_string(layers_.size())});
  for (std::uint64_t i = 0; i < layers_.size(); ++i) {
    const trireme_layer& layer = layers_[i].described;
    facts->push_back(
        {"layer " + std::to_string(i),
         sharding::quoted(layers_[i].name) + " with " + std::to_string(layer.parameter_count) +
             " parameters from " + std::to_string(layer.first_parameter) + " on, output_bytes " +
             std::to_string(layer.output_bytes) + ", saved_bytes " +
             std::to_string(layer.saved_bytes) + ", input_bytes " +
             std::to_string(layer.input_bytes) +
             (layer.backward_weight != nullptr ? ", with backward_weight" : "") + reads_text(i)});
  }
}

}  // namespace trireme::strategies
