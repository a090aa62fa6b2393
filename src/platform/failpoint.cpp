#include "platform/failpoint.hpp"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

namespace trireme {
namespace {

// The list. A group and a point that meet here make one failpoint, "group.point".
constexpr const char* kCollectives[] = {
    "all_reduce", "reduce_scatter", "reduce_scatter_v", "all_gather",   "all_gather_v",
    "broadcast",  "barrier",        "reduce",           "gather",       "gather_v",
    "scatter",    "scatter_v",      "all_to_all",       "all_to_all_v", "fold"};
constexpr const char* kCollectivePoints[] = {"before_publish", "after_publish", "before_move",
                                             "mid_move",       "after_move",    "before_leave"};
constexpr const char* kOthers[] = {
    "send.before_first",
    "send.mid_message",
    "send.before_done",
    "receive.before_first",
    "receive.mid_message",
    "receive.before_done",
    "join.before_claim",
    "join.after_claim",
    "join.before_hello",
    "join.after_hello",
    "join.before_ready",
    "join.before_spread",
    "join.after_requests",
    "buffer.before_allocate",
    "buffer.after_allocate",
    "leave.before_mark",
    "leave.after_mark",
    "child.before_join",
    "child.after_join",
    "all_reduce.mid_write",
    "broadcast.mid_write",
    "decide.before_vote",
    "decide.after_vote",
    "decide.before_decision",
    "decide.after_decision",
    "decide.before_prepare",
    "decide.before_accept",
    "decide.before_propose",
    "decide.before_spread",
    "shrink.before_join",
    "shrink.after_join",
    "mpi.before_meeting",
    "mpi.before_send",
    "mpi.before_receive",
    "mpi.before_confirm",
    "nccl.after_join",
    "file.open",
    "file.direct",
    "file.reserve",
    "file.ring",
    "file.read",
    "file.write",
};
// Between hosts: calling and being called, meeting, frames, pieces of an engine, the store.
constexpr const char* kNetwork[] = {
    "call.before_hello",      "call.before_proof",     "call.before_verdict", "gate.before_enter",
    "meeting.before_request", "meeting.after_request", "meeting.after_reply", "meeting.before_tell",
    "meeting.mid_tell",       "mesh.before_listen",    "mesh.before_dial",    "mesh.before_watch",
    "signs.before_count",     "mesh.before_adopt",     "frame.mid_head",      "frame.mid_body",
    "frame.before_rest",      "piece.before_first",    "piece.mid_piece",     "piece.before_done",
    "leave.before_goodbye",   "leave.after_goodbye",   "leave.before_taken",  "memory.before_join",
    "memory.before_use",      "store.before_ask",      "store.after_ask",     "store.before_take",
    "store.before_answer",
};
// In models and their optimizers.
constexpr const char* kTraining[] = {
    "agree.before_exchange",
    "agree.after_exchange",
    "agree.before_texts",
    "seal.before_reshard",
    "seal.between_groups",
    "seal.before_allocate",
    "seal.before_cuts",
    "seal.before_parts",
    "seal.before_tied",
    "share.before_key",
    "share.after_key",
    "share.after_map",
    "set.before_broadcast",
    "set.after_broadcast",
    "set.mid_write",
    "unit.before_gather",
    "unit.after_gather",
    "unit.before_prefetch",
    "unit.after_prefetch",
    "unit.before_wait",
    "uneven.after_enter",
    "uneven.before_look",
    "bucket.before_launch",
    "bucket.after_launch",
    "bucket.after_wait",
    "bucket.before_ask",
    "bucket.before_update",
    "bucket.before_sweep",
    "axis_sum.before_launch",
    "axis_sum.after_launch",
    "axis_sum.after_wait",
    "step.before_reductions",
    "step.after_reductions",
    "step.before_contributors",
    "step.before_answers",
    "step.before_agree",
    "step.before_update",
    "step.mid_update",
    "step.after_update",
    "step.before_norms",
    "step.before_axis_norms",
    "step.before_whole",
    "step.before_largest",
    "step.before_squares",
    "step.before_matrices",
    "step.mid_give",
    "step.after_give",
    "step.before_return",
    "follow.before_step",
    "follow.after_step",
    "replicas.before_exchange",
    "replicas.after_exchange",
    "save.before_copy",
    "save.after_copy",
    "load.before_agree",
    "load.before_copy",
    "load.after_copy",
    "trainer.before_allocate",
    "trainer.before_exchange",
    "trainer.after_exchange",
    "trainer.keep",
    "pipeline.before_allocate",
    "pipeline.before_sizes",
    "pipeline.before_skip",
    "pipeline.before_budget",
    "pipeline.before_forward",
    "pipeline.before_recompute",
    "pipeline.before_input",
    "pipeline.before_weights",
    "pipeline.before_backward",
    "pipeline.before_tied",
    "pipeline.before_ties",
    "pipeline.before_send",
    "pipeline.before_reads",
    "pipeline.before_receive",
    "pipeline.before_keys",
    "pipeline.before_sent",
    "pipeline.before_wake",
    "pipeline.before_outcome",
    "pipeline.after_outcome",
    "rebalance.before_tables",
    "rebalance.between_tables",
    "rebalance.before_allocate",
    "rebalance.before_send",
    "rebalance.before_receive",
    "rebalance.before_restore",
    "rebalance.after_commit",
};

const std::vector<std::string>& names() {
  static const auto* const all = [] {
    auto* list = new std::vector<std::string>;
    for (const char* collective : kCollectives) {
      for (const char* point : kCollectivePoints) {
        list->push_back(std::string(collective) + "." + point);
      }
    }
    list->insert(list->end(), std::begin(kOthers), std::end(kOthers));
    list->insert(list->end(), std::begin(kNetwork), std::end(kNetwork));
    list->insert(list->end(), std::begin(kTraining), std::end(kTraining));
    return list;
  }();
  return *all;
}

bool is_known(std::string_view name) {
  for (const std::string& known : names()) {
    if (known == name) return true;
  }
  return false;
}

enum class Action { off, kill, stop, sleep, fail, cut };

struct Setting {
  Action action = Action::off;
  std::uint64_t milliseconds = 0;
  std::uint64_t error_number = EIO;
  std::uint64_t hit = 0;  // 0: at every visit
  bool from_hit = false;  // at that visit and all later ones
  std::uint64_t visits = 0;

