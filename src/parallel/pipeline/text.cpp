#include "parallel/pipeline/text.hpp"

#include <algorithm>
#include <charconv>

namespace trireme::pipeline {
namespace {

constexpr std::string_view kFirstWord = "pipeline";

struct KindWord {
  std::string_view text;
  trireme_pipeline_kind kind;
};
constexpr KindWord kKindWords[] = {
    {"F", TRIREME_PIPELINE_KIND_F},
    {"I", TRIREME_PIPELINE_KIND_I},
    {"W", TRIREME_PIPELINE_KIND_W},
    {"B", TRIREME_PIPELINE_KIND_B},
    {"R", TRIREME_PIPELINE_KIND_R},
    {"BW", TRIREME_PIPELINE_KIND_B},
    {"FORWARD", TRIREME_PIPELINE_KIND_F},
    {"BACKWARD_INPUT", TRIREME_PIPELINE_KIND_I},
    {"BACKWARD_WEIGHT", TRIREME_PIPELINE_KIND_W},
    {"FULL_BACKWARD", TRIREME_PIPELINE_KIND_B},
    {"RECOMPUTE", TRIREME_PIPELINE_KIND_R},
    {"SEND_F", TRIREME_PIPELINE_KIND_SEND_F},
    {"RECV_F", TRIREME_PIPELINE_KIND_RECV_F},
    {"SEND_B", TRIREME_PIPELINE_KIND_SEND_B},
    {"RECV_B", TRIREME_PIPELINE_KIND_RECV_B},
    {"GATHER", TRIREME_PIPELINE_KIND_GATHER},
    {"UNSHARD", TRIREME_PIPELINE_KIND_GATHER},
    {"RELEASE", TRIREME_PIPELINE_KIND_RELEASE},
    {"RESHARD", TRIREME_PIPELINE_KIND_RELEASE},
    {"REDUCE", TRIREME_PIPELINE_KIND_REDUCE},
    {"REDUCE_GRAD", TRIREME_PIPELINE_KIND_REDUCE},
};
constexpr std::string_view kOverlap = "OVERLAP_F_B";

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\"";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// Takes what stands before the delimiter off the front of the text.
std::string_view take_until(std::string_view* text, char delimiter) {
  const std::size_t end = std::min(text->find(delimiter), text->size());
  const std::string_view out = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return out;
}

bool take_number(std::string_view* text, std::uint32_t* out) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *out);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<std::size_t>(end - text->data()));
  return true;
}

bool parse_action(std::string_view cell, Action* out) {
  std::uint32_t stage = 0;
  if (!take_number(&cell, &stage)) return false;
  std::string_view word = cell;
  while (!word.empty() && word.back() >= '0' && word.back() <= '9') word.remove_suffix(1);
  std::string_view number = cell.substr(word.size());
  for (const KindWord& each : kKindWords) {
    if (each.text != word) continue;
    *out = {each.kind, stage, 0, 0};
    if (is_of_stage(each.kind)) return number.empty();
    return take_number(&number, &out->micro_batch) && number.empty();
  }
  return false;
}

