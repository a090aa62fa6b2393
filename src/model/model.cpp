#include "model/model.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "collectives/subgroup.hpp"
#include "exchange/agreement.hpp"
#include "kernels/reduce.hpp"
#include "model/options.hpp"
#include "model/replicas.hpp"
#include "model/strategy.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "sharding/leaf_tree.hpp"

namespace trireme::strategies {

using sharding::Fact;
using sharding::Group;
using sharding::Parameter;
using sharding::Range;
using sharding::Unit;
using Event = StepEvent::Kind;

namespace {

constexpr std::uint64_t kDefaultBucketBytes = std::uint64_t{25} << 20;
constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
// As of state: parts of 1 MiB, which stay in the last-level cache.
constexpr std::uint64_t kDefaultFileBuffer = sharding::FilePlan::kSlots << 20;

}  // namespace

Model::Model(std::shared_ptr<Communicator> communicator, const trireme_model_options& options)
    : offload_path_(options.offload_path != nullptr ? options.offload_path : ""), options_([&] {
        trireme_model_options own = options;
        if (own.offload_path != nullptr) own.offload_path = offload_path_.c_str();
        // As checked: all ranks share a host.
        if (own.strategy == TRIREME_STRATEGY_HYBRID_SHARD && own.shard_ranks == 0) {
          own.shard_ranks = static_cast<std::uint32_t>(communicator->world_size());
        }
        return own;
      }()) {
  link_.communicator = std::move(communicator);
  link_.timeout_ns = options.timeout_ns > 0 ? options.timeout_ns : link_.communicator->timeout_ns();
}

Model::~Model() {
  if (number_ != 0) link_.communicator->leave_channels(number_, link_.gathers);
}

Status Model::create(std::shared_ptr<Communicator> communicator,
                     const trireme_model_options& options, std::shared_ptr<Model>* out) {
  TRIREME_RETURN_IF_ERROR(check_model_options(*communicator, options));
  out->reset(new Model(std::move(communicator), options));
  return Status::success();
}

// ---- registration ----

Status Model::add_parameter(const trireme_parameter_options& options, std::uint64_t* out) {
  if (layout_ != nullptr) return invalid_state("the model is sealed");
  TRIREME_RETURN_IF_ERROR(Status(failed_));
  const bool trained = (options.flags & TRIREME_PARAMETER_FLAG_FROZEN) == 0;
  if (options_.reduce_dtype != 0 && options.dtype == TRIREME_DTYPE_F64 && trained) {
    return unsupported("a trained parameter of f64 in a model with reduce_dtype " +
                       std::string(dtype_name(options_.reduce_dtype)));
  }
  return registry_.add(options, out);
}

std::vector<Fact> Model::facts() const {
  std::vector<Fact> facts = {
      {"strategy", strategy_name(options_.strategy)},
      {"gradients", options_.gradients == TRIREME_GRADIENTS_SUM ? "sum" : "average"},
      {"leaves", std::to_string(options_.leaves)},
      {"bucket_bytes", std::to_string(options_.bucket_bytes)},
      {"prefetch_bytes", std::to_string(options_.prefetch_bytes)},
      {"minimum_unit_bytes", std::to_string(options_.minimum_unit_bytes)},
      {"persistent_unit_bytes", std::to_string(options_.persistent_unit_bytes)},
      {"first_bucket_bytes", std::to_string(options_.first_bucket_bytes)},
      {"shard_ranks", std::to_string(options_.shard_ranks)},
      {"shard_stride", std::to_string(options_.shard_stride)},
      {"reshard_ranks", std::to_string(options_.reshard_ranks)},
      {"reduce_dtype", std::to_string(options_.reduce_dtype)},
      {"unused", std::to_string(options_.unused)},
      {"flags", std::to_string(options_.flags)},
      {"share_parameters", std::to_string(options_.share_parameters)},
      {"offload_path", offload_path_.empty() ? "not set" : "set"},
      {"offload_ratio", text_of(options_.offload_ratio)},
      {"offload_buffer_bytes", std::to_string(options_.offload_buffer_bytes)},
      {"memory_limit_bytes", std::to_string(options_.memory_limit_bytes)},
      {"planned_rule",
       options_.planned_rule != 0 ? optimizer_kind_name(options_.planned_rule) : "not set"},
      {"bucket_hook", options_.bucket_hook != nullptr ? "set" : "not set"}};
  for (Fact& fact : registry_.facts()) facts.push_back(std::move(fact));
  return facts;
}

// Memory is read in place by the ranks that it is allocated for. A step gives what is whole to all
// ranks of the model, who have no other way to it there; shards can go through memory between.
Communicator& Model::givers(const sharding::Layout& layout) const {
  const bool whole = std::any_of(layout.groups.begin(), layout.groups.end(), [](const Group& group) {
    return group.shard_ranks == 1 && group.elements > 0;
  });
  return whole ? *link_.communicator : holders();
}

Status Model::allocate(const sharding::Layout& layout) {
  TRIREME_FAILPOINT("seal", "before_allocate");
  Communicator& communicator = *link_.communicator;
  const auto& counter = storage_->allocated;
  const std::uint32_t channel = link_.shard ? 0 : link_.gathers;
  TRIREME_RETURN_IF_ERROR(
      layout.spread.shared
          ? link_.in_model_ranks(
                holders(), storage_->parameters.share(holders(), channel, link_.deadline(), counter,
                                                      MemoryKind::parameters, layout.arena_bytes,
                                                      plan_.parameters))
          : storage_->parameters.allocate(givers(layout), counter, MemoryKind::parameters,
                                          layout.arena_bytes));
  TRIREME_RETURN_IF_ERROR(
      storage_->gradients.allocate(communicator, counter, MemoryKind::gradients, plan_.gradients));
  TRIREME_RETURN_IF_ERROR(
      storage_->working.allocate(communicator, counter, MemoryKind::working, plan_.arena()));
  if (layout.spread.in_file) {
    parameter_file_ = std::make_unique<ParameterFile>(link_, layout, offload_path_);
    TRIREME_RETURN_IF_ERROR(parameter_file_->open(counter));
  }
  if (layout.spread.reshard_ranks == 0) return Status::success();
  Communicator& readers = link_.reshard ? *link_.reshard : communicator;
  return storage_->reshard.allocate(readers, counter, MemoryKind::working, plan_.reshard);
}

sharding::Spread Model::spread_of(trireme_strategy strategy) const {
  sharding::Spread spread;
  spread.strategy = strategy;
  spread.rank = link_.rank();
  spread.world_size = link_.world_size();
  spread.shard_ranks =
      strategy == TRIREME_STRATEGY_HYBRID_SHARD ? options_.shard_ranks : spread.world_size;
  if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
    spread.shard_stride = std::max(options_.shard_stride, 1U);
  }
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
                   link_.communicator->shares_memory());
  spread.in_file = !spread.whole_parameters() && !offload_path_.empty();
  spread.shared = spread.shared && spread.shard_ranks > 1 && !spread.in_file;
  spread.file_ratio = options_.offload_ratio > 0 ? options_.offload_ratio : 1;
  spread.file_buffer_bytes =
      options_.offload_buffer_bytes > 0 ? options_.offload_buffer_bytes : kDefaultFileBuffer;
  const bool again = !spread.whole_parameters() && !spread.shared && options_.reshard_ranks > 1 &&
                     options_.reshard_ranks < spread.shard_ranks;
  spread.reshard_ranks = again ? options_.reshard_ranks : 0;
  return spread;
}