  bool acts() const { return hit == 0 || visits == hit || (from_hit && visits > hit); }
};

struct Settings {
  std::mutex mutex;
  std::map<std::string, Setting, std::less<>> by_name;
};

// Never destroyed: threads may pass failpoints while the process ends.
Settings& settings() {
  static Settings* const instance = new Settings;
  return *instance;
}

bool parse_number(std::string_view text, std::uint64_t* out) {
  if (text.empty() || text.size() > 18) return false;
  std::uint64_t value = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return false;
    value = value * 10 + static_cast<std::uint64_t>(digit - '0');
  }
  *out = value;
  return true;
}

constexpr std::uint64_t kMostErrors = 4096;  // errno is below

Status parse_setting(std::string_view text, std::string* name, Setting* out) {
  const auto refuse = [&](const char* why) {
    return invalid_argument("failpoint \"" + std::string(text) + "\": " + why);
  };
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) return refuse("want NAME=ACTION[@HIT]");
  *name = text.substr(0, equals);
  if (!is_known(*name)) return refuse("no such failpoint");
  std::string_view action = text.substr(equals + 1);
  if (const std::size_t at = action.find('@'); at != std::string_view::npos) {
    std::string_view hit = action.substr(at + 1);
    if (!hit.empty() && hit.back() == '+') {
      out->from_hit = true;
      hit.remove_suffix(1);
    }
    if (!parse_number(hit, &out->hit) || out->hit == 0) {
      return refuse("the hit is a number from 1, or one and +");
    }
    action = action.substr(0, at);
  }
  const auto number_in = [&action](std::string_view begin, std::uint64_t* number) {
    return action.substr(0, begin.size()) == begin && action.back() == ')' &&
           parse_number(action.substr(begin.size(), action.size() - begin.size() - 1), number);
  };
  if (action == "kill") {
    out->action = Action::kill;
  } else if (action == "stop") {
    out->action = Action::stop;
  } else if (action == "fail") {
    out->action = Action::fail;
  } else if (action == "off") {
    out->action = Action::off;
  } else if (action == "short") {
    out->action = Action::cut;
  } else if (number_in("sleep(", &out->milliseconds)) {
    out->action = Action::sleep;
  } else if (number_in("fail(", &out->error_number) && out->error_number > 0 &&
             out->error_number < kMostErrors) {
    out->action = Action::fail;
  } else {
    return refuse("the action is kill, stop, sleep(MILLISECONDS), fail, fail(ERRNO), short or off");
  }
  return Status::success();
}