// The begin of a text for a message, without control characters.
std::string excerpt(std::string_view text) {
  std::string out = "\"";
  for (const char each : text.substr(0, 32)) out += each < ' ' || each > '~' ? '?' : each;
  return out + (text.size() > 32 ? "...\"" : "\"");
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Status run(Schedule* out) {
    bool has_header = false;
    for (std::uint64_t line = 1; !text_.empty(); ++line) {
      line_ = line;
      std::string_view content = trim(take_until(&text_, '\n'));
      if (!has_header && lists_.empty() && content.starts_with(kFirstWord)) {
        has_header = true;
        TRIREME_RETURN_IF_ERROR(read_header(content));
        continue;
      }
      // Blank lines may close the text. A rank without actions would break the rules anyway.
      if (content.empty()) continue;
      if (lists_.size() == kMostRanks)
        return invalid_argument(place() + "there are more than " + std::to_string(kMostRanks) +
                                " ranks");
      lists_.emplace_back();
      TRIREME_RETURN_IF_ERROR(read_line(content, has_header ? ' ' : ','));
    }
    if (has_header) return take_header(out);
    return infer(out);
  }

 private:
  std::string place() const { return "line " + std::to_string(line_) + ": "; }

  Status read_line(std::string_view line, char delimiter) {
    while (!line.empty()) {
      const std::string_view cell = trim(take_until(&line, delimiter));
      if (cell.empty()) continue;  // a slot in which the rank waits
      TRIREME_RETURN_IF_ERROR(cell.front() == '(' ? read_pair(cell) : read_cell(cell, 0));
    }
    return Status::success();
  }

  Status read_cell(std::string_view cell, std::uint32_t pair) {
    Action action;
    if (!parse_action(trim(cell), &action)) {
      return invalid_argument(place() + excerpt(cell) +
                              " is no action; an action is a stage, a kind and a micro-batch, "
                              "such as 2F0");
    }
    action.pair = pair;
    lists_.back().push_back(action);
    ++count_;
    most_stage_ = std::max(most_stage_, action.stage);
    most_micro_batch_ = std::max(most_micro_batch_, action.micro_batch);
    return Status::success();
  }

  Status read_pair(std::string_view cell) {
    const std::size_t end = cell.find(')');
    const std::string_view word = end == std::string_view::npos ? cell : trim(cell.substr(end + 1));
    std::string_view inside = cell.substr(1, std::min(end, cell.size()) - 1);
    if (end == std::string_view::npos || (!word.empty() && word != kOverlap) ||
        std::count(inside.begin(), inside.end(), ';') != 1) {
      return invalid_argument(place() + excerpt(cell) +
                              " is no pair; a pair is two actions, such as (0F5;7B3)");
    }
    ++pairs_;
    TRIREME_RETURN_IF_ERROR(read_cell(take_until(&inside, ';'), pairs_));
    return read_cell(inside, pairs_);
  }

  // "pipeline ranks=2 stages=2 micro_batches=4 placement=0,1"
  Status read_header(std::string_view line) {
    line.remove_prefix(kFirstWord.size());
    while (!(line = trim(line)).empty()) {
      std::string_view value = trim(take_until(&line, ' '));
      const std::string_view key = take_until(&value, '=');
      std::uint32_t* number = key == "ranks"           ? &ranks_
                              : key == "stages"        ? &stages_
                              : key == "micro_batches" ? &micro_batches_
                                                       : nullptr;
      bool good = number != nullptr && take_number(&value, number) && value.empty();
      if (key == "placement") {
        good = true;
        rank_of_.clear();
        while (good && !value.empty()) {
          std::string_view each = take_until(&value, ',');
          rank_of_.emplace_back();
          good = take_number(&each, &rank_of_.back()) && each.empty();
        }
      }
      if (!good) {
        return invalid_argument(place() + excerpt(key) +
                                " is no key with a number; keys are ranks, stages, "
                                "micro_batches and placement");
      }
    }
    return Status::success();
  }

  Status take_header(Schedule* out) {
    TRIREME_RETURN_IF_ERROR(check_sizes(ranks_, stages_, micro_batches_));
    if (rank_of_.size() != stages_) {
      return invalid_argument("line 1: the placement has " + std::to_string(rank_of_.size()) +
                              " stages, not " + std::to_string(stages_));
    }
    TRIREME_RETURN_IF_ERROR(check_placement(ranks_, rank_of_));
    if (lists_.size() != ranks_) {
      return invalid_argument("there are " + std::to_string(lists_.size()) +
                              " lines of actions for " + std::to_string(ranks_) + " ranks");
    }
    out->micro_batches = micro_batches_;
    out->rank_of = std::move(rank_of_);
    put_lists(lists_, out);
    return Status::success();
  }

  Status infer(Schedule* out) {
    if (count_ == 0) return invalid_argument("the text has no action");
    TRIREME_RETURN_IF_ERROR(check_sizes(lists_.size(), std::uint64_t{most_stage_} + 1,
                                        std::uint64_t{most_micro_batch_} + 1));
    constexpr std::uint32_t kNone = ~0u;
    out->micro_batches = most_micro_batch_ + 1;
    out->rank_of.assign(std::size_t{most_stage_} + 1, kNone);
    // A stage lies where its first F is, or else where its first action is.
    for (const bool forward : {true, false}) {
      for (std::uint32_t rank = 0; rank < lists_.size(); ++rank) {
        for (const Action& action : lists_[rank]) {
          std::uint32_t& placed = out->rank_of[action.stage];
          if (placed == kNone && (!forward || is_forward(action.kind))) placed = rank;
        }
      }
    }
    for (std::size_t stage = 0; stage < out->rank_of.size(); ++stage) {
      if (out->rank_of[stage] == kNone) {
        return invalid_argument("stage " + std::to_string(stage) + " has no action");
      }
    }
    put_lists(lists_, out);
    TRIREME_RETURN_IF_ERROR(check_placement(out->ranks, out->rank_of));
    read_old_backward(out);
    return Status::success();
  }

  // Older files call I "B" where W follows.
  void read_old_backward(Schedule* out) const {
    const std::uint64_t cells = out->cell(out->stages(), 0);
    if (cells > count_) return;  // actions are missing, as check() will say
    std::vector<std::uint8_t> seen(cells);
    const auto bit = [](trireme_pipeline_kind kind) {
      return kind == TRIREME_PIPELINE_KIND_I ? 1 : kind == TRIREME_PIPELINE_KIND_W ? 2 : 0;
    };
    for (const Action& action : out->actions) {
      if (!is_of_stage(action.kind)) {
        seen[out->cell(action.stage, action.micro_batch)] |= bit(action.kind);
      }
    }
    for (Action& action : out->actions) {
      if (action.kind == TRIREME_PIPELINE_KIND_B &&
          seen[out->cell(action.stage, action.micro_batch)] == 2) {
        action.kind = TRIREME_PIPELINE_KIND_I;
      }
    }
  }

  std::string_view text_;
  std::uint64_t line_ = 0, count_ = 0;
  std::uint32_t most_stage_ = 0, most_micro_batch_ = 0, pairs_ = 0;
  std::uint32_t ranks_ = 0, stages_ = 0, micro_batches_ = 0;
  std::vector<std::uint32_t> rank_of_{};
  std::vector<std::vector<Action>> lists_{};
};

