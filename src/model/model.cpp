#include "model/model.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "collectives/hosts.hpp"
#include "collectives/subgroup.hpp"
#include "exchange/agreement.hpp"
#include "kernels/reduce.hpp"
#include "model/checks.hpp"
#include "model/options.hpp"
#include "model/parameter_setter.hpp"
#include "model/replicas.hpp"
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

// hybrid_shard with shard_ranks 0, of ranks that do not share memory: they must meet first.
Status take_ranks_of_host(const Link& link, const std::vector<Fact>& facts, ModelOptions* options,
                          sharding::Placement* placement) {
  TRIREME_RETURN_IF_ERROR(agree(link, "seal", facts, Status::success()));
  std::vector<std::uint32_t> hosts;
  TRIREME_RETURN_IF_ERROR(gather_hosts(*link.communicator, link.gathers, link.deadline(), &hosts));
  ModelOptions known = *options;
  TRIREME_RETURN_IF_ERROR(ranks_of_a_host(hosts, &known.shard_ranks));
  sharding::Placement placed;
  TRIREME_RETURN_IF_ERROR(place_model(*link.communicator, nullptr, &known, &placed));
  TRIREME_RETURN_IF_ERROR(check_model_options(*link.communicator, known, placed));
  *options = known;
  *placement = placed;
  return Status::success();
}

// Peers read memory in place if it was allocated for them. A step gives whole parameters to all
// ranks of the model, which have no other way to them; shards can go through memory between.
Communicator& readers_of(const Link& link, const sharding::Layout& layout) {
  const bool whole =
      std::any_of(layout.groups.begin(), layout.groups.end(),
                  [](const Group& group) { return group.shard_ranks == 1 && group.elements > 0; });
  return whole ? *link.communicator : link.holders();
}

// hybrid_shard: the ranks that share one copy of the parameters, and the ranks that hold the same
// part of a copy. With reshard_ranks, also the ranks that spread gathered units between them.
Status make_groups(const sharding::Spread& spread, std::uint32_t number, Link* link) {
  const auto part = static_cast<std::int32_t>(spread.part_of(link->rank(), spread.shard_ranks));
  const auto replica =
      static_cast<std::int32_t>(spread.replica_of(link->rank(), spread.shard_ranks));
  const std::int32_t rank = link->communicator->rank();
  // A transport carries one group: there the teams are made in each operation.
  if (link->communicator->options().transport.has_value()) return Status::success();
  const auto make = [&](const char* what, std::int32_t color, std::shared_ptr<Communicator>* out) {
    const ChildOptions options = {link->communicator->name() + "/model " + std::to_string(number) +
                                      "/" + what + " " + std::to_string(color),
                                  link->timeout_ns, link->gathers};
    return split(*link->communicator, color, rank, options, out);
  };
  if (spread.copies()) {
    TRIREME_RETURN_IF_ERROR(make("shard", replica, &link->shard));
    TRIREME_FAILPOINT("seal", "between_groups");
    TRIREME_RETURN_IF_ERROR(make("replicas", part, &link->replicas));
  }
  if (spread.reshard_ranks == 0) return Status::success();
  TRIREME_FAILPOINT("seal", "before_reshard");
  const auto team = static_cast<std::int32_t>(spread.reshard_team_of(link->rank()));
  return make("reshard", team, &link->reshard);
}

// `number`: of the model in its communicator.
Status take_channels(std::uint32_t number, Link* link) {
  if (link->gathers != 0) return Status::success();
  TRIREME_RETURN_IF_ERROR(
      link->communicator->take_channels(number, link->deadline(), &link->gathers));
  link->reductions = link->gathers + 1;
  return Status::success();
}

}  // namespace

Model::~Model() {
  if (number_ != 0) link_.communicator->leave_channels(number_, link_.gathers);
}