// The environment is read when the library is loaded, before it can have threads.
[[gnu::constructor]] void read_environment() {
  const char* const text = std::getenv("TRIREME_FAILPOINTS");
  if (text == nullptr || *text == 0) return;
  try {
    if (!set_failpoints(text).ok()) set_failpoints(nullptr).ok();
  } catch (...) {  // no memory this early: the process runs without failpoints
  }
}

}  // namespace

std::atomic<bool> detail::failpoints_armed{false};

Status detail::visit_failpoint(const char* group, const char* point) {
  const std::string name = std::string(group) + "." + point;
  Setting setting;
  {
    Settings& all = settings();
    const std::lock_guard lock(all.mutex);
    const auto found = all.by_name.find(name);
    if (found == all.by_name.end()) {
      return is_known(name) ? Status::success()
                            : Status::failure(TRIREME_ERROR_INTERNAL,
                                              "failpoint " + name + " is not in the list");
    }
    ++found->second.visits;
    setting = found->second;
  }
  if (!setting.acts()) return Status::success();
  switch (setting.action) {
    case Action::off: break;
    case Action::kill: ::kill(getpid(), SIGKILL); break;
    case Action::stop: ::kill(getpid(), SIGSTOP); break;
    case Action::sleep:
      std::this_thread::sleep_for(std::chrono::milliseconds(setting.milliseconds));
      break;
    case Action::fail:
      return Status::system(static_cast<int>(setting.error_number), "failpoint " + name);
    case Action::cut: {
      FailureDetails details;
      details.system_error = kCutShort;
      return Status::failure(TRIREME_ERROR_SYSTEM, "failpoint " + name + ": cut short")
          .with_details(std::move(details));
    }
  }
  return Status::success();
}

int failed_with(const Status& visit) noexcept {
  if (visit.ok()) return 0;
  return visit.details() != nullptr ? visit.details()->system_error : EIO;
}

std::uint32_t failpoint_count() { return static_cast<std::uint32_t>(names().size()); }

const char* failpoint_name(std::uint32_t index) {
  return index < names().size() ? names()[index].c_str() : nullptr;
}

Status set_failpoints(const char* text) {
  std::map<std::string, Setting, std::less<>> parsed;
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(';'), rest.size());
    std::string name;
    Setting setting;
    TRIREME_RETURN_IF_ERROR(parse_setting(rest.substr(0, end), &name, &setting));
    parsed[name] = setting;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  Settings& all = settings();
  const std::lock_guard lock(all.mutex);
  all.by_name = std::move(parsed);
  detail::failpoints_armed.store(!all.by_name.empty(), std::memory_order_relaxed);
  return Status::success();
}

Status failpoint_hits(const char* name, std::uint64_t* out) {
  if (!is_known(name)) {
    return invalid_argument("no failpoint is called \"" + std::string(name) + "\"");
  }
  Settings& all = settings();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_name.find(std::string_view(name));
  *out = found == all.by_name.end() ? 0 : found->second.visits;
  return Status::success();
}

}  // namespace trireme