MemoryLimit Model::memory_limit() const {
  MemoryLimit limit;
  limit.bytes = options_.memory_limit_bytes;
  limit.skips = skips();
  limit.uneven = uneven();
  limit.spread_of = [this](trireme_strategy strategy) { return spread_of(strategy); };
  limit.possible = [this](trireme_strategy strategy) {
    trireme_model_options options = options_;
    options.strategy = strategy;
    // By itself it is zero3.
    if (strategy == TRIREME_STRATEGY_HYBRID_SHARD && options.shard_ranks == 0) return false;
    if (strategy < TRIREME_STRATEGY_ZERO3) {
      options.flags &= ~static_cast<std::uint32_t>(TRIREME_MODEL_FLAG_KEEP_GATHERED);
      options.reshard_ranks = 0;
      options.offload_path = nullptr;
      options.offload_ratio = 0;
      options.offload_buffer_bytes = 0;
    }
    if (strategy != TRIREME_STRATEGY_HYBRID_SHARD) {
      options.shard_ranks = options.shard_stride = 0;
    }
    return check_model_options(*link_.communicator, options).ok();
  };
  return limit;
}

Status Model::seal() {
  if (layout_ != nullptr) return invalid_state("the model is sealed");
  TRIREME_RETURN_IF_ERROR(Status(failed_));
  if (registry_.parameters().empty()) return invalid_state("the model has no parameter");
  if (link_.gathers == 0) {
    TRIREME_RETURN_IF_ERROR(
        link_.communicator->take_channels(number_, link_.deadline(), &link_.gathers));
    link_.reductions = link_.gathers + 1;
  }
  const sharding::Spread spread = spread_of(options_.strategy);
  auto layout = std::make_unique<const sharding::Layout>(registry_, spread);
  plan_ = plan_memory(registry_, *layout, skips(), uneven(), spread.rank);
  storage_ = std::make_shared<Storage>();
  const bool hybrid = spread.strategy == TRIREME_STRATEGY_HYBRID_SHARD;
  const bool groups = hybrid || spread.reshard_ranks > 0;
  if (groups || spread.shared || options_.memory_limit_bytes > 0) {
    // Before any group is made or memory shared: ranks that want different ones could not even talk
    // about it. And before the limit is looked at, which is then the same on all ranks.
    failed_ = agree(link_, facts(), Status::success());
    if (failed_.ok()) failed_ = check_plan(*layout);
    if (failed_.ok() && groups) {
      failed_ = make_groups();
      if (!failed_.ok()) end_groups(failed_);
    }
    TRIREME_RETURN_IF_ERROR(Status(failed_));
  }
  if (spread.shared) {
    failed_ =
        agree(link_, {}, storage_->parameters.prepare_to_share(holders(), layout->arena_bytes));
    TRIREME_RETURN_IF_ERROR(Status(failed_));
  }
  failed_ = agree(link_, facts(), allocate(*layout));
  if (!failed_.ok()) {
    parameter_file_.reset();
    storage_.reset();
    return Status(failed_);
  }
  char* const exchange = storage_->working.data();
  char* const slots = exchange + plan_.exchange;
  char* const levels = slots + plan_.slots;
  char* const held = levels + plan_.levels;
  if (plan_.pool > 0) {
    pool_ = std::make_unique<UnitPool>(registry_, *layout, plan_, link_, storage_,
                                       parameter_file_.get(), held + plan_.held);
  }
  const ReducerSettings settings = {
      options_.gradients == TRIREME_GRADIENTS_AVERAGE,
      uneven(),
      (options_.flags & TRIREME_MODEL_FLAG_FIXED_ORDER) != 0,
      options_.unused,
      options_.bucket_hook,
      options_.hook_data,
      [this](std::uint64_t bucket, char* reduced, bool late, bool* done) {
        return update_bucket(bucket, reduced, late, done);
      }};
  char* const rounded = held + plan_.held + plan_.pool;
  reducer_ = std::make_unique<Reducer>(registry_, *layout, plan_, settings, link_, storage_, slots,
                                       levels, held, rounded);
  if (uneven()) attendance_.open(reinterpret_cast<std::int64_t*>(exchange + plan_.attendance));
  uses_.assign(registry_.units().size(), 0);
  units_in_use_.assign(layout->groups.size(), 0);
  layout_ = std::move(layout);
  return Status::success();
}

