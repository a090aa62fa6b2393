#include "strategies/trainer_plan.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <string>
#include <utility>

namespace trireme::strategies {
namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 60;  // of all layers together

std::uint64_t piece(std::uint64_t bytes) {
  return (bytes + kActivationAlignment - 1) / kActivationAlignment * kActivationAlignment;
}

// Pieces of memory of each layer, and their sums.
struct Sizes {
  explicit Sizes(const std::vector<LayerBytes>& layers) : count(layers.size()), sums(count + 1) {
    for (std::uint64_t i = 0; i < count; ++i) {
      outputs.push_back(piece(layers[i].output));
      sums[i + 1] = sums[i] + outputs[i] + piece(layers[i].saved);
    }
    // Nobody asks for the gradient of the last output.
    std::uint64_t largest[2] = {0, 0};
    for (std::uint64_t i = 0; i + 1 < count; ++i) {
      largest[i % 2] = std::max(largest[i % 2], outputs[i]);
    }
    even = largest[0];
    gradients = largest[0] + largest[1];
  }
  // What a stretch holds itself: the output of its last layer is a checkpoint, unless it is the last.
  std::uint64_t inside(std::uint64_t first, std::uint64_t end) const {
    return sums[end] - sums[first] - (end < count ? outputs[end - 1] : 0);
  }

  std::uint64_t count;
  std::vector<std::uint64_t> outputs;
  std::vector<std::uint64_t> sums;  // of outputs and saved
  std::uint64_t even = 0;           // gradients of outputs of layers with an even number
  std::uint64_t gradients = 0;
};

struct Cut {
  std::vector<std::uint64_t> firsts;  // and the count
  std::uint64_t checkpoints = 0, stretch = 0;
};

Cut measure(const Sizes& sizes, std::vector<std::uint64_t> firsts) {
  Cut cut;
  for (std::size_t i = 0; i + 1 < firsts.size(); ++i) {
    cut.stretch = std::max(cut.stretch, sizes.inside(firsts[i], firsts[i + 1]));
    if (i > 0) cut.checkpoints += sizes.outputs[firsts[i] - 1];
  }
  cut.firsts = std::move(firsts);
  return cut;
}

Cut cut_every(const Sizes& sizes, std::uint64_t every) {
  std::vector<std::uint64_t> firsts;
  for (std::uint64_t first = 0; first < sizes.count; first += every) {
    firsts.push_back(first);
    if (every >= sizes.count - first) break;
  }
  firsts.push_back(sizes.count);
  return measure(sizes, std::move(firsts));
}

// The last layers from `last` on are one stretch; those before are cut so that the fewest bytes are
// kept of them while no stretch needs more than that one or the largest layer alone.
Cut cut_before(const Sizes& sizes, std::uint64_t last) {
  std::uint64_t room = sizes.inside(last, sizes.count);
  for (std::uint64_t i = 0; i < last; ++i) room = std::max(room, sizes.inside(i, i + 1));
  // best[i]: bytes kept of layers before i if a stretch ends there, which begins at from[i]. The
  // beginnings that may still be best are in `open`, ascending, and so are their bytes.
  std::vector<std::uint64_t> best(last + 1, 0), from(last + 1, 0);
  std::deque<std::uint64_t> open = {0};
  for (std::uint64_t i = 1; i <= last; ++i) {
    while (sizes.inside(open.front(), i) > room) open.pop_front();
    from[i] = open.front();
    best[i] = best[from[i]] + sizes.outputs[i - 1];
    while (!open.empty() && best[open.back()] >= best[i]) open.pop_back();
    open.push_back(i);
  }
  std::vector<std::uint64_t> firsts = {sizes.count};
  for (std::uint64_t at = last;; at = from[at]) {
    firsts.push_back(at);
    if (at == 0) break;
  }
  std::reverse(firsts.begin(), firsts.end());
  return measure(sizes, std::move(firsts));
}

}  // namespace

std::uint64_t first_too_large(const std::vector<LayerBytes>& layers) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < layers.size(); ++i) {
    if (layers[i].output > kMost || layers[i].saved > kMost) return i;
    sum += piece(layers[i].output) + piece(layers[i].saved);
    if (sum > kMost) return i;
  }
  return layers.size();
}

Status plan_activations(const std::vector<LayerBytes>& layers, std::uint64_t every,
                        std::uint64_t budget, ActivationPlan* out) {
  const Sizes sizes(layers);
  const auto bytes_of = [&](const Cut& cut) {
    return cut.checkpoints + cut.stretch + sizes.gradients;
  };
  Cut chosen = cut_every(sizes, every > 0 ? every : sizes.count);
  out->largest = bytes_of(cut_every(sizes, sizes.count));
  // The fewest layers that are computed again come first.
  out->least = out->largest;
  bool fits = budget == 0;
  for (std::uint64_t last = 0; last < sizes.count; ++last) {
    Cut cut = cut_before(sizes, last);
    out->least = std::min(out->least, bytes_of(cut));
    if (fits || bytes_of(cut) > budget) continue;
    chosen = std::move(cut);
    fits = true;
  }
  if (!fits) {
    return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY,
                           "options.activation_budget_bytes is " + std::to_string(budget) +
                               ", but the least that works is " + std::to_string(out->least) +
                               "; without checkpoints it takes " + std::to_string(out->largest));
  }

  out->firsts = std::move(chosen.firsts);
  out->checkpoints = chosen.checkpoints;
  out->stretch = chosen.stretch;
  out->gradients = sizes.gradients;
  out->places.resize(sizes.count);
  std::uint64_t checkpoint = 0;
  for (std::uint64_t i = 0; i < out->stretches(); ++i) {
    std::uint64_t at = out->checkpoints;
    for (std::uint64_t layer = out->firsts[i]; layer < out->firsts[i + 1]; ++layer) {
      ActivationPlan::Place& place = out->places[layer];
      place.gradient = out->checkpoints + out->stretch + (layer % 2 == 0 ? 0 : sizes.even);
      const bool kept = layer + 1 == out->firsts[i + 1] && layer + 1 < sizes.count;
      std::uint64_t& output = kept ? checkpoint : at;
      place.output = output;
      output += sizes.outputs[layer];
      place.saved = at;
      at += sizes.sums[layer + 1] - sizes.sums[layer] - sizes.outputs[layer];
    }
  }
  return Status::success();
}

}  // namespace trireme::strategies
