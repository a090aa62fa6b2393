// StageWindowPlan: when each item of a rank's activations is in memory, and where, if a file has
// the others. Arithmetic alone: the schedule tells all calls of layers beforehand, so it tells the
// order of reads, too.
//
// A step is one call of a layer. An item is what one layer keeps of one micro-batch. Between two of
// its steps it stays in memory, or goes to the file and comes back. The reach is the number of
// steps for which a write and a read may be under way. An item goes to the file if both fit between
// its steps.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::parallel {

struct ExecutorPlan;

struct StageWindowPlan {
  // Before the call of a step, in this order. An item that was written gives its memory up. A new
  // one gets memory. The read of one begins. That of another one has ended. After the call the
  // write of an item begins.
  enum class Kind : std::uint8_t { settle, take, fetch, need, store };
  struct Move {
    std::uint64_t step = 0;
    Kind kind = Kind::settle;
    std::uint64_t item = 0, place = 0;  // in the window
  };
  struct Item {
    std::uint64_t bytes = 0;   // whole pages
    std::uint64_t offset = 0;  // in the file
    std::uint32_t micro_batch = 0;
  };

  std::vector<Item> items{};
  std::vector<std::uint64_t> first_items{};  // by place of the plan
  std::vector<std::uint64_t> first_moves{};  // by action
  std::vector<std::uint64_t> first_steps{};  // by action
  std::vector<Move> moves{};                 // by step
  std::uint64_t bytes = 0, file_bytes = 0, largest_item = 0;
};

class WindowPlanner {
 public:
  // `plan` has its places. `split_layers`: those with backward_weight, by this rank's list.
  WindowPlanner(const ExecutorPlan& plan, const std::vector<bool>& split_layers);

  StageWindowPlan plan(std::uint64_t reach) const;
  // A plan with a long reach that takes at most so many bytes, if one with reach 0 does.
  StageWindowPlan widest(std::uint64_t most) const;

 private:
  struct Run {
    std::uint64_t item, first, last;  // steps
    std::uint64_t begin, end;         // of its memory
    bool fetched, stored;
    std::uint64_t place = 0;
  };

  std::vector<Run> runs(std::uint64_t reach) const;
  void use(std::uint64_t item, std::uint64_t bytes);

  StageWindowPlan empty_{};                         // without moves
  std::vector<std::vector<std::uint64_t>> uses_{};  // by item: its steps
  std::uint64_t steps_ = 0;
};

// Layers whose forward runs twice in some micro-batch.
std::uint64_t count_recomputed(const ExecutorPlan& plan, const std::vector<bool>& split_layers);

}  // namespace trireme::parallel