// hybrid_shard: the ranks that keep one copy of the parameters between them, and those that keep
// the same part of it. With reshard_ranks, those that spread gathered units between them.
Status Model::make_groups() {
  const sharding::Spread spread = spread_of(options_.strategy);
  const auto part = static_cast<std::int32_t>(spread.part_of(link_.rank(), spread.shard_ranks));
  const auto replica =
      static_cast<std::int32_t>(spread.replica_of(link_.rank(), spread.shard_ranks));
  const std::int32_t rank = link_.communicator->rank();
  // A transport carries one group: there the teams are made in each operation.
  if (link_.communicator->options().transport.has_value()) return Status::success();
  const auto make = [&](const char* what, std::int32_t color, std::shared_ptr<Communicator>* out) {
    const ChildOptions options = {link_.communicator->name() + "/model " + std::to_string(number_) +
                                      "/" + what + " " + std::to_string(color),
                                  link_.timeout_ns, link_.gathers};
    return split(*link_.communicator, color, rank, options, out);
  };
  if (spread.strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
    TRIREME_RETURN_IF_ERROR(make("shard", replica, &link_.shard));
    TRIREME_FAILPOINT("seal", "between_groups");
    TRIREME_RETURN_IF_ERROR(make("replicas", part, &link_.replicas));
  }
  if (spread.reshard_ranks == 0) return Status::success();
  TRIREME_FAILPOINT("seal", "before_reshard");
  const auto team = static_cast<std::int32_t>(spread.reshard_team_of(link_.rank()));
  return make("reshard", team, &link_.reshard);
}