Status Model::create(std::shared_ptr<Communicator> communicator, std::shared_ptr<DeviceMoves> moves,
                     const ModelOptions& options, CountRule count_rule,
                     std::shared_ptr<Model>* out) {
  ModelOptions placed = options;
  sharding::Placement placement;
  TRIREME_RETURN_IF_ERROR(place_model(*communicator, nullptr, &placed, &placement));
  TRIREME_RETURN_IF_ERROR(check_model_options(*communicator, placed, placement));
  if (moves != nullptr) TRIREME_RETURN_IF_ERROR(check_device_options(moves->text(), placed));
  out->reset(new Model(std::move(communicator), ModelAxes(), placed, placement, count_rule));
  if (moves != nullptr) {
    Model& made = **out;
    made.device_ = std::make_unique<DeviceShard>(std::move(moves), made.shard(), made.registry_);
  }
  return Status::success();
}

Status Model::create_on_mesh(std::shared_ptr<const Mesh> mesh, const ModelOptions& options,
                             CountRule count_rule, std::shared_ptr<Model>* out) {
  ModelOptions placed = options;
  sharding::Placement placement;
  TRIREME_RETURN_IF_ERROR(place_model(*mesh->parent(), mesh.get(), &placed, &placement));
  std::shared_ptr<Communicator> ranks = mesh->spread(options.contents);
  TRIREME_RETURN_IF_ERROR(check_model_options(*ranks, placed, placement));
  ModelAxes axes(std::move(mesh), placement);
  out->reset(new Model(std::move(ranks), std::move(axes), placed, placement, count_rule));
  return Status::success();
}

// ---- registration ----

Status Model::add_parameter(const trireme_parameter_options& options,
                            const std::vector<sharding::AxisPlacement>& placements,
                            std::uint64_t* out) {
  if (layout_ != nullptr) return invalid_state("the model is sealed");
  TRIREME_RETURN_IF_ERROR(Status(failed_));
  const bool trained = (options.flags & TRIREME_PARAMETER_FLAG_FROZEN) == 0;
  if (options_.reduce_dtype != 0 && options.dtype == TRIREME_DTYPE_F64 && trained) {
    return unsupported("a trained parameter of f64 in a model with reduce_dtype " +
                       std::string(dtype_name(options_.reduce_dtype)));
  }
  trireme_parameter_options placed = options;
  std::vector<sharding::AxisPlacement> checked = placements;
  TRIREME_RETURN_IF_ERROR(placement_.place(&placed, &checked));
  TRIREME_RETURN_IF_ERROR(check_shared(options_, checked));
  return registry_.add(placed, out, std::move(checked));
}

Status Model::allocate(const sharding::Layout& layout) {
  TRIREME_FAILPOINT("seal", "before_allocate");
  Communicator& communicator = *link_.communicator;
  const auto& counter = storage_->allocated;
  const std::uint32_t channel = link_.shard ? 0 : link_.gathers;
  TRIREME_RETURN_IF_ERROR(
      layout.spread.shared
          ? link_.in_model_ranks(link_.holders(),
                                 storage_->parameters.share(
                                     link_.holders(), channel, link_.deadline(), counter,
                                     MemoryKind::parameters, layout.arena_bytes, plan_.parameters))
          : storage_->parameters.allocate(
                readers_of(link_, layout), counter,
                device_ != nullptr ? MemoryKind::working : MemoryKind::parameters,
                layout.arena_bytes));
  TRIREME_RETURN_IF_ERROR(
      storage_->gradients.allocate(communicator, counter, MemoryKind::gradients, plan_.gradients));
  TRIREME_RETURN_IF_ERROR(
      storage_->working.allocate(communicator, counter, MemoryKind::working, plan_.arena()));
  if (device_ != nullptr) TRIREME_RETURN_IF_ERROR(device_->allocate(layout, storage_, plan_.pool));
  if (layout.spread.in_file) {
    parameter_file_ = std::make_unique<ParameterFile>(link_, layout, options_.offload_path);
    TRIREME_RETURN_IF_ERROR(parameter_file_->open(counter));
  }
  if (layout.spread.reshard_ranks == 0) return Status::success();
  Communicator& readers = link_.reshard ? *link_.reshard : communicator;
  return storage_->reshard.allocate(readers, counter, MemoryKind::working, plan_.reshard);
}

