#include "parallel/pipeline/check.hpp"

#include <algorithm>

#include "parallel/pipeline/walk.hpp"

namespace trireme::pipeline {
namespace {

constexpr std::uint16_t bit(trireme_pipeline_kind kind) {
  return static_cast<std::uint16_t>(1u << kind);
}
constexpr std::uint16_t kAnyInput = bit(TRIREME_PIPELINE_KIND_I) | bit(TRIREME_PIPELINE_KIND_B);

class Checker {
 public:
  Checker(const Schedule& schedule, const Limits& limits, const Costs* costs)
      : schedule_(schedule), limits_(limits), costs_(costs), messages_(schedule) {}

  Verdict run() {
    if (too_few()) return std::move(verdict_);
    done_.assign(schedule_.cell(schedule_.stages(), 0), 0);
    find_gathered();
    if (holds_alone() && is_complete() && is_in_message_order() && has_no_cycle()) fits();
    return std::move(verdict_);
  }

 private:
  bool fail(Rule rule, std::uint32_t rank, std::uint64_t index, const Action& action,
            const std::string& reason) {
    verdict_ = {rule, rank, index, action, action_place(rank, index, action) + ": " + reason};
    return false;
  }

  // Each cell takes two actions at least. A short text must not make large tables.
  bool too_few() {
    const std::uint64_t cells = schedule_.cell(schedule_.stages(), 0);
    if (schedule_.actions.size() >= cells || cells < 4096) return false;
    verdict_.rule = Rule::kComplete;
    verdict_.message = "there are " + std::to_string(schedule_.actions.size()) + " actions for " +
                       std::to_string(schedule_.stages()) + " stages and " +
                       std::to_string(schedule_.micro_batches) +
                       " micro-batches; each stage has F and B, or F, I and W, of each";
    return true;
  }

  void find_gathered() {
    units_.assign(schedule_.stages(), {});
    for (const Action& action : schedule_.actions) {
      if ((action.kind == TRIREME_PIPELINE_KIND_GATHER ||
           action.kind == TRIREME_PIPELINE_KIND_RELEASE) &&
          action.stage < schedule_.stages()) {
        units_[action.stage].managed = true;
      }
    }
  }

  std::uint16_t done(std::uint32_t stage, std::uint32_t micro_batch) const {
    return done_[schedule_.cell(stage, micro_batch)];
  }

  bool holds_alone() {
    for (std::uint32_t rank = 0; rank < schedule_.ranks; ++rank) {
      const std::span<const Action> list = schedule_.of(rank);
      for (std::size_t i = 0; i < list.size(); ++i) {
        const Action& action = list[i];
        if (!is_known(rank, i, action) || !is_once(rank, i, action) ||
            !is_in_order(rank, i, action) || !is_paired(rank, i, list)) {
          return false;
        }
        if (!is_of_stage(action.kind)) {
          done_[schedule_.cell(action.stage, action.micro_batch)] |= bit(action.kind);
        }
      }
    }
    return true;
  }

  bool is_known(std::uint32_t rank, std::uint64_t i, const Action& action) {
    if (action.kind < TRIREME_PIPELINE_KIND_F || action.kind > TRIREME_PIPELINE_KIND_REDUCE) {
      return fail(Rule::kKnown, rank, i, action,
                  "kind " + std::to_string(action.kind) + " is unknown");
    }
    if (action.stage >= schedule_.stages()) {
      return fail(Rule::kKnown, rank, i, action,
                  "there are " + std::to_string(schedule_.stages()) + " stages");
    }
    const std::uint32_t end = is_of_stage(action.kind) ? 1 : schedule_.micro_batches;
    if (action.micro_batch >= end) {
      return fail(Rule::kKnown, rank, i, action,
                  "micro-batch " + std::to_string(action.micro_batch) + " is not below " +
                      std::to_string(end));
    }
    if (schedule_.rank_of[action.stage] != rank) {
      return fail(Rule::kRank, rank, i, action,
                  "stage " + std::to_string(action.stage) + " lies on rank " +
                      std::to_string(schedule_.rank_of[action.stage]));
    }
    return true;
  }