// ---- checks ----

Status Model::check_sealed() const {
  if (!failed_.ok()) return Status(failed_);
  if (layout_ == nullptr) return invalid_state("the model is not sealed");
  return Status::success();
}

Status Model::check_unit(std::uint64_t unit) const {
  if (unit < uses_.size()) return Status::success();
  return invalid_argument("unit " + std::to_string(unit) + " of a model with " +
                          std::to_string(uses_.size()));
}

Status Model::check_parameter(std::uint64_t parameter) const {
  const std::size_t count = registry_.parameters().size();
  if (parameter < count) return Status::success();
  return invalid_argument("parameter " + std::to_string(parameter) + " of a model with " +
                          std::to_string(count));
}

Status Model::check_flat(const void* values, const char* what, std::uint64_t count,
                         trireme_dtype dtype, bool gradients) const {
  if (dtype == TRIREME_DTYPE_BYTES && !gradients) {
    std::uint64_t bytes = 0;
    for (const Unit& unit : registry_.units()) bytes += unit.elements * dtype_size(unit.dtype);
    if (count != bytes) {
      return invalid_argument("count " + std::to_string(count) + ", but the model has " +
                              std::to_string(bytes) + " bytes");
    }
    if (what == nullptr || values != nullptr || count == 0) return Status::success();
    return invalid_argument(std::string(what) + " is NULL");
  }
  if (count != registry_.elements()) {
    return invalid_argument("count " + std::to_string(count) + ", but the model has " +
                            std::to_string(registry_.elements()) + " elements");
  }
  // A flat vector of gradients may also have the one type in which all units keep theirs.
  const std::vector<Unit>& units = registry_.units();
  const trireme_dtype common = registry_.common_dtype();
  trireme_dtype wide = gradients && !units.empty() ? gradient_dtype(units[0].dtype) : 0;
  for (const Unit& unit : units) wide = gradient_dtype(unit.dtype) == wide ? wide : 0;
  if (common == 0 && wide == 0) {
    return invalid_argument(
        gradients ? "units of this model have different dtypes, so no flat vector can hold its "
                    "gradients; hand them in by parameter"
                  : "units of this model have different dtypes; give its parameters as bytes, with "
                    "dtype TRIREME_DTYPE_BYTES");
  }
  if (dtype != common && dtype != wide) {
    std::string fits = common != 0 ? dtype_name(common) : dtype_name(wide);
    if (common != 0 && wide != 0 && wide != common) fits += " or " + std::string(dtype_name(wide));
    return invalid_argument(std::string("dtype ") + dtype_name(dtype) + " (" +
                            std::to_string(dtype) + "), but the model's " +
                            (gradients ? "gradients are " : "parameters are ") + fits);
  }
  if (what != nullptr && values == nullptr && count > 0) {
    return invalid_argument(std::string(what) + " is NULL");
  }
  return Status::success();
}

