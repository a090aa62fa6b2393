// Rings, chains and pairs: every rank talks to one or two partners in a round.
#include "schedules/parts.hpp"

namespace trireme::schedules {

// Block b begins at rank b + 1 and arrives, combined with all others on its way, at rank b.
void reduce_scatter_ring(const Ranks& ranks, Schedule* out) {
  for (int step = 0; step < ranks.n - 1; ++step) {
    const std::uint32_t gives = number(ranks.minus(step + 1));
    const std::uint32_t gets = number(ranks.minus(step + 2));
    const std::uint32_t turn = static_cast<std::uint32_t>(step) & 1;
    const bool last = step == ranks.n - 2;
    // The first step moves an input, and later steps move partial sums.
    const Slot sent = step == 0 ? input(gives) : spare_partial(gives, turn ^ 1);
    const Slot received = step == 0 ? spare(gets, 0) : spare_partial(gets, turn);
    Round round;
    round.sends.push_back({ranks.plus(1), {sent}});
    round.receives.push_back({ranks.minus(1), {received}});
    round.then.push_back(
        {last ? output(gets) : spare_partial(gets, turn), {received, input(gets)}});
    out->rounds.push_back(std::move(round));
  }
}

void all_gather_ring(const Ranks& ranks, Schedule* out) {
  for (int step = 0; step < ranks.n - 1; ++step) {
    Round round;
    round.sends.push_back({ranks.plus(1), {output(number(ranks.minus(step)))}});
    round.receives.push_back({ranks.minus(1), {output(number(ranks.minus(step + 1)))}});
    out->rounds.push_back(std::move(round));
  }
}

// Each rank collects its own block from one partner after the other.
void reduce_scatter_pairwise(const Ranks& ranks, Schedule* out) {
  const std::uint32_t mine = number(ranks.me);
  for (int step = 1; step < ranks.n; ++step) {
    const std::uint32_t to = number(ranks.plus(step));
    const bool last = step == ranks.n - 1;
    Round round;
    round.sends.push_back({ranks.plus(step), {input(to)}});
    round.receives.push_back({ranks.minus(step), {spare(mine, 0)}});
    round.then.push_back({last ? output(mine) : partial(mine),
                          {step == 1 ? input(mine) : partial(mine), spare(mine, 0)}});
    out->rounds.push_back(std::move(round));
  }
}

// The ranks in a row behind the root: piece k reaches place v in round k + v - 1.
void broadcast_chain(const Ranks& ranks, std::uint32_t pieces, Schedule* out) {
  const int place = ranks.relative();
  const int rounds = static_cast<int>(pieces) + ranks.n - 2;
  for (int time = 0; time < rounds; ++time) {
    const int sent = time - place;
    const int received = time - place + 1;
    const auto is_piece = [&](int piece) { return piece >= 0 && piece < static_cast<int>(pieces); };
    Round round;
    if (place < ranks.n - 1 && is_piece(sent)) {
      round.sends.push_back({ranks.absolute(place + 1), {output(number(sent))}});
    }
    if (place > 0 && is_piece(received)) {
      round.receives.push_back({ranks.absolute(place - 1), {output(number(received))}});
    }
    if (!round.sends.empty() || !round.receives.empty()) out->rounds.push_back(std::move(round));
  }
}

void all_to_all_pairwise(const Ranks& ranks, Schedule* out) {
  const auto block = [&](int source, int target) { return number(source * ranks.n + target); };
  for (int step = 1; step < ranks.n; ++step) {
    const int to = ranks.plus(step);
    const int from = ranks.minus(step);
    Round round;
    round.sends.push_back({to, {input(block(ranks.me, to))}});
    round.receives.push_back({from, {output(block(from, ranks.me))}});
    out->rounds.push_back(std::move(round));
  }
}

}  // namespace trireme::schedules
