#include "launch/job_state.hpp"

#include <algorithm>
#include <csignal>
#include <utility>
#include <vector>

#include "net/endpoint.hpp"

namespace trireme::cluster {
namespace {

std::string nodes_option(int least, int most) {
  std::string text = std::string("--nnodes ").append(std::to_string(least));
  if (least != most) text.append(":").append(std::to_string(most));
  return text;
}

std::string restarts_option(int restarts) { return "--max-restarts " + std::to_string(restarts); }

}  // namespace

JobState::JobState(const AgentHello& own, const JobLimits& limits, std::uint64_t now_ns)
    : least_(own.least_nodes),
      most_(own.most_nodes),
      restarts_(own.restarts),
      limits_(limits),
      join_ends_ns_(now_ns + limits.join_ns) {
  join(kOwnAgent, own, now_ns);
}

std::string JobState::why_not(const AgentHello& hello) const {
  if (verdict_) return "the job is over";
  if (begun_) {
    return "the job has begun without it, with " + std::to_string(agents_.size()) + " nodes";
  }
  if (hello.least_nodes != least_ || hello.most_nodes != most_) {
    return "it was started with " + nodes_option(hello.least_nodes, hello.most_nodes) +
           ", the job with " + nodes_option(least_, most_);
  }
  // A launcher that gives up earlier would let the others wait in vain.
  if (hello.restarts != restarts_) {
    return "it was started with " + restarts_option(hello.restarts) + ", the job with " +
           restarts_option(restarts_);
  }
  if (hello.node_rank >= most_) {
    return "its node rank " + std::to_string(hello.node_rank) + " is none of " +
           std::to_string(most_) + " nodes";
  }
  for (const auto& [number, agent] : agents_) {
    if (hello.node_rank < 0 || agent.hello.node_rank != hello.node_rank) continue;
    return "node rank " + std::to_string(hello.node_rank) + " is taken by an agent on " +
           agent.hello.host;
  }
  return "";
}

std::string JobState::join(int agent, const AgentHello& hello, std::uint64_t now_ns) {
  std::string reason = why_not(hello);
  if (!reason.empty()) return reason;
  agents_[agent].hello = hello;
  const int count = static_cast<int>(agents_.size());
  if (count == most_) {
    begin();
  } else if (count >= least_ && !last_call_ns_) {
    last_call_ns_ = now_ns + limits_.last_call_ns;
  }
  return "";
}

// An agent that wants an existing node rank gets it. The others fill the gaps in two groups. First
// come agents whose wish is too high, because fewer agents came than expected. Agents without a
// wish follow in the order of their arrival.
void JobState::begin() {
  begun_ = true;
  const std::size_t count = agents_.size();
  std::vector<Agent*> nodes(count);
  std::vector<std::pair<int, Agent*>> others;
  for (auto& [number, agent] : agents_) {
    const int wanted = agent.hello.node_rank;
    if (wanted >= 0 && wanted < static_cast<int>(count)) {
      nodes[static_cast<std::size_t>(wanted)] = &agent;
    } else {
      others.emplace_back(wanted < 0 ? kMostNodes : wanted, &agent);
    }
  }
  std::stable_sort(others.begin(), others.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  auto next = others.begin();
  for (std::size_t node = 0; node < count; ++node) {
    if (nodes[node] == nullptr) nodes[node] = (next++)->second;
    nodes[node]->node_rank = static_cast<int>(node);
    nodes[node]->first_rank = world_size_;
    world_size_ += nodes[node]->hello.workers;
  }
}

AgentStart JobState::start_of(int agent, const std::string& name) const {
  const Agent& own = agents_.at(agent);
  const Agent& first = std::find_if(agents_.begin(), agents_.end(), [](const auto& each) {
                         return each.second.node_rank == 0;
                       })->second;
  AgentStart start;
  start.node_rank = own.node_rank;
  start.nodes = static_cast<int>(agents_.size());
  start.first_rank = own.first_rank;
  start.world_size = world_size_;
  start.master_address = first.hello.address;
  start.master_port = first.hello.master_port;
  start.rendezvous =
      "tcp://" + tcp::endpoint_text(first.hello.address, std::to_string(first.hello.meeting_port)) +
      "/" + name;
  return start;
}

std::string JobState::describe(const Agent& agent) const {
  const int last = agent.first_rank + agent.hello.workers - 1;
  return "the agent of node " + std::to_string(agent.node_rank) + " on " + agent.hello.host + " (" +
         (last == agent.first_rank ? "rank " : "ranks ") + std::to_string(agent.first_rank) +
         (last == agent.first_rank ? "" : " to " + std::to_string(last)) + ")";
}

void JobState::stop_wanted(int agent, const AgentStop& stop) {
  const auto found = agents_.find(agent);
  if (found == agents_.end() || verdict_) return;
  if (!begun_) {
    // Before the job begins, only the coordinator's own end matters; other agents just leave.
    if (agent == kOwnAgent) verdict_ = AgentVerdict{128 + stop.signal, stop.reason};
    return;
  }
  // Workers that lost a peer may have lost it by this signal, and have been told of first.
  const bool may_follow = !stop_is_wanted_ && first_ && first_->cause == Cause::peer;
  if (stop_ && !(stop.by_user && may_follow)) return;
  stop_ = stop;
  stop_is_wanted_ = true;
  if (!stop.by_user) return;
  // An end on request is no failure, and neither are its consequences.
  first_ = Ending{};
  first_verdict_ = {128 + stop.signal, ""};
}

void JobState::blame(const std::string& text, int code, const Ending& ending) {
  if (!stop_ && !limits_.keep_survivors) stop_ = AgentStop{SIGTERM, false, ""};
  if (stop_ && stop_->by_user) return;
  note(text, code, ending);
}

void JobState::note(const std::string& text, int code, const Ending& ending) {
  if (first_ && !is_earlier(ending, *first_)) return;
  first_ = ending;
  first_verdict_ = {code, text};
}

void JobState::ended(int agent, const AgentEnd& end, std::uint64_t now_ns) {
  const auto found = agents_.find(agent);
  if (found == agents_.end() || !begun_ || found->second.over) return;
  found->second.over = true;
  has_survivors_ = has_survivors_ || end.code == 0;
  is_final_ = is_final_ || end.not_started;
  if (end.code != 0) {
    blame(end.failure, end.code,
          Ending{end.by_signal, end.code, now_ns - std::min(now_ns, end.age_ns),
                 end.lost_peer ? Cause::peer : Cause::own});
  }
  decide();
}

std::string JobState::lost(int agent, const std::string& how, std::uint64_t moment_ns) {
  const auto found = agents_.find(agent);
  if (found == agents_.end() || verdict_) return "";
  if (!begun_) {
    agents_.erase(found);
    if (static_cast<int>(agents_.size()) < least_) last_call_ns_.reset();
    return "";
  }
  if (found->second.over) return "";
  found->second.over = true;
  // Ranks elsewhere fail because the lost agent's ranks are gone, never the other way round: like a
  // death by a signal, the loss precedes failures of the same time.
  const std::string text = describe(found->second) + " is lost: " + how;
  blame(text, 1, Ending{true, SIGKILL, moment_ns});
  decide();
  return stop_ || verdict_ ? "" : text + ". The others go on";
}

void JobState::decide() {
  for (const auto& [number, agent] : agents_) {
    if (!agent.over) return;
  }
  const bool enough = limits_.keep_survivors && has_survivors_ && !stop_;
  verdict_ = enough ? AgentVerdict{} : first_verdict_;
  verdict_->is_final = is_final_;
}

void JobState::time_passed(std::uint64_t now_ns) {
  if (begun_ || verdict_) return;
  if (last_call_ns_ && now_ns >= *last_call_ns_) return begin();
  if (last_call_ns_ || now_ns < join_ends_ns_) return;
  std::string text = "only " + std::to_string(agents_.size()) + " of at least " +
                     std::to_string(least_) + " nodes have come within " +
                     seconds_text(limits_.join_ns) + ":";
  for (const auto& [number, agent] : agents_) text += " " + agent.hello.host;
  verdict_ = AgentVerdict{1, text};
}

}  // namespace trireme::cluster
