// List: a schedule by deciding, each time a rank is free, which of its possible actions comes next.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/costs.hpp"
#include "parallel/pipeline/schedule.hpp"

namespace trireme::pipeline {

enum class Prefer : std::int32_t {
  kBackward = 0,   // I before F
  kForward = 1,    // F before I
  kAlternate = 2,  // F after I, and I after F
};

struct Pattern {
  // Targets of micro-batch 0, by stage; empty: no pattern. Those of micro-batch m lie m periods
  // behind.
  std::vector<std::uint32_t> forward{}, backward{};
  std::uint32_t period = 0;
  // How far behind the earliest target of a rank one may lie that comes in its place.
  std::uint32_t window = 0;
  std::uint32_t most_held = 0;  // I whose W is still to come; with so many, W comes first. 0: any
};

struct ListOptions {
  Prefer prefer = Prefer::kBackward;
  bool deep_first = true;  // of several F, the one of the later stage
  bool split = true;       // I and W; else B
  // A rank waits for an I or F that arrives within this part of the W that it could do meanwhile.
  double patience = 0;
  // Bytes that each rank may hold; empty: no limit. Each is enough for one micro-batch.
  std::vector<std::uint64_t> limits{};
  // A pattern that repeats with each micro-batch, in place of `prefer` and `deep_first`: of the F
  // and I that can begin, the one of the earliest target comes first.
  Pattern pattern{};
};

// Whether the limits are enough for one micro-batch on each rank.
bool has_room_for_one(const std::vector<std::uint32_t>& rank_of, std::uint32_t ranks,
                      const Costs& costs, const std::vector<std::uint64_t>& limits);

// `rank_of` has passed check_placement(), the limits has_room_for_one(). Without a pattern the
// result is complete and within the limits: an F is let in only if all micro-batches on their way
// can still end. With a pattern it is within the limits, but may lack actions: then the window was
// too small.
Schedule list_schedule(const std::vector<std::uint32_t>& rank_of, std::uint32_t ranks,
                       std::uint32_t micro_batches, const Costs& costs, const ListOptions& options);

}  // namespace trireme::pipeline
