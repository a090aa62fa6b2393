// Model: parameters that are registered, sealed, and then trained in steps. The order of calls is
// checked here; gradients are the reducer's, units in flight the pool's.
#pragma once

#include <trireme/model.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exchange/storage.hpp"
#include "model/attendance.hpp"
#include "model/gradients/reducer.hpp"
#include "model/memory_limit.hpp"
#include "model/replicas.hpp"
#include "model/units/unit_pool.hpp"
#include "offload/parameter_file.hpp"
#include "platform/status.hpp"
#include "sharding/layout.hpp"
#include "sharding/plan.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

class Optimizer;
class Trainer;

class Model {
 public:
  // `options` as read by the boundary.
  static Status create(std::shared_ptr<Communicator> communicator,
                       const trireme_model_options& options, std::shared_ptr<Model>* out);
  ~Model();
  // The last step of its creation, when nothing can fail any more: all ranks count the models.
  void take_number() noexcept { number_ = link_.communicator->next_model(); }
  Communicator& communicator() const { return *link_.communicator; }
  // Fails all its groups: this rank cannot go on in what all ranks do step by step.
  void fail_groups(trireme_status code, std::string_view why) const noexcept;
  // No call may come from inside the caller's own hook or rule, in the middle of another one.
  Status check_call() const {
    if (!link_.in_callback.load(std::memory_order_relaxed)) [[likely]] return Status::success();
    return invalid_state("called from inside a layer, bucket hook or update rule of the model");
  }

  Status add_parameter(const trireme_parameter_options& options, std::uint64_t* out);
  Status seal();

  Status info(trireme_model_info* out) const;
  Status unit_info(std::uint64_t unit, trireme_unit_info* out) const;
  Status memory(trireme_model_memory* out) const;
  Status offload_info(trireme_offload_info* out) const;
  Status statistics(trireme_model_statistics* out) const;
  Status check_replicas();

  Status broadcast_parameters(const void* values, std::uint64_t count, trireme_dtype dtype,
                        std::int32_t root);
  Status gather_parameters(void* values, std::uint64_t count, trireme_dtype dtype);
  Status gather_unit(std::uint64_t unit);
  Status release_unit(std::uint64_t unit);
  Status parameter_data(std::uint64_t parameter, void** out_data, std::uint64_t* out_count) const;

  Status leaf(std::uint32_t micro_batch, std::uint32_t* out) const;
  Status begin_backward(std::uint32_t flags);
  Status gradient_data(std::uint64_t parameter, void** out_data, std::uint64_t* out_count,
                       trireme_dtype* out_dtype, std::int32_t* out_adds);
  Status gradient_ready(std::uint64_t parameter, const void* gradient, std::uint64_t count,
                        trireme_dtype dtype);
  Status end_backward();
  Status accumulate_flat(const void* gradients, std::uint64_t count, trireme_dtype dtype,
                         std::uint32_t flags);
  Status discard_gradients() { return discard(nullptr); }

 private:
  friend class Optimizer;
  friend class Trainer;

  Model(std::shared_ptr<Communicator> communicator, const trireme_model_options& options);

