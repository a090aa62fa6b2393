// Schedule: a collective as data: what one rank sends, receives and computes, round by round. Pure:
// no memory, no messages, no lengths; see collectives/algorithm_run.hpp for what runs it.
//
// A buffer is cut into blocks. A slot is a place for one block:
//   input, output   that block in the caller's memory
//   partial         what this rank has combined of that block so far
//   spare, spare_partial   memory for whatever passes through, by index; reused round after round
// Slots that are partial hold sums that are not finished (f16 is f32 there, an average not divided
// yet); the others hold values. A round begins when the one before it has ended on this rank.
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

// One message: the slots' blocks, one after the other. Without slots it carries nothing but itself.
struct Transfer {
  int peer = 0;
  std::vector<Slot> slots;
};

// destination = all sources, combined in this order (or the only one, copied). A destination that
// is no partial one gets the finished value. The destination may be one of the sources.
struct Step {
  Slot destination;
  std::vector<Slot> sources;
};

// All transfers of a round go together: it ends without a deadlock even if a send lasts until its
// receive. Between two ranks they match in their order.
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
  Algorithm algorithm = Algorithm::direct;  // one that supports() the pattern
  int rank = 0;
  int world_size = 1;
  int root = 0;              // broadcast, reduce, gather, scatter
  std::uint32_t pieces = 1;  // pipelines: blocks; at least 1
  // Reductions: in the order of ranks, whatever the algorithm, which then only spreads the results.
  bool rank_order = false;
};

Schedule make_schedule(const ScheduleRequest& request);

}  // namespace trireme