  bool is_once(std::uint32_t rank, std::uint64_t i, const Action& action) {
    if (is_of_stage(action.kind)) return true;  // is_in_order() knows these
    const std::uint16_t before = done(action.stage, action.micro_batch);
    if ((before & bit(action.kind)) != 0) {
      return fail(Rule::kOnce, rank, i, action, "comes twice");
    }
    const bool split =
        action.kind == TRIREME_PIPELINE_KIND_I || action.kind == TRIREME_PIPELINE_KIND_W;
    if ((split && (before & bit(TRIREME_PIPELINE_KIND_B)) != 0) ||
        (action.kind == TRIREME_PIPELINE_KIND_B &&
         (before & (bit(TRIREME_PIPELINE_KIND_I) | bit(TRIREME_PIPELINE_KIND_W))) != 0)) {
      return fail(Rule::kOnce, rank, i, action, "B is I and W in one; they exclude each other");
    }
    return true;
  }

  // Looks for actions of the same rank that must come before.
  bool is_in_order(std::uint32_t rank, std::uint64_t i, const Action& action) {
    const auto after = [&](bool ok, const std::string& what) {
      return ok || fail(Rule::kOrder, rank, i, action, "comes before " + what);
    };
    const auto text = [&](std::uint32_t stage, const char* kind) {
      return std::to_string(stage) + kind + std::to_string(action.micro_batch);
    };
    const std::uint32_t s = action.stage;
    const std::uint16_t own = is_of_stage(action.kind) ? 0 : done(s, action.micro_batch);
    const bool forward = (own & bit(TRIREME_PIPELINE_KIND_F)) != 0;
    switch (action.kind) {
      case TRIREME_PIPELINE_KIND_F: {
        if (s > 0) {
          const bool crosses = schedule_.crosses(s - 1);
          if (!crosses &&
              !after((done(s - 1, action.micro_batch) & bit(TRIREME_PIPELINE_KIND_F)) != 0,
                     text(s - 1, "F"))) {
            return false;
          }
          if (crosses && messages_.named() && (own & bit(TRIREME_PIPELINE_KIND_RECV_F)) == 0) {
            return fail(Rule::kMessage, rank, i, action, "lacks " + text(s, "RECV_F"));
          }
        }
        return is_gathered(rank, i, action);
      }
      case TRIREME_PIPELINE_KIND_I:
      case TRIREME_PIPELINE_KIND_B: {
        if (!after(forward, text(s, "F"))) return false;
        if (s + 1 < schedule_.stages()) {
          const bool crosses = schedule_.crosses(s);
          if (!crosses && !after((done(s + 1, action.micro_batch) & kAnyInput) != 0,
                                 text(s + 1, "I") + " or " + text(s + 1, "B"))) {
            return false;
          }
          if (crosses && messages_.named() && (own & bit(TRIREME_PIPELINE_KIND_RECV_B)) == 0) {
            return fail(Rule::kMessage, rank, i, action, "lacks " + text(s, "RECV_B"));
          }
        }
        return is_gathered(rank, i, action) && is_not_reduced(rank, i, action);
      }
      case TRIREME_PIPELINE_KIND_W:
        return after((own & bit(TRIREME_PIPELINE_KIND_I)) != 0, text(s, "I")) &&
               is_gathered(rank, i, action) && is_not_reduced(rank, i, action);
      case TRIREME_PIPELINE_KIND_R:
        if ((own & kAnyInput) != 0) {
          return fail(Rule::kOrder, rank, i, action, "comes after I or B");
        }
        return after(forward, text(s, "F")) && is_gathered(rank, i, action);
      case TRIREME_PIPELINE_KIND_SEND_F:
        return goes_out(rank, i, action, schedule_.crosses(s)) && after(forward, text(s, "F"));
      case TRIREME_PIPELINE_KIND_SEND_B:
        return goes_out(rank, i, action, s > 0 && schedule_.crosses(s - 1)) &&
               after((own & kAnyInput) != 0, text(s, "I") + " or " + text(s, "B"));
      case TRIREME_PIPELINE_KIND_RECV_F:
        return goes_out(rank, i, action, s > 0 && schedule_.crosses(s - 1));
      case TRIREME_PIPELINE_KIND_RECV_B: return goes_out(rank, i, action, schedule_.crosses(s));
      default: return is_unit_in_order(rank, i, action);
    }
  }

