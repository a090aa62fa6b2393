// Partners at distances of powers of two: recursive halving and doubling, and Bruck's algorithms.
#include <bit>

#include "schedules/parts.hpp"

namespace trireme::schedules {
namespace {

// Halving and doubling need a power of two. With more ranks, the first ones work in pairs: the odd
// one of a pair hands its data to the even one and gets the result from it. The ranks that remain
// are `places`; each stands for the blocks of one or two ranks.
struct Places {
  explicit Places(const Ranks& ranks)
      : count(static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks.n)))),
        pairs(ranks.n - count) {
    const bool paired = ranks.me < 2 * pairs;
    is_odd = paired && ranks.me % 2 == 1;
    mine = paired ? ranks.me / 2 : ranks.me - pairs;
  }

  bool is_pair(int place) const { return place < pairs; }
  int rank_of(int place) const { return is_pair(place) ? 2 * place : place + pairs; }
  // First block of a place; of place `count`: the number of blocks.
  std::uint32_t begin(int place) const {
    return number(place <= pairs ? 2 * place : place + pairs);
  }

  int count;
  int pairs;
  bool is_odd = false;  // this rank is the odd one of a pair
  int mine = 0;
};

}  // namespace

void reduce_scatter_halving(const Ranks& ranks, Schedule* out) {
  const Places places(ranks);
  const std::uint32_t blocks = number(ranks.n);
  const bool paired = places.is_pair(places.mine);
  if (places.is_odd) {
    Round give;
    give.sends.push_back({ranks.me - 1, {}});
    for (std::uint32_t b = 0; b < blocks; ++b) give.sends[0].slots.push_back(input(b));
    Round take;
    take.receives.push_back({ranks.me - 1, {output(number(ranks.me))}});
    out->rounds.push_back(std::move(give));
    out->rounds.push_back(std::move(take));
    return;
  }
  bool summed = false;  // this rank holds partial blocks; before, only its input
  if (paired) {
    Round round;
    round.receives.push_back({ranks.me + 1, {}});
    for (std::uint32_t b = 0; b < blocks; ++b) {
      round.receives[0].slots.push_back(spare(b, b));
      round.then.push_back({partial(b), {input(b), spare(b, b)}});
    }
    out->rounds.push_back(std::move(round));
    summed = true;
  }
  // The places [low, low + span) share the blocks that this rank still works on.
  int low = 0;
  for (int span = places.count; span > 1; span /= 2) {
    const int half = span / 2;
    const bool upper = places.mine >= low + half;
    const int partner = places.mine ^ half;
    const int kept = upper ? low + half : low;
    const int given = upper ? low : low + half;
    const bool partner_summed = span < places.count || places.is_pair(partner);
    Round round;
    round.sends.push_back({places.rank_of(partner), {}});
    for (std::uint32_t b = places.begin(given); b < places.begin(given + half); ++b) {
      round.sends[0].slots.push_back(summed ? partial(b) : input(b));
    }
    round.receives.push_back({places.rank_of(partner), {}});
    std::uint32_t index = 0;
    for (std::uint32_t b = places.begin(kept); b < places.begin(kept + half); ++b, ++index) {
      const Slot theirs = partner_summed ? spare_partial(b, index) : spare(b, index);
      round.receives[0].slots.push_back(theirs);
      round.then.push_back({partial(b), {summed ? partial(b) : input(b), theirs}});
    }
    out->rounds.push_back(std::move(round));
    summed = true;
    low = kept;
  }
  const std::uint32_t mine = number(ranks.me);
  // At least one round came before, because this is never called with one rank.
  std::vector<Step>& last = out->rounds.back().then;
  last.push_back({output(mine), {partial(mine)}});
  if (!paired) return;
  last.push_back({spare(mine + 1, 0), {partial(mine + 1)}});
  Round give;
  give.sends.push_back({ranks.me + 1, {spare(mine + 1, 0)}});
  out->rounds.push_back(std::move(give));
}

