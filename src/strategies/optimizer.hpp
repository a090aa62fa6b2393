// Optimizer: the end of a step. State lies with the gradients' owners.
#pragma once

#include <trireme/optimizer_shard.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "optimizers/settings.hpp"
#include "optimizers/shard_update.hpp"
#include "strategies/model.hpp"

namespace trireme::strategies {

class Optimizer {
 public:
  // `options` as read by the boundary.
  static Status create(const std::shared_ptr<Model>& model,
                       const trireme_optimizer_options& options, std::shared_ptr<Optimizer>* out);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  Status step();
  Status set_learning_rate(double learning_rate);
  double learning_rate() const { return settings_.learning_rate; }
  std::uint64_t step_count() const { return steps_; }
  Status gradient_norm(double* out) const;

 private:
  Optimizer(std::shared_ptr<Model> model, const optimizers::Settings& settings)
      : model_(std::move(model)), settings_(settings) {}

  void place_pieces();
  Status run_step();
  Status begin_update(double* out_norm);
  Status update(double gradient_scale);
  Status compare_answers(std::int32_t answer, std::uint64_t parameter);
  Status give_parameters();

  const std::shared_ptr<Model> model_;
  optimizers::Settings settings_;
  Arena state_;
  std::vector<optimizers::Piece> pieces_;
  std::uint64_t steps_ = 0;
  double norm_ = 0;
};

}  // namespace trireme::strategies
