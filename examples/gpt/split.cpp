#include "split.hpp"

#include <cstddef>
#include <stdexcept>

#include "check.hpp"

namespace gpt {

namespace {

struct Range {
  std::uint64_t first, count;
};

Range range(trireme_tensor* tensor, std::uint64_t extent, std::int32_t rank) {
  Range found = {};
  check(trireme_tensor_range(tensor, extent, rank, &found.first, &found.count));
  return found;
}

// A vector is one row.
std::uint64_t rows_of(const Parameter& parameter) {
  return parameter.shape.size() == 1 ? 1 : parameter.shape[0];
}

}  // namespace

Split::Split(const Config& config, trireme_tensor* tensor)
    : config_(config), whole_(describe(config)), tensor_(tensor) {
  trireme_tensor_info info = TRIREME_TENSOR_INFO_INIT;
  check(trireme_tensor_get_info(tensor, &info));
  ranks_ = info.world_size;
  if (static_cast<std::uint32_t>(config.heads) % info.blocks != 0)
    throw std::runtime_error("the blocks of --tensor-blocks divide --heads");
}

Split::Cut Split::cut(std::size_t layer, std::size_t place) const {
  if (layer == 0) return place == EmbeddingAt::token ? Cut::rows : Cut::none;
  if (layer + 1 == whole_.size()) return place == HeadAt::weight ? Cut::outputs : Cut::none;
  switch (place) {
    case BlockAt::attention_weight:
    case BlockAt::attention_bias:
    case BlockAt::expand_weight:
    case BlockAt::expand_bias: return Cut::outputs;
    case BlockAt::project_weight:
    case BlockAt::contract_weight: return Cut::inputs;
    default: return Cut::none;
  }
}

// Queries, keys and values are three matrices side by side.
std::uint64_t Split::stretches(std::size_t layer, std::size_t place) const {
  const bool is_block = layer > 0 && layer + 1 < whole_.size();
  return is_block && (place == BlockAt::attention_weight || place == BlockAt::attention_bias) ? 3
                                                                                              : 1;
}

bool Split::is_whole(std::size_t layer, std::size_t place) const {
  return cut(layer, place) == Cut::none;
}

std::vector<Layer> Split::layers(std::int32_t rank) const {
  std::vector<Layer> parts = whole_;
  for (std::size_t layer = 0; layer < parts.size(); ++layer) {
    for (std::size_t place = 0; place < parts[layer].parameters.size(); ++place) {
      Parameter& parameter = parts[layer].parameters[place];
      const std::uint64_t rows = rows_of(parameter), columns = parameter.shape.back();
      const bool is_bias = parameter.shape.size() == 1;
      switch (cut(layer, place)) {
        case Cut::none: break;
        case Cut::rows: parameter.shape = {range(tensor_, rows, rank).count, columns}; break;
        case Cut::outputs: {
          const std::uint64_t s = stretches(layer, place);
          const std::uint64_t outputs = s * range(tensor_, columns / s, rank).count;
          parameter.shape = is_bias ? std::vector{outputs} : std::vector{outputs, rows};
          break;
        }
        case Cut::inputs: parameter.shape = {columns, range(tensor_, rows, rank).count}; break;
      }
    }
  }
  return parts;
}

template <class Visit>
void Split::each(std::int32_t rank, const Visit& visit) const {
  std::uint64_t begin = 0,
                at = 0;  // of the parameter in the whole; of the next element in the part
  for (std::size_t layer = 0; layer < whole_.size(); ++layer) {
    for (std::size_t place = 0; place < whole_[layer].parameters.size(); ++place) {
      const Parameter& parameter = whole_[layer].parameters[place];
      const std::uint64_t rows = rows_of(parameter), columns = parameter.shape.back();
      const auto element = [&](std::uint64_t row, std::uint64_t column) {
        visit(begin + row * columns + column, at++);
      };
      switch (cut(layer, place)) {
        case Cut::none:
          for (std::uint64_t i = 0; i < rows * columns; ++i) element(0, i);
          break;
        case Cut::rows: {
          const Range own = range(tensor_, rows, rank);
          for (std::uint64_t i = 0; i < own.count * columns; ++i) element(own.first, i);
          break;
        }
        case Cut::outputs: {
          const std::uint64_t s = stretches(layer, place);
          const std::uint64_t stretch = columns / s;
          const Range own = range(tensor_, stretch, rank);
          for (std::uint64_t k = 0; k < s; ++k)
            for (std::uint64_t output = 0; output < own.count; ++output)
              for (std::uint64_t row = 0; row < rows; ++row)
                element(row, k * stretch + own.first + output);
          break;
        }
        case Cut::inputs: {
          const Range own = range(tensor_, rows, rank);
          for (std::uint64_t column = 0; column < columns; ++column)
            for (std::uint64_t row = 0; row < own.count; ++row) element(own.first + row, column);
          break;
        }
      }
      begin += parameter.count();
    }
  }
}

std::vector<float> Split::part(std::int32_t rank, const std::vector<float>& whole) const {
  std::vector<float> values(element_count(layers(rank)));
  each(rank, [&](std::uint64_t from, std::uint64_t to) { values[to] = whole[from]; });
  return values;
}

void Split::put(std::int32_t rank, const float* part, std::vector<float>* whole) const {
  each(rank, [&](std::uint64_t to, std::uint64_t from) { (*whole)[to] = part[from]; });
}

}  // namespace gpt
