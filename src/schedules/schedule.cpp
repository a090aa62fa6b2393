#include "schedules/schedule.hpp"

#include "schedules/parts.hpp"

namespace trireme {
namespace schedules {

// --- direct: every pair exchanges once -------------------------------------------------------

void reduce_scatter_direct(const Ranks& ranks, Schedule* out) {
  const std::uint32_t mine = number(ranks.me);
  Round round;
  Step sum{output(mine), {}};
  for (int rank = 0; rank < ranks.n; ++rank) {
    sum.sources.push_back(rank == ranks.me ? input(mine) : spare(mine, number(rank)));
  }
  for (int step = 1; step < ranks.n; ++step) {
    const int to = ranks.plus(step);
    const int from = ranks.minus(step);
    round.sends.push_back({to, {input(number(to))}});
    round.receives.push_back({from, {spare(mine, number(from))}});
  }
  round.then.push_back(std::move(sum));
  out->rounds.push_back(std::move(round));
}

void all_gather_direct(const Ranks& ranks, Schedule* out) {
  Round round;
  for (int step = 1; step < ranks.n; ++step) {
    const int from = ranks.minus(step);
    round.sends.push_back({ranks.plus(step), {output(number(ranks.me))}});
    round.receives.push_back({from, {output(number(from))}});
  }
  out->rounds.push_back(std::move(round));
}

// Each rank sends its whole input to all ranks.
void all_reduce_direct(const Ranks& ranks, Schedule* out) {
  Round round;
  Step sum{output(0), {}};
  for (int rank = 0; rank < ranks.n; ++rank) {
    sum.sources.push_back(rank == ranks.me ? input(0) : spare(0, number(rank)));
  }
  for (int step = 1; step < ranks.n; ++step) {
    const int from = ranks.minus(step);
    round.sends.push_back({ranks.plus(step), {input(0)}});
    round.receives.push_back({from, {spare(0, number(from))}});
  }
  round.then.push_back(std::move(sum));
  out->rounds.push_back(std::move(round));
}

void broadcast_direct(const Ranks& ranks, std::uint32_t pieces, Schedule* out) {
  Round round;
  std::vector<Slot> all;
  for (std::uint32_t piece = 0; piece < pieces; ++piece) all.push_back(output(piece));
  if (ranks.me != ranks.root) round.receives.push_back({ranks.root, all});
  for (int step = 1; step < ranks.n && ranks.me == ranks.root; ++step) {
    round.sends.push_back({ranks.plus(step), all});
  }
  out->rounds.push_back(std::move(round));
}

void reduce_direct(const Ranks& ranks, std::uint32_t pieces, Schedule* out) {
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    Round round;
    if (ranks.me != ranks.root) {
      round.sends.push_back({ranks.root, {input(piece)}});
      out->rounds.push_back(std::move(round));
      continue;
    }
    Step sum{output(piece), {}};
    for (int rank = 0; rank < ranks.n; ++rank) {
      const Slot theirs = rank == ranks.me ? input(piece) : spare(piece, number(rank));
      if (rank != ranks.me) round.receives.push_back({rank, {theirs}});
      sum.sources.push_back(theirs);
    }
    round.then.push_back(std::move(sum));
    out->rounds.push_back(std::move(round));
  }
}

void gather_direct(const Ranks& ranks, Schedule* out) {
  Round round;
  if (ranks.me != ranks.root) round.sends.push_back({ranks.root, {input(number(ranks.me))}});
  for (int step = 1; step < ranks.n && ranks.me == ranks.root; ++step) {
    const int from = ranks.plus(step);
    round.receives.push_back({from, {output(number(from))}});
  }
  out->rounds.push_back(std::move(round));
}

void scatter_direct(const Ranks& ranks, Schedule* out) {
  Round round;
  if (ranks.me != ranks.root) round.receives.push_back({ranks.root, {output(number(ranks.me))}});
  for (int step = 1; step < ranks.n && ranks.me == ranks.root; ++step) {
    const int to = ranks.plus(step);
    round.sends.push_back({to, {input(number(to))}});
  }
  out->rounds.push_back(std::move(round));
}

void all_to_all_direct(const Ranks& ranks, Schedule* out) {
  const auto block = [&](int source, int target) { return number(source * ranks.n + target); };
  Round round;
  for (int step = 1; step < ranks.n; ++step) {
    const int to = ranks.plus(step);
    const int from = ranks.minus(step);
    round.sends.push_back({to, {input(block(ranks.me, to))}});
    round.receives.push_back({from, {output(block(from, ranks.me))}});
  }
  out->rounds.push_back(std::move(round));
}

// --- the choice ------------------------------------------------------------------------------

namespace {

// Messages without bytes: their arrival is the news.
void barrier(const Ranks& ranks, Algorithm algorithm, Schedule* out) {
  if (algorithm == Algorithm::direct) {
    Round round;
    for (int step = 1; step < ranks.n; ++step) {
      round.sends.push_back({ranks.plus(step), {}});
      round.receives.push_back({ranks.minus(step), {}});
    }
    out->rounds.push_back(std::move(round));
    return;
  }
  for (int jump = 1; jump < ranks.n; jump *= 2) {
    Round round;
    round.sends.push_back({ranks.plus(jump), {}});
    round.receives.push_back({ranks.minus(jump), {}});
    out->rounds.push_back(std::move(round));
  }
}

void reduce_scatter(const Ranks& ranks, Algorithm algorithm, Schedule* out) {
  switch (algorithm) {
    case Algorithm::ring: return reduce_scatter_ring(ranks, out);
    case Algorithm::halving_doubling: return reduce_scatter_halving(ranks, out);
    case Algorithm::pairwise: return reduce_scatter_pairwise(ranks, out);
    default: return reduce_scatter_direct(ranks, out);
  }
}

void all_gather(const Ranks& ranks, Algorithm algorithm, Schedule* out) {
  switch (algorithm) {
    case Algorithm::ring: return all_gather_ring(ranks, out);
    case Algorithm::halving_doubling: return all_gather_doubling(ranks, out);
    case Algorithm::bruck: return all_gather_bruck(ranks, out);
    default: return all_gather_direct(ranks, out);
  }
}

void broadcast(const Ranks& ranks, Algorithm algorithm, std::uint32_t pieces, Schedule* out) {
  switch (algorithm) {
    case Algorithm::ring: return broadcast_chain(ranks, pieces, out);
    case Algorithm::binomial: return broadcast_binomial(ranks, out);
    case Algorithm::double_tree: return double_tree(ranks, pieces, false, true, out);
    default: return broadcast_direct(ranks, pieces, out);
  }
}

void reduce(const Ranks& ranks, Algorithm algorithm, std::uint32_t pieces, Schedule* out) {
  switch (algorithm) {
    case Algorithm::binomial: return reduce_binomial(ranks, out);
    case Algorithm::double_tree: return double_tree(ranks, pieces, true, false, out);
    default: return reduce_direct(ranks, pieces, out);
  }
}

void all_reduce(const Ranks& ranks, const ScheduleRequest& request, Schedule* out) {
  if (request.algorithm == Algorithm::double_tree) {
    if (!request.rank_order) return double_tree(ranks, request.pieces, true, true, out);
    reduce_direct(ranks, request.pieces, out);
    return double_tree(ranks, request.pieces, false, true, out);
  }
  if (request.algorithm == Algorithm::direct) return all_reduce_direct(ranks, out);
  reduce_scatter(ranks, request.rank_order ? Algorithm::direct : request.algorithm, out);
  all_gather(ranks, request.algorithm, out);
}

std::uint32_t blocks_of(const ScheduleRequest& request) {
  const std::uint32_t n = number(request.world_size);
  switch (request.pattern) {
    case Pattern::barrier: return 0;
    case Pattern::all_to_all: return n * n;
    case Pattern::broadcast:
    case Pattern::reduce: return request.algorithm == Algorithm::binomial ? 1 : request.pieces;
    case Pattern::all_reduce:
      if (request.algorithm == Algorithm::direct) return 1;
      return request.algorithm == Algorithm::double_tree ? request.pieces : n;
    default: return n;
  }
}

// Copies the block that this rank contributes to itself.
void keep_own(const Ranks& ranks, Pattern pattern, Schedule* out) {
  const std::uint32_t mine = number(ranks.me);
  const bool at_root = ranks.me == ranks.root;
  switch (pattern) {
    case Pattern::gather:
    case Pattern::scatter:
      if (at_root) out->first.push_back({output(mine), {input(mine)}});
      break;
    case Pattern::all_gather: out->first.push_back({output(mine), {input(mine)}}); break;
    case Pattern::all_to_all: {
      const std::uint32_t block = mine * number(ranks.n) + mine;
      out->first.push_back({output(block), {input(block)}});
      break;
    }
    default: break;
  }
}

// A single rank: its input is the result.
void alone(Pattern pattern, std::uint32_t blocks, Schedule* out) {
  const bool reduces = pattern == Pattern::all_reduce || pattern == Pattern::reduce ||
                       pattern == Pattern::reduce_scatter;
  if (!reduces) return;
  for (std::uint32_t b = 0; b < blocks; ++b) out->first.push_back({output(b), {input(b)}});
}

}  // namespace
}  // namespace schedules

