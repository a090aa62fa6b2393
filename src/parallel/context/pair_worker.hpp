// PairWorker: the parts that both passes have in common: where keys and values of a step lie, the
// call of a pair, and the verdict about callbacks.
#pragma once

#include <trireme/context.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/context/chunks.hpp"
#include "parallel/context/context.hpp"
#include "parallel/context/moves.hpp"
#include "parallel/context/plan.hpp"
#include "parallel/context/visibility.hpp"

namespace trireme::parallel {

struct PassTask {
  const Context& context;
  AttentionPass pass;
  const trireme_attention_arrays& arrays;
  const Visibility& visibility;
  PassMoves& moves;
  std::byte* memory;  // as the plan says
};

class PairWorker {
 public:
  explicit PairWorker(const PassTask& task);

  // All ranks are in the pass, and the keys and values of the first step are here.
  Status bring_keys();
  // CALLBACK if a pair has failed on any rank.
  Status agree();

 protected:
  const Chunks& chunks() const { return task_.context.chunks(); }
  const AttentionShape& shape() const { return task_.context.options().shape; }
  const AttentionMemory& areas() const { return task_.context.plan(task_.pass).memory; }
  const PassTask& task() const { return task_; }
  std::uint32_t rank() const { return task_.context.rank(); }
  float* floats(std::uint64_t area) const { return reinterpret_cast<float*>(task_.memory + area); }
  float* q_slot(std::uint32_t slot) const {
    return floats(areas().q_slots + slot * areas().q_slot_bytes);
  }
  // Where the first row of a chunk lies in an array of this rank's queries.
  template <class Byte>
  Byte* q_rows(Byte* array, std::uint32_t chunk) const {
    return array + chunks().row(chunk) * shape().q_row() * size_;
  }
  template <class Byte>
  Byte* kv_rows(Byte* array, std::uint32_t chunk) const {
    return array + chunks().row(chunk) * shape().kv_row() * size_;
  }
  // Keys and values for the step after this one, if they travel.
  std::optional<Transfer> shift(std::uint32_t step) const;
  void use_step(std::uint32_t step) { step_ = step; }
  trireme_attention_call call_of(std::uint32_t q, std::uint32_t kv) const;
  // Remembers the first failure. After one, pairs are left out.
  void compute(trireme_attention_call* call);
  bool failed() const { return verdict_[0] != 0; }

 private:
  Status gather_keys() const;
  const std::byte* keys_of(std::uint32_t chunk, bool values) const;
  void widen_arrays(trireme_attention_call* call, float** scratch) const;
  void compute_builtin(trireme_attention_call call) const;

  const PassTask& task_;
  const std::uint64_t size_;                // bytes of an element
  std::vector<std::uint64_t> rows_before_;  // of each rank, those of the ranks before
  std::uint32_t step_ = 0;
  std::vector<std::uint64_t> verdict_;
};

}  // namespace trireme::parallel
