#include "layout.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "check.hpp"

namespace gpt {

namespace {

struct DestroyCommunicator {
  void operator()(trireme_communicator* it) const { trireme_communicator_destroy(it); }
};

// Multiplications of a row in forward. Backward has twice as many.
double work_of(const Config& config, std::size_t layer) {
  const double d = config.width;
  if (layer == 0) return d;
  if (layer == static_cast<std::size_t>(config.blocks) + 1) return d * config.vocabulary;
  return 12 * d * d + 2 * d * config.context;
}

}  // namespace

Layout::Layout(trireme_communicator* communicator, const Training& training)
    : config_(training.config) {
  create(communicator, training);
  check(trireme_parallel_get_info(parallel_.get(), &info_));
  if (training.tensor > 0) {
    trireme_tensor* tensor = nullptr;
    check(trireme_parallel_get_tensor(parallel_.get(), &tensor));
    tensor_.reset(tensor);
    split_.emplace(config_, tensor);
  }
  cut();
  own_ = layers_of(info_.pipeline_rank);
  if (info_.pipeline == 1) return;
  trireme_pipeline_schedule* schedule = nullptr;
  check(trireme_parallel_get_schedule(parallel_.get(), &schedule));
  schedule_.reset(schedule);
  check(trireme_parallel_get_communicator(parallel_.get(), TRIREME_PARALLEL_AXIS_PIPELINE,
                                          &pipeline_.communicator));
  pipeline_.schedule = schedule;
  pipeline_.cuts = cuts_.data();
  pipeline_.cut_count = cuts_.size();
}

void Layout::create(trireme_communicator* communicator, const Training& training) {
  trireme_gemm_options products = TRIREME_GEMM_OPTIONS_INIT;
  products.kind = TRIREME_GEMM_KIND_LOADED;
  trireme_tensor_options split = TRIREME_TENSOR_OPTIONS_INIT;
  split.blocks = training.tensor_blocks != 0 ? training.tensor_blocks
                                             : static_cast<std::uint32_t>(config_.heads);
  split.flags = training.sequence ? TRIREME_TENSOR_FLAG_SEQUENCE : 0;
  split.gemm = &products;

  trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
  if (training.strategy == TRIREME_STRATEGY_HYBRID_SHARD)
    options.shard = static_cast<std::int32_t>(training.shard_ranks);
  options.tensor = training.tensor;
  options.pipeline = training.pipeline;
  std::int32_t ranks = 1;
  check(trireme_communicator_get_world_size(communicator, &ranks));
  const int others =
      std::max(1, options.shard) * std::max(1, training.tensor) * std::max(1, training.pipeline);
  const int data = training.data > 0 ? training.data : std::max(1, ranks / others);
  if (data * others != ranks)
    throw std::runtime_error("--data, --shard-ranks, --tensor and --pipeline multiply to " +
                             std::to_string(data * others) + ", but there are " +
                             std::to_string(ranks) + " ranks");
  options.data = data;
  if (training.tensor > 0) options.tensor_options = &split;

  std::vector<trireme_pipeline_stage_costs> stages;
  trireme_pipeline_costs costs = TRIREME_PIPELINE_COSTS_INIT;
  if (training.pipeline > 1) {
    // Each rank has equally many micro-batches in the schedule. A rank without a leaf for the last
    // one sends nothing there.
    const int readers = data * std::max(1, options.shard);
    options.micro_batches = static_cast<std::uint32_t>((training.leaves + readers - 1) / readers);
    options.order = training.order;
    options.stages_per_rank = training.stages_per_rank;
    if (training.order == TRIREME_PIPELINE_ORDER_BEST) {
      stages.resize(
          static_cast<std::size_t>(training.pipeline) * std::max(1u, training.stages_per_rank),
          TRIREME_PIPELINE_STAGE_COSTS_INIT);
      for (trireme_pipeline_stage_costs& each : stages) each.forward = each.input = each.weight = 1;
      costs.stages = stages.data();
      costs.stage_count = stages.size();
      options.costs = &costs;
    }
  }
  trireme_parallel* parallel = nullptr;
  check(trireme_parallel_create(communicator, &options, &parallel));
  parallel_.reset(parallel);
}

void Layout::cut() {
  std::vector<trireme_pipeline_layer_costs> costs;
  for (std::size_t layer = 0; layer < describe(config_).size(); ++layer) {
    trireme_pipeline_layer_costs& each = costs.emplace_back() = TRIREME_PIPELINE_LAYER_COSTS_INIT;
    each.seconds = 3 * work_of(config_, layer);
  }
  cuts_.resize(info_.stages + 1);
  check(trireme_parallel_partition(parallel_.get(), costs.data(), costs.size(), cuts_.data(),
                                   cuts_.size(), nullptr));
}

std::vector<std::size_t> Layout::layers_of(std::int32_t pipeline_rank) const {
  std::vector<std::uint32_t> stages(info_.stages);
  std::uint64_t count = 0;
  check(trireme_parallel_get_stages(parallel_.get(), pipeline_rank, stages.data(), stages.size(),
                                    &count));
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < count; ++i)
    for (std::uint64_t layer = cuts_[stages[i]]; layer < cuts_[stages[i] + 1]; ++layer)
      numbers.push_back(layer);
  return numbers;
}

