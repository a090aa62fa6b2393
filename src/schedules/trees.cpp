// Trees: one binomial tree, and two binary trees at once.
#include <algorithm>
#include <array>

#include "schedules/parts.hpp"

namespace trireme::schedules {

// --- binomial: place v hangs under v without its lowest bit, and roots those up to that bit --

void broadcast_binomial(const Ranks& ranks, Schedule* out) {
  const int place = ranks.relative();
  int mask = 1;
  for (; mask < ranks.n; mask *= 2) {
    if ((place & mask) == 0) continue;
    Round round;
    round.receives.push_back({ranks.absolute(place - mask), {output(0)}});
    out->rounds.push_back(std::move(round));
    break;
  }
  for (mask /= 2; mask > 0; mask /= 2) {
    if (place + mask >= ranks.n) continue;
    Round round;
    round.sends.push_back({ranks.absolute(place + mask), {output(0)}});
    out->rounds.push_back(std::move(round));
  }
}

void reduce_binomial(const Ranks& ranks, Schedule* out) {
  const int place = ranks.relative();
  bool summed = false;
  for (int mask = 1; mask < ranks.n; mask *= 2) {
    Round round;
    if ((place & mask) != 0) {
      round.sends.push_back({ranks.absolute(place - mask), {summed ? partial(0) : input(0)}});
      out->rounds.push_back(std::move(round));
      return;
    }
    const int child = place + mask;
    if (child >= ranks.n) continue;
    const bool child_summed = mask > 1 && child + 1 < ranks.n;
    const Slot theirs = child_summed ? spare_partial(0, 0) : spare(0, 0);
    round.receives.push_back({ranks.absolute(child), {theirs}});
    const bool last = place == 0 && mask * 2 >= ranks.n;
    round.then.push_back({last ? output(0) : partial(0), {summed ? partial(0) : input(0), theirs}});
    out->rounds.push_back(std::move(round));
    summed = true;
  }
}

// Blocks of other ranks pass through the spare of their place.
void gather_binomial(const Ranks& ranks, Schedule* out) {
  const int place = ranks.relative();
  const auto block = [&](int of) { return number(ranks.absolute(of)); };
  for (int mask = 1; mask < ranks.n; mask *= 2) {
    Round round;
    if ((place & mask) != 0) {
      round.sends.push_back({ranks.absolute(place - mask), {input(number(ranks.me))}});
      for (int of = place + 1; of < std::min(place + mask, ranks.n); ++of) {
        round.sends[0].slots.push_back(spare(block(of), number(of)));
      }
      out->rounds.push_back(std::move(round));
      return;
    }
    const int child = place + mask;
    if (child >= ranks.n) continue;
    round.receives.push_back({ranks.absolute(child), {}});
    for (int of = child; of < std::min(child + mask, ranks.n); ++of) {
      round.receives[0].slots.push_back(place == 0 ? output(block(of))
                                                   : spare(block(of), number(of)));
    }
    out->rounds.push_back(std::move(round));
  }
}

void scatter_binomial(const Ranks& ranks, Schedule* out) {
  const int place = ranks.relative();
  const auto block = [&](int of) { return number(ranks.absolute(of)); };
  int mask = 1;
  for (; mask < ranks.n; mask *= 2) {
    if ((place & mask) == 0) continue;
    Round round;
    round.receives.push_back({ranks.absolute(place - mask), {output(number(ranks.me))}});
    for (int of = place + 1; of < std::min(place + mask, ranks.n); ++of) {
      round.receives[0].slots.push_back(spare(block(of), number(of)));
    }
    out->rounds.push_back(std::move(round));
    break;
  }
  for (mask /= 2; mask > 0; mask /= 2) {
    const int child = place + mask;
    if (child >= ranks.n) continue;
    Round round;
    round.sends.push_back({ranks.absolute(child), {}});
    for (int of = child; of < std::min(child + mask, ranks.n); ++of) {
      round.sends[0].slots.push_back(place == 0 ? input(block(of)) : spare(block(of), number(of)));
    }
    out->rounds.push_back(std::move(round));
  }
}

// --- two trees -----------------------------------------------------------------------------------

namespace {

// One of the two trees as one rank sees it. The root of the collective stands above both; the other
// ranks are nodes 1 to m. In the first tree node x hangs where its lowest bit puts it, as in a
// search tree, so odd nodes are leaves. The second is the first one mirrored (m even) or shifted by
// one (m odd), so that even nodes are its leaves.
class Tree {
 public:
  Tree(const Ranks& ranks, int which) : nodes_(ranks.n - 1), which_(which) {
    const int me = ranks.relative();
    for (int node = 1; node <= nodes_; ++node) deepest_ = std::max(deepest_, depth(node));
    my_depth_ = depth(me);
    if (me > 0) parent_ = ranks.absolute(parent(me));
    for (int node = 1; node <= nodes_; ++node) {
      if (parent(node) != me) continue;
      children_.push_back({ranks.absolute(node), !is_leaf(node)});
    }
  }