Status Model::check_released(const char* before) const {
  for (std::size_t unit = 0; unit < uses_.size(); ++unit) {
    if (uses_[unit] == 0 || layout_->groups[layout_->group_of[unit]].stays_whole) continue;
    return invalid_state("unit " + std::to_string(unit) + " (" +
                         sharding::quoted(registry_.units()[unit].name) +
                         ") is gathered; release it before " + before);
  }
  return Status::success();
}

// ---- what it looks like ----

Status Model::info(trireme_model_info* out) const {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  out->strategy = options_.strategy;
  out->rank = link_.communicator->rank();
  out->world_size = link_.communicator->world_size();
  out->leaves = options_.leaves;
  out->micro_batches = sharding::rounds(options_.leaves, link_.world_size());
  out->parameters = registry_.parameters().size();
  out->units = registry_.units().size();
  out->elements = registry_.elements();
  out->buckets = layout_->buckets.size();
  out->groups = layout_->groups.size();
  out->shared_bytes = layout_->spread.shared ? layout_->arena_bytes : 0;
  return Status::success();
}

Status Model::unit_info(std::uint64_t unit, trireme_unit_info* out) const {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(check_unit(unit));
  const Unit& described = registry_.units()[unit];
  const Group& group = layout_->groups[layout_->group_of[unit]];
  const std::uint64_t first = layout_->unit_first[unit];
  const sharding::Range shard = intersect(group.owned, {first, described.elements});
  out->dtype = described.dtype;
  out->elements = described.elements;
  out->shard_first = shard.count > 0 ? shard.first - first : 0;
  out->shard_count = shard.count;
  out->flat_first = described.flat_first;
  out->group = layout_->group_of[unit];
  return Status::success();
}

Status Model::memory(trireme_model_memory* out) const {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  out->planned_parameters =
      plan_.parameters + (parameter_file_ != nullptr ? parameter_file_->kept_bytes() : 0);
  out->planned_gradients = plan_.gradients;
  out->planned_optimizer_state = planned_state_;
  out->planned_working = plan_.working() + planned_norm_ + planned_offload_ +
                         reducer_->extra_bytes() + (pool_ != nullptr ? pool_->extra_bytes() : 0);
  AllocatedBytes& allocated = *storage_->allocated;
  out->allocated_parameters = allocated.of(MemoryKind::parameters);
  out->allocated_gradients = allocated.of(MemoryKind::gradients);
  out->allocated_optimizer_state = allocated.of(MemoryKind::optimizer_state);
  out->allocated_working = allocated.of(MemoryKind::working);
  out->planned_step_bytes = plan_step_bytes(*layout_) + planned_directions_;
  out->sent_step_bytes = last_step_bytes_;
  return Status::success();
}

Status Model::statistics(trireme_model_statistics* out) const {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  out->steps = steps_;
  out->gathers = pool_ != nullptr ? pool_->gathers() : 0;
  out->prefetched = pool_ != nullptr ? pool_->prefetched() : 0;
  out->peak_groups = pool_ != nullptr ? pool_->peak() : 0;
  out->reductions = reducer_->reductions();
  out->exposed_ns = link_.exposed_ns;
  out->extra_buckets = reducer_->extra_buckets();
  out->moved_buckets = reducer_->moved_buckets();
  out->reshard_gathers = pool_ != nullptr ? pool_->reshard_gathers() : 0;
  return Status::success();
}

Status Model::offload_info(trireme_offload_info* out) const {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  if (parameter_file_ == nullptr) {
    return invalid_state("the model was created without offload_path");
  }
  parameter_file_->info(out);
  return Status::success();
}

// The peers may have no trouble with their files, and wait.
Status Model::tell_disk(Status status) const {
  if (!status.ok()) fail_groups(status.code(), status.message());
  return status;
}

