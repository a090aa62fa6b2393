#include "sharding/activation_plan.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

namespace trireme::strategies {
namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 60;  // of all layers together

// Pieces of memory of each layer, and their sums.
struct Sizes {
  explicit Sizes(const std::vector<LayerBytes>& layers) : count(layers.size()), sums(count + 1) {
    for (std::uint64_t i = 0; i < count; ++i) {
      outputs.push_back(activation_piece(layers[i].output));
      sums[i + 1] = sums[i] + outputs[i] + activation_piece(layers[i].saved);
    }
    // The gradient of the last output is not needed.
    std::uint64_t largest[2] = {0, 0};
    for (std::uint64_t i = 0; i + 1 < count; ++i) {
      largest[i % 2] = std::max(largest[i % 2], outputs[i]);
    }
    even = largest[0];
    gradients = largest[0] + largest[1];
  }
  // The memory of a stretch itself: the output of its last layer is a checkpoint, unless it is the
  // last.
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

// The last layers from `last` on are one stretch. Cuts the layers before it so that the fewest
// bytes are kept. No stretch may need more than the last one or the largest layer alone.
Cut cut_before(const Sizes& sizes, std::uint64_t last) {
  std::uint64_t room = sizes.inside(last, sizes.count);
  for (std::uint64_t i = 0; i < last; ++i) room = std::max(room, sizes.inside(i, i + 1));
  // best[i]: bytes kept of layers before i if a stretch ends there; that stretch begins at from[i].
  // The beginnings that may still be best are in `open`, ascending, and so are their bytes.
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

// ---- with a file ----

// A node is the unit of an item: it uses the item before and makes its own.
constexpr std::uint64_t kMostSlots = 1024;  // besides: the number of items
constexpr std::uint64_t kUsualSlots = 4;    // one in use, one being made, one being written, one on
                                            // its way

std::uint64_t page(std::uint64_t bytes) {
  return (bytes + kWindowAlignment - 1) / kWindowAlignment * kWindowAlignment;
}

std::vector<std::uint64_t> slot_sizes(const std::vector<std::uint64_t>& items,
                                      std::uint64_t slots) {
  std::vector<std::uint64_t> sizes(slots);
  for (std::uint64_t i = 0; i < items.size(); ++i) {
    sizes[i % slots] = std::max(sizes[i % slots], items[i]);
  }
  return sizes;
}

std::uint64_t window_bytes(const std::vector<std::uint64_t>& items, std::uint64_t slots) {
  const std::vector<std::uint64_t> sizes = slot_sizes(items, slots);
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

// The numbers of slots to try, from the largest.
std::vector<std::uint64_t> slot_choices(std::uint64_t items) {
  std::vector<std::uint64_t> choices = {items};
  for (std::uint64_t slots = std::min(items - 1, kMostSlots); slots >= 2 && slots < items;
       --slots) {
    choices.push_back(slots);
  }
  return choices;
}

std::uint64_t least_window(const std::vector<std::uint64_t>& items) {
  std::uint64_t least = UINT64_MAX;
  for (const std::uint64_t slots : slot_choices(items.size())) {
    least = std::min(least, window_bytes(items, slots));
  }
  return least;
}

void plan_window(const std::vector<std::uint64_t>& items, std::uint64_t slots, WindowPlan* out) {
  out->slots = slots;
  out->items.resize(items.size());
  const std::vector<std::uint64_t> sizes = slot_sizes(items, slots);
  std::vector<std::uint64_t> places(slots);
  std::exclusive_scan(sizes.begin(), sizes.end(), places.begin(), std::uint64_t{0});
  out->bytes = places.back() + sizes.back();
  for (std::uint64_t i = 0; i < items.size(); ++i) {
    WindowPlan::Item& item = out->items[i];
    item.bytes = items[i];
    item.place = places[i % slots];
    item.offset = out->file_bytes;
    out->largest_item = std::max(out->largest_item, items[i]);
    if (out->in_file(i)) out->file_bytes += items[i];
  }
}

std::string too_little(const char* option, std::uint64_t asked, std::uint64_t least) {
  return std::string("options.") + option + " is " + std::to_string(asked) +
         ", but the least that works is " + std::to_string(least);
}

// All kept outputs go through the window.
Status plan_with_file(const Sizes& sizes, const ActivationLimits& limits, ActivationPlan* out) {
  Cut cut = cut_every(sizes, limits.every > 0 ? limits.every : sizes.count);
  const bool by_layer = cut.firsts.size() == 2;
  std::vector<std::uint64_t> layers, items;
  for (std::uint64_t i = 0; i < sizes.count; ++i) {
    layers.push_back(page(sizes.sums[i + 1] - sizes.sums[i]));
  }
  out->least = sizes.gradients + least_window(layers);
  if (by_layer) {
    items = layers;
    out->nodes.resize(sizes.count + 1);
    std::iota(out->nodes.begin(), out->nodes.end(), std::uint64_t{0});
  } else {
    for (std::size_t i = 1; i + 1 < cut.firsts.size(); ++i) {
      items.push_back(page(sizes.outputs[cut.firsts[i] - 1]));
    }
    out->nodes = cut.firsts;
  }
  std::uint64_t most = limits.window > 0 ? limits.window : UINT64_MAX;
  if (limits.budget > 0) {
    most = std::min(most, limits.budget - std::min(limits.budget, sizes.gradients));
  }
  std::uint64_t slots = 0;
  if (most == UINT64_MAX) {
    slots = std::min<std::uint64_t>(items.size(), kUsualSlots);
  } else {
    for (const std::uint64_t choice : slot_choices(items.size())) {
      if (window_bytes(items, choice) > most) continue;
      slots = choice;
      break;
    }
  }
  if (slots == 0) {
    const std::uint64_t least = least_window(items);
    const bool narrow = limits.window > 0 && limits.window < least;
    return Status::failure(
        TRIREME_ERROR_OUT_OF_MEMORY,
        narrow ? too_little("offload.buffer_bytes", limits.window, least)
               : too_little("activation_budget_bytes", limits.budget, out->least) +
                     "; without the file and checkpoints it takes " + std::to_string(out->largest));
  }
  plan_window(items, slots, &out->window);
  out->firsts = std::move(cut.firsts);
  out->stretch = by_layer ? 0 : cut.stretch;
  out->gradients = sizes.gradients;
  return Status::success();
}

Status plan_in_memory(const Sizes& sizes, const ActivationLimits& limits, ActivationPlan* out) {
  const auto bytes_of = [&](const Cut& cut) {
    return cut.checkpoints + cut.stretch + sizes.gradients;
  };
  Cut chosen = cut_every(sizes, limits.every > 0 ? limits.every : sizes.count);
  // The choice with the fewest recomputed layers comes first.
  out->least = out->largest;
  bool fits = limits.budget == 0;
  for (std::uint64_t last = 0; last < sizes.count; ++last) {
    Cut cut = cut_before(sizes, last);
    out->least = std::min(out->least, bytes_of(cut));
    if (fits || bytes_of(cut) > limits.budget) continue;
    chosen = std::move(cut);
    fits = true;
  }
  if (!fits) {
    return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY,
                           too_little("activation_budget_bytes", limits.budget, out->least) +
                               "; without checkpoints it takes " + std::to_string(out->largest));
  }
  out->firsts = std::move(chosen.firsts);
  out->checkpoints = chosen.checkpoints;
  out->stretch = chosen.stretch;
  out->gradients = sizes.gradients;
  return Status::success();
}

// Assigns the places of each layer's memory.
void place(const Sizes& sizes, ActivationPlan* out) {
  out->places.resize(sizes.count);
  const bool windowed = out->window.slots > 0;
  const bool by_layer = windowed && out->stretches() == 1;
  const std::uint64_t stretch_begin = out->window.bytes + out->checkpoints;
  std::uint64_t checkpoint = 0;
  for (std::uint64_t i = 0; i < out->stretches(); ++i) {
    std::uint64_t at = stretch_begin;
    for (std::uint64_t layer = out->firsts[i]; layer < out->firsts[i + 1]; ++layer) {
      ActivationPlan::Place& place = out->places[layer];
      place.gradient = stretch_begin + out->stretch + (layer % 2 == 0 ? 0 : sizes.even);
      if (by_layer) at = out->window.items[layer].place;
      const bool kept = layer + 1 == out->firsts[i + 1] && layer + 1 < sizes.count;
      if (kept && windowed) checkpoint = out->window.items[i].place;
      std::uint64_t& output = kept ? checkpoint : at;
      place.output = output;
      output += sizes.outputs[layer];
      place.saved = at;
      at += sizes.sums[layer + 1] - sizes.sums[layer] - sizes.outputs[layer];
    }
  }
}

}  // namespace

std::uint64_t first_too_large(const std::vector<LayerBytes>& layers) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < layers.size(); ++i) {
    if (layers[i].output > kMost || layers[i].saved > kMost) return i;
    sum += activation_piece(layers[i].output) + activation_piece(layers[i].saved);
    if (sum > kMost) return i;
  }
  return layers.size();
}

Status plan_activations(const std::vector<LayerBytes>& layers, const ActivationLimits& limits,
                        ActivationPlan* out) {
  const Sizes sizes(layers);
  const auto bytes_of = [&](const Cut& cut) {
    return cut.checkpoints + cut.stretch + sizes.gradients;
  };
  out->largest = bytes_of(cut_every(sizes, sizes.count));
  if (limits.has_file) {
    TRIREME_RETURN_IF_ERROR(plan_with_file(sizes, limits, out));
  } else {
    TRIREME_RETURN_IF_ERROR(plan_in_memory(sizes, limits, out));
  }
  place(sizes, out);
  return Status::success();
}

}  // namespace trireme::strategies
