// The parts that the families of schedules share.
#pragma once

#include <utility>

#include "schedules/schedule.hpp"

namespace trireme::schedules {

inline Slot input(std::uint32_t block) { return {Place::input, block, 0}; }
inline Slot output(std::uint32_t block) { return {Place::output, block, 0}; }
inline Slot partial(std::uint32_t block) { return {Place::partial, block, 0}; }
inline Slot spare(std::uint32_t block, std::uint32_t index) { return {Place::spare, block, index}; }
inline Slot spare_partial(std::uint32_t block, std::uint32_t index) {
  return {Place::spare_partial, block, index};
}
inline std::uint32_t number(int rank) { return static_cast<std::uint32_t>(rank); }

// Schedules are concatenated: a family appends its rounds.
struct Ranks {
  int me = 0;
  int n = 1;
  int root = 0;

  int plus(int distance) const { return (me + distance) % n; }
  int minus(int distance) const { return ((me - distance) % n + n) % n; }
  // Numbers relative to the root, which is 0.
  int relative() const { return (me - root + n) % n; }
  int absolute(int relative) const { return (relative + root) % n; }
};

// n blocks of input become this rank's finished block of output.
void reduce_scatter_direct(const Ranks& ranks, Schedule* out);
void reduce_scatter_ring(const Ranks& ranks, Schedule* out);
void reduce_scatter_pairwise(const Ranks& ranks, Schedule* out);
void reduce_scatter_halving(const Ranks& ranks, Schedule* out);

// The whole input of each rank goes into the whole output of all ranks.
void all_reduce_direct(const Ranks& ranks, Schedule* out);

// This rank's block of output becomes all n blocks of it.
void all_gather_direct(const Ranks& ranks, Schedule* out);
void all_gather_ring(const Ranks& ranks, Schedule* out);
void all_gather_doubling(const Ranks& ranks, Schedule* out);
void all_gather_bruck(const Ranks& ranks, Schedule* out);

// broadcast: the root's output becomes the output of all ranks; reduce: the root's output becomes
// the combination of all inputs.
void broadcast_direct(const Ranks& ranks, std::uint32_t pieces, Schedule* out);
void broadcast_chain(const Ranks& ranks, std::uint32_t pieces, Schedule* out);
void broadcast_binomial(const Ranks& ranks, Schedule* out);
void reduce_direct(const Ranks& ranks, std::uint32_t pieces, Schedule* out);
void reduce_binomial(const Ranks& ranks, Schedule* out);
// `up` combines towards the root, `down` spreads from it; with both, a piece goes down as soon as
// it is up.
void double_tree(const Ranks& ranks, std::uint32_t pieces, bool up, bool down, Schedule* out);

void gather_direct(const Ranks& ranks, Schedule* out);
void gather_binomial(const Ranks& ranks, Schedule* out);
void scatter_direct(const Ranks& ranks, Schedule* out);
void scatter_binomial(const Ranks& ranks, Schedule* out);

void all_to_all_direct(const Ranks& ranks, Schedule* out);
void all_to_all_pairwise(const Ranks& ranks, Schedule* out);
void all_to_all_bruck(const Ranks& ranks, Schedule* out);

}  // namespace trireme::schedules