Status Model::for_each_stretch(std::uint64_t group, Range range, ParameterFile::Access access,
                               const std::function<void(char* data, Range part)>& visit) const {
  const Group& described = layout_->groups[group];
  const std::uint64_t size = dtype_size(described.dtype);
  if (!described.in_file) {
    if (range.count == 0) return Status::success();
    visit(storage_->parameters.data() + described.offset +
              (range.first - described.kept.first) * size,
          range);
    return Status::success();
  }
  while (range.count > 0) {
    const std::uint64_t element = range.first - described.held.first;
    ParameterFile::Window window;
    TRIREME_RETURN_IF_ERROR(parameter_file_->open_window(group, element, access, &window));
    const std::uint64_t skipped = element - window.range.first;
    const std::uint64_t count = std::min(range.count, window.range.count - skipped);
    visit(window.data + skipped * size, {range.first, count});
    range = {range.first + count, range.count - count};
  }
  return Status::success();
}

Status Model::check_replicas() {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  if (reducer_->step_under_way()) return invalid_state("a step is under way");
  TRIREME_RETURN_IF_ERROR(check_released("copies are compared"));
  OptimizerCopies optimizer;
  if (read_copies_ != nullptr) {
    TRIREME_RETURN_IF_ERROR(keep(tell_disk(read_copies_(&optimizer))));
  }
  const Status status = compare_replicas(
      link_, registry_, *layout_,
      [this](std::uint64_t group, Range range, const HashVisit& visit) {
        return tell_disk(for_each_stretch(group, range, ParameterFile::Access::read, visit));
      },
      optimizer);
  // Copies that differ are data; any other failure is the group's.
  return status.code() == TRIREME_ERROR_MISMATCH && link_.communicator->failure().ok()
             ? status
             : keep(status);
}

// ---- parameters ----

char* Model::group_memory(std::uint64_t group) const {
  if (layout_->groups[group].gathered) return pool_->data(group);
  return storage_->parameters.data() + layout_->groups[group].offset;
}

// Where the caller finds a unit that is whole.
char* Model::unit_memory(std::uint64_t unit) const {
  return group_memory(layout_->group_of[unit]) +
         layout_->unit_first[unit] * dtype_size(registry_.units()[unit].dtype);
}

Status Model::broadcast_parameters(const void* values, std::uint64_t count, trireme_dtype dtype,
                             std::int32_t root) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  if (root < 0 || root >= link_.communicator->world_size()) {
    return invalid_argument("root " + std::to_string(root) + " of a world of " +
                            std::to_string(link_.communicator->world_size()));
  }
  const bool is_root = root == link_.communicator->rank();
  TRIREME_RETURN_IF_ERROR(check_flat(values, is_root ? "values" : nullptr, count, dtype, false));
  if (reducer_->step_under_way()) return invalid_state("a step is under way");
  TRIREME_RETURN_IF_ERROR(check_released("the parameters change"));
  TRIREME_RETURN_IF_ERROR(layout_->spread.shared ? keep(set_shared(values, root))
                                                 : give_out(values, root));
  return parameters_set_ != nullptr ? keep(tell_disk(parameters_set_())) : Status::success();
}

Status Model::gather_parameters(void* values, std::uint64_t count, trireme_dtype dtype) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(check_flat(values, "values", count, dtype, false));
  if (reducer_->may_have_updated() || (updates_in_backward() && reducer_->step_under_way())) {
    return invalid_state("a step is under way, in which parameters change by now");
  }
  if (pool_ == nullptr) {
    std::uint64_t at = 0;
    for (const Group& group : layout_->groups) {
      if (group.bytes == 0) continue;
      kernels::copy(static_cast<char*>(values) + at, storage_->parameters.data() + group.offset, group.bytes);
      at += group.bytes;
    }
    return Status::success();
  }
  TRIREME_RETURN_IF_ERROR(keep(attendance_.enter(link_, storage_)));
  attendance_.note(Event::gather_parameters);
  return keep(gather_all(static_cast<char*>(values)));
}

