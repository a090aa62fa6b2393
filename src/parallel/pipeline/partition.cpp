#include "parallel/pipeline/partition.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>

namespace trireme::pipeline {
namespace {

constexpr double kNoWay = std::numeric_limits<double>::infinity();
constexpr std::uint64_t kMostLayers = 1u << 16;
constexpr std::uint64_t kMostLayerBytes = 1ull << 40;
constexpr std::uint32_t kMostChunks = 4;       // stages a rank of a wave
constexpr std::uint32_t kMostWaveRanks = 512;  // the recursion is as deep
constexpr double kMostWork = 1u << 30;

class Cutter {
 public:
  Cutter(const std::vector<LayerCosts>& layers, const PartitionOptions& options)
      : n_(layers.size()), options_(options), seconds_(n_ + 1), bytes_(n_ + 1), kept_(n_ + 1) {
    for (std::uint64_t i = 0; i < n_; ++i) {
      seconds_[i + 1] = seconds_[i] + layers[i].seconds;
      bytes_[i + 1] = bytes_[i] + layers[i].bytes;
      kept_[i + 1] = kept_[i] + layers[i].kept_bytes;
    }
  }

  Status run(Partition* out) {
    const bool found = options_.stages_per_rank == 1 || options_.placement == Placement::kLoop
                           ? cut_stages(out)
                           : cut_wave(out);
    if (found) return Status::success();
    return invalid_argument("no cut of " + std::to_string(n_) +
                            " layers is within the limits of all ranks");
  }

 private:
  std::uint64_t least() const { return options_.allow_empty ? 0 : 1; }
  double time(std::uint64_t begin, std::uint64_t end) const {
    return seconds_[end] - seconds_[begin];
  }
  std::uint64_t held(std::uint32_t rank, std::uint64_t begin, std::uint64_t end) const {
    const std::uint64_t copies = options_.in_flight.empty() ? 1 : options_.in_flight[rank];
    return bytes_[end] - bytes_[begin] + copies * (kept_[end] - kept_[begin]);
  }
  std::uint64_t limit(std::uint32_t rank) const {
    return options_.limits.empty() ? ~std::uint64_t{0} : options_.limits[rank];
  }

  // best[j]: the smallest largest stage if the stages so far have the first j layers.
  bool cut_stages(Partition* out) {
    const std::uint32_t stages = options_.ranks * options_.stages_per_rank;
    std::vector<double> best(n_ + 1, kNoWay), next;
    std::vector<std::vector<std::uint32_t>> begin(stages);
    best[0] = 0;
    for (std::uint32_t s = 0; s < stages; ++s) {
      const std::uint32_t rank = s % options_.ranks;
      next.assign(n_ + 1, kNoWay);
      begin[s].assign(n_ + 1, 0);
      for (std::uint64_t j = 0; j <= n_; ++j) {
        for (std::uint64_t i = j + 1 - least(); i-- > 0;) {
          // The stage only grows from here on.
          if (time(i, j) >= next[j] || held(rank, i, j) > limit(rank)) break;
          const double value = std::max(best[i], time(i, j));
          if (value >= next[j]) continue;
          next[j] = value;
          begin[s][j] = static_cast<std::uint32_t>(i);
        }
      }
      best.swap(next);
    }
    if (best[n_] == kNoWay) return false;
    out->seconds = best[n_];
    out->cuts.assign(stages + 1, n_);
    for (std::uint32_t s = stages; s-- > 0;) out->cuts[s] = begin[s][out->cuts[s + 1]];
    return true;
  }

  // Ranks take their stages one rank after the other. An even chunk takes layers from the left of
  // what is left between two turns, an odd one from the right. `cuts` are the ends of what is left.
  using Cuts = std::array<std::uint32_t, kMostChunks>;
  struct Value {
    double seconds = kNoWay;
    Cuts counts{};  // layers that each chunk of the rank takes
  };

  std::uint64_t key(const Cuts& cuts) const {
    std::uint64_t out = 0;
    for (std::uint32_t c = 0; c < chunks(); ++c) out = out * (n_ + 1) + cuts[c];
    return out;
  }
  std::uint32_t chunks() const { return std::min(options_.stages_per_rank, kMostChunks); }
  // Layers that a chunk can still take, together with its neighbour at the inner turn.
  std::uint64_t room(const Cuts& cuts, std::uint32_t chunk) const {
    const std::uint32_t even = chunk / 2 * 2;
    const std::uint64_t right = even + 1 < chunks() ? cuts[even + 1] : n_;
    return right - cuts[even];
  }
  static void take(Cuts* cuts, std::uint32_t chunk, std::uint32_t count) {
    if (chunk % 2 == 0) {
      (*cuts)[chunk] += count;
    } else {
      (*cuts)[chunk] -= count;
    }
  }

  double solve(std::uint32_t rank, const Cuts& cuts) {
    if (rank == options_.ranks) {
      for (std::uint32_t c = 0; c < chunks(); c += 2) {
        if (room(cuts, c) != 0) return kNoWay;
      }
      return 0;
    }
    const auto [place, fresh] = memo_[rank].try_emplace(key(cuts));
    if (!fresh) return place->second.seconds;
    Value value;
    choose(rank, 0, cuts, 0, 0, Cuts{}, &value);
    memo_[rank][key(cuts)] = value;
    return value.seconds;
  }

