#include "parallel/executor/skips.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "exchange/texts.hpp"
#include "platform/failpoint.hpp"
#include "trainer/local_reads.hpp"

namespace trireme::parallel {
namespace {

constexpr std::uint64_t kMostSkipBytes = std::uint64_t{1} << 60;

// A layer as its rank tells it.
struct ToldLayer {
  std::uint64_t bytes = 0;
  trireme_dtype dtype = 0;
  bool is_told = false;
  std::vector<std::uint64_t> reads{};
};

std::string told_layers(const strategies::LayerTable& layers) {
  std::vector<std::uint64_t> words;
  for (std::uint64_t i = 0; i < layers.size(); ++i) {
    words.push_back(layers[i].number);
    words.push_back(layers[i].described.output_bytes);
    words.push_back(static_cast<std::uint64_t>(layers.output_dtype(i)));
    words.push_back(layers[i].reads.size());
    words.insert(words.end(), layers[i].reads.begin(), layers[i].reads.end());
  }
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof words[0]};
}

std::uint32_t stage_of(const std::vector<std::uint64_t>& cuts, std::uint64_t layer) {
  const auto next = std::upper_bound(cuts.begin(), cuts.end(), layer);
  return static_cast<std::uint32_t>(next - cuts.begin() - 1);
}

// Takes what one rank has told. False: no rank tells this. `is_its`: whether a layer is on the
// rank.
template <typename IsIts>
bool read_told(const std::string& told, IsIts is_its, std::vector<ToldLayer>* layers) {
  const std::uint64_t total = layers->size();
  std::vector<std::uint64_t> words(told.size() / sizeof(std::uint64_t));
  if (words.empty()) return true;
  std::memcpy(words.data(), told.data(), words.size() * sizeof words[0]);
  for (std::size_t at = 0; at < words.size();) {
    if (words.size() - at < 4 || words[at] >= total || words[at + 3] > words.size() - at - 4) {
      return false;
    }
    if (!is_its(words[at]) || (*layers)[words[at]].is_told) return false;
    ToldLayer layer;
    layer.is_told = true;
    layer.bytes = words[at + 1];
    layer.dtype = static_cast<trireme_dtype>(words[at + 2]);
    const std::size_t count = words[at + 3];
    for (std::size_t k = 0; k < count; ++k) layer.reads.push_back(words[at + 4 + k]);
    for (const std::uint64_t read : layer.reads) {
      if (read >= words[at]) return false;
    }
    const bool known = strategies::is_read_dtype(layer.dtype) && layer.bytes <= kMostSkipBytes;
    if (!known) return false;
    (*layers)[words[at]] = std::move(layer);
    at += 4 + count;
  }
  return true;
}

}  // namespace

Status find_skips(const strategies::Link& link, const strategies::LayerTable& layers,
                  const pipeline::Schedule& schedule, const std::vector<std::uint64_t>& cuts,
                  std::vector<Skip>* out) {
  std::vector<std::string> told;
  TRIREME_FAILPOINT("pipeline", "before_reads");
  TRIREME_RETURN_IF_ERROR(strategies::exchange_texts(link, "create of a trainer with a pipeline",
                                                     told_layers(layers), &told));
  std::vector<ToldLayer> all(cuts.back());
  for (std::uint32_t rank = 0; rank < told.size(); ++rank) {
    const auto is_its = [&](std::uint64_t layer) {
      return schedule.rank_of[stage_of(cuts, layer)] == rank;
    };
    if (read_told(told[rank], is_its, &all)) continue;
    return Status::failure(TRIREME_ERROR_CORRUPT, "rank " + std::to_string(rank) +
                                                      " of the pipeline tells no list of layers");
  }
  for (std::uint64_t layer = 0; layer < all.size(); ++layer) {
    if (all[layer].is_told) continue;
    return Status::failure(TRIREME_ERROR_CORRUPT,
                           "rank " + std::to_string(schedule.rank_of[stage_of(cuts, layer)]) +
                               " of the pipeline tells nothing about layer " +
                               std::to_string(layer));
  }
  std::map<std::uint64_t, Skip> skips;  // by the layer that is read
  for (std::uint64_t layer = all.size(); layer-- > 0;) {
    for (const std::uint64_t read : all[layer].reads) {
      Skip& skip = skips[read];
      const std::uint32_t stage = stage_of(cuts, layer), rank = schedule.rank_of[stage];
      skip.readers.push_back({layer, stage, rank, 0});
    }
  }
  std::uint64_t bytes_of_all = 0;
  for (auto& [layer, skip] : skips) {
    skip.layer = layer;
    skip.stage = stage_of(cuts, layer);
    skip.rank = schedule.rank_of[skip.stage];
    skip.bytes = all[layer].bytes;
    skip.dtype = all[layer].dtype;
    TRIREME_RETURN_IF_ERROR(strategies::check_read_bytes(layer, skip.bytes, skip.dtype));
    for (std::size_t r = skip.readers.size(); r-- > 0;) {  // the first layer first
      const Skip::Reader& reader = skip.readers[r];
      const bool has = std::any_of(skip.takers.begin(), skip.takers.end(),
                                   [&](const auto& each) { return each.rank == reader.rank; });
      if (reader.rank == skip.rank || has) continue;
      skip.takers.push_back({reader.rank, reader.stage, reader.layer, 0});
    }
    // Each reader and taker has a place of it for each micro-batch, here or there.
    const std::uint64_t places =
        (skip.readers.size() + skip.takers.size() + 1) * std::uint64_t{schedule.micro_batches};
    TRIREME_RETURN_IF_ERROR(strategies::add_read_places(layer, skip.bytes, places, &bytes_of_all));
    out->push_back(std::move(skip));
  }
  return Status::success();
}

}  // namespace trireme::parallel
