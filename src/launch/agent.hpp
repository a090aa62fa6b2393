// Agent: the launcher of one host as part of a job on several. Where the meeting point is an address of
// this host it coordinates the job, else it joins.
#pragma once

#include <netinet/in.h>
#include <uv.h>

#include <memory>
#include <string>

#include "launch/agent_connection.hpp"
#include "launch/coordinator.hpp"
#include "net/token.hpp"

namespace trireme::cluster {

// How hosts find each other.
struct NodeOptions {
  std::string host;  // where the agents meet: a name, or an address
  int port = 0;
  int least = 1;
  int most = 1;
  int node_rank = -1;  // -1: any
  std::string job;     // "" is a name, too
  double join_seconds = 600;
  double last_call_seconds = 30;
  double silence_seconds = 5;
  bool keep_survivors = false;  // an agent or a worker that is lost does not end the others
};

class Agent {
 public:
  Agent(uv_loop_t* loop, const NodeOptions& options, int workers, JobEvents events);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Reads the token, and goes to meet the others.
  void begin();
  const Token& token() const { return token_; }
  const std::string& host() const { return host_; }

  // The workers here are being ended: all others shall be, too.
  void stop(const AgentStop& stop);
  // There are none left.
  void end(const AgentEnd& end);
  // Nothing is left to be said to anybody. Only after the verdict.
  bool idle() const { return over_ && (coordinator_ == nullptr || coordinator_->idle()); }
  // Whether a thread of the loop's pool is still at it, which nothing can hurry.
  bool is_looking_up() const { return looking_up_; }
  // Closes all connections: before the loop is closed.
  void release();

 private:
  void attempt();
  void resolved(int status, const addrinfo* list);
  void meet(const sockaddr* address);
  void connect(const sockaddr* address);
  void connected(int status);
  void said(const AgentMessage& message);
  void connection_ended(const Status& status);
  void tick();
  void again(const std::string& why);
  void give(const AgentVerdict& verdict);
  bool say_hello_from(const std::string& address, AgentHello* hello);

  uv_loop_t* const loop_;
  const NodeOptions options_;
  const int workers_;
  const JobEvents events_;
  const std::string host_;   // this one's name
  const std::string where_;  // "the agent at HOST:PORT"
  Token token_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<AgentConnection> connection_;
  std::unique_ptr<AgentConnection> old_connection_;  // may still be on the stack
  uv_getaddrinfo_t lookup_{};
  uv_connect_t connect_{};
  uv_timer_t timer_{};
  bool looking_up_ = false;
  bool connecting_ = false;
  std::uint64_t join_ends_ns_ = 0;
  std::uint64_t next_attempt_ns_ = 0;
  std::string last_failure_ = "no answer";
  int reserved_[2] = {-1, -1};  // sockets that keep two ports free for the ranks
  bool joined_ = false;         // the coordinator knows this agent
  bool started_ = false;
  bool ended_ = false;  // end() has been called
  bool over_ = false;   // the verdict has been given
  AgentEnd end_;
  std::optional<AgentVerdict> loss_;  // of the coordinator
  std::uint64_t loss_ns_ = 0;
};

}  // namespace trireme::cluster
