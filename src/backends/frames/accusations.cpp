#include "backends/frames/accusations.hpp"

#include <algorithm>
#include <utility>

#include "schedules/overlay.hpp"

namespace trireme::host {

Accusations::Accusations(int world_size, bool few)
    : n_(world_size),
      few_(few),
      accused_(static_cast<std::size_t>(world_size)),
      lost_by_(static_cast<std::size_t>(world_size)),
      assumed_(static_cast<std::size_t>(world_size)) {}

void Accusations::add(int by, const RankSet& ranks, bool lost) {
  RankSet& accused = accused_[static_cast<std::size_t>(by)];
  RankSet& lost_by = lost_by_[static_cast<std::size_t>(by)];
  for (const std::int32_t rank : ranks.without(lost ? lost_by : accused).list()) {
    all_.push_back({static_cast<std::uint16_t>(by), static_cast<std::uint16_t>(rank), lost,
                    accused.has(rank)});
    accused.add(rank);
    if (!lost) continue;
    lost_by.add(rank);
    const bool sees_both_ends = !few_ || are_near(by, rank, n_);
    if (by != rank && !sees_both_ends) assumed_[static_cast<std::size_t>(rank)].add(by);
  }
}

RankSet Accusations::all_of(int by) const {
  RankSet all = of(by);
  all.add(assumed_[static_cast<std::size_t>(by)]);
  return all;
}

// The accusations of a rank with few accusers count first: of two sides whose link broke, the side
// that others miss, too, goes.
void Accusations::find_dropped(const RankSet& members) {
  std::vector<int> count(static_cast<std::size_t>(n_));  // by rank: its accusers
  RankSet accusing;
  for (const Accusation& each : all_) {
    if (!members.has(each.by) || each.again) continue;
    accusing.add(each.by);
    ++count[each.rank];
  }
  for (const std::int32_t by : members.list()) {
    const RankSet more = assumed_[static_cast<std::size_t>(by)].without(of(by));
    for (const std::int32_t rank : more.list()) ++count[static_cast<std::size_t>(rank)];
    if (!more.empty()) accusing.add(by);
  }
  std::vector<std::pair<int, int>> order;  // number of its accusers, rank
  for (const std::int32_t rank : accusing.list()) {
    order.emplace_back(count[static_cast<std::size_t>(rank)], rank);
  }
  std::sort(order.begin(), order.end());
  dropped_ = RankSet();
  for (const auto& [accusers, rank] : order) {
    if (dropped_.has(rank)) continue;
    const RankSet accused = all_of(rank);
    if (accused.has(rank)) {  // withdrawn: its earlier accusations count no more
      dropped_.add(rank);
    } else {
      dropped_.add(accused.both(members));
    }
  }
  lost_by_any_ = RankSet();
  for (const Accusation& each : all_) {
    const bool counts = each.by == each.rank || !dropped_.has(each.by);
    if (each.lost && counts) lost_by_any_.add(each.rank);
  }
}

}  // namespace trireme::host