  struct Child {
    int rank;
    bool inner;  // sends sums, not its own input
  };

  int deepest() const { return deepest_; }
  int my_depth() const { return my_depth_; }
  int parent_rank() const { return parent_; }  // -1 at the root
  const std::vector<Child>& children() const { return children_; }

 private:
  // The place of a node in the first tree, and the way back.
  int place(int node) const {
    if (which_ == 0) return node;
    return nodes_ % 2 == 0 ? nodes_ + 1 - node : (node == 1 ? nodes_ : node - 1);
  }
  int node_at(int place) const {
    if (which_ == 0) return place;
    return nodes_ % 2 == 0 ? nodes_ + 1 - place : (place == nodes_ ? 1 : place + 1);
  }
  int parent(int node) const {
    const int at = place(node);
    const int low = at & -at;
    const int up = (at ^ low) | (low << 1);
    const int above = up <= nodes_ ? up : at ^ low;
    return above == 0 ? 0 : node_at(above);
  }
  int depth(int node) const {
    int steps = 0;
    for (; node != 0; node = parent(node)) ++steps;
    return steps;
  }
  bool is_leaf(int node) const {
    for (int other = 1; other <= nodes_; ++other) {
      if (parent(other) == node) return false;
    }
    return true;
  }

  int nodes_;
  int which_;
  int deepest_ = 0;
  int my_depth_ = 0;
  int parent_ = -1;
  std::vector<Child> children_;
};

}  // namespace

// All ranks have the same times, and in each round a rank waits only for partners in the same
// round.
void double_tree(const Ranks& ranks, std::uint32_t pieces, bool up, bool down, Schedule* out) {
  const std::array<Tree, 2> trees{Tree(ranks, 0), Tree(ranks, 1)};
  const int deepest = std::max(trees[0].deepest(), trees[1].deepest());
  std::vector<Round> rounds(pieces / 2 + 1 + static_cast<std::uint32_t>(2 * deepest));
  for (std::uint32_t which = 0; which < 2; ++which) {
    const Tree& tree = trees[which];
    const int depth = tree.my_depth();
    const bool at_root = depth == 0;
    const bool leaf = tree.children().empty();
    for (std::uint32_t piece = which; up && piece < pieces; piece += 2) {
      // A rank that is `depth` below the root sends when all ranks below it have sent.
      const std::uint32_t sends_at = piece / 2 + static_cast<std::uint32_t>(deepest - depth);
      if (!at_root) {
        rounds[sends_at].sends.push_back(
            {tree.parent_rank(), {leaf ? input(piece) : partial(piece)}});
      }
      if (leaf) continue;
      Round& round = rounds[sends_at - 1];
      Step sum{at_root ? output(piece) : partial(piece), {input(piece)}};
      for (std::uint32_t c = 0; c < tree.children().size(); ++c) {
        const Tree::Child& child = tree.children()[c];
        const Slot theirs =
            child.inner ? spare_partial(piece, 2 * which + c) : spare(piece, 2 * which + c);
        round.receives.push_back({child.rank, {theirs}});
        sum.sources.push_back(theirs);
      }
      round.then.push_back(std::move(sum));
    }
    const int start = up ? deepest : 0;
    for (std::uint32_t piece = which; down && piece < pieces; piece += 2) {
      const std::uint32_t sends_at = piece / 2 + static_cast<std::uint32_t>(start + depth);
      if (!at_root) {
        rounds[sends_at - 1].receives.push_back({tree.parent_rank(), {output(piece)}});
      }
      for (const Tree::Child& child : tree.children()) {
        rounds[sends_at].sends.push_back({child.rank, {output(piece)}});
      }
    }
  }
  for (Round& round : rounds) {
    if (!round.sends.empty() || !round.receives.empty()) out->rounds.push_back(std::move(round));
  }
}

}  // namespace trireme::schedules