Status Model::seal() {
  if (failed_.ok() && layout_ != nullptr) return invalid_state("the model is sealed");
  TRIREME_RETURN_IF_ERROR(Status(failed_));
  if (!axes_.any()) return seal_ranks();
  try {
    return seal_on_mesh();
  } catch (...) {  // other models wait for this one
    axes_.fail(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
    throw;
  }
}

// Every failure of a model is one of all models of the mesh, so that none of them is sealed alone.
Status Model::seal_on_mesh() {
  Status own = take_channels(number_, &link_);
  if (own.ok()) {
    own = agree(link_, "seal", {mesh_fact(axes_.mesh())}, check_tied_units(registry_));
    // Peers whose model is on no mesh do not come along its axes, nor do all ranks then meet.
    if (own.code() == TRIREME_ERROR_MISMATCH) axes_.fail_all_ranks(own);
  }
  if (own.ok()) own = seal_ranks();
  ModelAxes::Sums sums;
  if (own.ok()) sums = {&reducer_->sums(), storage_->allocated};
  failed_ = axes_.agree_on_seal(link_, registry_, describe_sums(options_), sums, own);
  if (failed_.ok()) count_holders(axes_.tied(), &registry_);
  return Status(failed_);
}

Status Model::seal_ranks() {
  const auto facts = [this] {
    std::vector<Fact> all = describe(options_, axes_.mesh());
    for (Fact& fact : registry_.facts()) all.push_back(std::move(fact));
    return all;
  };
  TRIREME_RETURN_IF_ERROR(take_channels(number_, &link_));
  if (sharding::traits_of(options_.strategy).copies && options_.shard_ranks == 0) {
    failed_ = take_ranks_of_host(link_, facts(), &options_, &placement_);
    TRIREME_RETURN_IF_ERROR(Status(failed_));
  }
  if (!link_.communicator->one_memory().known_at_once) {  // so the ranks must have met
    failed_ = agree(link_, "seal", facts(), Status::success());
    if (failed_.ok()) failed_ = check_share(*link_.communicator, options_);
    TRIREME_RETURN_IF_ERROR(Status(failed_));
  }
  const sharding::Spread spread = spread_of(options_.strategy);
  auto layout = std::make_unique<const sharding::Layout>(registry_, spread);
  plan_ = plan_memory(registry_, *layout, skips(), uneven(), spread.rank);
  storage_ = std::make_shared<Storage>();
  const bool groups = spread.copies() || spread.reshard_ranks > 0;
  if (groups || spread.shared || options_.memory_limit_bytes > 0) {
    // Before any group is made or memory is shared: ranks that want different ones could not even
    // compare their wishes. It also comes before the check of the limit, which then is the same on
    // all ranks.
    failed_ = agree(link_, "seal", facts(), Status::success());
    if (failed_.ok()) failed_ = check_plan(*layout);
    if (failed_.ok() && groups) {
      failed_ = make_groups(spread, number_, &link_);
      if (!failed_.ok()) end_groups(failed_);
    }
    TRIREME_RETURN_IF_ERROR(Status(failed_));
  }
  if (spread.shared) {
    failed_ = agree(link_, "seal", {},
                    storage_->parameters.prepare_to_share(link_.holders(), layout->arena_bytes));
    TRIREME_RETURN_IF_ERROR(Status(failed_));
  }
  failed_ = agree(link_, "seal", facts(), allocate(*layout));
  if (!failed_.ok()) {
    parameter_file_.reset();
    storage_.reset();
    if (device_ != nullptr) device_->close();
    return Status(failed_);
  }
  char* const exchange = storage_->working.data();
  if (plan_.pool > 0) {
    pool_ = std::make_unique<UnitPool>(registry_, *layout, plan_, link_, storage_,
                                       parameter_file_.get(), exchange + plan_.pool_at(),
                                       device_ != nullptr ? device_->units() : nullptr);
  }
  const ReducerSettings settings = {
      options_.gradients == TRIREME_GRADIENTS_AVERAGE,
      uneven(),
      (options_.flags & TRIREME_MODEL_FLAG_FIXED_ORDER) != 0,
      skips(),
      options_.unused,
      options_.bucket_hook,
      options_.hook_data,
      [this](std::uint64_t bucket, char* reduced, bool late, bool* done) {
        return update_bucket(bucket, reduced, late, done);
      }};
  reducer_ = std::make_unique<Reducer>(registry_, *layout, plan_, settings, link_, storage_);
  if (uneven()) uneven_.open(reinterpret_cast<std::int64_t*>(exchange + plan_.uneven));
  uses_.assign(registry_.units().size(), 0);
  units_in_use_.assign(layout->groups.size(), 0);
  layout_ = std::move(layout);
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
  out->unit_groups = layout_->groups.size();
  out->shared_bytes = layout_->spread.shared ? layout_->arena_bytes : 0;
  return Status::success();
}

Status Model::unit_info(std::uint64_t unit, trireme_unit_info* out) const {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(check_unit(registry_, unit));
  const Unit& described = registry_.units()[unit];
  const Group& group = layout_->groups[layout_->group_of[unit]];
  const std::uint64_t first = layout_->unit_first[unit];
  const sharding::Range shard = intersect(group.owned, {first, described.elements});
  out->dtype = described.dtype;
  out->elements = described.elements;
  out->shard_first = shard.count > 0 ? shard.first - first : 0;
  out->shard_count = shard.count;
  out->flat_first = described.flat_first;
  out->unit_group = layout_->group_of[unit];
  return Status::success();
}

Status Model::memory(trireme_model_memory* out) const {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  out->planned_parameters =
      plan_.parameters + (parameter_file_ != nullptr ? parameter_file_->kept_bytes() : 0);
  out->planned_gradients = plan_.gradients;
  out->planned_optimizer_state = planned_.state;
  out->planned_working = plan_.working() + planned_.working + planned_.offload +
                         reducer_->buckets().extra_bytes() +
                         (pool_ != nullptr ? pool_->extra_bytes() : 0);
  if (device_ != nullptr) {
    out->planned_working += device_->plan_working(*layout_, plan_, link_.rank()) +
                            (pool_ != nullptr ? pool_->extra_bytes() : 0);
  }
  AllocatedBytes& allocated = *storage_->allocated;
  out->allocated_parameters = allocated.of(MemoryKind::parameters);
  out->allocated_gradients = allocated.of(MemoryKind::gradients);
  out->allocated_optimizer_state = allocated.of(MemoryKind::optimizer_state);
  out->allocated_working = allocated.of(MemoryKind::working);
  out->planned_step_bytes =
      plan_step_bytes(*layout_) + reducer_->sums().given_bytes() + planned_.given;
  out->sent_step_bytes = last_step_bytes_;
  return Status::success();
}

Status Model::statistics(trireme_model_statistics* out) const {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  out->steps = steps_;
  out->gathers = pool_ != nullptr ? pool_->gathers() : 0;
  out->prefetched = pool_ != nullptr ? pool_->prefetched() : 0;
  out->peak_unit_groups = pool_ != nullptr ? pool_->peak() : 0;
  out->reductions = reducer_->exchange().reductions();
  out->exposed_ns = link_.exposed_ns;
  out->extra_buckets = reducer_->buckets().extra_buckets();
  out->moved_buckets = reducer_->order().moved_buckets();
  out->reshard_gathers = pool_ != nullptr ? pool_->reshard_gathers() : 0;
  return Status::success();
}

Status Model::offload_info(trireme_offload_info* out) const {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  if (parameter_file_ == nullptr) {
    return invalid_state("the model was created without options.offload");
  }
  parameter_file_->info(out);
  return Status::success();
}

void Model::refuse_replicas(const Status& why) {
  if (!axes_.sealed()) return;
  try {
    static_cast<void>(axes_.compare_whole(link_, registry_, *layout_, nullptr, why));
  } catch (...) {
    axes_.fail(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
    throw;
  }
}

Status Model::check_replicas() {
  const auto check_state = [this]() -> Status {
    TRIREME_RETURN_IF_ERROR(check_sealed());
    if (reducer_->step_under_way()) return invalid_state("a step is under way");
    TRIREME_RETURN_IF_ERROR(check_released("copies are compared"));
    return device_ != nullptr ? device_->begin() : Status::success();
  };
  Status refused = check_state();
  if (!refused.ok()) {
    refuse_replicas(refused);
    return refused;
  }
  const ReadParameters read = [this](std::uint64_t group, Range range, const HashVisit& act) {
    return report_disk(visit(group, range, ParameterFile::Access::read, act));
  };
  const auto compare_own_ranks = [&]() -> Status {
    OptimizerCopies copies;
    if (const std::shared_ptr<UpdateSink> optimizer = sink_.lock(); optimizer != nullptr) {
      TRIREME_RETURN_IF_ERROR(report_disk(optimizer->read_copies(&copies)));
    }
    return compare_replicas(link_, registry_, *layout_, read, copies);
  };
  try {
    Status found = compare_own_ranks();
    // Different copies are data; any other failure is the group's.
    const bool is_data =
        found.code() == TRIREME_ERROR_MISMATCH && link_.communicator->failure().ok();
    const Status own = found.ok() || is_data ? Status::success() : keep(Status(found));
    // Other models of a mesh wait there, whatever this one has found.
    Status told = axes_.compare_whole(link_, registry_, *layout_, read, own);
    if (!own.ok()) return Status(own);
    // The same goes for what other models tell, which may be that they have failed.
    const bool all_well = link_.communicator->failure().ok() && axes_.are_well();
    if (!told.ok() && !all_well) return keep(std::move(told));
    return found.ok() ? told : found;
  } catch (...) {
    axes_.fail(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
    throw;
  }
}

// ---- parameters ----

Status Model::broadcast_parameters(const void* values, std::uint64_t count, trireme_dtype dtype,
                                   std::int32_t root) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  if (root < 0 || root >= link_.communicator->world_size()) {
    return invalid_argument("root " + std::to_string(root) + " of a world of " +
                            std::to_string(link_.communicator->world_size()));
  }
  const bool is_root = root == link_.communicator->rank();
  TRIREME_RETURN_IF_ERROR(
      check_flat_parameters(registry_, {values, is_root ? "values" : nullptr, count, dtype}));
  if (reducer_->step_under_way()) return invalid_state("a step is under way");
  TRIREME_RETURN_IF_ERROR(check_released("the parameters change"));
  if (device_ != nullptr) {
    const std::uint64_t bytes = is_root ? count * dtype_size(dtype) : 0;
    TRIREME_RETURN_IF_ERROR(keep(device_->begin("values", values, bytes)));
  }
  const ParameterSetter setter(*this, *layout_, storage_, pool_.get(), parameter_file_.get(),
                               device_.get());
  TRIREME_RETURN_IF_ERROR(keep(setter.set(values, root, registry_.common_dtype())));
  if (device_ != nullptr) TRIREME_RETURN_IF_ERROR(keep(device_->place_all()));
  const std::shared_ptr<UpdateSink> optimizer = sink_.lock();
  return optimizer != nullptr ? keep(report_disk(optimizer->parameters_set())) : Status::success();
}

Status Model::gather_parameters(void* values, std::uint64_t count, trireme_dtype dtype) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(check_flat_parameters(registry_, {values, "values", count, dtype}));
  if (reducer_->agreement().asked() || (updates_in_backward() && reducer_->step_under_way())) {
    return invalid_state("a step is under way, in which parameters change by now");
  }
  if (device_ != nullptr) {
    TRIREME_RETURN_IF_ERROR(keep(device_->begin("values", values, count * dtype_size(dtype))));
    if (pool_ == nullptr) return keep(device_->gather(values));
  }
  if (pool_ == nullptr) {
    std::uint64_t at = 0;
    for (const Group& group : layout_->groups) {
      if (group.bytes == 0) continue;
      kernels::copy(static_cast<char*>(values) + at, storage_->parameters.data() + group.offset,
                    group.bytes);
      at += group.bytes;
    }
    return Status::success();
  }
  TRIREME_RETURN_IF_ERROR(keep(enter_step()));
  uneven_.note(Event::gather_parameters);
  return keep(gather_all(static_cast<char*>(values)));
}

// Every group in turn; `values` is null on a rank that only helps its peers.
Status Model::gather_all(char* values) {
  if (parameter_file_ != nullptr) {
    TRIREME_RETURN_IF_ERROR(report_disk(parameter_file_->expect_all()));
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
    if (values != nullptr && device_ == nullptr) {
      kernels::copy(values + at, group_memory(number), group.bytes);
    } else if (values != nullptr && status.ok()) {
      ModelDevice& device = device_->device();
      status =
          device_->report(gathers ? device.write(values + at, pool_->data(number), group.bytes)
                                  : device.copy(values + at, group_memory(number), group.bytes));
    }
    at += group.bytes;
    if (gathers) pool_->release(number);
    TRIREME_RETURN_IF_ERROR(std::move(status));
  }
  // This is often the last call of a job: a rank that leaves with an operation under way would fail
  // its peers in this one.
  TRIREME_RETURN_IF_ERROR(uneven_.settle(link_));
  return pool_->end_pass();
}

Status Model::gather_unit(std::uint64_t unit, bool reads) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(check_unit(registry_, unit));
  const std::uint64_t group = layout_->group_of[unit];
  if (uses_[unit] == 0 && layout_->groups[group].gathered) {
    const bool gives = device_ != nullptr && reads;
    if (gives) TRIREME_RETURN_IF_ERROR(keep(device_->check_caller()));
    TRIREME_RETURN_IF_ERROR(keep(enter_step()));
    if (units_in_use_[group] == 0) {
      TRIREME_RETURN_IF_ERROR(keep(pool_->gather_and_follow(group)));
      if (gives) {
        TRIREME_RETURN_IF_ERROR(keep(device_->give_unit(
            group, pool_->data(group), pool_->place_of(group), pool_->room(group))));
      }
    }
    uneven_.note(Event::gather_unit, unit);
  }
  if (uses_[unit]++ == 0) ++units_in_use_[group];
  return Status::success();
}