  // How the parameters would lie with a strategy and the options of this model.
  sharding::Spread spread_of(trireme_strategy strategy) const;
  MemoryLimit memory_limit() const;
  // Whether what a layout holds, with the state of the rule that is planned, is within the limit.
  Status check_plan(const sharding::Layout& layout) const;
  bool skips() const { return options_.unused == TRIREME_UNUSED_SKIP; }
  bool uneven() const { return (options_.flags & TRIREME_MODEL_FLAG_UNEVEN) != 0; }
  bool updates_in_backward() const {
    return (options_.flags & TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD) != 0;
  }
  // Of the step, from the optimizer, unless something keeps this rank from updating in it.
  Status find_rate(double* out, std::shared_ptr<Optimizer>* optimizer) const;
  void take_rate(Optimizer* optimizer, double rate);
  Status update_bucket(std::uint64_t bucket, char* reduced, bool late, bool* done);
  bool is_read(std::uint64_t bucket) const;
  // `why` all ranks discard the step; null: the caller does. Fails if it is too late for that.
  Status discard(const Status* why);
  Status accumulate(const void* gradients, trireme_dtype dtype, std::uint32_t flags, bool absent);
  Status allocate(const sharding::Layout& layout);
  Status give_out(const void* values, std::int32_t root);
  Status set_shared(const void* values, std::int32_t root);
  Status broadcast(void* memory, std::uint64_t count, trireme_dtype dtype, std::int32_t root,
                   std::shared_ptr<const void> owner);
  std::vector<sharding::Fact> facts() const;
  // Whether the model is sealed and has not failed.
  Status check_sealed() const;
  // `gradients`: they may be of the gradients' dtype too.
  Status check_flat(const void* values, const char* what, std::uint64_t count, trireme_dtype dtype,
                    bool gradients) const;
  Status check_unit(std::uint64_t unit) const;
  Status check_parameter(std::uint64_t parameter) const;
  Status check_released(const char* before) const;
  // Remembers a failure that leaves this rank's part of the model undefined. Others are the
  // caller's mistakes, or memory that a later call may find.
  Status keep(Status status);
  void give_up(const Status& status);
  void end_groups(const Status& status) const noexcept;
  // Fails all its groups if this rank alone cannot go on, for which the others would wait.
  void tell(const Status& status) const noexcept;
  char* group_memory(std::uint64_t group) const;
  char* unit_memory(std::uint64_t unit) const;
  Status gather_all(char* values);
  Status make_groups();
  // The ranks that keep one copy of the parameters between them.
  Communicator& holders() const { return link_.shard ? *link_.shard : *link_.communicator; }

  Communicator& givers(const sharding::Layout& layout) const;

  // What this rank holds of a parameter.
  bool lie_in_file(std::uint64_t parameter) const {
    return parameter_file_ != nullptr &&
           layout_->group_of_parameter(registry_.parameters()[parameter]).in_file;
  }
  // Stretches of what this rank holds of a group, in order, each side by side in memory while it is
  // visited. Fails for itself alone.
  Status for_each_stretch(std::uint64_t group, sharding::Range range, ParameterFile::Access access,
                          const std::function<void(char* data, sharding::Range part)>& visit) const;
  Status tell_disk(Status status) const;

  const std::string offload_path_;       // or empty
  const trireme_model_options options_;  // with that path
  Link link_;
  std::uint32_t number_ = 0;  // in its communicator
  // Where other models wait for this one, while it has an optimizer with norm_ranks; or null.
  std::shared_ptr<Communicator> norm_group_;
  sharding::Registry registry_;
  Status failed_ = Status::success();

  // Since seal().
  std::unique_ptr<const sharding::Layout> layout_;
  sharding::MemoryPlan plan_;
  std::shared_ptr<Storage> storage_;
  std::unique_ptr<ParameterFile> parameter_file_;  // with offload_path
  std::unique_ptr<UnitPool> pool_;                 // if there are groups to gather
  std::unique_ptr<Reducer> reducer_;
  std::vector<std::uint64_t> uses_;          // by unit: gathers without their release
  std::vector<std::uint64_t> units_in_use_;  // by group
  Attendance attendance_;                    // uneven

  bool has_optimizer_ = false;
  std::weak_ptr<Optimizer> optimizer_;  // with updates_in_backward()
  // Of the optimizer, which may keep more of them; or null.
  std::function<Status()> parameters_set_;
  std::function<Status(OptimizerCopies*)> read_copies_;  // that are compared with the parameters
  std::uint64_t planned_state_ = 0;
  std::uint64_t planned_norm_ = 0;        // working memory of an optimizer for its norms
  std::uint64_t planned_offload_ = 0;     // and for state that lies in a file
  std::uint64_t planned_directions_ = 0;  // that it gives in a step
  std::uint64_t last_step_bytes_ = 0;
  std::uint64_t steps_ = 0;
};

constexpr std::string_view kNoMemory = "no memory left in the middle of a call";
inline void fail_to_hand_out(const Model& model) noexcept {
  model.fail_groups(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
}

}  // namespace trireme::strategies
