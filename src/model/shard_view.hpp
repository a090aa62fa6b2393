// ShardView: the view of a model for optimizers, update rules, trainers and checkpoints. A model
// has one from its beginning; its options are there at once, and the rest once the model is sealed.
#pragma once

#include <trireme/model.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exchange/storage.hpp"
#include "model/device_shard.hpp"
#include "model/uneven_inputs.hpp"
#include "model/gradients/reducer.hpp"
#include "model/memory_limit.hpp"
#include "model/options.hpp"
#include "model/peers.hpp"
#include "model/replicas.hpp"
#include "model/units/unit_pool.hpp"
#include "offload/parameter_file.hpp"
#include "platform/status.hpp"
#include "sharding/layout.hpp"
#include "sharding/plan.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

// The calls of a model to its optimizer.
class UpdateSink {
 public:
  virtual ~UpdateSink() = default;
  // The rate of the next step, by the schedule.
  virtual Status next_rate(double* out) = 0;
  // Update in backward: the rate with which the step goes on; a reduced bucket; and a step that
  // this rank discards and others may make.
  virtual void take_rate(double rate) = 0;
  virtual Status update_bucket(std::uint64_t bucket, char* reduced) = 0;
  virtual void tell_discarded(const HookAnswer& hook) = 0;
  // The caller has set all parameters: an optimizer may hold further copies of them.
  virtual Status parameters_set() = 0;
  // The data to compare with the other ranks'.
  virtual Status read_copies(OptimizerCopies* out) const = 0;
};

// Bytes that an optimizer adds to the plan of a model.
struct OptimizerBytes {
  std::uint64_t state = 0;
  std::uint64_t working = 0;  // memory of its step
  std::uint64_t offload = 0;  // and for state in a file
  std::uint64_t given = 0;    // sent to peers in a step, besides parameters
};

// The refusal of a call that needs a sealed model. `failed`: the model's failure, or success.
[[gnu::cold]] Status why_not_sealed(const Status& failed);

class ShardView : public Peers {
 public:
  // ---- what lies where ----
  const ModelOptions& options() const { return options_; }
  const sharding::Registry& registry() const { return registry_; }
  const sharding::Layout& layout() const { return *layout_; }
  bool skips() const { return options_.unused == TRIREME_UNUSED_SKIP; }
  bool uneven() const { return (options_.flags & TRIREME_MODEL_FLAG_UNEVEN) != 0; }
  bool updates_in_backward() const {
    return (options_.flags & TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD) != 0;
  }
  // The limit and the model's planned memory, to which an optimizer adds its own.
  MemoryLimit memory_limit() const;

  // ---- parameters that this rank holds ----
  // Whether those of a parameter lie in a file.
  bool lie_in_file(std::uint64_t parameter) const {
    return parameter_file_ != nullptr &&
           layout_->group_of_parameter(registry_.parameters()[parameter]).in_file;
  }
  // The place of an element of a group that is in no file.
  char* parameters_at(const sharding::Group& group, std::uint64_t element) const;
  // Visits stretches of this rank's part of a group, in order; each stretch is contiguous in memory
  // during its visit. A failure is of this rank alone.
  Status visit(std::uint64_t group, sharding::Range range, ParameterFile::Access access,
               const std::function<void(char* data, sharding::Range part)>& act) const;
  // Without a file these have no effect. They begin to read for the next visits: this rank's own
  // elements, all of some groups, or everything. At the end, changed blocks go to the file.
  Status expect_updates() const;
  Status expect_groups(const std::vector<std::uint64_t>& groups) const;
  Status expect_all() const;
  Status close_window() const;
  // Gives the parameters that a step has updated, or that the caller has written to ranges, frozen
  // ones too: ranks that hold the same elements receive the elements that the others own.
  enum class Given { updated, written };
  Status give_parameters(Given what);

  // Null: the model is on the host. Else parameters_at() has no values but those fetched from here.
  DeviceShard* on_device() const { return device_.get(); }

  // ---- units that are gathered ----
  // Before shards change: no copy may be read later, and no peer may still read a shard of this
  // rank.
  Status drop_gathered() const;
  Status end_pass() const;
  // Whether a copy of the group stays here, which would hide a change of its shard from a gather.
  bool has_copy(std::uint64_t group) const;
  // The caller's memory of a whole unit.
  char* unit_memory(std::uint64_t unit) const;

  // ---- gradients, memory ----
  Reducer& gradients() const { return *reducer_; }
  UnevenInputs& uneven_inputs() { return uneven_; }
  const std::shared_ptr<Storage>& storage() const { return storage_; }
  // Working memory that peers read: each rank's words for the others, and the sums of a step.
  std::int64_t* told_words() const;
  std::int64_t* sum_words() const;

  // ---- steps ----
  // This rank has data for the step.
  Status enter_step();
  // Drops the gradients. `own`: this rank had data for the step.
  Status leave_step(bool own);
  // The step of this number is complete.
  void step_made(std::uint64_t number);
  std::uint64_t last_step_bytes() const { return last_step_bytes_; }

  // ---- the order of calls ----
  // Whether the model is sealed and has not failed.
  Status check_sealed() const {
    if (failed_.ok() && layout_ != nullptr) [[likely]]
      return Status::success();
    return why_not_sealed(failed_);
  }
  Status check_released(const char* before) const;
  Status check_no_optimizer() const;

  // ---- its optimizer ----
  // There is one from now on, until detach().
  void attach() { has_optimizer_ = true; }
  void detach();
  void set_sink(std::weak_ptr<UpdateSink> sink) { sink_ = std::move(sink); }
  OptimizerBytes& planned() { return planned_; }

 protected:
  ShardView(std::shared_ptr<Communicator> communicator, ModelAxes axes, const ModelOptions& options,
            const sharding::Placement& placement);
  ~ShardView() = default;

  // The spread of the parameters with a strategy and the options of this model.
  sharding::Spread spread_of(trireme_strategy strategy) const;
  char* group_memory(std::uint64_t group) const;

  // shard_ranks may be 0 until seal(), see take_ranks_of_host().
  ModelOptions options_;
  sharding::Placement placement_;
  sharding::Registry registry_;

  std::unique_ptr<DeviceShard> device_;  // or null

  // Set by seal().
  std::unique_ptr<const sharding::Layout> layout_;
  sharding::MemoryPlan plan_;
  std::shared_ptr<Storage> storage_;
  std::unique_ptr<ParameterFile> parameter_file_;  // with options.offload
  std::unique_ptr<UnitPool> pool_;                 // if there are groups to gather
  std::unique_ptr<Reducer> reducer_;
  std::vector<std::uint64_t> uses_;  // by unit: gathers without their release
  UnevenInputs uneven_;              // uneven

  bool has_optimizer_ = false;
  std::weak_ptr<UpdateSink> sink_;
  OptimizerBytes planned_;
  std::uint64_t last_step_bytes_ = 0;
  std::uint64_t steps_ = 0;
};

// Memory of the model, on the host.
inline Status allocate(const ShardView& shard, Arena* out, MemoryKind kind, std::uint64_t bytes) {
  return out->allocate(shard.communicator(), shard.storage()->allocated, kind, bytes);
}

}  // namespace trireme::strategies
