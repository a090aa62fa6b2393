#include "model/shard_view.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "model/options.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::Group;
using sharding::Range;

namespace {

constexpr std::uint64_t kDefaultBucketBytes = std::uint64_t{25} << 20;
constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
// The same as for state: parts of 1 MiB, which stay in the last-level cache.
constexpr std::uint64_t kDefaultFileBuffer = sharding::FilePlan::kSlots << 20;

}  // namespace

ShardView::ShardView(std::shared_ptr<Communicator> communicator, ModelAxes axes,
                     const ModelOptions& options, const sharding::Placement& placement)
    : Peers(std::move(communicator), std::move(axes)), options_(options), placement_(placement) {
  link_.timeout_ns = options.timeout_ns > 0 ? options.timeout_ns : link_.communicator->timeout_ns();
}

sharding::Spread ShardView::spread_of(trireme_strategy strategy) const {
  sharding::Spread spread;
  spread.strategy = strategy;
  spread.rank = link_.rank();
  const sharding::Placement placement = placement_.with(strategy);
  spread.world_size = placement.world_size();
  spread.shard_ranks = placement.shard_ranks();
  spread.shard_stride = placement.shard_stride();
  spread.whole_rows = (options_.flags & TRIREME_MODEL_FLAG_WHOLE_ROWS) != 0;
  spread.keep_gathered =
      !spread.whole_parameters() &&
      ((options_.flags & TRIREME_MODEL_FLAG_KEEP_GATHERED) != 0 || options_.reshard_ranks == 1);
  spread.update_in_backward = updates_in_backward();
  spread.leaves = options_.leaves;
  spread.reduce_dtype = options_.reduce_dtype;
  spread.bucket_bytes = options_.bucket_bytes > 0 ? options_.bucket_bytes : kDefaultBucketBytes;
  spread.first_bucket_bytes = options_.first_bucket_bytes > 0
                                  ? options_.first_bucket_bytes
                                  : std::min(spread.bucket_bytes, kMebibyte);
  spread.prefetch_bytes = options_.prefetch_bytes;
  spread.minimum_unit_bytes =
      options_.minimum_unit_bytes > 0 ? options_.minimum_unit_bytes : kMebibyte;
  spread.persistent_unit_bytes = options_.persistent_unit_bytes;
  spread.shared = options_.share_parameters == TRIREME_SHARE_ALWAYS ||
                  (options_.share_parameters == TRIREME_SHARE_AUTO && !spread.whole_parameters() &&
                   device_ == nullptr && link_.communicator->one_memory().is_there);
  spread.in_file = !spread.whole_parameters() && !options_.offload_path.empty();
  spread.shared = spread.shared && spread.shard_ranks > 1 && !spread.in_file;
  spread.file_ratio = options_.offload_ratio > 0 ? options_.offload_ratio : 1;
  spread.file_buffer_bytes =
      options_.offload_buffer_bytes > 0 ? options_.offload_buffer_bytes : kDefaultFileBuffer;
  const bool again = !spread.whole_parameters() && !spread.shared && options_.reshard_ranks > 1 &&
                     options_.reshard_ranks < spread.shard_ranks;
  spread.reshard_ranks = again ? options_.reshard_ranks : 0;
  return spread;
}

MemoryLimit ShardView::memory_limit() const {
  MemoryLimit limit;
  limit.bytes = options_.memory_limit_bytes;
  limit.skips = skips();
  limit.uneven = uneven();
  if (device_ != nullptr) {
    limit.device_working = [this](const sharding::Layout& layout, const sharding::MemoryPlan& plan,
                                  std::uint32_t rank) {
      return device_->plan_working(layout, plan, rank);
    };
  }
  limit.spread_of = [this](trireme_strategy strategy) { return spread_of(strategy); };
  limit.possible = [this](trireme_strategy strategy) {
    ModelOptions options = options_;
    options.strategy = strategy;
    // Without copies it is zero3.
    const sharding::StrategyTraits& traits = sharding::traits_of(strategy);
    if (traits.copies && options.shard_ranks == 0) return false;
    if (traits.whole_parameters) {
      options.flags &= ~static_cast<std::uint32_t>(TRIREME_MODEL_FLAG_KEEP_GATHERED);
      options.reshard_ranks = 0;
      options.offload_path.clear();
      options.offload_ratio = 0;
      options.offload_buffer_bytes = 0;
    }
    if (!traits.copies) {
      options.shard_ranks = options.shard_stride = 0;
    }
    sharding::Placement placement;
    return place_model(*link_.communicator, axes_.mesh(), &options, &placement).ok() &&
           check_model_options(*link_.communicator, options, placement).ok();
  };
  return limit;
}

// ---- parameters that this rank holds ----

char* ShardView::parameters_at(const Group& group, std::uint64_t element) const {
  return storage_->parameters.data() + group.offset +
         (element - group.kept.first) * dtype_size(group.dtype);
}