  bool goes_out(std::uint32_t rank, std::uint64_t i, const Action& action, bool crosses) {
    return crosses ||
           fail(Rule::kMessage, rank, i, action, "no other rank holds the stage beside it");
  }

  bool is_gathered(std::uint32_t rank, std::uint64_t i, const Action& action) {
    const Unit& unit = units_[action.stage];
    return !unit.managed || unit.gathered ||
           fail(Rule::kUnit, rank, i, action, "the stage is not gathered");
  }

  bool is_not_reduced(std::uint32_t rank, std::uint64_t i, const Action& action) {
    return !units_[action.stage].reduced ||
           fail(Rule::kUnit, rank, i, action, "the gradients of the stage are reduced already");
  }

  bool is_unit_in_order(std::uint32_t rank, std::uint64_t i, const Action& action) {
    Unit& unit = units_[action.stage];
    if (action.kind == TRIREME_PIPELINE_KIND_REDUCE) {
      if (unit.reduced) return fail(Rule::kUnit, rank, i, action, "comes twice");
      unit.reduced = true;
      return true;
    }
    const bool gathers = action.kind == TRIREME_PIPELINE_KIND_GATHER;
    if (gathers == unit.gathered) {
      return fail(Rule::kUnit, rank, i, action,
                  gathers ? "the stage is gathered already" : "the stage is not gathered");
    }
    unit.gathered = gathers;
    return true;
  }

  bool is_paired(std::uint32_t rank, std::uint64_t i, std::span<const Action> list) {
    const Action& action = list[i];
    if (action.pair == 0) return true;
    const bool before = i > 0 && list[i - 1].pair == action.pair;
    const bool behind = i + 1 < list.size() && list[i + 1].pair == action.pair;
    if (before == behind) {
      return fail(Rule::kPair, rank, i, action, "a pair is two actions side by side");
    }
    const Action& other = before ? list[i - 1] : list[i + 1];
    if (!(is_forward(action.kind) && is_backward(other.kind)) &&
        !(is_backward(action.kind) && is_forward(other.kind))) {
      return fail(Rule::kPair, rank, i, action, "a pair is one F, and one I or B");
    }
    if (action.micro_batch == other.micro_batch) {
      return fail(Rule::kPair, rank, i, action, "both of the pair are of one micro-batch");
    }
    return true;
  }

  bool is_complete() {
    for (std::uint32_t s = 0; s < schedule_.stages(); ++s) {
      for (std::uint32_t m = 0; m < schedule_.micro_batches; ++m) {
        const std::uint16_t all = done(s, m);
        const auto has = [&](trireme_pipeline_kind kind) { return (all & bit(kind)) != 0; };
        if (!has(TRIREME_PIPELINE_KIND_F)) return missing(s, m, TRIREME_PIPELINE_KIND_F);
        if ((all & kAnyInput) == 0) return missing(s, m, TRIREME_PIPELINE_KIND_B);
        if (!has(TRIREME_PIPELINE_KIND_B) && !has(TRIREME_PIPELINE_KIND_W)) {
          return missing(s, m, TRIREME_PIPELINE_KIND_W);
        }
        if (!messages_.named()) continue;
        if (schedule_.crosses(s) && !has(TRIREME_PIPELINE_KIND_SEND_F)) {
          return missing(s, m, TRIREME_PIPELINE_KIND_SEND_F);
        }
        if (s > 0 && schedule_.crosses(s - 1) && !has(TRIREME_PIPELINE_KIND_SEND_B)) {
          return missing(s, m, TRIREME_PIPELINE_KIND_SEND_B);
        }
      }
    }
    return true;
  }

  bool missing(std::uint32_t stage, std::uint32_t micro_batch, trireme_pipeline_kind kind) {
    const std::uint32_t rank = schedule_.rank_of[stage];
    return fail(
        is_message(kind) ? Rule::kMessage : Rule::kComplete, rank, schedule_.of(rank).size(),
        {kind, stage, micro_batch, 0},
        is_message(kind) ? "is missing; the message is received but not sent" : "is missing");
  }