// Every group in turn; `values` is null on a rank that only helps its peers.
Status Model::gather_all(char* values) {
  if (parameter_file_ != nullptr) {
    TRIREME_RETURN_IF_ERROR(tell_disk(parameter_file_->expect_all()));
  }
  std::uint64_t at = 0;
  for (std::size_t number = 0; number < layout_->groups.size(); ++number) {
    const Group& group = layout_->groups[number];
    if (group.elements == 0) continue;
    const bool gathers = group.gathered && units_in_use_[number] == 0;
    if (gathers) TRIREME_RETURN_IF_ERROR(pool_->gather(number));
    Status status = Status::success();
    if (number + 1 < layout_->groups.size() && layout_->groups[number + 1].gathered) {
      status = pool_->prefetch(number + 1);
    }
    if (values != nullptr) kernels::copy(values + at, group_memory(number), group.bytes);
    at += group.bytes;
    if (gathers) pool_->release(number);
    TRIREME_RETURN_IF_ERROR(std::move(status));
  }
  // Often the last call of a job: a rank that leaves with an operation under way would fail its
  // peers in this one.
  TRIREME_RETURN_IF_ERROR(attendance_.settle(link_));
  return pool_->end_pass();
}

Status Model::gather_unit(std::uint64_t unit) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(check_unit(unit));
  const std::uint64_t group = layout_->group_of[unit];
  if (uses_[unit] == 0 && layout_->groups[group].gathered) {
    TRIREME_RETURN_IF_ERROR(keep(attendance_.enter(link_, storage_)));
    if (units_in_use_[group] == 0) TRIREME_RETURN_IF_ERROR(keep(pool_->gather_and_follow(group)));
    attendance_.note(Event::gather_unit, unit);
  }
  if (uses_[unit]++ == 0) ++units_in_use_[group];
  return Status::success();
}

Status Model::release_unit(std::uint64_t unit) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(check_unit(unit));
  if (uses_[unit] == 0) {
    return invalid_state("unit " + std::to_string(unit) + " (" +
                         sharding::quoted(registry_.units()[unit].name) + ") is not gathered");
  }
  const std::uint64_t group = layout_->group_of[unit];
  const bool gathered = layout_->groups[group].gathered;
  // First, as it may fail.
  if (uses_[unit] == 1 && gathered) attendance_.note(Event::release_unit, unit);
  if (--uses_[unit] > 0) return Status::success();
  if (--units_in_use_[group] == 0 && gathered) pool_->release(group);
  return Status::success();
}

Status Model::parameter_data(std::uint64_t parameter, void** out_data,
                             std::uint64_t* out_count) const {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(check_parameter(parameter));
  const Parameter& described = registry_.parameters()[parameter];
  if (!layout_->group_of_parameter(described).stays_whole && uses_[described.unit] == 0) {
    return invalid_state("unit " + std::to_string(described.unit) + " (" +
                         sharding::quoted(registry_.units()[described.unit].name) +
                         ") is not gathered; gather it before, and release it after use");
  }
  *out_data = unit_memory(described.unit) + described.first * dtype_size(described.dtype);
  if (out_count != nullptr) *out_count = described.elements;
  return Status::success();
}

// ---- gradients ----

Status Model::leaf(std::uint32_t micro_batch, std::uint32_t* out) const {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  if (options_.leaves == 0) return invalid_state("the model is not reproducible");
  const std::uint32_t rounds = sharding::rounds(options_.leaves, link_.world_size());
  if (micro_batch >= rounds) {
    return invalid_argument("micro_batch " + std::to_string(micro_batch) + " of " +
                            std::to_string(rounds));
  }
  const std::uint64_t number = std::uint64_t{micro_batch} * link_.world_size() + link_.rank();
  *out = number < options_.leaves ? static_cast<std::uint32_t>(number) : UINT32_MAX;
  return Status::success();
}

