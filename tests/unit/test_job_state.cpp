// Jobs on several hosts: the ranks of each agent, admission, the end, and the blame, with losses
// and failures at every step; and the agents' messages as bytes.
#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "launch/agent_messages.hpp"
#include "launch/job_state.hpp"

namespace {

using namespace trireme::cluster;

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kSecond = 1000 * kMs;
constexpr JobLimits kLimits{600 * kSecond, 30 * kSecond, false};

AgentHello hello(int least, int most, int workers = 1, int node_rank = -1) {
  AgentHello message;
  message.host = "host-" + std::to_string(workers) + "-" + std::to_string(node_rank);
  message.workers = workers;
  message.node_rank = node_rank;
  message.least_nodes = least;
  message.most_nodes = most;
  message.address = "10.0.0." + std::to_string(workers);
  message.meeting_port = 1000 + workers;
  message.master_port = 2000 + workers;
  return message;
}

JobState begun_job(int count) {
  JobState state(hello(count, count), kLimits, 0);
  for (int agent = 1; agent < count; ++agent) state.join(agent, hello(count, count), 1);
  return state;
}

void ranks_follow_the_node_ranks_that_are_wanted_and_then_the_order_of_coming(void**) {
  // Wishes of the agents as they come, and the node ranks that come of them.
  const struct {
    std::vector<int> wishes, node_ranks;
  } cases[] = {{{-1}, {0}},
               {{-1, -1, -1}, {0, 1, 2}},
               {{2, 1, 0}, {2, 1, 0}},
               {{-1, 0, -1}, {1, 0, 2}},
               {{2, -1, -1}, {2, 0, 1}},
               {{-1, 2, 0}, {1, 2, 0}}};
  for (const auto& each : cases) {
    const int count = static_cast<int>(each.wishes.size());
    JobState state(hello(count, count, 3, each.wishes[0]), kLimits, 0);
    for (int agent = 1; agent < count; ++agent) {
      assert_false(state.begun());
      const std::size_t at = static_cast<std::size_t>(agent);
      assert_string_equal(
          state.join(agent, hello(count, count, 3 + agent, each.wishes[at]), 5).c_str(), "");
    }
    assert_true(state.begun());
    std::vector<int> workers(each.wishes.size());
    for (int agent = 0; agent < count; ++agent) {
      workers[static_cast<std::size_t>(each.node_ranks[static_cast<std::size_t>(agent)])] =
          3 + agent;
    }
    for (int agent = 0; agent < count; ++agent) {
      const AgentStart start = state.start_of(agent, "name");
      const int node = each.node_ranks[static_cast<std::size_t>(agent)];
      int first = 0;
      for (int before = 0; before < node; ++before)
        first += workers[static_cast<std::size_t>(before)];
      assert_int_equal(start.node_rank, node);
      assert_int_equal(start.nodes, count);
      assert_int_equal(start.first_rank, first);
      assert_int_equal(start.world_size, count * 3 + count * (count - 1) / 2);
      // The ranks meet at node 0, wherever the agents do.
      const int at_first = workers[0];
      assert_string_equal(start.master_address.c_str(),
                          ("10.0.0." + std::to_string(at_first)).c_str());
      assert_int_equal(start.master_port, 2000 + at_first);
      assert_string_equal(start.rendezvous.c_str(),
                          ("tcp://10.0.0." + std::to_string(at_first) + ":" +
                           std::to_string(1000 + at_first) + "/name")
                              .c_str());
    }
  }
}

void an_address_of_ipv6_stands_in_brackets(void**) {
  AgentHello own = hello(1, 1);
  own.address = "fd00::1";
  const JobState state(own, kLimits, 0);
  assert_string_equal(state.start_of(0, "n").rendezvous.c_str(), "tcp://[fd00::1]:1001/n");
  assert_string_equal(state.start_of(0, "n").master_address.c_str(), "fd00::1");
}

void a_wish_too_high_for_those_who_came_goes_before_no_wish(void**) {
  JobState state(hello(2, 5, 1, -1), kLimits, 0);
  assert_string_equal(state.join(1, hello(2, 5, 1, 4), 0).c_str(), "");
  assert_string_equal(state.join(2, hello(2, 5, 1, 3), 0).c_str(), "");
  state.time_passed(kLimits.last_call_ns);
  assert_true(state.begun());
  assert_int_equal(state.start_of(2, "").node_rank, 0);
  assert_int_equal(state.start_of(1, "").node_rank, 1);
  assert_int_equal(state.start_of(0, "").node_rank, 2);
}

void refused(const std::string& reason, const char* words) {
  if (reason.find(words) == std::string::npos) fail_msg("\"%s\" not in: %s", words, reason.c_str());
}

void who_does_not_fit_is_refused_with_the_reason_and_leaves_no_trace(void**) {
  JobState state(hello(2, 3, 1, 1), kLimits, 0);
  refused(state.join(1, hello(3, 3), 0), "started with --nnodes 3, the job with --nnodes 2:3");
  refused(state.join(2, hello(2, 4), 0), "started with --nnodes 2:4, the job with --nnodes 2:3");
  refused(state.join(3, hello(2, 3, 1, 1), 0), "node rank 1 is taken by an agent on host-1-1");
  refused(state.join(4, hello(2, 3, 1, 3), 0), "node rank 3 is none of 3 nodes");
  AgentHello restless = hello(2, 3);
  restless.restarts = 2;
  refused(state.join(9, restless, 0),
          "started with --max-restarts 2, the job with --max-restarts 0");
  assert_false(state.begun());
  assert_string_equal(state.join(5, hello(2, 3), 0).c_str(), "");
  assert_string_equal(state.join(6, hello(2, 3), 0).c_str(), "");
  assert_int_equal(state.start_of(6, "").world_size, 3);
  refused(state.join(7, hello(2, 3), 0), "begun without it, with 3 nodes");
  // Nothing that the refused say or do counts.
  state.ended(7, AgentEnd{3, false, 0, "mine"}, 1);
  state.lost(3, "gone", 1);
  state.stop_wanted(1, AgentStop{SIGINT, true, ""});
  assert_false(state.stop().has_value());
  for (int agent : {0, 5, 6}) state.ended(agent, AgentEnd{}, 2);
  refused(state.join(8, hello(2, 3), 3), "the job is over");
}

// Time alone has this effect, at this moment and not before: the job begins, or never will.
void comes_at(const JobState& state, std::uint64_t moment_ns, bool begins) {
  JobState before = state;
  before.time_passed(moment_ns - 1);
  assert_false(before.begun());
  assert_false(before.verdict().has_value());
  JobState after = state;
  after.time_passed(moment_ns);
  assert_int_equal(after.begun(), begins);
  assert_int_equal(after.verdict().has_value(), !begins);
}

void the_last_call_begins_with_the_fewest_and_ends_with_too_few(void**) {
  JobState state(hello(2, 4), kLimits, 100);
  comes_at(state, 100 + kLimits.join_ns, false);
  state.join(1, hello(2, 4), 200);
  comes_at(state, 200 + kLimits.last_call_ns, true);
  state.join(2, hello(2, 4), 300);  // no more time for more
  comes_at(state, 200 + kLimits.last_call_ns, true);
  state.lost(1, "gone", 400);
  comes_at(state, 200 + kLimits.last_call_ns, true);
  state.lost(2, "gone", 400);
  comes_at(state, 100 + kLimits.join_ns, false);
  state.join(3, hello(2, 4), 500 * kSecond);
  comes_at(state, 530 * kSecond, true);
  state.time_passed(530 * kSecond);
  assert_int_equal(state.start_of(3, "").nodes, 2);
  state.time_passed(UINT64_MAX);
  assert_false(state.verdict().has_value());
}

void a_job_is_ending_from_the_first_stop_on(void**) {
  JobState state = begun_job(2);
  assert_false(state.is_ending());
  state.lost(1, "gone", 5);
  assert_true(state.is_ending());
  assert_false(state.verdict().has_value());
  state.ended(0, AgentEnd{}, 6);
  assert_true(state.verdict().has_value());
  assert_true(state.is_ending());
}

void too_few_in_time_is_a_verdict_that_names_who_came(void**) {
  JobState state(hello(3, 3, 1), {1500 * kMs, 0}, 0);
  state.join(1, hello(3, 3, 2), 1);
  comes_at(state, 1500 * kMs, false);
  state.time_passed(1500 * kMs);
  assert_int_equal(state.verdict()->code, 1);
  refused(state.verdict()->text,
          "only 2 of at least 3 nodes have come within 1.5 s: host-1--1 host-2--1");
}

void a_signal_before_the_job_begins_ends_it_only_at_the_coordinator(void**) {
  JobState state(hello(3, 3), kLimits, 0);
  state.join(1, hello(3, 3), 1);
  state.stop_wanted(1, AgentStop{SIGTERM, true, "not this"});
  assert_false(state.verdict().has_value());
  state.stop_wanted(0, AgentStop{SIGINT, true, "this"});
  assert_int_equal(state.verdict()->code, 128 + SIGINT);
  assert_string_equal(state.verdict()->text.c_str(), "this");
}

void a_signal_counts_though_who_lost_a_peer_by_it_was_told_of_first(void**) {
  const AgentStop by_user{SIGINT, true, "why"}, by_failure{SIGTERM, false, ""};
  AgentEnd effect{1, false, 0, "rank 1 failed"};
  effect.lost_peer = true;
  JobState told = begun_job(2);
  told.ended(1, effect, 5);
  assert_false(told.stop()->by_user);
  JobState own = told, late = told;
  told.stop_wanted(1, by_user);
  assert_int_equal(told.stop()->signal, SIGINT);
  told.ended(0, AgentEnd{3, false, 0, "rank 0 failed"}, 6);
  assert_int_equal(told.verdict()->code, 128 + SIGINT);
  assert_string_equal(told.verdict()->text.c_str(), "");

  // Not where the cause is known, or an agent has asked for the end because of it.
  own.ended(0, AgentEnd{3, false, 0, "rank 0 failed"}, 6);
  own.stop_wanted(1, by_user);
  assert_int_equal(own.verdict()->code, 3);
  JobState asked = begun_job(3);
  asked.stop_wanted(0, by_failure);
  asked.ended(1, effect, 5);
  asked.stop_wanted(2, by_user);
  assert_false(asked.stop()->by_user);
  late.ended(0, AgentEnd{}, 6);
  late.stop_wanted(0, by_user);
  assert_int_equal(late.verdict()->code, 1);
}

// The events of the agents of a job that has begun, each at a moment of its own.
struct Event {
  enum Kind { fine, failure, killed, loss, signal } kind;
  int agent;
  std::uint64_t at_ns;
};

std::string failure_of(int agent) { return "rank " + std::to_string(agent) + " failed"; }

// Reports every event as late as `delay` says, in that order, and checks that the verdict waits for
// the last agent. Moments are far from each other, so that the earliest trouble is the cause.
void run(int count, const std::vector<Event>& events, const std::vector<std::uint64_t>& delays) {
  JobState state = begun_job(count);
  std::vector<std::size_t> order(events.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return events[a].at_ns + delays[a] < events[b].at_ns + delays[b];
  });
  const Event* cause = nullptr;
  bool by_user = false;
  bool trouble = false;
  for (const std::size_t i : order) {
    const Event& event = events[i];
    const std::uint64_t now = event.at_ns + delays[i];
    assert_false(state.verdict().has_value());
    const std::uint64_t age = delays[i];
    switch (event.kind) {
      case Event::fine: state.ended(event.agent, AgentEnd{}, now); break;
      case Event::failure:
        state.ended(event.agent, AgentEnd{3 + event.agent, false, age, failure_of(event.agent)},
                    now);
        break;
      case Event::killed:
        state.ended(event.agent, AgentEnd{137, true, age, failure_of(event.agent)}, now);
        break;
      case Event::loss: state.lost(event.agent, "gone", event.at_ns); break;
      case Event::signal:
        state.stop_wanted(event.agent, AgentStop{SIGINT, true, "why"});
        state.ended(event.agent, AgentEnd{128 + SIGINT, false, age, ""}, now);
        break;
    }
    if (event.kind != Event::fine) {
      if (!trouble && event.kind == Event::signal) by_user = true;
      trouble = true;
      if (event.kind != Event::signal && (cause == nullptr || event.at_ns < cause->at_ns))
        cause = &event;
    }
    assert_int_equal(state.stop().has_value(), trouble);
  }
  assert_true(state.verdict().has_value());
  const AgentVerdict& verdict = *state.verdict();
  if (by_user) {
    assert_int_equal(verdict.code, 128 + SIGINT);
    assert_string_equal(verdict.text.c_str(), "");
  } else if (cause == nullptr) {
    assert_int_equal(verdict.code, trouble ? 128 + SIGINT : 0);
    assert_string_equal(verdict.text.c_str(), "");
  } else if (cause->kind == Event::loss) {
    assert_int_equal(verdict.code, 1);
    refused(verdict.text,
            ("the agent of node " + std::to_string(cause->agent) + " on host-1--1 (rank " +
             std::to_string(cause->agent) + ") is lost: gone")
                .c_str());
  } else {
    assert_int_equal(verdict.code, cause->kind == Event::killed ? 137 : 3 + cause->agent);
    assert_string_equal(verdict.text.c_str(), failure_of(cause->agent).c_str());
  }
}