  // Links are queues: the k-th message that is taken must be the k-th that was sent.
  bool is_in_message_order() {
    const std::uint32_t stages = schedule_.stages();
    std::vector<std::uint32_t> place(2 * done_.size());
    std::vector<std::uint32_t> count(2 * std::size_t{stages});
    for (const Action& action : schedule_.actions) {
      const bool forward = messages_.makes_forward(action);
      if (!forward && !messages_.makes_backward(action)) continue;
      const std::uint64_t cell = schedule_.cell(action.stage, action.micro_batch);
      place[cell + (forward ? 0 : done_.size())] = count[action.stage + (forward ? 0 : stages)]++;
    }
    count.assign(count.size(), 0);
    for (std::uint32_t rank = 0; rank < schedule_.ranks; ++rank) {
      const std::span<const Action> list = schedule_.of(rank);
      for (std::size_t i = 0; i < list.size(); ++i) {
        const Action& action = list[i];
        const bool forward = messages_.needs_forward(action);
        if (!forward && !messages_.needs_backward(action)) continue;
        const std::uint32_t from = forward ? action.stage - 1 : action.stage + 1;
        const std::uint32_t taken = count[from + (forward ? 0 : stages)]++;
        const std::uint32_t sent =
            place[schedule_.cell(from, action.micro_batch) + (forward ? 0 : done_.size())];
        if (taken == sent) continue;
        return fail(Rule::kMessageOrder, rank, i, action,
                    "takes message " + std::to_string(taken) + " of stage " + std::to_string(from) +
                        ", which sends micro-batch " + std::to_string(action.micro_batch) +
                        " as its message " + std::to_string(sent));
      }
    }
    return true;
  }

  bool has_no_cycle() {
    Walk walk(schedule_, limits_.buffers);
    if (walk.run([](std::uint32_t, std::uint64_t, const Action&, const Need&) {})) return true;
    std::uint32_t rank = 0;
    while (walk.ended(rank)) ++rank;
    // Each rank that stands waits for a rank that stands: after so many steps this is the circle.
    const auto waits_for = [&](std::uint32_t from) {
      const Action& action = schedule_.of(from)[walk.next(from)];
      return walk.lacks_buffer(from) ? walk.taker(action) : walk.giver(action);
    };
    for (std::uint32_t i = 0; i < schedule_.ranks; ++i) rank = waits_for(rank);
    const std::uint32_t begin = rank;
    std::string text = "ranks wait for each other in a circle";
    std::size_t told = 0;
    do {
      const Action& action = schedule_.of(rank)[walk.next(rank)];
      const std::uint32_t other = waits_for(rank);
      if (told++ < 16) {
        text += "; " + action_place(rank, walk.next(rank), action) + " waits for " +
                (walk.lacks_buffer(rank) ? "a free buffer" : "its message") + " from rank " +
                std::to_string(other);
      }
      rank = other;
    } while (rank != begin);
    if (told > 16) text += "; and " + std::to_string(told - 16) + " more";
    fail(Rule::kCycle, begin, walk.next(begin), schedule_.of(begin)[walk.next(begin)], text);
    return false;
  }

  bool fits() {
    if (costs_ == nullptr || limits_.bytes.empty()) return true;
    for (std::uint32_t rank = 0; rank < schedule_.ranks; ++rank) {
      const std::uint64_t limit = limits_.bytes[rank];
      std::uint64_t passed = 0;
      const std::uint64_t peak = peak_bytes_of(schedule_, rank, *costs_, limit, &passed);
      if (peak > limit) {
        return fail(Rule::kMemory, rank, passed, schedule_.of(rank)[passed],
                    "passes the limit of " + std::to_string(limit) +
                        " bytes; the peak of the rank is " + std::to_string(peak));
      }
    }
    return true;
  }

  struct Unit {
    bool managed = false;  // has GATHER or RELEASE
    bool gathered = false;
    bool reduced = false;
  };

  const Schedule& schedule_;
  const Limits& limits_;
  const Costs* const costs_;
  const Messages messages_;
  std::vector<std::uint16_t> done_{};  // bits of kinds, by cell
  std::vector<Unit> units_{};
  Verdict verdict_{};
};

}  // namespace

Verdict check(const Schedule& schedule, const Limits& limits, const Costs* costs) {
  return Checker(schedule, limits, costs).run();
}

}  // namespace trireme::pipeline