Status Model::begin_backward(std::uint32_t flags) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  constexpr std::uint32_t kFlags = TRIREME_BACKWARD_FLAG_NO_SYNC | TRIREME_BACKWARD_FLAG_ABSENT;
  if ((flags & ~kFlags) != 0) {
    return invalid_argument("flags " + std::to_string(flags) + " has a bit that means nothing");
  }
  // First, as it may fail.
  if (!reducer_->in_backward()) TRIREME_RETURN_IF_ERROR(keep(attendance_.enter(link_, storage_)));
  double rate = 0;
  std::shared_ptr<Optimizer> optimizer;
  TRIREME_RETURN_IF_ERROR(find_rate(&rate, &optimizer));
  TRIREME_RETURN_IF_ERROR(reducer_->begin((flags & TRIREME_BACKWARD_FLAG_NO_SYNC) != 0,
                                          (flags & TRIREME_BACKWARD_FLAG_ABSENT) != 0));
  take_rate(optimizer.get(), rate);
  attendance_.note(Event::begin_backward, flags);
  return keep(reducer_->shadow());
}

Status Model::gradient_data(std::uint64_t parameter, void** out_data, std::uint64_t* out_count,
                            trireme_dtype* out_dtype, std::int32_t* out_adds) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(check_parameter(parameter));
  GradientView view;
  TRIREME_RETURN_IF_ERROR(keep(reducer_->view(parameter, &view)));
  const Parameter& described = registry_.parameters()[parameter];
  *out_data = view.data;
  if (out_count != nullptr) *out_count = described.elements;
  if (out_dtype != nullptr) *out_dtype = gradient_dtype(described.dtype);
  *out_adds = view.adds ? 1 : 0;
  return Status::success();
}

Status Model::gradient_ready(std::uint64_t parameter, const void* gradient, std::uint64_t count,
                             trireme_dtype dtype) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(check_parameter(parameter));
  const Parameter& described = registry_.parameters()[parameter];
  const bool fits = dtype == described.dtype || dtype == gradient_dtype(described.dtype);
  if (count != described.elements || !fits) {
    return invalid_argument(
        "gradient of " + std::to_string(count) + " elements of " + dtype_name(dtype) +
        ", but parameter " + std::to_string(parameter) + " (" + sharding::quoted(described.name) +
        ") has " + std::to_string(described.elements) + " of " + dtype_name(described.dtype) +
        (gradient_dtype(described.dtype) == described.dtype ? "" : " or f32"));
  }
  if (gradient == nullptr && count > 0) return invalid_argument("gradient is NULL");
  return keep(reducer_->ready(parameter, {gradient, dtype}, false));
}

Status Model::end_backward() {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(keep(reducer_->end()));
  attendance_.note(Event::end_backward);
  return Status::success();
}

Status Model::accumulate_flat(const void* gradients, std::uint64_t count, trireme_dtype dtype,
                              std::uint32_t flags) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  const bool absent = (flags & TRIREME_BACKWARD_FLAG_ABSENT) != 0;
  TRIREME_RETURN_IF_ERROR(
      check_flat(gradients, absent ? nullptr : "gradients", count, dtype, true));
  if (!absent && !reducer_->is_outside(gradients, count * dtype_size(dtype))) {
    return invalid_argument("gradients lie in the gradients of the model");
  }
  const bool was_open = reducer_->in_backward();
  Status status = accumulate(gradients, dtype, flags, absent);
  // A pass that this call began, and could not end, has no other end: a part of it may be reduced.
  if (!status.ok() && !was_open && reducer_->in_backward() && failed_.ok()) give_up(status);
  return status;
}

Status Model::accumulate(const void* gradients, trireme_dtype dtype, std::uint32_t flags,
                         bool absent) {
  TRIREME_RETURN_IF_ERROR(begin_backward(flags));
  if (absent) return end_backward();
  const std::uint64_t size = dtype_size(dtype);
  for (const std::uint64_t number : reducer_->launch_order_of_targets()) {
    const Parameter& parameter = registry_.parameters()[number];
    const std::uint64_t first = registry_.units()[parameter.unit].flat_first + parameter.first;
    const char* const gradient =
        gradients == nullptr ? nullptr : static_cast<const char*>(gradients) + first * size;
    TRIREME_RETURN_IF_ERROR(keep(reducer_->ready(number, {gradient, dtype}, true)));
  }
  return end_backward();
}

}  // namespace trireme::strategies