Status Model::release_unit(std::uint64_t unit, bool reads) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(check_unit(registry_, unit));
  if (uses_[unit] == 0) {
    return invalid_state("unit " + std::to_string(unit) + " (" +
                         sharding::quoted(registry_.units()[unit].name) + ") is not gathered");
  }
  const std::uint64_t group = layout_->group_of[unit];
  const bool gathered = layout_->groups[group].gathered;
  // These come first, because they may fail.
  if (uses_[unit] == 1 && gathered) {
    if (device_ != nullptr && units_in_use_[group] == 1) {
      TRIREME_RETURN_IF_ERROR(keep(device_->release_unit(group, !reads)));
    }
    uneven_.note(Event::release_unit, unit);
  }
  if (--uses_[unit] > 0) return Status::success();
  if (--units_in_use_[group] == 0 && gathered) pool_->release(group);
  return Status::success();
}

Status Model::parameter_data(std::uint64_t parameter, void** out_data,
                             std::uint64_t* out_count) const {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(check_parameter(registry_, parameter));
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
  // This comes first, because it may fail.
  if (!reducer_->passes().in_backward()) TRIREME_RETURN_IF_ERROR(keep(enter_step()));
  double rate = 0;
  std::shared_ptr<UpdateSink> optimizer;
  TRIREME_RETURN_IF_ERROR(find_rate(&rate, &optimizer));
  TRIREME_RETURN_IF_ERROR(reducer_->begin((flags & TRIREME_BACKWARD_FLAG_NO_SYNC) != 0,
                                          (flags & TRIREME_BACKWARD_FLAG_ABSENT) != 0));
  // The step keeps this rate, whatever is set until it ends.
  if (optimizer != nullptr) optimizer->take_rate(rate);
  uneven_.note(Event::begin_backward, flags);
  return keep(reducer_->launch_if_absent());
}

