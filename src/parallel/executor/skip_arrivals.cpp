#include "parallel/executor/skip_arrivals.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

namespace trireme::parallel {
namespace {

using pipeline::Action;

class ArrivalSearch {
 public:
  ArrivalSearch(const pipeline::Schedule& schedule, std::uint32_t rank,
                const std::vector<Skip>& skips)
      : schedule_(schedule), rank_(rank), skips_(skips) {
    const auto actions = schedule.of(rank);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      const bool is_needed = action.kind == TRIREME_PIPELINE_KIND_RECV_F ||
                             action.kind == TRIREME_PIPELINE_KIND_RECV_B ||
                             pipeline::is_forward(action.kind) ||
                             pipeline::is_backward(action.kind);
      if (is_needed) waits_[key_of(action.kind, action.stage, action.micro_batch)] = i;
    }
  }

  // Each message from `sender` to this rank, with the action that waits for it. Messages of stages
  // are among them.
  std::vector<SkipArrival> sent_by(std::uint32_t sender) const {
    std::vector<SkipArrival> all;
    for (const Action& action : schedule_.of(sender)) {
      const std::uint32_t s = action.stage, m = action.micro_batch;
      if (pipeline::is_forward(action.kind)) add_values(sender, s, m, &all);
      if (pipeline::is_backward(action.kind)) add_gradients(sender, s, m, &all);
      if (action.kind == TRIREME_PIPELINE_KIND_SEND_F) {
        add_stage(TRIREME_PIPELINE_KIND_RECV_F, s + 1, m, &all);
      }
      if (action.kind == TRIREME_PIPELINE_KIND_SEND_B) {
        add_stage(TRIREME_PIPELINE_KIND_RECV_B, s - 1, m, &all);
      }
    }
    return all;
  }
  bool is_stage(const SkipArrival& arrival) const { return arrival.skip == skips_.size(); }

 private:
  using Key = std::tuple<trireme_pipeline_kind, std::uint32_t, std::uint32_t>;

  // I and B of a stage and micro-batch do the same for what comes.
  static Key key_of(trireme_pipeline_kind kind, std::uint32_t stage, std::uint32_t micro_batch) {
    return {pipeline::is_backward(kind) ? TRIREME_PIPELINE_KIND_B : kind, stage, micro_batch};
  }
  std::size_t wait_of(trireme_pipeline_kind kind, std::uint32_t stage, std::uint32_t m) const {
    return waits_.at(key_of(kind, stage, m));
  }
  void add_stage(trireme_pipeline_kind kind, std::uint32_t stage, std::uint32_t m,
                 std::vector<SkipArrival>* all) const {
    if (schedule_.rank_of[stage] != rank_) return;
    all->push_back({wait_of(kind, stage, m), skips_.size(), 0, m, StageDirection::forward});
  }
  void add_values(std::uint32_t sender, std::uint32_t stage, std::uint32_t m,
                  std::vector<SkipArrival>* all) const {
    for (std::size_t i = 0; i < skips_.size(); ++i) {
      if (skips_[i].rank != sender || skips_[i].stage != stage) continue;
      for (std::size_t t = 0; t < skips_[i].takers.size(); ++t) {
        const Skip::Taker& taker = skips_[i].takers[t];
        if (taker.rank != rank_) continue;
        all->push_back(
            {wait_of(TRIREME_PIPELINE_KIND_F, taker.stage, m), i, t, m, StageDirection::forward});
      }
    }
  }
  void add_gradients(std::uint32_t sender, std::uint32_t stage, std::uint32_t m,
                     std::vector<SkipArrival>* all) const {
    for (std::size_t i = 0; i < skips_.size(); ++i) {
      if (skips_[i].rank != rank_) continue;
      for (std::size_t r = 0; r < skips_[i].readers.size(); ++r) {
        const Skip::Reader& reader = skips_[i].readers[r];
        if (reader.rank != sender || reader.stage != stage) continue;
        all->push_back({wait_of(TRIREME_PIPELINE_KIND_B, skips_[i].stage, m), i, r, m,
                        StageDirection::backward});
      }
    }
  }

  const pipeline::Schedule& schedule_;
  const std::uint32_t rank_;
  const std::vector<Skip>& skips_;
  std::map<Key, std::size_t> waits_{};
};

}  // namespace

std::vector<SkipArrival> find_arrivals(const pipeline::Schedule& schedule, std::uint32_t rank,
                                       const std::vector<Skip>& skips, bool in_order) {
  std::vector<SkipArrival> all;
  if (skips.empty()) return all;
  const ArrivalSearch search(schedule, rank, skips);
  for (std::uint32_t sender = 0; sender < schedule.ranks; ++sender) {
    if (sender == rank) continue;
    std::vector<SkipArrival> sent = search.sent_by(sender);
    for (std::size_t i = sent.size(); in_order && i-- > 1;) {
      sent[i - 1].action = std::min(sent[i - 1].action, sent[i].action);
    }
    std::copy_if(sent.begin(), sent.end(), std::back_inserter(all),
                 [&](const SkipArrival& arrival) { return !search.is_stage(arrival); });
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const SkipArrival& a, const SkipArrival& b) { return a.action < b.action; });
  return all;
}

}  // namespace trireme::parallel
