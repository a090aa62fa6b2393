#include "backends/last_calls.hpp"

#include <algorithm>
#include <cstdio>

#include "platform/log.hpp"

namespace trireme {
namespace {

constexpr std::size_t kMostDescribed = 4;

std::string queue_of(std::uint32_t channel, std::uint32_t model) {
  if (channel == 0) return "";
  if (channel == kUrgentChannel) return " of the urgent queue";
  return " of " + queue_text(channel, model);
}

std::string describe(const LastCalls& calls) {
  std::string text;
  if (calls.collective != OperationKind{}) {
    text = std::string(operation_name(calls.collective)) + ", sequence " +
           std::to_string(calls.sequence) + queue_of(calls.channel, calls.model);
  }
  if (calls.message != OperationKind{}) {
    const bool sends = calls.message == OperationKind::send;
    if (!text.empty()) text += ", and ";
    text += operation_name(calls.message);
    text += calls.peer == kAnySource
                ? std::string(" from any rank")
                : (sends ? " to rank " : " from rank ") + std::to_string(calls.peer);
  }
  return text;
}

const char* state_name(LastCalls::State state) {
  switch (state) {
    case LastCalls::State::absent: return "absent";
    case LastCalls::State::joined: return "joined";
    case LastCalls::State::left: return "left";
    case LastCalls::State::lost: return "lost";
  }
  return "unknown";
}

}  // namespace

std::string queue_text(std::uint32_t channel, std::uint32_t model) {
  const bool parameters = (channel - kModelChannel) % 2 == 0;
  return std::string("the ") + (parameters ? "parameters" : "gradients") + "' queue of " +
         (model == 0 ? "a model" : "model " + std::to_string(model));
}

std::string describe_last_calls(const std::vector<LastCalls>& all,
                                const std::vector<std::int32_t>& ranks) {
  std::string text;
  std::size_t described = 0;
  for (const std::int32_t rank : ranks) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= all.size()) continue;
    const LastCalls& calls = all[static_cast<std::size_t>(rank)];
    if (!calls.known || calls.state == LastCalls::State::absent) continue;
    if (described++ == kMostDescribed) {
      text += "; ...";
      break;
    }
    const std::string called = describe(calls);
    if (!text.empty()) text += "; ";
    text += "rank " + std::to_string(rank) +
            (called.empty() ? " has called nothing" : " last called " + called);
  }
  return text;
}

std::string last_calls_text(const std::vector<LastCalls>& all) {
  std::string text;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const LastCalls& calls = all[rank];
    text += "{\"rank\":" + std::to_string(rank);
    text += ",\"state\":\"" + std::string(state_name(calls.state)) + "\"";
    text += calls.known ? ",\"known\":true" : ",\"known\":false";
    if (calls.collective == OperationKind{}) {
      text += ",\"collective\":null";
    } else {
      text += ",\"collective\":\"" + std::string(operation_name(calls.collective)) + "\"";
      text += ",\"sequence\":" + std::to_string(calls.sequence);
      text += ",\"channel\":" + std::to_string(calls.channel);
      if (calls.model != 0) text += ",\"model\":" + std::to_string(calls.model);
    }
    if (calls.message == OperationKind{}) {
      text += ",\"message\":null}\n";
    } else {
      text += ",\"message\":\"" + std::string(operation_name(calls.message)) + "\"";
      text += ",\"peer\":" + std::to_string(calls.peer);
      text += ",\"message_sequence\":" + std::to_string(calls.message_sequence) + "}\n";
    }
  }
  return text;
}

void warn_slow(const std::string& name, int me, const std::vector<LastCalls>& all,
               const std::vector<std::int32_t>& ranks, const std::string& what,
               std::uint64_t waited_ns) noexcept {
  if (!log_wanted(TRIREME_LOG_WARNING)) return;
  try {
    char time[32];
    if (waited_ns < 1'000'000'000) {
      std::snprintf(time, sizeof time, " for %d ms", static_cast<int>(waited_ns / 1'000'000));
    } else {
      std::snprintf(time, sizeof time, " for %.1f s", static_cast<double>(waited_ns) / 1e9);
    }
    const std::string who = ranks.empty() ? "no rank" : list_ranks(ranks);
    const std::string calls = describe_last_calls(all, ranks);
    log_line(TRIREME_LOG_WARNING, "rank " + std::to_string(me) + " of \"" + name + "\": " + who +
                                      (ranks.size() > 1 ? " have " : " has ") + what + time +
                                      (calls.empty() ? "" : "; " + calls));
  } catch (...) {  // no memory for a line, so there is none
  }
}

}  // namespace trireme
