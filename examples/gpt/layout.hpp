// Layout: the ranks along the axes "data", "shard", "tensor" and "pipeline", and what each of them
// holds of the model.
#pragma once

#include <trireme/trireme.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "split.hpp"
#include "train.hpp"

namespace gpt {

class Layout {
 public:
  Layout(trireme_communicator* communicator, const Training& training);

  const trireme_parallel_info& info() const { return info_; }
  trireme_parallel* parallel() const { return parallel_.get(); }
  // Null without --tensor.
  trireme_tensor* tensor() const { return tensor_.get(); }
  // Null if there is 1 rank along "pipeline".
  const trireme_trainer_pipeline_options* pipeline() const {
    return info_.pipeline > 1 ? &pipeline_ : nullptr;
  }

  // The numbers of this rank's layers in the whole model, and these layers with the shapes that it
  // holds.
  const std::vector<std::size_t>& numbers() const { return own_; }
  std::vector<Layer> layers() const;
  // Whether every rank along "tensor" holds all of a parameter.
  bool is_whole(std::size_t number, std::size_t place) const {
    return split_ && split_->is_whole(number, place);
  }
  // Of this rank's parameters.
  std::uint64_t element_count() const;
  // This rank's parameters, from those of the model.
  std::vector<float> part(const std::vector<float>& whole) const;
  // This rank's parameters in, all of them out. All ranks call it.
  std::vector<float> gather(const std::vector<float>& own) const;

 private:
  struct Destroy {
    void operator()(trireme_parallel* it) const { trireme_parallel_destroy(it); }
    void operator()(trireme_tensor* it) const { trireme_tensor_destroy(it); }
    void operator()(trireme_pipeline_schedule* it) const { trireme_pipeline_schedule_destroy(it); }
  };
  struct Range {
    std::uint64_t first, count;
  };

  void create(trireme_communicator* communicator, const Training& training);
  void cut();
  std::vector<std::size_t> layers_of(std::int32_t pipeline_rank) const;
  std::vector<Layer> all_layers(std::int32_t tensor_rank) const;
  // Where the parameters of some layers lie among all those of a rank along "tensor".
  std::vector<Range> ranges(std::int32_t tensor_rank,
                            const std::vector<std::size_t>& numbers) const;

  const Config config_;
  std::unique_ptr<trireme_parallel, Destroy> parallel_;
  trireme_parallel_info info_ = TRIREME_PARALLEL_INFO_INIT;
  std::unique_ptr<trireme_tensor, Destroy> tensor_;
  std::optional<Split> split_;
  std::unique_ptr<trireme_pipeline_schedule, Destroy> schedule_;
  std::vector<std::uint64_t> cuts_;
  std::vector<std::size_t> own_;
  trireme_trainer_pipeline_options pipeline_ = TRIREME_TRAINER_PIPELINE_OPTIONS_INIT;
};

}  // namespace gpt