Schedule make_schedule(const ScheduleRequest& request) {
  using namespace schedules;
  Schedule made;
  made.blocks = blocks_of(request);
  const Ranks ranks{request.rank, request.world_size, request.root};
  keep_own(ranks, request.pattern, &made);
  if (ranks.n == 1) {
    alone(request.pattern, made.blocks, &made);
    return made;
  }
  const Algorithm reduction = request.rank_order ? Algorithm::direct : request.algorithm;
  switch (request.pattern) {
    case Pattern::all_reduce: all_reduce(ranks, request, &made); break;
    case Pattern::reduce_scatter: reduce_scatter(ranks, reduction, &made); break;
    case Pattern::all_gather: all_gather(ranks, request.algorithm, &made); break;
    case Pattern::broadcast: broadcast(ranks, request.algorithm, request.pieces, &made); break;
    case Pattern::reduce: reduce(ranks, reduction, made.blocks, &made); break;
    case Pattern::gather:
      request.algorithm == Algorithm::binomial ? gather_binomial(ranks, &made)
                                               : gather_direct(ranks, &made);
      break;
    case Pattern::scatter:
      request.algorithm == Algorithm::binomial ? scatter_binomial(ranks, &made)
                                               : scatter_direct(ranks, &made);
      break;
    case Pattern::all_to_all:
      if (request.algorithm == Algorithm::pairwise) {
        all_to_all_pairwise(ranks, &made);
      } else if (request.algorithm == Algorithm::bruck) {
        all_to_all_bruck(ranks, &made);
      } else {
        all_to_all_direct(ranks, &made);
      }
      break;
    case Pattern::barrier: barrier(ranks, request.algorithm, &made); break;
  }
  return made;
}

}  // namespace trireme
