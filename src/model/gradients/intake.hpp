// Gradients that the caller hands in during a backward pass: those that are still missing, and
// their way into the memory of their bucket.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/storage.hpp"
#include "sharding/layout.hpp"
#include "sharding/plan.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

// Memory of a bucket in which the caller writes a gradient. Null data: there is none.
struct GradientView {
  char* data = nullptr;
  bool adds = false;  // to the contents of the memory
};

// Elements from a caller: in the parameter's dtype, or its gradients'. Null: zeros.
struct HandedGradient {
  const void* data = nullptr;
  trireme_dtype dtype = 0;
};

class GradientIntake {
 public:
  GradientIntake(const sharding::Registry& registry, const sharding::Layout& layout,
                 const sharding::MemoryPlan& plan, const std::shared_ptr<Storage>& storage);

  // `held_back`: by bucket; their gradients do not come in the pass. Empty: all come.
  void begin_pass(const std::vector<bool>& held_back);
  // These come now, and no others.
  void begin_held_back(const std::vector<bool>& held_back);
  // The step is over.
  void clear() { used_.assign(used_.size(), false); }

  // Whether the gradient of this name is still to come; the message of a failure is the caller's.
  Status check_awaited(std::uint64_t parameter) const;
  bool awaits(std::uint64_t parameter) const {
    return !registry_.parameters()[parameter].frozen && !handed_[parameter];
  }
  // Names those that are still to come.
  Status check_all_in() const;
  // Whether the gradients of all names of a target are in its bucket.
  bool is_in(std::uint64_t target) const;
  bool is_complete(std::uint64_t bucket) const { return missing_[bucket] == 0; }
  // That of the parameter; kNone: its gradient has no elements.
  std::uint64_t bucket_of(std::uint64_t parameter) const;

  // Where the gradient may be written until it is handed in. `adds`: to the passes before.
  GradientView view(std::uint64_t parameter, bool adds) const;
  void note_view(std::uint64_t parameter) { viewed_[parameter] = true; }
  // Whether a pass that adds to no earlier one has such a place for it.
  bool has_view(std::uint64_t parameter) const {
    return registry_.parameters()[parameter].target == parameter && view_of(parameter) != nullptr;
  }
  // Whether memory of the caller does not overlap the model's gradients.
  bool is_outside(const void* memory, std::uint64_t bytes) const;
  // Whether a gradient is outside, or the view that was asked for.
  Status check_memory(std::uint64_t parameter, HandedGradient gradient) const;

  // Into the memory of its bucket. `adds`: to the passes before.
  void put(std::uint64_t parameter, HandedGradient gradient, char* bucket, bool adds);
  // From now on it counts as handed in. with_aliases: for all its names.
  void note(std::uint64_t parameter, HandedGradient gradient, bool with_aliases);
  // By target: whether it had a gradient on this rank in this step.
  const std::vector<bool>& used() const { return used_; }
  // Another model that holds the target had one.
  void note_used(std::uint64_t target) { used_[target] = true; }

 private:
  bool is_held_back(std::uint64_t parameter, const std::vector<bool>& held_back) const;
  std::uint64_t place_among_names(std::uint64_t parameter) const;
  char* view_of(std::uint64_t target) const;
  void put_segments(std::uint64_t target, HandedGradient gradient, char* bucket, bool add) const;

  const sharding::Registry& registry_;
  const sharding::Layout& layout_;
  const std::shared_ptr<Storage> storage_;
  char* const held_;                    // early gradients of aliases
  std::vector<bool> used_;              // by target, in this step
  std::vector<bool> handed_;            // by parameter, in this pass
  std::vector<bool> viewed_;            // by parameter, in this pass
  std::vector<std::uint64_t> merged_;   // by target: names whose gradient is in
  std::vector<std::uint64_t> missing_;  // by bucket: names still to come
};

}  // namespace trireme::strategies