  void choose(std::uint32_t rank, std::uint32_t chunk, const Cuts& cuts, double seconds,
              std::uint64_t bytes, const Cuts& counts, Value* best) {
    if (chunk >= chunks()) {
      const double value = std::max(seconds, solve(rank + 1, cuts));
      if (value < best->seconds) *best = {value, counts};
      return;
    }
    const std::uint64_t most = room(cuts, chunk);
    // The last rank leaves nothing; of its two chunks beside a turn, the first takes one layer.
    const bool last = rank + 1 == options_.ranks;
    const bool closes = chunk % 2 == 1 || chunk + 1 == chunks();
    const std::uint64_t begin = last && closes ? std::max(most, least()) : least();
    const std::uint64_t end = last && !closes ? std::min(most, least()) : most;
    for (std::uint64_t count = begin; count <= end; ++count) {
      const std::uint64_t first = chunk % 2 == 0 ? cuts[chunk] : cuts[chunk] - count;
      const double now = seconds + time(first, first + count);
      const std::uint64_t holds = bytes + held(rank, first, first + count);
      if (now >= best->seconds || holds > limit(rank)) break;
      Cuts after = cuts, taken = counts;
      take(&after, chunk, static_cast<std::uint32_t>(count));
      taken[chunk] = static_cast<std::uint32_t>(count);
      choose(rank, chunk + 1, after, now, holds, taken, best);
    }
  }

  bool cut_wave(Partition* out) {
    memo_.resize(options_.ranks);
    double best = kNoWay;
    Cuts begin{};
    // With three or four chunks the outer turn may lie anywhere.
    const std::uint64_t turns = chunks() > 2 ? n_ : 0;
    for (std::uint64_t turn = 0; turn <= turns; ++turn) {
      Cuts cuts{};
      if (chunks() == 2) {
        cuts[1] = static_cast<std::uint32_t>(n_);
      } else {
        cuts[1] = cuts[2] = static_cast<std::uint32_t>(turn);
        cuts[3] = static_cast<std::uint32_t>(n_);
      }
      const double value = solve(0, cuts);
      if (value >= best) continue;
      best = value;
      begin = cuts;
    }
    if (best == kNoWay) return false;
    out->seconds = best;
    std::vector<std::uint64_t> counts(std::size_t{options_.ranks} * chunks());
    Cuts cuts = begin;
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
      const Value& value = memo_[rank].at(key(cuts));
      for (std::uint32_t c = 0; c < chunks(); ++c) {
        const std::uint32_t place = c % 2 == 0 ? rank : options_.ranks - 1 - rank;
        counts[c * options_.ranks + place] = value.counts[c];
        take(&cuts, c, value.counts[c]);
      }
    }
    out->cuts.assign(1, 0);
    for (const std::uint64_t count : counts) out->cuts.push_back(out->cuts.back() + count);
    return true;
  }

  const std::uint64_t n_;
  const PartitionOptions& options_;
  std::vector<double> seconds_;  // of the first layers, as the following
  std::vector<std::uint64_t> bytes_, kept_;
  std::vector<std::unordered_map<std::uint64_t, Value>> memo_{};
};

}  // namespace

Status check_layers(const std::vector<LayerCosts>& layers) {
  if (layers.empty() || layers.size() > kMostLayers) {
    return invalid_argument("a partition has 1 to " + std::to_string(kMostLayers) +
                            " layers, not " + std::to_string(layers.size()));
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!(layers[i].seconds >= 0 && layers[i].seconds <= 1e15)) {
      return invalid_argument("seconds of layer " + std::to_string(i) + " are " +
                              number_text(layers[i].seconds) +
                              "; they must be finite and 0 or more");
    }
    if (layers[i].bytes > kMostLayerBytes || layers[i].kept_bytes > kMostLayerBytes) {
      return invalid_argument("bytes of layer " + std::to_string(i) + " are above 2^40");
    }
  }
  return Status::success();
}

Status partition(const std::vector<LayerCosts>& layers, const PartitionOptions& options,
                 Partition* out) {
  TRIREME_RETURN_IF_ERROR(check_layers(layers));
  const std::uint64_t stages = std::uint64_t{options.ranks} * options.stages_per_rank;
  TRIREME_RETURN_IF_ERROR(check_sizes(options.ranks, stages, 1));
  if (!options.allow_empty && stages > layers.size()) {
    return invalid_argument(std::to_string(layers.size()) + " layers are fewer than " +
                            std::to_string(stages) + " stages, and none may be empty");
  }
  for (const std::uint32_t copies : options.in_flight) {
    // So that the bytes of all layers cannot wrap.
    if (copies > 64)
      return invalid_argument("in_flight is " + std::to_string(copies) + ", above 64");
  }
  if (options.stages_per_rank > 1 && options.placement != Placement::kLoop) {
    if (options.placement == Placement::kV && options.stages_per_rank != 2) {
      return invalid_argument("V has 2 stages a rank, not " +
                              std::to_string(options.stages_per_rank));
    }
    // States times choices of a rank, which has its part of the layers.
    double work = 1;
    const double all = static_cast<double>(layers.size() + 1);
    for (std::uint32_t c = 0; c < options.stages_per_rank && c < kMostChunks; ++c) {
      work *= all * std::max(1.0, all / options.ranks);
    }
    if (options.stages_per_rank > kMostChunks || options.ranks > kMostWaveRanks ||
        work > kMostWork) {
      return unsupported(std::to_string(layers.size()) + " layers with " +
                         std::to_string(options.stages_per_rank) +
                         " stages a rank along a wave have too many cuts; join layers, or take "
                         "fewer stages a rank");
    }
  } else if (stages * (layers.size() + 1) > (std::uint64_t{1} << 28)) {
    return unsupported(std::to_string(layers.size()) + " layers and " + std::to_string(stages) +
                       " stages are too many for one partition");
  }
  return Cutter(layers, options).run(out);
}

}  // namespace trireme::pipeline