Status ShardView::visit(std::uint64_t group, Range range, ParameterFile::Access access,
                        const std::function<void(char* data, Range part)>& act) const {
  const Group& described = layout_->groups[group];
  const std::uint64_t size = dtype_size(described.dtype);
  if (!described.in_file) {
    if (range.count == 0) return Status::success();
    // While peers read a shard, its place here stays. It has the device's values: they change in
    // steps alone, which end the gathers.
    const bool is_read = pool_ != nullptr && pool_->is_under_way(group);
    if (device_ != nullptr && access != ParameterFile::Access::write && !is_read) {
      TRIREME_RETURN_IF_ERROR(device_->fetch(group, range));
    }
    act(parameters_at(described, range.first), range);
    if (device_ == nullptr || access == ParameterFile::Access::read) return Status::success();
    return device_->place(group, range);
  }
  while (range.count > 0) {
    const std::uint64_t element = range.first - described.held.first;
    ParameterFile::Window window;
    TRIREME_RETURN_IF_ERROR(parameter_file_->open_window(group, element, access, &window));
    const std::uint64_t skipped = element - window.range.first;
    const std::uint64_t count = std::min(range.count, window.range.count - skipped);
    act(window.data + skipped * size, {range.first, count});
    range = {range.first + count, range.count - count};
  }
  return Status::success();
}

Status ShardView::expect_updates() const {
  return parameter_file_ != nullptr ? parameter_file_->expect_updates() : Status::success();
}

Status ShardView::expect_groups(const std::vector<std::uint64_t>& groups) const {
  return parameter_file_ != nullptr ? parameter_file_->expect(groups) : Status::success();
}

Status ShardView::expect_all() const {
  return parameter_file_ != nullptr ? parameter_file_->expect_all() : Status::success();
}

Status ShardView::close_window() const {
  return parameter_file_ != nullptr ? parameter_file_->close_window() : Status::success();
}

// ---- units that are gathered ----

Status ShardView::drop_gathered() const {
  return pool_ != nullptr ? pool_->drop_unused() : Status::success();
}

Status ShardView::end_pass() const {
  return pool_ != nullptr ? pool_->end_pass() : Status::success();
}

bool ShardView::has_copy(std::uint64_t group) const {
  return pool_ != nullptr && pool_->has_copy(group);
}

char* ShardView::group_memory(std::uint64_t group) const {
  const bool gathered = layout_->groups[group].gathered;
  if (device_ != nullptr) {
    return gathered ? device_->units()->data(group)
                    : device_->parameters() + layout_->groups[group].offset;
  }
  if (gathered) return pool_->data(group);
  return storage_->parameters.data() + layout_->groups[group].offset;
}

char* ShardView::unit_memory(std::uint64_t unit) const {
  return group_memory(layout_->group_of[unit]) +
         layout_->unit_first[unit] * dtype_size(registry_.units()[unit].dtype);
}

// ---- the peers, memory ----

std::int64_t* ShardView::told_words() const {
  return reinterpret_cast<std::int64_t*>(storage_->working.data());
}

std::int64_t* ShardView::sum_words() const {
  return reinterpret_cast<std::int64_t*>(storage_->working.data() + plan_.words);
}

// ---- steps ----

Status ShardView::enter_step() { return uneven_.enter(link_, storage_); }

Status ShardView::leave_step(bool own) {
  TRIREME_RETURN_IF_ERROR(reducer_->learn_order());
  reducer_->clear();
  TRIREME_RETURN_IF_ERROR(uneven_.leave(link_, own));
  last_step_bytes_ = std::exchange(link_.given_bytes, 0);
  return Status::success();
}

void ShardView::step_made(std::uint64_t number) {
  ++steps_;
  link_.step = number;
}

// ---- the order of calls ----

Status why_not_sealed(const Status& failed) {
  return failed.ok() ? invalid_state("the model is not sealed") : Status(failed);
}

Status ShardView::check_released(const char* before) const {
  for (std::size_t unit = 0; unit < uses_.size(); ++unit) {
    if (uses_[unit] == 0 || layout_->groups[layout_->group_of[unit]].stays_whole) continue;
    return invalid_state("unit " + std::to_string(unit) + " (" +
                         sharding::quoted(registry_.units()[unit].name) +
                         ") is gathered; release it before " + before);
  }
  return Status::success();
}

// ---- its optimizer ----

Status ShardView::check_no_optimizer() const {
  if (has_optimizer_) return invalid_state("the model has an optimizer");
  return reducer_->step_under_way() ? invalid_state("a step is under way") : Status::success();
}

void ShardView::detach() {
  sink_.reset();
  planned_ = {};
  set_norm_group(nullptr);
  reducer_->exchange().keep_until_step(false);
  reducer_->overflow().watch(false);
  has_optimizer_ = false;
}

}  // namespace trireme::strategies
