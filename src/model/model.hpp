// Model: parameters that are registered, sealed, and then trained in steps. It checks the order of
// calls; the reducer has gradients, the pool has units in flight. Rooms other than the boundary see
// it as a ShardView.
#pragma once

#include <trireme/model.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/options.hpp"
#include "model/shard_view.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

class Model : private ShardView {
 public:
  // The boundary has read `options`. `count_rule` counts the memory of their planned rule. `moves`
  // are of the device on which the communicator works; null: the host.
  static Status create(std::shared_ptr<Communicator> communicator,
                       std::shared_ptr<DeviceMoves> moves, const ModelOptions& options,
                       CountRule count_rule, std::shared_ptr<Model>* out);
  static Status create_on_mesh(std::shared_ptr<const Mesh> mesh, const ModelOptions& options,
                               CountRule count_rule, std::shared_ptr<Model>* out);
  ~Model();
  // The last step of a model's creation, which cannot fail any more: all ranks count their models.
  void take_number() noexcept {
    number_ = link_.communicator->next_model();
    axes_.take_numbers();
  }
  ShardView& shard() { return *this; }
  using ShardView::check_call;
  using ShardView::communicator;
  using ShardView::fail_groups;

  // The boundary has read both; `placements` are those of the options.
  Status add_parameter(const trireme_parameter_options& options,
                       const std::vector<sharding::AxisPlacement>& placements, std::uint64_t* out);
  Status seal();

  Status info(trireme_model_info* out) const;
  Status unit_info(std::uint64_t unit, trireme_unit_info* out) const;
  Status memory(trireme_model_memory* out) const;
  Status offload_info(trireme_offload_info* out) const;
  Status statistics(trireme_model_statistics* out) const;
  Status check_replicas();
  // In its place: other models of a mesh come to check_replicas(), and hear there that this one
  // does not compare.
  void refuse_replicas(const Status& why);

  Status broadcast_parameters(const void* values, std::uint64_t count, trireme_dtype dtype,
                              std::int32_t root);
  Status gather_parameters(void* values, std::uint64_t count, trireme_dtype dtype);
  // Without `reads` this rank takes part for its peers alone: nothing goes to its device, whose
  // stream may be one that takes no work.
  Status gather_unit(std::uint64_t unit, bool reads = true);
  Status release_unit(std::uint64_t unit, bool reads = true);
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
  // All ranks discard the step because of `why`; null: the caller discards it. Fails if it is too
  // late.
  Status discard(const Status* why);
  // Replaces a missing gradient, for which the others wait.
  Status hand_in_zeros(std::uint64_t parameter);
  // Repeats without data, call by call, this rank's own last step.
  Status follow_step();

 private:
  Model(std::shared_ptr<Communicator> communicator, ModelAxes axes, const ModelOptions& options,
        const sharding::Placement& placement, CountRule count_rule)
      : ShardView(std::move(communicator), std::move(axes), options, placement),
        count_rule_(count_rule) {}

  // The part of seal() that concerns the model's own ranks.
  Status seal_ranks();
  Status seal_on_mesh();
  // Checks that the memory of a layout, with the state of the planned rule, is within the limit.
  Status check_plan(const sharding::Layout& layout) const;
  // The rate of the step, from the optimizer, unless this rank cannot update in it.
  Status find_rate(double* out, std::shared_ptr<UpdateSink>* optimizer) const;
  Status update_bucket(std::uint64_t bucket, char* reduced, bool late, bool* done);
  bool is_read(std::uint64_t bucket) const;
  Status accumulate(const void* gradients, trireme_dtype dtype, std::uint32_t flags, bool absent);
  Status allocate(const sharding::Layout& layout);
  Status gather_all(char* values);

  std::vector<StepEvent> step_to_follow() const;

  const CountRule count_rule_;
  std::uint32_t number_ = 0;                 // in its communicator
  std::vector<std::uint64_t> units_in_use_;  // by group, since seal()
};

inline void fail_to_hand_out(const Model& model) noexcept {
  model.fail_groups(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
}

}  // namespace trireme::strategies
