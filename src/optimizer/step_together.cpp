// Optimizer: a step of several optimizers of one rank, with one norm. Experts and the rest of a
// network are such models. Each adds up the squares of its gradients. Their sum is that of all.
#include <algorithm>
#include <atomic>
#include <string>

#include "kernels/hash.hpp"
#include "optimizer/step.hpp"

namespace trireme::strategies {
namespace {

using Optimizers = std::vector<std::shared_ptr<Optimizer>>;

std::string place_of(std::size_t number) { return "optimizers[" + std::to_string(number) + "]"; }

bool same_state(const optimizers::LossScale& one, const optimizers::LossScale& other) {
  return one.scale() == other.scale() && one.state().clean_steps == other.state().clean_steps &&
         one.state().overflows == other.state().overflows;
}

// `first` is optimizers[0], whose norms those of `each` join.
Status check_partner(const StepNorms& first, const StepNorms& each, const std::string& place) {
  if (!each.decides_together()) {
    return invalid_argument(place +
                            " was created without a max_norm and loss_scale, so there is nothing "
                            "that it could have in common with others");
  }
  const optimizers::Settings &own = each.settings(), &others = first.settings();
  if (own.max_norm != others.max_norm || own.group_max_norms != others.group_max_norms) {
    return invalid_argument(place +
                            " has other max_norm than optimizers[0]: both are clipped by "
                            "the same norms to the same limits");
  }
  if (own.loss_scale != others.loss_scale) {
    return invalid_argument(place +
                            " has another loss_scale than optimizers[0]: all skip a step "
                            "together");
  }
  if (same_state(each.loss_scale(), first.loss_scale())) return Status::success();
  return invalid_state("the loss scale of " + place +
                       " has other counts than that of optimizers[0], after steps that they have "
                       "not made together; trireme_optimizer_restore() sets them");
}

// Local, before any rank meets another.
Status check_partners(const Optimizers& given) {
  for (std::size_t i = 0; i < given.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (given[k] == given[i]) return invalid_argument(place_of(i) + " is also " + place_of(k));
    }
    if (given[i]->model()->shard().uneven()) {
      return unsupported(place_of(i) +
                         " has a model with TRIREME_MODEL_FLAG_UNEVEN: all models step together");
    }
    TRIREME_RETURN_IF_ERROR(check_partner(given[0]->norms(), given[i]->norms(), place_of(i)));
  }
  return Status::success();
}

// Of these optimizers together, equal on all of their ranks. It is not 0.
std::uint64_t name_of(const Optimizers& ordered) {
  std::vector<std::uint64_t> names;
  for (const auto& each : ordered) names.push_back(each->norms().identity());
  return kernels::hash(names.data(), names.size() * sizeof names[0], names.size()) | 1;
}

}  // namespace

std::uint64_t next_optimizer() noexcept {
  static std::atomic<std::uint64_t> made = 0;
  return made.fetch_add(1, std::memory_order_relaxed);
}

Status Optimizer::step_together(const Optimizers& given) {
  if (given.size() == 1) return given[0]->step();
  TRIREME_RETURN_IF_ERROR(check_partners(given));
  for (const auto& each : given) TRIREME_RETURN_IF_ERROR(each->check_step());
  for (const auto& each : given) {
    Status status = each->wait_for_caller();
    if (status.ok()) continue;
    // A mistake fails nothing. After a failure ranks may wait for this one in the other models.
    for (const auto& other : given) {
      if (!each->shard_.failure().ok()) other->fail_groups(status.code(), status.message());
    }
    return status;
  }
  // A schedule of the caller may fail, so these come before the first exchange.
  for (const auto& each : given) {
    TRIREME_RETURN_IF_ERROR(each->next_rate(&each->settings_.step_rate));
  }
  // Ranks may name the optimizers in any order, but must come to their exchanges in one.
  Optimizers ordered = given;
  std::sort(ordered.begin(), ordered.end(),
            [](const auto& one, const auto& other) { return one->made_ < other->made_; });
  const std::uint64_t partners = name_of(ordered);
  std::vector<StepNorms*> norms;
  std::vector<Step> steps;
  for (const auto& each : ordered) {
    norms.push_back(&each->norms_);
    steps.emplace_back(*each, partners, false);
  }
  std::size_t reached = 0;  // the last one whose part has begun
  const auto run = [&]() -> Status {
    for (reached = 0; reached < steps.size(); ++reached) {
      ShardView& shard = ordered[reached]->shard_;
      if (shard.on_device() == nullptr) continue;
      // The caller's work may still read the parameters.
      TRIREME_RETURN_IF_ERROR(shard.keep(shard.on_device()->begin()));
    }
    for (reached = 0; reached < steps.size(); ++reached) {
      TRIREME_RETURN_IF_ERROR(steps[reached].reduce());
    }
    // In each of these, its ranks have compared the name of all. So each has the same ranks, and
    // each rank has all sums.
    StepNorms::unite(norms);
    for (Step& each : steps) each.all_go_on();
    for (reached = 0; reached < steps.size(); ++reached) {
      TRIREME_RETURN_IF_ERROR(steps[reached].finish());
    }
    return Status::success();
  };
  const Status status = run();
  if (!status.ok()) {
    for (Step& each : steps) static_cast<void>(each.break_off(status));
    // Ranks that have not come to this step may wait in a group that the failure has not reached.
    // To a failed callback all have come.
    for (const auto& each : ordered) {
      if (status.code() != TRIREME_ERROR_CALLBACK) {
        each->fail_groups(status.code(), status.message());
      }
    }
    return Status(ordered[reached]->shard_.failure());
  }
  // All have the same scale. One whose gradients overflow can name the parameter.
  const auto named = std::find_if(norms.begin(), norms.end(),
                                  [](const StepNorms* each) { return each->has_overflow(); });
  return (named == norms.end() ? norms.front() : *named)->outcome();
}

}  // namespace trireme::strategies
