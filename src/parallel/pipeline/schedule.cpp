#include "parallel/pipeline/schedule.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace trireme::pipeline {

std::vector<std::vector<std::uint32_t>> Schedule::stages_of_ranks() const {
  std::vector<std::vector<std::uint32_t>> out(ranks);
  for (std::uint32_t stage = 0; stage < stages(); ++stage) out[rank_of[stage]].push_back(stage);
  return out;
}

void put_lists(const std::vector<std::vector<Action>>& lists, Schedule* schedule) {
  schedule->ranks = static_cast<std::uint32_t>(lists.size());
  schedule->actions.clear();
  schedule->first.assign(1, 0);
  for (const std::vector<Action>& list : lists) {
    schedule->actions.insert(schedule->actions.end(), list.begin(), list.end());
    schedule->first.push_back(schedule->actions.size());
  }
}

Status check_sizes(std::uint64_t ranks, std::uint64_t stages, std::uint64_t micro_batches) {
  const auto refuse = [](const char* what, std::uint64_t given, std::uint64_t most) {
    return invalid_argument("a schedule has 1 to " + std::to_string(most) + " " + what + ", not " +
                            std::to_string(given));
  };
  if (ranks == 0 || ranks > kMostRanks) return refuse("ranks", ranks, kMostRanks);
  if (stages == 0 || stages > kMostStages) return refuse("stages", stages, kMostStages);
  if (micro_batches == 0 || micro_batches > kMostMicroBatches) {
    return refuse("micro-batches", micro_batches, kMostMicroBatches);
  }
  if (stages * micro_batches > kMostCells) {
    return invalid_argument(std::to_string(stages) + " stages times " +
                            std::to_string(micro_batches) + " micro-batches are more than " +
                            std::to_string(kMostCells));
  }
  return Status::success();
}

Status check_placement(std::uint32_t ranks, const std::vector<std::uint32_t>& rank_of) {
  std::vector<bool> has(ranks);
  for (std::size_t stage = 0; stage < rank_of.size(); ++stage) {
    if (rank_of[stage] >= ranks) {
      return invalid_argument("stage " + std::to_string(stage) + " is placed on rank " +
                              std::to_string(rank_of[stage]) + ", but there are " +
                              std::to_string(ranks) + " ranks");
    }
    has[rank_of[stage]] = true;
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (!has[rank]) {
      return invalid_argument("no stage is placed on rank " + std::to_string(rank));
    }
  }
  return Status::success();
}

std::vector<std::uint32_t> place(Placement placement, std::uint32_t ranks,
                                 std::uint32_t stages_per_rank) {
  std::vector<std::uint32_t> out;
  out.reserve(std::size_t{ranks} * stages_per_rank);
  for (std::uint32_t chunk = 0; chunk < stages_per_rank; ++chunk) {
    const bool back = placement != Placement::kLoop && chunk % 2 == 1;
    for (std::uint32_t i = 0; i < ranks; ++i) out.push_back(back ? ranks - 1 - i : i);
  }
  return out;
}

const char* kind_name(trireme_pipeline_kind kind) {
  constexpr std::array<const char*, 13> kKindNames = {
      "?",      "F",      "I",      "W",      "B",       "R",     "SEND_F",
      "RECV_F", "SEND_B", "RECV_B", "GATHER", "RELEASE", "REDUCE"};
  return kind > 0 && kind < static_cast<std::int32_t>(kKindNames.size()) ? kKindNames[kind] : "?";
}

std::string action_text(const Action& action) {
  std::string out = std::to_string(action.stage) + kind_name(action.kind);
  if (!is_of_stage(action.kind)) out += std::to_string(action.micro_batch);
  return out;
}

std::string action_place(std::uint32_t rank, std::uint64_t index, const Action& action) {
  return "rank " + std::to_string(rank) + ", action " + std::to_string(index) + " (" +
         action_text(action) + ")";
}

std::string number_text(double value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

bool has_messages(const Schedule& schedule) {
  return std::any_of(schedule.actions.begin(), schedule.actions.end(),
                     [](const Action& action) { return is_message(action.kind); });
}

Schedule with_messages(const Schedule& schedule) {
  if (has_messages(schedule)) return schedule;
  Schedule out = schedule;
  std::vector<std::vector<Action>> lists(schedule.ranks);
  for (std::uint32_t rank = 0; rank < schedule.ranks; ++rank) {
    std::vector<Action>& list = lists[rank];
    const std::span<const Action> from = schedule.of(rank);
    for (std::size_t i = 0; i < from.size();) {
      // The two actions of a pair stay side by side.
      const std::size_t end =
          from[i].pair != 0 && i + 1 < from.size() && from[i + 1].pair == from[i].pair ? i + 2
                                                                                       : i + 1;
      const auto message = [&](const Action& action, trireme_pipeline_kind kind) {
        list.push_back({kind, action.stage, action.micro_batch, 0});
      };
      for (std::size_t k = i; k < end; ++k) {
        const Action& action = from[k];
        if (is_forward(action.kind) && action.stage > 0 && schedule.crosses(action.stage - 1)) {
          message(action, TRIREME_PIPELINE_KIND_RECV_F);
        }
        if (is_backward(action.kind) && schedule.crosses(action.stage)) {
          message(action, TRIREME_PIPELINE_KIND_RECV_B);
        }
      }
      list.insert(list.end(), from.begin() + i, from.begin() + end);
      for (std::size_t k = i; k < end; ++k) {
        const Action& action = from[k];
        if (is_forward(action.kind) && schedule.crosses(action.stage)) {
          message(action, TRIREME_PIPELINE_KIND_SEND_F);
        }
        if (is_backward(action.kind) && action.stage > 0 && schedule.crosses(action.stage - 1)) {
          message(action, TRIREME_PIPELINE_KIND_SEND_B);
        }
      }
      i = end;
    }
  }
  put_lists(lists, &out);
  return out;
}

}  // namespace trireme::pipeline