void all_gather_doubling(const Ranks& ranks, Schedule* out) {
  const Places places(ranks);
  const std::uint32_t mine = number(ranks.me);
  if (places.is_odd) {
    Round give;
    give.sends.push_back({ranks.me - 1, {output(mine)}});
    Round take;
    take.receives.push_back({ranks.me - 1, {}});
    for (std::uint32_t b = 0; b < number(ranks.n); ++b) {
      if (b != mine) take.receives[0].slots.push_back(output(b));
    }
    out->rounds.push_back(std::move(give));
    out->rounds.push_back(std::move(take));
    return;
  }
  if (places.is_pair(places.mine)) {
    Round round;
    round.receives.push_back({ranks.me + 1, {output(mine + 1)}});
    out->rounds.push_back(std::move(round));
  }
  const auto slots = [&](int first_place, int count) {
    std::vector<Slot> all;
    for (std::uint32_t b = places.begin(first_place); b < places.begin(first_place + count); ++b) {
      all.push_back(output(b));
    }
    return all;
  };
  for (int half = 1; half < places.count; half *= 2) {
    const int own = places.mine / half * half;
    const int partner = places.rank_of(places.mine ^ half);
    Round round;
    round.sends.push_back({partner, slots(own, half)});
    round.receives.push_back({partner, slots(own ^ half, half)});
    out->rounds.push_back(std::move(round));
  }
  if (!places.is_pair(places.mine)) return;
  Round round;
  round.sends.push_back({ranks.me + 1, {}});
  for (std::uint32_t b = 0; b < number(ranks.n); ++b) {
    if (b != mine + 1) round.sends[0].slots.push_back(output(b));
  }
  out->rounds.push_back(std::move(round));
}

// After k rounds a rank has the blocks of the 2^k ranks from itself on.
void all_gather_bruck(const Ranks& ranks, Schedule* out) {
  for (int have = 1; have < ranks.n; have *= 2) {
    const int more = have < ranks.n - have ? have : ranks.n - have;
    Round round;
    round.sends.push_back({ranks.minus(have), {}});
    round.receives.push_back({ranks.plus(have), {}});
    for (int i = 0; i < more; ++i) {
      round.sends[0].slots.push_back(output(number(ranks.plus(i))));
      round.receives[0].slots.push_back(output(number(ranks.plus(have + i))));
    }
    out->rounds.push_back(std::move(round));
  }
}

// A block that has to travel a distance jumps, in the round of each bit of it, over that power of
// two. Between jumps it waits in one of two spares of its distance: while one block leaves a rank,
// the next block of the same distance arrives.
void all_to_all_bruck(const Ranks& ranks, Schedule* out) {
  for (int jump = 1; jump < ranks.n; jump *= 2) {
    Round round;
    round.sends.push_back({ranks.plus(jump), {}});
    round.receives.push_back({ranks.minus(jump), {}});
    for (int distance = jump; distance < ranks.n; ++distance) {
      if ((distance & jump) == 0) continue;
      const int travelled = distance & (jump - 1);
      const auto block = [&](int source) {
        return number(source * ranks.n + (source + distance) % ranks.n);
      };
      const std::uint32_t leaves = block(ranks.minus(travelled));
      const std::uint32_t comes = block(ranks.minus(travelled + jump));
      const bool arrived = travelled + jump == distance;
      const auto waits = [&](std::uint32_t jumped) {
        return 2 * number(distance) + (static_cast<std::uint32_t>(std::popcount(jumped)) & 1);
      };
      const Slot waited = spare(leaves, waits(number(travelled)));
      round.sends[0].slots.push_back(travelled == 0 ? input(leaves) : waited);
      const Slot stays = spare(comes, waits(number(travelled + jump)));
      round.receives[0].slots.push_back(arrived ? output(comes) : stays);
    }
    out->rounds.push_back(std::move(round));
  }
}

}  // namespace trireme::schedules