void every_agent_ends_every_way_in_every_order(void**) {
  constexpr Event::Kind kinds[] = {Event::fine, Event::failure, Event::killed, Event::loss};
  std::vector<int> order = {0, 1, 2};
  do {
    for (const auto first : kinds) {
      for (const auto second : kinds) {
        for (const auto third : kinds) {
          std::vector<Event> events = {{first, order[0], 1 * kSecond},
                                       {second, order[1], 2 * kSecond},
                                       {third, order[2], 3 * kSecond}};
          // The coordinator's own agent cannot be lost to itself, but nothing hangs on that here.
          run(3, events, {0, 0, 0});
          run(3, events, {5 * kSecond, 3 * kSecond, 0});  // heard of the other way round
          run(3, events, {0, 5 * kSecond, 0});
        }
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

void many_agents_with_random_fates_and_delays_come_to_the_right_verdict(void**) {
  std::mt19937 random(20260831);
  for (int trial = 0; trial < 2000; ++trial) {
    const int count = 1 + static_cast<int>(random() % 12);
    std::vector<Event> events;
    std::vector<std::uint64_t> delays;
    std::vector<int> agents;
    for (int agent = 0; agent < count; ++agent) agents.push_back(agent);
    std::shuffle(agents.begin(), agents.end(), random);
    bool signalled = false;
    for (int i = 0; i < count; ++i) {
      auto kind = static_cast<Event::Kind>(random() % 5);
      // A signal that is not the first trouble changes nothing.
      if (kind == Event::signal && (signalled || i > 0)) kind = Event::fine;
      signalled = signalled || kind == Event::signal;
      events.push_back({kind, agents[static_cast<std::size_t>(i)],
                        (1 + static_cast<std::uint64_t>(i)) * kSecond});
      delays.push_back(kind == Event::signal
                           ? 0
                           : random() % 20 * (kSecond / 2) + static_cast<std::uint64_t>(i));
    }
    run(count, events, delays);
  }
}

void a_lost_agent_goes_before_a_failure_at_the_same_time(void**) {
  JobState state = begun_job(2);
  state.ended(0, AgentEnd{4, false, 0, "rank 0 failed"}, 10 * kSecond);
  state.lost(1, "gone", 10 * kSecond + 50 * kMs);
  assert_int_equal(state.verdict()->code, 1);
  refused(state.verdict()->text, "node 1");
}

void failures_of_ranks_that_were_asked_to_end_by_the_user_are_none(void**) {
  JobState state = begun_job(2);
  state.stop_wanted(1, AgentStop{SIGTERM, true, "why"});
  assert_string_equal(state.stop()->reason.c_str(), "why");
  state.ended(0, AgentEnd{4, false, 0, "rank 0 failed"}, 5);
  state.lost(1, "gone", 6);
  assert_int_equal(state.verdict()->code, 128 + SIGTERM);
  assert_string_equal(state.verdict()->text.c_str(), "");
}

void workers_that_could_not_be_started_on_one_host_make_the_verdict_final(void**) {
  for (const bool one_could_not : {false, true}) {
    for (const bool is_first : {false, true}) {
      JobState state = begun_job(2);
      AgentEnd end{126, false, 0, "rank 1 cannot be started"};
      end.not_started = one_could_not;
      if (is_first) state.ended(1, end, 5 * kSecond);
      state.ended(0, AgentEnd{4, false, 0, "rank 0 failed"}, 6 * kSecond);
      if (!is_first) state.ended(1, end, 7 * kSecond);
      assert_int_equal(state.verdict()->is_final, one_could_not);
      assert_int_equal(state.verdict()->code, is_first ? 126 : 4);
    }
  }
}

// ---- as bytes ------------------------------------------------------------------------------

std::vector<AgentMessage> some_of_each() {
  AgentStart start;
  start.node_rank = 3;
  start.nodes = 4;
  start.first_rank = 12;
  start.world_size = 16;
  start.master_address = "fd00::1";
  start.master_port = 65535;
  start.rendezvous = "tcp://[fd00::1]:1/x";
  return {hello(2, 3, 4, 1),
          AgentRefusal{"no"},
          start,
          AgentStop{SIGINT, true, "why"},
          AgentEnd{137, true, 123'456'789'012, "rank 3 failed: \xc3\xa9", true, true},
          AgentVerdict{255, "", true},
          AgentBeat{}};
}

void what_is_said_arrives_as_it_was(void**) {
  for (const AgentMessage& message : some_of_each()) {
    AgentMessage copy;
    assert_true(decode(encode(message), &copy));
    assert_int_equal(copy.index(), message.index());
    assert_string_equal(encode(copy).c_str(), encode(message).c_str());
    assert_true(encode(copy) == encode(message));
  }
  AgentMessage out;
  assert_true(decode(encode(some_of_each()[2]), &out));
  const AgentStart& start = std::get<AgentStart>(out);
  assert_int_equal(start.first_rank, 12);
  assert_string_equal(start.master_address.c_str(), "fd00::1");
  assert_true(decode(encode(some_of_each()[4]), &out));
  assert_true(std::get<AgentEnd>(out).not_started);
  assert_true(decode(encode(some_of_each()[5]), &out));
  assert_true(std::get<AgentVerdict>(out).is_final);
}

void what_is_cut_or_longer_or_impossible_is_refused(void**) {
  AgentMessage out;
  for (const AgentMessage& message : some_of_each()) {
    const std::string bytes = encode(message);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      assert_false(decode(std::string_view(bytes).substr(0, length), &out));
    }
    assert_false(decode(bytes + "x", &out));
  }
  assert_false(decode(std::string(1, '\x07'), &out));
  assert_false(decode(std::string(1, '\xff'), &out));
  const auto is_refused = [&](const AgentMessage& message) {
    return !decode(encode(message), &out);
  };
  AgentHello one = hello(1, 1);
  one.address = "10.0.0.1?interface=x";
  assert_true(is_refused(one));
  one.address = "";
  assert_true(is_refused(one));
  one = hello(1, 1, 0);
  assert_true(is_refused(one));
  one = hello(1, 1);
  one.meeting_port = 0;
  assert_true(is_refused(one));
  one = hello(1, 1);
  one.restarts = -1;
  assert_true(is_refused(one));
  AgentStart start = std::get<AgentStart>(some_of_each()[2]);
  start.first_rank = 16;
  assert_true(is_refused(start));
  start.first_rank = 0;
  start.node_rank = 4;
  assert_true(is_refused(start));
  assert_true(is_refused(AgentStop{0, false, ""}));
  assert_true(is_refused(AgentVerdict{256, ""}));
}

void texts_are_cut_between_letters_and_come_without_control_characters(void**) {
  AgentMessage out;
  std::string text = "x";
  while (text.size() < 5000) text += "\xc3\xa9";
  assert_true(decode(encode(AgentRefusal{text}), &out));
  const std::string cut = std::get<AgentRefusal>(out).reason;
  assert_in_range(cut.size(), 1000, 1024);
  assert_int_equal(cut.size() % 2, 1);
  assert_true(text.compare(0, cut.size(), cut) == 0);
  assert_true(decode(encode(AgentRefusal{"a\nb\x1b[1m"}), &out));
  assert_string_equal(std::get<AgentRefusal>(out).reason.c_str(), "a?b?[1m");
}

void who_lost_a_peer_is_no_cause_beside_who_failed_by_itself(void**) {
  for (const bool cause_first : {false, true}) {
    JobState state(hello(2, 2), kLimits, 0);
    assert_string_equal(state.join(1, hello(2, 2), 1).c_str(), "");
    const AgentEnd effect{1, false, 700 * kMs, "rank 0 failed", true};
    const AgentEnd cause{3, false, 200 * kMs, "rank 1 failed", false};
    state.ended(cause_first ? 1 : 0, cause_first ? cause : effect, kSecond);
    state.ended(cause_first ? 0 : 1, cause_first ? effect : cause, kSecond);
    assert_string_equal(state.verdict()->text.c_str(), "rank 1 failed");
    assert_int_equal(state.verdict()->code, 3);
  }
}

void survivors_on_other_hosts_go_on_where_they_are_kept(void**) {
  JobLimits keeping = kLimits;
  keeping.keep_survivors = true;
  for (const bool one_survives : {true, false}) {
    JobState state(hello(3, 3), keeping, 0);
    assert_string_equal(state.join(1, hello(3, 3), 1).c_str(), "");
    assert_string_equal(state.join(2, hello(3, 3), 1).c_str(), "");
    const std::string said = state.lost(1, "its connection has ended", 10);
    assert_non_null(
        std::strstr(said.c_str(), "is lost: its connection has ended. The others go on"));
    state.ended(2, AgentEnd{7, false, 0, "rank 2 failed", false}, kSecond);
    assert_false(state.stop().has_value());
    assert_false(state.verdict().has_value());
    state.ended(0, one_survives ? AgentEnd{} : AgentEnd{8, false, 0, "rank 0 failed", false},
                2 * kSecond);
    assert_int_equal(state.verdict()->code, one_survives ? 0 : 1);
    assert_int_equal(state.verdict()->text.empty(), one_survives);
  }
}

void bytes_at_random_never_harm(void**) {
  std::mt19937 random(7);
  const std::vector<AgentMessage> all = some_of_each();
  for (int trial = 0; trial < 20000; ++trial) {
    std::string bytes = encode(all[random() % all.size()]);
    for (int change = 0; change < 3; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    AgentMessage out;
    if (!decode(bytes, &out)) continue;
    // Whatever it has become, it is a message as good as any.
    AgentMessage again;
    assert_true(decode(encode(out), &again));
    assert_true(encode(again) == encode(out));
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(ranks_follow_the_node_ranks_that_are_wanted_and_then_the_order_of_coming),
      cmocka_unit_test(an_address_of_ipv6_stands_in_brackets),
      cmocka_unit_test(a_wish_too_high_for_those_who_came_goes_before_no_wish),
      cmocka_unit_test(who_does_not_fit_is_refused_with_the_reason_and_leaves_no_trace),
      cmocka_unit_test(the_last_call_begins_with_the_fewest_and_ends_with_too_few),
      cmocka_unit_test(a_job_is_ending_from_the_first_stop_on),
      cmocka_unit_test(too_few_in_time_is_a_verdict_that_names_who_came),
      cmocka_unit_test(a_signal_before_the_job_begins_ends_it_only_at_the_coordinator),
      cmocka_unit_test(a_signal_counts_though_who_lost_a_peer_by_it_was_told_of_first),
      cmocka_unit_test(every_agent_ends_every_way_in_every_order),
      cmocka_unit_test(many_agents_with_random_fates_and_delays_come_to_the_right_verdict),
      cmocka_unit_test(a_lost_agent_goes_before_a_failure_at_the_same_time),
      cmocka_unit_test(failures_of_ranks_that_were_asked_to_end_by_the_user_are_none),
      cmocka_unit_test(workers_that_could_not_be_started_on_one_host_make_the_verdict_final),
      cmocka_unit_test(what_is_said_arrives_as_it_was),
      cmocka_unit_test(what_is_cut_or_longer_or_impossible_is_refused),
      cmocka_unit_test(texts_are_cut_between_letters_and_come_without_control_characters),
      cmocka_unit_test(who_lost_a_peer_is_no_cause_beside_who_failed_by_itself),
      cmocka_unit_test(survivors_on_other_hosts_go_on_where_they_are_kept),
      cmocka_unit_test(bytes_at_random_never_harm),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
