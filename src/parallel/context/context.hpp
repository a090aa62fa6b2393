// Context: one attention whose positions lie on several ranks. Its two passes compute chunk pairs,
// and move keys, values and their gradients.
#pragma once

#include <trireme/context.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.hpp"
#include "parallel/context/chunks.hpp"
#include "parallel/context/plan.hpp"

namespace trireme::parallel {

struct ContextOptions {
  std::string name;
  std::uint64_t positions = 0;
  std::uint32_t chunks = 0;
  trireme_context_layout layout = 0;
  AttentionShape shape;
  double scale = 0;  // 0: by the width
  bool has_callbacks = false;
  trireme_attention_callback forward = nullptr;
  trireme_attention_callback backward = nullptr;
  void* user_data = nullptr;
  std::uint64_t timeout_ns = 0;  // 0: the communicator's
};

// One thread at a time makes a pass; the rest any thread.
class Context {
 public:
  static Status create(std::shared_ptr<Communicator> communicator, ContextOptions options,
                       std::shared_ptr<Context>* out);

  // Checks the arguments, and makes the pass. `starts`: of sequences, as the caller gives them.
  Status pass(AttentionPass pass, const trireme_attention_arrays& arrays,
              std::vector<std::uint64_t> starts, std::uint64_t timeout_ns);

  Communicator& communicator() const { return *communicator_; }
  std::uint32_t rank() const { return static_cast<std::uint32_t>(communicator_->rank()); }
  const Chunks& chunks() const { return chunks_; }
  const ContextOptions& options() const { return options_; }
  const AttentionPlan& plan(AttentionPass pass) const { return plans_[index(pass)]; }
  std::uint64_t passes(AttentionPass pass) const { return passes_[index(pass)]; }
  std::uint64_t held_bytes() const { return held_bytes_; }
  std::uint64_t own_rows() const { return chunks_.rows(rank()); }
  std::uint64_t kept_count() const { return 2 * own_rows() * options_.shape.heads; }
  Status check_rank(std::int32_t rank) const;

 private:
  Context(std::shared_ptr<Communicator> communicator, ContextOptions options);

  static std::size_t index(AttentionPass pass) { return pass == AttentionPass::forward ? 0 : 1; }
  Status check_arrays(AttentionPass pass, const trireme_attention_arrays& arrays) const;
  Status check_starts(const std::vector<std::uint64_t>& starts) const;
  // The pass as peers compare it.
  std::string describe(AttentionPass pass) const;
  std::uint64_t agreement(AttentionPass pass, const std::vector<std::uint64_t>& starts) const;
  Status take_memory(std::uint64_t bytes);
  Status run(AttentionPass pass, const trireme_attention_arrays& arrays,
             std::vector<std::uint64_t> starts, std::uint64_t timeout_ns);
  Status name_pass(AttentionPass pass, const Status& status) const;

  const std::shared_ptr<Communicator> communicator_;
  const ContextOptions options_;
  const Chunks chunks_;
  const AttentionPlan plans_[2];
  std::shared_ptr<Memory> memory_;
  std::atomic<bool> busy_{false};
  std::atomic<std::uint64_t> held_bytes_{0};
  std::atomic<std::uint64_t> passes_[2] = {0, 0};
};

}  // namespace trireme::parallel