std::vector<Layer> Layout::all_layers(std::int32_t tensor_rank) const {
  return split_ ? split_->layers(tensor_rank) : describe(config_);
}

std::vector<Layer> Layout::layers() const {
  const std::vector<Layer> all = all_layers(info_.tensor_rank);
  std::vector<Layer> own;
  for (const std::size_t number : own_) own.push_back(all[number]);
  return own;
}

std::vector<Layout::Range> Layout::ranges(std::int32_t tensor_rank,
                                          const std::vector<std::size_t>& numbers) const {
  std::vector<Range> places;
  std::uint64_t first = 0;
  for (const Layer& layer : all_layers(tensor_rank)) {
    const std::uint64_t count = gpt::element_count({layer});
    places.push_back({first, count});
    first += count;
  }
  std::vector<Range> found;
  for (const std::size_t number : numbers) found.push_back(places[number]);
  // The head comes last. Without the embedding it has a copy of the tokens, which come first.
  const bool has_copy = config_.tie && numbers.back() + 1 == places.size() && numbers.front() > 0;
  if (has_copy) found.push_back({0, all_layers(tensor_rank)[0].parameters[0].count()});
  return found;
}

std::uint64_t Layout::element_count() const {
  std::uint64_t count = 0;
  for (const Range& range : ranges(info_.tensor_rank, own_)) count += range.count;
  return count;
}

std::vector<float> Layout::part(const std::vector<float>& whole) const {
  const std::vector<float> all = split_ ? split_->part(info_.tensor_rank, whole) : whole;
  std::vector<float> own;
  for (const Range& range : ranges(info_.tensor_rank, own_)) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(range.first);
    own.insert(own.end(), begin, begin + static_cast<std::ptrdiff_t>(range.count));
  }
  return own;
}

std::vector<float> Layout::gather(const std::vector<float>& own) const {
  trireme_communicator* made = nullptr;
  check(trireme_parallel_create_communicator(
      parallel_.get(), TRIREME_PARALLEL_AXIS_TENSOR | TRIREME_PARALLEL_AXIS_PIPELINE, nullptr,
      &made));
  const std::unique_ptr<trireme_communicator, DestroyCommunicator> group(made);
  std::vector<std::uint64_t> counts;  // of the group's ranks: tensor is faster than pipeline
  std::uint64_t sum = 0;
  for (std::int32_t rank = 0; rank < info_.pipeline * info_.tensor; ++rank) {
    counts.push_back(0);
    for (const Range& range : ranges(rank % info_.tensor, layers_of(rank / info_.tensor)))
      counts.back() += range.count;
    sum += counts.back();
  }
  std::vector<float> parts(sum), whole(gpt::element_count(describe(config_)));
  check(trireme_all_gather_v(made, own.data(), parts.data(), counts.data(), TRIREME_DTYPE_F32,
                             nullptr));
  for (std::int32_t tensor = 0; tensor < info_.tensor; ++tensor) {
    std::vector<float> all(gpt::element_count(all_layers(tensor)));
    const float* from = parts.data();
    for (std::int32_t rank = 0; rank < info_.pipeline * info_.tensor; ++rank) {
      if (rank % info_.tensor != tensor) {
        from += counts[static_cast<std::size_t>(rank)];
        continue;
      }
      for (const Range& range : ranges(tensor, layers_of(rank / info_.tensor))) {
        std::copy_n(from, range.count, all.begin() + static_cast<std::ptrdiff_t>(range.first));
        from += range.count;
      }
    }
    if (!split_) return all;
    split_->put(tensor, all.data(), &whole);
  }
  return whole;
}

}  // namespace gpt