Status Model::gradient_data(std::uint64_t parameter, void** out_data, std::uint64_t* out_count,
                            trireme_dtype* out_dtype, std::int32_t* out_adds) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(check_parameter(registry_, parameter));
  GradientView view;
  TRIREME_RETURN_IF_ERROR(keep(reducer_->view(parameter, &view)));
  if (device_ != nullptr) view = {};  // buckets are memory of the host
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
  TRIREME_RETURN_IF_ERROR(check_parameter(registry_, parameter));
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
  HandedGradient handed{gradient, dtype};
  if (device_ != nullptr) {
    // Memory of the host is as long as the longest trained gradient. A frozen one may be longer.
    TRIREME_RETURN_IF_ERROR(keep(reducer_->check_awaited(parameter)));
    TRIREME_RETURN_IF_ERROR(keep(device_->begin("gradient", gradient, count * dtype_size(dtype))));
    TRIREME_RETURN_IF_ERROR(keep(device_->fetch(&handed, count)));
  }
  return keep(reducer_->ready(parameter, handed, false));
}

Status Model::end_backward() {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  TRIREME_RETURN_IF_ERROR(keep(reducer_->end()));
  uneven_.note(Event::end_backward);
  return Status::success();
}

Status Model::accumulate_flat(const void* gradients, std::uint64_t count, trireme_dtype dtype,
                              std::uint32_t flags) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  const bool absent = (flags & TRIREME_BACKWARD_FLAG_ABSENT) != 0;
  TRIREME_RETURN_IF_ERROR(
      check_flat_gradients(registry_, {gradients, absent ? nullptr : "gradients", count, dtype}));
  if (!absent && !reducer_->intake().is_outside(gradients, count * dtype_size(dtype))) {
    return invalid_argument("gradients lie in the gradients of the model");
  }
  if (device_ != nullptr && !absent) {
    TRIREME_RETURN_IF_ERROR(
        keep(device_->begin("gradients", gradients, count * dtype_size(dtype))));
  }
  const bool was_open = reducer_->passes().in_backward();
  Status status = accumulate(gradients, dtype, flags, absent);
  // A pass that this call began, and could not end, has no other end: a part of it may be reduced.
  if (!status.ok() && !was_open && reducer_->passes().in_backward() && failed_.ok())
    give_up(status);
  return status;
}

Status Model::accumulate(const void* gradients, trireme_dtype dtype, std::uint32_t flags,
                         bool absent) {
  TRIREME_RETURN_IF_ERROR(begin_backward(flags));
  if (absent) return end_backward();
  const std::uint64_t size = dtype_size(dtype);
  for (const std::uint64_t number : reducer_->order().targets()) {
    const Parameter& parameter = registry_.parameters()[number];
    const std::uint64_t first = registry_.units()[parameter.unit].flat_first + parameter.first;
    const char* const gradient =
        gradients == nullptr ? nullptr : static_cast<const char*>(gradients) + first * size;
    HandedGradient handed{gradient, dtype};
    if (device_ != nullptr)
      TRIREME_RETURN_IF_ERROR(keep(device_->fetch(&handed, parameter.elements)));
    TRIREME_RETURN_IF_ERROR(keep(reducer_->ready(number, handed, true)));
  }
  return end_backward();
}

}  // namespace trireme::strategies
