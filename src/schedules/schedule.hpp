// Schedule: a collective as data: one rank's sends, receives and computations, round by round.
// Pure: no memory, no messages, no lengths; collectives/algorithm_run.hpp runs it.
//
// A buffer is cut into blocks. A slot is a place for one block:
//
//   input, output   that block in the caller's memory
//   partial         this rank's combination of that block so far
//   spare, spare_partial   memory for blocks that pass through, by index; reused round after round
//
// Partial slots hold unfinished sums (f16 is f32 there, an average is not divided yet); the others
// hold values. A round begins when the round before it has ended on this rank.
#pragma once

#include <cstdint>
#include <vector>

#include "schedules/algorithm.hpp"

namespace trireme {

enum class Place : std::uint8_t { input, output, partial, spare, spare_partial };

struct Slot {
  Place place = Place::input;
  std::uint32_t block = 0;
  std::uint32_t index = 0;  // of a spare

  bool is_partial() const { return place == Place::partial || place == Place::spare_partial; }
  bool operator==(const Slot&) const = default;
};

// One message: the slots' blocks, one after the other. Without slots it carries no bytes.
struct Transfer {
  int peer = 0;
  std::vector<Slot> slots;
};

// destination = all sources, combined in this order (or the only one, copied). A destination that
// is not partial gets the finished value. The destination may be one of the sources.
struct Step {
  Slot destination;
  std::vector<Slot> sources;
};

// All transfers of a round run together: it ends without a deadlock even if a send lasts until its
// receive begins. Between two ranks they match in their order.
struct Round {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  std::vector<Step> then;
};

struct Schedule {
  std::uint32_t blocks = 0;  // how many the buffer is cut into; all_to_all: source * ranks + target
  std::vector<Step> first;
  std::vector<Round> rounds;
};

struct ScheduleRequest {
  Pattern pattern = Pattern::barrier;
  Algorithm algorithm = Algorithm::direct;  // must be one that supports() the pattern
  int rank = 0;
  int world_size = 1;
  int root = 0;              // broadcast, reduce, gather, scatter
  std::uint32_t pieces = 1;  // pipelines: blocks; at least 1
  // Reductions: combine in the order of ranks, whatever the algorithm, which then only spreads the
  // results.
  bool rank_order = false;
};

Schedule make_schedule(const ScheduleRequest& request);

}  // namespace trireme