void append_actions(const Schedule& schedule, std::uint32_t rank, char delimiter, bool torch,
                    std::string* out) {
  const std::span<const Action> list = schedule.of(rank);
  const auto text = [&](const Action& action) {
    if (!torch) return action_text(action);
    switch (action.kind) {
      case TRIREME_PIPELINE_KIND_GATHER: return std::to_string(action.stage) + "UNSHARD";
      case TRIREME_PIPELINE_KIND_RELEASE: return std::to_string(action.stage) + "RESHARD";
      case TRIREME_PIPELINE_KIND_REDUCE: return std::to_string(action.stage) + "REDUCE_GRAD";
      default: return action_text(action);
    }
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (i > 0) *out += delimiter;
    if (list[i].pair != 0 && i + 1 < list.size() && list[i + 1].pair == list[i].pair) {
      out->append("(").append(text(list[i])).append(";");
      out->append(text(list[i + 1])).append(")");
      if (torch) *out += kOverlap;
      ++i;
    } else {
      *out += text(list[i]);
    }
  }
  *out += '\n';
}

}  // namespace

std::string write_text(const Schedule& schedule) {
  std::string out(kFirstWord);
  out += " ranks=" + std::to_string(schedule.ranks) +
         " stages=" + std::to_string(schedule.stages()) +
         " micro_batches=" + std::to_string(schedule.micro_batches) + " placement=";
  for (std::uint32_t stage = 0; stage < schedule.stages(); ++stage) {
    if (stage > 0) out += ',';
    out += std::to_string(schedule.rank_of[stage]);
  }
  out += '\n';
  for (std::uint32_t rank = 0; rank < schedule.ranks; ++rank) {
    append_actions(schedule, rank, ' ', false, &out);
  }
  return out;
}

std::string write_csv(const Schedule& schedule) {
  std::string out;
  for (std::uint32_t rank = 0; rank < schedule.ranks; ++rank) {
    append_actions(schedule, rank, ',', true, &out);
  }
  return out;
}

Status parse_schedule(std::string_view text, Schedule* out) {
  if (text.size() > kMostText) {
    return invalid_argument("the text has " + std::to_string(text.size()) + " bytes, more than " +
                            std::to_string(kMostText));
  }
  *out = {};
  return Parser(text).run(out);
}

}  // namespace trireme::pipeline
