#include "parallel/context/plan.hpp"

#include <algorithm>
#include <vector>

#include "parallel/context/walk.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {
namespace {

constexpr std::uint64_t kLine = 64;  // bytes; areas and slots begin at cache lines

std::uint64_t in_lines(std::uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Walks without memory.
struct Planner {
  std::uint64_t pairs = 0;

  Status begin_step(std::uint32_t) { return Status::success(); }
  Status end_step(std::uint32_t) { return Status::success(); }
  Status agree() { return Status::success(); }
  void pair(std::uint32_t, std::uint32_t, std::uint32_t) { ++pairs; }
  void pair(std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t) { ++pairs; }
  void merge(std::uint32_t, std::uint32_t, std::uint32_t) {}
  void result(std::uint32_t, std::uint32_t) {}
  void add_queries(std::uint32_t, std::uint32_t, std::uint32_t) {}
  void add_keys(std::uint32_t, std::uint32_t, std::uint32_t) {}
  void unpack(std::uint32_t, std::uint32_t) {}
  void pack(std::uint32_t, std::uint32_t) {}
  void queries(std::uint32_t, std::uint32_t) {}
  void keys(std::uint32_t, std::uint32_t) {}
};

class Areas {
 public:
  std::uint64_t add(std::uint64_t bytes) {
    const std::uint64_t at = bytes_;
    bytes_ += in_lines(bytes);
    return at;
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t bytes_ = 0;
};

// Keys and values that this rank sends on their way.
std::uint64_t moved_rows(const AttentionShape& shape, const Chunks& chunks, std::uint32_t rank) {
  const std::uint32_t others = chunks.ranks() - 1;
  if (shape.method == TRIREME_CONTEXT_METHOD_GATHER) return chunks.rows(rank) * others;
  std::uint64_t rows = 0;
  for (std::uint32_t step = 0; step < others; ++step) {
    rows += chunks.rows(source_in_step(chunks, rank, step));
  }
  return rows;
}

// F32 copies of the arrays of a pair, or of a row of two arrays, and the scores of a query.
std::uint64_t scratch_floats(const AttentionShape& shape, std::uint64_t most, bool backward) {
  const bool builtin = shape.provider == TRIREME_ATTENTION_PROVIDER_BUILTIN;
  const bool copies = shape.dtype != TRIREME_DTYPE_F32;
  const std::uint64_t of_row = copies && backward ? 2 * shape.q_row() : 0;
  if (!builtin) return of_row;
  const std::uint64_t arrays = shape.q_row() * (backward ? 2 : 1) + 2 * shape.kv_row();
  return std::max(of_row, (copies ? arrays * most : 0) + (backward ? 0 : most));
}

}  // namespace

std::uint64_t AttentionShape::kv_bytes() const { return 2 * kv_row() * dtype_size(dtype); }

AttentionPlan plan_attention(const AttentionShape& shape, const Chunks& chunks, std::uint32_t rank,
                             AttentionPass pass) {
  const bool backward = pass == AttentionPass::backward;
  const Visibility visibility(chunks.positions(), shape.causal, {});
  Planner planner;
  BackwardSlots slots;
  // Plans do not fail.
  if (backward) {
    static_cast<void>(BackwardWalk(chunks, visibility, rank, planner).run(&slots));
  } else {
    static_cast<void>(walk_forward(chunks, visibility, rank, planner, &slots.queries));
  }
  AttentionPlan plan;
  plan.pairs = planner.pairs;
  const std::uint32_t others = chunks.ranks() - 1;
  const std::uint64_t kv_bytes = shape.kv_bytes();
  plan.sent_bytes = moved_rows(shape, chunks, rank) * kv_bytes + others * kVerdictWords * 8;

  Areas areas;
  AttentionMemory& memory = plan.memory;
  const bool gathers = shape.method == TRIREME_CONTEXT_METHOD_GATHER;
  const std::uint64_t area =
      gathers ? chunks.positions() * kv_bytes / 2 : chunks.most_rows() * kv_bytes;
  for (std::uint64_t& at : memory.keys) at = areas.add(others == 0 ? 0 : area);
  const std::uint64_t most = chunks.most_chunk_rows();
  memory.q_slot_bytes = in_lines(most * shape.heads * (shape.width + (backward ? 0 : 2)) * 4);
  memory.q_slots = areas.add(slots.queries * memory.q_slot_bytes);
  memory.visible = areas.add(2 * most * sizeof(std::uint64_t));
  memory.scratch = areas.add(scratch_floats(shape, most, backward) * 4);
  if (backward) {
    const std::vector<std::uint64_t> rows = gradient_rows(chunks, visibility);
    std::uint64_t given = 0;
    std::uint64_t taken = 0;
    for (std::uint32_t other = 0; other < chunks.ranks(); ++other) {
      const std::uint64_t to_other = rows[std::size_t{rank} * chunks.ranks() + other];
      plan.sent_bytes += to_other * shape.kv_row() * 8;
      given = std::max(given, to_other);
      taken = std::max(taken, rows[std::size_t{other} * chunks.ranks() + rank]);
    }
    memory.given = areas.add(given * shape.kv_row() * 8);
    memory.taken = areas.add(taken * shape.kv_row() * 8);
    memory.kv_slot_bytes = in_lines(most * shape.kv_row() * 8);
    memory.kv_slots = areas.add(slots.keys * memory.kv_slot_bytes);
    memory.delta = areas.add(chunks.rows(rank) * shape.heads * 4);
  }
  memory.bytes = areas.bytes();
  return plan;
}

}  // namespace trireme::parallel
